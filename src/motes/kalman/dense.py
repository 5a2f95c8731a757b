"""A whole short video as one Gaussian: exact inference without a loop over frames.

One Cholesky factor for each model, one matrix product for the whole batch. Covariances depend on
the model and the mask alone, so they are formed for those axes only and never for each clip.

Hidden positions are already finite numbers here; `motes.kalman` is the door that sees to it.
"""

import math
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.blocks import (
    Prior,
    add_to_diagonal_blocks,
    differences,
    emissions,
    free_motion,
    noise_gain,
    noise_response,
    prior_gradients,
    prior_positions,
)
from motes.kalman.linalg import (
    cholesky,
    distinct,
    hide,
    log_density,
    log_density_gradients,
    log_scale,
    map_vector,
    per_axis,
    whitener,
)
from motes.kalman.model import LGSSM, aligned


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
        else per_axis(observed, model.emission.shape[-2], model.emission.dtype)
    )
    density: Tensor = _DenseLogLikelihood.apply(a, seen, T, *model)
    return density


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
        batch, own, size = seen.shape[: -1 - axes], seen.shape[-1 - axes : -1], seen.shape[-1]
        if batch and set(own) <= {1} and not seen.is_cuda:
            masks, which = distinct(seen.reshape(*batch, size) > 0)
            seen = masks.to(seen).view(len(masks), *own, size)
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
        return ctx.prior.mean, precision, log_scale(W)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_mean: Tensor, by_precision: Tensor, by_log_scale: Tensor
    ) -> tuple[Tensor | None, ...]:
        P, *fields = ctx.saved_tensors
        pushed_back = P @ (0.5 * (by_precision + by_precision.mT)) @ P
        by_covariance = -pushed_back - 0.5 * by_log_scale[..., None, None] * P
        return None, *prior_gradients(LGSSM(*fields), ctx.prior, by_mean, by_covariance)


def smooth_dense(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The smoothed states as one regression of all states on all seen positions; cost O(T^3).

    Law: equals the sequential smoother (test_dense_and_sequential_smoothers_agree).
    """
    T, (P, D) = positions.shape[-2], model.emission.shape[-2:]
    model = aligned(model)
    M, S = differences(model.transition, T), emissions(model.emission, T)
    kept = seen = None
    if observed is not None and observed.ndim == 1 and not observed.is_cuda:
        # One mask for all: delete what is hidden. On a GPU, to count it would be to wait for it.
        kept = observed.repeat_interleave(P).nonzero().squeeze(-1)
        S = S.index_select(-2, kept)
    elif observed is not None:
        seen = per_axis(observed, P, model.emission.dtype)
    R = noise_response(S, M)
    R_kicked = noise_gain(model, R)
    E = R[..., :D]
    # What M^-1 makes of Cov(kicks, a) and of I in the first frame: the kicks' Cov(h, a), and A^t.
    columns = pad(R_kicked.mT, (D, 0, D, 0))
    columns[..., :D, :D].diagonal(dim1=-2, dim2=-1).fill_(1.0)
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
