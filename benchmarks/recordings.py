"""CPU time and memory of one recording: `infer` and `track` beside trackpy and a Kalman tracker.

All contenders get the same frames in memory, at one thread, and take turns. Times are CPU
milliseconds a frame of this process, so that another load on the machine counts little. `infer`
knows disk and number of objects; `track` learns both; trackpy (with its engines `python` and, where
installed, `numba`) and the Kalman tracker, which links trackpy's features, get the diameter.

Usage: python -m benchmarks.recordings --out benchmarks/records/bench_recordings.json
           [--video 3_ball_juggling_cut.mp4]
"""

import argparse
import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.scale import peak_memory
from experiments.long_clips.hours import disk_config, disk_model
from motes.core.axes import Float
from motes.core.environment import environment
from motes.core.files import write_json
from motes.evaluation.baselines.point_trackers import Features, KalmanSettings, link_kalman
from motes.evaluation.tracking_metrics import idf1
from motes.kalman.dynamics import LinearDynamics
from motes.models.model import Model
from motes.queries import infer
from motes.tracking import track
from motes.video import open_video, whole_clip
from motes.video.foreground import blob_masses
from motes.video.geometry import Box, frame_size

RADIUS = 2.2  # pixels, of a disk
DIAMETER = 7  # of trackpy's features
REACH, MEMORY = 12.0, 3  # pixels and frames, of links
HEIGHT, WIDTH = 128, 77
ROUNDS = 2
Frames = Float[np.ndarray, "T height width"]
Paths = Float[np.ndarray, "N T 2"]


class Setting(NamedTuple):
    """A simulated recording; every axis passes through the defaults."""

    objects: int = 5
    frames: int = 300
    size: int = 1  # multiple of HEIGHT x WIDTH


AXES = {
    "objects": (1, 2, 4, 8, 16),
    "frames": (128, 300, 2000),
    "size": (1, 2, 4),
    "batch": (1, 10, 40),  # clips of BATCH_FRAMES frames that `infer` gets at once
}
BATCH_FRAMES = 30
CROWDS = (8, 32, 128)  # objects of `track`, in frames of CROWD_FRAMES
CROWD_FRAMES = 40


def juggling(setting: Setting, seed: int = 0) -> tuple[Frames, Paths]:
    """Return frames and true paths of balls that two hands throw to each other."""
    random, (n, T, size) = np.random.default_rng(seed), setting
    flight, hold = 33.0, 9.0  # frames
    beat = flight + hold
    clock = np.arange(T) + np.arange(n)[:, None] * 2 * beat / n
    throw, phase = np.divmod(clock, beat)
    throw = throw.astype(int)
    jitter = random.normal(0, 1.0, (n, throw.max() + 2))
    now, then = (np.take_along_axis(jitter, throw + k, 1) for k in (0, 1))
    right = throw % 2
    catch, inner = np.where(right, 57.0, 20.0) + now, np.where(right, 47.0, 30.0) + now / 2
    other = np.where(right, 20.0, 57.0) + then
    s, f = np.clip(phase / hold, 0, 1), np.clip((phase - hold) / flight, 0, 1)
    held = phase < hold
    x = np.where(held, catch + (inner - catch) * (1 - np.cos(np.pi * s)) / 2,
                 inner + (other - inner) * f)  # fmt: skip
    y = np.where(held, 112 + 6 * np.sin(np.pi * s), 112 - 380 * f * (1 - f))
    paths = np.stack([x, y], -1) + (size - 1) * np.array([WIDTH, HEIGHT]) / 2
    return render(paths, size * HEIGHT, size * WIDTH), paths


