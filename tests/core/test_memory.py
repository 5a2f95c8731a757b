"""What cannot fit is refused before it is tried."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from motes.core import memory
from motes.core.errors import InputError
from motes.core.memory import chunk_size, free_bytes, require_memory
from motes.data import cannonballs, load_clips


def test_free_memory_is_some_but_not_endless() -> None:
    assert 2**20 < free_bytes() < 2**50


def test_more_than_is_free_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**30)
    require_memory(2**30, "this")
    with pytest.raises(InputError, match=r"this would take 3\.0 GiB of memory, and 1\.0 GiB"):
        require_memory(3 * 2**30, "this")


def test_clips_that_do_not_fit_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(InputError, match="clips of 30 frames would take"):
        cannonballs(10**9)


def test_a_zip_bomb_is_refused_and_empty_frames_are_not(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    array = io.BytesIO()
    np.save(array, np.zeros((1, 2**15, 64, 64), np.uint8))  # 128 MiB, which fold 1000-fold
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("frames.npy", array.getvalue())
    assert path.stat().st_size < 2**18
    with pytest.raises(InputError, match="unfolds to 1000 times"):
        load_clips(path)
    np.savez_compressed(path, frames=np.zeros((1, 2**10, 64, 64), np.uint8))
    assert load_clips(path).video.shape == (1, 2**10, 64, 64)


def test_a_chunk_has_at_least_one_item() -> None:
    assert chunk_size(30, item_size=10) == 3
    assert chunk_size(3, item_size=10) == 1
