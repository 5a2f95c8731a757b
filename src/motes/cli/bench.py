"""`motes bench`: time training and queries on this machine."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from motes import queries
from motes.cli.options import Json, Out, check_device, print_result
from motes.cli.progress import bar
from motes.core.files import check_places
from motes.data import cannonballs
from motes.models.checkpoint import load_with_config, shipped_names, write_json
from motes.training import train as training
from motes.training.presets import preset
from motes.training.run_folder import environment

REPORTS = 5  # of the speed of training; the median counts
REPEATS = 3  # of each query, after a warm-up; the fastest counts
NUM_CLIPS, NUM_OBJECTS, NUM_OBSERVED = 20, 2, 5


def bench(
    device: str = "cpu",
    smoke: bool = False,
    out: Out[Path | None] = None,
    as_json: Json = False,
) -> None:
    """Time a training step and queries on this machine.

    Example: motes bench --out times.json

    Args:
        device: cpu or cuda.
        smoke: run everything at a tiny size; the times have no meaning.
        out: output file: JSON record of the times.
        as_json: print one JSON line instead of text.
    """
    check_device(device)
    check_places(out)
    names, rows = shipped_names(), {}
    with bar("timing", 1 + len(names)) as progress:
        rows["training step, preset small"] = _time_training(device, smoke)
        for done, name in enumerate(names):
            progress(1 + done)
            rows |= _time_queries(name, device, 2 if smoke else NUM_CLIPS)
    record = {"verb": "bench", "environment": environment(torch.device(device)), "seconds": rows}
    if out is not None:
        write_json(out, record)
    print_result(
        record, as_json, "\n".join(f"{1e3 * s:10.1f} ms  {row}" for row, s in rows.items())
    )


def _time_training(device: str, smoke: bool) -> float:
    """Return the seconds of a training step, batch and logging included."""
    config, every = preset("paper", "smoke" if smoke else "small"), 2 if smoke else 20
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, num_clips=100, num_held_out=8),
        schedule=config.schedule.stretched(REPORTS * every),
        log_every=every,
    )
    speeds: list[float] = []

    def report(line: dict[str, Any]) -> None:
        if "bound" in line:
            speeds.append(line["iterations_per_second"])

    with tempfile.TemporaryDirectory() as folder:
        training.train(config, Path(folder) / "run", device=device, report=report)
    return 1 / statistics.median(speeds)


def _time_queries(name: str, device: str, num_clips: int) -> dict[str, float]:
    """Return the seconds per clip to infer and to forecast with a shipped model."""
    model, config = load_with_config(name)
    model.to(device)
    data = config.data
    clips = cannonballs(num_clips, NUM_OBJECTS, data.num_frames, (data.height, data.width))
    frames, horizon = clips.frames.float().to(device), data.num_frames - NUM_OBSERVED
    jobs: dict[str, Callable[[], Any]] = {
        "infer": lambda: queries.infer(model, frames, NUM_OBJECTS).pixels.cpu(),
        "forecast": lambda: queries.forecast(
            model, frames[:, :NUM_OBSERVED], NUM_OBJECTS, horizon
        ).pixels.cpu(),
    }
    return {f"{job}, one clip, {name}": _fastest(run) / num_clips for job, run in jobs.items()}


def _fastest(job: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up."""
    seconds = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
