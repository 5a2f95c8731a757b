"""Which restart of a training run wins, and how early that shows.

All restarts take all of their steps, on batches of several sizes; the bounds of every report are
stored. From them follows what a rule that stops restarts early would have chosen. A restart that is
not stopped takes the same steps under every rule.

Usage: python -m benchmarks.restarts --seeds 0 1 2 --out restarts.json
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recordings import HEIGHT, WIDTH, Setting, juggling
from motes.config import DataConfig, RunConfig
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, save_clips
from motes.training import step
from motes.training.inputs import fit_sprite_size, make_dataset
from motes.training.presets import PRESETS

NUM_CLIPS, NUM_FRAMES, NUM_OBJECTS = 50, 30, 5
BATCHES = (16, 8)


def juggling_config(folder: Path, seed: int, num_clips: int = NUM_CLIPS) -> RunConfig:
    """Return a run on clips of simulated juggling."""
    setting = Setting(NUM_OBJECTS, NUM_FRAMES + 15 * (num_clips - 1))
    frames, _ = juggling(setting, seed + 1)
    clips = np.stack([frames[15 * n : 15 * n + NUM_FRAMES] for n in range(num_clips)])
    path = folder / f"juggling-{seed}.npz"
    save_clips(path, Clips(torch.from_numpy(clips), torch.full((num_clips,), NUM_OBJECTS)))
    data = DataConfig(
        path=str(path),
        num_clips=num_clips - num_clips // 10,
        num_held_out=num_clips // 10,
        num_objects=tuple(range(1, NUM_OBJECTS + 1)),
        num_frames=NUM_FRAMES,
        height=HEIGHT,
        width=WIDTH,
        seed=seed,
    )
    return fit_sprite_size(replace(PRESETS["sprites-video"], data=data, seed=seed))


def cannonball_config(preset: str, seed: int, num_clips: int = 300) -> RunConfig:
    """Return a run on simulated cannonballs."""
    config = PRESETS[preset]
    data = replace(config.data, num_clips=num_clips, num_held_out=12, seed=seed)
    return replace(config, data=data, seed=seed)


def all_restarts(config: RunConfig, batch: int) -> list[dict[str, Any]]:
    """Return bounds and CPU seconds of every report of every restart."""
    device, found = torch.device("cpu"), []
    data = make_dataset(config, device).training
    for number, scales in enumerate(step.RESTARTS, 1):
        own = replace(step.restart_config(config, *scales), batch_size=batch)
        start, bounds, seconds = time.process_time(), [], []
        for trial in step.restart(number, own, data, device):
            bounds.append(round(trial.bound, 2))
            seconds.append(round(time.process_time() - start, 2))
        found.append({"bounds": bounds, "cpu_seconds": seconds})
    return found


def kept(restarts: list[dict[str, Any]], report: int, number: int) -> bool:
    """Return whether the best restart is among the best ones at an earlier report."""
    ends = [one["bounds"][-1] for one in restarts]
    early = sorted(range(len(restarts)), key=lambda one: -restarts[one]["bounds"][report])
    return int(np.argmax(ends)) in early[:number]


def main() -> None:
    """Run all restarts of all runs; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    number = {"num_clips": 12} if given.smoke else {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            runs = {
                "juggling": juggling_config(Path(folder), seed, **number),
                **{name: cannonball_config(name, seed, **number)
                   for name in ("sprites", "sprites-occluded")},
            }  # fmt: skip
            for name, config in runs.items():
                for batch in BATCHES:
                    found = all_restarts(config, batch)
                    half = len(found[0]["bounds"]) // 2 - 1
                    early = {f"best {n} at half": kept(found, half, n) for n in (1, 2)}
                    row = {"run": name, "seed": seed, "batch": batch, "restarts": found}
                    rows.append({**row, "kept": early})
                    print(name, seed, batch, early, found, flush=True)
                    record = {"environment": environment(torch.device("cpu")), "runs": rows}
                    write_json(given.out, record)


if __name__ == "__main__":
    main()
