"""From a contender and clips whose truth is known to one record of scores with error bars."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from motes.core.axes import Bool, Int, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.data.colour import in_grey
from motes.evaluation.bootstrap import ClipStatistics, joined, score, standard_error, tally
from motes.evaluation.iwae import bound_and_weighted
from motes.evaluation.physics import learned_force, learned_starts, true_force, true_starts
from motes.evaluation.predictor import Prediction, Predictor
from motes.evaluation.scores import FURTHEST, Aligned, Truth, fit_affine, gap_tallies, tallies
from motes.models.model import Model
from motes.queries import infer, interpolate

NUM_CONTEXT = 5  # frames seen before a forecast, and on either side of a gap, as in the paper
BATCH = 50
NUM_DETAILED = 90  # clips for the scores that take long: other gaps, bounds, counts
DETAILED_BATCH = 20  # clips that share a pattern of dropped frames
NUM_WORST = 10
DROPPED = (10, 30, 50, 70, 90)  # per cent of frames
BLOCKS = (5, 10)  # frames in the middle; the paper's 20 are scored on all clips

Progress = Callable[[int], None]
StatisticsByScore = dict[str, ClipStatistics]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A model as a contender."""

    model: Model
    interpolates: bool = True

    def ask(self, frames: Tensor, observed: Bool[Tensor, " T"], num_objects: int) -> Prediction:
        """Its answer; infer and forecast are gaps at no frame and at the end.

        A model that sees colour as one grey level has no pictures that can be compared.
        """
        answer = interpolate(self.model, frames, observed, num_objects)
        paints = self.model.colour_axis is None
        return Prediction(
            pixels=answer.pixels.cpu(),
            pixel_covariances=answer.pixel_covariances.cpu(),
            path_pixels=answer.path_pixels.cpu(),
            path_pixel_covariances=answer.path_pixel_covariances.cpu(),
            draw_frames=(lambda: answer.frames.cpu()) if paints else None,
            draw_mean_frames=(lambda: answer.mean_frames.cpu()) if paints else None,
        )


def evaluate(
    contender: Predictor,
    clips: Clips,
    training: Clips | None = None,
    progress: Progress = lambda done: None,
    batch_size: int = BATCH,
) -> dict[str, Any]:
    """Scores of the three questions for each number of objects, with standard errors and curves.

    Args:
        contender: A model or a baseline for clips of this size.
        clips: With truth; made from a seed that training never used.
        training: Clips of the training set with truth, which fit one affine map from what is
            told to the truth; without them no scores after that map.
        progress: Prediction after every batch how many clips are done.
        batch_size: Clips that are asked about at once.
    """
    counts = _require_truth(clips)
    affine = None if training is None else _align(contender, training)
    done = 0
    record: dict[str, Any] = {"by_count": {}, "standard_errors": {}, "curves": {}}
    worst: list[tuple[float, int]] = []
    losses = torch.full((len(clips),), torch.nan, dtype=torch.float64)
    for count in sorted(set(counts.tolist())):
        own = (counts == count).nonzero()[:, 0]
        parts = []
        for indices in own.split(batch_size):
            found = _ask_all(contender, clips[indices], count, affine)
            if (furthest := found.pop(FURTHEST, None)) is not None:
                worst += zip(furthest.totals.tolist(), indices.tolist(), strict=True)
            if (loss := found.get("forecast_loss")) is not None:
                losses[indices] = loss.totals / loss.counts
            parts.append(found)
            done += len(indices)
            progress(done)
        _write(record, count, len(own), _join(parts))
    if not bool(losses.isnan().any()):  # so that two records can be compared clip by clip
        record["forecast_loss_of_clips"] = [round(loss, 6) for loss in losses.tolist()]
    record["worst_clips"] = [clip for _, clip in sorted(worst, reverse=True)[:NUM_WORST]]
    return record


def gap_mask(num_frames: int) -> Bool[Tensor, " T"]:
    """The paper's pattern of seen frames: the first and the last five."""
    time = torch.arange(num_frames)
    return (time < NUM_CONTEXT) | (time >= num_frames - NUM_CONTEXT)


def score_gaps(
    contender: Predictor, clips: Clips, progress: Progress = lambda done: None
) -> dict[str, Any]:
    """Errors and coverage in other gaps than the paper's, on the first clips; see `_gaps`."""
    record: dict[str, Any] = {}
    done = 0
    for count, indices in _detailed(_require_truth(clips)):
        found = _ask_gaps(contender, clips[indices], count)
        record[str(count)] = {
            "clips": len(indices),
            **{name: _both(tallied) for name, tallied in found.items()},
        }
        done += len(indices)
        progress(done)
    return record


def score_beliefs(
    model: Model, clips: Clips, progress: Progress = lambda done: None
) -> dict[str, Any]:
    """Bounds and inferred counts, on the first clips."""
    record: dict[str, Any] = {}
    done = 0
    for count, indices in _detailed(_require_truth(clips)):
        some = clips[indices]
        shown = in_grey(some, model.colour_axis).frames.float().to(model.device)
        bound, weighted = bound_and_weighted(model, shown, count)
        right = infer(model, some.frames).num_objects == count
        values = {"bound": bound, "weighted_bound": weighted, "count_right": right.double()}
        record[str(count)] = {
            "clips": len(indices),
            **{name: _both(tally(value)) for name, value in values.items()},
        }
        done += len(indices)
        progress(done)
    return record


