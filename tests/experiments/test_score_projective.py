"""Gravity by a projective camera: made throws before a made camera give back what made them."""

import numpy as np
import pytest

from experiments.throws.score_projective import Track, fit_camera, one_a_frame, project, score
from experiments.throws.score_throws import Capture

GRAVITY = 9.6
CAMERA = np.array(
    [[-300.0, 900.0, 20.0, 2500.0], [150.0, 50.0, -900.0, 3500.0], [-0.6, -0.2, 0.1, 7.0]]
)


def capture() -> Capture:
    """Six throws over different places of the floor, at 300 Hz, with rests between them."""
    generator, pieces = np.random.default_rng(0), []
    for _ in range(6):
        start, step = generator.uniform(-0.5, 0.5, 2), generator.uniform(-0.5, 0.5, 2)
        t, up = np.arange(300) / 300, generator.uniform(4.6, 5.4)
        heights = 0.4 + up * t - GRAVITY / 2 * t**2
        flight = np.concatenate([start + step * t[:, None], heights[:, None]], 1)
        pieces += [flight, np.full((60, 3), np.nan)]
    points = np.concatenate(pieces)
    return Capture(np.arange(len(points)) / 300, points)


def test_a_camera_is_the_one_that_made_the_points():
    space = capture().points
    space = space[~np.isnan(space[:, 0])]
    found = fit_camera(space, project(CAMERA, space))
    assert np.allclose(found / found[2, 3], CAMERA / CAMERA[2, 3], rtol=1e-6, atol=1e-6)


def test_gravity_of_made_throws_is_found_in_every_flight():
    made = capture()
    frames = slice(0, None, 10)
    seen = ~np.isnan(made.points[frames, 0])
    pixels = project(CAMERA, made.points[frames][seen])
    exact = Track(made.times[frames][seen], pixels, np.ones(seen.sum(), dtype=bool))
    result = score(exact, made)
    assert len(result["flights"]) == result["flights_of_the_capture"] == 6
    assert result["worst_flight"] < 1e-6
    assert result["gravity_from_video"] == pytest.approx(GRAVITY, rel=1e-6)
    # The same pixels at other times: gravity follows from the video, not from the camera.
    slow = made._replace(times=1.05 * made.times)
    late = exact._replace(times=1.05 * exact.times)
    assert score(late, slow)["gravity_from_video"] == pytest.approx(GRAVITY / 1.05**2, rel=1e-6)


def test_overlapping_clips_give_one_place_a_frame():
    times = np.array([0.0, 0.1, 0.1, 0.1])
    points = np.array([[0.0, 1.0], [2.0, 2.0], [3.0, 3.0], [9.0, 9.0]])
    one = one_a_frame(times, points, np.array([False, False, True, False]))
    assert one.times.tolist() == [0.0, 0.1]
    assert one.points.tolist() == [[0.0, 1.0], [3.0, 3.0]]
    assert one.found.tolist() == [False, True]
