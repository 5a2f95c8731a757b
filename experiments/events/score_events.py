"""Train models of worlds with and without walls, and score them beside the true law.

Every (world, seed) is a process of its own: training with the preset's usual steps, the search for
walls that follows it, the law that was found with its error bars, and the scores on unseen clips.
The true law is given the true positions, rounded to pixels, with identities.

Usage: python -m experiments.events.score_events --worlds bounce --seeds 0 1 2 --jobs 8
           --runs runs/events --out experiments/events/events.json
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

import motes
from experiments.worlds.score_worlds import learn
from experiments.worlds.world_scores import CONTEXT, TASKS, ask_model, score_world, unseen_clips
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import World, worlds
from motes.evaluation.baselines.disk_trackers import true_physics
from motes.kalman.event_dynamics import draw_paths
from motes.kalman.events import EventLaw, Walls
from motes.training import train

NUM_CLIPS = 2000  # to learn from
TRAINING_SEED = 100  # of the clips of seed 0; every seed has its own
REGION = 4.605170185988092  # of chi squared with two degrees of freedom, 90 %


def true_law(world: World) -> EventLaw:
    """Return the law of a world in pixels and frames, its floor as a wall."""
    physics = true_physics(world)
    floor = [] if world.floor is None else [float(world.to_pixels(np.array((0, world.floor)))[1])]
    one = torch.tensor([[0.0, -1.0]], dtype=torch.float64).expand(len(floor), 2)
    offsets = -torch.tensor(floor, dtype=torch.float64)
    walls = Walls(one, offsets, torch.full_like(offsets, world.bounce))
    return EventLaw(physics.model, physics.log_weights, walls)


def score_true_law(name: str) -> dict[str, Any]:
    """Return forecast error and coverage of the true law, for each number of objects."""
    task, by_count = TASKS[name], {}
    world = worlds.physics_of(task.asks, 30)
    assert isinstance(world, World)
    law = true_law(world)
    for count in task.counts:
        clips = unseen_clips(task, count)
        assert clips.positions is not None
        assert clips.clean is not None
        noisy, clean = (part.flatten(0, 1).double() for part in (clips.positions, clips.clean))
        observed = (torch.arange(30) < CONTEXT).expand(len(noisy), 30)
        squares, inside = [], []
        for some in torch.arange(len(noisy)).split(100):
            points = noisy[some].round()
            paths = draw_paths(law, points, observed[some], torch.zeros_like(points))
            share, mean, covariance = paths.moments(len(law.log_weights))
            best = (torch.arange(len(some)), share.argmax(1))
            path, spread = mean[best][..., CONTEXT:, :2], covariance[best][..., CONTEXT:, :2, :2]
            squares.append((path - clean[some, CONTEXT:]).square().sum(-1))
            noise = law.model.position_noise - torch.eye(2, dtype=torch.float64) / 12
            away = noisy[some, CONTEXT:] - path
            inside.append(
                torch.einsum("mti,mtij,mtj->mt", away, (spread + noise).inverse(), away) < REGION
            )
        by_count[str(count)] = {
            "forecast_rmse": float(torch.cat(squares).mean().sqrt()),
            "forecast_coverage90": float(torch.cat(inside).double().mean()),
        }
    return by_count


def timed(search: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return a function that adds its CPU time to a list."""

    def measured(*given: Any) -> Any:
        started = time.process_time()
        found = search(*given)
        spent.append(time.process_time() - started)
        return found

    return measured


def run_one(world: str, seed: int, runs: Path, device: str) -> dict[str, Any]:
    """Train a model of a world on clips of its own and score it."""
    folder = runs / f"clips-{seed}" / world
    folder.parent.mkdir(exist_ok=True)
    clips = worlds.make(TASKS[world].learns, NUM_CLIPS, (1, 2, 3), 30, seed=TRAINING_SEED + seed)
    motes.data.save_clips(folder.parent / f"{TASKS[world].learns}.npz", clips)
    if not (folder / "training.json").exists():
        spent: list[float] = []
        train.find_events = timed(train.find_events, spent)  # type: ignore[attr-defined]
        learn(TASKS[world], seed, folder, NUM_CLIPS, device=device)
        training = json.loads((folder / "training.json").read_text("utf-8"))
        training["events_cpu_seconds"] = round(sum(spent), 1)
        write_json(folder / "training.json", training)
    model = motes.load(folder)
    started = time.monotonic()
    record = {
        "training": json.loads((folder / "training.json").read_text("utf-8")),
        "law": model.law.record(),
        "words": str(model.law).splitlines(),
        "by_count": score_world(world, ask_model(model)),
        "scoring_seconds": round(time.monotonic() - started, 1),
        "environment": environment(torch.device(device)),
    }
    return record


def main() -> None:
    """Run all worlds and seeds in processes of their own, and store their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=["bounce"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="to train on; scores are of the CPU")
    parser.add_argument("--test-clips", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/events"))
    parser.add_argument("--out", type=Path, default=Path("experiments/events/events.json"))
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # (world, seed or "true law")
    given = parser.parse_args()
    for name, task in TASKS.items():
        TASKS[name] = task._replace(num_clips=min(task.num_clips, given.test_clips))
    given.runs.mkdir(parents=True, exist_ok=True)
    if given.only:
        world, seed = given.only
        found = (
            {"by_count": score_true_law(world)}
            if seed == "true law"
            else run_one(world, int(seed), given.runs, given.device)
        )
        write_json(given.runs / f"{world}-{seed}.json", found)
        return
    jobs = [(world, str(seed)) for world in given.worlds for seed in ["true law", *given.seeds]]

    def start(job: tuple[str, str]) -> None:
        command = [sys.executable, "-m", "experiments.events.score_events", "--only", *job]
        command += ["--runs", str(given.runs), "--test-clips", str(given.test_clips)]
        command += ["--device", given.device]
        threads = str(max((os.cpu_count() or 1) // max(given.jobs, 1), 1))
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": threads})
        with lock:
            collect(jobs, given.runs, given.out)

    lock = Lock()
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(start, jobs))


def collect(jobs: list[tuple[str, str]], runs: Path, out: Path) -> None:
    """Store the records of all jobs that have ended in one file."""
    record: dict[str, Any] = {}
    for world, seed in jobs:
        path = runs / f"{world}-{seed}.json"
        if path.exists():
            record.setdefault(world, {})[seed] = json.loads(path.read_text("utf-8"))
    write_json(out, record)


if __name__ == "__main__":
    main()
