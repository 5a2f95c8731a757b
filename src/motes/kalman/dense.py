"""Short videos as one joint Gaussian.

One Cholesky factor for each model and mask, one matrix product for the whole batch. Covariances
depend only on model and mask, and are formed for those axes alone.

Every route also returns an estimate of its rounding error, relative to variances and to the log
density: the rounding of float64 times how much variances are reduced by conditioning.

Unobserved positions must already be finite; `motes.kalman` replaces them.
"""

import math
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.linalg import (
    cholesky,
    coordinate_mask,
    diagonal,
    inverse_cholesky,
    largest,
    log_density,
    log_density_gradients,
    log_det_triangular,
    map_vector,
    mask_covariance,
    unique_masks,
)
from motes.kalman.model import (
    EPSILON,
    LGSSM,
    Smoothed,
    add_to_diagonal_blocks,
    aligned,
    diagonal_blocks,
    difference_matrix,
    emission_matrix,
    input_response,
    noise_gain,
    response,
    solve,
    stack_columns,
    sum_of_later_columns,
)


class JointPrior(NamedTuple):
    """The joint prior of all positions, a = R k + noise (see `motes.kalman.model`).

    E is the first D columns of R, which multiply h_1. Only the last three fields depend on mu and
    Sigma: components that differ in the initial state share all others.
    """

    differences: Float[Tensor, "... TD TD"]
    """M"""
    response: Float[Tensor, "... TP TD"]
    """R"""
    noise_gain: Float[Tensor, "... TP LD"]
    """R Sigma_H, of all frames but the first"""
    initial_gain: Float[Tensor, "... TP D"]
    """E Sigma"""
    mean: Float[Tensor, "... TP"]
    covariance: Float[Tensor, "... TP TP"]


def joint_prior(model: LGSSM, num_frames: int) -> JointPrior:
    """Return the joint prior of an aligned model; `joint_prior_gradients` differentiates it."""
    D = model.transition.shape[-1]
    M = difference_matrix(model.transition, num_frames)
    R = response(emission_matrix(model.emission, num_frames), M)
    E, R_noise = R[..., :D], noise_gain(model, R)
    initial_gain = E @ model.initial_covariance
    noise = add_to_diagonal_blocks(R_noise @ R[..., D:].mT, model.position_noise)
    mean = map_vector(E, model.initial_mean) + input_response(model, R)
    return JointPrior(M, R, R_noise, initial_gain, mean, initial_gain @ E.mT + noise)


def joint_prior_gradients(
    model: LGSSM,
    prior: JointPrior,
    by_mean: Float[Tensor, "... TP"],
    by_covariance: Float[Tensor, "... TP TP"],
) -> LGSSM:
    """Return the gradient with respect to each field of the model.

    With g and Z = Z' the gradients by mean and covariance of each component, those by mu and Sigma
    are E' g and E' Z E. For shared fields, g and Z are summed over the components. The gradient by
    R is g E[k]' + 2 Z R Cov(k); B stands in S and A in M, so that theirs are sums of blocks of
    G = (the gradient by R) M^-1' and of R' G.

    Law: they agree with finite differences (test_gradients_are_those_of_the_values).
    """
    (P, D), lead = model.emission.shape[-2:], model.emission.shape[:-2]
    M, R, R_noise, initial_gain, _, _ = prior
    E, g, Z = R[..., :D], by_mean.unsqueeze(-1), by_covariance
    by_E = torch.add(g * model.initial_mean.unsqueeze(-2), Z @ initial_gain, alpha=2)
    by_mu, by_Sigma = (E.mT @ g).squeeze(-1), E.mT @ (Z @ E)

    g, Z = g.sum_to_size(*lead, *g.shape[-2:]), Z.sum_to_size(*lead, *Z.shape[-2:])
    num_later = R.shape[-1] // D - 1
    by_input = (g * model.force.unsqueeze(-2)).repeat(*(1,) * len(lead), 1, num_later)
    by_later = torch.add(by_input, Z @ R_noise, alpha=2)
    by_R = torch.cat([by_E.sum_to_size(E.shape), by_later], -1)
    G_transposed = solve(M, by_R.mT, upper=False)
    W = stack_columns(R[..., D:], D).mT
    return LGSSM(
        transition=W @ stack_columns(G_transposed[..., :-D, :].mT, D),
        force=(sum_of_later_columns(R, D).mT @ g).squeeze(-1),
        emission=diagonal_blocks(G_transposed, D, P).sum(-1).mT,
        state_noise=W @ stack_columns(Z @ R[..., D:], D),
        position_noise=diagonal_blocks(Z, P).sum(-1),
        initial_mean=by_mu,
        initial_covariance=by_Sigma,
    )


