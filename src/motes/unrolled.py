"""Whole stretches of frames as one Gaussian: exact inference without a loop over frames.

Given the state h at its first frame, L frames in a row are one linear-Gaussian map of h. A short
video is one stretch: one Cholesky factor for each model, one matrix product for the whole batch.
A long one is a chain of stretches, each summed up by a few D x D matrices. Covariances depend on
the model and the mask alone, so they are formed for those axes only and never for each clip.

Hidden positions are already finite numbers here; `motes.kalman` is the door that sees to it.
"""

import math
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from motes.gaussian import (
    cholesky,
    distinct,
    hide,
    log_density,
    log_density_gradients,
    log_scale,
    valid,
    whitener,
)
from motes.lgssm import LGSSM, identity, map_vector
from motes.shapes import Bool, Float, Int, Tensor
from motes.stretch import (
    Prior,
    Stretch,
    add_to_diagonal_blocks,
    differences,
    emissions,
    free_motion,
    kicked,
    prior_gradients,
    prior_positions,
    rows_over_kicks,
    unroll,
)

AT_ONCE = 32  # stretches that are held side by side, which bounds memory


class Smoothed(NamedTuple):
    """Means and covariances of the state in every frame, given all that was seen."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]


def log_likelihood_dense(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> Float[Tensor, "..."]:
    """The log density of the seen positions, from their joint Gaussian; cost O(T^3).

    Law: equals the filter's (test_all_routes_to_the_log_likelihood_agree).
    """
    a, model, T = positions.flatten(-2), aligned(model), positions.shape[-2]
    seen = (
        None
        if observed is None
        else _per_axis(observed, model.emission.shape[-2], model.emission.dtype)
    )
    density: Tensor = _DenseLogLikelihood.apply(a, seen, T, *model)
    return density


def aligned(model: LGSSM) -> LGSSM:
    """The model with the same leading axes for all that starts share, and for all starts.

    The axes of mu and Sigma hold those of the dynamics, so that a sum over starts is one over the
    axes that the dynamics lack.
    """
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    leads = {A.shape[:-2], u.shape[:-1], B.shape[:-2], Sigma_H.shape[:-2], Sigma_A.shape[:-2]}
    if len(leads) == 1 and mu.shape[:-1] == Sigma.shape[:-2] and mu.ndim >= u.ndim:
        return model
    lead = torch.broadcast_shapes(*leads)
    starts = torch.broadcast_shapes(lead, mu.shape[:-1], Sigma.shape[:-2])
    A, B, Sigma_H, Sigma_A = (part.expand(*lead, -1, -1) for part in (A, B, Sigma_H, Sigma_A))
    u, mu, Sigma = u.expand(*lead, -1), mu.expand(*starts, -1), Sigma.expand(*starts, -1, -1)
    return LGSSM(A, u, B, Sigma_H, Sigma_A, mu, Sigma)


class _DenseLogLikelihood(torch.autograd.Function):
    """The density of all positions, with a gradient that is written out: half the time."""

    @staticmethod
    def forward(
        ctx: Any, positions: Tensor, seen: Tensor | None, num_frames: int, *fields: Tensor
    ) -> Tensor:
        with torch.inference_mode():  # nothing here is traced: less to keep book of, a tenth faster
            density, ctx.kept = _density(LGSSM(*fields), positions, seen, num_frames)
        ctx.save_for_backward(*fields)
        ctx.of_positions = positions.shape
        return density.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        with torch.inference_mode():
            prior, precision, pull, seen = ctx.kept
            by_means, by_covariance = log_density_gradients(
                precision, pull, weights, seen, prior.covariance.shape[:-2]
            )
            by_mean = by_means.sum_to_size(prior.mean.shape)
            model = LGSSM(*ctx.saved_tensors)
            by_fields = prior_gradients(model, prior, by_mean, by_covariance)
            away = by_means.sum_to_size(ctx.of_positions)
        return -away, None, None, *(field.clone() for field in by_fields)


def _density(
    model: LGSSM, positions: Float[Tensor, "... TP"], seen: Tensor | None, num_frames: int
) -> tuple[Float[Tensor, "..."], tuple[Prior, Tensor, Tensor, Tensor | None]]:
    """The log density, and what its gradient needs again."""
    prior = prior_positions(model, num_frames)
    residual = positions - prior.mean
    num_seen: Tensor | int = positions.shape[-1]
    if seen is not None:
        residual, num_seen = residual * seen, seen.sum(-1)
    scale, precision = _factored(prior.covariance, seen)
    pull = map_vector(precision, residual)
    return log_density(scale, residual, pull, num_seen), (prior, precision, pull, seen)


def _factored(
    covariance: Float[Tensor, "... TP TP"], seen: Float[Tensor, "... TP"] | None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "... TP TP"]]:
    """Log scale and precision of what was seen.

    Masks that have nothing but axes of length 1 for those of the covariance are sorted out first:
    each that occurs is factored once. On a GPU, to find them would be to wait for it.
    """
    axes, which = covariance.ndim - 2, None
    if seen is not None:
        batch, own = seen.shape[: -1 - axes], seen.shape[-1 - axes : -1]
        if batch and set(own) <= {1} and not seen.is_cuda:
            masks, which = distinct(seen.reshape(*batch, -1) > 0)
            seen = masks.to(seen).view(len(masks), *own, -1)
        covariance = hide(covariance, seen)
    W = whitener(covariance)
    scale, precision = log_scale(W), W.mT @ W
    return (scale, precision) if which is None else (scale[which], precision[which])


class PositionPrior(NamedTuple):
    """The joint Gaussian of all positions, ready to be asked for densities."""

    mean: Float[Tensor, "... TP"]
    precision: Float[Tensor, "... TP TP"]
    """C^-1"""
    log_scale: Float[Tensor, "..."]
    """log |C|^(-1/2)"""

    def log_density(self, positions: Float[Tensor, "... T P"]) -> Float[Tensor, "..."]:
        """The log density of positions, all of them seen.

        Law: equals `log_likelihood_dense` (test_a_prepared_prior_gives_the_same_density).
        """
        residual = positions.flatten(-2).to(self.mean.dtype) - self.mean
        squares = (residual * map_vector(self.precision, residual)).sum(-1)
        return self.log_scale - 0.5 * (squares + residual.shape[-1] * math.log(2 * math.pi))


def position_prior(model: LGSSM, num_frames: int) -> PositionPrior:
    """What a density needs of the model alone, so that it can be had before the positions are."""
    return PositionPrior(*_PositionPrior.apply(num_frames, *aligned(model)))


class _PositionPrior(torch.autograd.Function):
    """With P = C^-1, dP = -P dC P and d log |C|^(-1/2) = -1/2 tr(P dC)."""

    @staticmethod
    def forward(ctx: Any, num_frames: int, *fields: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.prior = prior_positions(LGSSM(*fields), num_frames)
        W = whitener(ctx.prior.covariance)
        precision = W.mT @ W
        ctx.save_for_backward(precision, *fields)
        return ctx.prior.mean, precision, W.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_mean: Tensor, by_precision: Tensor, by_log_scale: Tensor
    ) -> tuple[Tensor | None, ...]:
        P, *fields = ctx.saved_tensors
        pushed_back = P @ (0.5 * (by_precision + by_precision.mT)) @ P
        by_covariance = -pushed_back - 0.5 * by_log_scale[..., None, None] * P
        return None, *prior_gradients(LGSSM(*fields), ctx.prior, by_mean, by_covariance)


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
    stretch: Stretch,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    start: Start,
) -> tuple[Float[Tensor, "..."], Start]:
    """The log density of some stretches in a row, all side by side, and the start of the next."""
    E, d, C, F, c, G, X = stretch
    axes = positions.shape[-1]
    masks, kind = _stretch_masks(positions, observed, C.shape[-1] // axes)
    seen = _per_axis(masks, axes, C.dtype)
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


def smooth_dense(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The smoothed states as one regression of all states on all seen positions; cost O(T^3).

    Law: equals the sequential smoother (test_dense_and_sequential_smoothers_agree).
    """
    T, D = positions.shape[-2], model.transition.shape[-1]
    seen = (
        None
        if observed is None
        else _per_axis(observed, model.emission.shape[-2], model.emission.dtype)
    )
    model = aligned(model)
    M, S = differences(model.transition, T), emissions(model.emission, T)
    kept = None
    if seen is not None and seen.ndim == 1 and seen.device.type == "cpu":
        # One mask for all: delete what is hidden. On a GPU, to count it would be to wait for it.
        kept, seen = seen.nonzero().squeeze(-1), None
        S = S.index_select(-2, kept)
    R = rows_over_kicks(S, M)
    R_kicked = kicked(model, R)
    E = R[..., :D]
    # What M^-1 makes of Cov(kicks, a) and of I in the first frame: the kicks' Cov(h, a), and A^t.
    columns = torch.zeros(*R.shape[:-2], T * D, D + R.shape[-2], dtype=R.dtype, device=R.device)
    columns[..., :D, :D].diagonal(dim1=-2, dim2=-1).fill_(1.0)
    columns[..., D:, D:] = R_kicked.mT
    solved = solve_triangular(M, columns, upper=False, unitriangular=True)
    powers = solved[..., :D]
    mean, prior = free_motion(model, powers)
    started = E @ model.initial_covariance
    cross = powers @ started.mT + solved[..., D:]
    noise = add_to_diagonal_blocks(R_kicked @ R[..., D:].mT, model.position_noise)
    covariance = started @ E.mT + noise
    if seen is not None:
        cross, covariance = cross * seen.unsqueeze(-2), hide(covariance, seen)
    gain = cross @ torch.cholesky_inverse(cholesky(covariance))
    residual = _seen_alone((positions - mean @ model.emission.mT).flatten(-2), kept, seen)
    means = mean + map_vector(gain, residual).unflatten(-1, (T, D))
    covariances = prior - gain.unflatten(-2, (T, D)) @ cross.unflatten(-2, (T, D)).mT
    if position_variances is not None:
        rows = gain.unflatten(-2, (T, D))
        squares = (rows.unsqueeze(-2) * rows.unsqueeze(-3)).flatten(-4, -2)
        added = map_vector(squares, _seen_alone(position_variances.flatten(-2), kept, seen))
        covariances = covariances + added.unflatten(-1, (T, D, D))
    return Smoothed(means, covariances.expand(*means.shape, D))


