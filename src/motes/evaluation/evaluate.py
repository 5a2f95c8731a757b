"""The evaluation harness: score any predictor on clips with known truth, in batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.data.clips import clips_to_grey
from motes.evaluation.bootstrap import (
    ClipStatistics,
    clip_statistics,
    concatenate,
    score,
    standard_error,
)
from motes.evaluation.iwae import bound_and_weighted
from motes.evaluation.physics import (
    learned_force,
    learned_initial_states,
    true_force,
    true_initial_states,
)
from motes.evaluation.predictor import Prediction, Predictor
from motes.evaluation.scores import (
    MAX_ERROR,
    AffineMap,
    StatisticsByScore,
    Truth,
    fit_affine,
    gap_scores,
    query_scores,
)
from motes.models.model import Model
from motes.queries import infer, interpolate

NUM_CONTEXT = 5  # observed frames before a forecast, and on either side of a gap, as in the paper
BATCH = 50
NUM_DETAILED = 90  # clips for the slow scores: other gaps, bounds, counts
DETAILED_BATCH = 20  # clips that share a pattern of dropped frames
NUM_WORST = 10
DROPPED = (10, 30, 50, 70, 90)  # per cent of frames
BLOCKS = (5, 10)  # frames in the middle; the paper's 20 are scored on all clips

Progress = Callable[[int], None]
Masks = Mapping[str, Bool[Tensor, " T"]]
# The truth and a mask of shown frames (one for all clips, or one per clip) to a prediction.
Ask = Callable[[Truth, Bool[Tensor, "*B T"]], Prediction]


@dataclass(frozen=True)
class ModelPredictor:
    """A model as a predictor."""

    model: Model
    interpolates: bool = True

    def predict(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, "*B T"],
        num_objects: int,
    ) -> Prediction:
        """Return the model's answer; the mask may differ from clip to clip.

        A model that reduces colour to one grey level draws no frames that could be compared.
        """
        answer = interpolate(self.model, frames, observed, num_objects)
        draws = self.model.colour_axis is None
        return Prediction(
            pixels=answer.pixels.cpu(),
            pixel_covariances=answer.pixel_covariances.cpu(),
            path_pixels=answer.path_pixels.cpu(),
            path_pixel_covariances=answer.path_pixel_covariances.cpu(),
            draw_frames=(lambda: answer.frames.cpu()) if draws else None,
            draw_mean_frames=(lambda: answer.mean_frames.cpu()) if draws else None,
        )


def no_progress(done: int) -> None:
    """Report nothing."""


def ask_predictor(predictor: Predictor) -> Ask:
    """Return the function that shows a predictor the observed frames and returns its prediction."""

    def ask(truth: Truth, observed: Bool[Tensor, "*B T"]) -> Prediction:
        shape = (*observed.shape, *[1] * (truth.frames.ndim - 2))
        return predictor.predict(truth.frames * observed.view(shape), observed, len(truth.noisy[0]))

    return ask


def score_clips(
    ask: Ask,
    clips: Clips,
    masks: Callable[[int, int], Masks],
    scores: Callable[[str, Prediction, Truth, Bool[Tensor, " T"]], StatisticsByScore],
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
        found[count] = {name: concatenate([part[name] for part in parts]) for name in parts[0]}
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
    _require_truth(clips)
    ask = ask_predictor(predictor)
    affine = None if training is None else _align(ask, training)

    def scores(
        name: str, prediction: Prediction, truth: Truth, shown: Bool[Tensor, " T"]
    ) -> StatisticsByScore:
        return query_scores(name, prediction, truth, shown, affine)

    def masks(start: int, num_frames: int) -> Masks:
        found = query_masks(num_frames)
        return found if predictor.interpolates else {n: found[n] for n in ("infer", "forecast")}

    found = score_clips(ask, clips, masks, scores, progress=progress, batch_size=batch_size)
    return _record(clips, found)


def query_masks(num_frames: int) -> dict[str, Bool[Tensor, " T"]]:
    """Return the observed frames of the three queries."""
    time = torch.arange(num_frames)
    return {
        "infer": time >= 0,
        "forecast": time < NUM_CONTEXT,
        "interpolation": gap_mask(num_frames),
    }


def gap_mask(num_frames: int) -> Bool[Tensor, " T"]:
    """Return the paper's mask of observed frames: the first and the last five."""
    time = torch.arange(num_frames)
    return (time < NUM_CONTEXT) | (time >= num_frames - NUM_CONTEXT)


