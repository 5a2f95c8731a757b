"""The page of reliability says what the records say."""

import json
from pathlib import Path

from experiments.reliability import make_page


def test_the_page_of_reliability_is_that_of_the_stored_records():
    assert make_page.PAGE.read_text("utf-8") == make_page.page(), "run make docs"


def test_what_was_not_measured_is_said_with_the_command_that_measures_it(tmp_path: Path):
    page = make_page.page(tmp_path)
    assert page.count("No record is stored yet") == len(make_page.SECTIONS)
    assert "tests.stress.faults" in page


def test_a_defect_that_fuzzing_found_is_shown(tmp_path: Path):
    defect = {"entrance": "clips", "seed": 7, "end": "hangs", "text": "code -9"}
    record = {
        "environment": {"motes_commit": None},
        "cases": 3,
        "ends": {"clips": {"refused": 2, "hangs": 1}},
        "defects": [defect],
        "limits": {"seconds": 20, "gib_beyond_start": 1.5},
        "slowest_seconds": 1.0,
        "largest_mib": 300,
    }
    (tmp_path / "fuzz.json").write_text(json.dumps(record))
    page = make_page.page(tmp_path)
    assert "| clips | 3 | 0 | 2 | 0 | 1 |" in page
    assert "- clips 7: hangs, `code -9`" in page
