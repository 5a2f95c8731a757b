"""`motes bench`: time training and queries on this machine."""

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from motes import queries
from motes.cli.options import Json, Out, check_device, print_result
from motes.core.files import check_output_paths
from motes.data import cannonballs
from motes.models.model import load_with_config, shipped_names, write_json
from motes.training import train as training
from motes.training.presets import PRESETS
from motes.training.run_folder import environment

REPEATS = 5  # the median counts


def bench(
    device: str = "cpu", smoke: bool = False, out: Out[Path | None] = None, as_json: Json = False
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
    check_output_paths(out)
    times = {"training step, preset small": _time_training(device, smoke)}
    for name in shipped_names():
        times |= _time_queries(name, device, 2 if smoke else 20)
    record = {"verb": "bench", "environment": environment(torch.device(device)), "seconds": times}
    if out is not None:
        write_json(out, record)
    lines = [f"{1e3 * seconds:10.1f} ms  {name}" for name, seconds in times.items()]
    print_result(record, as_json, "\n".join(lines))


def _time_training(device: str, smoke: bool) -> float:
    """Return the seconds of a training step."""
    config, steps = PRESETS["paper-smoke" if smoke else "paper-small"], 2 if smoke else 20
    data = dataclasses.replace(config.data, num_clips=100, num_held_out=8)
    schedule = config.schedule.stretched(REPEATS * steps)
    config = dataclasses.replace(config, data=data, schedule=schedule, log_every=steps)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        training.train(config, Path(folder) / "run", device=device, report=lines.append)
    speeds: list[float] = [line["iterations_per_second"] for line in lines if "bound" in line]
    return 1 / statistics.median(speeds)


def _time_queries(name: str, device: str, num_clips: int) -> dict[str, float]:
    """Return the seconds per clip to infer and to forecast two objects with a shipped model."""
    model, config = load_with_config(name, device=device)
    size, num_frames = (config.data.height, config.data.width), config.data.num_frames
    frames = cannonballs(num_clips, 2, num_frames, size).frames.float().to(device)
    jobs: dict[str, Callable[[], Any]] = {
        "infer": lambda: queries.infer(model, frames, 2).pixels.cpu(),
        "forecast": lambda: queries.forecast(model, frames[:, :5], 2, num_frames - 5).pixels.cpu(),
    }
    times = {}
    for job, run in jobs.items():
        run()  # warm-up
        moments = [time.perf_counter()]
        for _ in range(REPEATS):
            run()
            moments.append(time.perf_counter())
        seconds = [end - start for start, end in itertools.pairwise(moments)]
        times[f"{job}, one clip, {name}"] = statistics.median(seconds) / num_clips
    return times
