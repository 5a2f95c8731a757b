"""Inference that goes through time frame by frame: the textbook steps, the filter, the smoother.

Covariances depend on the model and the mask alone, never on positions: here they have the leading
axes of those two and no others, and only means are batched over positions. As in
`motes.unrolled`, hidden positions are already finite numbers.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from motes.lgssm import LGSSM, identity, map_vector, solve_covariance
from motes.shapes import Bool, Float, Tensor
from motes.unrolled import Smoothed


class Belief(NamedTuple):
    """What is known of one state: its mean and its covariance."""

    mean: Float[Tensor, "... D"]
    covariance: Float[Tensor, "... D D"]


class Updated(NamedTuple):
    """A belief after one position, and the log density that it gave to that position."""

    belief: Belief
    log_density: Float[Tensor, "..."]


class Filtered(NamedTuple):
    """The state in every frame given the frames up to it, and before it (predicted)."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]
    predicted_means: Float[Tensor, "... T D"]
    predicted_covariances: Float[Tensor, "... T D D"]
    log_likelihood: Float[Tensor, "..."]


class Surprise(NamedTuple):
    """What a position told: the gain K, zero where it was hidden, and its log density."""

    gain: Float[Tensor, "... D P"]
    log_density: Float[Tensor, "..."]


def predict(
    model: LGSSM, mean: Float[Tensor, "... D"], covariance: Float[Tensor, "... D D"]
) -> Belief:
    """The belief about the next frame's state: mean A m + u, covariance A P A' + Sigma_H."""
    A, u = model.transition, model.force
    return Belief(map_vector(A, mean) + u, A @ covariance @ A.mT + model.state_noise)


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
    belief, surprise = _update(model, Belief(mean, covariance), a, observed)
    return Updated(belief, surprise.log_density)


def _update(
    model: LGSSM,
    belief: Belief,
    position: Float[Tensor, "... P"],
    observed: Bool[Tensor, "..."],
) -> tuple[Belief, Surprise]:
    """The updated belief, in Joseph's form, which keeps the covariance positive."""
    B, Sigma_A = model.emission, model.position_noise
    m, P = belief
    L, failed = torch.linalg.cholesky_ex(B @ P @ B.mT + Sigma_A)
    L = torch.where((failed > 0)[..., None, None], math.nan, L)
    precision = torch.where(observed[..., None, None], torch.cholesky_inverse(L), 0.0)
    K = P @ B.mT @ precision
    residual = position - map_vector(B, m)
    keep = identity(P.shape[-1], P) - K @ B
    distance = map_vector(precision, residual).mul(residual).sum(-1)
    log_scale = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = 0.5 * math.log(2 * math.pi) * B.shape[-2]
    log_density = -0.5 * distance - torch.where(observed, log_scale + constant, 0.0)
    updated = Belief(m + map_vector(K, residual), keep @ P @ keep.mT + K @ Sigma_A @ K.mT)
    return updated, Surprise(K, log_density)


