"""The textbook recursions, frame by frame: Kalman filter and Rauch-Tung-Striebel smoother.

This is the reference for `motes.kalman.dense`, and the route for long
videos. Covariances depend only on model and mask and have the leading axes of those two; only
means are batched over positions.

Unobserved positions must already be finite; `motes.kalman` replaces them.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.linalg import (
    cholesky,
    diagonal,
    identity,
    largest,
    log_det_triangular,
    map_vector,
    solve_covariance,
)
from motes.kalman.model import EPSILON, LGSSM, Filtered, Smoothed, StateEstimate, Updated

CHUNK_FRAMES = 256  # frames that the smoother holds in memory at once


class Innovation(NamedTuple):
    """The effect of an observation: the Kalman gain K, zero if unobserved, and its log density."""

    gain: Float[Tensor, "... D P"]
    log_density: Float[Tensor, "..."]


def predict(
    model: LGSSM, mean: Float[Tensor, "... D"], covariance: Float[Tensor, "... D D"]
) -> StateEstimate:
    """Return the estimate of the next state: mean A m + u, covariance A P A' + Sigma_H."""
    A, u = model.transition, model.force
    return StateEstimate(map_vector(A, mean) + u, A @ covariance @ A.mT + model.state_noise)


def update(
    model: LGSSM,
    mean: Float[Tensor, "... D"],
    covariance: Float[Tensor, "... D D"],
    position: Float[Tensor, "... P"],
    observed: Bool[Tensor, "..."] | None = None,
) -> Updated:
    """Condition a state estimate on a position, and return the log density of that position.

    Where `observed` is False, the estimate is returned as given and the log density is 0.

    Law: predict and update frame by frame are the filter
        (test_one_step_at_a_time_is_the_filter).
    """
    if observed is None:
        observed = torch.ones((), dtype=torch.bool, device=position.device)
    a = torch.where(observed.unsqueeze(-1), position.to(mean.dtype), 0.0)
    estimate, innovation = _update(model, StateEstimate(mean, covariance), a, observed)
    return Updated(estimate, innovation.log_density)


def _update(
    model: LGSSM,
    predicted: StateEstimate,
    position: Float[Tensor, "... P"],
    observed: Bool[Tensor, "..."],
) -> tuple[StateEstimate, Innovation]:
    """Return the updated estimate in Joseph form, which keeps the covariance positive."""
    B, Sigma_A = model.emission, model.position_noise
    m, P = predicted
    L = cholesky(B @ P @ B.mT + Sigma_A)
    precision = torch.where(observed[..., None, None], torch.cholesky_inverse(L), 0.0)
    K = P @ B.mT @ precision
    residual = position - map_vector(B, m)
    complement = identity(P.shape[-1], P) - K @ B
    distance = map_vector(precision, residual).mul(residual).sum(-1)
    constant = 0.5 * math.log(2 * math.pi) * B.shape[-2]
    log_density = -0.5 * distance - torch.where(observed, log_det_triangular(L) + constant, 0.0)
    mean = m + map_vector(K, residual)
    covariance = complement @ P @ complement.mT + K @ Sigma_A @ K.mT
    return StateEstimate(mean, covariance), Innovation(K, log_density)


def run_filter(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    predicted: StateEstimate | None = None,
) -> tuple[Filtered, Innovation]:
    """Return the filtered states, and gains and log densities of all frames.

    `predicted` is the estimate of the first state; None for the initial state of the model.
    """
    observed = _all_observed(positions) if observed is None else observed
    prediction = _initial_estimate(model, positions, observed) if predicted is None else predicted
    predictions, estimates, innovations = [], [], []
    for a_t, observed_t in zip(positions.unbind(-2), observed.unbind(-1), strict=True):
        estimate, innovation = _update(model, prediction, a_t, observed_t)
        predictions.append(prediction)
        estimates.append(estimate)
        innovations.append(innovation)
        prediction = predict(model, *estimate)
    gains, log_densities = zip(*innovations, strict=True)
    stacked = Innovation(torch.stack(gains, -3), torch.stack(log_densities, -1))
    states = (*_stack(estimates), *_stack(predictions))
    return Filtered(*states, stacked.log_density.sum(-1)), stacked


def rounding(model: LGSSM, filtered: Filtered, innovation: Innovation) -> Float[Tensor, ""]:
    """Return an estimate of the rounding error of filtered variances, relative to them.

    Joseph's form rounds terms of size v v', where v = |I - K B| sd of the prediction. A hundred
    times this, since errors of many frames add up.
    """
    K, sd = innovation.gain.detach(), diagonal(filtered.predicted_covariances).sqrt()
    complement = identity(K.shape[-2], K) - K @ model.emission.detach().unsqueeze(-3)
    squares = map_vector(complement.abs(), sd).square()
    error = torch.where(squares == 0, 1.0, squares / diagonal(filtered.covariances))
    return 100 * EPSILON * largest(error)


def _all_observed(positions: Float[Tensor, "... T P"]) -> Bool[Tensor, " T"]:
    return torch.ones(positions.shape[-2], dtype=torch.bool, device=positions.device)


