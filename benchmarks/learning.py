"""CPU time of learning from scratch: 50 clips of simulated juggling, and the demo's model.

Time is that of the process on one thread, split by what it was spent on, so that other work on the
machine hardly matters. Beside it stand the held-out bound and, for juggling, the error of inferred
positions in clips that were not used for training.

Usage: python -m benchmarks.learning --seeds 0 1 2 --out benchmarks/records/bench_learning.json
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.recordings import Setting, juggling
from benchmarks.restarts import NUM_FRAMES, NUM_OBJECTS, juggling_config
from motes.config import RunConfig
from motes.core.environment import environment
from motes.core.files import write_json
from motes.evaluation.metrics import best_order, reorder
from motes.models.checkpoint import load
from motes.output.demo import short_run
from motes.queries import infer
from motes.training.train import train

TEST_CLIPS = 12


def timed_training(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the CPU seconds of a run and the bound that it reaches."""
    start, marks = time.process_time(), {}

    def report(line: dict[str, Any]) -> None:
        part = "restarts" if "start" in line else "steps" if "bound" in line else "end"
        marks[part] = time.process_time() - start

    outcome = train(config, folder, report=report)
    total = time.process_time() - start
    steps = marks["steps"]  # with the last fit and the search for events
    return {
        "cpu_seconds": round(total, 1),
        "restarts": round(marks["restarts"], 1),
        "steps_and_fits": round(steps - marks["restarts"], 1),
        "own_quality": round(total - steps, 1),
        "steps": outcome.step,
        "held_out_bound": outcome.held_out_bound,
    }


def juggling_error(folder: Path, seed: int) -> dict[str, float]:
    """Return the error of positions in unseen clips of the same kind, in pixels."""
    frames, paths = juggling(Setting(NUM_OBJECTS, NUM_FRAMES * TEST_CLIPS), seed + 1000)
    shape = (TEST_CLIPS, NUM_FRAMES)
    clips = torch.from_numpy(frames).unflatten(0, shape)
    truth = torch.from_numpy(paths).float().unflatten(1, shape).transpose(0, 1)
    found = infer(load(folder), clips.float(), NUM_OBJECTS).pixels
    away = (reorder(found, best_order(found, truth)) - truth).norm(dim=-1)
    return {
        "rmse_px": float(away.square().mean().sqrt()),
        "within_1_px": float((away < 1).double().mean()),
    }


def main() -> None:
    """Train all runs; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    number = {"num_clips": 12} if given.smoke else {}

    def short(config: RunConfig) -> RunConfig:
        return replace(config.stretched(12), log_every=6) if given.smoke else config

    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            config = short(juggling_config(folder, seed, **number))
            row = timed_training(config, folder / "juggling")
            runs.append(
                {
                    "run": "juggling",
                    "seed": seed,
                    **row,
                    **juggling_error(folder / "juggling", seed),
                }
            )
            demo = short(replace(short_run(), seed=seed))
            runs.append({"run": "demo", "seed": seed, **timed_training(demo, folder / "demo")})
        print(*runs[-2:], sep="\n", flush=True)
        write_json(given.out, {
            "bench": "learning",
            "note": "CPU seconds of one thread",
            "environment": environment(torch.device("cpu")),
            "runs": runs,
        })  # fmt: skip


if __name__ == "__main__":
    main()
