"""Train a model of every world from scratch and score it beside the world's oracle.

Records are added to one JSON file world by world, so that worlds can be run one at a time and on
several machines.

Usage: python -m experiments.worlds.score_worlds OPTIONS
    --worlds bar drops --out experiments/worlds/worlds.json --runs runs/worlds
    --worlds bar --model runs/worlds/bar-0      score without training
    --worlds bar --hiding                       train differently (also --preset, --law)
    --jobs 16                                   all worlds in parallel
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import motes
from experiments.worlds.oracle import Law
from experiments.worlds.world_scores import (
    TASKS,
    Task,
    ask_model,
    ask_oracle,
    observed_of,
    score_world,
    unseen_clips,
)
from motes.core.axes import Float, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, save_clips, worlds
from motes.evaluation import metrics
from motes.evaluation.baselines.trackpy import track_features, tune_trackpy
from motes.training.presets import PRESETS, find
from motes.training.train import train

TRAINING_SEED = 1


def log(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def learn(
    task: Task,
    seed: int,
    folder: Path,
    num_clips: int | None,
    *,
    hiding: bool = False,
    device: str = "cpu",
) -> None:
    """Train on fresh clips of a world into a new folder, with a record of how that went."""
    config = find(task.preset)
    if hiding:
        covered = PRESETS["sprites-occluded"]
        model = dataclasses.replace(config.model, models_occlusion=True)
        frozen = covered.schedule.frozen_occlusion
        schedule = dataclasses.replace(config.schedule, frozen_occlusion=frozen)
        config = dataclasses.replace(config, model=model, schedule=schedule)
    num_clips = num_clips or config.data.num_clips
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{task.learns}.npz"
    if not path.exists():
        save_clips(path, worlds.make(task.learns, num_clips, (1, 2, 3), 30, seed=TRAINING_SEED))
    data = dataclasses.replace(config.data, path=str(path))
    dynamics = dataclasses.replace(config.dynamics, law=task.law)
    config = dataclasses.replace(config, data=data, dynamics=dynamics, seed=seed)
    wall, cpu = time.monotonic(), time.process_time()

    def report(line: dict[str, Any]) -> None:
        if "bound" in line:
            taken = time.monotonic() - wall
            left = taken * (line["of"] / line["step"] - 1)
            text = f"step {line['step']}/{line['of']}, bound {line['bound']:.1f}, {left:.0f} s left"
            log(f"  {folder.name}: {text}")

    outcome = train(config, folder, device=device, report=report)
    if not outcome.finished:
        sys.exit(f"{folder} was stopped at step {outcome.step}; remove it and begin again")
    record = {
        "clips": num_clips,
        "steps": outcome.step,
        "held_out_bound": outcome.held_out_bound,
        "wall_seconds": round(time.monotonic() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    write_json(folder / "training.json", record)


def averaged(clips: Clips) -> Float[Tensor, "B T height width"]:
    """Frames in grey, as the average of their colours."""
    return clips.frames.mean(-1) if clips.in_colour else clips.frames.float()


def called(world: str, arguments: argparse.Namespace) -> str:
    """What a world is called in records, where it is not learned as usual."""
    other = [name for name in (arguments.preset, arguments.law) if name is not None]
    return ", ".join([world, *other, *["hiding"] * arguments.hiding])


def run_oracle(name: str) -> dict[str, Any]:
    """The record of a world's oracle."""
    task = TASKS[name]
    law = Law.of(worlds.physics_of(task.asks, task.num_frames))
    by_count = score_world(name, ask_oracle(law), log)
    return {"by_count": by_count, "environment": environment(torch.device("cpu"))}


