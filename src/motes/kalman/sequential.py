"""Inference that goes through time frame by frame: the textbook steps, the filter, the smoother.

Covariances depend on the model and the mask alone, never on positions: here they have the leading
axes of those two and no others, and only means are batched over positions. As in
`motes.kalman.dense`, hidden positions are already finite numbers.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dense import Smoothed
from motes.kalman.linalg import cholesky, identity, map_vector, solve_covariance
from motes.kalman.model import LGSSM

AT_ONCE = 256  # frames that the smoother holds side by side, which bounds memory


class StateEstimate(NamedTuple):
    """What is known of one state: its mean and its covariance."""

    mean: Float[Tensor, "... D"]
    covariance: Float[Tensor, "... D D"]


class Updated(NamedTuple):
    """A belief after one position, and the log density that it gave to that position."""

    belief: StateEstimate
    log_density: Float[Tensor, "..."]


class Filtered(NamedTuple):
    """The state in every frame given the frames up to it, and before it (predicted)."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]
    predicted_means: Float[Tensor, "... T D"]
    predicted_covariances: Float[Tensor, "... T D D"]
    log_likelihood: Float[Tensor, "..."]


class Innovation(NamedTuple):
    """What a position told: the gain K, zero where it was hidden, and its log density."""

    gain: Float[Tensor, "... D P"]
    log_density: Float[Tensor, "..."]


def predict(
    model: LGSSM, mean: Float[Tensor, "... D"], covariance: Float[Tensor, "... D D"]
) -> StateEstimate:
    """The belief about the next frame's state: mean A m + u, covariance A P A' + Sigma_H."""
    A, u = model.transition, model.force
    return StateEstimate(map_vector(A, mean) + u, A @ covariance @ A.mT + model.state_noise)


def update(
    model: LGSSM,
    mean: Float[Tensor, "... D"],
    covariance: Float[Tensor, "... D D"],
    position: Float[Tensor, "... P"],
    observed: Bool[Tensor, "..."] | None = None,
) -> Updated:
    """The belief about this frame's state once its position is seen, and how likely that was.

    Where the position is hidden (`observed` False) the belief stays and the log density is 0.

    Law: predict and update frame by frame give the filter
        (test_one_step_at_a_time_is_the_filter).
    """
    if observed is None:
        observed = torch.ones((), dtype=torch.bool, device=position.device)
    a = torch.where(observed.unsqueeze(-1), position.to(mean.dtype), 0.0)
    belief, surprise = _update(model, StateEstimate(mean, covariance), a, observed)
    return Updated(belief, surprise.log_density)


def _update(
    model: LGSSM,
    belief: StateEstimate,
    position: Float[Tensor, "... P"],
    observed: Bool[Tensor, "..."],
) -> tuple[StateEstimate, Innovation]:
    """The updated belief, in Joseph's form, which keeps the covariance positive."""
    B, Sigma_A = model.emission, model.position_noise
    m, P = belief
    L = cholesky(B @ P @ B.mT + Sigma_A)
    precision = torch.where(observed[..., None, None], torch.cholesky_inverse(L), 0.0)
    K = P @ B.mT @ precision
    residual = position - map_vector(B, m)
    keep = identity(P.shape[-1], P) - K @ B
    distance = map_vector(precision, residual).mul(residual).sum(-1)
    log_scale = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = 0.5 * math.log(2 * math.pi) * B.shape[-2]
    log_density = -0.5 * distance - torch.where(observed, log_scale + constant, 0.0)
    updated = StateEstimate(m + map_vector(K, residual), keep @ P @ keep.mT + K @ Sigma_A @ K.mT)
    return updated, Innovation(K, log_density)


def run_filter(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    before: StateEstimate | None = None,
) -> tuple[Filtered, Innovation]:
    """The filtered states, and for the smoother what the positions told.

    Covariances depend on the model and the mask alone, and have the leading axes of those.

    Args:
        model: The dynamics.
        positions: What was seen.
        observed: Where; everywhere, if None.
        before: What is known of the first state; that it starts a video, if None.
    """
    observed = _everywhere(positions) if observed is None else observed
    before = _start(model, positions, observed) if before is None else before
    predicted, filtered, surprises = [], [], []
    for a_t, observed_t in zip(positions.unbind(-2), observed.unbind(-1), strict=True):
        after, surprise = _update(model, before, a_t, observed_t)
        predicted.append(before)
        filtered.append(after)
        surprises.append(surprise)
        before = predict(model, *after)
    gains, log_densities = zip(*surprises, strict=True)
    told = Innovation(torch.stack(gains, -3), torch.stack(log_densities, -1))
    states = (*_stack(filtered), *_stack(predicted))
    return Filtered(*states, told.log_density.sum(-1)), told


