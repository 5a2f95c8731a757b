"""Queries with one thread, with all threads and with the chosen number, quiet and under load.

The load is one busy process per core. Wall time says what a user waits, CPU time what is burnt.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from motes.core.device import THREADS
from motes.data import cannonballs
from motes.models.checkpoint import load
from motes.models.model import Model
from motes.queries import infer

MODELS = ("cannonballs-structured", "cannonballs-48")
CLIPS = (1, 4, 16, 64)
ROUNDS = 5  # the median counts
NUM_OBJECTS = 3


def bench_threads(*, smoke: bool = False) -> dict[str, Any]:
    """Return milliseconds per clip of `infer` for each model, batch, load and number of threads."""
    cores, rows = torch.get_num_threads(), []
    for load_processes in (0, os.cpu_count() or 1):
        with busy_processes(load_processes):
            for name in MODELS:
                model = load(name)
                for num_clips in CLIPS[:1] if smoke else CLIPS:
                    times = time_threads(model, num_clips, cores, 1 if smoke else ROUNDS)
                    row = {"model": name, "clips": num_clips, "busy_processes": load_processes}
                    rows.append({**row, **times})
    return {"cores": cores, "rounds": ROUNDS, "num_objects": NUM_OBJECTS, "rows": rows}


def time_threads(model: Model, num_clips: int, cores: int, rounds: int) -> dict[str, Any]:
    """Return median wall and CPU milliseconds per clip; the settings take turns."""
    frames = cannonballs(num_clips, NUM_OBJECTS, 30, model.image_size, seed=7).frames.float()
    settings: dict[str, str | None] = {"one": "1", "all": str(cores), "chosen": None}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in settings}
    before = os.environ.pop(THREADS, None)
    try:
        for turn in range(rounds + 1):  # the first one warms up
            for name, threads in settings.items():
                os.environ.pop(THREADS, None)
                if threads is not None:
                    os.environ[THREADS] = threads
                began = time.perf_counter(), time.process_time()
                infer(model, frames, NUM_OBJECTS).pixels.sum().item()
                ended = time.perf_counter(), time.process_time()
                if turn > 0:
                    wall, cpu = (
                        1e3 * (b - a) / num_clips for a, b in zip(began, ended, strict=True)
                    )
                    taken[name].append((wall, cpu))
    finally:
        os.environ.pop(THREADS, None)
        if before is not None:
            os.environ[THREADS] = before
    return {
        name: {
            kind: round(statistics.median(values), 2)
            for kind, values in zip(("wall_ms", "cpu_ms"), zip(*pairs, strict=True), strict=True)
        }
        for name, pairs in taken.items()
    }


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Run so many processes that compute without end while the block lasts."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    value = 1.0
    while True:
        value = (value * 1.000001) % 2.0
