"""Train on balls in a box, a box with gravity and a polygon; score gaps and forecasts.

The box follows the rules of Kalman VAE: 32x32 pixels, 20 frames, of which the first and the last
four are seen. Scores are the share of wrong pixels of the hidden frames (a disk at the mean
position), position errors and coverage of 90 % regions, for gaps and for forecasts from four
frames. The true law is given the true positions, rounded to pixels; it reflects at the end of
steps, which under gravity is exact only for short ones, so there it takes four to a frame.

Usage: python -m experiments.events.score_rooms --rooms box --seeds 0 1 2 --jobs 4
           --runs runs/rooms --out experiments/events/rooms.json
"""

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motes
from motes.core.axes import Bool, Float, Tensor
from motes.core.environment import environment
from motes.data import Clips, save_clips
from motes.data.worlds.registry import draw_disks
from motes.data.worlds.walled import WalledRoom, box, polygon
from motes.kalman.event_dynamics import draw_paths
from motes.kalman.events import EventLaw, Walls
from motes.kalman.model import LGSSM
from motes.models.model import write_json
from motes.training.presets import find
from motes.training.train import train

ROOMS = {"box": box(), "box-gravity": box(gravity=0.12), "polygon": polygon(5)}
FRAMES, SEEN = 20, 4
SUBSTEPS = 4  # of a frame, of the true law under gravity
TRAINING_SEED, TEST_SEED = 1, 2_000_000
PRESET = "sprites-video"
REGION = 4.605170185988092  # of chi squared with two degrees of freedom, 90 %
ROUNDING = 1 / 12  # variance of a position that is rounded to pixels
# A predictor returns means and covariances of positions from clips and which frames were seen.
Predictor = Callable[[Clips, Bool[Tensor, " T"]], tuple[Tensor, Tensor]]


def true_law(room: WalledRoom, substeps: int) -> EventLaw:
    """Return the law of a room in pixels and frames, for steps of a part of a frame."""
    dt = 1 / substeps
    eye = torch.eye(2, dtype=torch.float64)
    zero, g = torch.zeros_like(eye), torch.tensor(room.gravity, dtype=torch.float64)
    transition = torch.cat([torch.cat([eye, dt * eye], 1), torch.cat([zero, eye], 1)])
    low, high = room.speeds
    # Uniform speeds in any direction: E v^2 / 2 in each axis.
    velocity = (low**2 + low * high + high**2) / 6
    centre = (room.size - 1) / 2
    model = LGSSM(
        transition=transition,
        force=torch.cat([dt**2 * g / 2, dt * g]),
        emission=torch.cat([eye, zero], 1),
        state_noise=1e-8 * torch.eye(4, dtype=torch.float64),
        position_noise=ROUNDING * eye,
        initial_mean=torch.tensor([[centre, centre, 0.0, 0.0]], dtype=torch.float64),
        initial_covariance=torch.diag(
            torch.tensor([room.spread**2] * 2 + [velocity] * 2, dtype=torch.float64)
        )[None],
    )
    offsets = torch.tensor(room.offsets, dtype=torch.float64)
    normals = torch.tensor(room.normals, dtype=torch.float64)
    walls = Walls(normals, offsets, torch.full_like(offsets, room.restitution))
    return EventLaw(model, torch.zeros(1, dtype=torch.float64), walls)


def ask_true_law(room: WalledRoom) -> Predictor:
    """Return the predictor that knows the law and the positions to half a pixel."""
    substeps = SUBSTEPS if any(room.gravity) else 1
    law = true_law(room, substeps)

    def ask(clips: Clips, observed: Bool[Tensor, " T"]) -> tuple[Tensor, Tensor]:
        assert clips.positions is not None
        means, covariances = [], []
        for points in clips.positions[:, 0].double().round().split(100):
            steps = points.repeat_interleave(substeps, 1)
            seen = torch.zeros(len(points), steps.shape[1], dtype=torch.bool)
            seen[:, ::substeps] = observed
            paths = draw_paths(law, steps, seen, torch.zeros_like(steps))
            _, mean, covariance = paths.moments(1)
            means.append(mean[:, 0, ::substeps, :2])
            covariances.append(covariance[:, 0, ::substeps, :2, :2])
        return torch.cat(means), torch.cat(covariances)

    return ask


def ask_model(model: Any) -> Predictor:
    """Return the predictor of a trained model."""

    def ask(clips: Clips, observed: Bool[Tensor, " T"]) -> tuple[Tensor, Tensor]:
        means, covariances = [], []
        for first in range(0, len(clips), 100):
            some = clips[first : first + 100]
            answer = motes.interpolate(model, some.frames.float(), observed, 1)
            means.append(answer.path_pixels[:, 0].double())
            covariances.append(answer.path_pixel_covariances[:, 0].double())
        return torch.cat(means), torch.cat(covariances)

    return ask


