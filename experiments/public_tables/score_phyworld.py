"""Learn phyworld's scenes from pixels and score velocities inside and outside the learned speeds.

Preset `sprites-video` is trained without options on clips with speeds of 1 to 4 units a second and
scored on unseen clips with the same speeds, slower and faster ones. Three frames are seen. As in
the benchmark, the error is the mean absolute difference of velocities, by differences of positions
in the frames in which all balls are wholly in sight, in units per second. The oracle
knows the true law and the moments of first states, and sees the true positions with noise as large
as the model's errors in them after one affine map of all clips. Radii are the same in all clips,
unlike the benchmark's.

Usage: python -m experiments.public_tables.score_phyworld uniform 0 --runs runs/phyworld --out FILE
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motes
from experiments.public_tables.score_forces import (
    MIN_NOISE,
    PRESET,
    PRIOR_CLIPS,
    TEST_SEED,
    aligned_errors,
    in_region,
)
from motes.core.axes import Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import save_clips
from motes.data.worlds.published import FASTER, IN_DISTRIBUTION, SLOWER, Kind, Scene
from motes.evaluation import metrics
from motes.training.presets import find
from motes.training.train import train

KINDS: tuple[Kind, ...] = ("uniform", "parabola", "collision")
SPEEDS = {"in distribution": IN_DISTRIBUTION, "slower": SLOWER, "faster": FASTER}
CLIPS, FRAMES, TESTS, SEEN, LAST = 200, 16, 60, 3, 16


def score(scene: Scene, model: Any, seed: int) -> dict[str, Any]:
    """Return errors of velocities, coverage, and those of the oracle, for unseen clips."""
    clips = scene.make(TESTS, LAST, seed=seed)
    states = scene.simulate(TESTS, LAST, seed)
    assert clips.positions is not None
    truth = clips.positions.double()
    answer = motes.forecast(model, clips.frames[:, :SEEN], truth.shape[1], LAST - SEEN)
    order = metrics.best_order(answer.pixels[:, :, :SEEN], clips.positions[:, :, :SEEN])
    draws = torch.stack([metrics.reorder(one.float(), order) for one in answer.draws]).double()
    seen = metrics.reorder(answer.pixels[:, :, :SEEN], order).double()
    rmse, aligned, _ = aligned_errors(seen, truth[:, :, :SEEN])
    sight = torch.from_numpy(scene.in_sight(states)[:, SEEN:])
    unit = scene.side / scene.size * scene.rate  # pixels a frame to units a second

    def velocity_error(path: Tensor) -> float:
        moved = torch.diff(path, dim=2) - torch.diff(truth[:, :, SEEN - 1 :], dim=2)
        both = sight[:, None, :, None].expand(moved.shape)
        return unit * float(moved[both].abs().mean())

    mean = draws.mean(0)
    inside = in_region(draws, truth).double()[..., SEEN:]
    held = inside[sight[:, None].expand(inside.shape)]
    return {
        "velocity_error": velocity_error(torch.cat([seen[:, :, -1:], mean[:, :, SEEN:]], 2)),
        "oracle_velocity_error": velocity_error(oracle(scene, states, max(aligned, MIN_NOISE))),
        "coverage90": float(held.mean()),
        "seen_rmse_pixels": rmse,
        "aligned_rmse_pixels": aligned,
        "clips": TESTS,
    }


def oracle(scene: Scene, states: np.ndarray, noise: float) -> Tensor:
    """Return the path that the true law says from noisy positions of the seen frames, in pixels.

    The most likely first state, whose prior has the moments of the scene's own first states; two
    balls that would overlap exchange velocities.
    """
    rng = np.random.default_rng(0)
    sd = noise * scene.side / scene.size
    x = states[:, :, :SEEN, :2] + sd * rng.normal(size=(*states.shape[:2], SEEN, 2))
    fall = np.array([0.0, scene.gravity / scene.rate**2 if scene.kind == "parabola" else 0.0])
    bent = x - 0.5 * fall * np.arange(SEEN)[:, None] ** 2
    others = scene.simulate(PRIOR_CLIPS, 1, seed=2 * TEST_SEED)[:, :, 0]
    design = np.concatenate([np.hstack([np.eye(2), t * np.eye(2)]) for t in range(SEEN)])
    start, v = np.empty((2, *bent.shape[:2], 2))
    for ball in range(bent.shape[1]):
        mean = others[:, ball].mean(0)
        prior = np.linalg.inv(np.cov(others[:, ball].T) + 1e-9 * np.eye(4))
        information = design.T @ design / sd**2 + prior
        slope = bent[:, ball].reshape(len(bent), -1) @ design / sd**2 + prior @ mean
        first = np.linalg.solve(information, slope.T).T
        start[:, ball], v[:, ball] = first[:, :2], first[:, 2:]
    later = np.arange(SEEN - 1, LAST)[:, None]
    path = start[:, :, None] + v[:, :, None] * later + 0.5 * fall * later**2
    if scene.kind == "collision":
        gap = start[:, 1, 0] - start[:, 0, 0] - 2 * scene.radius
        closing = np.maximum(v[:, 0, 0] - v[:, 1, 0], 1e-9)
        meet = np.maximum(gap / closing, 0.0)[:, None]
        after = np.maximum(later[:, 0] - meet, 0.0)
        change = (v[:, 1, 0] - v[:, 0, 0])[:, None] * after
        path[:, 0, :, 0] += change
        path[:, 1, :, 0] -= change
    return torch.from_numpy(scene.pixels(path))


def run_one(kind: Kind, seed: int, runs: Path, steps: int, device: str) -> dict[str, Any]:
    """Train on clips of one scene, then score all ranges of speeds."""
    scene, folder, path = Scene(kind, size=32), runs / f"{kind}-{seed}", runs / f"{kind}-{seed}.npz"
    save_clips(path, scene.make(CLIPS, FRAMES, seed=seed))
    config = find(PRESET)
    data = dataclasses.replace(config.data, path=str(path))
    schedule = dataclasses.replace(config.schedule, iterations=steps or config.schedule.iterations)
    cpu = time.process_time()
    train(
        dataclasses.replace(config, data=data, schedule=schedule, seed=seed), folder, device=device
    )
    used = round(time.process_time() - cpu, 1)
    model = motes.load(folder)
    return {
        "learning": {
            "clips": CLIPS,
            "frames": FRAMES,
            "steps": schedule.iterations,
            "cpu_seconds": used,
        },
        "words": str(model.law).splitlines(),
        "speeds": {
            name: score(dataclasses.replace(scene, speeds=speeds), model, TEST_SEED + seed)
            for name, speeds in SPEEDS.items()
        },
        "environment": environment(torch.device(device)),
    }


def main() -> None:
    """Run one scene and seed, and add its record to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("scene", choices=KINDS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--runs", type=Path, default=Path("runs/phyworld"))
    parser.add_argument("--steps", type=int, default=0, help="0: those of the preset")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("experiments/public_tables/phyworld.json"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    record = run_one(given.scene, given.seed, given.runs, given.steps, given.device)
    found = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    found.setdefault(given.scene, {})[str(given.seed)] = record
    write_json(given.out, found)


if __name__ == "__main__":
    main()