def log_likelihood_dense(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> tuple[Float[Tensor, "..."], Float[Tensor, ""]]:
    """Return the log density of the observed positions from their joint Gaussian; cost O(T^3).

    Law: equals the filter's (test_all_routes_to_the_log_likelihood_agree).
    """
    a, model, T = positions.flatten(-2), aligned(model), positions.shape[-2]
    mask = None
    if observed is not None:
        mask = coordinate_mask(observed, model.emission.shape[-2], model.emission.dtype)
    density, rounding = _DenseLogLikelihood.apply(a, mask, T, *model)
    return density, rounding


class _DenseLogLikelihood(torch.autograd.Function):
    """The joint log density with a closed-form gradient, which halves the time of autograd."""

    @staticmethod
    def forward(
        ctx: Any, positions: Tensor, mask: Tensor | None, num_frames: int, *fields: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():  # nothing here is traced, and this is a tenth faster
            prior = joint_prior(LGSSM(*fields), num_frames)
            residual = positions - prior.mean
            num_observed: Tensor | int = positions.shape[-1]
            if mask is not None:
                residual, num_observed = residual * mask, mask.sum(-1)
            log_det, precision, rounding = _factor(prior.covariance, mask)
            weighted = map_vector(precision, residual)
            density = log_density(log_det, residual, weighted, num_observed)
        ctx.intermediates = prior, precision, weighted, mask
        ctx.save_for_backward(*fields)
        ctx.positions_shape = positions.shape
        rounding = rounding.clone()
        ctx.mark_non_differentiable(rounding)
        return density.clone(), rounding

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        with torch.inference_mode():
            prior, precision, weighted, mask = ctx.intermediates
            by_means, by_covariance = log_density_gradients(
                precision, weighted, cotangent, mask, prior.covariance.shape[:-2]
            )
            by_mean = by_means.sum_to_size(prior.mean.shape)
            model = LGSSM(*ctx.saved_tensors)
            by_fields = joint_prior_gradients(model, prior, by_mean, by_covariance)
            by_residual = by_means.sum_to_size(ctx.positions_shape)
        return -by_residual, None, None, *(field.clone() for field in by_fields)


def _factor(
    covariance: Float[Tensor, "... TP TP"], mask: Float[Tensor, "... TP"] | None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "... TP TP"], Float[Tensor, ""]]:
    """Return log |C|^(-1/2) and C^-1 of the observed coordinates, and the rounding.

    Masks that are the same for all models are deduplicated, and each distinct one is factored once.
    Not on a GPU, where finding them would synchronise.
    """
    axes, index = covariance.ndim - 2, None
    if mask is not None:
        batch, own, size = mask.shape[: -1 - axes], mask.shape[-1 - axes : -1], mask.shape[-1]
        if batch and set(own) <= {1} and not mask.is_cuda:
            masks, index = unique_masks(mask.reshape(*batch, size) > 0)
            mask = masks.to(mask).view(len(masks), *own, size)
        covariance = mask_covariance(covariance, mask)
    W = inverse_cholesky(covariance)
    log_det, precision = log_det_triangular(W), W.mT @ W
    rounding = EPSILON * _reduction(covariance, precision)
    if index is not None:
        log_det, precision = log_det[index], precision[index]
    return log_det, precision, rounding


def _reduction(
    covariance: Float[Tensor, "... n n"], precision: Float[Tensor, "... n n"]
) -> Float[Tensor, ""]:
    """Return the largest ratio of a coordinate's variance to that given all other coordinates."""
    return largest(diagonal(covariance) * diagonal(precision))


class PositionPrior(NamedTuple):
    """The joint prior of all positions in the form that densities need."""

    mean: Float[Tensor, "... TP"]
    precision: Float[Tensor, "... TP TP"]
    """C^-1"""
    log_det: Float[Tensor, "..."]
    """log |C|^(-1/2)"""

    def log_density(self, positions: Float[Tensor, "... T P"]) -> Float[Tensor, "..."]:
        """Return the log density of fully observed positions.

        Law: equals `log_likelihood_dense` (test_position_prior_gives_the_same_density).
        """
        residual = positions.flatten(-2).to(self.mean.dtype) - self.mean
        squares = (residual * map_vector(self.precision, residual)).sum(-1)
        return self.log_det - 0.5 * (squares + residual.shape[-1] * math.log(2 * math.pi))


def position_prior(model: LGSSM, num_frames: int) -> PositionPrior:
    """Return the part of a density that depends on the model alone."""
    return PositionPrior(*_PositionPrior.apply(num_frames, *aligned(model)))


class _PositionPrior(torch.autograd.Function):
    """With P = C^-1, dP = -P dC P and d log |C|^(-1/2) = -1/2 tr(P dC)."""

    @staticmethod
    def forward(ctx: Any, num_frames: int, *fields: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.prior = joint_prior(LGSSM(*fields), num_frames)
        W = inverse_cholesky(ctx.prior.covariance)
        precision = W.mT @ W
        ctx.save_for_backward(precision, *fields)
        return ctx.prior.mean, precision, log_det_triangular(W)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_mean: Tensor, by_precision: Tensor, by_log_det: Tensor
    ) -> tuple[Tensor | None, ...]:
        P, *fields = ctx.saved_tensors
        through_inverse = P @ (0.5 * (by_precision + by_precision.mT)) @ P
        by_covariance = -through_inverse - 0.5 * by_log_det[..., None, None] * P
        return None, *joint_prior_gradients(LGSSM(*fields), ctx.prior, by_mean, by_covariance)


def smooth_dense(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> tuple[Smoothed, Float[Tensor, ""]]:
    """Return the smoothed states by one regression of states on observed positions; cost O(T^3).

    Law: equals the sequential smoother (test_dense_and_sequential_smoothers_agree).
    """
    T, (P, D) = positions.shape[-2], model.emission.shape[-2:]
    model = aligned(model)
    M, S = difference_matrix(model.transition, T), emission_matrix(model.emission, T)
    rows = mask = None
    if observed is not None and observed.ndim == 1 and not observed.is_cuda:
        # One mask for all: delete unobserved rows. On a GPU, counting them would synchronise.
        rows = observed.repeat_interleave(P).nonzero().squeeze(-1)
        S = S.index_select(-2, rows)
    elif observed is not None:
        mask = coordinate_mask(observed, P, model.emission.dtype)
    R = response(S, M)
    E, R_noise = R[..., :D], noise_gain(model, R)
    # One solve with M for both Cov(h, a) due to process noise, and the powers I, A, ..., A^(T-1).
    columns = pad(R_noise.mT, (D, 0, D, 0))
    columns[..., :D, :D].diagonal(dim1=-2, dim2=-1).fill_(1.0)
    solved = solve_triangular(M, columns, upper=False, unitriangular=True)
    powers = solved[..., :D]
    mean, prior = _prior_states(model, powers)
    initial_gain = E @ model.initial_covariance
    cross = powers @ initial_gain.mT + solved[..., D:]
    noise = add_to_diagonal_blocks(R_noise @ R[..., D:].mT, model.position_noise)
    covariance = initial_gain @ E.mT + noise
    if mask is not None:
        cross, covariance = cross * mask.unsqueeze(-2), mask_covariance(covariance, mask)
    precision = torch.cholesky_inverse(cholesky(covariance))
    gain = cross @ precision
    residual = _observed_values((positions - mean @ model.emission.mT).flatten(-2), rows, mask)
    means = mean + map_vector(gain, residual).unflatten(-1, (T, D))
    covariances = prior - gain.unflatten(-2, (T, D)) @ cross.unflatten(-2, (T, D)).mT
    # Of variances that are zero from the start nothing can cancel.
    kept = (diagonal(covariances) / diagonal(prior)).nan_to_num(1.0)
    rounding = EPSILON * _reduction(covariance, precision) / (kept.amin() if kept.numel() else 1.0)
    if position_variances is not None:
        gains = gain.unflatten(-2, (T, D))
        squares = (gains.unsqueeze(-2) * gains.unsqueeze(-3)).flatten(-4, -2)
        variances = _observed_values(position_variances.flatten(-2), rows, mask)
        covariances = covariances + map_vector(squares, variances).unflatten(-1, (T, D, D))
    return Smoothed(means, covariances.expand(*means.shape, D)), rounding


def _prior_states(
    model: LGSSM, powers: Float[Tensor, "... TD D"]
) -> tuple[Float[Tensor, "... T D"], Float[Tensor, "... T D D"]]:
    """Return the prior mean and covariance of every state from the powers I, A, ..., A^(T-1).

    A^t mu + sum_s A^s u and A^t Sigma A^t' + sum_s A^s Sigma_H A^s', over s < t.
    """
    D = powers.shape[-1]
    frames, transposed = (-1, D), powers.unflatten(-2, (-1, D)).mT
    mean = map_vector(powers, model.initial_mean).unflatten(-1, frames)
    covariance = (powers @ model.initial_covariance).unflatten(-2, frames) @ transposed
    forces = map_vector(powers, model.force).unflatten(-1, frames)
    noises = (powers @ model.state_noise).unflatten(-2, frames) @ transposed
    # Sums over s < t: up to t, less t itself.
    return mean + (forces.cumsum(-2) - forces), covariance + (noises.cumsum(-3) - noises)


def _observed_values(
    values: Float[Tensor, "... TP"], rows: Int[Tensor, " observed"] | None, mask: Tensor | None
) -> Float[Tensor, "... n"]:
    """Return the observed values: only those of `rows`, if given, else zeros for the others."""
    if rows is not None:
        return values.index_select(-1, rows)
    # Replaced, not multiplied: 0 * NaN is NaN.
    return values if mask is None else torch.where(mask > 0, values, 0.0)
