"""Learning that is watched: the demo's own run from scratch, and snapshots of the way."""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.checkpoint import load_with_config
from motes.config import RunConfig
from motes.model import Model
from motes.presets import preset
from motes.shapes import Float
from motes.structured.glyph import GlyphRenderer
from motes.train import train


class Snapshot(NamedTuple):
    """A run at one moment."""

    step: int  # 0: one of the rough starts, of which the best will be taken
    of: int
    rate: float  # steps a second; 0 before the first step
    bound: float  # nats a clip, of the batches since the last snapshot
    glyph: Float[np.ndarray, "cells cells"]  # how an object looks: the probability of white


class Lesson(NamedTuple):
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
        schedule=full.schedule.stretched(168),
        log_every=6,
        checkpoint_every=168,
    )


def learn(config: RunConfig, show: Callable[[Snapshot], None] = lambda snapshot: None) -> Lesson:
    """A model of the structured family, learned from scratch; `show` sees it grow.

    Raises:
        KeyboardInterrupt: training was told to stop.
    """
    began, snapshots = time.monotonic(), []

    def report(line: dict[str, Any]) -> None:
        bound = line.get("start_bound", line.get("bound"))
        if bound is not None:
            rate = line.get("iterations_per_second", 0.0)
            glyph = picture_of_glyph(line["model"])
            snapshots.append(Snapshot(line["step"], line["of"], rate, bound, glyph))
            show(snapshots[-1])

    with tempfile.TemporaryDirectory() as folder:
        outcome = train(config, Path(folder), report=report)
        if not outcome.finished:
            raise KeyboardInterrupt
        model, _ = load_with_config(folder)
    seconds = time.monotonic() - began
    return Lesson(model, config, snapshots, outcome.held_out_bound, seconds)


@torch.no_grad()
def picture_of_glyph(model: Model) -> Float[np.ndarray, "cells cells"]:
    """The probability that an object lights a pixel, for each offset of the pixel from it."""
    assert isinstance(model.renderer, GlyphRenderer)
    picture: Float[np.ndarray, "cells cells"] = (
        -torch.expm1(-model.renderer.root_depth.square()).cpu().numpy()
    )
    return picture
