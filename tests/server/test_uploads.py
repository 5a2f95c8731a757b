"""Uploaded files become clips or one line, whatever they contain."""

import io
import os
import time
import zipfile
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.data import write_gif
from motes.models.model import build
from motes.server import schemas, uploads
from motes.server.playground import Playground
from motes.server.uploads import MAX_CLIPS, read_upload, run_limited
from motes.training.presets import PRESETS
from motes.video.source import write_mp4

SIZE = (12, 10)
CONFIG = PRESETS["sprites-smoke"]
CONFIG = replace(CONFIG, data=replace(CONFIG.data, height=SIZE[0], width=SIZE[1]))
PLAYGROUND = Playground(build(CONFIG), CONFIG, "small")


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def frames(*leading: int) -> np.ndarray:
    return (np.random.default_rng(0).random((*leading, *SIZE)) < 0.1).astype(np.uint8)


def levels(clip: schemas.Clip) -> np.ndarray:
    sent = clip.model_dump(include={"num_frames", "height", "width", "frames"})
    return schemas.decode_frames(schemas.Video(**sent)).numpy()


def test_an_npz_file_comes_back_as_clips_with_what_is_known(tmp_path: Path) -> None:
    clips = motes.cannonballs(3, (2,), 9, SIZE, seed=3)
    motes.save_clips(tmp_path / "mine.npz", clips)
    found = read_upload((tmp_path / "mine.npz").read_bytes(), "mine.npz", PLAYGROUND)
    assert [clip.title for clip in found.clips] == ["mine 1", "mine 2", "mine 3"]
    for clip, expected, path in zip(found.clips, clips.frames, clips.clean, strict=True):
        assert clip.num_objects == 2
        np.testing.assert_array_equal(levels(clip), expected.numpy())
        np.testing.assert_allclose(clip.truth, path.numpy(), atol=0.6e-3)
    assert found.note is None


def test_npy_and_gif_files_come_back_as_clips_of_unknown_count(tmp_path: Path) -> None:
    video = frames(8)
    write_gif(tmp_path / "a.gif", torch.from_numpy(video).float())
    for name, content in (("a.npy", npy(video)), ("a.GIF", (tmp_path / "a.gif").read_bytes())):
        (clip,) = read_upload(content, name, PLAYGROUND).clips
        assert (clip.title, clip.num_objects, clip.truth) == ("a", None, None)
        np.testing.assert_array_equal(levels(clip), video)


def test_colours_become_grey_and_hidden_frames_stay_hidden() -> None:
    colour = np.random.default_rng(1).random((1, 5, *SIZE, 3)).astype(np.float32)
    seen = np.array([[True, False, True, True, False]])
    colour[~seen] = 0
    (clip,) = read_upload(npz(frames=colour, observed=seen), "c.npz", PLAYGROUND).clips
    assert clip.observed == seen[0].tolist()
    np.testing.assert_allclose(levels(clip), colour[0].mean(-1), atol=0.5 / 255 + 1e-6)


