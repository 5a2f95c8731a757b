"""Answers as tables, in pixels and seconds of the video where its map is known."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.queries.answer import COLUMNS, Answer
from motes.video import VideoMap


def in_video(answer: Answer, where: VideoMap) -> Answer:
    """Return the answer with pixels of a frame mapped to pixels of the video.

    Velocities become pixels per second.

    Law: a point, its covariance and its velocity are mapped alike
    (test_answers_are_mapped_to_the_pixels_and_seconds_of_the_video).
    """
    return replace(
        answer,
        pixels=where.points(answer.pixels),
        pixel_covariances=where.covariances(answer.pixel_covariances),
        pixel_velocities=where.velocities(answer.pixel_velocities),
        path_pixels=where.points(answer.path_pixels),
        path_pixel_covariances=where.covariances(answer.path_pixel_covariances),
    )


def table(answer: Answer, where: VideoMap | None) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Return column names and rows; with a map, video frame numbers and times in seconds."""
    if where is None:
        return list(COLUMNS), answer.rows()
    where = where.extended(answer.observed.shape[1])
    rows = in_video(answer, where).rows()
    timed = (
        (clip, int(where.numbers[clip, frame]), *rest, float(where.times[clip, frame]))
        for clip, frame, *rest in rows
    )
    return [*COLUMNS, "time"], timed


def write_table(path: Path, answer: Answer, where: VideoMap | None) -> None:
    """Write the table as CSV, or as Parquet if the name ends in .parquet."""
    columns, rows = table(answer, where)
    with atomic_path(path) as temporary:
        if path.suffix.lower() == ".parquet":
            _write_parquet(temporary, columns, rows)
            return
        with temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)


def _write_parquet(path: Path, columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    try:
        import pandas

        pandas.DataFrame(list(rows), columns=columns).to_parquet(path, engine="pyarrow")
    except ImportError:
        raise InputError("Parquet needs pandas and pyarrow; pip install 'motes[table]'") from None
