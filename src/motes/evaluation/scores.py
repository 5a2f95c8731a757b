"""From what is told about clips and what is true to tallies, one for each score."""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.evaluation import metrics
from motes.evaluation.bootstrap import ClipStatistics, curve, tally
from motes.evaluation.predictor import Prediction

FURTHEST = "furthest"  # largest error of a clip: no score, but which clips went wrong
LEVELS = (50, 90, 95)  # per cent, of the regions whose coverage is scored


class Truth(NamedTuple):
    """What really happened, for clips with the same number of objects."""

    frames: Float[Tensor, "B T height width *channels"]
    noisy: Float[Tensor, "B N T 2"]
    clean: Float[Tensor, "B N T 2"]


class Aligned(NamedTuple):
    """An affine map of pixels, fitted to the truth of training clips."""

    matrix: Float[Tensor, "2 2"]
    offset: Float[Tensor, " 2"]

    def __call__(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """The mapped pixels."""
        return pixels @ self.matrix.T + self.offset


def fit_affine(told: list[Tensor], true: list[Tensor]) -> Aligned:
    """The least-squares map from told positions [B, N, T, 2], put in order, to true ones."""
    pairs = list(zip(told, true, strict=True))
    given = torch.cat(
        [metrics.reorder(t, metrics.best_order(t, a)).reshape(-1, 2) for t, a in pairs]
    )
    target = torch.cat([a.reshape(-1, 2) for a in true])
    design = torch.cat([given, torch.ones_like(given[:, :1])], 1).double()
    solution = torch.linalg.lstsq(design, target.double()).solution.to(given)
    return Aligned(solution[:2].T, solution[2])


def tallies(
    question: str,
    told: Prediction,
    truth: Truth,
    observed: Bool[Tensor, " T"],
    affine: Aligned | None,
) -> dict[str, ClipStatistics]:
    """Every score of one question that the contender can be asked.

    Args:
        question: infer, forecast or interpolation.
        told: The answer.
        truth: Of the same clips.
        observed: The frames that were seen; where some were not, only those are scored.
        affine: A map of what is told, for the scores named affine_*.
    """
    found: dict[str, ClipStatistics] = {}
    if told.pixels is not None and question == "infer":
        found |= _identity(told.pixels, truth.noisy)
        found |= _positions("noisy", told.pixels, truth.noisy, observed, affine)
    if told.path_pixels is not None:
        name = "path" if question == "infer" else question
        found |= _positions(name, told.path_pixels, truth.clean, observed, affine)
        if question == "infer" and told.path_pixel_covariances is not None:
            bars = told.path_pixels, told.path_pixel_covariances
            found |= _calibration("path", *bars, truth.clean, observed)
    if told.pixels is not None and told.pixel_covariances is not None:
        bars = told.pixels, told.pixel_covariances
        found |= _calibration(question, *bars, truth.noisy, observed)
    if question == "forecast":
        found |= _pictures(told, truth, ~observed)
    return found


def gap_tallies(
    name: str, told: Prediction, truth: Truth, observed: Bool[Tensor, " T"]
) -> dict[str, ClipStatistics]:
    """Error and coverage in the hidden frames of one pattern of gaps."""
    found: dict[str, ClipStatistics] = {}
    if told.path_pixels is not None:
        squares = _squares(told.path_pixels, truth.clean)[..., ~observed]
        found[f"{name}_rmse"] = tally(squares, root=True)
    if told.pixels is not None and told.pixel_covariances is not None:
        bars = _in_order(told.pixels, told.pixel_covariances, truth.noisy)
        squares = metrics.squared_distance(*bars, truth.noisy)[..., ~observed]
        found[f"{name}_coverage90"] = tally(metrics.inside(squares, 0.9))
    return found


def _identity(pixels: Tensor, noisy: Tensor) -> dict[str, ClipStatistics]:
    """Whether objects are found and kept apart."""
    order = metrics.best_order(pixels, noisy)
    own = metrics.reorder(pixels, order)
    positions = torch.full((len(noisy),), float(noisy.shape[1] * noisy.shape[2]))
    distance = (own - noisy).norm(dim=-1)
    return {
        "tracked": tally(metrics.tracked(own, noisy).double()),
        "within2": tally(metrics.within(own, noisy).double()),
        "switches": tally(metrics.switches(pixels, noisy).double()),
        "idf1": ClipStatistics(metrics.identified(pixels, noisy).double(), positions.double()),
        FURTHEST: tally(distance.flatten(1).amax(1)),
    }


def _positions(
    name: str, told: Tensor, true: Tensor, observed: Tensor, affine: Aligned | None
) -> dict[str, ClipStatistics]:
    """Root mean squared distances, over all scored frames and frame by frame."""
    scored = _scored(observed)
    squares = _squares(told, true)[..., scored]
    found = {f"{name}_rmse": tally(squares, root=True)}
    if not bool(observed.all()):
        found[f"{name}_rmse_curve"] = curve(squares, root=True)
    if affine is not None:
        mapped = _squares(affine(told), true)[..., scored]
        found[f"affine_{name}_rmse"] = tally(mapped, root=True)
    return found


def _calibration(
    name: str, told: Tensor, covariances: Tensor, true: Tensor, observed: Tensor
) -> dict[str, ClipStatistics]:
    """Whether error bars are honest, over all scored frames and, in gaps, frame by frame."""
    scored = _scored(observed)
    own, spread = _in_order(told, covariances, true)
    parts = own[..., scored, :], spread[..., scored, :, :], true[..., scored, :]
    squares = metrics.squared_distance(*parts)
    values = {f"coverage{level}": metrics.inside(squares, level / 100) for level in LEVELS}
    values |= {"nees": squares, "nll": metrics.surprise(*parts)}
    found = {f"{name}_{kind}": tally(value) for kind, value in values.items()}
    if not bool(observed.all()):
        for kind in ("coverage90", "nees", "nll"):
            found[f"{name}_{kind}_curve"] = curve(values[kind])
    # A curve over levels, for the reliability diagram.
    levels = [5 * step / 100 for step in range(1, 20)]
    shares = torch.stack([metrics.inside(squares, level) for level in levels], -1)
    totals = torch.where(squares.isnan()[..., None], 0.0, shares).sum((1, 2))
    known = (~squares.isnan()).double().sum((1, 2))[:, None].expand_as(totals)
    return found | {f"{name}_reliability": ClipStatistics(totals, known)}


def _pictures(told: Prediction, truth: Truth, hidden: Tensor) -> dict[str, ClipStatistics]:
    """Losses of the pictures ahead."""
    found: dict[str, ClipStatistics] = {}
    frames = truth.frames[:, hidden]
    if told.draw_frames is not None:
        drawn = told.draw_frames()[:, hidden]
        losses = metrics.frame_losses(drawn, frames)
        found["forecast_loss"] = tally(losses)
        found["forecast_loss_curve"] = curve(losses[:, None])
        found["forecast_loss_papers_unit"] = tally(metrics.losses_in_papers_unit(drawn, frames))
    if told.draw_mean_frames is not None:
        drawn = told.draw_mean_frames()[:, hidden]
        found["forecast_loss_of_mean"] = tally(metrics.frame_losses(drawn, frames))
    return found


def _scored(observed: Bool[Tensor, " T"]) -> Bool[Tensor, " T"]:
    """The hidden frames, or all where none is hidden."""
    return observed if bool(observed.all()) else ~observed


def _squares(told: Tensor, true: Tensor) -> Float[Tensor, "B N T"]:
    own = metrics.reorder(told, metrics.best_order(told, true))
    return (own - true).square().sum(-1)


def _in_order(told: Tensor, covariances: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    order = metrics.best_order(told, true)
    return metrics.reorder(told, order), metrics.reorder(covariances, order)
