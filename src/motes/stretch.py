"""Frames in a row as one linear map of the first state and of the kicks that follow it.

The states of T frames, stacked, are h = Lam k with k = (h_1, u + kick_2, ..., u + kick_T), where
block (i, j) of the lower-triangular `Lam` is A^(i-j). All moments of a stretch are products with
`Lam`: there is no loop over frames. `TD` runs over frames and, within each, over D.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from motes.lgssm import LGSSM, identity, map_vector
from motes.shapes import Float, Tensor


class States(NamedTuple):
    """The prior of all states of a stretch, h = Lam k."""

    spread: Float[Tensor, "... TD TD"]
    """Cov(h, k) = Lam Cov(k), so that Cov(h) = spread Lam'"""
    mean: Float[Tensor, "... TD"]
    """E h"""


class Positions(NamedTuple):
    """The prior of all positions of a stretch, a = R k + noise, where R is B Lam."""

    rows: Float[Tensor, "... TP TD"]
    """R"""
    states: States
    mean: Float[Tensor, "... TP"]
    covariance: Float[Tensor, "... TP TP"]


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
    """The stretch of `num_frames` frames of the model: what follows a start that is known.

    Law: chained stretches are the model (test_all_routes_to_the_log_likelihood_agree).
    """
    D, P = model.transition.shape[-1], model.emission.shape[-2]
    mu, Sigma = torch.zeros_like(model.initial_mean), torch.zeros_like(model.initial_covariance)
    at_zero = model._replace(initial_mean=mu, initial_covariance=Sigma)
    at_zero = aligned(at_zero)
    Lam = impulse_response(at_zero.transition, num_frames + 1)
    spread, mean = prior_states(at_zero, Lam)
    now = slice(0, num_frames * P)
    a = emit(model, Lam)[..., now, :]
    noise = repeat_diagonally(model.position_noise, num_frames)
    return Stretch(
        emission=a[..., :D],
        offset=emit_vector(model, mean)[..., now],
        noise=emit(model, spread)[..., now, :] @ a.mT + noise,
        transition=Lam[..., -D:, :D],
        force=mean[..., -D:],
        next_noise=spread[..., -D:, :] @ Lam[..., -D:, :].mT,
        cross=spread[..., -D:, :] @ a.mT,
    )


