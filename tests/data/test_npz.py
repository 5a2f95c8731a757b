"""Clips on disk: what comes back, and what is refused, whatever the bytes."""

import contextlib
import io
import os
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.core.files import all_or_none, atomic_path
from motes.data import Clips, cannonballs, load_clips, save_clips


def test_clips_come_back_from_disk_as_they_were(tmp_path):
    clips = cannonballs(5, num_frames=4, size=(16, 18))
    save_clips(tmp_path / "clips.npz", clips)
    back = load_clips(tmp_path / "clips.npz")
    assert torch.equal(back.frames, clips.frames)
    assert torch.equal(back.num_objects, clips.num_objects)
    assert torch.equal(back.positions.nan_to_num(-1), clips.positions.nan_to_num(-1))
    assert torch.equal(back.clean.nan_to_num(-1), clips.clean.nan_to_num(-1))


def test_grey_clips_without_truth_come_back_too(tmp_path, generator):
    clips = Clips(torch.rand(2, 3, 4, 5, generator=generator))
    save_clips(tmp_path / "grey", clips)
    back = load_clips(tmp_path / "grey")
    assert torch.equal(back.frames, clips.frames)
    assert back.num_objects is back.positions is back.clean is None


def test_a_frame_of_48_by_48_takes_at_most_288_bytes_on_disk(tmp_path):
    clips = cannonballs(20)
    save_clips(tmp_path / "clips.npz", Clips(clips.video, clips.num_objects))
    assert os.path.getsize(tmp_path / "clips.npz") < 20 * 30 * 288 + 2000  # headers


def test_arrays_of_users_are_read_as_npz_and_as_npy(tmp_path):
    frames = np.random.default_rng(0).random((3, 4, 5))
    np.save(tmp_path / "one.npy", np.asfortranarray(frames))
    # Members that we do not know are not looked at, even where they hold objects.
    other = np.array([{}], dtype=object)
    np.savez(tmp_path / "one.npz", frames=frames, num_objects=np.array([2], np.uint8), other=other)
    for name in ("one.npy", "one.npz"):
        assert torch.equal(
            load_clips(tmp_path / name).frames, torch.from_numpy(frames.astype(np.float32))[None]
        )
    assert load_clips(tmp_path / "one.npz").num_objects.tolist() == [2]


FRAMES = np.zeros((2, 3, 4, 5), dtype=np.uint8)
TRUTH = np.zeros((2, 1, 3, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"pictures": FRAMES}, "frames"),
        ({"frames": np.array([{}], dtype=object)}, "objects"),
        ({"frames": FRAMES.astype(str)}, "<U3"),
        ({"frames": FRAMES, "num_objects": np.array([1, 2, 3])}, "num_objects"),
        ({"frames": FRAMES, "num_objects": np.array([1, -1])}, "num_objects"),
        ({"frames": FRAMES, "num_objects": np.array([1.0, 2.0])}, "num_objects"),
        ({"frames": FRAMES, "positions": TRUTH[:, :, :2]}, "positions"),
        ({"frames": FRAMES, "positions": TRUTH, "clean": TRUTH[:, :0]}, "two shapes"),
        ({"bits": FRAMES[0], "size": np.array([1, 1, 1])}, "bits"),
        ({"bits": FRAMES[0], "size": np.array([9, 9])}, "9x9"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path, arrays, named):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=named) as caught:
        load_clips(path)
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(InputError, match="npz or npy"):
            load_clips(path)


def small_file():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, frames=FRAMES, num_objects=np.array([1, 2]))
    return buffer.getvalue()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_an_input_error_or_clips_and_nothing_else(tmp_path, data):
    content = bytearray(small_file())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert len(load_clips(path)) == 2


def header(shape):
    buffer = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "shape", [(2**20, 2**20, 64, 64), (1, 3, 4, 5), (-1, 3, 4, 5), (-1, -3, 4, 5)]
)
def test_headers_that_promise_more_than_the_file_holds_are_refused_before_allocation(
    tmp_path, shape
):
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("frames.npy", header(shape) + b"\0" * 10)
    (tmp_path / "short.npy").write_bytes(header(shape) + b"\0" * 10)
    for name in ("short.npz", "short.npy"):
        with pytest.raises(InputError, match="cut short"):
            load_clips(tmp_path / name)


def test_arrays_beyond_the_limit_are_refused_before_they_are_read(tmp_path, monkeypatch):
    start = header((5, 2**10, 2**10, 2**10))
    with open(tmp_path / "huge.npy", "wb") as file:
        file.write(start)
        file.truncate(len(start) + 5 * 2**30)  # a hole, which takes no space on the disk
    with pytest.raises(InputError, match=r"5\.0 GiB"):
        load_clips(tmp_path / "huge.npy")
    # The limit holds for all arrays of a file together.
    monkeypatch.setattr("motes.data.npz.MAX_BYTES", 300)
    np.savez(tmp_path / "sum.npz", frames=FRAMES, num_objects=np.array([1, 2]))
    with pytest.raises(InputError, match="split the file"):
        load_clips(tmp_path / "sum.npz")


def test_pickles_are_never_opened(tmp_path):
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match=r"pickle\.npy"):
        load_clips(tmp_path / "pickle.npy")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "clips.npz"
    clips = Clips(torch.rand(1, 2, 3, 4))
    save_clips(path, clips)
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save_clips(path, clips)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["clips.npz"]


def test_of_several_files_all_appear_or_none(tmp_path):
    old = tmp_path / "old.txt"
    old.write_text("before")
    for failing in (True, False):
        with contextlib.suppress(InputError), all_or_none():
            for name in ("old.txt", "new.txt"):
                with atomic_path(tmp_path / name) as temporary:
                    temporary.write_text("after")
            assert old.read_text() == "before"
            if failing:
                with atomic_path(tmp_path / "no" / "third.txt"):
                    pass
        if failing:
            assert os.listdir(tmp_path) == ["old.txt"]
            assert old.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["new.txt", "old.txt"]
    assert old.read_text() == "after"
    with atomic_path(tmp_path / "later.txt") as temporary:
        temporary.write_text("alone again")
    assert (tmp_path / "later.txt").exists()


def test_places_that_cannot_hold_a_file_are_refused(tmp_path):
    clips = Clips(torch.rand(1, 2, 3, 4))
    with pytest.raises(InputError, match="create"):
        save_clips(tmp_path / "no" / "clips.npz", clips)
    with pytest.raises(InputError, match="a folder"):
        save_clips(tmp_path, clips)
