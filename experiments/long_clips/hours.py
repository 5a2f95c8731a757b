"""Track disks through an hour of video; record time, memory and accuracy of `motes infer`.

The recording is made: disks on a textured background with camera noise, on paths that never repeat.
The command runs in a process of its own, whose peak memory is that of the system's accounting. A
recording an eighth as long is measured before it: bounded memory must not grow. There the command
is also killed half-way and resumed, and the bytes of both tables are compared. With --images the
recordings are folders of PNG images, for machines without PyAV.

Usage: python -m experiments.long_clips.hours --frames 108000
           --out experiments/long_clips/hours.json
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Float, UInt8
from motes.core.environment import environment
from motes.kalman.dynamics import LinearDynamics
from motes.models.checkpoint import save_model
from motes.models.model import Model, build
from motes.models.sprites.renderer import BACKGROUND_UNIT, CELLS_PER_PIXEL, SpriteRenderer
from motes.models.sprites.search import SpriteSettings
from motes.training.presets import PRESETS
from motes.video.source import write_mp4

SIZE, SCALE = 40, 2  # pixels of the model's frames; video pixels in one of them
RADIUS = 2.2  # of a disk, model pixels
FPS, NOISE = 30.0, 2.0  # frames a second; grey levels
NEAR = 2.0  # model pixels: farther away is another object


def disk_config(num_objects: int) -> RunConfig:
    """Return the configuration of a sprite model."""
    config = PRESETS["sprites-smoke"]
    objects = tuple(range(1, num_objects + 1))
    return replace(
        config,
        data=replace(config.data, height=SIZE, width=SIZE, num_objects=objects, num_frames=8),
        dynamics=replace(config.dynamics, law="newton", num_components=1, sampling_period=1.0),
        model=SpriteSettings(sprite_radius=4),
    )


@torch.no_grad()
def disk_model(config: RunConfig, radius: float = RADIUS) -> Model:
    """Return a model that knows the disks, and a law that is good for some frames."""
    model = build(config)
    renderer, dynamics = model.renderer, model.dynamics
    assert isinstance(renderer, SpriteRenderer)
    assert isinstance(dynamics, LinearDynamics)
    cells = renderer.root_depth.shape[0]
    at = (torch.arange(cells) - (cells - 1) / 2) / CELLS_PER_PIXEL
    inside = at[:, None].square() + at.square() <= radius**2
    renderer.root_depth.copy_(torch.where(inside, 2.0, 1e-2))
    renderer.root_background.fill_(math.sqrt(1e-4) / BACKGROUND_UNIT)
    renderer.visibility_logit.fill_(20.0)
    dynamics.initial_mean.zero_()
    dynamics.initial_factor[0].diagonal().copy_(torch.tensor([4.0, 4.0, 0.5, 0.5]).log())
    dynamics.state_factor.diagonal().fill_(0.5 * math.log(0.002))
    dynamics.position_factor.diagonal().fill_(0.5 * math.log(0.005))
    model.pixel_matrix.copy_(3 * torch.eye(2))  # as the renderer has it
    model.pixel_offset.fill_((SIZE - 1) / 2)
    return model


def places(num_frames: int, num_objects: int) -> Float[np.ndarray, "T N 2"]:
    """Return positions in video pixels, on paths that never repeat and often cross."""
    t = np.arange(num_frames)[:, None]
    n = np.arange(num_objects)
    x = np.sin(t / (17 + 1.3 * n) + 2.1 * n) + 0.3 * np.sin(t / (29.7 - n))
    y = np.cos(t / (19 + 1.7 * n) + 1.3 * n) + 0.3 * np.cos(t / (37.1 + n))
    return SCALE * ((SIZE - 1) / 2 + 0.31 * SIZE * np.stack([x, y], -1))


def pictures(at: Float[np.ndarray, "T N 2"]) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Yield the frames of the recording."""
    random, side = np.random.default_rng(0), SCALE * SIZE
    scene, noise = random.integers(30, 70, (side, side)), random.normal(0, NOISE, (16, side, side))
    rows, columns = np.indices((side, side))
    for t, now in enumerate(at):
        lit = np.zeros((side, side), dtype=bool)
        for x, y in now:
            lit |= (columns - x) ** 2 + (rows - y) ** 2 <= (SCALE * RADIUS) ** 2
        level = np.where(lit, 220, scene) + noise[t % len(noise)]
        yield np.repeat(level.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def write_images(folder: Path, frames: Iterator[UInt8[np.ndarray, "height width 3"]]) -> None:
    """Write the recording as a folder of PNG images."""
    from PIL import Image

    folder.mkdir()
    for t, picture in enumerate(frames):
        Image.fromarray(picture[..., 0]).save(folder / f"{t:07d}.png", compress_level=0)


def command_of(video: Path, run: Path, out: Path, num_objects: int) -> list[str]:
    """Return the command that tracks a recording."""
    command = [sys.executable, "-m", "motes", "infer", str(video), "--model", str(run)]
    command += ["--num-objects", str(num_objects), "--out", str(out), "--json"]
    return command + (["--source-fps", str(FPS)] if video.is_dir() else [])


def infer(command: list[str]) -> dict[str, Any]:
    """Run the command; return its time and the peak of its memory."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"motes infer ended with exit code {process.returncode}")
        printed.seek(0)
        record = json.loads(printed.read().splitlines()[-1])
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "frames": record["frames"],
        "stretches": record.get("stretches", 1),
        "warnings": record["warnings"],
        "wall_seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(cpu, 1),
        "cpu_ms_per_frame": round(1e3 * cpu / record["frames"], 3),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def resumed(command: list[str], table: Path, num_bytes: int) -> dict[str, Any]:
    """Kill the command once its table has so many bytes, resume it, and return its time."""
    part = table.with_name(table.name + ".part")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (part.is_file() and part.stat().st_size > num_bytes):
        time.sleep(0.2)
    if process.poll() is not None:
        raise RuntimeError("motes infer ended before it was killed")
    process.kill()
    process.wait()
    return {"killed_at_bytes": part.stat().st_size, **infer([*command, "--resume"])}


def scores(table: Path, truth: Float[np.ndarray, "T N 2"]) -> dict[str, Any]:
    """Return how far tracks are from the truth, and how often they change to another object."""
    found = np.full(truth.shape, np.nan)
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            found[int(row["frame"]), int(row["particle"])] = float(row["x"]), float(row["y"])
    apart = np.linalg.norm(found[:, :, None] - truth[:, None], axis=-1)  # T found true
    nearest, near = apart.argmin(2), apart.min(2) < SCALE * NEAR
    switches = 0
    for n in range(truth.shape[1]):
        followed = nearest[near[:, n], n]
        switches += int((np.diff(followed) != 0).sum())
    return {
        "near": float(near.mean()),
        "rmse_px": float(np.sqrt((apart.min(2)[near] ** 2).mean())),
        "switches": switches,
        "rows_missing": int(np.isnan(found[..., 0]).sum()),
    }


def measure(
    num_frames: int, num_objects: int, folder: Path, images: bool, kills: bool
) -> dict[str, Any]:
    """Return what the command does with a recording of this length."""
    folder.mkdir(exist_ok=True)
    truth, table = places(num_frames, num_objects), folder / "long.csv"
    video = folder / ("images" if images else "long.mp4")
    if images:
        write_images(video, pictures(truth))
    else:
        write_mp4(video, pictures(truth), FPS)
    run, config = folder / "model", disk_config(num_objects)
    run.mkdir()
    save_model(run, disk_model(config), config)
    found = {**infer(command_of(video, run, table, num_objects)), **scores(table, truth)}
    if kills:
        other, size = folder / "resumed.csv", table.stat().st_size
        found["resumed"] = resumed(command_of(video, run, other, num_objects), other, size // 2)
        found["resumed"]["same_bytes"] = other.read_bytes() == table.read_bytes()
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Measure both recordings, the shorter one first, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=108_000)
    parser.add_argument("--objects", type=int, default=2)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    lengths = (given.frames // 8, given.frames)
    with tempfile.TemporaryDirectory() as folder:
        found = [
            measure(length, given.objects, Path(folder) / str(length), given.images, number == 0)
            for number, length in enumerate(lengths)
        ]
    record = {
        "environment": environment(torch.device("cpu")),
        "task": f"{given.objects} disks, {'images' if given.images else 'H.264 video'} of "
        f"{SCALE * SIZE}x{SCALE * SIZE} pixels, prepared frames of {SIZE}x{SIZE}",
        "recordings": found,
        "seed": 0,
    }
    given.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