def prior_states(model: LGSSM, response: Float[Tensor, "... TD TD"]) -> States:
    """The prior of the states of an aligned model with the impulse response `Lam`."""
    _, u, _, Sigma_H, _, mu, Sigma = model
    Lam, D = response, mu.shape[-1]
    spread = (_columns(Lam, D) @ Sigma_H).view_as(Lam)
    spread[..., :D] = Lam[..., :D] @ Sigma
    if mu.shape != u.shape:
        mu, u = torch.broadcast_tensors(mu, u)
    pushes = u.unsqueeze(-2).expand(*u.shape[:-1], Lam.shape[-1] // D - 1, D)
    k = torch.cat([mu.unsqueeze(-2), pushes], -2).flatten(-2)
    return States(spread, map_vector(Lam, k))


def prior_positions(model: LGSSM, num_frames: int) -> Positions:
    """The prior of the positions of an aligned model, to be differentiated by `prior_gradients`."""
    Lam = powers_of(model.transition, num_frames)
    states, R = prior_states(model, Lam), emit(model, Lam)
    noise = repeat_diagonally(model.position_noise, num_frames)
    covariance = emit(model, states.spread) @ R.mT + noise
    return Positions(R, states, emit_vector(model, states.mean), covariance)


def prior_gradients(
    prior: Positions,
    by_mean: Float[Tensor, "... TP"],
    by_covariance: Float[Tensor, "... TP TP"],
    state_dim: int,
) -> LGSSM:
    """The gradient by each field of the model, from those by the positions' mean and covariance.

    With g and Z = Z' the latter two, the gradients by E k and Cov k are R' g and R' Z R. Where A
    and B stand, they act on the states: the gradients by R and by the blocks of Lam^-1 are
    G = g E h' + 2 Z Cov(R k, h) and -R' G.

    Law: they are those of the values (test_gradients_are_those_of_the_values).
    """
    R, (spread, h), _, _ = prior
    g, Z = by_mean.unsqueeze(-1), by_covariance
    P, D = R.shape[-2] * state_dim // R.shape[-1], state_dim
    ZR = Z @ R
    G = g * h.unsqueeze(-2) + 2 * (ZR @ spread.mT)
    kicks = _columns(R[..., D:], D).mT
    by_k = (R.mT @ g).squeeze(-1).unflatten(-1, (-1, D))
    return LGSSM(
        transition=kicks @ _columns(G[..., :-D], D),
        force=by_k[..., 1:, :].sum(-2),
        emission=_sum_of_diagonal_blocks(G, P, D),
        state_noise=kicks @ _columns(ZR[..., D:], D),
        position_noise=_sum_of_diagonal_blocks(Z, P, P),
        initial_mean=by_k[..., 0, :],
        initial_covariance=R[..., :D].mT @ ZR[..., :D],
    )


def aligned(model: LGSSM) -> LGSSM:
    """The model with the same leading axes for all its matrices; vectors keep theirs."""
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    matrices = (A, B, Sigma_H, Sigma_A, Sigma)
    leads = {matrix.shape[:-2] for matrix in matrices}
    if len(leads) == 1:
        return model
    lead = torch.broadcast_shapes(*leads)
    A, B, Sigma_H, Sigma_A, Sigma = (matrix.expand(*lead, -1, -1) for matrix in matrices)
    return LGSSM(A, u, B, Sigma_H, Sigma_A, mu, Sigma)


def emit(model: LGSSM, states: Float[Tensor, "... TD n"]) -> Float[Tensor, "... TP n"]:
    """B times each frame's block of rows."""
    B = model.emission
    rows: Tensor = (B.unsqueeze(-3) @ states.unflatten(-2, (-1, B.shape[-1]))).flatten(-3, -2)
    return rows


def emit_vector(model: LGSSM, states: Float[Tensor, "... TD"]) -> Float[Tensor, "... TP"]:
    """B times each frame's state."""
    B = model.emission
    positions: Tensor = (states.unflatten(-1, (-1, B.shape[-1])) @ B.mT).flatten(-2)
    return positions


def repeat_diagonally(
    block: Float[Tensor, "... P P"], num_frames: int
) -> Float[Tensor, "... TP TP"]:
    """The block-diagonal matrix with the same block in every frame."""
    return torch.kron(identity(num_frames, block), block)


def impulse_response(
    transition: Float[Tensor, "... D D"], num_frames: int
) -> Float[Tensor, "... TD TD"]:
    """The block lower-triangular matrix with A^(i-j) in block (i, j); once differentiable.

    Law: the gradient is that of the values (test_gradients_are_those_of_the_values).
    """
    response: Tensor = _ImpulseResponse.apply(transition, num_frames)
    return response


def powers_of(transition: Float[Tensor, "... D D"], num_frames: int) -> Float[Tensor, "... TD TD"]:
    """What `impulse_response` gives, by doubling, without a gradient."""
    D, T = transition.shape[-1], num_frames
    powers = identity(D, transition).expand(transition.shape)
    A_n = transition
    while powers.shape[-1] < T * D:
        powers, A_n = torch.cat([A_n @ powers, powers], -1), A_n @ A_n
    return _toeplitz(powers[..., -T * D :])


class _ImpulseResponse(torch.autograd.Function):
    """Lam = (I - N)^-1, where N has A in all blocks below the diagonal.

    Its derivative is Lam dN Lam, which is two products; tracing the powers of A would be twenty.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, num_frames: int) -> Tensor:
        Lam = powers_of(A, num_frames)
        ctx.save_for_backward(Lam)
        ctx.state_dim = A.shape[-1]
        return Lam

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (Lam,) = ctx.saved_tensors
        D = ctx.state_dim
        # The gradient by N is Lam' gradient Lam'; the one by A sums its blocks below the diagonal.
        left, right = (Lam.mT @ gradient)[..., D:, :], Lam[..., :-D, :]
        return _columns(left.mT, D).mT @ _columns(right.mT, D), None


def _toeplitz(last_row: Float[Tensor, "... D TD"]) -> Float[Tensor, "... TD TD"]:
    """The block lower-triangular matrix, the same along diagonals, with that last row of blocks."""
    D, TD = last_row.shape[-2:]
    # Row i of blocks is a window of (the last row, zeros), further left for larger i.
    windows = pad(last_row, (0, TD - D)).unfold(-1, TD, D).flip(-2)
    blocks: Tensor = windows.transpose(-3, -2).flatten(-3, -2)
    return blocks


def _columns(matrix: Float[Tensor, "... n TD"], state_dim: int) -> Float[Tensor, "... nT D"]:
    """The D columns of all frames put below one another."""
    columns: Tensor = matrix.unflatten(-1, (-1, state_dim)).flatten(-3, -2)
    return columns


def _sum_of_diagonal_blocks(
    matrix: Float[Tensor, "... TP TQ"], num_rows: int, num_columns: int
) -> Float[Tensor, "... P Q"]:
    blocks = matrix.unflatten(-1, (-1, num_columns)).unflatten(-3, (-1, num_rows))
    total: Tensor = blocks.diagonal(dim1=-4, dim2=-2).sum(-1)
    return total
