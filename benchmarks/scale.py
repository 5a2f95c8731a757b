"""Time and memory of queries as functions of clip length, frame size and number of objects."""

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from motes.data import cannonballs
from motes.kalman import DENSE_FRAMES
from motes.models.model import Model, build
from motes.queries import forecast, infer, interpolate
from motes.training.presets import PRESETS

# Configurations whose models are timed.
FAMILIES = {
    "paper": PRESETS["paper-small"],
    "structured": PRESETS["sprites-small"],
    "pictures": PRESETS["layers"],
}
STATE_SIZE = 256  # of the paper's networks
BLOCK = 500  # clips in memory at a time when many are streamed


class Point(NamedTuple):
    """A query and its size; all curves pass through the defaults."""

    frames: int = 30
    objects: int = 2
    clips: int = 1
    size: int = 48
    question: str = "infer"


class Curve(NamedTuple):
    """The axis along which a query grows."""

    axis: str
    at: tuple[int, ...]
    question: str = "infer"

    def point(self, at: int) -> Point:
        """Return the point at a value of the axis."""
        size: dict[str, Any] = {self.axis: at}
        return Point(question=self.question, **size)


CURVES = {
    "frames": Curve("frames", (30, 100, 300, 1000, 3000)),
    "frames, interpolate": Curve("frames", (30, 300, 3000), "interpolate"),
    "frames, forecast": Curve("frames", (30, 300, 3000), "forecast"),
    "objects": Curve("objects", (1, 2, 4, 8, 16)),
    "clips": Curve("clips", (1, 4, 16, 64, 256)),
    "size": Curve("size", (32, 64, 128, 256)),
}
M_MMAP_THRESHOLD, LARGE = -3, 2**17  # of malloc.h; bytes
STREAMED = (100, 1_000, 10_000, 100_000, 1_000_000)
WARM_FRAMES = DENSE_FRAMES + 1  # warm-up query; longer clips use another algorithm
SMALL_CURVES = {
    name: curve._replace(at=(4, 5) if curve.axis == "frames" else (1, 2))
    for name, curve in CURVES.items()
    if name != "size"
}
Progress = Callable[[int], None]


def bench_scale(smoke: bool = False, progress: Progress = lambda done: None) -> dict[str, Any]:
    """Return seconds and peak memory of queries along every axis, and of streamed clips.

    Times are measured first: measuring memory makes malloc return free blocks at once, which costs
    time.

    Args:
        smoke: Few small points, to check that the benchmark runs.
        progress: Called with the number of points done.
    """
    curves, streamed = (SMALL_CURVES, (20, 40)) if smoke else (CURVES, STREAMED)
    points = [
        (family, curve.point(at))
        for curve in curves.values()
        for family in FAMILIES
        for at in curve.at
    ]
    done = iter(range(1, num_points(smoke) + 1))
    queried, flow = [], []
    for family, point in points:
        queried.append({"seconds": run_query(family, point)["seconds"]})
        progress(next(done))
    for count in streamed:
        flow.append(stream(count, BLOCK if not smoke else 10))
        progress(next(done))
    return_blocks_at_once()
    for (family, point), found in zip(points, queried, strict=True):
        held = run_query(family, point)
        found |= {name: held[name] for name in ("peak_mib", "answer_mib")}
        progress(next(done))
    found_in_order = iter(queried)
    measured: dict[str, Any] = {
        name: {
            "at": list(curve.at),
            **{family: [next(found_in_order) for _ in curve.at] for family in FAMILIES},
        }
        for name, curve in curves.items()
    }
    return {
        "task": "infer unless named; the number of objects is given",
        "threads": torch.get_num_threads(),
        "crossing": Point()._asdict(),
        "notes": {
            "peak": "MiB beyond what the process held before the query: all but the frames; "
            "malloc returns free blocks at once",
            "answer": "MiB still held once the answer is returned",
            "interpolate": "every fifth frame is hidden; networks receive a copy of the frames",
            "forecast": "the first half is observed",
            "models": f"untrained; the paper's networks with states of {STATE_SIZE}",
            "streamed": f"clips of 10 frames of 16x16, generated and queried {BLOCK} at a time; "
            "the paper's networks with states of 16",
        },
        "curves": measured,
        "streamed": {"at": list(streamed), "paper": flow},
    }


