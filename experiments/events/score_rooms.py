"""Train on balls in a box, a box with gravity and a polygon; score gaps and forecasts.

The box follows the rules of Kalman VAE: 32x32 pixels, 20 frames, of which the first and the last
four are seen. Scores are the share of wrong pixels of the hidden frames (a disk at the mean
position), position errors and coverage of 90 % regions, for gaps and for forecasts from four
frames. The true law is exact in time and knows in which pixels the positions are: draws of the
posterior, by sequential Monte Carlo.

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
from motes.core.files import write_json
from motes.data import Clips, save_clips
from motes.data.worlds.registry import draw_disks
from motes.data.worlds.walled import WalledRoom, box, polygon
from motes.training.presets import find
from motes.training.train import train

ROOMS = {"box": box(), "box-gravity": box(gravity=0.12), "polygon": polygon(5)}
FRAMES, SEEN = 20, 4
STAGES = 16  # of sequential Monte Carlo
TRAINING_SEED, TEST_SEED = 1, 2_000_000
PRESET = "sprites-video"
REGION = 4.605170185988092  # of chi squared with two degrees of freedom, 90 %
# A predictor returns means and covariances of positions from clips and which frames were seen.
Predictor = Callable[[Clips, Bool[Tensor, " T"]], tuple[Tensor, Tensor]]


def draw_true_paths(
    room: WalledRoom,
    points: Float[np.ndarray, "clips T 2"],
    observed: Bool[np.ndarray, " T"],
    num_draws: int = 200,
) -> Float[np.ndarray, "clips draws T 2"]:
    """Return paths by the exact law that pass through the given pixels in the observed frames.

    Sequential Monte Carlo over the first state: draws of the prior are filtered by their largest
    distance from the centres of pixels, resampled and moved by Metropolis steps, with a tolerance
    that falls to half a pixel, which is what a pixel says.
    """
    rng, num_clips = np.random.default_rng(0), len(points)
    low, high = room.speeds

    def simulate(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, path = first.reshape(-1, 4), []
        for _ in range(points.shape[1]):
            path.append(state[:, :2])
            state = room.advance(state)
        paths = np.stack(path, 1).reshape(*first.shape[:2], -1, 2)
        return paths, np.abs(paths - points[:, None])[:, :, observed].max((2, 3))

    def weight(first: np.ndarray) -> np.ndarray:
        """Density of the prior: speed and direction are uniform, all places as good."""
        speed = np.linalg.norm(first[..., 2:], axis=-1)
        inside = (first[..., :2] @ np.array(room.normals).T >= np.array(room.offsets) + 1).all(-1)
        return np.where(inside & (low <= speed) & (speed <= high), 1 / speed, 0.0)

    shape = (num_clips, 8 * num_draws)
    angle, speed = 2 * math.pi * rng.random(shape), rng.uniform(low, high, shape)
    place = points[:, None, 0] + rng.random((*shape, 2)) - 0.5
    first = np.concatenate(
        [place, (speed * np.array([np.cos(angle), np.sin(angle)])).transpose(1, 2, 0)], -1
    )
    first[weight(first) == 0, :2] = np.broadcast_to(points[:, None, 0], place.shape)[
        weight(first) == 0
    ]
    paths, error = simulate(first)
    rows = np.arange(num_clips)[:, None]
    for _ in range(STAGES):
        kept = num_draws // 4
        order = np.argsort(error, 1)
        limit = np.maximum(np.take_along_axis(error, order[:, [kept]], 1), 0.5)
        alive = (error < limit).sum(1, keepdims=True)
        chosen = order[
            rows, (rng.random((num_clips, num_draws)) * np.maximum(alive, 1)).astype(int)
        ]
        first, paths, error = first[rows, chosen], paths[rows, chosen], error[rows, chosen]
        away = first - first.mean(1, keepdims=True)
        spread = np.einsum("cni,cnj->cij", away, away) / num_draws + 1e-9 * np.eye(4)
        root = np.linalg.cholesky(spread)
        for scale in (1.0, 0.5, 0.25):
            noise = rng.normal(size=first.shape)
            other = first + scale * np.einsum("cij,cnj->cni", root, noise)
            ratio = weight(other) / np.maximum(weight(first), 1e-9)
            other = np.where((ratio > 0)[..., None], other, first)
            new_paths, new_error = simulate(other)
            moved = (rng.random(error.shape) < ratio) & (new_error < limit)
            first = np.where(moved[..., None], other, first)
            paths = np.where(moved[..., None, None], new_paths, paths)
            error = np.where(moved, new_error, error)
    return paths


def ask_true_law(room: WalledRoom) -> Predictor:
    """Return the predictor that knows the law and the pixels in which positions are."""

    def ask(clips: Clips, observed: Bool[Tensor, " T"]) -> tuple[Tensor, Tensor]:
        assert clips.positions is not None
        points = clips.positions[:, 0].double().round().numpy()
        paths = torch.cat(
            [
                torch.from_numpy(draw_true_paths(room, some, observed.numpy()))
                for some in np.array_split(points, -(-len(points) // 50))
            ]
        )
        mean = paths.mean(1)
        away = paths - mean[:, None]
        covariance = torch.einsum("cnti,cntj->ctij", away, away) / paths.shape[1]
        return mean, covariance + 1e-6 * torch.eye(2, dtype=torch.float64)

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


def learn(name: str, seed: int, folder: Path, num_clips: int, device: str) -> None:
    """Train on clips of a room, with a record of the time."""
    path = folder.parent / f"{name}.npz"
    if not path.exists():
        save_clips(path, ROOMS[name].make(num_clips, FRAMES, TRAINING_SEED))
    config = find(PRESET)
    data = dataclasses.replace(config.data, path=str(path))
    config = dataclasses.replace(config, data=data, seed=seed)
    wall, cpu = time.monotonic(), time.process_time()
    outcome = train(config, folder, device=device)
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
        learn(name, int(seed), folder, given.clips, given.device)
    model = motes.load(folder)
    return {
        "training": json.loads((folder / "training.json").read_text("utf-8")),
        "words": str(model.law).splitlines(),
        **score(room, ask_model(model), clips),
        "environment": environment(torch.device(given.device)),
    }


def main() -> None:
    """Run all rooms and seeds in processes of their own, and store one record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--seeds", nargs="*", default=["0", "1", "2"])
    parser.add_argument("--clips", type=int, default=400, help="to learn from")
    parser.add_argument("--test-clips", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="to train on; scores are of the CPU")
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
        for option in ("clips", "test_clips", "runs", "device"):
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
