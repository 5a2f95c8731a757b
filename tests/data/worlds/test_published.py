"""Small worlds of published benchmarks."""

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.data.worlds.published import FASTER, NOISE, Scene, bouncing_series


def test_a_series_goes_back_and_forth_at_one_speed() -> None:
    noisy, exact = bouncing_series(50, 300, seed=1)
    steps = np.abs(np.diff(exact, axis=1))
    np.testing.assert_allclose(steps, np.repeat(steps[:, :1], 299, 1), atol=1e-12)
    assert np.abs(exact).max() < 1 + 2 * 0.05  # at most a step beyond an end
    assert 0.005 <= steps.min()
    assert steps.max() <= 0.05
    assert (noisy - exact).std() == pytest.approx(NOISE, rel=0.05)


def test_a_parabola_falls_and_uniform_motion_does_not() -> None:
    path = Scene("parabola").simulate(20, 12, seed=0)
    np.testing.assert_allclose(np.diff(path[:, 0, :, 1], 2, axis=1), 0.025, atol=1e-9)
    np.testing.assert_allclose(np.diff(path[:, 0, :, 0], axis=1), path[:, 0, 1:, 2], atol=1e-9)
    still = Scene("uniform").simulate(20, 12, seed=0)
    assert np.ptp(still[..., 1], axis=2).max() == 0
    fast = Scene("uniform", FASTER).simulate(20, 12, seed=0)[..., 2]
    assert fast.min() >= 0.45
    assert fast.max() <= 0.6


def test_a_collision_keeps_momentum_energy_and_distance() -> None:
    scene = Scene("collision")
    path = scene.simulate(40, 32, seed=0)
    v = path[..., 2]
    np.testing.assert_allclose(v.sum(1), np.repeat(v.sum(1)[:, :1], 32, 1), atol=1e-12)
    np.testing.assert_allclose((v**2).sum(1), np.repeat((v**2).sum(1)[:, :1], 32, 1), atol=1e-12)
    gap = path[:, 1, :, 0] - path[:, 0, :, 0]
    assert gap.min() > 2 * scene.radius - 1e-9
    assert ((v[:, 0, 0] > 0) & (v[:, 0, -1] < 0)).mean() > 0.9
    assert (v[:, 0, 4] > 0).mean() > 0.9  # met after the seen frames


def test_clips_show_balls_where_they_are() -> None:
    scene = Scene("collision", size=32)
    clips = scene.make(2, 6, seed=0)
    assert clips.positions is not None
    frame = clips.video[0, 3].double().numpy()
    weights, axis = frame.sum(0), np.arange(32)
    middle = (weights * axis).sum() / weights.sum()
    assert middle == pytest.approx(float(clips.positions[0, :, 3, 0].mean()), abs=0.05)
    assert scene.in_sight(scene.simulate(2, 6, seed=0)).all()


def test_wrong_speeds_are_refused() -> None:
    with pytest.raises(InputError, match="smaller first"):
        Scene("uniform", (3.0, 1.0))
