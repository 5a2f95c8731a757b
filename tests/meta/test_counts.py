"""The page says of the number of objects what the record says, and parts are put together."""

import json
from pathlib import Path

import torch
from tools import score_counts


def test_the_paragraph_of_counts_is_that_of_the_stored_record() -> None:
    record = json.loads(score_counts.RECORD.read_text("utf-8"))
    assert score_counts.told(record) in score_counts.PAGE.read_text("utf-8"), "run make docs"


def test_parts_are_scored_as_one(tmp_path: Path) -> None:
    right, wrong = torch.eye(6)[2].tolist(), torch.eye(6)[3].tolist()
    for part, rows in enumerate(([right, right], [wrong])):
        record = {
            "model": "m",
            "environment": {},
            "truth": [3] * len(rows),
            "seconds": 1.5 * len(rows),
            "believed": {"2": rows},
        }
        (tmp_path / f"{part}.json").write_text(json.dumps(record), encoding="utf-8")
    merged = score_counts.merge(tmp_path)
    assert merged["after"]["2"]["clips"] == 3
    assert merged["after"]["2"]["accuracy"] == 2 / 3
    assert merged["after"]["2"]["wrong_clips"] == [2]
    assert merged["seconds_a_clip"] == 1.5