def run_model(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a model of a world, trained first if there is none."""
    record: dict[str, Any] = {}
    learned = called(TASKS[name].learns, arguments)
    folder = arguments.model or arguments.runs / f"{learned}-{arguments.seed}"
    if arguments.model is None:
        if not (folder / "training.json").exists():
            learn(TASKS[name], arguments.seed, folder, arguments.clips, hiding=arguments.hiding)
        record["training"] = json.loads((folder / "training.json").read_text("utf-8"))
    model = motes.load(folder)
    record["by_count"] = score_world(name, ask_model(model), log)
    return {**record, "environment": environment(torch.device("cpu"))}


def run_rival(name: str, num_tuning: int = 15, num_clips: int = 60) -> dict[str, Any]:
    """The record of trackpy, its settings chosen by the truth of some training clips."""
    task, by_count = TASKS[name], {}
    tuning = worlds.make(task.learns, num_tuning, 3, 30, seed=TRAINING_SEED)
    assert tuning.positions is not None
    settings = tune_trackpy(averaged(tuning), observed_of(tuning), tuning.positions)
    for count in task.counts:
        clips = unseen_clips(task, count)[:num_clips]
        assert clips.positions is not None
        found = track_features(averaged(clips), observed_of(clips), count, settings)
        found = metrics.reorder(found, metrics.best_order(found, clips.positions))
        scores = {
            "clips": len(clips),
            "tracked": float(metrics.tracked(found, clips.positions).double().mean()),
            "noisy_rmse": metrics.rmse(found, clips.positions),
        }
        by_count[str(count)] = scores
        log(f"trackpy {name} N = {count} {json.dumps(scores)}")
    return {
        "settings": settings._asdict(),
        "by_count": by_count,
        "environment": environment(torch.device("cpu")),
    }


def store(path: Path, *place: str, record: dict[str, Any]) -> None:
    """Add a record to a file, which is read anew: another process may have written to it."""
    stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    inner = stored
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = record
    write_json(path, stored)


def run_side_by_side(arguments: argparse.Namespace) -> None:
    """Run worlds in processes of their own, those that share a model in one after the other."""
    groups: dict[str, list[str]] = {}
    for name in arguments.worlds:
        groups.setdefault(TASKS[name].learns, []).append(name)
    arguments.runs.mkdir(parents=True, exist_ok=True)

    def start(learned: str) -> Path:
        part: Path = arguments.runs / f"{learned}-{arguments.seed}.json"
        command = [sys.executable, "-m", "experiments.worlds.score_worlds"]
        command += ["--worlds", *groups[learned], "--out", str(part)]
        for name in ("seed", "clips", "preset", "law", "runs", "test_clips"):
            if getattr(arguments, name) is not None:
                command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        command += ["--hiding"] * arguments.hiding
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return part

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in as_completed(pool.submit(start, learned) for learned in groups):
            part = done.result()
            if not part.exists():
                log(f"{part.stem} failed; see above")
                continue
            for name, runs in json.loads(part.read_text("utf-8"))["worlds"].items():
                for seed, record in runs.items():
                    store(arguments.out, "worlds", name, seed, record=record)


def main() -> None:
    """Score the worlds that were asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seed", type=int, default=0, help="of the training run")
    parser.add_argument("--clips", type=int, help="to learn from; default: the preset's")
    parser.add_argument("--preset", help="to learn by, if not the world's own")
    parser.add_argument("--law", choices=("newton", "linear"), help="if not the world's own")
    parser.add_argument("--hiding", action="store_true", help="what hides is learned as in covered")
    parser.add_argument("--runs", type=Path, default=Path("runs/worlds"))
    parser.add_argument("--model", default=None, help="a trained model for all worlds asked for")
    parser.add_argument("--oracle", action="store_true", help="score the oracles instead")
    parser.add_argument("--trackpy", action="store_true", help="score trackpy instead")
    parser.add_argument("--test-clips", type=int, default=200, help="of each count, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--out", type=Path, default=Path("experiments/worlds/worlds.json"))
    arguments = parser.parse_args()
    for name, task in TASKS.items():
        TASKS[name] = task._replace(
            num_clips=min(task.num_clips, arguments.test_clips),
            preset=arguments.preset or task.preset,
            law=arguments.law or task.law,
        )
    if arguments.jobs > 1:
        return run_side_by_side(arguments)
    for name in arguments.worlds:
        if arguments.oracle:
            store(arguments.out, "oracles", name, record=run_oracle(name))
        elif arguments.trackpy:
            store(arguments.out, "trackpy", name, record=run_rival(name))
        else:
            seed, as_called = str(arguments.seed), called(name, arguments)
            store(arguments.out, "worlds", as_called, seed, record=run_model(name, arguments))


if __name__ == "__main__":
    main()
