"""Sprite models on a GPU against two CPU cores: the search and the training of 1,000 clips.

The CPU part runs in a process of its own on two cores. Both parts compute the same numbers: random
ones are functions of seed and step, drawn on the CPU.

Usage: python -m benchmarks.sprites_gpu --device cuda
           --out benchmarks/records/bench_sprites_gpu.json
       python -m benchmarks.sprites_gpu --device cuda --profile FOLDER

With --profile no record is written: the folder gets one table of operators for each task.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from motes.core.environment import environment
from motes.data import cannonballs
from motes.evaluation.metrics import best_order, reorder
from motes.models.checkpoint import load
from motes.queries import infer
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer, held_out_bound, initialize, restart, restart_config

MODEL = "cannonballs-structured"
CORES = 2
CPU_BATCH = 200  # clips at a time, which bounds memory


def measure(device: str, num_clips: int, iterations: int) -> dict[str, Any]:
    """Return seconds and results of both tasks on a device; tensors are on the CPU."""
    place = torch.device(device)
    on_gpu = place.type == "cuda"

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    model = load(MODEL, device=device)
    per_count = -(-num_clips // 3)
    clips = [cannonballs(per_count, count, seed=7).frames.float() for count in (1, 2, 3)]
    batch = num_clips if on_gpu else CPU_BATCH
    infer(model, clips[2][:2], 3)  # compiles and allocates
    wait()
    start, found = time.perf_counter(), []
    for count, frames in enumerate(clips, 1):
        parts = []
        for part in frames.split(batch):
            answer = infer(model, part, count)
            parts.append((answer.pixels.cpu(), answer.found.cpu()))
        found.append(tuple(torch.cat(each) for each in zip(*parts, strict=True)))
    wait()
    searched = time.perf_counter() - start
    training = train(place, num_clips, iterations, wait)
    return {"search_seconds": searched, "found": found, **training}


def train(device: torch.device, num_clips: int, iterations: int, wait: Any) -> dict[str, Any]:
    """Return the seconds of a training run, split, and the bounds that it reaches."""
    full = PRESETS["sprites"]
    config = dataclasses.replace(
        full,
        data=dataclasses.replace(full.data, num_clips=num_clips, num_held_out=48),
        schedule=full.schedule.stretched(iterations),
    )
    dataset = make_dataset(config, device)
    Trainer(config, dataset.training, device).advance()  # compiles and allocates
    wait()
    start = time.perf_counter()
    trainer = Trainer(config, dataset.training, device)
    restarts = [trial.bound for trial in initialize(trainer)]
    wait()
    chosen = time.perf_counter()
    bounds, taken = [], []
    while trainer.step < iterations:
        before = time.perf_counter()
        trainer.advance()
        wait()
        taken.append(round(1e3 * (time.perf_counter() - before), 1))
        if trainer.step % 12 == 0:
            bounds.append(float(trainer.mean_terms().weighted(1.0)))
    wait()
    end = time.perf_counter()
    assert dataset.held_out is not None
    return {
        "restart_seconds": chosen - start,
        "step_seconds": end - chosen,
        "step_ms": taken,
        "restart_bounds": restarts,
        "bounds": bounds,
        "held_out_bound": held_out_bound(trainer, dataset.held_out),
    }


def profile(device: str, num_clips: int, folder: Path) -> None:
    """Write the operators of a search, a training step and a restart, by time and by number."""
    place = torch.device(device)
    model, frames = load(MODEL, device=device), cannonballs(num_clips // 3, 3, seed=7).frames
    full = PRESETS["sprites"]
    data = dataclasses.replace(full.data, num_clips=num_clips, num_held_out=48)
    config = dataclasses.replace(full, data=data, schedule=full.schedule.stretched(12))
    dataset = make_dataset(config, place).training
    trainer = Trainer(config, dataset, place)

    def steps() -> None:
        for _ in range(3):
            trainer.advance()

    def fit() -> None:
        while trainer.step < 12:
            trainer.advance()

    def restarts() -> None:
        for _ in restart(1, restart_config(config, 1.0, 1.0), dataset, place):
            pass

    def search() -> None:
        infer(model, frames.float(), 3)

    tasks = {
        "search": search,
        "first step": trainer.advance,
        "three steps": steps,
        "last steps": fit,
        "one restart": restarts,
    }
    activities = [torch.profiler.ProfilerActivity.CPU]
    if place.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    infer(model, frames[:2].float(), 3)
    Trainer(config, dataset, place).advance()  # compiles and allocates
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in tasks.items():
        with torch.profiler.profile(activities=activities) as found:
            start = time.perf_counter()
            task()
            if place.type == "cuda":
                torch.cuda.synchronize()
            taken = time.perf_counter() - start
        averages = found.key_averages()
        orders = ("count", "self_cpu_time_total", "self_device_time_total")
        tables = [averages.table(sort_by=order, row_limit=40) for order in orders]
        launches = sum(row.count for row in averages if "LaunchKernel" in row.key)
        head = f"{name}: {taken:.3f} s with the profiler, {launches} kernels"
        print(head, flush=True)
        (folder / f"{name.replace(' ', '_')}.txt").write_text("\n".join([head, *tables]))


def compared(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return how far the answers and the bounds of two devices agree.

    Hypotheses that end with the same tracks name objects in different orders and have the same
    bound but for rounding, so objects are matched first.
    """
    away, flags, total = [], 0, 0
    for (ours, seen), (found, also) in zip(one["found"], other["found"], strict=True):
        order = best_order(found, ours)
        theirs = reorder(found, order)
        also = reorder(also, order)
        away.append((ours - theirs).abs().amax(-1).flatten())
        flags, total = flags + int((seen != also).sum()), total + seen.numel()
    apart = torch.cat(away)
    pairs = list(zip(one["restart_bounds"], other["restart_bounds"], strict=True))
    return {
        "positions": len(apart),
        "largest_difference_px": float(apart.max()),
        "quantile_99.9_px": float(apart.sort().values[int(0.999 * (len(apart) - 1))]),
        "share_beyond_0.01_px": float((apart > 0.01).double().mean()),
        "detections_that_differ": flags,
        "detections": total,
        "largest_difference_of_restart_bounds": max(abs(a - b) for a, b in pairs),
        "difference_of_held_out_bounds": one["held_out_bound"] - other["held_out_bound"],
    }


