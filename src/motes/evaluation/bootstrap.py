"""Scores as ratios of per-clip sums, with bootstrap standard errors over clips."""

from typing import NamedTuple

import torch

from motes.core.axes import Float, Tensor

NUM_RESAMPLES = 500


class ClipStatistics(NamedTuple):
    """A sum and a number of terms for each clip; the ratio of their totals is the score.

    Further axes are those of a curve.
    """

    totals: Float[Tensor, "B ..."]
    counts: Float[Tensor, "B ..."]
    root: bool = False  # the score is the square root of the ratio


def clip_statistics(values: Float[Tensor, "B ..."], *, root: bool = False) -> ClipStatistics:
    """Return the sums over all axes but that of clips; NaN is left out."""
    return ClipStatistics(*_sums(values, tuple(range(1, values.ndim))), root)


def curve_statistics(values: Float[Tensor, "B N T"], *, root: bool = False) -> ClipStatistics:
    """Return the sums over objects, one for each frame; NaN is left out."""
    return ClipStatistics(*_sums(values, (1,)), root)


def _sums(
    values: Tensor, axes: tuple[int, ...]
) -> tuple[Float[Tensor, "B ..."], Float[Tensor, "B ..."]]:
    known = ~values.isnan()
    numbers = torch.where(known, values.double(), 0.0)
    if not axes:
        return numbers, known.double()
    return numbers.sum(axes), known.double().sum(axes)


def concatenate(parts: list[ClipStatistics]) -> ClipStatistics:
    """Return the statistics of the clips of all parts."""
    totals, counts, roots = zip(*parts, strict=True)
    return ClipStatistics(torch.cat(totals), torch.cat(counts), roots[0])


def score(statistics: ClipStatistics) -> Float[Tensor, "..."]:
    """Return the score of all clips."""
    return _scores(statistics, torch.ones(1, len(statistics.totals), dtype=torch.float64))[0]


def standard_error(statistics: ClipStatistics) -> Float[Tensor, "..."]:
    """Return the standard deviation of the score over bootstrap resamples of the clips.

    The resamples depend on the number of clips only, so scores of the same clips share them.

    Law: equals the textbook's standard error of a mean (test_the_error_of_a_mean_is_the_textbooks).
    """
    size = len(statistics.totals)
    generator = torch.Generator().manual_seed(size)
    drawn = torch.randint(size, (NUM_RESAMPLES, size), generator=generator)
    weights = torch.zeros(NUM_RESAMPLES, size, dtype=torch.float64)
    weights.scatter_add_(1, drawn, torch.ones_like(weights))
    return _scores(statistics, weights).std(0)


def _scores(statistics: ClipStatistics, weights: Float[Tensor, "R B"]) -> Float[Tensor, "R ..."]:
    totals, counts = (torch.tensordot(weights, part.cpu(), 1) for part in statistics[:2])
    ratios: Tensor = totals / counts
    return ratios.sqrt() if statistics.root else ratios
