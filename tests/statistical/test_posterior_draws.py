"""Random draws against exact moments; a correct program fails a test once in a million seeds."""

import numpy as np
import pytest
import torch

from motes import kalman
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM, draw_path
from oracles import assert_draws_follow, joint, one_model, posterior
from strategies import random_model

pytestmark = pytest.mark.statistical
NUM_DRAWS = 20_000
T = 4


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(NUM_DRAWS, *shape, dtype=torch.float64, generator=generator)


def draw_problem(singular: bool) -> tuple[LGSSM, LGSSM, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(11)
    model = random_model(rng, [()] * 7, 3, 2, singular=singular)
    positions = torch.from_numpy(rng.normal(size=(T, 2)))
    return model, one_model(model, (), ()), positions, torch.tensor([True, False, False, True])


@pytest.mark.parametrize("singular", [False, True])
def test_prior_draws_have_the_moments_of_the_joint(
    generator: torch.Generator, singular: bool
) -> None:
    model, single, _, _ = draw_problem(singular)
    path = draw_path(model, normal(generator, T, 5))
    exact = joint(single, T)
    both = torch.cat([path.states.flatten(1), path.positions.flatten(1)], 1)
    cov = np.block([[exact.state_cov, exact.cross_cov], [exact.cross_cov.T, exact.position_cov]])
    assert_draws_follow(both, np.concatenate([exact.state_mean, exact.position_mean]), cov)


@pytest.mark.parametrize("singular", [False, True])
def test_posterior_draws_have_the_moments_of_the_posterior(
    generator: torch.Generator, singular: bool
) -> None:
    """All of the posterior, covariances between frames too."""
    model, single, positions, observed = draw_problem(singular)
    draws = kalman.draw_states(model, positions, observed, noise=normal(generator, T, 5))
    mean, cov = posterior(single, positions.numpy(), observed.numpy())
    size = mean.size
    assert_draws_follow(draws.flatten(1), mean.reshape(-1), cov.reshape(size, size))


def test_uncertain_positions_average_the_posterior(generator: torch.Generator) -> None:
    """Draws of positions, then of states given them, have the moments of the smoother."""
    model, _, positions, observed = draw_problem(singular=False)
    variances = 0.5 + positions.square()
    a = positions + variances.sqrt() * normal(generator, T, 2)
    draws = kalman.draw_states(model, a, observed, noise=normal(generator, T, 5))
    expected = kalman.smooth(model, positions, observed, variances)
    for t in range(T):
        assert_draws_follow(draws[:, t], expected.means[t].numpy(), expected.covariances[t].numpy())


def test_sampled_tracks_follow_the_mixture(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(num_components=2, generator=generator)
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.3, 0.7]).log())
        component, _, positions = dynamics.sample((NUM_DRAWS,), T, generator)
    share = (component == 1).double()
    assert_draws_follow(share[:, None], np.array([0.7]), np.array([[0.21]]))
    for k in range(2):
        exact = joint(one_model(dynamics.components(), (2,), (k,)), T)
        drawn = positions[component == k].flatten(1)
        assert_draws_follow(drawn, exact.position_mean, exact.position_cov)