def score(room: WalledRoom, ask: Predictor, clips: Clips) -> dict[str, Any]:
    """Return the scores of hidden frames in gaps and in forecasts."""
    assert clips.clean is not None
    frame = torch.arange(FRAMES)
    masks = {"gap": (frame < SEEN) | (frame >= FRAMES - SEEN), "forecast": frame < SEEN}
    truth, scores = clips.clean[:, 0].double(), {}
    for name, observed in masks.items():
        mean, covariance = ask(clips, observed)
        hidden = ~observed
        mean, covariance, true = mean[:, hidden], covariance[:, hidden], truth[:, hidden]
        away = mean - true
        inside = (away[..., None, :] @ covariance.inverse() @ away[..., None])[..., 0, 0] < REGION
        scores[name] = {
            "wrong_pixels": wrong_pixels(room, mean, clips.frames[:, hidden]),
            "rmse": float(away.square().sum(-1).mean().sqrt()),
            "coverage90": float(inside.double().mean()),
        }
    return scores


def wrong_pixels(
    room: WalledRoom, mean: Float[Tensor, "clips T 2"], frames: Float[Tensor, "clips T H W"]
) -> float:
    """Return the share of pixels that differ from a disk at the mean position, kept inside."""
    far = room.size - 1 - room.radius
    places = mean.clamp(room.radius, far).numpy()[:, None]
    drawn = draw_disks(places, room.size, room.size, room.radius)
    return float(np.mean(drawn != frames.numpy().astype(drawn.dtype)))


def learn(name: str, seed: int, folder: Path, num_clips: int) -> None:
    """Train on clips of a room, with a record of the time."""
    path = folder.parent / f"{name}.npz"
    if not path.exists():
        save_clips(path, ROOMS[name].make(num_clips, FRAMES, TRAINING_SEED))
    config = find(PRESET)
    data = dataclasses.replace(config.data, path=str(path))
    config = dataclasses.replace(config, data=data, seed=seed)
    wall, cpu = time.monotonic(), time.process_time()
    outcome = train(config, folder)
    spent = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    record = {f"{kind}_seconds": round(taken, 1) for kind, taken in spent.items()}
    write_json(folder / "training.json", {"steps": outcome.step, "clips": num_clips, **record})


def run_one(name: str, seed: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train and score a seed, or score the true law."""
    room = ROOMS[name]
    clips = room.make(given.test_clips, FRAMES, TEST_SEED)
    if seed == "true law":
        return score(room, ask_true_law(room), clips)
    folder = given.runs / f"{name}-{seed}"
    if not (folder / "training.json").exists():
        learn(name, int(seed), folder, given.clips)
    model = motes.load(folder)
    return {
        "training": json.loads((folder / "training.json").read_text("utf-8")),
        "words": str(model.law).splitlines(),
        **score(room, ask_model(model), clips),
        "environment": environment(torch.device("cpu")),
    }


def main() -> None:
    """Run all rooms and seeds in processes of their own, and store one record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--seeds", nargs="*", default=["0", "1", "2"])
    parser.add_argument("--clips", type=int, default=400, help="to learn from")
    parser.add_argument("--test-clips", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/rooms"))
    parser.add_argument("--out", type=Path, default=Path("experiments/events/rooms.json"))
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # (room, seed or "true law")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    if given.only:
        name, seed = given.only
        write_json(given.runs / f"{name}-{seed}.json", run_one(name, seed, given))
        return
    for name in given.rooms:
        path = given.runs / f"{name}.npz"  # shared by all seeds
        if not path.exists():
            save_clips(path, ROOMS[name].make(given.clips, FRAMES, TRAINING_SEED))
    jobs = [(name, seed) for name in given.rooms for seed in ("true law", *given.seeds)]

    def start(job: tuple[str, str]) -> None:
        command = [sys.executable, "-m", "experiments.events.score_rooms", "--only", *job]
        for option in ("clips", "test_clips", "runs"):
            command += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
        threads = str(max(math.floor((os.cpu_count() or 1) / given.jobs), 1))
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": threads})

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(start, jobs))
    record: dict[str, Any] = {"what": __doc__.splitlines()[0], "preset": PRESET}
    for name, seed in jobs:
        path = given.runs / f"{name}-{seed}.json"
        record.setdefault(name, {})[seed] = (
            json.loads(path.read_text("utf-8")) if path.exists() else "failed"
        )
    write_json(given.out, record)


if __name__ == "__main__":
    main()
