"""Tracks of frames as they come: once each, in time, with lasting numbers."""

import numpy as np
import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.queries.live import LiveTracker


@pytest.fixture(scope="module")
def scene():
    model = motes.load("cannonballs-structured")
    clips = motes.cannonballs(num_clips=1, num_objects=(2,), num_frames=40, size=48, seed=21)
    frames = clips.frames[0].float().numpy()
    return model, frames, motes.infer(model, frames[None], 2).pixels[0].numpy()


def run(tracker, frames, skipped=()):
    """The rows, each with the index of the frame that it came with."""
    told = []
    for index, frame in enumerate(frames):
        if index not in skipped:
            told += [(index, row) for row in tracker.push(index, frame)]
    return told + [(len(frames) - 1, row) for row in tracker.flush()]


@pytest.mark.parametrize(("delay", "every", "window"), [(5, 5, 20), (0, 1, 8), (3, 4, 30)])
def test_every_frame_is_told_once_within_the_delay(scene, delay, every, window):
    model, frames, _ = scene
    frames = frames[:16] if every == 1 else frames
    tracker = LiveTracker(model, 2, window, delay, every)
    told = run(tracker, frames)
    assert [(row.frame, row.particle) for _, row in told] == [
        (t, n) for t in range(len(frames)) for n in range(2)
    ]
    waited = max(came - row.frame for came, row in told)
    # The first update needs two frames.
    assert waited <= max(tracker.longest_delay, 1) == max(delay + every - 1, 1)


def test_tracks_are_those_of_the_whole_recording(scene):
    """Numbers last; positions agree with inference that knows the future to half a pixel."""
    model, frames, places = scene
    told = run(LiveTracker(model, 2, window=20), frames)
    live = np.full((2, 40, 2), np.nan)
    for _, row in told:
        live[row.particle, row.frame] = row.place
    order = [0, 1] if np.abs(live[0, 3] - places[0, 3]).max() < 3 else [1, 0]
    away = np.linalg.norm(live - places[order], axis=-1)
    assert np.median(away) < 0.5
    assert away.max() < 4  # no swap


def test_frames_that_did_not_come_are_predicted(scene):
    model, frames, _ = scene
    told = run(LiveTracker(model, 2, window=20), frames, skipped=(12, 13, 14))
    rows = {(row.frame, row.particle): row for _, row in told}
    assert len(rows) == 80
    assert not rows[13, 0].observed
    assert not rows[13, 0].found
    assert rows[11, 0].observed
    assert np.trace(rows[13, 0].covariance) > np.trace(rows[11, 0].covariance)


def test_after_a_long_gap_objects_are_new(scene):
    model, frames, _ = scene
    tracker = LiveTracker(model, 2, window=12)
    first = [row for t in range(8) for row in tracker.push(t, frames[t])]
    later = [row for t in range(8) for row in tracker.push(100 + t, frames[20 + t])]
    told = [*first, *later, *tracker.flush()]
    assert {row.particle for row in told if row.frame < 100} == {0, 1}
    assert {row.particle for row in told if row.frame >= 100} == {2, 3}
    assert sorted({row.frame for row in told}) == [*range(8), *range(100, 108)]


def test_wrong_settings_and_orders_are_refused(scene):
    model, frames, _ = scene
    with pytest.raises(InputError, match="give a window that is longer than delay and every"):
        LiveTracker(model, 2, window=10, delay=5, every=5)
    tracker = LiveTracker(model, 2)
    tracker.push(3, frames[0])
    with pytest.raises(InputError, match="frame 3 came after frame 3"):
        tracker.push(3, frames[1])
    assert torch.is_grad_enabled()
