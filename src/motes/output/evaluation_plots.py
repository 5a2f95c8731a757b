"""Figures that the paper does not have: errors over the horizon, calibration, seeds, the map."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from motes.output.plots import (
    FORECAST,
    INFERRED,
    INTERPOLATED,
    axes_grid,
    latent_grid,
    shared_legend,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# record: label, colour, line; told apart in grey by the line
LINES: dict[str, tuple[str, str, Any]] = {
    "limit": ("limit", "#000000", "-"),
    "cannonballs-structured": ("ours, structured", "#0072b2", "--"),
    "cannonballs-48": ("ours, paper's networks", "#0e9fc4", "-."),
    "ed-lstm": ("ED-LSTM, as in the paper", "#d55e00", (0, (1, 1))),
    "ed-lstm-own": ("ED-LSTM, own frames", "#e69f00", (0, (4, 1, 1, 1))),
    "kalman": ("disks + Kalman", "#555555", (0, (8, 2))),
    "disks-trackpy": ("disks + trackpy", "#cc79a7", (0, (6, 1, 1, 1))),
    "trackpy": ("trackpy", "#cc79a7", (0, (1, 2))),
    "known-gravity": ("line + gravity", "#999999", (0, (5, 1))),
    "constant-velocity": ("constant velocity", "#999999", (0, (3, 1, 1, 1, 1, 1))),
    "constant-image": ("constant picture", "#999999", ":"),
}
OTHER = ("#0072b2", "--")  # of a model that has no name here
Record = dict[str, Any]


def horizon(records: Mapping[str, Record]) -> "Figure":
    """Errors and losses of the forecast over the horizon, with the limit drawn in."""
    counts = list(next(iter(records.values()))["by_count"])
    figure, axes = axes_grid(2, len(counts), cell=2.9, room=(0.3, 0.6))
    for column, count in enumerate(counts):
        for row, name in enumerate(("forecast_rmse_curve", "forecast_loss_curve")):
            for record, found in records.items():
                curve = found.get("curves", {}).get(count, {}).get(name)
                if curve is not None:
                    _draw_curve(axes[row, column], curve, *LINES.get(record, (record, *OTHER)))
        axes[0, column].set(yscale="log")
        axes[0, column].set_title(f"N = {count}", fontsize=9)
        axes[1, column].set(xlabel="frames ahead", ylim=(0, None))
    axes[0, 0].set_ylabel("RMSE to the path, px", fontsize=9)
    axes[1, 0].set_ylabel("picture loss, nats a pixel", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def _draw_curve(axis: Any, curve: Record, label: str, colour: str, line: Any) -> None:
    """One curve with a band of two standard errors."""
    value, error = np.array(curve["value"]), np.array(curve["error"])
    ahead = np.arange(1, len(value) + 1)
    axis.plot(ahead, value, color=colour, ls=line, lw=1.6, label=label)
    axis.fill_between(ahead, value - 2 * error, value + 2 * error, color=colour, alpha=0.15, lw=0)


def reliability(record: Record) -> "Figure":
    """How often the truth lies inside regions of each probability."""
    figure, axes = axes_grid(1, len(record["by_count"]), cell=2.9, room=(0.3, 0.5))
    levels = np.arange(0.05, 1, 0.05)
    styles = (
        ("infer", "inferred", INFERRED),
        ("forecast", "forecast", FORECAST),
        ("interpolation", "gap", INTERPOLATED),
    )
    for axis, count in zip(axes[0], record["by_count"], strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8)
        for question, label, style in styles:
            curve = record["curves"][count][f"{question}_reliability"]
            axis.plot(
                levels, curve["value"], color=style.colour, ls=style.line, marker=style.marker,
                ms=4, lw=1.2, label=label,
            )  # fmt: skip
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the region")
        axis.set_title(f"N = {count}", fontsize=9)
    axes[0, 0].set_ylabel("share of the truth inside", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def latent_map(arrays: Mapping[str, np.ndarray]) -> "Figure":
    """One ball drawn over a grid of latent positions; tiles are probabilities."""
    names = ("grid_tiles", "grid_centroids", "grid_expected", "visited")
    return latent_grid(*(arrays[name] for name in names))


def seeds(record: Record) -> "Figure":
    """The share of clips tracked over training, a line for each seed."""
    runs = record["tracked"]
    figure, axes = axes_grid(1, 3, cell=2.9, room=(0.3, 0.5))
    lines = ("-", "--", "-.", ":")
    for axis, count in zip(axes[0], ("1", "2", "3"), strict=True):
        for place, (name, rows) in enumerate(runs.items()):
            axis.plot(
                [row["step"] for row in rows], [row[count] for row in rows], ls=lines[place % 4],
                color=(INFERRED.colour, FORECAST.colour, "#000000", INTERPOLATED.colour)[place % 4],
                lw=1.3, label=name.replace("-", " "),
            )  # fmt: skip
        axis.set(ylim=(-0.02, 1.02), xlabel="step")
        axis.set_title(f"N = {count}", fontsize=9)
    axes[0, 0].set_ylabel("share of clips tracked", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure
