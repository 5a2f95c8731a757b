"""Every figure of the paper by number, and our own by name, drawn from stored records."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from experiments.paper_figures import diagrams, paper
from experiments.paper_figures.stored import Stored
from motes.output import evaluation_plots as own

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Stored"]


def _ours_many(stored: Stored) -> "Figure":
    """Figure 10: the appendix' page of our model."""
    return paper.many_generated(stored, stored.examples["forecast_mean_frames"])


def _recurrent_many(stored: Stored) -> "Figure":
    """Figure 11: the appendix' page of the ED-LSTM."""
    return paper.many_generated(stored, next(iter(stored.recurrent_frames.values())))


FIGURES: dict[str, Callable[[Stored], "Figure"]] = {
    "1": paper.clips_overlaid,
    "2": diagrams.graphical_models,
    "3": paper.inferred_trajectories,
    "4": paper.initialisation,
    "5": paper.stages_of_training,
    "6": paper.generated_and_true,
    "7": diagrams.recurrent_network,
    "8": paper.forecast_trajectories,
    "9": paper.interpolations,
    "10": _ours_many,
    "11": _recurrent_many,
    "12": partial(paper.interpolations, first=4, number=3),
    "13": partial(paper.interpolations, first=7, number=3),
    "horizon": lambda stored: own.horizon(stored.records),
    "reliability": lambda stored: own.reliability(stored.record(stored.model)),
    "latent-map": lambda stored: own.latent_map(stored.examples),
    "seeds": lambda stored: own.seeds(stored.record("training")),
}
