"""The scores of one query: identity, position errors, calibration and frame losses."""

from collections.abc import Callable

import torch

from motes.core.axes import Float, Tensor
from motes.evaluation import metrics
from motes.evaluation.metrics import ClipStatistics, clip_statistics, curve_statistics
from motes.evaluation.predictor import Mask, Prediction, Truth

MAX_ERROR = "max_error"  # largest error of a clip: not a score, but ranks the clips


LEVELS = (50, 90, 95)  # per cent, of the regions whose coverage is scored


StatisticsByScore = dict[str, ClipStatistics]


# One affine map of pixels, fitted to the truth of training clips.
AffineMap = Callable[[Float[Tensor, "*batch 2"]], Float[Tensor, "*batch 2"]]


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


def gap_scores(
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
