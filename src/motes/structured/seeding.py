"""Kinds of start, found among the first tracks, so that learning begins with a useful mixture."""

import torch

from motes import kalman, mixture
from motes.lgssm import Dynamics
from motes.shapes import Bool, Float, Tensor

RESTARTS = 8
ITERATIONS = 50


@torch.no_grad()
def seed_mixture(
    dynamics: Dynamics, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
) -> None:
    """Replaces pi, mu and Sigma by a mixture fitted to the smoothed first states of tracks."""
    tracks = positions[present]
    states = kalman.smooth(dynamics.components(), tracks[:, None]).means[:, :, 0]
    likely = mixture.component_log_posterior(dynamics, tracks).argmax(-1)
    starts = states.take_along_dim(likely[:, None, None], 1)[:, 0]
    weights, means, covariances = fit_mixture(starts, len(dynamics.logits))
    factor = torch.linalg.cholesky(covariances)
    dynamics.logits.copy_(weights.log())
    dynamics.initial_mean.copy_(means)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    dynamics.initial_factor.copy_(factor.tril(-1) + diagonal.log().diag_embed())


def fit_mixture(
    points: Float[Tensor, "M D"], num_components: int
) -> tuple[Float[Tensor, " K"], Float[Tensor, "K D"], Float[Tensor, "K D D"]]:
    """Weights, means and covariances of a Gaussian mixture by EM, the best of several starts.

    Law: recovers well-separated clusters (test_fit_mixture_recovers_clusters).
    """
    generator = torch.Generator().manual_seed(0)
    variance = points.var(0) + 1e-12
    floor = 1e-4 * variance.diag()
    best, best_fit = torch.tensor(-torch.inf), None
    for _ in range(RESTARTS):
        chosen = torch.randperm(len(points), generator=generator)[:num_components]
        mu = points[chosen.to(points.device)]
        Sigma = variance.diag().expand(num_components, -1, -1)
        pi = torch.full((num_components,), 1 / num_components).to(points)
        for _ in range(ITERATIONS):
            density = torch.distributions.MultivariateNormal(mu, Sigma)
            joint = density.log_prob(points[:, None]) + pi.log()
            share = joint.softmax(1)
            mass = share.sum(0) + 1e-9
            mu = share.T @ points / mass[:, None]
            offsets = points[:, None] - mu
            Sigma = torch.einsum("mk,mki,mkj->kij", share, offsets, offsets) / mass[:, None, None]
            Sigma, pi = Sigma + floor, mass / mass.sum()
        fit = joint.logsumexp(1).mean().cpu()
        if best_fit is None or fit > best:
            best, best_fit = fit, (pi, mu, Sigma)
    assert best_fit is not None
    return best_fit
