"""Kinds of start, found among the first tracks, so that learning begins with a useful mixture."""

from typing import NamedTuple

import torch

from motes import kalman, mixture
from motes.lgssm import Dynamics
from motes.shapes import Bool, Float, Tensor

RESTARTS = 8
ITERATIONS = 50


class Mixture(NamedTuple):
    """A mixture of Gaussians over first states."""

    weights: Float[Tensor, " K"]
    means: Float[Tensor, "K D"]
    covariances: Float[Tensor, "K D D"]


@torch.no_grad()
def seed_mixture(
    dynamics: Dynamics,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    seen: Bool[Tensor, "B N T"],
) -> None:
    """Replaces pi, mu and Sigma by a mixture fitted to the smoothed first states of tracks.

    With the mixture as it was drawn, both components would have to share all starts. [Choice 17]

    Law: the dynamics stay valid and the tracks become likelier; tests/unit/test_seeding.py.
    """
    tracks, mask = positions[present], seen[present]
    states = kalman.smooth(dynamics.components(), tracks[:, None], mask[:, None]).means[:, :, 0]
    likely = mixture.component_log_posterior(dynamics, tracks, mask).argmax(-1)
    starts = states.take_along_dim(likely[:, None, None], 1)[:, 0]
    weights, means, covariances = fit_mixture(starts, len(dynamics.logits))
    factor = torch.linalg.cholesky(covariances)
    dynamics.logits.copy_(weights.log())
    dynamics.initial_mean.copy_(means)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    dynamics.initial_factor.copy_(factor.tril(-1) + diagonal.log().diag_embed())


def fit_mixture(points: Float[Tensor, "M D"], num_components: int) -> Mixture:
    """Weights, means and covariances of a Gaussian mixture by EM, the best of several starts.

    Law: recovers well-separated clusters (test_fit_mixture_recovers_clusters).
    """
    generator = torch.Generator().manual_seed(0)
    fits = []
    for _ in range(RESTARTS):
        chosen = torch.randperm(len(points), generator=generator)[:num_components]
        fits.append(_climb(points, points[chosen.to(points.device)]))
    return max(fits, key=lambda fit: fit[0])[1]


def _climb(points: Float[Tensor, "M D"], means: Float[Tensor, "K D"]) -> tuple[float, Mixture]:
    """The mean log density of the points and the mixture that EM reaches from these means."""
    K, mu = len(means), means
    variance = points.var(0) + 1e-12
    # A cluster of few points would shrink onto them without end.
    floor = 1e-4 * variance.diag()
    Sigma, pi = variance.diag().expand(K, -1, -1), torch.full((K,), 1 / K).to(points)
    for _ in range(ITERATIONS):
        density = torch.distributions.MultivariateNormal(mu, Sigma)
        joint = density.log_prob(points[:, None]) + pi.log()
        share = joint.softmax(1)
        mass = share.sum(0) + 1e-9
        mu = share.T @ points / mass[:, None]
        offsets = points[:, None] - mu
        Sigma = torch.einsum("mk,mki,mkj->kij", share, offsets, offsets) / mass[:, None, None]
        Sigma, pi = Sigma + floor, mass / mass.sum()
    return float(joint.logsumexp(1).mean()), Mixture(pi, mu, Sigma)
