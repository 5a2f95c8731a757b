"""Forces between objects found in positions of simulated scenes, and scenes that have none."""

import numpy as np
import pytest
import torch

from motes.data.worlds.pairs import PairWorld, paig_spring, spring_pair, stove_gravity
from motes.training.contact_fit import Scenes
from motes.training.pair_fit import MIN_REDUCTION, calibrate, fit_pairs, regressions

NOISE = 0.01  # of positions in latent units, 0.03 px


def scenes(world: PairWorld, clips: int, frames: int) -> Scenes:
    path = world.pixels(world.simulate(clips, frames, 0)[..., :2])
    return noisy((torch.from_numpy(path) - 0.5 * (world.size - 1)) / 3)


def noisy(positions: torch.Tensor) -> Scenes:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(positions.shape, generator=generator, dtype=torch.float64)
    seen = torch.ones(positions.shape[:3], dtype=torch.bool)
    return Scenes(positions.double() + NOISE * noise, seen, NOISE**2)


def test_parameters_of_simulated_forces_are_found() -> None:
    found = scenes(spring_pair(), 60, 10)
    fit = fit_pairs(found)
    assert fit is not None
    assert fit.kind == "spring"
    # Leapfrog with four substeps against the simulator's ten: relative differences of 1e-3.
    assert float(fit.law.stiffness) == pytest.approx(0.02, abs=4 * fit.errors["stiffness"] + 4e-5)
    assert float(fit.law.rest_length) == pytest.approx(4.0, abs=4 * fit.errors["rest_length"])
    assert fit.errors["rest_length"] < 0.05
    assert float(fit.law.position_variance.sqrt()) == pytest.approx(NOISE, rel=0.1)
    before = fit.law.position_variance
    assert float(calibrate(fit.law, found).position_variance / before) == pytest.approx(1, abs=0.5)


def test_regression_tells_springs_from_gravitation() -> None:
    assert regressions(scenes(paig_spring(), 60, 12))[0].kind == "spring"
    first = regressions(scenes(stove_gravity(), 40, 30))[0]
    assert first.kind == "attraction"
    assert first.coefficients["attraction"] > 0


@pytest.mark.parametrize("case", ["free", "field", "rest"])
def test_scenes_without_forces_between_objects_have_none(case: str) -> None:
    rng = np.random.default_rng(0)
    time, start = np.arange(20)[:, None], 3 * rng.normal(size=(80, 3, 1, 2))
    speed = 0.3 * rng.normal(size=(80, 3, 1, 2))
    path = {
        "free": start + speed * time + 0.02 * time**2,
        "field": start * np.cos(0.2 * time) + 5 * speed * np.sin(0.2 * time),
        "rest": start + 0 * time,
    }[case]
    found = noisy(torch.from_numpy(path))
    assert regressions(found)[0].reduction < MIN_REDUCTION
    assert fit_pairs(found) is None


def test_too_little_to_see_is_no_force() -> None:
    found = scenes(spring_pair(), 60, 16)
    assert fit_pairs(found.select(slice(3))) is None
    assert fit_pairs(Scenes(found.positions[:, :1], found.observed[:, :1], NOISE**2)) is None
    hidden = Scenes(found.positions, torch.zeros_like(found.observed), NOISE**2)
    assert fit_pairs(hidden) is None