def compare_physics(model: Model, clips: Clips) -> dict[str, Any]:
    """The force and the kinds of start that were found, and the true ones."""
    return {
        "force_px_per_frame2": learned_force(model).tolist(),
        "true_force_px_per_frame2": true_force(clips).tolist(),
        "starts": learned_starts(model).as_lists(),
        "true_starts": true_starts(clips).as_lists(),
    }


def _require_truth(clips: Clips) -> Int[Tensor, " B"]:
    """The number of objects of each clip, if its truth is known and it is long enough."""
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
    return clips.num_objects


def _truth(clips: Clips, count: int) -> Truth:
    assert clips.positions is not None
    assert clips.clean is not None
    return Truth(clips.frames.float(), clips.positions[:, :count], clips.clean[:, :count])


def _ask(contender: Predictor, truth: Truth, observed: Bool[Tensor, " T"]) -> Prediction:
    """The contender's answer; it never gets to see a hidden frame."""
    shown = truth.frames * observed.view(-1, *[1] * (truth.frames.ndim - 2))
    return contender.ask(shown, observed, truth.noisy.shape[1])


def _ask_all(
    contender: Predictor, clips: Clips, count: int, affine: Aligned | None
) -> StatisticsByScore:
    """StatisticsByScore of the three questions for clips with the same number of objects."""
    truth = _truth(clips, count)
    time = torch.arange(truth.frames.shape[1])
    questions = {
        "infer": time >= 0,
        "forecast": time < NUM_CONTEXT,
        "interpolation": gap_mask(len(time)),
    }
    if not contender.interpolates:
        del questions["interpolation"]
    found: StatisticsByScore = {}
    for question, observed in questions.items():
        told = _ask(contender, truth, observed)
        found |= tallies(question, told, truth, observed, affine)
    return found


def _ask_gaps(contender: Predictor, clips: Clips, count: int) -> StatisticsByScore:
    """StatisticsByScore of hidden frames for other gaps; every batch drops other frames."""
    parts = []
    for start in range(0, len(clips), DETAILED_BATCH):
        truth = _truth(clips[start : start + DETAILED_BATCH], count)
        num_frames = truth.frames.shape[1]
        generator = torch.Generator().manual_seed(start)
        found: StatisticsByScore = {}
        for name, observed in _gaps(num_frames, generator):
            found |= gap_tallies(name, _ask(contender, truth, observed), truth, observed)
        parts.append(found)
    return _join(parts)


def _gaps(num_frames: int, generator: torch.Generator) -> Iterator[tuple[str, Bool[Tensor, " T"]]]:
    """Patterns of seen frames; of dropped ones the first two are always seen."""
    for percent in DROPPED:
        order = 2 + torch.randperm(num_frames - 2, generator=generator)
        observed = torch.ones(num_frames, dtype=torch.bool)
        observed[order[: round(num_frames * percent / 100)]] = False
        yield f"drop{percent}", observed
    for length in BLOCKS:
        first = (num_frames - length) // 2
        time = torch.arange(num_frames)
        yield f"block{length}", (time < first) | (time >= first + length)


def _align(contender: Predictor, training: Clips) -> Aligned | None:
    """The affine map that takes what a contender tells of training clips nearest to the truth."""
    counts = _require_truth(training)
    everything = torch.ones(training.video.shape[1], dtype=torch.bool)
    told, true = [], []
    for count in sorted(set(counts.tolist())):
        own = training[(counts == count).nonzero()[:, 0]]
        truth = _truth(own, count)
        pixels = _ask(contender, truth, everything).pixels
        if pixels is None:
            return None
        told.append(pixels)
        true.append(truth.noisy)
    return fit_affine(told, true)


def _detailed(counts: Int[Tensor, " B"]) -> Iterator[tuple[int, Int[Tensor, " b"]]]:
    """The first clips, apart by their number of objects."""
    first = counts[:NUM_DETAILED]
    for count in sorted(set(first.tolist())):
        yield count, (first == count).nonzero()[:, 0]


def _join(parts: list[StatisticsByScore]) -> StatisticsByScore:
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def _both(tallied: ClipStatistics) -> dict[str, Any]:
    return {"value": score(tallied).tolist(), "error": standard_error(tallied).tolist()}


def _write(record: dict[str, Any], count: int, num_clips: int, found: StatisticsByScore) -> None:
    """Adds the scores of clips with the same number of objects to the record."""
    both = {name: _both(tallied) for name, tallied in found.items()}
    plain = [name for name in found if found[name].totals.ndim == 1]
    key = str(count)
    record["by_count"][key] = {"clips": num_clips, **{n: both[n]["value"] for n in plain}}
    record["standard_errors"][key] = {name: both[name]["error"] for name in plain}
    record["curves"][key] = {name: both[name] for name in found if name not in plain}
