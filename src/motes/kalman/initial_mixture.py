"""EM for the mixture over initial states, from the information that tracks carry about them."""

from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM

RESTARTS = 8
ITERATIONS = 50
MIN_VARIANCE = 1e-6  # latent units: a few thousandths of a pixel, squared


class InitialMixture(NamedTuple):
    """A mixture of Gaussians over initial states."""

    weights: Float[Tensor, " K"]
    means: Float[Tensor, "K D"]
    covariances: Float[Tensor, "K D D"]


class StateInformation(NamedTuple):
    """The likelihood of M tracks given their initial state h: exp(-h' precision h / 2 + shift' h).

    Up to a factor that does not depend on h.
    """

    precision: Float[Tensor, "M D D"]
    shift: Float[Tensor, "M D"]


def initial_state_information(
    model: LGSSM, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
) -> StateInformation:
    """Return the likelihood of each track as a function of its initial state.

    The smoothed initial state minus the prior that the smoother started from, which cancels.

    Law: with any mixture over initial states the evidence is that of the Kalman filter, up to a
    constant (test_evidence_differs_from_the_filters_by_a_constant).
    """
    one = model._replace(
        initial_mean=model.initial_mean[0], initial_covariance=model.initial_covariance[0]
    )
    prior = one.initial_covariance.inverse()
    states = kalman.smooth(one, positions.double(), observed)
    P = states.covariances[..., 0, :, :].expand(len(positions), *prior.shape)
    precision = P.inverse()
    shift = map_vector(precision, states.means[:, 0]) - map_vector(prior, one.initial_mean)
    return StateInformation(precision - prior, shift)


def fit_mixture(information: StateInformation, start: InitialMixture) -> InitialMixture:
    """Return the mixture by EM: the best of the given start and RESTARTS random ones.

    Law: recovers well-separated clusters (test_fit_mixture_recovers_clusters).
    """
    K, D = start.means.shape
    # The ridge keeps tracks without information (hardly observed objects) near all others.
    ridge = 1e-3 * information.precision.mean(0).diagonal().diag()
    points = torch.linalg.solve(information.precision + ridge, information.shift)
    variances = points.var(0, correction=min(1, len(points) - 1)).clamp(min=MIN_VARIANCE)
    weights, spread = torch.full((K,), 1 / K).to(points), variances.diag().expand(K, D, D)
    generator = torch.Generator().manual_seed(0)
    starts = [start]
    for _ in range(RESTARTS):
        chosen = torch.randint(len(points), (K,), generator=generator)
        starts.append(InitialMixture(weights, points[chosen.to(points.device)], spread))
    # The floor keeps a cluster of few or equal points from collapsing.
    floor = (1e-4 * variances).clamp(min=MIN_VARIANCE).diag() + 1e-12 * identity(D, points)
    return max((_em(information, each, floor) for each in starts), key=lambda fit: fit[0])[1]


def _em(
    information: StateInformation, mixture: InitialMixture, floor: Float[Tensor, "D D"]
) -> tuple[float, InitialMixture]:
    """Return the mean log evidence of the tracks and the mixture that EM reaches."""
    for _ in range(ITERATIONS):
        log_evidence, m, P = e_step(information, mixture)
        responsibility = log_evidence.softmax(1)
        mass = responsibility.sum(0) + 1e-9
        mu = torch.einsum("mk,mki->ki", responsibility, m) / mass[:, None]
        offsets = m - mu
        scatter = P + offsets[..., :, None] * offsets[..., None, :]
        Sigma = torch.einsum("mk,mkij->kij", responsibility, scatter) / mass[:, None, None]
        mixture = InitialMixture(mass / mass.sum(), mu, Sigma + floor)
    return float(log_evidence.logsumexp(1).mean()), mixture


def e_step(
    information: StateInformation, mixture: InitialMixture
) -> tuple[Float[Tensor, "M K"], Float[Tensor, "M K D"], Float[Tensor, "M K D D"]]:
    """Return log pi_k p(track | k) and the posterior of the initial state, per track and component.

    p(track | k) is up to a factor that is the same for all mixtures.
    """
    pi, mu, Sigma = mixture
    prior = Sigma.inverse()
    shift = map_vector(prior, mu)
    P = (prior + information.precision[:, None]).inverse()
    total = shift + information.shift[:, None]
    m = map_vector(P, total)
    quadratic = (m * total).sum(-1) - (shift * mu).sum(-1)
    log_volume = torch.logdet(P) - torch.logdet(Sigma)
    return pi.log() + 0.5 * (quadratic + log_volume), m, P
