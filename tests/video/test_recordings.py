"""Which recordings inputs stand for."""

from pathlib import Path

import pytest

from motes import InputError
from motes.video.recordings import are_many, find_recordings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("day/run10.mp4", "day/run9.mp4", "day/.hidden.mp4", "day/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("night/run9.mp4", "images/0.png", "clips.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(folder: Path, *inputs: str) -> list[str]:
    return [found.name for found in find_recordings([folder / given for given in inputs])]


def test_files_patterns_and_folders_are_found(folder: Path) -> None:
    assert names(folder, "day") == ["run9", "run10"]  # in the order of numbers, nothing else
    assert names(folder, "d*/*.mp4") == ["run9", "run10"]
    assert names(folder, "images", "clips.npz") == ["images", "clips"]
    assert names(folder, "day/run10.mp4", "day") == ["run10", "run9"]  # once each
    # Equal names are told apart by their folders.
    assert names(folder, "day", "night") == ["day/run9.mp4", "day/run10.mp4", "night/run9.mp4"]
    everything = find_recordings([folder / "**" / "*.mp4", folder / "images"])
    assert len({found.name for found in everything}) == len(everything) == 4


def test_one_file_or_folder_of_images_is_one_recording(folder: Path) -> None:
    for given in ("day/run9.mp4", "images", "clips.npz", "missing.mp4"):
        assert not are_many([folder / given])
    for given in ("day", "day/*.mp4"):
        assert are_many([folder / given])
    assert are_many([folder / "images", folder / "clips.npz"])
    assert are_many([])


@pytest.mark.parametrize("given", ["none/*.mp4", "missing.mp4", "empty"])
def test_inputs_without_recordings_are_told(given: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match="expected"):
        find_recordings([folder / "day", folder / given])
    with pytest.raises(InputError, match="no recording"):
        find_recordings([])


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "take[1].mp4").touch()
    assert not are_many([tmp_path / "take[1].mp4"])
    assert names(tmp_path, "take[1].mp4") == ["take[1]"]
