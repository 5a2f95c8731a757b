"""A long video as a chain of stretches, each of them one Gaussian: its density in O(T).

Given the state h at its first frame, L frames in a row are one linear-Gaussian map of h, summed up
by a few D x D matrices. Only these go from stretch to stretch; all else is done side by side.

Hidden positions are already finite numbers here; `motes.kalman` is the door that sees to it.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.blocks import Block, unroll
from motes.kalman.linalg import (
    hide,
    identity,
    log_density,
    log_scale,
    map_vector,
    per_axis,
    valid,
    whitener,
)
from motes.kalman.model import LGSSM, aligned

AT_ONCE = 32  # stretches that are held side by side, which bounds memory


class Start(NamedTuple):
    """What is known of the state at the first frame of a stretch."""

    mean: Float[Tensor, "... D"]
    covariance: Float[Tensor, "... D D"]


def log_likelihood_chunked(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    num_frames: int,
) -> Float[Tensor, "..."]:
    """The log density of the seen positions, `num_frames` at a time; cost O(T), memory O(1).

    With r the whitened residual of a stretch at the predicted state m of covariance P,
    and J = E' C^-1 E, the covariance of its state given its positions is M = (I + P J)^-1 P and
        log p(a) = -1/2 (r'r - (E'r)' M (E'r) + log |C| + log |I + P J| + n log 2 pi).
    No covariance of a state is ever inverted, so singular ones are welcome.

    Law: equals the dense form for any length of stretch
        (test_all_routes_to_the_log_likelihood_agree), and any number of them at once
        (test_a_long_video_is_weighed_as_a_short_one_is).
    """
    stretch, T = unroll(aligned(_with_stretch_axis(model)), num_frames), positions.shape[-2]
    start = Start(model.initial_mean, valid(model.initial_covariance))
    total = torch.zeros((), dtype=positions.dtype, device=positions.device)
    for t in range(0, T, AT_ONCE * num_frames):
        time = slice(t, t + AT_ONCE * num_frames)
        mask = None if observed is None else observed[..., time]
        nats, start = _through_stretches(stretch, positions[..., time, :], mask, start)
        total = total + nats
    return total


def _through_stretches(
    stretch: Block,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    start: Start,
) -> tuple[Float[Tensor, "..."], Start]:
    """The log density of some stretches in a row, all side by side, and the start of the next."""
    E, d, C, F, c, G, X = stretch
    axes = positions.shape[-1]
    masks, kind = _stretch_masks(positions, observed, C.shape[-1] // axes)
    seen = per_axis(masks, axes, C.dtype)
    W = whitener(hide(C, seen))
    E, X = W @ (E * seen.unsqueeze(-1)), W @ (X.mT * seen.unsqueeze(-1))
    F, G = F - X.mT @ E, G - X.mT @ X

    # From here on only `_chain` goes through the stretches one by one.
    seen = seen.index_select(-2, kind)
    W, E, X, F, G = (part.index_select(-3, kind) for part in (W, E, X, F, G))
    a = pad(positions, (0, 0, 0, -positions.shape[-2] % masks.shape[-1])).flatten(-2)
    a = map_vector(W, (a.unflatten(-1, (len(kind), -1)) - d) * seen)
    J = E.mT @ E
    m, P, M = _chain(start, J, map_vector(E.mT, a), F, c + map_vector(X.mT, a), G)
    after = Start(m[..., -1, :], P[..., -1, :, :])
    m, P = m[..., :-1, :], P[..., :-1, :, :]
    residual = a - map_vector(E, m)
    pull = map_vector(E.mT, residual)
    gain = map_vector(M, pull).mul(pull).sum(-1) - torch.logdet(identity(J.shape[-1], J) + P @ J)
    return (log_density(log_scale(W), residual, residual, seen.sum(-1)) + 0.5 * gain).sum(-1), after


def _stretch_masks(
    positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None, num_frames: int
) -> tuple[Bool[Tensor, "... kinds L"], Int[Tensor, " chunks"]]:
    """The masks that occur among the stretches, and which of them each stretch has.

    Frames that fill up the last stretch are hidden. If all others are seen, all stretches but
    the last are alike, and their matrices are formed once and not for each.
    """
    T, device = positions.shape[-2], positions.device
    chunks = -(-T // num_frames)
    if observed is None:
        frames = torch.arange(2 * num_frames, device=device) + num_frames * (chunks - 2)
        kind = (torch.arange(chunks, device=device) == chunks - 1).long()
        return (frames < T).unflatten(-1, (2, num_frames)), kind
    padded = pad(observed, (0, chunks * num_frames - T))
    return padded.unflatten(-1, (chunks, num_frames)), torch.arange(chunks, device=device)


def _chain(
    start: Start,
    precision: Float[Tensor, "... chunks D D"],
    evidence: Float[Tensor, "... chunks D"],
    transition: Float[Tensor, "... chunks D D"],
    force: Float[Tensor, "... chunks D"],
    noise: Float[Tensor, "... chunks D D"],
) -> tuple[
    Float[Tensor, "... chunks+1 D"],
    Float[Tensor, "... chunks+1 D D"],
    Float[Tensor, "... chunks D D"],
]:
    """Mean and covariance of each stretch's first state before, and covariance after, seeing it.

    The first two of one stretch more: the one that would come next. A stretch says
    exp(-1/2 h'J h + h'y) about its first state h, and h_next = F h + c + N(0, G).
    """
    J, y, F, c, G = precision, evidence, transition, force, noise
    eye = identity(J.shape[-1], J)
    mu, Sigma = start
    P, M = [Sigma.expand(torch.broadcast_shapes(J[..., 0, :, :].shape, Sigma.shape))], []
    for J_t, F_t, G_t in zip(J.unbind(-3), F.unbind(-3), G.unbind(-3), strict=True):
        M.append(_symmetric(torch.linalg.solve_ex(eye + P[-1] @ J_t, P[-1])[0]))
        P.append(F_t @ M[-1] @ F_t.mT + G_t)
    covariance, covariance_seen = torch.stack(P, -3), torch.stack(M, -3)

    # m_next = F (m + M (y - J m)) + c, with everything but the running m formed beforehand.
    step = F @ (eye - covariance_seen @ J)
    shift = map_vector(F, map_vector(covariance_seen, y)) + c
    m = [mu.expand(torch.broadcast_shapes(shift[..., 0, :].shape, mu.shape))]
    for step_t, shift_t in zip(step.unbind(-3), shift.unbind(-2), strict=True):
        m.append(map_vector(step_t, m[-1]) + shift_t)
    return torch.stack(m, -2), covariance, covariance_seen


def _with_stretch_axis(model: LGSSM) -> LGSSM:
    """The same model with an axis of length 1 for the stretches behind its leading axes."""
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    matrices = (field.unsqueeze(-3) for field in (A, B, Sigma_H, Sigma_A, Sigma))
    A, B, Sigma_H, Sigma_A, Sigma = matrices
    return LGSSM(A, u.unsqueeze(-2), B, Sigma_H, Sigma_A, mu.unsqueeze(-2), Sigma)


def _symmetric(matrix: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    return 0.5 * (matrix + matrix.mT)
