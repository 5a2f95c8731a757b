"""The training run of `motes demo`, with snapshots for display."""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Float
from motes.models.model import Model, load_with_config
from motes.models.sprites.renderer import SpriteRenderer
from motes.training.initialization import STEPS
from motes.training.presets import PRESETS
from motes.training.train import train


class Snapshot(NamedTuple):
    """The state of a run at one report."""

    restart: int  # number of the restart; 0: the run continued from the best one
    step: int
    of: int
    rate: float  # steps per second; 0 before the first step
    bound: float  # nats per clip, of the batches since the last snapshot
    sprite: Float[np.ndarray, "cells cells"]  # white probability of an object's pixels


class TrainedRun(NamedTuple):
    """The result of a training run."""

    model: Model
    config: RunConfig
    snapshots: list[Snapshot]
    held_out_bound: float  # nats per clip
    seconds: float


def short_run() -> RunConfig:
    """Return the sprite model's preset with fewer steps and clips: about a minute of training."""
    full = PRESETS["sprites"]
    return dataclasses.replace(
        full,
        data=dataclasses.replace(full.data, num_clips=1_000, num_held_out=48),
        schedule=full.schedule.stretched(216),
        log_every=6,
        checkpoint_every=216,
    )


def learn(
    config: RunConfig, show: Callable[[Snapshot], None] = lambda snapshot: None
) -> TrainedRun:
    """Train a sprite model from scratch; `show` is called with every snapshot.

    Raises:
        KeyboardInterrupt: Training was interrupted.
    """
    began, snapshots = time.monotonic(), []

    def report(line: dict[str, Any]) -> None:
        if "start" in line or "bound" in line:
            snapshots.append(snapshot_of(line))
            show(snapshots[-1])

    with tempfile.TemporaryDirectory() as folder:
        outcome = train(config, Path(folder), report=report)
        if not outcome.finished:
            raise KeyboardInterrupt
        model, _ = load_with_config(folder)
    seconds = time.monotonic() - began
    return TrainedRun(model, config, snapshots, outcome.held_out_bound, seconds)


def snapshot_of(line: dict[str, Any]) -> Snapshot:
    """Return the snapshot of one report of training."""
    sprite = sprite_image(line["model"])
    if "start" in line:
        return Snapshot(line["start"], line["start_step"], STEPS, 0.0, line["start_bound"], sprite)
    rate = line["iterations_per_second"]
    return Snapshot(0, line["step"], line["of"], rate, line["bound"], sprite)


def best_restart(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Return the snapshots of the best restart and of the run after it, steps numbered on."""
    trials = [snapshot for snapshot in snapshots if snapshot.restart > 0]
    best = max((s for s in trials if s.step == STEPS), key=lambda snapshot: snapshot.bound)
    before = [snapshot for snapshot in trials if snapshot.restart == best.restart]
    after = [s._replace(step=STEPS + s.step) for s in snapshots if s.restart == 0]
    return [*before, *after]


@torch.no_grad()
def sprite_image(model: Model) -> Float[np.ndarray, "cells cells"]:
    """Return the probability that an object lights a pixel, by the pixel's offset from it."""
    assert isinstance(model.renderer, SpriteRenderer)
    image: Float[np.ndarray, "cells cells"] = (
        -torch.expm1(-model.renderer.root_depth.square()).cpu().numpy()
    )
    return image
