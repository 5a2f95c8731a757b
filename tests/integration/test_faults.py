"""The short form of tests/stress/faults.py, which kills training hundreds of times over."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from motes.config import RunConfig, to_json
from motes.core.errors import InputError
from motes.core.files import leftover_files
from motes.models.checkpoint import read_config
from motes.training import train as training
from motes.training.presets import PRESETS
from motes.training.step import Trainer
from motes.training.train import (
    begin_run,
    check_new_folder,
    lock_run_folder,
    resume,
    run_folders,
    train,
)

ROOT = Path(__file__).parents[2]
SMOKE = PRESETS["paper-smoke"]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a loaded machine
@pytest.mark.parametrize(
    ("family", "more"), [("paper", []), ("structured", ["--kills-only", "--short"])]
)
def test_training_survives_kills_full_disks_closed_folders_and_wild_clocks(
    family: str, more: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.faults", "--family", family, "--kills", "3", *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)["families"][family]
    assert tried["kills"] >= 3
    faults = {"full_disk", "small_disk", "closed_folder", "wild_clock", "not_finite"}
    assert faults & set(tried) == (set() if more else faults)


def test_whoever_takes_a_folder_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    left = [tmp_path / ".0123456789abcdef.safetensors", tmp_path / ".fedcba9876543210"]
    kept = [tmp_path / ".lock", tmp_path / ".0123.json", tmp_path / "model.safetensors"]
    for path in (*left, *kept):
        path.touch()
    assert sorted(leftover_files(tmp_path)) == sorted(left)
    with lock_run_folder(tmp_path):
        assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_run_killed_while_it_began_can_begin_again(tmp_path: Path) -> None:
    (tmp_path / ".0123456789abcdef.json").touch()
    (tmp_path / "replicas.json").write_text('{"seed": 0, "replicas": 3}')
    check_new_folder(tmp_path)
    with lock_run_folder(tmp_path):
        begin_run(tmp_path, SMOKE, replicas=1)
        assert {path.name for path in tmp_path.iterdir()} == {"config.json", ".lock"}
    with pytest.raises(InputError, match="not empty"):
        check_new_folder(tmp_path)


def test_replicas_whose_folders_a_kill_prevented_are_made_when_resumed(tmp_path: Path) -> None:
    begin_run(tmp_path, replace(SMOKE, seed=4), replicas=3)
    (tmp_path / "seed-4").mkdir()
    folders = run_folders(tmp_path, writes=True)
    assert [folder.name for folder in folders] == ["seed-4", "seed-5", "seed-6"]
    assert [read_config(folder).seed for folder in folders] == [4, 5, 6]


@pytest.mark.parametrize("content", ["", "[]", '{"seed": 0}', '{"seed": 0, "replicas": "x"}'])
def test_a_damaged_list_of_replicas_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "replicas.json").write_text(content)
    with pytest.raises(InputError, match=r"replicas\.json is damaged"):
        run_folders(tmp_path, writes=True)


def spoil_once(monkeypatch: pytest.MonkeyPatch, schedule_at_step: int) -> None:
    """Lets one weight be infinite at a step, the first time that it is taken."""
    advance, spoiled = Trainer.advance, []

    def advance_spoiled(self: Trainer) -> None:
        if self.step == schedule_at_step and not spoiled:
            spoiled.append(schedule_at_step)
            with torch.no_grad():
                next(self.model.renderer.parameters()).fill_(torch.inf)
        advance(self)

    monkeypatch.setattr(Trainer, "advance", advance_spoiled)


def test_what_is_not_finite_rolls_back_where_that_was_asked_for_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []
    with monkeypatch.context() as patch:
        spoil_once(patch, schedule_at_step=13)
        outcome = train(SMOKE, tmp_path / "back", roll_backs=1, report=told.append)
    assert outcome.finished
    assert outcome.rolled_back == 1
    (line,) = (line for line in told if "rolled_back" in line)
    assert (line["step"], line["rolled_back"]) == (10, 1)
    rates = {line["step"]: line["learning_rate"] for line in told if "learning_rate" in line}
    assert rates == {5: 1e-3, 10: 1e-3, 15: 5e-4, 20: 5e-4}
    # The half rate is remembered: what is killed after the roll-back goes on with it.
    config = replace(SMOKE, schedule=replace(SMOKE.schedule, iterations=30))
    (tmp_path / "back" / "config.json").write_text(to_json(config))
    told.clear()
    resume(tmp_path / "back", report=told.append)
    assert {line["learning_rate"] for line in told if "learning_rate" in line} == {5e-4}


def test_what_is_not_finite_stops_otherwise_and_the_checkpoint_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train(SMOKE, tmp_path / "straight")
    spoil_once(monkeypatch, schedule_at_step=13)
    message = r"after step 20: renderer\S+ is not finite.*last good checkpoint is .* of step 10"
    with pytest.raises(FloatingPointError, match=message):
        train(SMOKE, tmp_path / "run")
    assert resume(tmp_path / "run").held_out_bound == straight.held_out_bound


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_begins_late_leaves_the_folder_of_another_alone(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings found the folder empty; the other has begun, or has ended, since then."""
    out, fit_run_config = tmp_path / "run", training.fit_run_config
    temporary = out / ".0123456789abcdef.json"  # of the other process, which is writing

    with contextlib.ExitStack() as other:

        def slow(config: RunConfig) -> RunConfig:
            out.mkdir()
            other.enter_context(lock_run_folder(out))
            temporary.touch()
            if ended:
                (out / "config.json").write_text("precious")
                temporary.unlink()
                other.close()
            return fit_run_config(config)

        monkeypatch.setattr(training, "fit_run_config", slow)
        with pytest.raises(InputError, match="not empty" if ended else "in use"):
            train(SMOKE, out)
        if ended:
            assert (out / "config.json").read_text() == "precious"
        else:
            assert temporary.exists()
            assert not (out / "config.json").exists()


def test_replicas_are_locked_by_their_common_folder(tmp_path: Path) -> None:
    begin_run(tmp_path, SMOKE, replicas=2)
    with lock_run_folder(tmp_path), pytest.raises(InputError, match="in use"):
        resume(tmp_path)
    assert not (tmp_path / "seed-0").exists()
