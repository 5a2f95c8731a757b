"""Simulated recordings and the comparison of trackers on them."""

import numpy as np
import pytest
import torch

from benchmarks import recordings
from benchmarks.restarts import kept
from benchmarks.sprites_gpu import compared


def test_balls_are_drawn_at_their_places():
    frames, paths = recordings.juggling(recordings.Setting(objects=1, frames=90))
    assert frames.shape == (90, recordings.HEIGHT, recordings.WIDTH)
    rows, columns = np.indices(frames.shape[1:])
    for t in range(0, 90, 7):
        weights = frames[t] / frames[t].sum()
        centre = (weights * columns).sum(), (weights * rows).sum()
        np.testing.assert_allclose(centre, paths[0, t], atol=0.1)


@pytest.mark.parametrize("objects", [2, 4, 5, 8])
def test_balls_are_apart_most_of_the_time(objects):
    _, paths = recordings.juggling(recordings.Setting(objects, 300))
    apart = np.linalg.norm(paths[:, None] - paths[None], axis=-1)[~np.eye(objects, dtype=bool)]
    assert (apart > 6).mean() > 0.75


def test_a_crowd_stays_inside():
    frames, paths = recordings.crowd(8, 200)
    assert paths.min() >= 8
    assert paths.max() <= frames.shape[1] - 8


def test_all_contenders_follow_two_balls():
    pytest.importorskip("trackpy")
    frames, paths = recordings.juggling(recordings.Setting(objects=2, frames=40))
    calls = recordings.contenders(frames, 2, ["python"])
    found = recordings.measure(calls, 40, paths, 1)
    assert list(found) == ["motes infer", "trackpy, python", "Kalman and assignment"]
    assert found["motes infer"]["idf1"] > 0.95
    assert all(one["idf1"] > 0.5 for one in found.values())


def test_a_batch_of_clips_is_the_recording_in_pieces():
    frames, paths = recordings.juggling(recordings.Setting(objects=2, frames=40))
    call = recordings.contenders(frames, 2, ["python"], num_clips=2)["motes infer"]
    away = np.linalg.norm(call()[:, None] - paths[None], axis=-1)
    for piece in (slice(0, 20), slice(20, 40)):
        assert away[:, :, piece].mean(-1).min(1).max() < 0.5


def test_devices_are_compared_with_objects_matched():
    places = torch.rand(4, 2, 5, 2, generator=torch.Generator().manual_seed(0))
    seen = torch.arange(4 * 2 * 5).view(4, 2, 5) % 3 > 0
    one = {"found": [(places, seen)], "restart_bounds": [1.0], "held_out_bound": 1.0}
    other = {**one, "found": [(places.flip(1), seen.flip(1))]}
    apart = compared(one, other)
    assert apart["largest_difference_px"] == 0
    assert apart["detections_that_differ"] == 0


def test_the_best_restart_is_kept_or_not():
    ends = [([3.0, 9.0]), ([4.0, 5.0]), ([5.0, 6.0])]
    restarts = [{"bounds": bounds} for bounds in ends]
    assert [kept(restarts, 0, number) for number in (1, 2, 3)] == [False, False, True]
