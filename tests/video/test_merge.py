"""Clips of several files in one."""

import numpy as np
import pytest
import torch

from motes import InputError, load_clips
from motes.video import Preparation, load_video_map, plan
from motes.video.clips import cut_clips
from motes.video.merge import merge_clips
from videos import crossing, video_of_disks


def cut(path, size, num_frames, fps=10.0, total=40):
    video = video_of_disks(crossing(total), fps=fps)
    cut_clips(plan(video, Preparation(*size)), path, num_frames, num_frames, 2)
    return path


def test_merged_clips_keep_their_pixels_and_maps(tmp_path):
    parts = [
        ("wide", cut(tmp_path / "a.npz", (20, 30), 8)),
        ("small", cut(tmp_path / "b.npz", (16, 24), 6)),
    ]
    merge_clips(tmp_path / "all.npz", parts)
    merged, found = load_clips(tmp_path / "all.npz"), load_video_map(tmp_path / "all.npz")
    assert found is not None
    where = found[0]
    first, second = (load_clips(path) for _, path in parts)
    torch.testing.assert_close(merged.frames[: len(first)], first.frames)
    # Two black rows above and below, three columns on both sides, two frames that nobody saw.
    small = merged.frames[len(first) :]
    torch.testing.assert_close(small[:, :6, 2:18, 3:27], second.frames)
    assert float(small.sum()) == pytest.approx(float(second.frames.sum()))
    assert merged.observed is not None
    assert merged.observed.sum(1).tolist() == [8] * len(first) + [6] * len(second)
    assert where.recordings == ("wide",) * len(first) + ("small",) * len(second)
    own = load_video_map(parts[1][1])[0]
    pixels = torch.rand(len(merged), 1, 8, 2) * 16
    moved = where.points(pixels + torch.tensor([3.0, 2.0]))[len(first) :, :, :6]
    torch.testing.assert_close(moved, own.points(pixels[len(first) :, :, :6]))
    np.testing.assert_array_equal(where.numbers[len(first) :, :6], own.numbers)
    torch.testing.assert_close(
        where.velocities(pixels)[len(first) :, :, :6],
        own.velocities(pixels[len(first) :, :, :6]),
    )
    eye = torch.eye(2).expand(len(merged), 1, 8, 2, 2)
    torch.testing.assert_close(
        where.covariances(eye)[len(first) :, :, :6], own.covariances(eye[len(first) :, :, :6])
    )


def test_clips_of_different_rates_are_refused(tmp_path):
    parts = [
        ("a", cut(tmp_path / "a.npz", (20, 30), 8)),
        ("b", cut(tmp_path / "b.npz", (20, 30), 8, 15.0)),
    ]
    with pytest.raises(InputError, match="--fps 10"):
        merge_clips(tmp_path / "all.npz", parts)


def test_the_rate_of_resampled_clips_is_the_one_that_was_asked_for(tmp_path):
    video = video_of_disks(crossing(60), fps=30.0)
    cut_clips(plan(video, Preparation(20, 30, fps=25.0)), tmp_path / "a.npz", 40, 40, 2)
    where, _ = load_video_map(tmp_path / "a.npz")
    # Steps of one frame and now and then two; 39 steps fix the mean to half a frame.
    assert where.fps == pytest.approx(25, rel=0.5 / 39 + 1e-9)


def test_pictures_go_on_to_the_end_of_the_video(tmp_path, monkeypatch):
    from motes.video import whole_clip

    video = video_of_disks(crossing(20))
    monkeypatch.setattr("motes.video.streaming.open_video", lambda path: video)
    whole = whole_clip("disks", 20, 30, span=(0.0, 0.9))
    assert whole.frames.shape[1] == 10
    shown, true = list(whole.pictures()), [frame.picture for frame in video.frames()]
    assert len(shown) == 20
    for picture, frame in zip(shown, true, strict=True):
        np.testing.assert_array_equal(picture[..., :1], frame)