def _initial_estimate(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"]
) -> StateEstimate:
    """Return the model's initial state, expanded to the leading axes of all later estimates."""
    matrices = (model.transition, model.emission, model.state_noise, model.position_noise)
    mu, Sigma = model.initial_mean, model.initial_covariance
    lead = torch.broadcast_shapes(
        observed.shape[:-1], Sigma.shape[:-2], *(matrix.shape[:-2] for matrix in matrices)
    )
    means_lead = torch.broadcast_shapes(
        lead, positions.shape[:-2], mu.shape[:-1], model.force.shape[:-1]
    )
    D = mu.shape[-1]
    return StateEstimate(mu.expand(*means_lead, D), Sigma.expand(*lead, D, D))


def _stack(
    estimates: list[StateEstimate],
) -> tuple[Float[Tensor, "... T D"], Float[Tensor, "... T D D"]]:
    """Stack the means and covariances of all frames."""
    means, covariances = zip(*estimates, strict=True)
    return torch.stack(means, -2), torch.stack(covariances, -3)


class _Observations(NamedTuple):
    """Positions, their mask, and their own variances, if any."""

    positions: Float[Tensor, "... T P"]
    observed: Bool[Tensor, "... T"]
    variances: Float[Tensor, "... T P"] | None

    def during(self, time: slice) -> "_Observations":
        """Return those of some frames."""
        variances = None if self.variances is None else self.variances[..., time, :]
        return _Observations(self.positions[..., time, :], self.observed[..., time], variances)


class _ForwardCarry(NamedTuple):
    """The state of the forward pass at the first frame of a chunk."""

    predicted: StateEstimate
    mean_covariance: Float[Tensor, "... D D"] | None
    """Cov of the filtered mean due to position variances; None at the start of a video."""


class _Sensitivity(NamedTuple):
    """The smoothed mean as N m + r: m the filtered mean, r a function of later positions."""

    to_filtered: Float[Tensor, "... D D"]
    """N"""
    later_covariance: Float[Tensor, "... D D"]
    """Cov(r)"""


class _BackwardCarry(NamedTuple):
    """The state of the backward pass at the last frame of a chunk."""

    smoothed: StateEstimate
    sensitivity: _Sensitivity | None
    """Only with position variances, and not at the end of a video."""


