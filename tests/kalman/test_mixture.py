import numpy as np
import torch

from motes import kalman
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.mixture import component_log_posterior, log_prior, select_component
from oracles import log_density, one_model


def lopsided(generator: torch.Generator) -> LinearDynamics:
    dynamics = LinearDynamics(num_components=3, generator=generator)
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.0, 1.0, -1.0]))
    return dynamics


def test_log_prior_is_the_mixture_of_dense_gaussians(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    positions = torch.randn(2, 3, 6, 2, generator=generator)
    observed = torch.rand(2, 1, 6, generator=generator) < 0.7
    value = log_prior(dynamics, positions, observed)
    weights = component_log_posterior(dynamics, positions, observed)
    assert value.shape == (2, 3)
    assert value.dtype == torch.float64
    pi = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    for b, n in np.ndindex(2, 3):
        densities = [
            log_density(
                one_model(dynamics.components(), (3,), (k,)),
                positions[b, n].double().numpy(),
                observed[b, 0].numpy(),
            )
            for k in range(3)
        ]
        joint = pi * np.exp(densities)
        # Log densities of about -20 with condition number 10: rounding below 1e-13.
        np.testing.assert_allclose(value[b, n].item(), np.log(joint.sum()), rtol=1e-11)
        posterior = weights[b, n].detach().exp().numpy()
        np.testing.assert_allclose(posterior, joint / joint.sum(), rtol=1e-11)


def test_component_posterior_of_nothing_is_the_prior(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    nothing = torch.zeros(5, dtype=torch.bool)
    posterior = component_log_posterior(dynamics, torch.full((4, 5, 2), torch.nan), nothing)
    assert posterior.shape == (4, 3)
    torch.testing.assert_close(posterior, dynamics.log_weights().expand(4, 3))


def test_every_parameter_learns_from_the_prior(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    log_prior(dynamics, torch.randn(4, 9, 2, generator=generator)).sum().backward()
    for name, parameter in dynamics.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        lower = parameter.grad.tril() if name.endswith("factor") else parameter.grad
        assert (lower != 0).any(), name


def test_states_under_a_component_are_its_own(generator: torch.Generator) -> None:
    means, roots = torch.randn(2, 3, 4, 5, 6, generator=generator).split([4, 2], -1)
    states = kalman.Smoothed(means, roots[..., :1, None] * torch.eye(4))
    component = torch.randint(4, (2, 3), generator=generator)
    chosen = select_component(states, component)
    for b, n in np.ndindex(2, 3):
        k = component[b, n]
        assert torch.equal(chosen.means[b, n], states.means[b, n, k])
        assert torch.equal(chosen.covariances[b, n], states.covariances[b, n, k])