def crowd(num_objects: int, num_frames: int, seed: int = 0) -> tuple[Frames, Paths]:
    """Return frames and true paths of disks that drift, at one density whatever their number."""
    random = np.random.default_rng(seed)
    side = int(24 * np.sqrt(num_objects)) + 24
    start, speed = random.uniform(8, side - 8, (num_objects, 1, 2)), random.normal(0, 0.7, (
        num_objects, 1, 2))  # fmt: skip
    path = start + speed * np.arange(num_frames)[:, None]
    inner = side - 16
    folded = 8 + inner - np.abs((path - 8) % (2 * inner) - inner)
    return render(folded, side, side), folded


def render(paths: Paths, height: int, width: int) -> Frames:
    """Return frames of white disks with soft borders."""
    frames = np.zeros((paths.shape[1], height, width), np.float32)
    reach = np.arange(-5, 6)
    for t in range(paths.shape[1]):
        for x, y in paths[:, t]:
            rows, columns = round(y) + reach, round(x) + reach
            rows, columns = (
                at[(at >= 0) & (at < side)] for at, side in ((rows, height), (columns, width))
            )
            away = np.hypot(columns - x, rows[:, None] - y)
            part = frames[t, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            np.maximum(part, np.clip(RADIUS + 0.5 - away, 0, 1), out=part)
    return frames


def model_of(height: int, width: int, num_objects: int, radius: float) -> Model:
    """Return a sprite model that knows the disk; its linear law allows for hands."""
    config = disk_config(min(num_objects, 5))
    config = replace(
        config,
        data=replace(config.data, height=height, width=width),
        model=replace(config.model, window=9),
    )
    model = disk_model(config, radius)
    assert isinstance(model.dynamics, LinearDynamics)
    with torch.no_grad():
        model.dynamics.state_factor.diagonal().fill_(0.5 * np.log(0.05))
        model.pixel_offset.copy_(torch.tensor([(width - 1) / 2, (height - 1) / 2]))
    return model


def contenders(
    frames: Frames,
    num_objects: int | None,
    engines: Sequence[str],
    radius: float = RADIUS,
    num_clips: int = 1,
) -> dict[str, Callable[[], Paths]]:
    """Return calls that track the objects; each returns its paths, NaN where there are none.

    Without a number of objects `track` takes the place of `infer`. With several clips `infer` gets
    the frames cut into so many, and names objects anew in each; others take them one by one anyway.
    """
    calls: dict[str, Callable[[], Paths]] = {}
    if num_objects is None:
        calls["motes track"] = lambda: tracked(frames)
    else:
        _, height, width = frames.shape
        model = model_of(height, width, num_objects, radius)
        clips = torch.from_numpy(frames).unflatten(0, (num_clips, -1))
        calls["motes infer"] = lambda: (
            infer(model, clips, num_objects).pixels.transpose(0, 1).flatten(1, 2).numpy()
        )
    for engine in engines:
        calls[f"trackpy, {engine}"] = partial(linked, frames, engine, kalman=False)
    calls["Kalman and assignment"] = partial(linked, frames, engines[-1], kalman=True)
    return calls


def tracked(frames: Frames) -> Paths:
    """Return the paths of `track` where objects show."""
    found = track(frames)
    paths: Paths = np.where(found.shows[..., None] > 0.5, found.positions, np.nan)
    return paths


def engines() -> list[str]:
    """Return the engines of trackpy that are installed."""
    return ["python", *(["numba"] if importlib.util.find_spec("numba") else [])]


def linked(frames: Frames, engine: str, *, kalman: bool) -> Paths:
    """Return trackpy's features, linked by trackpy or by Kalman filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trackpy

        trackpy.quiet()
        found = []
        for picture in (255 * frames).astype(np.uint8):
            table = trackpy.locate(picture, DIAMETER, minmass=300, engine=engine)
            points = table[["x", "y"]].to_numpy()
            found.append(Features(points, np.full(len(points), 0.1), table["mass"].to_numpy()))
        if kalman:
            settings = KalmanSettings(REACH, 0.5, MEMORY, 1)
            return link_kalman(found, settings).positions
        links = trackpy.link_iter([one.points for one in found], REACH, memory=MEMORY)
        labels = [np.array(own, dtype=int) for _, own in links]
    paths = np.full((max(max(own, default=-1) for own in labels) + 1, len(frames), 2), np.nan)
    for t, (one, own) in enumerate(zip(found, labels, strict=True)):
        paths[own, t] = one.points
    return paths


def measure(
    calls: Mapping[str, Callable[[], Paths]], num_frames: int, truth: Paths | None, rounds: int
) -> dict[str, Any]:
    """Return CPU milliseconds a frame, memory and, with a truth, the share of it that is kept."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    paths: dict[str, Paths] = {}
    memory: dict[str, float] = {}
    for turn in range(rounds + 1):  # the first one warms up and measures memory
        for name, call in calls.items():
            if turn == 0:
                with peak_memory() as grown:
                    paths[name] = call()
                memory[name] = round(grown.peak, 1)
                continue
            start = time.process_time()
            call()
            taken[name].append(1e3 * (time.process_time() - start) / num_frames)
    result = {}
    for name in calls:
        own = {"min": min(taken[name]), "median": statistics.median(taken[name])}
        result[name] = {"cpu_ms": own, "peak_mib": memory[name]}
        if truth is not None:
            shown = ~np.isnan(paths[name][..., 0])
            visible = np.ones(truth.shape[:2], dtype=bool)
            result[name]["idf1"] = idf1(truth, visible, paths[name], shown)
    return result


def bench_axis(axis: str, smoke: bool) -> dict[int, Any]:
    """Return the curve over one axis; `crowd` is that of `track` over the number of objects."""
    rounds, engine = 1 if smoke else ROUNDS, engines()[-1:]
    curve: dict[int, Any] = {}
    values = CROWDS if axis == "crowd" else AXES[axis]
    truth: Paths | None
    for value in values[:1] if smoke else values:
        if axis == "crowd":
            frames, truth = crowd(value, CROWD_FRAMES)
            found = contenders(frames, None, engine)
        elif axis == "batch":
            frames, _ = juggling(Setting(frames=value * BATCH_FRAMES))
            found, truth = contenders(frames, Setting().objects, engine, num_clips=value), None
        else:
            setting = Setting(**{"frames": 130 if smoke else 300, axis: value})
            frames, truth = juggling(setting)
            found = contenders(frames, setting.objects, engine)
        curve[value] = measure(found, len(frames), truth, rounds)
        print(axis, value, curve[value], flush=True)
    return curve


def bench_video(path: Path, num_objects: int) -> dict[str, Any]:
    """Return the times of a recording after its preparation, without that of the preparation.

    The disk has the area of the typical blob.
    """
    video = open_video(path)
    height, width = frame_size(Box(0, 0, video.width, video.height), HEIGHT)
    whole = whole_clip(path, height, width).frames[0].numpy()
    masses = [mass for frame in whole for mass in blob_masses((255 * frame).astype(np.uint8))]
    radius = float(np.sqrt(np.median(masses) / np.pi))
    calls = contenders(whole, num_objects, engines(), radius)
    return {"name": path.name, "frames": len(whole), **measure(calls, len(whole), None, ROUNDS)}


def main() -> None:
    """Measure all settings; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--video", type=Path, help="recording of three objects")
    parser.add_argument("--axes", nargs="*", default=[*AXES, "crowd"], choices=[*AXES, "crowd"])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; the times mean nothing")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "bench": "recordings",
        "environment": environment(torch.device("cpu")),
        "load_average_before": os.getloadavg()[0],
        "rounds": 1 if given.smoke else ROUNDS,
        "frame": [HEIGHT, WIDTH],
    }
    if given.video is not None:
        record["video"] = bench_video(given.video, 3)
        write_json(given.out, record)
    for axis in given.axes:
        record[axis] = bench_axis(axis, given.smoke)
        write_json(given.out, record)


if __name__ == "__main__":
    main()
