"""Videos from GIFs, TIFFs and folders of pictures, written and read back."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from motes.core.errors import InputError
from motes.data import Clips, save_clips, worlds, write_gif
from motes.video import open_video, read_frames
from motes.video.source import frames_from, grey, write_mp4


@pytest.fixture
def levels():
    return np.random.default_rng(0).integers(0, 256, (12, 5, 7), dtype=np.uint8)


def write_pictures(folder, levels, name="frame{}.png"):
    for t, level in enumerate(levels):
        Image.fromarray(level).save(folder / name.format(t))


def test_a_gif_returns_every_frame_even_repeated_ones(tmp_path, generator):
    moving = torch.rand(4, 6, 9, generator=generator)
    frames = torch.cat((moving[:1], moving, moving[-1:]))
    for clip in (frames, moving[:1].expand(3, -1, -1), (moving > 0.5).float()):
        write_gif(tmp_path / "clip.gif", clip)
        back = read_frames(tmp_path / "clip.gif")
        assert back.shape == (1, *clip.shape)
        # Half of one of 255 grey levels, and float32 rounding.
        assert (back[0] - clip).abs().max() <= 0.5 / 255 + 1e-6


def test_a_gif_plays_at_the_rate_that_was_asked_for(tmp_path):
    write_gif(tmp_path / "clip.gif", torch.eye(3).expand(2, 3, 3), fps=20.0)
    with Image.open(tmp_path / "clip.gif") as gif:
        assert gif.info["duration"] == 50
        assert gif.info["loop"] == 0


def test_a_picture_held_longer_in_a_gif_counts_as_several_frames(tmp_path, levels):
    pictures = [Image.fromarray(level) for level in levels[[0, 1, 1, 1, 2]]]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=40)
    expected = torch.from_numpy(levels[[0, 1, 1, 1, 2]] / np.float32(255))[None]
    assert torch.equal(read_frames(tmp_path / "a.gif"), expected)
    # Delays without a common beat, or none at all, say nothing about frames.
    for delays in ([40, 70, 40], [0, 0, 0]):
        few = [Image.fromarray(level) for level in levels[:3]]
        few[0].save(tmp_path / "b.gif", save_all=True, append_images=few[1:], duration=delays)
        assert read_frames(tmp_path / "b.gif").shape == (1, 3, 5, 7)


def test_colours_become_luma(tmp_path):
    colours = np.zeros((1, 4, 3), dtype=np.uint8)
    colours[0] = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    Image.fromarray(colours).save(tmp_path / "colours.png")
    # ITU-R 601 luma, rounded to one of 255 levels.
    expected = torch.tensor([[[[0.299, 0.587, 0.114, 1.0]]]])
    assert (read_frames(tmp_path) - expected).abs().max() < 1 / 255


def test_a_folder_of_pictures_is_one_clip_in_the_order_of_its_numbers(tmp_path, levels):
    write_pictures(tmp_path, levels)  # frame2.png before frame10.png
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / "._frame0.png").write_bytes(b"not a picture either")
    expected = torch.from_numpy(levels / np.float32(255))[None]
    assert torch.equal(read_frames(tmp_path), expected)


def test_sixteen_bit_pictures_keep_their_grey(tmp_path):
    deep = np.array([[0, 1000, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert torch.equal(read_frames(tmp_path)[0, 0], torch.from_numpy(deep / np.float32(65535)))


def test_jpegs_are_read_to_their_own_precision(tmp_path):
    flat = np.full((2, 8, 8), 100, dtype=np.uint8)
    write_pictures(tmp_path, flat, "{}.JPG")
    assert (read_frames(tmp_path) - 100 / 255).abs().max() <= 2 / 255


def test_arrays_are_read_through_the_same_door(tmp_path, generator):
    clips = Clips(torch.rand(2, 3, 4, 5, generator=generator))
    save_clips(tmp_path / "clips.npz", clips)
    assert torch.equal(read_frames(str(tmp_path / "clips.npz")), clips.frames)


def test_an_array_in_colour_is_a_video_in_colour(tmp_path):
    clips = worlds.make("colour", 1, 1, num_frames=3, size=12)
    save_clips(tmp_path / "colour.npz", clips)
    video = open_video(tmp_path / "colour.npz")
    assert (video.num_frames, video.height, video.width) == (3, 12, 12)
    pictures = np.stack([frame.picture for frame in video.frames()])
    assert pictures.shape == (3, 12, 12, 3)
    np.testing.assert_allclose(pictures / 65535, clips.frames[0], atol=1 / 65535)
    assert torch.equal(read_frames(tmp_path / "colour.npz"), clips.frames)


def test_paths_that_lead_to_no_video_say_what_is_supported(tmp_path):
    (tmp_path / "video.txt").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, named in (
        ("none.gif", r"\.gif, .*\.npz"),
        ("video.txt", r"\.gif, .*\.npz"),
        ("empty", "PNG or JPEG"),
    ):
        with pytest.raises(InputError, match=named) as caught:
            read_frames(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_pictures_of_different_sizes_are_refused(tmp_path, levels):
    write_pictures(tmp_path, [levels[0], levels[1, :4]])
    with pytest.raises(InputError, match=r"frame1\.png"):
        read_frames(tmp_path)


def test_pictures_beyond_the_limits_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    Image.new("1", (40_000, 2)).save(tmp_path / "wide.png")
    with pytest.raises(InputError, match="40000x2"):
        read_frames(tmp_path)
    Image.new("1", (20000, 20000)).save(tmp_path / "wide.png")
    with pytest.raises(InputError, match="too large"):
        read_frames(tmp_path)
    write_gif(tmp_path / "long.gif", torch.zeros(3, 4, 5))
    monkeypatch.setattr("motes.video.source.MAX_PIXELS", 59)
    with pytest.raises(InputError, match="more than 59 pixels"):
        read_frames(tmp_path / "long.gif")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(["gif", "png"]))
def test_damaged_pictures_give_an_input_error_or_frames_and_nothing_else(tmp_path, data, kind):
    folder = tmp_path / kind
    folder.mkdir(exist_ok=True)
    path = folder / f"a.{kind}"
    square = torch.zeros(2, 4, 5)
    square[:, 1:3, 1:3] = 1.0
    write_gif(path, square) if kind == "gif" else Image.new("L", (5, 4), 9).save(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(InputError):
        assert read_frames(path if kind == "gif" else folder).ndim == 4


@pytest.mark.parametrize(
    ("frames", "fps", "named"),
    [
        (torch.zeros(0, 3, 3), 10.0, r"\(0, 3, 3\)"),
        (torch.full((1, 3, 3), float("nan")), 10.0, "rescale"),
        (torch.full((1, 3, 3), 2.0), 10.0, "rescale"),
        (torch.zeros(1, 3, 3), 0.0, "fps=0"),
        (torch.zeros(1, 3, 3), 100.0, "fps=100"),
    ],
)
def test_what_a_gif_cannot_hold_is_refused_and_nothing_is_written(tmp_path, frames, fps, named):
    with pytest.raises(InputError, match=named):
        write_gif(tmp_path / "clip.gif", frames, fps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_the_pages_of_a_tiff_are_the_frames_of_a_video(tmp_path, kind):
    levels = np.random.default_rng(0).integers(0, np.iinfo(kind).max, (5, 6, 7)).astype(kind)
    pages = [Image.fromarray(level) for level in levels]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    video = open_video(tmp_path / "stack.tif")
    assert (video.num_frames, video.height, video.width) == (5, 6, 7)
    assert np.array_equal([frame.picture[..., 0] for frame in video.frames()], levels)


def test_a_gif_keeps_its_clock(tmp_path):
    write_gif(tmp_path / "clip.gif", torch.eye(3).expand(4, 3, 3), fps=20.0)
    video = open_video(tmp_path / "clip.gif")
    assert video.fps == 20.0
    assert [frame.time for frame in video.frames()] == pytest.approx([0.0, 0.05, 0.1, 0.15])


def test_a_video_may_be_read_again_and_again(tmp_path, levels):
    write_pictures(tmp_path, levels)
    video = open_video(tmp_path)
    first, again = ([frame.picture for frame in video.frames()] for _ in range(2))
    assert np.array_equal(first, again)


def test_floats_of_an_array_file_keep_sixteen_bits(tmp_path, generator):
    frames = torch.rand(3, 4, 5, generator=generator).numpy()
    np.save(tmp_path / "a.npy", frames)
    read = np.stack([grey(frame.picture) for frame in open_video(tmp_path / "a.npy").frames()])
    # Half of one of 65535 levels, and float32 rounding.
    assert np.abs(read - frames).max() <= 0.5 / 65535 + 1e-7


def test_several_clips_are_not_one_video(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4, 5), dtype=bool))
    with pytest.raises(InputError, match="2 clips"):
        open_video(tmp_path / "a.npy")


def test_grey_of_16_bits_is_that_of_8_bits():
    levels = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    # 257 x levels are the same fractions of the full scale; luma is rounded to a level of 8 bits.
    deep = grey(levels.astype(np.uint16) * np.uint16(257))
    np.testing.assert_allclose(deep, grey(levels), rtol=0, atol=0.51 / 255)


def test_a_pass_from_a_frame_on_equals_the_end_of_a_whole_pass(tmp_path, levels):
    write_pictures(tmp_path, levels)
    write_mp4(
        tmp_path / "clip.mp4",
        (np.full((16, 16, 3), 20 * (t % 12), np.uint8) for t in range(600)),
        25.0,
    )
    folder, container = open_video(tmp_path), open_video(tmp_path / "clip.mp4")
    for video, places in ((folder, (0, 5, 11)), (container, (0, 1, 249, 250, 251, 599))):
        whole = list(video.frames())
        for number in places:
            rest = list(frames_from(video, number, whole[number].time))
            assert [frame.time for frame in rest] == [frame.time for frame in whole[number:]]
            assert all(
                np.array_equal(one.picture, other.picture)
                for one, other in zip(rest, whole[number:], strict=True)
            )
    misled = replace(container, start_at=lambda number, time: folder.frames())
    assert len(list(frames_from(misled, 590, whole[590].time))) == 10


def test_sampled_frames_are_those_of_the_video_with_their_successors(tmp_path, levels):
    write_pictures(tmp_path, levels)
    write_mp4(
        tmp_path / "clip.mp4", (np.full((16, 16, 3), t % 250, np.uint8) for t in range(900)), 25.0
    )
    for video, count in ((open_video(tmp_path), 4), (open_video(tmp_path / "clip.mp4"), 3)):
        whole = {frame.time: number for number, frame in enumerate(video.frames())}
        pairs = [[whole[frame.time] for frame in pair] for pair in video.sample(30)]
        assert len(pairs) >= count
        assert all(two == one + 1 for one, two in pairs)
        assert sorted(pairs) == pairs


def test_the_luma_of_floats_is_that_of_levels():
    levels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    whole, floats = grey(levels), grey(levels.astype(np.float32) / 255)
    assert whole.shape == (2, 5, 7)
    np.testing.assert_allclose(whole, floats, rtol=0, atol=0.5001 / 255)
    by_hand = levels.astype(float) @ [0.299, 0.587, 0.114] / 255
    np.testing.assert_allclose(floats, by_hand, rtol=0, atol=2e-5)  # weights in 2^-16
    np.testing.assert_array_equal(grey(levels[..., :1]), levels[..., 0] / np.float32(255))
    np.testing.assert_array_equal(grey(levels[..., :1] > 99), levels[..., 0] > 99)