def bench(device: str, num_clips: int, iterations: int) -> dict[str, Any]:
    """Return the record: seconds of both, their ratios, and how far they agree."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cpu.pt"
        command = [sys.executable, "-m", "benchmarks.sprites_gpu", "--part", str(path)]
        command += ["--clips", str(num_clips), "--iterations", str(iterations)]
        cores = f"0-{CORES - 1}"
        limits = os.environ | {"OMP_NUM_THREADS": str(CORES), "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(["taskset", "-c", cores, *command], env=limits, check=True)
        cpu = torch.load(path, weights_only=True)
    ours = measure(device, num_clips, iterations)
    names = ("search_seconds", "restart_seconds", "step_seconds")
    seconds = {name: {"cpu": cpu[name], device: ours[name]} for name in names}
    print(json.dumps(seconds), flush=True)
    learning = sum(cpu[n] for n in names[1:]) / sum(ours[n] for n in names[1:])
    return {
        "task": f"search of {num_clips} clips of 1 to 3 objects, 3 hypotheses; training on "
        f"{num_clips} clips, {iterations} steps after the restarts",
        "seconds": seconds,
        "ratio": {
            "search": cpu["search_seconds"] / ours["search_seconds"],
            "learning": learning,
        },
        "step_ms": {"cpu": cpu["step_ms"], device: ours["step_ms"]},
        "held_out_bound": {"cpu": cpu["held_out_bound"], device: ours["held_out_bound"]},
        "agreement": compared(ours, cpu),
    }


def main() -> None:
    """Run one part, or both and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=108)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="folder for tables of operators")
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        torch.save(measure("cpu", given.clips, given.iterations), given.part)
        return
    if given.profile is not None:
        profile(given.device, given.clips, given.profile)
        return
    result = bench(given.device, given.clips, given.iterations)
    record = {
        "bench": "sprites_gpu",
        "environment": environment(torch.device(given.device)),
        **result,
    }
    text = json.dumps(record, indent=2)
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
