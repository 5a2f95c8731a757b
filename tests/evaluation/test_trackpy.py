"""trackpy as a rival: it must do well where its task is easy."""

import numpy as np
import pytest
import torch

from motes.data import worlds
from motes.evaluation import metrics
from motes.evaluation.baselines import trackpy as blobs
from motes.evaluation.baselines.disk_trackers import disk_mask
from motes.evaluation.baselines.trackpy import Settings, track_features, tune_trackpy

pytest.importorskip("trackpy")


def test_a_lone_ball_is_followed_through_lost_frames():
    clips = worlds.make("cannonballs", 2, 1, seed=1)
    observed = torch.ones(2, 30, dtype=torch.bool)
    observed[:, 10:13] = False
    found = track_features(clips.frames.float(), observed, 1, Settings(5, 8.0, 10))
    gaps = (found - clips.positions).norm(dim=-1)[:, 0]
    # A blob's centroid is the pixel that the position was rounded to: half a diagonal.
    assert gaps[observed].max() < 0.75
    # A straight line over three lost frames: noise of 0.8 px at its ends and at the truth.
    assert gaps[~observed].max() < 6 * 0.8 * 2**0.5


def test_the_best_settings_are_chosen(monkeypatch):
    clips = worlds.make("cannonballs", 2, 2, num_frames=8, seed=2)
    observed = torch.ones(2, 8, dtype=torch.bool)
    for name, few in (("DIAMETERS", (5,)), ("RANGES", (0.5, 8.0)), ("MEMORIES", (3,))):
        monkeypatch.setattr(blobs, name, few)
    best = tune_trackpy(clips.frames.float(), observed, clips.positions)
    shares = {}
    for search_range in blobs.RANGES:
        for memory in blobs.MEMORIES:
            settings = Settings(5, search_range, memory)
            found = track_features(clips.frames.float(), observed, 2, settings)
            found = metrics.reorder(found, metrics.best_order(found, clips.positions))
            shares[settings] = float(metrics.tracked(found, clips.positions).float().mean())
    assert shares[best] == max(shares.values()) > min(shares.values())


def test_a_still_background_is_taken_away():
    still = torch.linspace(0, 1, 16 * 16).view(16, 16)
    frames = still.expand(1, 5, 16, 16).clone()
    frames[0, 2, 3:5, 3:5] = 1 - frames[0, 2, 3:5, 3:5]
    left = blobs._without_background(frames)
    assert int((left > 0).sum()) == 4


def test_disks_that_touch_are_told_apart_by_their_shape():
    clip, seen = torch.zeros(3, 16, 16), torch.tensor([True, False, True])
    for t, centres in ((0, ((4, 5), (8, 5))), (2, ((6, 10), (9, 10)))):
        for x, y in centres:
            clip[t, y - 2 : y + 3, x - 2 : x + 3][disk_mask(2)] = 1.0
    found = [sorted(map(tuple, points.tolist())) for points in blobs.locate_disks(clip, seen, 2, 5)]
    assert found == [[(4, 5), (8, 5)], [], [(6, 10), (9, 10)]]
    tracks = track_features(clip[None], seen[None], 2, Settings(5, 6.0, 1), blobs.locate_disks)
    assert sorted(tracks[0, :, 1].tolist()) == [[5.0, 7.5], [8.5, 7.5]]


def test_ties_are_broken_alike_in_every_run():
    """trackpy iterates over sets of objects: their places in memory must not decide."""
    crossing = [np.array([(6.0, 6.0), (6.0, 14.0)]), np.array([(2.0, 10.0), (10.0, 10.0)])]
    kept, answers = [], []
    for size in range(40):
        kept.append([object() for _ in range(size)])  # moves later objects in memory
        answers.append(blobs._link(crossing * 5, 2, Settings(5, 8.0, 0)))
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_settings_are_chosen_for_each_task():
    """A gap needs memory and a wide search, whole clips do not."""
    training = worlds.make("cannonballs", 8, 1, seed=3)
    tracker = blobs.TrackpyTracker(training, 2)
    whole = torch.ones(30, dtype=torch.bool)
    gap = (torch.arange(30) < 5) | (torch.arange(30) >= 25)
    assert tracker.settings(gap, 1).memory >= 20 > tracker.settings(whole, 1).memory
    clips = worlds.make("cannonballs", 6, 1, seed=4)
    frames, truth = clips.frames.float() * gap[:, None, None], clips.clean
    told = tracker.predict(frames, gap, 1).path_pixels
    masks = gap.expand(6, -1)
    blind = track_features(frames, masks, 1, tracker.settings(whole, 1), blobs.locate_disks)
    assert 2 * metrics.rmse(told, truth, ~gap) < metrics.rmse(blind, truth, ~gap)


def test_dropped_frames_are_tuned_on_other_patterns():
    tracker, seen = blobs.TrackpyTracker(worlds.make("cannonballs", 4, 1, seed=3), 2), []
    shown = torch.ones(30, dtype=torch.bool)
    shown[[3, 5, 8, 9, 20]] = False
    locate = blobs.locate_disks

    def listening(clip, observed, num_objects, diameter):
        seen.append(observed)
        return locate(clip, observed, num_objects, diameter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "locate_disks", listening)
        tracker.settings(shown, 1)
    assert [int((~mask).sum()) for mask in seen] == [5] * 4
    assert all(mask[:2].all() for mask in seen)
    assert not any(torch.equal(mask, shown) for mask in seen)