def _seen_alone(
    values: Float[Tensor, "... TP"], kept: Int[Tensor, " seen"] | None, seen: Tensor | None
) -> Float[Tensor, "... n"]:
    """The values that were seen: others deleted, if `kept` tells which to keep, else zero."""
    if kept is not None:
        return values.index_select(-1, kept)
    # Replaced, not multiplied: 0 * NaN would poison the rest.
    return values if seen is None else torch.where(seen > 0, values, 0.0)


def _with_stretch_axis(model: LGSSM) -> LGSSM:
    """The same model with an axis of length 1 for the stretches behind its leading axes."""
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    matrices = (field.unsqueeze(-3) for field in (A, B, Sigma_H, Sigma_A, Sigma))
    A, B, Sigma_H, Sigma_A, Sigma = matrices
    return LGSSM(A, u.unsqueeze(-2), B, Sigma_H, Sigma_A, mu.unsqueeze(-2), Sigma)


def _per_axis(
    observed: Bool[Tensor, "... T"], num_axes: int, dtype: torch.dtype
) -> Float[Tensor, "... TP"]:
    """1 for each coordinate that was seen and 0 for each that was not."""
    return observed.to(dtype).unsqueeze(-1).expand(*observed.shape, num_axes).flatten(-2)


def _symmetric(matrix: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    return 0.5 * (matrix + matrix.mT)
