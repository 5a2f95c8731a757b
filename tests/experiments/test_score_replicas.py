"""The tool that trains seeds side by side and scores all of them."""

import json
import sys
from pathlib import Path

import pytest

import motes
from experiments.paper_training import score_replicas


def run(monkeypatch: pytest.MonkeyPatch, *given: object) -> None:
    """Calls the tool as the command line does."""
    monkeypatch.setattr(sys, "argv", ["score_replicas.py", *map(str, given)])
    score_replicas.main()


def test_all_seeds_are_scored_beside_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "run", tmp_path / "record.json"
    sizes = ("--preset", "paper-smoke", "--size", 16, "--frames", 12, "--replicas", 2)
    run(monkeypatch, "--learn", "--run", folder, *sizes)
    run(monkeypatch, "--learn", "--run", folder, *sizes)  # finished: nothing is left to do
    run(monkeypatch, "--score", "--run", folder, "--clips", 8, "--out", out)
    record = json.loads(out.read_text("utf-8"))
    assert record["finished"]
    assert [stretch["to_step"] for stretch in record["stretches"]] == [20, 20]
    bounds = {name: one["held_out_bound"] for name, one in record["runs"].items()}
    assert list(bounds) == ["seed-0", "seed-1"]
    assert record["chosen"] == max(bounds, key=lambda name: bounds[name])
    errors = [
        [column["noisy_rmse"] for column in one["by_count"].values()]
        for one in (record["limit"], *record["runs"].values())
    ]
    assert all(
        best < found for own in errors[1:] for best, found in zip(errors[0], own, strict=True)
    )
    assert sum(column["clips"] for column in record["limit"]["by_count"].values()) == 8
    assert capsys.readouterr().out.count("| 1 | ") == 1


def test_a_size_and_a_teacher_replace_those_of_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, teacher = (
        [],
        Path(motes.__file__).parent / "models" / "shipped" / "cannonballs-structured",
    )
    monkeypatch.setattr(score_replicas, "learn", lambda config, *rest: seen.append(config))
    sizes = ("--size", 32, "--frames", 50, "--teacher", teacher)
    run(monkeypatch, "--learn", "--run", tmp_path, *sizes)
    run(monkeypatch, "--learn", "--run", tmp_path)
    (changed, plain) = seen
    assert (changed.data.height, changed.data.width, changed.data.num_frames) == (32, 32, 50)
    assert (changed.teacher, plain.teacher) == (str(teacher), teacher.name)
    assert changed.schedule == plain.schedule
    assert plain == score_replicas.PRESETS["paper-distilled"]
