"""Figures of one model on a few clips: the views they show, and the files of `motes figures`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data import Clips
from motes.evaluation.evaluate import (
    NUM_CONTEXT,
    Progress,
    by_count,
    evaluate,
    no_progress,
    query_masks,
)
from motes.evaluation.learned import first_points_and_steps, latent_grid, learned_initial_states
from motes.evaluation.predictor import ModelPredictor
from motes.models.model import Model
from motes.output import plots
from motes.output.plots import FORECAST, INFERRED, INTERPOLATED, TRUTH, View
from motes.output.tracks import tracks_of
from motes.queries import forecast, infer, interpolate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_TIMES = 8  # columns of the strip


def true_view(clips: Clips, clip: int) -> View:
    """Return the truth of one clip; its covariances are zero."""
    assert clips.num_objects is not None
    assert clips.positions is not None
    assert clips.clean is not None
    present, frames = slice(int(clips.num_objects[clip])), clips.frames[clip].float().numpy()
    pixels, path = (points[clip, present].numpy() for points in (clips.positions, clips.clean))
    certain = np.zeros((*pixels.shape, 2), dtype=pixels.dtype)
    return View(
        style=TRUTH,
        pixels=pixels,
        pixel_covariances=certain,
        path_pixels=path,
        path_pixel_covariances=certain,
        observed=np.ones(len(frames), dtype=bool),
        detected=np.ones(pixels.shape[:2], dtype=bool),
        frames=frames,
        mean_frames=frames,
    )


def example_views(model: Model, clips: Clips) -> list[list[View]]:
    """Return, for each clip, the truth and the answers to infer, forecast and interpolate."""
    frames, counts = clips.frames.float(), clips.num_objects
    assert counts is not None
    num_frames = frames.shape[1]
    horizon, gap = num_frames - NUM_CONTEXT, query_masks(num_frames)["interpolation"]
    views = [[true_view(clips, i)] for i in range(len(frames))]
    for style, answer in (
        (INFERRED, infer(model, frames, counts)),
        (FORECAST, forecast(model, frames[:, :NUM_CONTEXT], counts, horizon)),
        (INTERPOLATED, interpolate(model, frames, gap, counts)),
    ):
        drawn = (answer.frames.cpu().numpy(), answer.mean_frames.cpu().numpy())
        for i, own in enumerate(views):
            tracks = tracks_of(answer, i, style)
            own.append(replace(tracks, frames=drawn[0][i], mean_frames=drawn[1][i]))
    return views


class Material:
    """What figures are drawn from, computed when first used."""

    def __init__(self, model: Model, clips: Clips, name: str) -> None:
        self.model, self.clips, self.name = model, clips, name

    @cached_property
    def examples(self) -> list[list[View]]:
        """The truth and the three answers, for the first clip with each number of objects."""
        first = torch.stack([indices[0] for indices in by_count(self.clips).values()])
        return example_views(self.model, self.clips[first])

    @cached_property
    def record(self) -> dict[str, Any]:
        """The scores of all clips."""
        return evaluate(ModelPredictor(self.model), self.clips)

    @property
    def times(self) -> list[int]:
        """The frames of the strip."""
        last = self.clips.video.shape[1] - 1
        return [round(t * last / (NUM_TIMES - 1)) for t in range(NUM_TIMES)]


def _overlays(material: Material) -> "Figure":
    rows = [[(v.style.label, v.mean_frames) for v in views] for views in material.examples]
    return plots.overlays(rows)


def _initial_states(material: Material) -> "Figure":
    found = learned_initial_states(material.model)
    fields = (*first_points_and_steps(material.clips), found.places, found.spreads, found.steps)
    arrays = (field.detach().cpu().numpy() for field in fields)
    return plots.initial_states(material.model.image_size, *arrays)


FIGURES: dict[str, Callable[[Material], "Figure"]] = {
    "strip": lambda m: plots.strip(m.examples[len(m.examples) // 2], m.times),
    "trajectories": lambda m: plots.trajectories(m.examples),
    "overlays": _overlays,
    "horizon": lambda m: plots.horizon({m.name: m.record}),
    "reliability": lambda m: plots.reliability(m.record),
    "initial-states": _initial_states,
    "latent-grid": lambda m: plots.latent_grid(*latent_grid(m.model, m.clips)),
}


def figures_of(
    model: Model,
    clips: Clips,
    out: Path,
    *,
    name: str = "model",
    only: Sequence[str] = (),
    progress: Progress = no_progress,
) -> list[str]:
    """Write figures of a model's answers and scores into a folder; return their names.

    Args:
        model: Any model.
        clips: With truth; a few dozen suffice.
        out: Folder for the PNG and PDF files; made if missing.
        name: Label of the model in figures.
        only: Names out of `FIGURES`; default: all.
        progress: Called with the number of figures drawn.

    Raises:
        InputError: An unknown figure, or clips without truth.
    """
    wanted = list(only or FIGURES)
    for figure in wanted:
        if figure not in FIGURES:
            raise InputError(f"no figure {figure!r}; choose from {', '.join(FIGURES)}")
    if clips.num_objects is None or clips.positions is None or clips.clean is None:
        raise InputError("these clips carry no truth; figures need positions and clean paths")
    material = Material(model, clips, name)
    out.mkdir(parents=True, exist_ok=True)
    for done, figure in enumerate(wanted):
        drawn = FIGURES[figure](material)
        for suffix, content in (("png", plots.png(drawn)), ("pdf", plots.pdf(drawn))):
            with atomic_path(out / f"{figure}.{suffix}") as temporary:
                temporary.write_bytes(content)
        progress(done + 1)
    return wanted
