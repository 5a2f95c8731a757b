"""The evaluation harness: score any predictor on clips with known truth, in batches."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from motes.core.axes import Int, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.evaluation import learned, metrics
from motes.evaluation.predictor import Ask, Mask, Prediction, Predictor, Truth, ask_predictor
from motes.evaluation.scores import (
    MAX_ERROR,
    AffineMap,
    StatisticsByScore,
    _match,
    gap_scores,
    query_scores,
)
from motes.models.model import Model

NUM_CONTEXT = 5  # observed frames before a forecast, and on either side of a gap, as in the paper
BATCH = 50
NUM_DETAILED = 90  # clips for the slow scores: other gaps, bounds, counts
DETAILED_BATCH = 20  # clips that share a pattern of dropped frames
NUM_WORST = 10
DROPPED = (10, 30, 50, 70, 90)  # per cent of frames
BLOCKS = (5, 10)  # frames in the middle; the paper's 20 are scored on all clips

Progress = Callable[[int], None]
Masks = Mapping[str, Mask]


def no_progress(done: int) -> None:
    """Report nothing."""


def score_clips(
    ask: Ask,
    clips: Clips,
    masks: Callable[[int, int], Masks],
    scores: Callable[[str, Prediction, Truth, Mask], StatisticsByScore],
    *,
    progress: Progress = no_progress,
    batch_size: int = BATCH,
) -> dict[int, StatisticsByScore]:
    """Return the statistics of every score by number of objects, clips in their order.

    Args:
        ask: Gives predictions; `ask_predictor` makes one of a predictor.
        clips: With truth; objects may be hidden and frames lost.
        masks: From the index of a batch's first clip among those with as many objects, and the
            number of frames, to the named queries: which frames are shown.
        scores: From a query's name, the prediction, the truth and the mask to statistics.
        progress: Called after every batch with the number of clips done.
        batch_size: Clips per batch.
    """
    found: dict[int, StatisticsByScore] = {}
    done = 0
    for count, own in by_count(clips).items():
        parts = []
        for start in range(0, len(own), batch_size):
            indices = own[start : start + batch_size]
            truth = Truth.of(clips[indices], count)
            part: StatisticsByScore = {}
            for name, shown in masks(start, truth.frames.shape[1]).items():
                observed = shown if truth.recorded is None else truth.recorded & shown
                part |= scores(name, ask(truth, observed), truth, shown)
            parts.append(part)
            done += len(indices)
            progress(done)
        found[count] = {n: metrics.concatenate([part[n] for part in parts]) for n in parts[0]}
    return found


def by_count(clips: Clips) -> dict[int, Int[Tensor, " b"]]:
    """Return the indices of the clips with each number of objects."""
    counts = clips.num_objects
    assert counts is not None
    return {n: (counts == n).nonzero()[:, 0] for n in sorted(set(counts.tolist()))}


def evaluate(
    predictor: Predictor,
    clips: Clips,
    training: Clips | None = None,
    progress: Progress = no_progress,
    batch_size: int = BATCH,
) -> dict[str, Any]:
    """Return scores of the three queries by number of objects, with standard errors and curves.

    Args:
        predictor: A model or a baseline for clips of this size.
        clips: With truth, from a seed that training never used.
        training: Training clips with truth, on which one affine map from estimates to the truth
            is fitted; without them there are no scores after that map.
        progress: Called after every batch with the number of clips done.
        batch_size: Clips per batch.
    """
    require_truth(clips)
    ask = ask_predictor(predictor)
    affine = None if training is None else _fit_affine(ask, training)

    def masks(start: int, num_frames: int) -> Masks:
        found = query_masks(num_frames)
        return found if predictor.interpolates else {n: found[n] for n in ("infer", "forecast")}

    scores = functools.partial(query_scores, affine=affine)
    found = score_clips(ask, clips, masks, scores, progress=progress, batch_size=batch_size)
    return _record(clips, found)


def query_masks(num_frames: int) -> dict[str, Mask]:
    """Return the observed frames of the three queries, as in the paper."""
    time = torch.arange(num_frames)
    return {
        "infer": time >= 0,
        "forecast": time < NUM_CONTEXT,
        "interpolation": (time < NUM_CONTEXT) | (time >= num_frames - NUM_CONTEXT),
    }


def score_gaps(
    predictor: Predictor, clips: Clips, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return errors and coverage in gaps other than the paper's, for the first clips."""
    require_truth(clips)
    ask, some, size = ask_predictor(predictor), clips[:NUM_DETAILED], DETAILED_BATCH
    found = score_clips(ask, some, _gap_masks, gap_scores, progress=progress, batch_size=size)
    return {str(n): with_errors(len(own), found[n]) for n, own in by_count(some).items()}


