"""Videos in containers: read as they were written, refused in one line where broken."""

import contextlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.video import open_video
from motes.video.source import write_mp4

av = pytest.importorskip("av", reason="PyAV is not there; pip install 'motes[video]'")

T, HEIGHT, WIDTH, FPS = 24, 48, 64, 12


def moving_square() -> np.ndarray:
    pictures = np.zeros((T, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for t in range(T):
        pictures[t, 8:24, t : t + 16] = (250, 120, 0)
    return pictures


def write(path, pictures, codec):
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=Fraction(FPS))
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())


@pytest.mark.parametrize(
    ("suffix", "codec"), [(".mp4", "libx264"), (".mov", "mpeg4"), (".avi", "mpeg4")]
)
def test_frames_times_and_sizes_come_back(tmp_path, suffix, codec):
    pictures = moving_square()
    write(tmp_path / f"clip{suffix}", pictures, codec)
    video = open_video(tmp_path / f"clip{suffix}")
    assert (video.height, video.width, video.fps) == (HEIGHT, WIDTH, FPS)
    frames = list(video.frames())
    # Containers count time in their own ticks, the coarsest here a millisecond.
    assert [frame.time for frame in frames] == pytest.approx(np.arange(T) / FPS, abs=1e-3)
    white = np.stack([frame.picture[..., 0] > 128 for frame in frames])
    # The codecs are lossy: only pixels at the border of the square may fall on its other side.
    assert (white != (pictures[..., 0] > 128)).mean() < 0.01


def test_what_is_written_can_be_read_and_odd_sides_are_cut(tmp_path):
    pictures = moving_square()[:, :-1, :-1]
    write_mp4(tmp_path / "out.mp4", iter(pictures), fps=25.0)
    video = open_video(tmp_path / "out.mp4")
    assert (video.num_frames, video.fps) == (T, 25.0)
    assert (video.height, video.width) == (HEIGHT - 2, WIDTH - 2)


def test_a_text_named_mp4_an_empty_file_and_a_cut_file_are_told_in_one_line(tmp_path):
    write(tmp_path / "whole.avi", moving_square(), "mpeg4")
    whole = (tmp_path / "whole.avi").read_bytes()
    for name, content in (
        ("text.mp4", b"not a video\n" * 50),
        ("playlist.mp4", b"#EXTM3U\n#EXTINF:1,\nwhole.avi\n"),
        ("empty.mov", b""),
        ("cut.avi", whole[: len(whole) // 2]),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=name) as caught:
            list(open_video(path).frames())
        assert "\n" not in str(caught.value)


def test_a_very_wide_video_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    write(tmp_path / "clip.mp4", moving_square(), "mpeg4")
    monkeypatch.setattr("motes.video.source.MAX_SIDE", WIDTH - 1)
    with pytest.raises(InputError, match=f"{WIDTH}x{HEIGHT}"):
        open_video(tmp_path / "clip.mp4")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), kept=st.floats(0, 1))
def test_damaged_videos_give_an_input_error_or_frames_and_nothing_else(
    tmp_path, place, value, kept
):
    path = tmp_path / "clip.mp4"
    if not path.exists():
        write(path, moving_square(), "mpeg4")
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(content[: max(1, round(kept * len(content)))])
    with contextlib.suppress(InputError):
        for frame in open_video(damaged).frames():
            assert frame.picture.ndim == 3


def test_times_count_from_the_first_frame(tmp_path):
    with av.open(str(tmp_path / "late.mkv"), "w") as out:
        stream = out.add_stream("mpeg4", rate=Fraction(FPS))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for number, picture in enumerate(moving_square()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = FPS + number, Fraction(1, FPS)  # begins after a second
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    times = [frame.time for frame in open_video(tmp_path / "late.mkv").frames()]
    assert times == pytest.approx(np.arange(T) / FPS, abs=1e-3)
