"""The evaluation harness: score any predictor on clips with known truth, in batches."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.data.clips import clips_to_grey
from motes.evaluation import learned, metrics
from motes.evaluation.metrics import ClipStatistics, Tracks, clip_statistics, curve_statistics
from motes.models.model import BoundTerms, Model, terms_of
from motes.queries import SEARCH, infer, interpolate

NUM_CONTEXT = 5  # observed frames before a forecast, and on either side of a gap, as in the paper
BATCH = 50
NUM_DETAILED = 90  # clips for the slow scores: other gaps, bounds, counts
DETAILED_BATCH = 20  # clips that share a pattern of dropped frames
NUM_WORST = 10
NUM_DRAWS = 32  # of the importance-weighted bound
DROPPED = (10, 30, 50, 70, 90)  # per cent of frames
BLOCKS = (5, 10)  # frames in the middle; the paper's 20 are scored on all clips
MAX_ERROR = "max_error"  # largest error of a clip: not a score, but ranks the clips
LEVELS = (50, 90, 95)  # per cent, of the regions whose coverage is scored

Frames = Float[Tensor, "B T height width *channels"]
Covariances = Float[Tensor, "B N T 2 2"]
Mask = Bool[Tensor, " T"]  # which frames are shown
StatisticsByScore = dict[str, ClipStatistics]
Progress = Callable[[int], None]
Masks = Mapping[str, Mask]


@dataclass(frozen=True)
class Prediction:
    """Tracks of clips with the same number of objects; None where a predictor gives no such value.

    The fields mean the same as those of `motes.queries.answer.Answer`; frames are drawn on demand.
    """

    pixels: Tracks | None = None
    pixel_covariances: Covariances | None = None
    path_pixels: Tracks | None = None
    path_pixel_covariances: Covariances | None = None
    draw_frames: Callable[[], Frames] | None = None
    draw_mean_frames: Callable[[], Frames] | None = None


class Predictor(Protocol):
    """A model or a baseline."""

    @property
    def interpolates(self) -> bool:
        """Whether it uses frames after a gap."""
        ...

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return a prediction for all frames given the observed ones; the others are zero."""
        ...


