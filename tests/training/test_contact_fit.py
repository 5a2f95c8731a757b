"""Contacts found in positions of simulated scenes, and scenes that have none."""

import functools

import pytest
import torch

from motes.data.worlds.billiards import Billiards
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.events import Contacts
from motes.kalman.scenes import SceneLaw, simulate_scene
from motes.training.contact_fit import (
    ContactFit,
    Scenes,
    calibrate,
    fit_contacts,
    pair_turns,
)
from motes.training.turns import find_turns

NOISE = 0.03  # in a box of ten units, in which balls move by 0.3 in a frame
WORLD = Billiards(substeps=50)


def trained() -> LinearDynamics:
    return LinearDynamics(
        sampling_period=0.5,
        position_noise=4 * NOISE**2,
        state_noise=0.02,
        num_components=2,
        generator=torch.Generator().manual_seed(0),
    )


def scenes(positions: torch.Tensor, noise: float = NOISE) -> Scenes:
    generator = torch.Generator().manual_seed(1)
    noisy = positions + noise * torch.randn(positions.shape, generator=generator).double()
    return Scenes(noisy, torch.ones(positions.shape[:3], dtype=torch.bool), NOISE**2)


@functools.cache
def billiards() -> tuple[Scenes, ContactFit]:
    found = scenes(WORLD.simulate(80, 30, seed=0)[..., :2] - 0.5 * WORLD.side)
    fit = fit_contacts(trained(), found)
    assert fit is not None
    return found, fit


def test_contacts_of_simulated_scenes_are_found() -> None:
    _, fit = billiards()
    # A substep ends contacts and bounces early, by at most a fiftieth of the way of two balls.
    late = 0.5 * 2 * WORLD.total_speed / WORLD.substeps
    assert abs(fit.distance.value - 2 * WORLD.radius) < 4 * fit.distance.error + late
    assert fit.distance.error < 0.01 * fit.distance.value
    assert abs(fit.restitution.value - 1) < 4 * fit.restitution.error
    assert fit.restitution.error < 0.05
    assert len(fit.walls) == 4
    for wall in fit.walls:
        assert (
            abs(wall.offset.value + 0.5 * WORLD.side - WORLD.radius) < 4 * wall.offset.error + late
        )
        assert abs(wall.restitution.value - 1) < 4 * wall.restitution.error
    assert fit.gain > 1.0
    assert abs(fit.motion.noise / NOISE - 1) < 0.15


def test_masses_are_the_ratios_of_turns() -> None:
    heavy = Billiards(masses=(1.0, 3.0), substeps=50)
    found = scenes(heavy.simulate(150, 30, seed=2)[..., :2])
    motion = find_turns(found.positions.flatten(0, 1), found.observed.flatten(0, 1))
    assert motion is not None
    pairs = pair_turns(motion.turns, motion.turns.track // 2)
    assert pairs is not None
    # The first object of each pair is the lighter one: it turns three times as far.
    ratio = pairs.mass_ratio
    assert abs(1 / ratio.value - 3) < 4 * ratio.error / ratio.value**2 + 0.1


def simulated(restitution: float, distance: float = 2.4) -> Scenes:
    """Return scenes by the fitted law with other contacts."""
    law: SceneLaw = billiards()[1].dynamics(trained()).scene(3)
    contacts = Contacts(
        torch.tensor(distance).double(), torch.tensor(restitution).double(), law.contacts.mass
    )
    states = WORLD.simulate(60, 1, seed=3)
    places = states[:, :, 0, :2] - 0.5 * WORLD.side
    first = torch.cat([places.flatten(1), 2 * states[:, :, 0, 2:].flatten(1)], 1)
    noise = torch.zeros(60, 24, 12, dtype=torch.float64)
    path = simulate_scene(law._replace(contacts=contacts), first, noise)
    return scenes(path[..., :6].unflatten(-1, (3, 2)).movedim(2, 1))


@pytest.mark.parametrize("case", ["passing", "resting", "together", "gaining", "one", "apart"])
def test_scenes_without_contacts_have_none(case: str) -> None:
    if case == "passing":
        given = simulated(1.0, distance=1e-6)
    elif case == "gaining":  # e > 1
        given = simulated(1.6)
    elif case == "one":
        given = scenes(WORLD.simulate(40, 24, seed=4)[:, :1, :, :2])
    elif case == "apart":  # no wall is hit and no object met
        time = torch.arange(24, dtype=torch.float64)[:, None]
        ways = torch.randn(40, 3, 1, 2, generator=torch.Generator().manual_seed(5)).double()
        given = scenes(ways * time + 100 * torch.arange(3).view(1, 3, 1, 1))
    else:
        ball = WORLD.simulate(40, 24, seed=6)[:, :1, :, :2]
        if case == "resting":
            ball = ball[:, :, :1].expand(-1, -1, 24, -1)
        given = scenes(torch.cat([ball, ball + 2.4], 1))
    assert fit_contacts(trained(), given) is None


def test_positions_without_noise_are_fitted_too() -> None:
    clean = scenes(WORLD.simulate(40, 30, seed=7)[..., :2], noise=0.0)
    fit = fit_contacts(trained(), clean)
    assert fit is None or bool(fit.dynamics(trained()).is_bounded(1e6))


def test_calibration_widens_a_law_that_is_too_sure() -> None:
    found, fit = billiards()
    some = found.select(slice(40))
    one, other = (calibrate(law, trained(), some) for law in (fit, fit.widened(0.4)))
    # Two steps, each of which would suffice if regions scaled with the noise exactly.
    assert 0.75 < other.motion.noise / one.motion.noise < 1.1
    assert 0.5 < one.motion.noise / fit.motion.noise < 1.5