def smooth_sequential(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> tuple[Smoothed, Float[Tensor, ""]]:
    """Return the smoothed states by a forward and a backward pass; cost O(T).

    Long videos are processed in chunks: the forward pass keeps its state at the start of each
    chunk, and the backward pass filters each again. Beyond the result, memory does not grow with T.
    Also returned is an estimate of the rounding error, relative to variances.

    Law: equals the dense smoother (test_dense_and_sequential_smoothers_agree), for any chunk
        length (test_chunks_of_frames_do_not_change_the_smoother).
    """
    mask = _all_observed(positions) if observed is None else observed
    data, last = _Observations(positions, mask, position_variances), positions.shape[-2] - 1
    D = model.transition.shape[-1]
    # Each chunk ends with the first frame of the next.
    chunks = [slice(t, t + CHUNK_FRAMES + 1) for t in range(0, max(last, 1), CHUNK_FRAMES)]
    starts = [_ForwardCarry(_initial_estimate(model, positions, mask), None)]
    for time in chunks[:-1]:
        filtered, _, spread = _forward_pass(model, data.during(time), starts[-1])
        mean, covariance = filtered.predicted_means, filtered.predicted_covariances
        predicted = StateEstimate(mean[..., -1, :].clone(), covariance[..., -1, :, :].clone())
        spread = None if spread is None else spread[..., -1, :, :].clone()
        starts.append(_ForwardCarry(predicted, spread))
    end, means, covariances, worst = None, None, None, positions.new_zeros(())
    for time, start in zip(reversed(chunks), reversed(starts), strict=True):
        part, end, error = _backward_pass(model, data.during(time), start, end)
        worst = worst.maximum(error)
        # Written in place: concatenating the chunks at the end would hold all of them twice.
        if means is None or covariances is None:
            means = part.means.new_empty(*part.means.shape[:-2], last + 1, D)
            covariances = means.new_empty(*part.covariances.shape[:-3], last + 1, D, D)
        means[..., time, :], covariances[..., time, :, :] = part
    assert means is not None
    assert covariances is not None
    return Smoothed(means, covariances.expand(*means.shape, D)), worst


def _forward_pass(
    model: LGSSM, data: _Observations, start: _ForwardCarry
) -> tuple[Filtered, Innovation, Float[Tensor, "... T D D"] | None]:
    """Filter a chunk; with position variances, also return Cov of the filtered means.

    The filtered mean is m_t = F_t m_{t-1} + K_t a_t, plus a constant.
    """
    filtered, innovation = run_filter(model, data.positions, data.observed, start.predicted)
    if data.variances is None:
        return filtered, innovation, None
    K = innovation.gain
    added = (K * data.variances.unsqueeze(-2)) @ K.mT
    spread = [added[..., 0, :, :] if start.mean_covariance is None else start.mean_covariance]
    steps = _filter_transitions(model, K).unbind(-3)
    for F_t, added_t in zip(steps[1:], added.unbind(-3)[1:], strict=True):
        spread.append(F_t @ spread[-1] @ F_t.mT + added_t)
    return filtered, innovation, torch.stack(spread, -3)


def _filter_transitions(
    model: LGSSM, gain: Float[Tensor, "... T D P"]
) -> Float[Tensor, "... T D D"]:
    """Return F = (I - K B) A, which maps the filtered mean of a frame to that of the next."""
    eye = identity(gain.shape[-2], gain)
    return (eye - gain @ model.emission.unsqueeze(-3)) @ model.transition.unsqueeze(-3)


def _backward_pass(
    model: LGSSM, data: _Observations, start: _ForwardCarry, end: _BackwardCarry | None
) -> tuple[Smoothed, _BackwardCarry, Float[Tensor, ""]]:
    """Smooth a chunk; also return the state of the pass at its first frame, and the rounding.

        m_t + G (m_{t+1 given all} - m_{t+1 predicted}),  G = P_t A' (A P_t A' + Sigma_H)^-1
    The covariance is in Joseph form, a sum of squares that rounding cannot make negative where
    little is left of a wide initial covariance. Covariances may be singular.
    """
    filtered, innovation, spread = _forward_pass(model, data, start)
    P = filtered.covariances[..., :-1, :, :]
    A, Sigma_H = model.transition.unsqueeze(-3), model.state_noise.unsqueeze(-3)
    G = solve_covariance(filtered.predicted_covariances[..., 1:, :, :], A @ P).mT
    complement = identity(P.shape[-1], P) - G @ A
    noise = complement @ P @ complement.mT + G @ Sigma_H @ G.mT  # Cov(h_t | h_{t+1}, a_1 .. a_t)
    shift = filtered.means[..., :-1, :] - map_vector(G, filtered.predicted_means[..., 1:, :])
    if end is None:
        last = StateEstimate(filtered.means[..., -1, :], filtered.covariances[..., -1, :, :])
        end = _BackwardCarry(last, None)
    means, covariances = [end.smoothed.mean], [end.smoothed.covariance]
    shifts = reversed(shift.unbind(-2))
    for G_t, noise_t, shift_t in zip(_reversed(G), _reversed(noise), shifts, strict=True):
        means.append(shift_t + map_vector(G_t, means[-1]))
        covariances.append(noise_t + G_t @ covariances[-1] @ G_t.mT)
    first, smoothed = StateEstimate(means[-1], covariances[-1]), torch.stack(covariances[::-1], -3)
    sensitivity = None
    if data.variances is not None and spread is not None:
        K = innovation.gain
        F, variances = _filter_transitions(model, K), data.variances.unsqueeze(-2)
        N, later = _sensitivities(G, complement, F, K, variances, end.sensitivity)
        smoothed = smoothed + (N @ spread @ N.mT + later)
        sensitivity = _Sensitivity(N[..., 0, :, :], later[..., 0, :, :])
    result = Smoothed(torch.stack(means[::-1], -2), smoothed)
    # The gain inverts the predicted covariances, whose condition limits its digits.
    later = filtered.predicted_covariances[..., 1:, :, :].detach()
    inverses = largest(diagonal(later) * diagonal(torch.cholesky_inverse(cholesky(later))))
    error = rounding(model, filtered, innovation).maximum(10 * EPSILON * inverses)
    return result, _BackwardCarry(first, sensitivity), error


def _sensitivities(
    G: Float[Tensor, "... T_less_1 D D"],
    complement: Float[Tensor, "... T_less_1 D D"],
    F: Float[Tensor, "... T D D"],
    K: Float[Tensor, "... T D P"],
    variances: Float[Tensor, "... T 1 P"],
    end: _Sensitivity | None,
) -> _Sensitivity:
    """Return N and Cov(r) of all frames.

    N_t = I - G A + G N_{t+1} F_{t+1}, and r_t = G (N_{t+1} K_{t+1} a_{t+1} + r_{t+1}).
    """
    eye = identity(F.shape[-1], F).expand(F[..., 0, :, :].shape)
    N = [eye if end is None else end.to_filtered]
    backward = map(_reversed, (complement, G, F[..., 1:, :, :]))
    for complement_t, G_t, F_next in zip(*backward, strict=True):
        N.append(complement_t + G_t @ N[-1] @ F_next)
    to_filtered = torch.stack(N[::-1], -3)
    by_next = G @ to_filtered[..., 1:, :, :] @ K[..., 1:, :, :]
    added = (by_next * variances[..., 1:, :, :]) @ by_next.mT
    zero = torch.zeros_like((K * variances)[..., 0, :, :] @ K[..., 0, :, :].mT)
    later = [zero if end is None else end.later_covariance]
    for G_t, added_t in zip(_reversed(G), _reversed(added), strict=True):
        later.append(G_t @ later[-1] @ G_t.mT + added_t)
    return _Sensitivity(to_filtered, torch.stack(later[::-1], -3))


def _reversed(matrices: Float[Tensor, "... T rows columns"]) -> Iterator[Tensor]:
    """Iterate over the matrices of all frames, last first."""
    return reversed(matrices.unbind(-3))
