"""Tracks in the formats of other programs, chosen by a name or by the suffix of a file.

| format | suffix | opens in |
|---|---|---|
| csv | .csv | any program; trackpy's column names, particles counted within each clip |
| parquet | .parquet | pandas, pyarrow, DuckDB |
| trackpy | .trackpy.csv | trackpy: particles of different clips have different numbers |
| napari | .napari, .napari.csv | napari, as a tracks layer (`motes.output.napari_reader`) |
| trackmate | .xml | TrackMate in Fiji |
| mot | .txt | tools of the MOT Challenge |

Every format takes the columns and rows of `motes.output.tracks.table`, or a longer table of several
recordings with a column `recording`. A track is one particle of one clip of one recording.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from motes.core.axes import Int
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.models.model import Model
from motes.output.trackmate import write_trackmate
from motes.queries.answer import Answer
from motes.video import VideoMap

if TYPE_CHECKING:
    import pandas
    import supervision

Columns = dict[str, np.ndarray]
DIAMETER = 8.0  # pixels of an object of unknown size
SUFFIXES = {  # the longest that matches decides
    ".csv": "csv",
    ".parquet": "parquet",
    ".trackpy.csv": "trackpy",
    ".napari": "napari",
    ".napari.csv": "napari",
    ".xml": "trackmate",
    ".txt": "mot",
}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


def format_of(path: Path, name: str | None = None) -> str:
    """Return the format called `name`, or without a name that of the suffix; CSV if unknown.

    Raises:
        InputError: There is no format of that name.
    """
    if name is not None:
        if name not in FORMATS:
            raise InputError(f"format is {name!r:.40}; give {', '.join(FORMATS)}")
        return name
    ends = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
    return SUFFIXES[max(ends, key=len)] if ends else "csv"


def suffix_of(name: str) -> str:
    """Return the usual suffix of a format."""
    return next(suffix for suffix, known in SUFFIXES.items() if known == name)


def write_tracks(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[tuple[Any, ...]],
    format: str | None = None,
    diameter: float | None = None,
) -> None:
    """Write a table of tracks in the given format, or in that of the suffix.

    Args:
        path: File to write; it appears complete or not at all.
        columns: Names of the columns, those of `motes.queries.answer.COLUMNS` among them.
        rows: Rows of the table.
        format: One of `FORMATS`; None: by the suffix.
        diameter: Of an object in the units of x and y, for formats with boxes or radii.
    """
    name = format_of(path, format)
    with atomic_path(path) as temporary:
        if name == "csv":
            _write_csv(temporary, columns, rows)
            return
        table = as_columns(columns, rows)
        writers: dict[str, Callable[[], None]] = {
            "parquet": lambda: _write_parquet(temporary, table),
            "trackpy": lambda: _write_columns(temporary, trackpy_columns(table)),
            "napari": lambda: _write_columns(temporary, napari_columns(table)),
            "trackmate": lambda: write_trackmate(
                temporary, table, track_numbers(table), diameter or DIAMETER
            ),
            "mot": lambda: _write_mot(temporary, table, diameter or DIAMETER),
        }
        writers[name]()


@torch.no_grad()
def object_diameter(model: Model, where: VideoMap | None = None) -> float:
    """Return the diameter of the disk that has the area of one rendered object.

    The area is that of pixels that an object in the middle of the picture changes by more than
    half of the largest change.

    Args:
        model: Renders the object.
        where: Scales pixels to those of a video, or to its units in the middle of the picture.
    """
    height, width = model.image_size
    centre = model.pixel_offset.new_tensor([(width - 1) / 2, (height - 1) / 2])
    position = torch.linalg.solve(model.pixel_matrix, centre - model.pixel_offset)
    position = position.reshape(1, 1, 1, 2).to(model.pixel_matrix.dtype)
    change = model.renderer.coverage(position.reshape(1, 2))
    if change is None:
        shown, empty = (
            model.render(position, torch.tensor([[flag]], device=model.device))
            for flag in (True, False)
        )
        change = (shown - empty).abs().reshape(height, width, -1).sum(-1)
    area = int((change > change.max() / 2).sum())
    diameter = 2 * float(np.sqrt(area / np.pi))
    if where is None:
        return diameter
    if where.units is not None:
        middle = where.scene_points(centre.expand(len(where.times), 1, 1, 2).double())
        diameter *= float(where.units.jacobians(middle)[0].det().abs().sqrt())
    return diameter * float(np.sqrt(np.prod(where.scale.reshape(-1, 2)[0])))


def save_tracks(
    path: Path | str,
    answer: Answer,
    where: VideoMap | None = None,
    format: str | None = None,
    diameter: float | None = None,
) -> None:
    """Write the tracks of an answer; with a map, in pixels, frame numbers and seconds of its video.

    The other arguments are those of `write_tracks`.
    """
    from motes.output.tracks import table

    write_tracks(Path(path), *table(answer, where), format, diameter)


def as_columns(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Columns:
    """Return the columns of a table as arrays."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return {name: np.asarray(part) for name, part in zip(columns, values, strict=True)}