def run_filter(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> tuple[Filtered, Surprise]:
    """The filtered states, and for the smoother what the positions told.

    Covariances depend on the model and the mask alone, and have the leading axes of those.
    """
    if observed is None:
        observed = torch.ones(positions.shape[-2], dtype=torch.bool, device=positions.device)
    matrices = (model.transition, model.emission, model.state_noise, model.position_noise)
    mu, Sigma = model.initial_mean, model.initial_covariance
    lead = torch.broadcast_shapes(
        observed.shape[:-1], Sigma.shape[:-2], *(matrix.shape[:-2] for matrix in matrices)
    )
    means_lead = torch.broadcast_shapes(
        lead, positions.shape[:-2], mu.shape[:-1], model.force.shape[:-1]
    )
    D = mu.shape[-1]
    before = Belief(mu.expand(*means_lead, D), Sigma.expand(*lead, D, D))
    predicted, filtered, surprises = [], [], []
    for a_t, observed_t in zip(positions.unbind(-2), observed.unbind(-1), strict=True):
        after, surprise = _update(model, before, a_t, observed_t)
        predicted.append(before)
        filtered.append(after)
        surprises.append(surprise)
        before = predict(model, *after)
    gains, log_densities = zip(*surprises, strict=True)
    told = Surprise(torch.stack(gains, -3), torch.stack(log_densities, -1))
    states = (*_stack(filtered), *_stack(predicted))
    return Filtered(*states, told.log_density.sum(-1)), told


def _stack(
    beliefs: list[Belief],
) -> tuple[Float[Tensor, "... T D"], Float[Tensor, "... T D D"]]:
    """Means and covariances of all frames."""
    means, covariances = zip(*beliefs, strict=True)
    return torch.stack(means, -2), torch.stack(covariances, -3)


def smooth_sequential(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The smoothed states by one pass forward and one back; cost O(T).

    The backward pass is Rauch, Tung and Striebel's,
        m_t + G (m_{t+1 given all} - m_{t+1 predicted}),  G = P_t A' (A P_t A' + Sigma_H)^-1,
    with the covariance in Joseph's form: a sum of squares, which rounding cannot make negative
    where almost nothing is left of a wide start. Singular covariances are welcome.

    Law: equals the dense smoother (test_dense_and_sequential_smoothers_agree).
    """
    filtered, told = run_filter(model, positions, observed)
    A, B, P = model.transition, model.emission, filtered.covariances
    eye, before = identity(P.shape[-1], P), P[..., :-1, :, :]
    A_t, Sigma_H = A.unsqueeze(-3), model.state_noise.unsqueeze(-3)
    G = solve_covariance(filtered.predicted_covariances[..., 1:, :, :], A_t @ before).mT
    rest = eye - G @ A_t
    own = rest @ before @ rest.mT + G @ Sigma_H @ G.mT
    shift = filtered.means[..., :-1, :] - map_vector(G, filtered.predicted_means[..., 1:, :])
    means, covariances = [filtered.means[..., -1, :]], [P[..., -1, :, :]]
    shifts = reversed(shift.unbind(-2))
    for G_t, own_t, shift_t in zip(_backwards(G), _backwards(own), shifts, strict=True):
        means.append(shift_t + map_vector(G_t, means[-1]))
        covariances.append(own_t + G_t @ covariances[-1] @ G_t.mT)
    smoothed = torch.stack(covariances[::-1], -3)
    if position_variances is not None:
        step = (eye - told.gain @ B.unsqueeze(-3)) @ A_t
        smoothed = smoothed + _spread(G, rest, step, told.gain, position_variances.unsqueeze(-2))
    mean = torch.stack(means[::-1], -2)
    return Smoothed(mean, smoothed.expand(*mean.shape, mean.shape[-1]))


def _spread(
    gain_back: Float[Tensor, "... T_less_1 D D"],
    rest: Float[Tensor, "... T_less_1 D D"],
    step: Float[Tensor, "... T D D"],
    gain: Float[Tensor, "... T D P"],
    variances: Float[Tensor, "... T 1 P"],
) -> Float[Tensor, "... T D D"]:
    """The covariance of the smoothed mean when positions vary by themselves.

    The filtered mean is m_t = F_t m_{t-1} + K_t a_t, and the smoothed one N_t m_t + r_t, where r_t
    depends on later positions alone: N_t = I - G A + G N_{t+1} F_{t+1}, and
    r_t = G (N_{t+1} K_{t+1} a_{t+1} + r_{t+1}). Both obey a linear recursion.
    """
    G, F, K = gain_back, step, gain
    N = [identity(F.shape[-1], F).expand(F[..., 0, :, :].shape)]
    for rest_t, G_t, F_next in zip(*map(_backwards, (rest, G, F[..., 1:, :, :])), strict=True):
        N.append(rest_t + G_t @ N[-1] @ F_next)
    by_filtered = torch.stack(N[::-1], -3)
    by_later = G @ by_filtered[..., 1:, :, :] @ K[..., 1:, :, :]
    told, told_later = (K * variances) @ K.mT, (by_later * variances[..., 1:, :, :]) @ by_later.mT
    past, future = [told[..., 0, :, :]], [torch.zeros_like(told[..., 0, :, :])]
    for F_t, told_t in zip(F.unbind(-3)[1:], told.unbind(-3)[1:], strict=True):
        past.append(F_t @ past[-1] @ F_t.mT + told_t)
    for G_t, told_t in zip(*map(_backwards, (G, told_later)), strict=True):
        future.append(G_t @ future[-1] @ G_t.mT + told_t)
    own = by_filtered @ torch.stack(past, -3) @ by_filtered.mT
    return own + torch.stack(future[::-1], -3)


def _backwards(parts: Float[Tensor, "... T rows columns"]) -> Iterator[Tensor]:
    """The matrices of all frames, the last first."""
    return reversed(parts.unbind(-3))
