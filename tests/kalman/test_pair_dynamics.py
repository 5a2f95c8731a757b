"""The law of motion with forces between objects as a `Dynamics`."""

import math

import pytest
import torch

from motes.config import DynamicsConfig
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.joint_tracks import STRAY
from motes.kalman.pair_dynamics import PairDynamics
from motes.kalman.pair_forces import Joint, PairLaw, draw_paths, step
from motes.models.law import describe_law
from motes.models.model import find_law
from motes.models.protocols import DrawsTracks, Dynamics

NOISE, DELTA = 0.02, 0.5


def dynamics() -> PairDynamics:
    """Return a spring of length 3 between objects."""
    made = PairDynamics(
        sampling_period=DELTA,
        state_noise=0.05,
        position_noise=4 * NOISE**2,
        initial_spread=4.0,
        generator=torch.Generator().manual_seed(0),
    )
    one = torch.ones((), dtype=torch.float64)
    made.set_law(
        PairLaw(
            force=torch.tensor([0.0, 0.01]).double(),
            field=torch.zeros(2, 4).double(),
            curvature=torch.zeros(2, 7).double(),
            stiffness=0.05 * one,
            rest_length=3.0 * one,
            attraction=0.0 * one,
            softening=0.1 * one,
            state_sds=torch.tensor([0.002, 0.002]).double(),
            position_variance=NOISE**2 * one,
            initial_mean=torch.zeros(4).double(),
            initial_covariance=torch.tensor([4.0, 4.0, 0.02, 0.02]).double().diag(),
            initial_coupling=torch.zeros(4, 4).double(),
        ),
        mean_variance=NOISE**2 * one,
        pair_errors=torch.tensor([0.001, 0.02, 0.0]).double(),
        force_error=torch.tensor([0.001, 0.001]).double(),
    )
    return made


def clip(frames: int) -> torch.Tensor:
    """Return two objects that swing apart and together, [1, 2, frames, 2]."""
    law = dynamics().pair_law()
    h = torch.tensor([[-1.0, 0.5, 1.2, -0.5, 0.02, 0.1, 0.0, -0.1]], dtype=torch.float64)
    path = [h]
    for _ in range(frames - 1):
        path.append(step(law, path[-1]))
    return torch.stack(path, 1)[..., :4].unflatten(-1, (2, 2)).movedim(1, 2)


def test_it_is_a_law_of_motion_with_its_own_configuration() -> None:
    made = dynamics()
    assert isinstance(made, Dynamics)
    assert isinstance(made, DrawsTracks)
    built = find_law("newton")(DynamicsConfig(pair_forces=1), torch.Generator())
    built.load_state_dict(made.state_dict())
    for part, other in zip(built.pair_law(), made.pair_law(), strict=True):
        torch.testing.assert_close(part, other)


def test_log_density_is_that_of_the_mixture_with_the_linear_law() -> None:
    made, a = dynamics(), clip(10)
    present = torch.ones(1, 2, dtype=torch.bool)
    joint = Joint(a.movedim(1, 2).flatten(2), torch.ones(1, 10, 4, dtype=torch.bool))
    expected = float(draw_paths(made.pair_law(), joint, 32).log_density) + math.log(1 - STRAY)
    assert float(made.log_density(a, present)) == pytest.approx(expected, abs=1e-6)
    wild = a + torch.randn(a.shape, generator=torch.Generator().manual_seed(0)).double()
    linear = float(LinearDynamics.log_density(made, wild, present).detach()) + math.log(STRAY)
    assert float(made.log_density(wild, present)) == pytest.approx(linear, abs=1e-6)


def test_forecasts_follow_the_spring_and_gaps_are_bridged() -> None:
    made, a = dynamics(), clip(26)
    observed = torch.ones(1, 2, 26, dtype=torch.bool)
    observed[:, :, 12:] = False
    variances = torch.full_like(a, NOISE**2)
    states = made.smooth(a, observed, variances)
    miss = (states.means[:, :, 0, :, :2] - a).norm(dim=-1)
    linear = LinearDynamics.smooth(made.requires_grad_(False), a, observed, variances)
    assert float(miss[..., 12:].max()) < 0.3
    assert float((linear.means[:, :, 0, :, :2] - a).norm(dim=-1).max()) > 1.0
    velocity = made.velocities(states.means[:, :, 0])[:, :, 5]
    torch.testing.assert_close(velocity, (a[:, :, 6] - a[:, :, 4]) / 2, rtol=0.0, atol=0.02)
    observed[:, :, 20:] = True
    bridged = made.smooth(a, observed, variances)
    assert float((bridged.means[:, :, 0, :, :2] - a).norm(dim=-1).max()) < 0.05


def test_draws_have_the_moments_of_the_smoother() -> None:
    made, a = dynamics(), clip(14)
    observed = torch.ones(1, 2, 14, dtype=torch.bool)
    observed[:, :, 8:] = False
    given = (a, observed, torch.full_like(a, NOISE**2))
    states, draws = made.smooth(*given), made.draw_tracks(*given, 400, seed=3)
    spread = states.covariances[:, :, 0].diagonal(dim1=-2, dim2=-1).sqrt()
    off = (draws.mean(0) - states.means[:, :, 0]) / spread
    # Means of 400 and of 256 draws differ by a standard deviation of 0.08.
    assert float(off.abs().max()) < 0.4
    torch.testing.assert_close(draws.std(0), spread, rtol=0.3, atol=1e-6)


def test_samples_swing_about_the_rest_length() -> None:
    drawn = dynamics().sample((200, 2), 40, torch.Generator().manual_seed(0))
    apart = (drawn.states[:, 0, :, :2] - drawn.states[:, 1, :, :2]).norm(dim=-1)
    assert float(apart.mean()) == pytest.approx(3.2, abs=0.3)
    assert drawn.positions.shape == (200, 2, 40, 2)


def test_the_law_says_stiffness_and_rest_length_in_pixels() -> None:
    law = describe_law(dynamics(), 3 * torch.eye(2).double(), torch.zeros(2).double())
    terms = {term.name: (term.value, term.error) for term in law.terms}
    assert terms["spring between objects"] == pytest.approx((0.05, 0.001))
    assert terms["rest length of the spring"] == pytest.approx((9.0, 0.06))
    assert terms["acceleration"] == pytest.approx((0.03, 0.003))
    seconds = describe_law(
        dynamics(), 3 * torch.eye(2).double(), torch.zeros(2).double(), frames_per_second=10.0
    )
    assert seconds.terms[1].value == pytest.approx(5.0)
