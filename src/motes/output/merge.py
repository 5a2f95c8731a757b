"""One table of many recordings, from the table of each."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from motes.output.formats import format_of, write_tracks

WHOLE = ("clip", "frame", "particle")
BOOLEAN = ("observed", "seen")
TEXT = ("recording", "unit")


def merge_tables(
    out: Path,
    parts: Sequence[tuple[str, Path]],
    format: str | None = None,
    diameter: float | None = None,
) -> int:
    """Write the tables of recordings (name, CSV file) as one, and return the number of tracks.

    The first column is the name of the recording; particles are numbered through, so that a number
    is one object of one clip of one recording. Columns that a recording lacks stay empty. Format
    and diameter are those of `motes.output.formats.write_tracks`.

    Law: rows are those of the parts, in order (test_merged_rows_are_those_of_the_parts).
    """
    heads = [name for _, path in parts for name in _head(path)]
    columns = list(dict.fromkeys(["recording", *heads]))
    numbers: dict[tuple[str, str, str], int] = {}

    def rows() -> Iterator[tuple[Any, ...]]:
        for name, path in parts:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    key = (name, row["clip"], row["particle"])
                    row["particle"] = str(numbers.setdefault(key, len(numbers)))
                    row["recording"] = name
                    yield tuple(row.get(column) or "" for column in columns)

    is_text = format_of(out, format) == "csv"
    typed = (tuple(map(_value, columns, row)) for row in rows())
    write_tracks(out, columns, rows() if is_text else typed, format, diameter)
    return len(numbers)


def convert_table(
    out: Path, table: Path, format: str | None = None, diameter: float | None = None
) -> None:
    """Write a CSV table in another format; arguments are those of `merge_tables`.

    Law: equals the table that is written in the format at once
    (test_a_converted_table_equals_the_one_written_at_once).
    """
    columns = _head(table)
    with table.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        typed = (tuple(map(_value, columns, row)) for row in rows)
        write_tracks(out, columns, typed, format, diameter)


def _head(path: Path) -> list[str]:
    """Return the column names of a CSV table."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def _value(column: str, text: str) -> Any:
    if column in TEXT:
        return text
    if text == "":
        return float("nan")
    if column in BOOLEAN:
        return text == "True"
    return int(text) if column in WHOLE else float(text)
