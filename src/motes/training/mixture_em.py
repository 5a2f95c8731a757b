"""Kinds of start, fitted to what tracks tell of first states by EM."""

from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.linalg import identity, map_vector

RESTARTS = 8
ITERATIONS = 50
LEAST = 1e-6  # variance of a start, in latent units: a few thousandths of a pixel, squared


class Mixture(NamedTuple):
    """A mixture of Gaussians over first states."""

    weights: Float[Tensor, " K"]
    means: Float[Tensor, "K D"]
    covariances: Float[Tensor, "K D D"]


class StateInformation(NamedTuple):
    """What each of M tracks tells of its first state h: exp(-h' precision h / 2 + shift' h)."""

    precision: Float[Tensor, "M D D"]
    shift: Float[Tensor, "M D"]


@torch.no_grad()
def seed_mixture(
    dynamics: LinearDynamics, positions: Float[Tensor, "M T 2"], seen: Bool[Tensor, "M T"]
) -> None:
    """Replaces pi, mu and Sigma by the mixture that makes these tracks likeliest.

    With the mixture as it was drawn, both components would have to share all starts. Where no
    object was seen at all, they stay as they are. [Choice 17]

    Args:
        dynamics: Their law of motion stays as it is.
        positions: Tracks, in latent units.
        seen: Which of the positions count.

    Law: tracks do not become less likely (test_seeding_again_makes_tracks_no_less_likely).
    """
    if not bool(seen.any()):
        return
    components = dynamics.components()
    present = Mixture(
        dynamics.log_weights().exp(), components.initial_mean, components.initial_covariance
    )
    told = told_of_first_states(dynamics, positions, seen)
    weights, means, covariances = fit_mixture(told, present)
    factor = torch.linalg.cholesky(covariances)
    dynamics.logits.copy_(weights.log())
    dynamics.initial_mean.copy_(means)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    dynamics.initial_factor.copy_(factor.tril(-1) + diagonal.log().diag_embed())


def told_of_first_states(
    dynamics: LinearDynamics, positions: Float[Tensor, "M T 2"], seen: Bool[Tensor, "M T"]
) -> StateInformation:
    """The likelihood of each track as a function of its first state.

    The smoother's belief about h_1 less the prior that it began with; which prior does not matter.

    Law: with any mixture over first states the evidence is that of the Kalman filter, up to
    what is the same for all mixtures (test_evidence_differs_from_the_filters_by_a_constant).
    """
    one = dynamics.components()
    one = one._replace(
        initial_mean=one.initial_mean[0], initial_covariance=one.initial_covariance[0]
    )
    before = one.initial_covariance.inverse()
    states = kalman.smooth(one, positions.double(), seen)
    P = states.covariances[..., 0, :, :].expand(len(positions), *before.shape)
    precision = P.inverse()
    shift = map_vector(precision, states.means[:, 0]) - map_vector(before, one.initial_mean)
    return StateInformation(precision - before, shift)


def fit_mixture(told: StateInformation, start: Mixture) -> Mixture:
    """The mixture over first states by EM: the best of one start and several drawn from tracks.

    Law: recovers well-separated clusters (test_fit_mixture_recovers_clusters).
    """
    K, D = start.means.shape
    # A first state that nothing tells of (an object that was hardly seen) is near all others.
    least = 1e-3 * told.precision.mean(0).diagonal().diag()
    points = torch.linalg.solve(told.precision + least, told.shift)
    variances = points.var(0, correction=min(1, len(points) - 1)).clamp(min=LEAST)
    weights, spread = torch.full((K,), 1 / K).to(points), variances.diag().expand(K, D, D)
    generator = torch.Generator().manual_seed(0)
    starts = [start]
    for _ in range(RESTARTS):
        chosen = torch.randint(len(points), (K,), generator=generator)
        starts.append(Mixture(weights, points[chosen.to(points.device)], spread))
    # A cluster of few points, or of the same one many times, would shrink onto them without end.
    floor = (1e-4 * variances).clamp(min=LEAST).diag() + 1e-12 * identity(D, points)
    return max((_climb(told, each, floor) for each in starts), key=lambda fit: fit[0])[1]


def _climb(
    told: StateInformation, mixture: Mixture, floor: Float[Tensor, "D D"]
) -> tuple[float, Mixture]:
    """The mean log evidence of the tracks and the mixture that EM reaches from another one."""
    for _ in range(ITERATIONS):
        log_evidence, m, P = first_states(told, mixture)
        share = log_evidence.softmax(1)
        mass = share.sum(0) + 1e-9
        mu = torch.einsum("mk,mki->ki", share, m) / mass[:, None]
        offsets = m - mu
        scatter = P + offsets[..., :, None] * offsets[..., None, :]
        Sigma = torch.einsum("mk,mkij->kij", share, scatter) / mass[:, None, None]
        mixture = Mixture(mass / mass.sum(), mu, Sigma + floor)
    return float(log_evidence.logsumexp(1).mean()), mixture


def first_states(
    told: StateInformation, mixture: Mixture
) -> tuple[Float[Tensor, "M K"], Float[Tensor, "M K D"], Float[Tensor, "M K D D"]]:
    """For each track and component: log pi_k p(track | k), and the belief about the first state.

    p(track | k) is up to a factor that is the same for all mixtures.
    """
    pi, mu, Sigma = mixture
    before = Sigma.inverse()
    shift = map_vector(before, mu)
    P = (before + told.precision[:, None]).inverse()
    total = shift + told.shift[:, None]
    m = map_vector(P, total)
    quadratic = (m * total).sum(-1) - (shift * mu).sum(-1)
    log_volume = torch.logdet(P) - torch.logdet(Sigma)
    return pi.log() + 0.5 * (quadratic + log_volume), m, P
