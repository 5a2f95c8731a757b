"""The likelihood of positions under the mixture of K linear-Gaussian models."""

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import POSITION_DIM, STATE_DIM, Path, draw_path, select


def log_prior(
    dynamics: LinearDynamics,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
) -> Float[Tensor, "..."]:
    """The log density of each path of positions, its component summed out.

    Paper: [Eq. kalman-filter]
        log sum_k pi_k p(a_{1:T} | z = k)

    Args:
        dynamics: The K components and their weights.
        positions: Of any float type; the result is float64.
        observed: Which positions count; all, if None.

    Law: equals the log of the weighted sum of dense Gaussian densities
        (test_log_prior_is_the_mixture_of_dense_gaussians).
    """
    return _log_joint(dynamics, positions, observed).logsumexp(-1)


def component_log_posterior(
    dynamics: LinearDynamics,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
) -> Float[Tensor, "... K"]:
    """The log posterior of each component given the seen positions, K numbers for each path.

    Law: with nothing observed it is log pi (test_component_posterior_of_nothing_is_the_prior).
    """
    return _log_joint(dynamics, positions, observed).log_softmax(-1)


def select_component(states: kalman.Smoothed, component: Int[Tensor, "B N"]) -> kalman.Smoothed:
    """The states of each object under one of the components, from [B N K T ...] to [B N T ...].

    Law: they are those of that component (test_states_under_a_component_are_its_own).
    """
    pick = component[..., None, None, None]
    means = states.means.take_along_dim(pick, 2)[:, :, 0]
    return kalman.Smoothed(means, states.covariances.take_along_dim(pick[..., None], 2)[:, :, 0])


def _log_joint(
    dynamics: LinearDynamics,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
) -> Float[Tensor, "... K"]:
    """The logarithms of pi_k p(a_{1:T} | z = k)."""
    mask = None if observed is None else observed.unsqueeze(-2)
    evidence = kalman.log_likelihood(dynamics.components(), positions.unsqueeze(-3), mask)
    return dynamics.log_weights() + evidence


def draw_prior(
    dynamics: LinearDynamics, shape: tuple[int, ...], num_frames: int, generator: torch.Generator
) -> tuple[Int[Tensor, "..."], Path]:
    """Components and paths that the model imagines, `shape` of them; nothing is seen.

    Law: moments are those of the mixture (test_imagined_paths_follow_the_mixture).
    """
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    noise = torch.randn(
        (*shape, num_frames, STATE_DIM + POSITION_DIM), dtype=torch.float64, generator=generator
    )
    device = dynamics.logits.device
    component = dynamics.draw_components(uniform.to(device))
    return component, draw_path(select(dynamics.components(), component), noise.to(device))