def score_gaps(
    predictor: Predictor, clips: Clips, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return errors and coverage in gaps other than the paper's, for the first clips."""
    _require_truth(clips)
    found = score_clips(
        ask_predictor(predictor),
        clips[:NUM_DETAILED],
        _gap_masks,
        gap_scores,
        progress=progress,
        batch_size=DETAILED_BATCH,
    )
    return {
        str(count): {
            "clips": len(indices),
            **{name: _with_error(statistics) for name, statistics in found[count].items()},
        }
        for count, indices in by_count(clips[:NUM_DETAILED]).items()
    }


def score_bounds(model: Model, clips: Clips, progress: Progress = no_progress) -> dict[str, Any]:
    """Return lower bounds of the log-likelihood and the accuracy of counts, for the first clips."""
    _require_truth(clips)
    record: dict[str, Any] = {}
    done = 0
    for count, indices in by_count(clips[:NUM_DETAILED]).items():
        some = clips[indices]
        frames = clips_to_grey(some, model.colour_axis).frames.float().to(model.device)
        bound, weighted = bound_and_weighted(model, frames, count)
        right = infer(model, some.frames).num_objects == count
        values = {"bound": bound, "weighted_bound": weighted, "count_right": right.double()}
        record[str(count)] = {
            "clips": len(indices),
            **{name: _with_error(clip_statistics(value)) for name, value in values.items()},
        }
        done += len(indices)
        progress(done)
    return record


def compare_physics(model: Model, clips: Clips) -> dict[str, Any]:
    """Return the learned force and initial states beside the true ones."""
    return {
        "force_px_per_frame2": learned_force(model).tolist(),
        "true_force_px_per_frame2": true_force(clips).tolist(),
        "starts": learned_initial_states(model).as_lists(),
        "true_starts": true_initial_states(clips).as_lists(),
    }


def _require_truth(clips: Clips) -> None:
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
    masks: dict[str, Bool[Tensor, " T"]] = {}
    for percent in DROPPED:
        order = 2 + torch.randperm(num_frames - 2, generator=generator)
        observed = torch.ones(num_frames, dtype=torch.bool)
        observed[order[: round(num_frames * percent / 100)]] = False
        masks[f"drop{percent}"] = observed
    for length in BLOCKS:
        first = (num_frames - length) // 2
        masks[f"block{length}"] = (time < first) | (time >= first + length)
    return masks


def _align(ask: Ask, training: Clips) -> AffineMap | None:
    """Fit the affine map from estimates to the truth; None for a predictor without positions."""
    _require_truth(training)
    everything = torch.ones(training.video.shape[1], dtype=torch.bool)
    estimates, truths = [], []
    for count, own in by_count(training).items():
        truth = Truth.of(training[own], count)
        pixels = ask(truth, everything).pixels
        if pixels is None:
            return None
        estimates.append(pixels)
        truths.append(truth.noisy)
    return fit_affine(estimates, truths)


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
        values = {name: _with_error(statistic) for name, statistic in statistics.items()}
        plain = [name for name in values if statistics[name].totals.ndim == 1]
        key = str(count)
        record["by_count"][key] = {"clips": len(own), **{n: values[n]["value"] for n in plain}}
        record["standard_errors"][key] = {name: values[name]["error"] for name in plain}
        record["curves"][key] = {name: v for name, v in values.items() if name not in plain}
    if not bool(losses.isnan().any()):  # so that two records can be compared clip by clip
        record["forecast_loss_of_clips"] = [round(loss, 6) for loss in losses.tolist()]
    record["worst_clips"] = [clip for _, clip in sorted(worst, reverse=True)[:NUM_WORST]]
    return record


def _with_error(statistics: ClipStatistics) -> dict[str, Any]:
    return {"value": score(statistics).tolist(), "error": standard_error(statistics).tolist()}
