"""Inference that goes through time frame by frame: the textbook steps, the filter, the smoother.

Covariances depend on the model and the mask alone, never on positions: here they have the leading
axes of those two and no others, and only means are batched over positions. As in
`motes.unrolled`, hidden positions are already finite numbers.
"""

import math
from typing import NamedTuple

import torch

from motes.lgssm import LGSSM, identity, map_vector
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
    """What a position told: its residual at the prediction, its precision, and the gain K.

    Gain and precision are zero where the position was hidden. The smoother wants all frames, on
    an axis before the last two (or the last) of each field.
    """

    gain: Float[Tensor, "... D P"]
    precision: Float[Tensor, "... P P"]
    residual: Float[Tensor, "... P"]
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
    return updated, Surprise(K, precision, residual, log_density)


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
    gains, precisions, residuals, log_densities = zip(*surprises, strict=True)
    told = Surprise(
        torch.stack(gains, -3),
        torch.stack(precisions, -3),
        torch.stack(residuals, -2),
        torch.stack(log_densities, -1),
    )
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

    The backward pass is Bryson and Frazier's: it carries the gradient `lam` and the curvature
    `Lam` of what later frames hold against the filtered state. It gives what Rauch, Tung and
    Striebel's gives, and inverts no covariance of a state, so singular ones are welcome.

    Law: equals the dense smoother (test_dense_and_sequential_smoothers_agree).
    """
    filtered, told = run_filter(model, positions, observed)
    A, B, P = model.transition, model.emission, filtered.covariances
    keep = identity(P.shape[-1], P) - told.gain @ B.unsqueeze(-3)
    weight = B.mT.unsqueeze(-3) @ told.precision
    pull = map_vector(weight, told.residual)
    push = weight @ B.unsqueeze(-3)
    lams, Lams = [torch.zeros_like(filtered.means[..., 0, :])], [torch.zeros_like(P[..., 0, :, :])]
    for t in reversed(range(1, positions.shape[-2])):
        keep_t = keep[..., t, :, :]
        lam = map_vector(keep_t.mT, lams[-1]) - pull[..., t, :]
        Lam = keep_t.mT @ Lams[-1] @ keep_t + push[..., t, :, :]
        lams.append(map_vector(A.mT, lam))
        Lams.append(A.mT @ Lam @ A)
    lam, Lam = torch.stack(lams[::-1], -2), torch.stack(Lams[::-1], -3)
    means, covariances = filtered.means - map_vector(P, lam), P - P @ Lam @ P
    if position_variances is not None:
        later = keep.mT @ Lam @ told.gain - weight
        covariances = covariances + _spread(
            A, P, Lam, keep, told.gain, later, position_variances.unsqueeze(-2)
        )
    return Smoothed(means, covariances.expand(*means.shape, means.shape[-1]))


def _spread(
    transition: Float[Tensor, "... D D"],
    covariance: Float[Tensor, "... T D D"],
    curvature: Float[Tensor, "... T D D"],
    keep: Float[Tensor, "... T D D"],
    gain: Float[Tensor, "... T D P"],
    gain_back: Float[Tensor, "... T D P"],
    variances: Float[Tensor, "... T 1 P"],
) -> Float[Tensor, "... T D D"]:
    """The covariance of the smoothed mean when positions vary by themselves.

    The smoothed mean is (I - P Lam) m - P l, where the filtered mean m depends on the positions
    up to its frame alone, and l on later ones alone. Both obey a linear recursion.
    """
    A, P, Lam = transition, covariance, curvature
    told, told_back = (gain * variances) @ gain.mT, (gain_back * variances) @ gain_back.mT
    past = [told[..., 0, :, :]]
    future = [torch.zeros_like(past[0])]
    for t in range(1, told.shape[-3]):
        F_t = keep[..., t, :, :] @ A
        past.append(F_t @ past[-1] @ F_t.mT + told[..., t, :, :])
    for t in reversed(range(1, told.shape[-3])):
        keep_t = keep[..., t, :, :]
        l_var = keep_t.mT @ future[-1] @ keep_t + told_back[..., t, :, :]
        future.append(A.mT @ l_var @ A)
    M = identity(P.shape[-1], P) - P @ Lam
    return M @ torch.stack(past, -3) @ M.mT + P @ torch.stack(future[::-1], -3) @ P
