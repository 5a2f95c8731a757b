"""Train several seeds of a preset and store what the figures of training need.

At every checkpoint the positions in some unseen clips are inferred: the share of clips that each
seed tracks, by number of balls, and for the first seed the inferred positions. The truth is used
for scoring only.

Usage: python -m experiments.paper_training.watch_training --out FOLDER
           [--device cuda] [--replicas 4] [--preset paper-small]
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motes
from motes.core.environment import environment
from motes.evaluation import metrics
from motes.training.presets import PRESETS
from motes.training.train import train

TEST_SEED, NUM_TEST = 1_000_000, 90
NUM_SHOWN = 12  # clips of two balls whose inferred positions are kept


class Watcher:
    """Asks every seed at every checkpoint."""

    def __init__(self, config: Any, device: str) -> None:
        data = config.data
        size = (data.height, data.width)
        self.device, self.began = device, time.monotonic()
        self.clips = motes.cannonballs(
            NUM_TEST, data.num_objects, data.num_frames, size, seed=TEST_SEED
        )
        self.shown = motes.cannonballs(NUM_SHOWN, 2, data.num_frames, size, seed=TEST_SEED)
        self.tracked: dict[str, list[dict[str, Any]]] = {}
        self.stages: dict[int, np.ndarray] = {}
        self.pixels = np.zeros(0)

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes a report of training; those of a checkpoint have a held-out bound."""
        if "held_out_bound" not in line:
            return
        folder = Path(line["folder"])
        model = motes.load(folder, device=self.device)
        assert self.clips.num_objects is not None
        assert self.clips.positions is not None
        answer = motes.infer(model, self.clips.frames, self.clips.num_objects)
        pixels, true = answer.pixels.cpu(), self.clips.positions
        own = metrics.reorder(pixels, metrics.best_order(pixels, true))
        kept = metrics.tracked(own, true).double()
        shares = {
            str(count): float(kept[self.clips.num_objects == count].mean())
            for count in sorted(set(self.clips.num_objects.tolist()))
        }
        step = int(line["step"])
        seconds = time.monotonic() - self.began
        row = {"step": step, "seconds": seconds, "bound": line["held_out_bound"], **shares}
        self.tracked.setdefault(folder.name, []).append(row)
        print(folder.name, row, flush=True)
        if folder.name == next(iter(self.tracked)):
            found = motes.infer(model, self.shown.frames, 2)
            self.stages[step] = found.positions.cpu().numpy().astype(np.float16)
            self.pixels = found.pixels.cpu().numpy().astype(np.float16)


def main() -> None:
    """Trains and writes one record and one file of arrays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="paper-small")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--checkpoint-every", type=int, default=500)
    options = parser.parse_args()
    config = PRESETS[options.preset]
    if options.iterations is not None:
        stretched = config.schedule.stretched(options.iterations)
        config = dataclasses.replace(config, schedule=stretched)
    config = dataclasses.replace(config, checkpoint_every=options.checkpoint_every)
    watcher = Watcher(config, options.device)
    options.out.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        steps = sorted(watcher.stages)
        np.savez_compressed(
            options.out / "training.npz",
            steps=np.array(steps),
            positions=np.stack([watcher.stages[step] for step in steps]),
            pixels=watcher.pixels,
        )
        record = {
            "training": options.preset,
            "test_seed": TEST_SEED,
            "frame_size": [config.data.height, config.data.width],
            "num_frames": config.data.num_frames,
            "environment": environment(torch.device(options.device)),
            "tracked": watcher.tracked,
        }
        (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")

    def report(line: dict[str, Any]) -> None:
        watcher(line)
        if "held_out_bound" in line:
            write()  # at every checkpoint: what is there stays, if time runs out

    with tempfile.TemporaryDirectory() as folder:
        train(
            config,
            Path(folder) / "run",
            device=options.device,
            replicas=options.replicas,
            report=report,
        )


if __name__ == "__main__":
    main()
