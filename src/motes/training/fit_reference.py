"""What a run finds on its own clips: how good it is, and statistics to judge queries by."""

import contextlib
import copy
import math
from pathlib import Path

import torch

from motes.core.errors import InputError
from motes.models.model import Model
from motes.queries import Answer, infer, interpolate
from motes.queries.fit import FitReference, FitStatistics
from motes.queries.quality import ClipErrors, Quality
from motes.queries.scatter import Scatter, ScatterSums
from motes.training.inputs import Dataset, TrainingData

NUM_CLIPS = 64  # that the statistics are of
MIN_CLIPS, POSITIONS = 24, 4_000  # fewer clips, of at least so many positions, if they are large
MAX_FRAMES = 256  # of a clip that are searched
BATCH = 16
FEW_CLIPS = 4  # of a check during training


def write_fit_reference(
    model: Model,
    dataset: Dataset,
    folder: Path,
    before: Quality | None = None,
    networks: bool = False,
) -> Quality | None:
    """Write `fit.json` and `quality.json` beside a trained model; return the quality.

    Held-out clips come first; clips of the training set follow if those are few. A model that
    cannot answer about its own clips gets no reference and no quality, and queries then use plain
    limits.

    Law: clips like those of the training set fit, others do not
    (test_a_trained_run_warns_about_other_clips).
    """
    num_frames = min(dataset.training.video.shape[1], MAX_FRAMES)
    per_clip = num_frames * float(dataset.training.num_objects.float().mean())
    number = min(max(math.ceil(POSITIONS / per_clip), MIN_CLIPS), NUM_CLIPS)
    found = _query_own_clips(model, dataset, number)
    if found is None:
        return None
    statistics, errors, counts, scatter = found
    if networks:  # they do not compute their posterior from the pixels, and have `calibrate`
        scatter = None
    FitReference.of(statistics, counts, num_frames, scatter).save(folder)
    quality = Quality.of(statistics, errors, before, networks)
    quality.save(folder)
    return quality


def check_quality(
    model: Model, dataset: Dataset, before: Quality | None = None, networks: bool = False
) -> Quality | None:
    """Return the quality on a few clips, for a look during training; None if it cannot answer."""
    found = _query_own_clips(model, dataset, FEW_CLIPS)
    return None if found is None else Quality.of(found[0], found[1], before, networks)


def _query_own_clips(
    model: Model, dataset: Dataset, num_clips: int
) -> tuple[FitStatistics, ClipErrors, torch.Tensor, Scatter | None] | None:
    """Return statistics, errors, counts and the scatter of some of a run's clips."""
    if model.colour_axis is not None:  # the clips of the run are grey already
        model = copy.copy(model)
        model.colour_axis = None
    parts: list[tuple[FitStatistics, ClipErrors, torch.Tensor]] = []
    scatter: list[ScatterSums] = []
    with contextlib.suppress(InputError):
        for data in (dataset.held_out, dataset.training):
            chosen = torch.arange(min(num_clips, len(data.num_objects)))
            for some in chosen.split(BATCH) if len(chosen) else ():
                frames, answer = _query(model, data, some)
                counts = data.num_objects[some].cpu()
                parts.append((answer.measure(), ClipErrors.of(answer), counts))
                if model.black_and_white:
                    scatter.append(ScatterSums.of(model, frames, answer))
            num_clips -= len(chosen)
    if not parts:
        return None
    found, errors, all_counts = zip(*parts, strict=True)
    statistics = FitStatistics(*(torch.cat(part).cpu() for part in zip(*found, strict=True)))
    sums = ClipErrors(*(torch.cat(part) for part in zip(*errors, strict=True)))
    return statistics, sums, torch.cat(all_counts), ScatterSums.joined(scatter)


def _query(model: Model, data: TrainingData, clips: torch.Tensor) -> tuple[torch.Tensor, Answer]:
    """Return some clips and the answer about them, given their numbers of objects."""
    clips = clips.to(data.num_objects.device)
    frames, observed = data.frames(clips)[:, :MAX_FRAMES], data.observed_in(clips)
    counts = data.num_objects[clips]
    if observed is None:
        return frames, infer(model, frames, counts)
    return frames, interpolate(model, frames, observed[:, :MAX_FRAMES], counts)