def _everywhere(positions: Float[Tensor, "... T P"]) -> Bool[Tensor, " T"]:
    """A mask that hides nothing."""
    return torch.ones(positions.shape[-2], dtype=torch.bool, device=positions.device)


def _start(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"]
) -> StateEstimate:
    """What is known of the first state of a video, with the axes that all later beliefs have."""
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
    beliefs: list[StateEstimate],
) -> tuple[Float[Tensor, "... T D"], Float[Tensor, "... T D D"]]:
    """Means and covariances of all frames."""
    means, covariances = zip(*beliefs, strict=True)
    return torch.stack(means, -2), torch.stack(covariances, -3)


class _Seen(NamedTuple):
    """What a smoother is given: positions, their mask, and their own variances, if they have."""

    positions: Float[Tensor, "... T P"]
    observed: Bool[Tensor, "... T"]
    variances: Float[Tensor, "... T P"] | None

    def during(self, time: slice) -> "_Seen":
        """Some of the frames."""
        variances = None if self.variances is None else self.variances[..., time, :]
        return _Seen(self.positions[..., time, :], self.observed[..., time], variances)


class _Reached(NamedTuple):
    """What the way forward knows when it comes to a frame."""

    predicted: StateEstimate
    spread: Float[Tensor, "... D D"] | None
    """Of the filtered mean there by all positions up to it; None where a video begins."""


class _Ahead(NamedTuple):
    """What the way back knows of the last frame of a stretch."""

    smoothed: StateEstimate
    later: "_Later | None"  # if positions vary


class _Later(NamedTuple):
    """The smoothed mean is N m + r: m the filtered one, r by later positions alone."""

    kept: Float[Tensor, "... D D"]
    """N"""
    spread: Float[Tensor, "... D D"]
    """Cov(r)"""


