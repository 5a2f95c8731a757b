"""Recordings whose objects come and go: truth, masks and pixels agree."""

from dataclasses import replace

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.data.worlds.arrivals import SCENES, Scene, draw_scene, render

SMALL = Scene(size=48, num_frames=20, num_objects=6, flights=0.5)


def test_the_same_seed_gives_the_same_recording_and_another_seed_another():
    one, same, other = draw_scene(SMALL, 3), draw_scene(SMALL, 3), draw_scene(SMALL, 4)
    assert np.array_equal(one.frames, same.frames)
    assert np.array_equal(one.positions, same.positions, equal_nan=True)
    assert not np.array_equal(one.frames, other.frames)


@pytest.mark.parametrize("name", SCENES)
def test_masks_nest_and_positions_are_known_where_objects_exist(name):
    found = draw_scene(replace(SCENES[name], num_objects=6, size=64), 0, num_frames=12)
    assert found.frames.min() >= 0
    assert found.frames.max() <= 1
    assert not (found.visible & ~found.exists).any()
    assert np.array_equal(~np.isnan(found.positions).any(-1), found.exists)
    assert found.exists.any(1).all()
    inside = (found.positions >= 0) & (found.positions <= 63)
    assert inside[found.visible].all()
    # Objects exist from birth to death without a break.
    assert (np.diff(found.exists.astype(int), axis=1) == 1).sum(1).max() <= 1


@pytest.mark.statistical
def test_counts_have_the_mean_of_the_scene():
    """Counts of different recordings are independent and Poisson: 5 standard errors."""
    scene = replace(SMALL, num_frames=1, num_objects=40)
    counts = [draw_scene(scene, seed).exists.sum() for seed in range(60)]
    assert abs(np.mean(counts) - 40) < 5 * np.sqrt(40 / 60)


def test_pixels_equal_a_loop_over_objects():
    for disk in (False, True):
        scene = replace(SMALL, disk=disk, radius=2.0, num_frames=3)
        found = draw_scene(scene, 1)
        background = np.full((3, 48, 48), 0.15)
        drawn = render(scene, found.positions, found.visible, found.radii, background)
        expected = background.copy()
        for t in range(3):
            for n in np.nonzero(found.visible[:, t])[0]:
                x, y = found.positions[n, t]
                for row in range(48):
                    for column in range(48):
                        d = np.hypot(column - x, row - y)
                        if disk:
                            share = min(1.0, max(0.0, 2.5 - d))
                            old = expected[t, row, column]
                            expected[t, row, column] = old + share * (0.65 - old)
                        else:
                            expected[t, row, column] += 0.5 * np.exp(-0.5 * (d / 2) ** 2)
        # Spots are cut at four standard deviations: exp(-8) of the contrast, a few of them.
        assert np.abs(drawn - expected).max() < 5 * 0.5 * np.exp(-8)


def test_flights_fall_by_gravity_and_walks_step_as_stated():
    scene = Scene(
        size=400, num_frames=40, num_objects=60, flights=0.5, jitter=0.0, step=0.7, speed=1.0
    )
    found = draw_scene(scene, 2)
    second = np.diff(found.positions, n=2, axis=1)
    fall = second[found.flying].reshape(-1, 2)
    fall = fall[~np.isnan(fall).any(1)]
    assert np.allclose(fall, (0.0, 0.08))
    steps = np.diff(found.positions, axis=1)[~found.flying].reshape(-1, 2)
    steps = steps[~np.isnan(steps).any(1)]
    # 5 standard errors of a standard deviation
    assert abs(steps.std() - 0.7) < 5 * 0.7 / np.sqrt(2 * steps.size)


def test_a_shaken_camera_moves_objects_and_background_together():
    still, shaken = (replace(SMALL, shake=shake, noise=0.0) for shake in (0.0, 2.0))
    one, other = draw_scene(still, 5), draw_scene(shaken, 5)
    moved = one.positions + other.camera
    assert np.allclose(moved[one.exists], other.positions[one.exists])
    assert other.camera.std() > 1


def test_growing_objects_grow():
    found = draw_scene(replace(SMALL, growth=0.05), 0)
    ratio = found.radii[:, 1:] / found.radii[:, :-1]
    assert np.allclose(ratio[~np.isnan(ratio)], 1.05)


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="got scene 'crowd'"):
        draw_scene("crowd", 0)
    with pytest.raises(InputError, match="got death=0"):
        Scene(death=0.0)
    with pytest.raises(InputError, match=r"got flights=2\.0"):
        Scene(flights=2.0)
