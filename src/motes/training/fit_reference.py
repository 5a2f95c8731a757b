"""The statistics of a run's own clips, against which later queries judge how well frames fit."""

import contextlib
import copy
from pathlib import Path

import torch

from motes.core.errors import InputError
from motes.models.model import Model
from motes.queries import infer, interpolate
from motes.queries.fit import FitReference, FitStatistics
from motes.training.inputs import Dataset, TrainingData

NUM_CLIPS = 64  # that the statistics are of
MAX_FRAMES = 256  # of a clip that are searched
BATCH = 16


def write_fit_reference(model: Model, dataset: Dataset, folder: Path) -> bool:
    """Write `fit.json` beside a trained model and return whether that was possible.

    Held-out clips come first; clips of the training set follow if those are few. A model that
    cannot answer about its own clips gets no reference, and queries then use plain limits.

    Law: clips like those of the training set fit, others do not
    (test_a_trained_run_warns_about_other_clips).
    """
    if model.colour_axis is not None:  # the clips of the run are grey already
        model = copy.copy(model)
        model.colour_axis = None
    parts: list[tuple[FitStatistics, torch.Tensor]] = []
    missing = NUM_CLIPS
    with contextlib.suppress(InputError):
        for data in (dataset.held_out, dataset.training):
            chosen = torch.arange(min(missing, len(data.num_objects)))
            for some in chosen.split(BATCH) if len(chosen) else ():
                parts.append((_statistics(model, data, some), data.num_objects[some].cpu()))
            missing -= len(chosen)
    if not parts:
        return False
    found, counts = zip(*parts, strict=True)
    statistics = FitStatistics(*(torch.cat(part).cpu() for part in zip(*found, strict=True)))
    num_frames = min(dataset.training.video.shape[1], MAX_FRAMES)
    FitReference.of(statistics, torch.cat(counts), num_frames).save(folder)
    return True


def _statistics(model: Model, data: TrainingData, clips: torch.Tensor) -> FitStatistics:
    """Return the statistics of some clips, given their numbers of objects."""
    clips = clips.to(data.num_objects.device)
    frames, observed = data.frames(clips)[:, :MAX_FRAMES], data.observed_in(clips)
    counts = data.num_objects[clips]
    if observed is None:
        answer = infer(model, frames, counts)
    else:
        answer = interpolate(model, frames, observed[:, :MAX_FRAMES], counts)
    statistics: FitStatistics = answer.measure()
    return statistics
