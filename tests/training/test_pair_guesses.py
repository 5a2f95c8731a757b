"""Forces between objects seen in second differences, and what looks like them but is none."""

import numpy as np
import pytest
import torch

from benchmarks.recordings import Setting, juggling
from motes.data.worlds.pairs import paig_spring, spring_pair, stove_gravity
from motes.training.pair_fit import fit_pairs
from motes.training.pair_guesses import MIN_REDUCTION, regressions, visible_forces
from pair_scenes import noisy, scenes


def test_regression_tells_springs_from_gravitation() -> None:
    assert regressions(scenes(paig_spring(), 60, 12))[0].kind == "spring"
    first = regressions(scenes(stove_gravity(), 40, 30))[0]
    assert first.kind == "attraction"
    assert first.coefficients["attraction"] > 0


def test_juggling_shows_no_force_between_objects() -> None:
    _, paths = juggling(Setting(5, 30 + 15 * 44), seed=1)
    clips = np.stack([paths[:, 15 * n : 15 * n + 30] for n in range(45)])
    found = noisy(torch.from_numpy(clips) / 3)
    assert max(visible_forces(found).values()) < MIN_REDUCTION / 2
    assert fit_pairs(found) is None


@pytest.mark.parametrize("stiffness", [0.02, 0.002, 0.0005])
def test_weak_springs_are_visible(stiffness: float) -> None:
    """The weakest accelerates by 0.001 a frame, a tenth of the noise of positions."""
    visible = visible_forces(scenes(spring_pair(stiffness), 60, 30))
    assert visible["spring"] == max(visible.values())
    assert visible["spring"] > 5 * MIN_REDUCTION
