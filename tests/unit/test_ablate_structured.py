"""The ablations: every part can be taken away, and comes back."""

import importlib
import json
import sys

import pytest
from tools import ablate_structured, make_results
from tools.ablate_structured import RUNS, SCORES, changed, store

from motes.presets import preset

CHANGES = [change for changes in RUNS.values() for change in changes]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_part_is_there_is_taken_away_and_comes_back(change):
    module = importlib.import_module(change.module)
    before = getattr(module, change.name)
    with changed((change,)):
        assert getattr(module, change.name) is change.value
        assert change.value != before
    assert getattr(module, change.name) is before


def test_runs_of_one_configuration_are_stored_side_by_side_in_their_order(tmp_path):
    path, config = tmp_path / "a.json", preset("structured", "smoke")
    for name in ("no exploring", "everything", "no exploring"):
        store(path, name, config, {"told": name})
    stored = json.loads(path.read_text())
    assert list(stored["ablations"]) == ["everything", "no exploring"]
    other = preset("structured", "small")
    store(path, "everything", other, {"told": "anew"})
    assert json.loads(path.read_text())["ablations"] == {"everything": {"told": "anew"}}


def test_two_runs_make_a_record_that_becomes_a_table(tmp_path, monkeypatch):
    out = tmp_path / "ablation_structured.json"
    runs = ["everything", "no second look"]
    words = ["--preset", "smoke", "--test-clips", "4", "--out", str(out), "--only", *runs]
    monkeypatch.setattr("motes.beginnings.STEPS", 4)
    monkeypatch.setattr(sys, "argv", ["ablate_structured.py", *words])
    ablate_structured.main()
    record = json.loads(out.read_text())
    for run in runs:
        for column in record["ablations"][run]["by_count"].values():
            assert set(SCORES) < set(column)
    table = make_results.ablation_table({"ablation_structured": record})
    assert [line.split(" | ")[0] for line in table.splitlines()[2:4]] == [f"| {r}" for r in runs]
    bounds = {record["ablations"][run]["held_out_bound"] for run in runs}
    assert len(bounds) == 2  # the change was there while it learned
