import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.training.step import fit_dynamics

NUM_TRACKS, NUM_FRAMES = 400, 12


def falling(force: float, position_noise: float) -> LinearDynamics:
    """Dynamics of objects that fall."""
    dynamics = LinearDynamics(
        sampling_period=1.0,
        state_noise=1e-4,
        position_noise=position_noise,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        dynamics.force[3] = force
    return dynamics


def tracks_of(
    dynamics: LinearDynamics, generator: torch.Generator
) -> tuple[Float[Tensor, "M T 2"], Bool[Tensor, "M T"]]:
    """Tracks of which every tenth is hidden for a while."""
    path = dynamics.sample((NUM_TRACKS,), NUM_FRAMES, generator)
    observed = torch.ones(NUM_TRACKS, NUM_FRAMES, dtype=torch.bool)
    observed[::10, 3:6] = False
    return path.positions.detach(), observed


def standard_error(dynamics: LinearDynamics, positions: Tensor, observed: Tensor) -> float:
    """Of the force downwards, from the curvature of the likelihood."""

    def log_likelihood(force: float) -> Tensor:
        with torch.no_grad():
            dynamics.force[3] = force
        return dynamics.track_log_density(positions, observed).sum().detach()

    centre, h = float(dynamics.force[3].detach()), 1e-3
    below, here, above = (log_likelihood(centre + by) for by in (-h, 0.0, h))
    log_likelihood(centre)
    return float(-(below - 2 * here + above) / h**2) ** -0.5


def test_fitting_finds_the_force_and_the_noise_that_tracks_were_drawn_with(
    generator: torch.Generator,
) -> None:
    source = falling(0.3, position_noise=0.04)
    positions, observed = tracks_of(source, generator)
    error = standard_error(source, positions, observed)
    dynamics = falling(0.3 + 100 * error, position_noise=0.01)
    fit_dynamics(dynamics, positions, observed)
    # Velocities at the start, learned too, cost the force some of its certainty: twice the error.
    # (Twice the velocity and half the sampling period are the same motion.)
    bend = dynamics.log_delta.exp() * dynamics.force[3]
    assert abs(float(bend.detach()) - 0.3) < 4 * 2 * error
    # Of some 9,000 numbers, of which the paths take a third: 4 sqrt(2 / 6000) of the variance.
    found = dynamics.components().position_noise.diagonal().detach()
    assert (found / 0.04 - 1).abs().max() < 4 * (2 / 3000) ** 0.5


def test_fitting_makes_tracks_no_less_likely(generator: torch.Generator) -> None:
    positions, observed = tracks_of(falling(0.3, 0.04), generator)
    dynamics = falling(0.3, 0.04)
    before = dynamics.track_log_density(positions, observed).mean()
    fit_dynamics(dynamics, positions, observed)
    after = dynamics.track_log_density(positions, observed).mean()
    assert after > before  # what was drawn is never likeliest under what it was drawn from


def test_what_is_hidden_does_not_count(generator: torch.Generator) -> None:
    positions, observed = tracks_of(falling(0.3, 0.04), generator)
    found = []
    for hidden in (0.0, 1e3):
        dynamics = falling(0.0, 1.0)
        fit_dynamics(dynamics, torch.where(observed[..., None], positions, hidden), observed)
        found.append(dynamics.force.detach())
    assert torch.equal(*found)


def test_dynamics_stay_as_they_are_where_no_step_is_a_better_one(
    generator: torch.Generator,
) -> None:
    positions, observed = tracks_of(falling(0.3, 0.04), generator)
    positions[0, 0] = torch.nan
    dynamics = falling(0.1, 0.04)
    fit_dynamics(dynamics, positions, observed)
    assert float(dynamics.force[3].detach()) == 0.1
