"""Figures of the paper that show frames and trajectories, by number."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.paper_figures.stored import Stored
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import draw_path, select
from motes.output.plots import (
    FORECAST,
    INFERRED,
    TRUTH,
    View,
    axes_grid,
    frame_axes,
    overlaid,
    shared_legend,
    show_frame,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST = -1  # the last frame, time-step 30
TRAININGS = {"frames": "ED-LSTM", "own_frames": "ED-LSTM, trained\non its own frames"}


def clips_overlaid(stored: Stored) -> "Figure":
    """Figure 1: two clips of two balls, overlaid in time."""
    figure, axes = axes_grid(1, 2, cell=2.2, room=(0.1, 0.1))
    for axis, clip in zip(axes[0], stored.with_count(2), strict=False):
        show_frame(axis, overlaid(stored.true_frames(clip)))
    return figure


def inferred_trajectories(stored: Stored) -> "Figure":
    """Figure 3: true trajectories, and the inferred ones in the model's own units."""
    figure, axes = axes_grid(2, 4, cell=2.1, room=(0.1, 0.5))
    pairs, to_latent = axes.reshape(4, 2), _latent_map(stored)
    for (left, right), clip in zip(pairs, stored.with_count(3), strict=False):
        truth = stored.truth(clip)
        frame_axes(left, truth.frames.shape[1:])
        latent = stored.examples["infer_positions"][clip]
        for n, path in enumerate(truth.pixels):
            _path(left, path, TRUTH.colour)
            _path(right, latent[n], INFERRED.colour)
            right.plot(*to_latent(path).T, color=FORECAST.colour, lw=1, ls=":")
        right.set_aspect("equal")
        right.tick_params(labelsize=6)
    axes[0, 0].set_title("truth, pixels", fontsize=8)
    axes[0, 1].set_title("inferred, the model's own units;\ndotted: the truth in them", fontsize=8)
    return figure


def _latent_map(stored: Stored) -> Callable[[np.ndarray], np.ndarray]:
    """The map from pixels to the model's own units, read off its answers, which carry both."""
    pixels = stored.examples["infer_pixels"].reshape(-1, 2)
    known = ~np.isnan(pixels).any(1)
    design = np.concatenate([pixels[known], np.ones((known.sum(), 1))], 1)
    latent = stored.examples["infer_positions"].reshape(-1, 2)[known]
    solution = np.linalg.lstsq(design, latent, rcond=None)[0]

    def to_latent(path: np.ndarray) -> np.ndarray:
        mapped: np.ndarray = path @ solution[:2] + solution[2]
        return mapped

    return to_latent


def initialisation(stored: Stored) -> "Figure":
    """Figure 4: paths that the dynamics draw before any training; nothing stored is needed."""
    generator = torch.Generator().manual_seed(4)
    dynamics = LinearDynamics(generator=generator)
    with torch.no_grad():
        component = torch.tensor([0, 1, 0])
        noise = torch.randn(3, 30, 6, generator=generator, dtype=torch.float64)
        path = draw_path(select(dynamics.components(), component), noise)
    figure, axes = axes_grid(1, 1, cell=3.2, room=(0.2, 0.2))
    marks = zip((INFERRED.colour, FORECAST.colour, TRUTH.colour), ("o", "s", "^"), strict=True)
    for n, (colour, marker) in enumerate(marks):
        axes[0, 0].plot(*path.states[n, :, :2].T, marker, color=colour, ms=3)
        axes[0, 0].plot(*path.positions[n].T, "x", color=colour, ms=4, alpha=0.6)
    axes[0, 0].set_title("marks: positions in h; crosses: a", fontsize=8)
    axes[0, 0].tick_params(labelsize=7)
    return figure


