"""Every figure of the paper by number, and our own by name, drawn from stored records."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.paper_figures import diagrams, paper
from experiments.paper_figures.stored import Stored
from motes.evaluation.labels import PREDICTORS
from motes.models.pixel_map import LatentMap
from motes.output import plots as own
from motes.output.plots import FORECAST, INFERRED, INTERPOLATED, axes_grid, shared_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Stored"]


def _ours_many(stored: Stored) -> "Figure":
    """Figure 10: the appendix' page of our model."""
    return paper.many_generated(stored, stored.examples["forecast_mean_frames"])


def _recurrent_many(stored: Stored) -> "Figure":
    """Figure 11: the appendix' page of the ED-LSTM."""
    return paper.many_generated(stored, next(iter(stored.recurrent_frames.values())))


def latent_map(arrays: Mapping[str, np.ndarray]) -> "Figure":
    """Draw one object at each node of a latent grid."""
    centroids = torch.from_numpy(arrays["grid_centroids"])
    folded, _ = LatentMap(centroids, ~centroids.isnan().any(-1)).flipped()
    return own.latent_grid(
        arrays["grid_tiles"],
        arrays["grid_centroids"],
        arrays["grid_expected"],
        folded.numpy(),
        arrays["visited"],
    )


def seeds(record: dict[str, Any]) -> "Figure":
    """Draw the share of clips tracked over training, a line for each seed."""
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


def _naming_networks(draw: Callable[[Stored], "Figure"]) -> Callable[[Stored], "Figure"]:
    """Return the figure with a line below that says which networks it shows."""

    def named(stored: Stored) -> "Figure":
        figure = draw(stored)
        label = PREDICTORS[stored.model].label if stored.model in PREDICTORS else "ours"
        if stored.model == "cannonballs-48":
            label += ", trained from scratch by preset paper-scratch"
        text = f"networks: {stored.model} ({label.removeprefix('ours, ')})"
        figure.supxlabel(text, fontsize=7)
        return figure

    return named


FIGURES: dict[str, Callable[[Stored], "Figure"]] = {
    "1": paper.clips_overlaid,
    "2": diagrams.graphical_models,
    "3": _naming_networks(paper.inferred_trajectories),
    "4": paper.initialisation,
    "5": paper.stages_of_training,
    "6": _naming_networks(paper.generated_and_true),
    "7": diagrams.recurrent_network,
    "8": _naming_networks(paper.forecast_trajectories),
    "9": _naming_networks(paper.interpolations),
    "10": _naming_networks(_ours_many),
    "11": _recurrent_many,
    "12": _naming_networks(partial(paper.interpolations, first=4, number=3, last_frames=True)),
    "13": _naming_networks(partial(paper.interpolations, first=7, number=3, last_frames=True)),
    "horizon": lambda stored: own.horizon(stored.records),
    "reliability": lambda stored: own.reliability(stored.record(stored.model)),
    "latent-map": lambda stored: latent_map(stored.examples),
    "seeds": lambda stored: seeds(stored.record("training")),
}
