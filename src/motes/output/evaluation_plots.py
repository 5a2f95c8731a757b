"""Figures of records, training and learned models: pure functions of arrays and plain numbers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from motes.core.axes import Bool, Float, Int
from motes.evaluation.labels import line_of
from motes.output.plots import (
    DPI,
    FORECAST,
    INFERRED,
    INTERPOLATED,
    axes_grid,
    closed,
    frame_axes,
    legend,
    outline,
    shared_legend,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SNAPSHOTS = 8  # of a sprite during training
Record = dict[str, Any]


def horizon(records: Mapping[str, Record]) -> "Figure":
    """Draw errors and losses of forecasts against the number of frames ahead."""
    counts = list(next(iter(records.values()))["by_count"])
    figure, axes = axes_grid(2, len(counts), cell=2.9, room=(0.3, 0.6))
    for column, count in enumerate(counts):
        for row, score in enumerate(("forecast_rmse_curve", "forecast_loss_curve")):
            for name, record in records.items():
                curve = record.get("curves", {}).get(count, {}).get(score)
                if curve is not None:
                    _draw_curve(axes[row, column], curve, *line_of(name))
        axes[0, column].set(yscale="log")
        axes[0, column].set_title(f"N = {count}", fontsize=9)
        axes[1, column].set(xlabel="frames ahead", ylim=(0, None))
    axes[0, 0].set_ylabel("RMSE to the path, px", fontsize=9)
    axes[1, 0].set_ylabel("frame loss, nats per pixel", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def _draw_curve(axis: Any, curve: Record, label: str, colour: str, line: Any) -> None:
    """Draw one curve with a band of two standard errors."""
    value, error = np.array(curve["value"]), np.array(curve["error"])
    ahead = np.arange(1, len(value) + 1)
    axis.plot(ahead, value, color=colour, ls=line, lw=1.6, label=label)
    axis.fill_between(ahead, value - 2 * error, value + 2 * error, color=colour, alpha=0.15, lw=0)


def reliability(record: Record) -> "Figure":
    """Draw how often the truth lies inside regions of each probability."""
    figure, axes = axes_grid(1, len(record["by_count"]), cell=2.9, room=(0.3, 0.5))
    levels = np.arange(0.05, 1, 0.05)
    styles = (
        ("infer", "inferred", INFERRED),
        ("forecast", "forecast", FORECAST),
        ("interpolation", "gap", INTERPOLATED),
    )
    for axis, count in zip(axes[0], record["by_count"], strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8)
        for query, label, style in styles:
            curve = record["curves"][count][f"{query}_reliability"]
            axis.plot(
                levels, curve["value"], color=style.colour, ls=style.line, marker=style.marker,
                ms=4, lw=1.2, label=label,
            )  # fmt: skip
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the region")
        axis.set_title(f"N = {count}", fontsize=9)
    axes[0, 0].set_ylabel("share of the truth inside", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def training_curve(
    steps: Int[np.ndarray, " S"],
    bounds: Float[np.ndarray, " S"],
    sprites: Float[np.ndarray, "S cells cells"],
) -> "Figure":
    """Draw the sprite at some steps of a run, and the ELBO below.

    Most changes early, so the snapshots are denser there.
    """
    from matplotlib.figure import Figure

    ranks = np.linspace(0, 1, min(SNAPSHOTS, len(steps)))
    shown = np.unique(np.round((len(steps) - 1) * ranks**2).astype(int))
    figure = Figure(figsize=(1.25 * SNAPSHOTS, 3.6), dpi=DPI, layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.0, 1.5))[:, 0]
    for axis, index in zip(above.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axis.imshow(sprites[index], cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"step {steps[index]}", fontsize=9)
    curve = below.subplots()
    curve.plot(steps, bounds, color=INFERRED.colour, lw=2)
    curve.plot(steps[shown], bounds[shown], "o", color=INFERRED.colour, ms=5)
    curve.set_xlabel("step", fontsize=8)
    curve.set_ylabel("ELBO, nats per clip", fontsize=8)
    curve.tick_params(labelsize=7)
    return figure


def latent_grid(
    tiles: Float[np.ndarray, "G G height width *channels"],
    centroids: Float[np.ndarray, "G G 2"],
    expected: Float[np.ndarray, "G G 2"],
    folded: Bool[np.ndarray, "G_1 G_1"],
    visited: Float[np.ndarray, "M 2"],
) -> "Figure":
    """Draw one object at each node of a latent grid: a sheet of tiles, and where they appear.

    Args:
        tiles: What the renderer draws at each node.
        centroids: Their centroids in pixels; NaN where next to nothing is drawn.
        expected: Where the affine pixel map puts the nodes.
        folded: Which cells are turned over.
        visited: True positions, to show where the model could learn.
    """
    figure, axes = axes_grid(1, 2, cell=4.2, room=(0.3, 0.7))
    sheet, warp = axes[0]
    border = [(0, 0), (0, 0), (0, 2), (0, 2), *[(0, 0)] * (tiles.ndim - 4)]
    framed = np.pad(tiles, border, constant_values=0.45)
    rows = [np.concatenate(list(row), axis=1) for row in framed]
    sheet.imshow(np.concatenate(rows), cmap="gray", vmin=0, vmax=1)
    sheet.set_xticks([])
    sheet.set_yticks([])
    sheet.set_title("one object, drawn at each node of the grid", fontsize=9)
    frame_axes(warp, tiles.shape[2:4])
    warp.plot(*visited.T, ".", color="#bbbbbb", ms=2, zorder=0, label="true positions")
    for lines, colour, width, label in (
        (expected, "#888888", 0.6, "affine pixel map"),
        (centroids, INFERRED.colour, 1.4, "centroids of the tiles"),
    ):
        for line in (*lines, *lines.swapaxes(0, 1)):
            warp.plot(*line.T, color=colour, lw=width, label=label)
    for i, j in np.argwhere(folded):
        corners = centroids[[i, i, i + 1, i + 1], [j, j + 1, j + 1, j]]
        warp.fill(*corners.T, color=FORECAST.colour, alpha=0.5, hatch="//", label="folded")
    shared_legend(figure, [warp])
    return figure


def initial_states(
    frame_size: tuple[int, int],
    true_points: Float[np.ndarray, "M 2"],
    true_steps: Float[np.ndarray, "M 2"],
    means: Float[np.ndarray, "K 2"],
    covariances: Float[np.ndarray, "K 2 2"],
    steps: Float[np.ndarray, "K 2"],
) -> "Figure":
    """Draw true first positions and steps, and the learned initial-state components over them."""
    figure, axes = axes_grid(1, 1, cell=4.2, room=(0.3, 0.3))
    axis = axes[0, 0]
    frame_axes(axis, frame_size)
    arrows = dict(angles="xy", scale_units="xy", scale=0.25)  # four frames of motion
    axis.quiver(*true_points.T, *true_steps.T, color="#aaaaaa", width=0.003, **arrows)
    axis.plot(*true_points.T, ".", color="#666666", ms=3, label="true initial states")
    for mean, covariance in zip(means, covariances, strict=True):
        axis.plot(*closed(outline(mean, covariance)).T, color=INFERRED.colour, lw=1.6)
        axis.plot(*mean, "s", color=INFERRED.colour, ms=6, label="learned components")
    axis.quiver(*means.T, *steps.T, color=INFERRED.colour, width=0.01, zorder=3, **arrows)
    legend(axis, loc="lower center")
    return figure
