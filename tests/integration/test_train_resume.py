"""Training that is killed, stopped, resumed, repeated: always the run that it would have been."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import motes
from motes import cli
from motes.config import to_json
from motes.core.errors import InputError
from motes.models.checkpoint import read_tensors, write_tensors
from motes.training.presets import PRESETS
from motes.training.train import drop_lines_after, lock_run_folder, resume, stop_signals, train

ITERATIONS = 150
PATIENCE = 120  # seconds that a busy machine may take to start a process
SMOKE = replace(
    PRESETS["paper-smoke"], schedule=PRESETS["paper-smoke"].schedule.stretched(ITERATIONS)
)


# A run that kills itself after a certain step, however fast the machine is.
KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from motes.training.presets import PRESETS
from motes.training.train import train

def report(line):
    if line["step"] == 35:
        os.kill(os.getpid(), signal.SIGKILL)

smoke, (folder, iterations) = PRESETS["paper-smoke"], sys.argv[1:]
schedule = smoke.schedule.stretched(int(iterations))
train(replace(smoke, schedule=schedule), Path(folder), report=report)
"""


@contextmanager
def training(folder: Path, iterations: int) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, once it has saved its second checkpoint."""
    command = [sys.executable, "-m", "motes", "train", "--preset", "smoke", "--json"]
    process = subprocess.Popen(
        [*command, "--iterations", str(iterations), "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while saved_step(folder) < 20:
            assert process.poll() is None, "training ended by itself"
            assert time.monotonic() < deadline, "training did not start"
            time.sleep(0.005)
        yield process
    finally:
        process.kill()
        process.communicate()


def saved_step(folder: Path) -> int:
    log = folder / "log.jsonl"
    if not log.is_file():
        return 0
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines = [json.loads(line) for line in whole]
    return max((line["step"] for line in lines if "held_out_bound" in line), default=0)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "iterations_per_second"} for line in lines]


def assert_same_tensors(left: Path, right: Path) -> None:
    ours, theirs = read_tensors(left)[0], read_tensors(right)[0]
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    assert train(SMOKE, folder).finished
    return folder


def test_a_killed_run_resumes_to_the_same_model_bit_for_bit(
    tmp_path: Path, uninterrupted: Path
) -> None:
    folder = tmp_path / "killed"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(ITERATIONS)])
    assert killed.returncode == -signal.SIGKILL
    _, metadata = read_tensors(folder / "checkpoint.safetensors")
    assert int(metadata["step"]) == 30
    assert log_of(folder)[-1]["step"] == 35
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step": 149, "bound": 0.0}\n{"step": 15')  # what a kill may leave behind
    outcome = resume(folder)
    assert outcome.finished
    assert outcome.step == ITERATIONS
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert_same_tensors(folder / name, uninterrupted / name)
    # No line twice and none missing; a resumed run logs what an uninterrupted one does, but for
    # the held-out line that a kill may cut off after its checkpoint was written.
    ours, expected = log_of(folder), log_of(uninterrupted)
    missing = [line for line in expected if line not in ours]
    assert [line for line in ours if line not in expected] == []
    assert all("held_out_bound" in line for line in missing)
    assert len(missing) <= 1
    assert len(ours) == len(expected) - len(missing)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_well(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with training(folder, 100_000) as process:
        if number == signal.SIGINT:  # while it runs, nobody else may work in its folder
            assert cli.main(["train", "--resume", str(folder)]) == 2
            message = capsys.readouterr().err
            assert "in use by another process" in message
            assert message.count("\n") == 1
        process.send_signal(number)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    record = json.loads(printed)
    assert not record["finished"]
    _, metadata = read_tensors(folder / "checkpoint.safetensors")
    assert int(metadata["step"]) == record["step"] == saved_step(folder)
    assert motes.load(folder).max_objects == 2
    keys = Counter((line["step"], "held_out_bound" in line) for line in log_of(folder))
    assert set(keys.values()) == {1}
    with lock_run_folder(folder):  # the lock is free again
        pass


def test_signals_that_a_library_took_are_taken_back() -> None:
    ignore = ctypes.c_void_p(1)  # SIG_IGN, set behind Python's back
    with stop_signals() as asked:
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ignore)
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()


def test_resuming_a_finished_run_changes_nothing(uninterrupted: Path) -> None:
    before = {
        path.name: path.read_bytes()
        for path in uninterrupted.iterdir()
        if path.name != "environment.json"
    }
    outcome = resume(uninterrupted)
    assert outcome.finished
    assert outcome.step == ITERATIONS
    assert {name: (uninterrupted / name).read_bytes() for name in before} == before


def test_a_run_folder_describes_itself(uninterrupted: Path) -> None:
    names = {path.name for path in uninterrupted.iterdir()}
    assert names == {
        *("config.json", "environment.json", "log.jsonl", "model.safetensors"),
        *("checkpoint.safetensors", "latent_map.png", "fit.json", "quality.json", ".lock"),
    }
    model, config = motes.models.checkpoint.load_with_config(uninterrupted)
    assert config == SMOKE
    assert model.image_size == (16, 16)
    environment = json.loads((uninterrupted / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    steps = [line["step"] for line in log_of(uninterrupted) if "bound" in line]
    assert steps == list(range(5, ITERATIONS + 1, 5))
    final = log_of(uninterrupted)[-1]
    assert final["step"] == ITERATIONS
    assert "held_out_bound" in final


def test_training_raised_the_bound(uninterrupted: Path) -> None:
    bounds = [line["held_out_bound"] for line in log_of(uninterrupted) if "held_out_bound" in line]
    assert bounds[-1] > 0.8 * bounds[0]


def test_a_folder_that_is_in_use_or_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        train(SMOKE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "precious"
    with pytest.raises(InputError, match="is a file"):
        train(SMOKE, tmp_path / "config.json")
    with (
        lock_run_folder(tmp_path),
        pytest.raises(InputError, match="in use"),
        lock_run_folder(tmp_path),
    ):
        pass


def test_replicas_are_their_own_single_runs_and_the_best_is_chosen(tmp_path: Path) -> None:
    config = replace(PRESETS["paper-smoke"], seed=2)
    together = train(config, tmp_path / "together", replicas=3)
    assert together.folder == tmp_path / "together"
    assert together.finished
    bounds = {}
    for seed in (2, 3, 4):
        single = train(replace(config, seed=seed), tmp_path / f"single-{seed}")
        bounds[f"seed-{seed}"] = single.held_out_bound
        for name in ("model.safetensors", "checkpoint.safetensors"):
            mine = tmp_path / "together" / f"seed-{seed}" / name
            assert_same_tensors(mine, single.folder / name)
        assert log_of(tmp_path / "together" / f"seed-{seed}") == log_of(single.folder)
    selection = json.loads((tmp_path / "together" / "selection.json").read_text())
    best = max(bounds, key=bounds.__getitem__)
    assert best not in (min(bounds), max(bounds))  # so that neither the first nor the last will do
    assert selection["bounds"] == bounds
    assert selection["chosen"] == best
    assert together.held_out_bound == bounds[best]
    for name in ("config.json", "model.safetensors", "fit.json"):
        chosen = tmp_path / "together" / best / name
        assert (tmp_path / "together" / name).read_bytes() == chosen.read_bytes()


def test_replicas_may_have_settings_of_their_own(tmp_path: Path) -> None:
    """As docs/scaling.md has it: what is in their folders before a run begins is kept."""
    smoke, out = PRESETS["paper-smoke"], tmp_path / "sweep"
    other = replace(smoke, batch_size=4)
    (out / "seed-1").mkdir(parents=True)
    (out / "config.json").write_text(to_json(smoke))
    (out / "seed-1" / "config.json").write_text(to_json(other))
    (out / "replicas.json").write_text('{"seed": 0, "replicas": 2}')
    assert resume(out).finished
    for name, config in (("seed-0", smoke), ("seed-1", other)):
        single = train(config, tmp_path / name)
        assert_same_tensors(out / name / "model.safetensors", single.folder / "model.safetensors")


def test_replicas_that_were_stopped_are_resumed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica had finished, the other had not: nothing is chosen before both have."""
    out = tmp_path / "out"
    straight = train(PRESETS["paper-smoke"], tmp_path / "straight", replicas=2)
    out.mkdir()
    for name in ("config.json", "replicas.json"):
        (out / name).write_bytes((tmp_path / "straight" / name).read_bytes())
    for seed, source in ((0, "straight"), (1, None)):
        folder = out / f"seed-{seed}"
        folder.mkdir()
        for path in (tmp_path / "straight" / f"seed-{seed}").iterdir():
            if source or path.name == "config.json":
                (folder / path.name).write_bytes(path.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(
            "motes.training.train.run_all", lambda runs, stopping: [run.finish() for run in runs]
        )
        stopped = resume(out)
    assert stopped.folder == out
    assert not stopped.finished
    assert not (out / "selection.json").exists()
    outcome = resume(out)
    assert outcome == straight._replace(folder=out)
    for name in ("selection.json", "model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "model", "foreign moment", "wrong shape"])
def test_a_damaged_checkpoint_is_refused_with_one_line(
    damage: str, tmp_path: Path, uninterrupted: Path
) -> None:
    (tmp_path / "config.json").write_bytes((uninterrupted / "config.json").read_bytes())
    path = tmp_path / "checkpoint.safetensors"
    tensors, metadata = read_tensors(uninterrupted / "checkpoint.safetensors")
    if damage == "truncated":
        path.write_bytes((uninterrupted / "checkpoint.safetensors").read_bytes()[:-10])
    elif damage == "model":
        path.write_bytes((uninterrupted / "model.safetensors").read_bytes())
    elif damage == "foreign moment":
        write_tensors(path, {**tensors, "adam/x": torch.ones(1)}, metadata)
    else:
        write_tensors(path, {**tensors, "model/pixel_offset": torch.ones(3)}, metadata)
    with pytest.raises(InputError) as caught:
        resume(tmp_path)
    assert "checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_resumed_log_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 5}\n{"step": 10}\n{"step": 10, "a": 1}\n{"step": 15}\n{"ste')
    drop_lines_after(log, 10)
    assert log.read_text() == '{"step": 5}\n{"step": 10}\n{"step": 10, "a": 1}\n'
    drop_lines_after(tmp_path / "none.jsonl", 10)
    assert not (tmp_path / "none.jsonl").exists()