def num_points(smoke: bool = False) -> int:
    """Return the number of points that `bench_scale` measures."""
    curves = SMALL_CURVES if smoke else CURVES
    queries = sum(len(curve.at) for curve in curves.values()) * len(FAMILIES)
    return 2 * queries + (2 if smoke else len(STREAMED))


def model_for(family: str, point: Point, state_size: int = STATE_SIZE) -> Model:
    """Return an untrained model for queries of a size."""
    config = FAMILIES[family]
    data = replace(config.data, num_objects=(point.objects,), height=point.size, width=point.size)
    model = config.model
    if config.family == "paper":
        model = replace(model, inference_state_size=state_size, renderer_state_size=state_size)
    return build(replace(config, data=data, model=model))


def run_query(family: str, point: Point) -> dict[str, float]:
    """Return seconds and peak MiB of one query, after a small warm-up query."""
    model = model_for(family, point)
    clips = cannonballs(point.clips, point.objects, min(point.frames, 30), point.size)
    repeats = -(-point.frames // clips.video.shape[1])
    frames = clips.frames.repeat(1, repeats, 1, 1)[:, : point.frames].float()
    infer(model, frames[:1, :WARM_FRAMES], 1)
    observed, half = torch.arange(point.frames) % 5 != 3, point.frames // 2
    with peak_memory() as grown:
        start = time.perf_counter()
        match point.question:
            case "interpolate":
                answer = interpolate(model, frames, observed, point.objects)
            case "forecast":
                answer = forecast(model, frames[:, :-half], point.objects, horizon=half)
            case _:
                answer = infer(model, frames, point.objects)
        seconds = time.perf_counter() - start
    del answer  # after its memory was measured
    return {"seconds": seconds, "peak_mib": grown.peak, "answer_mib": grown.kept}


def stream(num_clips: int, block: int) -> dict[str, float]:
    """Return seconds and peak MiB of generating and querying clips block by block."""
    point = Point(frames=10, objects=1, size=16)
    model = model_for("paper", point, state_size=16)
    with peak_memory() as grown:
        start, total = time.perf_counter(), torch.zeros(2, dtype=torch.float64)
        for seed, first in enumerate(range(0, num_clips, block)):
            clips = cannonballs(min(block, num_clips - first), 1, point.frames, point.size, seed)
            total += infer(model, clips.frames, 1).pixels.double().sum((0, 1, 2))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_mib": grown.peak}


def return_blocks_at_once() -> None:
    """Make malloc return larger blocks to the system as soon as they are free.

    Otherwise the resident memory depends on the order of earlier queries.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


@dataclass
class Grown:
    """Growth of memory within a block in MiB: at its peak, and after it."""

    peak: float = 0.0
    kept: float = 0.0


@contextmanager
def peak_memory() -> Iterator[Grown]:
    """Yield an object that holds, after the block, the growth of memory within it.

    Linux records the peak of a process and lets the process reset it.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # free blocks that malloc keeps would hide allocations
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    grown = Grown()
    yield grown
    grown.peak = max(_status("VmHWM") - before, 0) / 1024
    libc.malloc_trim(0)
    grown.kept = max(_status("VmRSS") - before, 0) / 1024


def _status(name: str) -> int:
    """Return a number of this process's status, in KiB."""
    lines: Iterator[str] = iter(Path("/proc/self/status").read_text().splitlines())
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def growth(at: list[int], values: list[float]) -> float:
    """Return the exponent of growth over the last factor of ten of `at`: 1 is linear."""
    start = max(i for i, place in enumerate(at) if place * 10 <= at[-1] or i == 0)
    return math.log(values[-1] / max(values[start], 1e-9)) / math.log(at[-1] / at[start])
