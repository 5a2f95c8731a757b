"""One table of many."""

import csv

import pytest

from motes.output.formats import write_tracks
from motes.output.merge import convert_table, merge_tables
from motes.queries.answer import COLUMNS


def write(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_merged_rows_are_those_of_the_parts(tmp_path):
    columns = ["clip", "frame", "particle", "x", "observed"]
    one = write(tmp_path / "1.csv", columns, [0, 0, 0, 1.5, True], [0, 0, 1, 2.5, False])
    two = write(
        *(tmp_path / "2.csv", [*columns, "unit"]),
        *([0, 0, 0, 3.5, True, "mm"], [1, 0, 0, 4.5, True, "mm"], [0, 1, 0, 5.5, True, "mm"]),
    )
    assert merge_tables(tmp_path / "all.csv", [("a", one), ("b", two)]) == 4
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["recording", *columns, "unit"]
    assert [row["recording"] for row in rows] == ["a", "a", "b", "b", "b"]
    assert [row["particle"] for row in rows] == ["0", "1", "2", "3", "2"]
    assert [row["x"] for row in rows] == ["1.5", "2.5", "3.5", "4.5", "5.5"]
    assert [row["unit"] for row in rows] == ["", "", "mm", "mm", "mm"]


def test_a_parquet_table_has_types(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    numbers = len(COLUMNS) - 2
    own = [(*range(numbers), True, False), (*[0] * numbers, False, True)]
    one = write(tmp_path / "1.csv", COLUMNS, *own)
    merge_tables(tmp_path / "all.parquet", [("a", one)])
    table = pandas.read_parquet(tmp_path / "all.parquet")
    assert list(table.columns) == ["recording", *COLUMNS]
    assert table["x"].tolist() == [3.0, 0.0]
    assert table["observed"].tolist() == [True, False]
    assert table["seen"].tolist() == [False, True]
    assert table["frame"].dtype.kind == "i"


def test_a_converted_table_equals_the_one_written_at_once(tmp_path):
    numbers = len(COLUMNS) - 2
    rows = [(0, frame, 0, *[frame / 3] * (numbers - 3), True, frame > 1) for frame in range(3)]
    part = write(tmp_path / "1.csv", COLUMNS, *rows)
    for name in ("mot.txt", "trackpy.trackpy.csv", "track.xml"):
        convert_table(tmp_path / name, part, None, 2.0)
        write_tracks(tmp_path / f"once-{name}", COLUMNS, rows, None, 2.0)
        assert (tmp_path / name).read_bytes() == (tmp_path / f"once-{name}").read_bytes()
