"""The page says of the number of objects what the record says, and parts are put together."""

import json
from pathlib import Path

import torch

from experiments.counting import score_counts
from motes.data import cannonballs


def test_the_paragraph_of_counts_is_that_of_the_stored_record() -> None:
    record = json.loads(score_counts.RECORD.read_text("utf-8"))
    assert score_counts.paragraph(record) in score_counts.PAGE.read_text("utf-8"), "run make docs"


def test_every_kind_of_clips_is_scored(tmp_path: Path) -> None:
    right, wrong = torch.eye(6)[2].tolist(), torch.eye(6)[3].tolist()
    for kind, rows in (("clear", [right, right]), ("faint", [wrong, right])):
        record = {
            "kind": kind,
            "model": "m",
            "environment": {},
            "truth": [3, 3],
            "seconds": 3.0,
            "believed": {"2": rows},
        }
        (tmp_path / f"{kind}.json").write_text(json.dumps(record), encoding="utf-8")
    merged = score_counts.merge(tmp_path)
    assert [part["after"]["2"]["accuracy"] for part in merged.values()] == [1.0, 0.5]
    assert merged["faint"]["after"]["2"]["wrong_clips"] == [0]
    assert merged["clear"]["seconds_a_clip"] == 1.5


def test_faint_clips_show_pixels_as_often_as_said() -> None:
    clear = cannonballs(20, (1, 2, 3), seed=3)
    faint, inside = score_counts.fade(clear, seed=0).frames, clear.frames.bool()
    for shows, chance in ((faint[inside], 0.35), (faint[~inside], 0.01)):
        error = (chance * (1 - chance) / shows.numel()) ** 0.5
        assert abs(float(shows.mean()) - chance) < 4 * error
