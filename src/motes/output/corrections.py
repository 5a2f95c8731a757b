"""Files of corrections: JSON or CSV, in the pixels and frame numbers of the recording.

JSON: a list of objects like {"kind": "pin", "object": 1, "frame": 40, "x": 310, "y": 122}. CSV: the
same names as columns. The order counts, and the last one is undone by deleting it. In corrections
of several recordings, `recording` names one of them.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import Float
from motes.core.errors import InputError, require
from motes.core.files import atomic_path
from motes.queries.corrections import Correction, Forbid, Pin, Swap, as_corrections, as_mapping
from motes.video import VideoMap

MAX_BYTES = 2**24


def read_corrections(path: Path) -> list[Correction]:
    """Return the corrections of a file, as they stand there.

    Raises:
        InputError: The file cannot be read or holds something else.
    """
    given = _read(path)
    try:
        return as_corrections(given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_corrections_of(path: Path, recordings: Sequence[str]) -> dict[str, list[Correction]]:
    """Return the corrections of each recording that has some, from a file about several.

    Raises:
        InputError: The file cannot be read, holds something else or names no such recording.
    """
    entries: dict[str, list[Any]] = {}
    given = _read(path)
    require(isinstance(given, list), f"{path}: expected a list of corrections")
    for number, entry in enumerate(given):
        name = entry.get("recording") if isinstance(entry, Mapping) else None
        require(
            name in recordings,
            f"{path}: correction {number} is about recording {name!r:.80}; expected a name of the "
            f"table, like {recordings[0]!r:.80}",
        )
        own = {key: value for key, value in entry.items() if key != "recording"}
        entries.setdefault(str(name), []).append(own)
    try:
        return {name: as_corrections(some) for name, some in entries.items()}
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: Path) -> Any:
    """Return what a file of corrections holds."""
    require(path.is_file(), f"corrections is {path}; expected a JSON or CSV file")
    require(path.stat().st_size <= MAX_BYTES, f"{path} is too long; give at most 16 MiB")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".csv":
            return list(csv.DictReader(text.splitlines()))
        return json.loads(text)
    except (UnicodeDecodeError, ValueError, csv.Error, RecursionError) as error:
        raise InputError(f"{path} is not JSON or CSV ({str(error)[:80]})") from None


def write_corrections(path: Path, corrections: list[Correction]) -> None:
    """Write corrections as JSON, one a line."""
    lines = [json.dumps(as_mapping(entry)) for entry in corrections]
    with atomic_path(path) as temporary:
        temporary.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def in_clip(corrections: list[Correction], where: VideoMap | None) -> list[Correction]:
    """Return corrections of a recording in the pixels and frames of its clips.

    Law: the inverse of what the table shows (test_corrections_of_a_video_are_those_of_its_table).
    """
    if where is None:
        return corrections
    return [_in_clip(entry, number, where) for number, entry in enumerate(corrections)]


def _in_clip(entry: Correction, number: int, where: VideoMap) -> Correction:
    require(
        0 <= entry.clip < len(where.numbers),
        f"correction {number} is in clip {entry.clip}; the clips are 0 to {len(where.numbers) - 1}",
    )
    frame = _index(entry.frame, number, where, entry.clip)
    scale = float(np.sqrt(np.prod(_own(where.scale, entry.clip))))
    if isinstance(entry, Swap):
        return replace(entry, frame=frame)
    if isinstance(entry, Pin):
        x, y = _point(entry.x, entry.y, where, entry.clip, frame)
        return replace(entry, frame=frame, x=x, y=y, sd=entry.sd / scale)
    end = None if entry.end is None else _index(entry.end - 1, number, where, entry.clip) + 1
    if entry.x is None or entry.y is None:
        return replace(entry, frame=frame, end=end)
    x, y = _point(entry.x, entry.y, where, entry.clip, frame)
    return Forbid(frame, end, entry.object, x, y, entry.radius / scale, entry.clip)


def _index(frame: int, number: int, where: VideoMap, clip: int) -> int:
    """Return the index in a clip of the frame that is nearest to a frame of the recording."""
    longer = where.extended(where.numbers.shape[1] + max(frame, 0)) if frame >= 0 else where
    distance = np.abs(longer.numbers[clip] - frame)
    step = float(np.median(np.diff(where.numbers[clip])))
    require(
        frame >= 0 and distance.min() <= max(step / 2, 0.5),
        f"correction {number} is in frame {frame}; clip {clip} begins with frame "
        f"{where.numbers[clip, 0]} of the video",
    )
    return int(distance.argmin())


def _point(x: float, y: float, where: VideoMap, clip: int, frame: int) -> tuple[float, float]:
    """Return a point of the recording in pixels of the clip."""
    point = np.array([x, y])
    if where.shifts is not None:
        point = point - where.shifts[clip, min(frame, where.shifts.shape[1] - 1)]
    at = (point - _own(where.offset, clip)) / _own(where.scale, clip)
    return float(at[0]), float(at[1])


def _own(values: Float[np.ndarray, "*B 2"], clip: int) -> Float[np.ndarray, " 2"]:
    """Return the values of a clip, which may be those of all clips."""
    return values if values.ndim == 1 else values[clip]