def test_the_beginning_of_a_video_is_prepared_for_the_model(tmp_path: Path) -> None:
    pictures = np.full((schemas.MAX_FRAMES + 20, 96, 80, 3), 90, np.uint8)
    for t, picture in enumerate(pictures):
        picture[40:56, t // 3 : t // 3 + 16] = 250  # a bright square walks over grey
    write_mp4(tmp_path / "walk.mp4", iter(pictures), 30.0)
    found = read_upload((tmp_path / "walk.mp4").read_bytes(), "walk.mp4", PLAYGROUND)
    (clip,) = found.clips
    assert (clip.title, found.note) == ("walk", "the first 150 of 170 frames")
    assert levels(clip).shape == (schemas.MAX_FRAMES, *SIZE)
    # The square has the mass of a disk of radius 9. A frame's pixel is 8 of the video, and objects
    # shall have a radius of 1.6 of them: 4 more on each side make it 24, 3 pixels of the frame.
    # At frame 120 it has walked 40 of 80 pixels.
    there = levels(clip)[120]
    assert there[5:7, 5:7].mean() > 0.5
    assert there.sum() == pytest.approx(9, abs=2)


def test_what_is_left_out_of_a_large_file_is_reported() -> None:
    found = read_upload(
        npz(frames=frames(MAX_CLIPS + 3, schemas.MAX_FRAMES + 1)), "l.npz", PLAYGROUND
    )
    assert len(found.clips) == MAX_CLIPS
    assert {clip.num_frames for clip in found.clips} == {schemas.MAX_FRAMES}
    assert found.note == "the first 12 of 15 clips and the first 150 of 151 frames"


def bomb() -> bytes:
    """A small archive that says, truly, that it unfolds to more than a process may have."""
    header, num_frames = io.BytesIO(), 5 * uploads.MEMORY // 4 // prod(SIZE)
    shape = {"descr": "|u1", "fortran_order": False, "shape": (1, num_frames, *SIZE)}
    np.lib.format.write_array_header_1_0(header, shape)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("frames.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            left, zeros = num_frames * prod(SIZE), bytes(2**24)
            while left:
                left -= member.write(zeros[:left])
    return file.getvalue()


HOSTILE: dict[str, tuple[str, Any, str]] = {
    "text": ("notes.txt", b"hello", "no supported format"),
    "no suffix": ("clip", b"hello", "no supported format"),
    "text named npz": ("a.npz", b"hello", "damaged or of another"),
    "nothing": ("a.npz", b"", "damaged or of another"),
    "text named gif": ("a.gif", b"GIF89a", "a.gif"),
    "cut npz": ("a.npz", lambda: npz(frames=frames(9))[:300], "damaged"),
    "other size": ("a.npy", lambda: npy(np.zeros((4, 20, 20), np.uint8)), "20x20"),
    "one frame": ("a.npy", lambda: npy(frames(1)), "1 frame"),
    "objects": ("a.npy", lambda: npy(np.array([{"a": 1}], dtype=object)), "Python objects"),
    "too large values": ("a.npy", lambda: npy(9.0 * frames(4)), "[0, 1]"),
    "NaN": ("a.npy", lambda: npy(np.full((4, *SIZE), np.nan)), "[0, 1]"),
    "no frames": ("a.npz", lambda: npz(other=np.zeros(3)), "no array `frames`"),
    "path in the name": ("../../etc/passwd.npz", b"hello", "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_line(name: str) -> None:
    file_name, content, words = HOSTILE[name]
    with pytest.raises(InputError) as raised:
        read_upload(content() if callable(content) else content, file_name, PLAYGROUND)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "/tmp" not in str(raised.value)  # paths of the server are not disclosed


def test_a_bomb_ends_its_process_and_not_the_server() -> None:
    content = bomb()
    assert len(content) < uploads.MAX_BYTES  # otherwise its size would be refused
    with pytest.raises(InputError, match="memory"):
        read_upload(content, "bomb.npz", PLAYGROUND)


def hang() -> schemas.Clips:
    time.sleep(60)
    raise AssertionError


def grow() -> schemas.Clips:
    grown = [bytearray(2**28) for _ in range(16)]
    raise AssertionError(len(grown))


def die() -> schemas.Clips:
    os.abort()


def raise_other() -> schemas.Clips:
    raise RuntimeError("a mistake of ours")


@pytest.mark.parametrize(
    ("job", "words"),
    [(hang, "more than 1 s"), (grow, "memory"), (die, "failed"), (raise_other, "failed")],
)
def test_a_reader_that_hangs_grows_or_dies_is_one_line(
    job: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_upload(npy(frames(4)), "a.npy", PLAYGROUND)  # the first fork waits for imports
    monkeypatch.setattr(uploads, "SECONDS", 1.0 if job is hang else 30.0)
    with pytest.raises(InputError, match=words):
        run_limited(job)
