"""Learning that is watched: the demo's own run from scratch, and snapshots of the way."""

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
from motes.models.checkpoint import load_with_config
from motes.models.model import Model
from motes.models.sprites.renderer import SpriteRenderer
from motes.training.initialization import STEPS
from motes.training.presets import preset
from motes.training.train import train


class Snapshot(NamedTuple):
    """A run at one moment."""

    start: int  # the number of a rough start, of which the best will be taken; 0: the run itself
    step: int
    of: int
    rate: float  # steps a second; 0 before the first step
    bound: float  # nats a clip, of the batches since the last snapshot
    glyph: Float[np.ndarray, "cells cells"]  # how an object looks: the probability of white


class TrainedRun(NamedTuple):
    """What came out of a run, and how."""

    model: Model
    config: RunConfig
    snapshots: list[Snapshot]
    held_out_bound: float  # nats a clip
    seconds: float


def short_run() -> RunConfig:
    """The structured family's preset with fewer steps, on fewer clips: about a minute of it."""
    full = preset("structured", "robust")
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
    """A model of the structured family, learned from scratch; `show` sees it grow.

    Raises:
        KeyboardInterrupt: training was told to stop.
    """
    began, snapshots = time.monotonic(), []

    def report(line: dict[str, Any]) -> None:
        if "start" in line or "bound" in line:
            snapshots.append(take(line))
            show(snapshots[-1])

    with tempfile.TemporaryDirectory() as folder:
        outcome = train(config, Path(folder), report=report)
        if not outcome.finished:
            raise KeyboardInterrupt
        model, _ = load_with_config(folder)
    seconds = time.monotonic() - began
    return TrainedRun(model, config, snapshots, outcome.held_out_bound, seconds)


def take(line: dict[str, Any]) -> Snapshot:
    """The snapshot of a report of training."""
    glyph = picture_of_glyph(line["model"])
    if "start" in line:
        return Snapshot(line["start"], line["start_step"], STEPS, 0.0, line["start_bound"], glyph)
    rate = line["iterations_per_second"]
    return Snapshot(0, line["step"], line["of"], rate, line["bound"], glyph)


def way_taken(snapshots: list[Snapshot]) -> list[Snapshot]:
    """The snapshots of the start that was taken and of the run from there, steps counted on."""
    trials = [snapshot for snapshot in snapshots if snapshot.start > 0]
    best = max((s for s in trials if s.step == STEPS), key=lambda snapshot: snapshot.bound)
    before = [snapshot for snapshot in trials if snapshot.start == best.start]
    after = [s._replace(step=STEPS + s.step) for s in snapshots if s.start == 0]
    return [*before, *after]


@torch.no_grad()
def picture_of_glyph(model: Model) -> Float[np.ndarray, "cells cells"]:
    """The probability that an object lights a pixel, for each offset of the pixel from it."""
    assert isinstance(model.renderer, SpriteRenderer)
    picture: Float[np.ndarray, "cells cells"] = (
        -torch.expm1(-model.renderer.root_depth.square()).cpu().numpy()
    )
    return picture
