"""Frames in a row as one linear map of the first state and of the kicks that follow it.

The states of T frames, stacked, are h = Lam (h_1, u + kick_2, ..., u + kick_T), where block (i, j)
of the lower-triangular `Lam` is A^(i-j). All moments of a stretch are products with `Lam` or with
some of its rows: there is no loop over frames. Below, "rows" are linear functions of the states,
written as matrices over (h_1, kick_2, ..., kick_T).
"""

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from motes.lgssm import LGSSM, identity, map_vector
from motes.shapes import Float, Tensor


class Stretch(NamedTuple):
    """L frames as one map of the state h at the first of them; `LP` runs over frame and axis.

    a = E h + d + v,  h_next = F h + c + w,  Cov(v) = C,  Cov(w) = G,  Cov(w, v) = X,
    where h_next is the state at the first frame after the stretch.
    """

    emission: Float[Tensor, "... LP D"]
    """E"""
    offset: Float[Tensor, "... LP"]
    """d"""
    noise: Float[Tensor, "... LP LP"]
    """C"""
    transition: Float[Tensor, "... D D"]
    """F"""
    force: Float[Tensor, "... D"]
    """c"""
    next_noise: Float[Tensor, "... D D"]
    """G"""
    cross: Float[Tensor, "... D LP"]
    """X"""


def unroll(model: LGSSM, num_frames: int) -> Stretch:
    """The stretch of `num_frames` frames of the model.

    Law: chained stretches are the model (test_all_routes_to_the_log_likelihood_agree).
    """
    D, P = model.transition.shape[-1], model.emission.shape[-2]
    Lam = impulse_response(model.transition, num_frames + 1)
    a, h_next = emit(model, Lam)[..., : num_frames * P, :], Lam[..., -D:, :]
    noise = repeat_diagonally(model.position_noise, num_frames)
    return Stretch(
        emission=a[..., :D],
        offset=pushed(model, a),
        noise=kicked(model, a, a) + noise,
        transition=h_next[..., :D],
        force=pushed(model, h_next),
        next_noise=kicked(model, h_next, h_next),
        cross=kicked(model, h_next, a),
    )


def emit(model: LGSSM, rows: Float[Tensor, "... TD columns"]) -> Float[Tensor, "... TP columns"]:
    """The rows of the noise-free positions, from those of the states."""
    B = model.emission
    blocks = rows.unflatten(-2, (-1, B.shape[-1]))
    return (B.unsqueeze(-3) @ blocks).flatten(-3, -2)


def pushed(model: LGSSM, rows: Float[Tensor, "... n TD"]) -> Float[Tensor, "... n"]:
    """What the constant force adds to each row."""
    D = model.force.shape[-1]
    return map_vector(rows[..., D:].unflatten(-1, (-1, D)).sum(-2), model.force)


def kicked(
    model: LGSSM, left: Float[Tensor, "... n TD"], right: Float[Tensor, "... m TD"]
) -> Float[Tensor, "... n m"]:
    """The covariance that the state noise gives to two sets of rows."""
    D = model.state_noise.shape[-1]
    left, right = left[..., D:], right[..., D:]
    one_column = left.unflatten(-1, (-1, D)).flatten(-3, -2)
    return (one_column @ model.state_noise).unflatten(-2, (left.shape[-2], -1)).flatten(
        -2
    ) @ right.mT


def repeat_diagonally(
    block: Float[Tensor, "... P P"], num_frames: int
) -> Float[Tensor, "... TP TP"]:
    """The block-diagonal matrix with the same block in every frame."""
    return torch.kron(identity(num_frames, block), block)


def impulse_response(
    transition: Float[Tensor, "... D D"], num_frames: int
) -> Float[Tensor, "... TD TD"]:
    """The block lower-triangular matrix with A^(i-j) in block (i, j).

    Law: the gradient is that of the values (test_impulse_response_has_its_gradient).
    """
    response: Tensor = _ImpulseResponse.apply(transition, num_frames)
    return response


class _ImpulseResponse(torch.autograd.Function):
    """Lam = (I - N)^-1, where N has A in all blocks below the diagonal.

    Its derivative is Lam dN Lam, which is two products; tracing the powers of A would be twenty.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, num_frames: int) -> Tensor:
        D, T = A.shape[-1], num_frames
        powers, A_n = identity(D, A).expand(A.shape).unsqueeze(-3), A.unsqueeze(-3)
        while powers.shape[-3] < T:
            powers, A_n = torch.cat([A_n @ powers, powers], -3), A_n @ A_n
        # Row i of blocks is a window of (A^(T-1), ..., A, I, 0, ..., 0).
        padded = pad(powers[..., -T:, :, :], (0, 0, 0, 0, 0, T - 1))
        windows = padded.unfold(-3, T, 1).flip(-4)
        Lam = windows.transpose(-1, -2).reshape(*A.shape[:-2], T * D, T * D)
        ctx.save_for_backward(Lam)
        ctx.state_dim = D
        return Lam

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (Lam,) = ctx.saved_tensors
        D = ctx.state_dim
        # The gradient by N is Lam' gradient Lam'; the one by A sums its blocks below the diagonal.
        left = (Lam.mT @ gradient)[..., D:, :].unflatten(-2, (-1, D)).transpose(-3, -2)
        right = Lam[..., :-D, :].unflatten(-2, (-1, D)).transpose(-3, -2)
        return left.flatten(-2) @ right.flatten(-2).mT, None
