"""Live sources: pacing by a clock, bounded backlogs, the ring buffer."""

import threading

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.video import Frame, Video, open_video
from motes.video.live import Ring, newest, open_live, open_source, paced
from tests.videos import crossing, video_of_disks


class Clock:
    """A clock that moves when somebody sleeps or works."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_a_paced_file_comes_at_its_own_speed():
    clock, video = Clock(), video_of_disks(crossing(8), fps=10.0)  # at 10 frames a second
    frames = paced(video, clock, clock.sleep)
    assert not frames.rereadable
    came = [(frame.time, round(clock.now - 100.0, 6)) for frame in frames.frames()]
    assert came == [(t / 10, t / 10) for t in range(8)]
    assert clock.slept == pytest.approx([0.1] * 7)


def test_a_slow_reader_misses_frames():
    clock, video = Clock(), video_of_disks(crossing(20), fps=10.0)
    seen = []
    for frame in paced(video, clock, clock.sleep).frames():
        seen.append(frame.time)
        clock.now += 0.35  # of work
        assert clock.now - 100.0 - frame.time < 0.35 + 0.1 + 1e-9  # never later than a frame
    assert seen == pytest.approx([0.0, 0.3, 0.6, 1.0, 1.3, 1.7])  # 0.35 s apart, to a frame


def test_frames_that_wait_are_bounded():
    done = threading.Event()

    def frames():
        for t in range(20):
            yield Frame(float(t), np.zeros((2, 2, 1), dtype=np.uint8))
        done.set()

    live = newest(Video("camera", 2, 2, None, 1.0, frames, rereadable=False), backlog=4).frames()
    first = next(live)  # starts the thread
    assert done.wait(30)
    came = [first.time, *(frame.time for frame in live)]
    assert came[-2:] == [18.0, 19.0]
    assert came == sorted(came)
    assert len(came) <= 1 + 4


def test_an_error_of_the_source_reaches_the_reader():
    def frames():
        yield Frame(0.0, np.zeros((2, 2, 1), dtype=np.uint8))
        raise OSError("the cable came off")

    live = newest(Video("camera", 2, 2, None, 1.0, frames, rereadable=False)).frames()
    next(live)
    with pytest.raises(InputError, match="camera ended: the cable came off"):
        next(live)


def test_a_ring_holds_the_newest_pictures(tmp_path):
    ring = Ring(tmp_path / "ring", capacity=3)
    for index in range(7):
        ring.add(index, np.full((4, 6, 1), 30 * index, dtype=np.uint8))
    names = sorted(path.name for path in (tmp_path / "ring").iterdir())
    assert names == ["000000004.jpg", "000000005.jpg", "000000006.jpg"]
    levels = [int(frame.picture.mean()) for frame in open_video(tmp_path / "ring").frames()]
    assert np.allclose(levels, [120, 150, 180], atol=2)
    with pytest.raises(InputError, match="is not empty; give a new folder"):
        Ring(tmp_path / "ring", capacity=3)


def test_a_camera_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("av")
    for address in ("97", str(tmp_path / "nothing.mp4")):
        with pytest.raises(InputError, match="expected a camera") as caught:
            open_live(address)
        assert "\n" not in str(caught.value)


def test_a_file_is_a_live_source(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), dtype=np.uint8))
    assert not open_source(str(tmp_path / "a.npy")).rereadable
