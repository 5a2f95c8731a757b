"""Clips cut from a video, written and read back."""

import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.data import load_clips
from motes.video import Preparation, load_video_map, plan
from motes.video.clips import clip_windows, clip_writer, cut_clips
from motes.video.prepare import PreparedFrame
from videos import FPS, HEIGHT, WIDTH, crossing, video_of_disks


def test_clips_start_at_every_stride():
    frames = [(PreparedFrame(t, 0.0, np.zeros((2, 2), np.uint8)), []) for t in range(11)]
    starts = [[p.number for p in clip] for clip, _ in clip_windows(iter(frames), 4, 3)]
    assert starts == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_clips_written_one_by_one_come_back_with_their_map(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(30, 45))
    clip = list(found.frames())[:6]
    with clip_writer(tmp_path / "a.npz", found.geometry, found.preparation) as write:
        write(clip[:3], 2)
        write(clip[3:], 1)
    clips = load_clips(tmp_path / "a.npz")
    frames = np.stack([p.frame for p in clip]).reshape(2, 3, 30, 45)
    assert np.array_equal(clips.frames.numpy(), frames / np.float32(255))
    assert clips.num_objects.tolist() == [2, 1]
    where, preparation = load_video_map(tmp_path / "a.npz")
    assert preparation == found.preparation
    assert where.numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert where.fps == pytest.approx(FPS)
    assert where.scale.tolist() == list(found.geometry.scale)


def test_frames_without_grey_are_kept_as_bits(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(HEIGHT, WIDTH))
    cut_clips(found, tmp_path / "a.npz", 10, 10, None)
    assert load_clips(tmp_path / "a.npz").frames.dtype == torch.uint8


def test_a_failed_writer_leaves_nothing_behind(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(30, 45))
    with (
        pytest.raises(RuntimeError, match="stop"),
        clip_writer(tmp_path / "a.npz", found.geometry, found.preparation),
    ):
        raise RuntimeError("stop")
    assert not list(tmp_path.iterdir())


def test_empty_clips_are_left_out_and_full_ones_counted(tmp_path):
    centres = [*crossing(20), *([np.zeros((0, 2))] * 20)]
    found = plan(video_of_disks(centres), Preparation(30, 45))
    summary = cut_clips(found, tmp_path / "a.npz", 10, 10, None)
    assert summary.counts == [2, 2]
    assert summary.num_empty == 2
    with pytest.raises(InputError, match="no clip of 50 frames"):
        cut_clips(found, tmp_path / "b.npz", 50, 50, None)
    assert not (tmp_path / "b.npz").exists()