def stages_of_training(stored: Stored) -> "Figure":
    """Figure 5: inferred positions at three stages of training, and a clip whose balls swap.

    (a) is of preset `paper-small`, (b) of the model that was trained from scratch; its generated
    trajectories continue the first five frames by the learned dynamics.
    """
    arrays = stored.arrays("training")
    steps, positions = arrays["steps"], arrays["positions"]
    figure, axes = axes_grid(1, 5, cell=2.1, room=(0.1, 0.4))
    for axis, stage in zip(axes[0], (0, len(steps) // 3, len(steps) - 1), strict=False):
        for clip in positions[stage]:
            for path, colour, line in zip(clip, _PAIR, ("-", "--"), strict=False):
                axis.plot(*path.T, line, color=colour, lw=0.8)
        axis.set_title(f"(a) after {int(steps[stage])} steps", fontsize=8)
        axis.set_aspect("equal")
        axis.tick_params(labelsize=6)
    swap = stored.arrays("swap")
    truth, inferred, generated = (swap[name] for name in ("truth", "inferred", "generated"))
    for axis, title in zip(
        axes[0, 3:], ("(b) truth", "(b) generated (red), inferred (blue)"), strict=True
    ):
        frame_axes(axis, tuple(swap["frame_size"].tolist()))
        axis.set_title(title, fontsize=8)
    for paths, axis, colour in (
        (truth, axes[0, 3], TRUTH.colour),
        (generated, axes[0, 4], FORECAST.colour),
        (inferred, axes[0, 4], INFERRED.colour),
    ):
        for path, line in zip(paths, ("-", "--"), strict=True):
            _path(axis, path, colour, line)
    (left, top), (right, bottom) = truth.min((0, 1)) - 3, truth.max((0, 1)) + 3
    for axis in axes[0, 3:]:
        axis.set(xlim=(left, right), ylim=(bottom, top))
        axis.tick_params(labelsize=6)
    figure.supxlabel("networks: (a) preset paper-small; (b) preset paper-scratch", fontsize=7)
    return figure


_PAIR = (INFERRED.colour, FORECAST.colour)


def generated_and_true(stored: Stored) -> "Figure":
    """Figure 6: generated (left) against true (right) clips overlaid; ours above, ED-LSTM below.

    The last row is not in the paper: an ED-LSTM that was fed its own frames in training too.
    """
    recurrent = stored.recurrent_frames
    figure, axes = axes_grid(1 + len(recurrent), 6, cell=1.5, room=(0.4, 0.3))
    for column, clip in enumerate(stored.with_count(2)[:3]):
        true = overlaid(stored.true_frames(clip))
        inferred = (frames[clip] for frames in recurrent.values())
        for row, frames in enumerate((stored.drawn("forecast", clip), *inferred)):
            show_frame(axes[row, 2 * column], overlaid(frames))
            show_frame(axes[row, 2 * column + 1], true)
    for row, name in enumerate(("ours", *(TRAININGS[kind] for kind in recurrent))):
        axes[row, 0].set_ylabel(name, fontsize=8)
    _titles(axes[0], ("generated", "true") * 3)
    return figure


def forecast_trajectories(stored: Stored) -> "Figure":
    """Figure 8: forecasts from five frames, what all frames would show, and the truth."""
    figure, axes = axes_grid(1, 4, cell=2.3, room=(0.2, 0.4))
    chosen = (stored.with_count(2) + stored.with_count(3))[:4]
    for axis, clip in zip(axes[0], chosen, strict=False):
        _compare(axis, stored, clip, ("infer", "forecast"))
    shared_legend(figure, axes[0])
    return figure


def interpolations(
    stored: Stored, first: int = 0, number: int = 4, *, last_frames: bool = False
) -> "Figure":
    """Figure 9: generation and interpolation, paths above and overlaid clips below.

    With `last_frames`, as in figures 12 and 13, the frames at time-step 30 stand between.
    """
    rows = [(q, last) for last in ([True] if last_frames else []) + [False] for q in _DRAWN]
    figure, axes = axes_grid(1 + len(rows), 2 * number, cell=1.55, room=(0.2, 0.5))
    chosen = (stored.with_count(2) + stored.with_count(3))[first : first + number]
    for place, clip in enumerate(chosen):
        left, right = axes[0, 2 * place : 2 * place + 2]
        _compare(left, stored, clip, ())
        _compare(right, stored, clip, ("infer", "forecast", "interpolation"))
        for row, (question, last) in enumerate(rows, 1):
            shown = (stored.drawn(question, clip), stored.true_frames(clip))
            for axis, frames in zip(axes[row, 2 * place : 2 * place + 2], shown, strict=True):
                show_frame(axis, frames[LAST] if last else overlaid(frames))
    axes[0, 0].set_ylabel("paths", fontsize=8)
    for row, (question, last) in enumerate(rows, 1):
        name = f"{_DRAWN[question]} | true" + (",\ntime-step 30" if last else "")
        axes[row, 0].set_ylabel(name, fontsize=8)
    shared_legend(figure, axes[0])
    return figure


def many_generated(stored: Stored, frames: np.ndarray) -> "Figure":
    """Figures 10 and 11: generated and true, the last frame above and overlaid below."""
    rows, columns = 5, 3
    figure, axes = axes_grid(2 * rows, 2 * columns, cell=1.1, room=(0.1, 0.3))
    for clip in range(min(rows * columns, len(frames))):
        row, column = 2 * (clip // columns), 2 * (clip % columns)
        for offset, shown in enumerate((frames[clip], stored.true_frames(clip))):
            show_frame(axes[row, column + offset], shown[LAST])
            show_frame(axes[row + 1, column + offset], overlaid(shown))
    _titles(axes[0], ("generated", "true") * columns)
    return figure


_DRAWN = {"forecast": "generated", "interpolation": "interpolated"}


def _compare(axis: Any, stored: Stored, clip: int, questions: tuple[str, ...]) -> None:
    """True positions, thin and black, over those that answers tell.

    As in the paper: black is what was drawn, blue the mean of q.
    """
    truth = stored.truth(clip)
    frame_axes(axis, truth.frames.shape[1:])
    views: list[View] = [stored.answer(question, clip) for question in questions]
    for view in views:
        style = view.style
        for path in view.pixels:
            axis.plot(*path.T, style.line, color=style.colour, lw=1.8, label=style.label)
    for path in truth.pixels:
        axis.plot(*path.T, color=TRUTH.colour, lw=0.8, label=TRUTH.label)
        axis.plot(*path[0], "o", mfc="none", mec=TRUTH.colour, ms=5)


def _path(axis: Any, path: np.ndarray, colour: str, line: str = "-") -> None:
    axis.plot(*path.T, line, color=colour, lw=1, marker=".", ms=2)
    axis.plot(*path[0], "o", mfc="none", mec=colour, ms=6)


def _titles(axes: Any, titles: tuple[str, ...]) -> None:
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title, fontsize=8)
