"""Baselines for objects that come and go."""

import numpy as np
import pytest

from motes.data.worlds.arrivals import Scene, draw_scene
from motes.evaluation.baselines.point_trackers import (
    Features,
    KalmanSettings,
    TrackpySettings,
    link_kalman,
    link_trackpy,
    strong,
    tune,
)
from motes.evaluation.tracking_metrics import score_tracks


def features(*frames):
    return [
        Features(
            np.array(one, dtype=float).reshape(-1, 2), np.full(len(one), 0.3), np.ones(len(one))
        )
        for one in frames
    ]


def test_the_filter_of_a_lone_track_equals_the_dense_posterior():
    draw = np.random.default_rng(0)
    points = np.stack((2.0 * np.arange(5), 0 * np.arange(5.0)), 1) + 0.3 * draw.standard_normal(
        (5, 2)
    )
    settings = KalmanSettings(gate=20, jitter=0.2, memory=2, min_length=1, noise=0.4)
    found = link_kalman(features(*[[p] for p in points]), settings)
    assert found.positions.shape == (1, 5, 2)
    # State (position, velocity) at the first frame given its feature, and a kick in every frame.
    motion = np.array([[1.0, 1.0], [0.0, 1.0]])
    for last in range(5):
        size = 2 + last  # initial state and kicks
        prior = np.diag([0.16, 4.0, *[0.04] * last])
        rows, state = [], np.zeros((2, size))
        state[0, 0] = state[1, 1] = 1
        for t in range(1, last + 1):
            state = motion @ state
            state[:, 1 + t] += (0.5, 1.0)
            rows.append(state[0].copy())
        design = np.array(rows).reshape(-1, size)
        mean = np.zeros((size, 2))
        mean[0] = points[0]
        if last:
            gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + 0.16 * np.eye(last))
            mean = mean + gain @ (points[1 : last + 1] - design @ mean)
        assert np.allclose(found.positions[0, last], state[0] @ mean)


def test_a_gap_within_memory_keeps_the_track_and_a_longer_one_cuts_it():
    shown = features([(0, 0)], [(1, 0)], [], [(3, 0)], [], [], [(6, 0)])
    settings = KalmanSettings(gate=2, jitter=0.1, memory=1, min_length=1)
    found = link_kalman(shown, settings)
    assert (found.shows > 0).tolist() == [
        [True, True, False, True, False, False, False],
        [False] * 6 + [True],
    ]
    long = link_kalman(shown, KalmanSettings(gate=2, jitter=0.1, memory=1, min_length=2))
    assert len(long.positions) == 1


def test_trackpy_links_within_its_range_and_states_its_errors():
    pytest.importorskip("trackpy")
    shown = features([(0, 0), (20, 0)], [(1, 0), (21, 0)], [(2, 0)])
    found = link_trackpy(shown, TrackpySettings(search_range=3, memory=0, min_length=1))
    assert sorted((found.shows > 0).sum(1)) == [2, 3]
    assert np.allclose(found.covariances[0, 0], 0.09 * np.eye(2))


def test_weak_features_are_left_out():
    one = Features(np.zeros((3, 2)), np.ones(3), np.array((1.0, 5.0, 10.0)))
    kept = strong([one], 4.0)
    assert kept[0].masses.tolist() == [5.0, 10.0]
    nothing = Features(np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    assert len(strong([nothing], 4.0)[0].points) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kalman", [False, True])
def test_tuned_baselines_follow_easy_objects(kalman):
    pytest.importorskip("trackpy")
    scene = Scene(size=64, num_frames=15, num_objects=3, blink_off=0.0, radius=2.0)
    other, here = draw_scene(scene, 10), draw_scene(scene, 11)
    tracker = tune(other.frames, other.positions, other.visible, kalman=kalman)
    found = score_tracks(here.positions, here.exists, here.visible, tracker(here.frames))
    assert found["mota"] > 0.7
    assert found["idf1"] > 0.7
