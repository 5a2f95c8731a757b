"""Preparing a video: settings, frame rate and growth."""

from dataclasses import replace

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.video import Preparation, plan
from motes.video.prepare import preparation_from_json, preparation_to_json
from videos import FPS, crossing, video_of_disks


def test_a_video_without_motion_is_rejected():
    still = video_of_disks(np.zeros((12, 0, 2)))
    with pytest.raises(InputError, match="nothing moves"):
        plan(still, Preparation(30, 45))


def test_resampling_takes_the_nearest_frame():
    video = video_of_disks(crossing(20))
    whole = plan(video, Preparation(30, 45))
    assert [p.number for p in whole.frames()] == list(range(20))
    own = plan(video, Preparation(30, 45, fps=FPS))
    assert [p.number for p in own.frames()] == list(range(20))
    slow = plan(video, Preparation(30, 45, fps=4.0))
    # Beats at 0, .25, .5 ... s, pictures at 0, .1, .2 ...; of two equally near the later.
    assert [p.number for p in slow.frames()] == [0, 3, 5, 8, 10, 13, 15, 18]
    late = plan(video, Preparation(30, 45), span=(0.5, 0.8))
    assert [p.number for p in late.frames()] == [5, 6, 7, 8]
    with pytest.raises(InputError, match="10 frames a second"):
        plan(video, Preparation(30, 45, fps=30.0))


def test_a_source_that_can_be_read_once_is_not_prepared():
    live = replace(video_of_disks(crossing(20)), rereadable=False)
    with pytest.raises(InputError, match=r"disks can be read only once.*record it to a file"):
        plan(live, Preparation(30, 45))


def test_a_video_without_a_clock_is_given_one():
    video = video_of_disks(crossing(20), fps=None)
    found = plan(video, Preparation(30, 45, source_fps=50.0))
    assert [p.time for p in found.frames()] == pytest.approx(np.arange(20) / 50)


def test_preparations_travel_as_json_and_invalid_ones_are_rejected():
    asked = Preparation(48, 64, crop=(1, 2, 30, 40), threshold=0.2, colour="grey")
    assert preparation_from_json(preparation_to_json(asked), "x") == asked
    good = preparation_to_json(asked)
    for bad in ("", "[]", "{}", good.replace("48", '"a"'), good.replace("median", "pink")):
        with pytest.raises(InputError):
            preparation_from_json(bad, "run")
    for wrong in ({"height": 3}, {"threshold": 1.5}, {"fps": -1.0}, {"source_fps": 0.0}):
        with pytest.raises(InputError):
            replace(asked, **wrong)


def test_small_objects_are_grown_until_a_frame_shows_them():
    video = video_of_disks(crossing().round(), radius=2)
    assert plan(video, Preparation(60, 90)).preparation.grow == 0
    small = plan(video, Preparation(12, 18))
    # 1.6 frame pixels are 8 of the video; a disk of 13 pixels has a radius of 2.03.
    assert small.preparation.grow == 6
    assert all(2 * 6 < p.frame.sum() / 255 for p in small.frames())
    assert plan(video, Preparation(12, 18, grow=1)).preparation.grow == 1
