"""Two processes that train one model agree: when to stop, what went wrong, what the model is."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

from motes import cli
from motes.core.errors import InputError
from motes.training import distributed
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer
from motes.training.train import begin_run, resume, train
from tests.stress.processes import TOLERANCE, difference, ended, start
from tiny import tiny_config

CPU = torch.device("cpu")
LONG = tiny_config(schedule=tiny_config().schedule.stretched(200))


def stop_one(folder: Path) -> Any:
    """Trains; a signal reaches the process that leads, and no other."""

    def report(line: dict[str, Any]) -> None:
        if line["step"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = train(LONG, folder / "run", report=report)
    return outcome.step, outcome.finished


def break_one(rank: int) -> str:
    """Trains with clips that are not numbers in the second process alone."""
    clips = make_dataset(LONG, CPU).training
    if rank == 1:
        frames = clips.frames(torch.arange(len(clips.num_objects)))
        clips = clips._replace(video=torch.full_like(frames, torch.nan))
    trainer = Trainer(LONG, clips, CPU)
    trainer.advance()
    try:
        trainer.mean_terms()
    except FloatingPointError as error:
        return str(error)
    return "nothing was noticed"


def fit_both() -> dict[str, torch.Tensor]:
    """Train a sprite model past the step at which its mixture is fitted to tracks."""
    config = PRESETS["sprites-smoke"]
    trainer = Trainer(config, make_dataset(config, CPU).training, CPU)
    for _ in range(config.schedule.mixture_em_steps[0] + 2):
        trainer.advance()
    return trainer.state()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    stopped = stop_one(Path(folder))
    record = {"stopped": stopped, "broken": break_one(rank), "fitted": fit_both()}
    torch.save(record, f"{folder}/{rank}")
    if rank == 0:
        time.sleep(0.5)  # still busy with what came last
        Path(folder, "done").touch()
    distributed.leave(store)
    assert Path(folder, "done").exists(), "left while another process was busy"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_reaches_one_process_reaches_all(tmp_path: Path) -> None:
    multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2)
    leading, other = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert leading["stopped"] == other["stopped"] == (6, False)
    assert leading["broken"] == other["broken"] == "reconstruction is not finite at step 0"
    for name, value in leading["fitted"].items():
        assert torch.equal(value, other["fitted"][name]), name
    assert (tmp_path / "run" / "checkpoint.safetensors").is_file()


@pytest.mark.slow
def test_torchrun_trains_as_one_process_does(tmp_path: Path) -> None:
    """The short form of tests/stress/processes.py."""
    smoke = ["train", "--preset", "smoke", "--iterations", "10", "--out"]
    together = start(2, *smoke, str(tmp_path / "two"))
    assert cli.main([*smoke, str(tmp_path / "one")]) == 0
    ended(together)
    assert difference(tmp_path / "two", tmp_path / "one") < TOLERANCE


def test_more_processes_than_clips_of_a_batch_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_run(tmp_path, PRESETS["paper-smoke"], replicas=1)
    monkeypatch.setattr(distributed, "world_size", lambda: 9)
    monkeypatch.setattr(distributed, "barrier", lambda: None)
    with pytest.raises(InputError, match=r"^9 processes share batches of 8 clips; start no more"):
        resume(tmp_path)
