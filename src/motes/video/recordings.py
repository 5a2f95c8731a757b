"""Which recordings a command is about: files, patterns and folders of videos."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from motes.core.errors import InputError, require
from motes.video.source import ARRAYS, IMAGE_SUFFIXES, READERS, natural_order

VIDEO_SUFFIXES = tuple(suffix for suffix in READERS if suffix not in ARRAYS)
MAGIC = "*?["  # a name with one of these that is no file is a pattern


class Recording(NamedTuple):
    """One recording of several."""

    name: str  # unique among those given; the value of the column `recording`
    path: Path


def are_many(inputs: Sequence[Path]) -> bool:
    """Return whether inputs stand for several recordings: not for one file or folder of images."""
    if len(inputs) != 1:
        return True
    (path,) = inputs
    return _is_pattern(path) or (path.is_dir() and not _has_images(path))


def find_recordings(inputs: Sequence[Path]) -> list[Recording]:
    """Return the recordings that files, patterns and folders of videos stand for, without repeats.

    They are in the order of the inputs, those of a pattern or a folder in the order of their
    numbers. A folder that holds images is one recording.

    Law: names are unique and every file occurs once (test_files_patterns_and_folders_are_found).
    """
    found: dict[Path, Path] = {}
    for given in inputs:
        for path in _expand(given):
            found.setdefault(Path(os.path.realpath(path)), path)
    paths = list(found.values())
    require(paths, "got no recording; expected files, patterns or folders; name at least one")
    return [Recording(name, path) for name, path in zip(_names(paths), paths, strict=True)]


def _expand(given: Path) -> list[Path]:
    """Return the files of one input."""
    if _is_pattern(given):
        matches = [Path(match) for match in glob.glob(str(given), recursive=True)]
        usable = [path for path in matches if path.is_dir() or path.suffix.lower() in READERS]
        require(
            usable,
            f"got the pattern {given}, which matches no recording; expected at least one; check it",
        )
        return sorted(usable, key=_path_order)
    if given.is_dir() and not _has_images(given):
        videos = [path for path in given.iterdir() if path.suffix.lower() in VIDEO_SUFFIXES]
        videos = [path for path in videos if not path.name.startswith(".")]
        require(
            videos,
            f"got {given}; expected videos ({', '.join(VIDEO_SUFFIXES)}), or PNG or JPEG images, "
            "in it; choose another folder",
        )
        return sorted(videos, key=_path_order)
    if not given.exists():
        raise InputError(f"got {given}, which does not exist; expected a recording; check the path")
    return [given]


def _is_pattern(path: Path) -> bool:
    return any(letter in str(path) for letter in MAGIC) and not path.exists()


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir())


def _path_order(path: Path) -> list[tuple[int, str]]:
    return [pair for part in path.parts for pair in natural_order(part)]


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the file names without suffixes, with as much of the path as makes them differ."""
    plain = [path.resolve().name if path.is_dir() else path.stem for path in paths]
    if len(set(plain)) == len(plain):
        return plain
    absolute = [os.path.realpath(path) for path in paths]
    parent = os.path.commonpath([os.path.dirname(path) for path in absolute])
    return [Path(os.path.relpath(path, parent)).as_posix() for path in absolute]
