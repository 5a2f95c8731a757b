"""The ablations: every part can be taken away, and comes back."""

import json
import pkgutil
import sys

import pytest

from experiments.sprites_seeds import ablate as ablate_structured
from experiments.sprites_seeds import score_seeds
from experiments.sprites_seeds import tables as seed_tables
from experiments.sprites_seeds.ablate import PARTS, without
from motes.training.presets import PRESETS


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_there_is_taken_away_and_comes_back(part):
    for change in PARTS[part]:
        module = pkgutil.resolve_name(change.module)
        before = getattr(module, change.name)
        with without(part):
            assert getattr(module, change.name) is change.value
            assert change.value != before
        assert getattr(module, change.name) is before


@pytest.fixture
def small(monkeypatch):
    """Runs of few steps on small clips."""
    monkeypatch.setitem(score_seeds.PRESETS, "sprites", PRESETS["sprites-smoke"])
    monkeypatch.setattr(ablate_structured, "SIZE", 16)
    monkeypatch.setattr(ablate_structured, "FRAMES", 11)
    monkeypatch.setattr("motes.training.step.RESTART_STEPS", 4)
    monkeypatch.setattr("motes.kalman.dynamics.RESTARTS", 1)
    monkeypatch.setattr("motes.kalman.dynamics.ITERATIONS", 2)


def test_runs_without_a_part_become_rows_below_the_whole(tmp_path, monkeypatch, small):
    def call(tool, *words):
        monkeypatch.setattr(sys, "argv", ["tool.py", "--runs", str(tmp_path / tool), *words])
        {"ablations": ablate_structured, "seeds": score_seeds}[tool].main()

    out = [tmp_path / f"{name}.json" for name in ("parts", "seeds")]
    call("ablations", "--learn", "--part", "no second look")
    call("ablations", "--score", "--clips", "4", "--merge", "--out", str(out[0]))
    call("seeds", "--learn", "--size", "16", "--frames", "11")
    call("seeds", "--score", "--clips", "4", "--merge", "--out", str(out[1]))
    parts, seeds = (json.loads(path.read_text()) for path in out)
    table = seed_tables.ablation_table({"ablation_structured": parts, "structured_seeds": seeds})
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:4]]
    assert rows == ["| everything", "| no second look"]
    bounds = {run["training"]["held_out_bound"] for run in parts["runs"] + seeds["runs"]}
    assert len(bounds) == 2  # what was taken away was away while it learned