def compare_physics(model: Model, clips: Clips) -> dict[str, Any]:
    """Return the learned force and initial states beside the true ones."""
    return {
        "force_px_per_frame2": learned.learned_force(model).tolist(),
        "true_force_px_per_frame2": learned.true_force(clips).tolist(),
        "starts": learned.learned_initial_states(model).as_lists(),
        "true_starts": learned.true_initial_states(clips).as_lists(),
    }


def require_truth(clips: Clips) -> None:
    """Raise `InputError` unless the truth of the clips is known and they are long enough."""
    if clips.num_objects is None or clips.positions is None or clips.clean is None:
        raise InputError("these clips carry no truth; evaluate needs positions and clean paths")
    if clips.observed is not None:
        raise InputError(
            "these clips have lost frames; evaluate hides frames itself: give whole clips"
        )
    num_frames = clips.video.shape[1]
    if num_frames <= 2 * NUM_CONTEXT:
        raise InputError(
            f"clips of {num_frames} frames; evaluate needs {2 * NUM_CONTEXT + 1} or more"
        )


def _gap_masks(start: int, num_frames: int) -> Masks:
    """Return masks with randomly dropped frames, never the first two, and with blocks hidden.

    Every batch drops other frames.
    """
    generator = torch.Generator().manual_seed(start)
    time = torch.arange(num_frames)
    masks: dict[str, Mask] = {}
    for percent in DROPPED:
        order = 2 + torch.randperm(num_frames - 2, generator=generator)
        observed = torch.ones(num_frames, dtype=torch.bool)
        observed[order[: round(num_frames * percent / 100)]] = False
        masks[f"drop{percent}"] = observed
    for length in BLOCKS:
        first = (num_frames - length) // 2
        masks[f"block{length}"] = (time < first) | (time >= first + length)
    return masks


def _fit_affine(ask: Ask, training: Clips) -> AffineMap | None:
    """Return the least-squares map from estimates to the truth; None without estimates."""
    require_truth(training)
    everything = torch.ones(training.video.shape[1], dtype=torch.bool)
    estimates, truths = [], []
    for count, own in by_count(training).items():
        truth = Truth.of(training[own], count)
        pixels = ask(truth, everything).pixels
        if pixels is None:
            return None
        estimates.append(_match(truth.noisy, pixels)[0].reshape(-1, 2))
        truths.append(truth.noisy.reshape(-1, 2))
    given = torch.cat(estimates)
    design = torch.cat([given, torch.ones_like(given[:, :1])], 1).double()
    solution = torch.linalg.lstsq(design, torch.cat(truths).double()).solution.to(given)
    return lambda pixels: pixels @ solution[:2] + solution[2]


def _record(clips: Clips, found: dict[int, StatisticsByScore]) -> dict[str, Any]:
    """Return scores, standard errors, curves and the worst clips as plain numbers."""
    record: dict[str, Any] = {"by_count": {}, "standard_errors": {}, "curves": {}}
    worst: list[tuple[float, int]] = []
    losses = torch.full((len(clips),), torch.nan, dtype=torch.float64)
    for count, own in by_count(clips).items():
        statistics = dict(found[count])
        if (largest := statistics.pop(MAX_ERROR, None)) is not None:
            worst += zip(largest.totals.tolist(), own.tolist(), strict=True)
        if (loss := statistics.get("forecast_loss")) is not None:
            losses[own] = loss.totals / loss.counts
        key, values = str(count), with_errors(len(own), statistics)
        plain = [name for name in statistics if statistics[name].totals.ndim == 1]
        record["by_count"][key] = {"clips": len(own), **{n: values[n]["value"] for n in plain}}
        known = plain if len(own) > 1 else []  # one clip does not tell its error
        record["standard_errors"][key] = {name: values[name]["error"] for name in known}
        record["curves"][key] = {n: values[n] for n in statistics if n not in plain}
    if not bool(losses.isnan().any()):  # so that two records can be compared clip by clip
        record["forecast_loss_of_clips"] = [round(loss, 6) for loss in losses.tolist()]
    record["worst_clips"] = [clip for _, clip in sorted(worst, reverse=True)[:NUM_WORST]]
    return record


def with_errors(num_clips: int, found: StatisticsByScore) -> dict[str, Any]:
    """Return scores and standard errors as plain numbers."""
    values = {
        name: {"value": metrics.score(s).tolist(), "error": metrics.standard_error(s).tolist()}
        for name, s in found.items()
    }
    return {"clips": num_clips, **values}