def smooth_sequential(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The smoothed states by one pass forward and one back; cost O(T).

    A long video is gone through in stretches. The way forward keeps what it knows where each of
    them begins, and the way back filters each again: beside the answer, memory does not grow.

    Law: equals the dense smoother (test_dense_and_sequential_smoothers_agree), however long the
        stretches (test_a_long_video_is_smoothed_as_a_short_one_is).
    """
    mask = _everywhere(positions) if observed is None else observed
    seen, last = _Seen(positions, mask, position_variances), positions.shape[-2] - 1
    # Each ends with the first frame of the next one.
    stretches = [slice(t, t + AT_ONCE + 1) for t in range(0, max(last, 1), AT_ONCE)]
    starts = [_Reached(_start(model, positions, mask), None)]
    for time in stretches[:-1]:
        filtered, _, spread = _go_forward(model, seen.during(time), starts[-1])
        mean, covariance = filtered.predicted_means, filtered.predicted_covariances
        reached = StateEstimate(mean[..., -1, :].clone(), covariance[..., -1, :, :].clone())
        starts.append(_Reached(reached, None if spread is None else spread[..., -1, :, :].clone()))
    ahead, means, covariances = None, None, None
    for time, start in zip(reversed(stretches), reversed(starts), strict=True):
        part, ahead = _go_back(model, seen.during(time), start, ahead)
        # Written in place: to join the parts in the end would hold all of them twice.
        means = _longer(part.means, last + 1, -2) if means is None else means
        covariances = (
            _longer(part.covariances, last + 1, -3) if covariances is None else covariances
        )
        means[..., time, :], covariances[..., time, :, :] = part
    assert means is not None
    assert covariances is not None
    return Smoothed(means, covariances.expand(*means.shape, means.shape[-1]))


def _longer(values: Float[Tensor, "..."], num_frames: int, axis: int) -> Float[Tensor, "..."]:
    """An empty tensor as the values are, but of so many frames."""
    shape = list(values.shape)
    shape[axis] = num_frames
    return values.new_empty(shape)


def _go_forward(
    model: LGSSM, seen: _Seen, start: _Reached
) -> tuple[Filtered, Innovation, Float[Tensor, "... T D D"] | None]:
    """The filter, and the spread of its means m_t = F_t m_{t-1} + K_t a_t if positions vary."""
    filtered, told = run_filter(model, seen.positions, seen.observed, start.predicted)
    if seen.variances is None:
        return filtered, told, None
    added = (told.gain * seen.variances.unsqueeze(-2)) @ told.gain.mT
    spread = [added[..., 0, :, :] if start.spread is None else start.spread]
    steps = _steps(model, told.gain).unbind(-3)
    for F_t, added_t in zip(steps[1:], added.unbind(-3)[1:], strict=True):
        spread.append(F_t @ spread[-1] @ F_t.mT + added_t)
    return filtered, told, torch.stack(spread, -3)


def _steps(model: LGSSM, gain: Float[Tensor, "... T D P"]) -> Float[Tensor, "... T D D"]:
    """F = (I - K B) A, which takes the filtered mean of one frame to that of the next."""
    eye = identity(gain.shape[-2], gain)
    return (eye - gain @ model.emission.unsqueeze(-3)) @ model.transition.unsqueeze(-3)


def _go_back(
    model: LGSSM, seen: _Seen, start: _Reached, ahead: _Ahead | None
) -> tuple[Smoothed, _Ahead]:
    """The smoothed states of a stretch, and what the stretch before it needs of the first one.

    The pass is Rauch, Tung and Striebel's,
        m_t + G (m_{t+1 given all} - m_{t+1 predicted}),  G = P_t A' (A P_t A' + Sigma_H)^-1,
    with the covariance in Joseph's form: a sum of squares, which rounding cannot make negative
    where almost nothing is left of a wide start. Singular covariances are welcome.
    """
    filtered, told, spread = _go_forward(model, seen, start)
    P = filtered.covariances
    eye, before = identity(P.shape[-1], P), P[..., :-1, :, :]
    A, Sigma_H = model.transition.unsqueeze(-3), model.state_noise.unsqueeze(-3)
    G = solve_covariance(filtered.predicted_covariances[..., 1:, :, :], A @ before).mT
    rest = eye - G @ A
    own = rest @ before @ rest.mT + G @ Sigma_H @ G.mT
    shift = filtered.means[..., :-1, :] - map_vector(G, filtered.predicted_means[..., 1:, :])
    if ahead is None:
        ahead = _Ahead(StateEstimate(filtered.means[..., -1, :], P[..., -1, :, :]), None)
    means, covariances = [ahead.smoothed.mean], [ahead.smoothed.covariance]
    shifts = reversed(shift.unbind(-2))
    for G_t, own_t, shift_t in zip(_backwards(G), _backwards(own), shifts, strict=True):
        means.append(shift_t + map_vector(G_t, means[-1]))
        covariances.append(own_t + G_t @ covariances[-1] @ G_t.mT)
    first, smoothed, later = (
        StateEstimate(means[-1], covariances[-1]),
        torch.stack(covariances[::-1], -3),
        None,
    )
    if seen.variances is not None and spread is not None:
        K, variances = told.gain, seen.variances.unsqueeze(-2)
        N, by_later = _spread_back(G, rest, _steps(model, K), K, variances, ahead.later)
        smoothed = smoothed + (N @ spread @ N.mT + by_later)
        later = _Later(N[..., 0, :, :], by_later[..., 0, :, :])
    return Smoothed(torch.stack(means[::-1], -2), smoothed), _Ahead(first, later)


def _spread_back(
    gain_back: Float[Tensor, "... T_less_1 D D"],
    rest: Float[Tensor, "... T_less_1 D D"],
    step: Float[Tensor, "... T D D"],
    gain: Float[Tensor, "... T D P"],
    variances: Float[Tensor, "... T 1 P"],
    ahead: _Later | None,
) -> tuple[Float[Tensor, "... T D D"], Float[Tensor, "... T D D"]]:
    """N and Cov(r) of all frames when positions vary by themselves.

    N_t = I - G A + G N_{t+1} F_{t+1}, and r_t = G (N_{t+1} K_{t+1} a_{t+1} + r_{t+1}).
    """
    G, F, K = gain_back, step, gain
    N = [identity(F.shape[-1], F).expand(F[..., 0, :, :].shape) if ahead is None else ahead.kept]
    for rest_t, G_t, F_next in zip(*map(_backwards, (rest, G, F[..., 1:, :, :])), strict=True):
        N.append(rest_t + G_t @ N[-1] @ F_next)
    kept = torch.stack(N[::-1], -3)
    by_next = G @ kept[..., 1:, :, :] @ K[..., 1:, :, :]
    told = (by_next * variances[..., 1:, :, :]) @ by_next.mT
    nothing = torch.zeros_like((K * variances)[..., 0, :, :] @ K[..., 0, :, :].mT)
    spread = [nothing if ahead is None else ahead.spread]
    for G_t, told_t in zip(*map(_backwards, (G, told)), strict=True):
        spread.append(G_t @ spread[-1] @ G_t.mT + told_t)
    return kept, torch.stack(spread[::-1], -3)


def _backwards(parts: Float[Tensor, "... T rows columns"]) -> Iterator[Tensor]:
    """The matrices of all frames, the last first."""
    return reversed(parts.unbind(-3))