@dataclass(frozen=True)
class ModelPredictor:
    """A model as a predictor."""

    model: Model
    interpolates: bool = True

    def predict(
        self, frames: Frames, observed: Bool[Tensor, "*B T"], num_objects: int
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


class Truth(NamedTuple):
    """The truth of clips with the same number of objects."""

    frames: Frames
    noisy: Tracks  # positions at which objects are drawn
    clean: Tracks  # positions on the noise-free path
    visible: Bool[Tensor, "B N T"]  # whether an object shows in a frame that was recorded
    recorded: Bool[Tensor, "B T"] | None  # which frames exist; None: all

    @classmethod
    def of(cls, clips: Clips, count: int) -> "Truth":
        """Return the truth of clips that all have `count` objects."""
        assert clips.positions is not None
        assert clips.clean is not None
        noisy, recorded = clips.positions[:, :count], clips.observed
        visible = ~noisy.isnan().any(-1)
        if clips.visible is not None:
            visible = visible & clips.visible[:, :count]
        if recorded is not None:
            visible = visible & recorded[:, None]
        return cls(clips.frames.float(), noisy, clips.clean[:, :count], visible, recorded)


# The truth and a mask of shown frames (one for all clips, or one per clip) to a prediction.
Ask = Callable[[Truth, Bool[Tensor, "*B T"]], Prediction]


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
    _require_truth(clips)
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
    _require_truth(clips)
    ask, some, size = ask_predictor(predictor), clips[:NUM_DETAILED], DETAILED_BATCH
    found = score_clips(ask, some, _gap_masks, _gap_scores, progress=progress, batch_size=size)
    return {str(n): _with_errors(len(own), found[n]) for n, own in by_count(some).items()}


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
        statistics = {name: clip_statistics(value.cpu()) for name, value in values.items()}
        record[str(count)] = _with_errors(len(indices), statistics)
        done += len(indices)
        progress(done)
    return record


@torch.no_grad()
def bound_and_weighted(
    model: Model, frames: Frames, num_objects: int
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return the ELBO and the importance-weighted bound of each clip, in nats.

        log 1/S sum_s p(v, a_s) / q(a_s | v),  a_s ~ q

    lies above the ELBO and approaches log p(v) from below as S grows.

    Law: for one draw the two have the same mean, and more draws raise the second
    (test_more_draws_tighten_the_bound).
    """
    everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=model.device)
    counts = torch.full((len(frames),), num_objects, device=model.device)
    encoding = model.infer(frames, counts, everything, SEARCH)
    generator = torch.Generator().manual_seed(0)
    bounds, log_ratios = [], []
    for _ in range(NUM_DRAWS):
        noise = torch.randn(encoding.means.shape, generator=generator).to(model.device)
        terms = BoundTerms(*(x.double() for x in terms_of(model, encoding, frames, counts, noise)))
        # The ELBO uses q's entropy; a ratio needs the density of the draw itself.
        each = encoding.log_density(noise).double().sum(-1)
        density = torch.where(model.present(counts), each, 0.0).sum(1)
        bounds.append(terms.weighted(1.0))
        log_ratios.append(terms.reconstruction + terms.log_prior - density)
    weighted = torch.stack(log_ratios).logsumexp(0) - math.log(NUM_DRAWS)
    return torch.stack(bounds).mean(0), weighted


def compare_physics(model: Model, clips: Clips) -> dict[str, Any]:
    """Return the learned force and initial states beside the true ones."""
    return {
        "force_px_per_frame2": learned.learned_force(model).tolist(),
        "true_force_px_per_frame2": learned.true_force(clips).tolist(),
        "starts": learned.learned_initial_states(model).as_lists(),
        "true_starts": learned.true_initial_states(clips).as_lists(),
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


# One affine map of pixels, fitted to the truth of training clips.
AffineMap = Callable[[Float[Tensor, "*batch 2"]], Float[Tensor, "*batch 2"]]


def _fit_affine(ask: Ask, training: Clips) -> AffineMap | None:
    """Return the least-squares map from estimates to the truth; None without estimates."""
    _require_truth(training)
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


def query_scores(
    query: str,
    prediction: Prediction,
    truth: Truth,
    observed: Mask,
    affine: AffineMap | None = None,
) -> StatisticsByScore:
    """Return every score of one query that the prediction allows.

    Args:
        query: infer, forecast or interpolation.
        prediction: Of the clips.
        truth: Of the same clips.
        observed: The frames that were shown; where some were not, only those are scored.
        affine: A map of the estimates, for the scores named affine_*.
    """
    found: StatisticsByScore = {}
    if prediction.pixels is not None and query == "infer":
        found |= _identity(prediction.pixels, truth.noisy)
        found |= _positions("noisy", prediction.pixels, truth.noisy, observed, affine)
    if prediction.path_pixels is not None:
        name = "path" if query == "infer" else query
        found |= _positions(name, prediction.path_pixels, truth.clean, observed, affine)
        if query == "infer" and prediction.path_pixel_covariances is not None:
            path = prediction.path_pixels, prediction.path_pixel_covariances
            found |= _calibration("path", *path, truth.clean, observed)
    if prediction.pixels is not None and prediction.pixel_covariances is not None:
        estimate = prediction.pixels, prediction.pixel_covariances
        found |= _calibration(query, *estimate, truth.noisy, observed)
    if query == "forecast":
        found |= _frame_losses(prediction, truth, ~observed)
    return found


def _gap_scores(
    name: str, prediction: Prediction, truth: Truth, observed: Mask
) -> StatisticsByScore:
    """Return error and coverage in the hidden frames of one pattern of gaps."""
    found: StatisticsByScore = {}
    if prediction.path_pixels is not None:
        squares = _squares(prediction.path_pixels, truth.clean)[..., ~observed]
        found[f"{name}_rmse"] = clip_statistics(squares, root=True)
    if prediction.pixels is not None and prediction.pixel_covariances is not None:
        pixels, spread = _match(truth.noisy, prediction.pixels, prediction.pixel_covariances)
        squares = metrics.squared_distance(pixels, spread, truth.noisy)[..., ~observed]
        found[f"{name}_coverage90"] = clip_statistics(metrics.inside(squares, 0.9))
    return found


def _identity(pixels: Tensor, noisy: Tensor) -> StatisticsByScore:
    """Whether objects are found and keep their identity."""
    (matched,) = _match(noisy, pixels)
    positions = torch.full((len(noisy),), float(noisy.shape[1] * noisy.shape[2]))
    distance = (matched - noisy).norm(dim=-1)
    return {
        "tracked": clip_statistics(metrics.tracked(matched, noisy).double()),
        "within2": clip_statistics(metrics.within(matched, noisy).double()),
        "switches": clip_statistics(metrics.switches(pixels, noisy).double()),
        "idf1": ClipStatistics(metrics.identified(pixels, noisy).double(), positions.double()),
        MAX_ERROR: clip_statistics(distance.flatten(1).amax(1)),
    }


def _positions(
    name: str, estimate: Tensor, true: Tensor, observed: Tensor, affine: AffineMap | None
) -> StatisticsByScore:
    """Root mean squared distances, over all scored frames and frame by frame."""
    scored = _scored(observed)
    squares = _squares(estimate, true)[..., scored]
    found = {f"{name}_rmse": clip_statistics(squares, root=True)}
    if not bool(observed.all()):
        found[f"{name}_rmse_curve"] = curve_statistics(squares, root=True)
    if affine is not None:
        mapped = _squares(affine(estimate), true)[..., scored]
        found[f"affine_{name}_rmse"] = clip_statistics(mapped, root=True)
    return found


def _calibration(
    name: str, estimate: Tensor, covariances: Tensor, true: Tensor, observed: Tensor
) -> StatisticsByScore:
    """Coverage, NEES and NLL, over all scored frames and, in gaps, frame by frame."""
    scored = _scored(observed)
    matched, matched_covariances = _match(true, estimate, covariances)
    parts = matched[..., scored, :], matched_covariances[..., scored, :, :], true[..., scored, :]
    squares = metrics.squared_distance(*parts)
    values = {f"coverage{level}": metrics.inside(squares, level / 100) for level in LEVELS}
    values |= {"nees": squares, "nll": metrics.negative_log_density(*parts)}
    found = {f"{name}_{kind}": clip_statistics(value) for kind, value in values.items()}
    if not bool(observed.all()):
        for kind in ("coverage90", "nees", "nll"):
            found[f"{name}_{kind}_curve"] = curve_statistics(values[kind])
    # A curve over levels, for the reliability diagram.
    levels = [5 * step / 100 for step in range(1, 20)]
    shares = torch.stack([metrics.inside(squares, level) for level in levels], -1)
    totals = torch.where(squares.isnan()[..., None], 0.0, shares).sum((1, 2))
    known = (~squares.isnan()).double().sum((1, 2))[:, None].expand_as(totals)
    return found | {f"{name}_reliability": ClipStatistics(totals, known)}


def _frame_losses(prediction: Prediction, truth: Truth, hidden: Tensor) -> StatisticsByScore:
    """Losses of the forecast frames."""
    found: StatisticsByScore = {}
    frames = truth.frames[:, hidden]
    if prediction.draw_frames is not None:
        drawn = prediction.draw_frames()[:, hidden]
        losses = metrics.frame_losses(drawn, frames)
        found["forecast_loss"] = clip_statistics(losses)
        found["forecast_loss_curve"] = curve_statistics(losses[:, None])
        paper = metrics.losses_in_papers_unit(drawn, frames)
        found["forecast_loss_papers_unit"] = clip_statistics(paper)
    if prediction.draw_mean_frames is not None:
        drawn = prediction.draw_mean_frames()[:, hidden]
        found["forecast_loss_of_mean"] = clip_statistics(metrics.frame_losses(drawn, frames))
    return found


def _scored(observed: Mask) -> Mask:
    """Return the hidden frames, or all where none is hidden."""
    return observed if bool(observed.all()) else ~observed


def _squares(estimate: Tensor, true: Tensor) -> Float[Tensor, "B N T"]:
    return (_match(true, estimate)[0] - true).square().sum(-1)


def _match(true: Tensor, estimate: Tensor, *further: Tensor) -> list[Tensor]:
    """Return an estimate, and what belongs to it, with objects in the order of the truth."""
    order = metrics.best_order(estimate, true)
    return [metrics.reorder(values, order) for values in (estimate, *further)]


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
        key, values = str(count), _with_errors(len(own), statistics)
        plain = [name for name in statistics if statistics[name].totals.ndim == 1]
        record["by_count"][key] = {"clips": len(own), **{n: values[n]["value"] for n in plain}}
        known = plain if len(own) > 1 else []  # one clip does not tell its error
        record["standard_errors"][key] = {name: values[name]["error"] for name in known}
        record["curves"][key] = {n: values[n] for n in statistics if n not in plain}
    if not bool(losses.isnan().any()):  # so that two records can be compared clip by clip
        record["forecast_loss_of_clips"] = [round(loss, 6) for loss in losses.tolist()]
    record["worst_clips"] = [clip for _, clip in sorted(worst, reverse=True)[:NUM_WORST]]
    return record


def _with_errors(num_clips: int, found: StatisticsByScore) -> dict[str, Any]:
    """Return scores and standard errors as plain numbers."""
    values = {
        name: {"value": metrics.score(s).tolist(), "error": metrics.standard_error(s).tolist()}
        for name, s in found.items()
    }
    return {"clips": num_clips, **values}
