"""Learn billiards from pixels with `motes train` and score forecasts beside the true law.

The benchmark is STOVE's: eight frames are seen, then the distance between forecast and truth, in
units of half the box and averaged over balls, is summed over frames 9 to 18. Objects are matched to
the truth by the first five frames. The point forecast is the spatial median of the draws of the
answer. Coverage is that of the region which holds 90 % of the draws, by their distance from the
mean in standard deviations.

The oracle is the simulator itself, which is told the state of frame 8 up to independent noise of
0.01 px of positions and 0.01 px per frame of velocities. A forecast is lost at the first frame in
which its mean distance is above the radius of a ball.

Usage: python -m experiments.events.score_billiards --cases fine coarse --seeds 0 1 2
           --jobs 3 --runs runs/billiards --out experiments/events/billiards.json
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import torch

import motes
from motes.core.axes import Float, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, save_clips
from motes.data.worlds.billiards import Billiards
from motes.evaluation import metrics
from motes.training.presets import find
from motes.training.train import train

CASES = {
    "fine": Billiards(),  # ten substeps
    "coarse": Billiards(substeps=2),  # as the benchmark's stored files
}
PRESET = "sprites-video"
SEEN, LAST, LONG = 8, 18, 100
FRAMES = 30  # of a training clip
TEST_SEED = 1_000_000
ORACLE_PIXELS = 0.01
ORACLE_DRAWS = 32
BATCH = 50


def forecast_scores(
    draws: Float[Tensor, "S B N T 2"], truth: Float[Tensor, "B N T 2"], size: int
) -> dict[str, Any]:
    """Return the summed error, of the median and of the mean, and the coverage by draws."""
    mean = draws.mean(0)
    median = mean.clone()
    for _ in range(30):  # Weiszfeld's iteration
        weight = 1 / (draws - median).norm(dim=-1, keepdim=True).clamp(min=1e-3)
        median = (weight * draws).sum(0) / weight.sum(0)
    away, off = draws - mean, truth - mean
    spread = torch.einsum("sbnti,sbntj->bntij", away, away) / len(draws)
    precision = (spread + 1e-9 * torch.eye(2, dtype=torch.float64)).inverse()
    distances = torch.einsum("sbnti,bntij,sbntj->sbnt", away, precision, away)
    own = torch.einsum("bnti,bntij,bntj->bnt", off, precision, off)
    inside = (own < distances.quantile(0.9, dim=0)).double()

    def errors(path: Tensor) -> Tensor:
        each: Tensor = (path - truth).norm(dim=-1).mean(1) * 2 / size
        return each

    found = errors(median)
    near, by_frame = found[:, : LAST - SEEN].sum(-1), found.mean(0)
    return {
        "summed_error": float(near.mean()),
        "standard_error": float(near.std() / len(near) ** 0.5),
        "summed_error_of_mean": float(errors(mean)[:, : LAST - SEEN].sum(-1).mean()),
        "coverage90": float(inside[:, :, : LAST - SEEN].mean()),
        "summed_error_9_100": float(found.sum(-1).mean()),
        "coverage90_9_100": float(inside.mean()),
        "error_by_frame": [round(value, 5) for value in by_frame.tolist()],
        "coverage_by_frame": [round(value, 3) for value in inside.mean((0, 1)).tolist()],
    }


def lost_at(by_frame: list[float], radius: float) -> int | None:
    """Return the first frame whose mean distance is above a radius; None: none is."""
    late = (n for n, value in enumerate(by_frame, SEEN + 1) if value > radius)
    return next(late, None)


def ask_model(model: Any, clips: Clips, last: int) -> tuple[Tensor, Tensor]:
    """Return draws of the forecasts and inferred positions, both matched to the truth, in pixels.

    Matched by the first five frames, as in the benchmark.
    """
    assert clips.positions is not None
    drawn, seen = [], []
    for some in torch.arange(len(clips.positions)).split(BATCH):
        part = clips[int(some[0]) : int(some[-1]) + 1]
        assert part.positions is not None
        answer = motes.forecast(model, part.frames[:, :SEEN], 3, last - SEEN)
        order = metrics.best_order(answer.pixels[:, :, :5], part.positions[:, :, :5])
        drawn.append(torch.stack([metrics.reorder(one.float(), order) for one in answer.draws]))
        seen.append(metrics.reorder(answer.pixels[:, :, :SEEN], order))
    return torch.cat(drawn, 1).double(), torch.cat(seen).double()


def ask_oracle(world: Billiards, states: Float[Tensor, "B N T 4"]) -> Float[Tensor, "S B N T 2"]:
    """Return draws of the simulator from the states of the last seen frame, with noise."""
    generator = torch.Generator().manual_seed(0)
    start = states[:, :, SEEN - 1].repeat(ORACLE_DRAWS, 1, 1)
    sd = ORACLE_PIXELS * world.side / world.size
    start = start + sd * torch.randn(start.shape, generator=generator, dtype=torch.float64)
    later = world.simulate_from(start, states.shape[2] - SEEN)
    return world.pixels(later[..., :2].unflatten(0, (ORACLE_DRAWS, len(states))))


def run_one(
    case: str, seed: int, runs: Path, sizes: tuple[int, int, int, int], device: str
) -> dict[str, Any]:
    """Train on fresh clips, then score forecasts of others."""
    num_clips, num_tests, num_long, steps = sizes
    world, folder = CASES[case], runs / f"{case}-{seed}"
    path = runs / f"{case}-{seed}.npz"
    save_clips(path, world.make(num_clips, FRAMES, seed=seed))
    config = find(PRESET)
    data = dataclasses.replace(config.data, path=str(path))
    schedule = dataclasses.replace(config.schedule, iterations=steps or config.schedule.iterations)
    config = dataclasses.replace(config, data=data, schedule=schedule, seed=seed)
    cpu, wall = time.process_time(), time.monotonic()
    outcome = train(config, folder, device=device)
    learning = {
        "clips": num_clips,
        "frames": FRAMES,
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "wall_seconds": round(time.monotonic() - wall, 1),
        "held_out_bound": outcome.held_out_bound,
    }
    model = motes.load(folder)
    record: dict[str, Any] = {
        "learning": learning,
        "law": model.law.record(),
        "words": str(model.law).splitlines(),
        "environment": environment(torch.device(device)),
    }
    radius = world.radius * 2 / world.side
    tests = world.make(num_tests, LAST, seed=TEST_SEED + seed)
    assert tests.positions is not None
    cpu = time.process_time()
    draws, seen = ask_model(model, tests, LAST)
    record["forecast_cpu_seconds_a_clip"] = round((time.process_time() - cpu) / num_tests, 4)
    truth = tests.positions.double()
    record["seen_rmse_pixels"] = float((seen - truth[:, :, :SEEN]).square().mean().sqrt())
    record["frames_9_18"] = forecast_scores(draws[..., SEEN:, :], truth[:, :, SEEN:], world.size)
    clips = world.make(num_long, LONG, seed=TEST_SEED + seed)
    assert clips.positions is not None
    future = clips.positions.double()[:, :, SEEN:]
    states = world.simulate(num_long, LONG, TEST_SEED + seed)
    for name, found in (
        ("frames_9_100", ask_model(model, clips, LONG)[0][..., SEEN:, :]),
        ("oracle_9_100", ask_oracle(world, states)),
    ):
        record[name] = forecast_scores(found, future, world.size)
        record[name]["lost_at_frame"] = lost_at(record[name]["error_by_frame"], radius)
    return record


def main() -> None:
    """Run all cases and seeds in processes of their own, and store their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--test-clips", type=int, default=300)
    parser.add_argument("--long-clips", type=int, default=60)
    parser.add_argument("--steps", type=int, default=0, help="0: those of the preset")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="to train on; scores are of the CPU")
    parser.add_argument("--runs", type=Path, default=Path("runs/billiards"))
    parser.add_argument("--out", type=Path, default=Path("experiments/events/billiards.json"))
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # (case, seed)
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    sizes = (given.clips, given.test_clips, given.long_clips, given.steps)
    if given.only:
        case, seed = given.only
        record = run_one(case, int(seed), given.runs, sizes, given.device)
        write_json(given.runs / f"{case}-{seed}.json", record)
        return
    jobs, lock = [(case, str(seed)) for case in given.cases for seed in given.seeds], Lock()
    names = ("--clips", "--test-clips", "--long-clips", "--steps")
    options = [part for pair in zip(names, map(str, sizes), strict=True) for part in pair]

    def start(job: tuple[str, str]) -> None:
        command = [sys.executable, "-m", "experiments.events.score_billiards", "--only", *job]
        command += ["--runs", str(given.runs), "--device", given.device, *options]
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        with lock:
            found: dict[str, Any] = {}
            for case, seed in jobs:
                path = given.runs / f"{case}-{seed}.json"
                if path.exists():
                    found.setdefault(case, {})[seed] = json.loads(path.read_text("utf-8"))
            write_json(given.out, found)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(start, jobs))


if __name__ == "__main__":
    main()