def track_numbers(table: Columns) -> Int[np.ndarray, " rows"]:
    """Return the number of each row's track: from 0, ordered by recording, clip and object.

    Law: particles of different clips have different numbers
    (test_tracks_of_different_clips_have_different_numbers).
    """
    keys = [table[name] for name in ("recording", "clip", "particle") if name in table]
    parts = [np.unique(key, return_inverse=True)[1] for key in keys]
    numbers: np.ndarray = np.unique(np.stack(parts), axis=1, return_inverse=True)[1].ravel()
    return numbers


def trackpy_columns(table: Columns) -> Columns:
    """Return the table with a different particle number for every track, sorted by track."""
    numbers = track_numbers(table)
    order = np.lexsort((table["frame"], numbers))
    return {name: values[order] for name, values in ({**table, "particle": numbers}).items()}


def napari_columns(table: Columns) -> Columns:
    """Return track, frame, y and x as napari's tracks layer orders them, then its features.

    Names are those of napari's own CSV files, whose reader shows the same file as points if this
    package is not installed beside napari.
    """
    sorted_table = trackpy_columns(table)
    axes = {"track_id": "particle", "axis-0": "frame", "axis-1": "y", "axis-2": "x"}
    features = [name for name in sorted_table if name not in axes.values()]
    data = {name: sorted_table[source] for name, source in axes.items()}
    return data | {name: _as_number(sorted_table[name]) for name in features}


def to_trackpy(answer: Answer, where: VideoMap | None = None) -> "pandas.DataFrame":
    """Return a DataFrame for trackpy, with a different particle number for every track.

    With a map, positions are in pixels of the video and frames are its frame numbers.
    """
    from motes.output.tracks import table

    return _data_frame(trackpy_columns(as_columns(*table(answer, where))))


def to_supervision(
    answer: Answer,
    where: VideoMap | None = None,
    clip: int = 0,
    diameter: float = DIAMETER,
) -> "list[supervision.Detections]":
    """Return the `supervision.Detections` of every frame of a clip.

    Boxes are squares around the positions; confidence is 1 where the object was detected and 0
    where its position is predicted; standard deviations and velocities are in `data`.
    """
    try:
        import supervision
    except ImportError:
        raise InputError("to_supervision needs supervision; pip install supervision") from None
    from motes.output.tracks import answer_in_video

    shown = answer if where is None else answer_in_video(answer, where)
    count = int(answer.num_objects[clip])
    centres = shown.pixels[clip, :count].cpu().numpy()
    sds = shown.pixel_covariances[clip, :count].diagonal(dim1=-2, dim2=-1).sqrt().cpu().numpy()
    velocities = shown.pixel_velocities[clip, :count].cpu().numpy()
    found = shown.found[clip, :count].cpu().numpy()
    half = diameter / 2
    return [
        supervision.Detections(
            xyxy=np.concatenate([centres[:, t] - half, centres[:, t] + half], 1),
            confidence=found[:, t].astype(np.float32),
            class_id=np.zeros(count, dtype=int),
            tracker_id=np.arange(count),
            data={"sd": sds[:, t], "velocity": velocities[:, t]},
        )
        for t in range(centres.shape[1])
    ]


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _write_columns(path: Path, table: Columns) -> None:
    rows = zip(*(values.tolist() for values in table.values()), strict=True)
    _write_csv(path, list(table), rows)


def _write_parquet(path: Path, table: Columns) -> None:
    try:
        _data_frame(table).to_parquet(path, engine="pyarrow")
    except ImportError:
        raise InputError("Parquet needs pandas and pyarrow; pip install 'motes[table]'") from None


def _data_frame(table: Columns) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError:
        raise InputError("this format needs pandas; pip install 'motes[table]'") from None
    return pandas.DataFrame(table)


def _write_mot(path: Path, table: Columns, diameter: float) -> None:
    """Write `frame,id,left,top,width,height,confidence,x,y,z`; frames and ids count from 1.

    MOT's pixels count from 1 too. Confidence is 1 in observed frames, else 0; x, y, z are those of
    a world that is not known: -1.
    """
    if len(set(table.get("recording", np.zeros(1)).tolist())) > 1:
        raise InputError("MOT text holds one recording; several were given: write one file each")
    numbers = track_numbers(table) + 1
    lines = []
    for row in np.lexsort((numbers, table["frame"])):
        left, top = (float(table[axis][row]) - diameter / 2 + 1 for axis in "xy")
        lines.append(
            f"{int(table['frame'][row]) + 1},{numbers[row]},{left:.3f},{top:.3f},"
            f"{diameter:.3f},{diameter:.3f},{int(table['observed'][row])},-1,-1,-1\n"
        )
    path.write_text("".join(lines), encoding="utf-8")


def _as_number(values: np.ndarray) -> np.ndarray:
    """Return flags as 0 and 1, which napari can colour by; other values unchanged."""
    return values.astype(int) if values.dtype == bool else values
