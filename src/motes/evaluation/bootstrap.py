"""Scores as sums over clips, so that any sample of clips has its score: the way to error bars."""

from typing import NamedTuple

import torch

from motes.core.axes import Float, Tensor

NUM_RESAMPLES = 500


class ClipStatistics(NamedTuple):
    """For each clip a sum and how many entered it; the ratio of their totals is the score.

    Further axes are those of a curve.
    """

    totals: Float[Tensor, "B ..."]
    counts: Float[Tensor, "B ..."]
    root: bool = False  # the score is the root of the ratio


def tally(values: Float[Tensor, "B ..."], *, root: bool = False) -> ClipStatistics:
    """The tally over all axes but that of clips; NaN counts nothing."""
    return ClipStatistics(*_sums(values, tuple(range(1, values.ndim))), root)


def curve(values: Float[Tensor, "B N T"], *, root: bool = False) -> ClipStatistics:
    """The tally over objects, one for each frame; NaN counts nothing."""
    return ClipStatistics(*_sums(values, (1,)), root)


def _sums(
    values: Tensor, axes: tuple[int, ...]
) -> tuple[Float[Tensor, "B ..."], Float[Tensor, "B ..."]]:
    known = ~values.isnan()
    numbers = torch.where(known, values.double(), 0.0)
    if not axes:
        return numbers, known.double()
    return numbers.sum(axes), known.double().sum(axes)


def joined(parts: list[ClipStatistics]) -> ClipStatistics:
    """One tally of the clips of several."""
    totals, counts, roots = zip(*parts, strict=True)
    return ClipStatistics(torch.cat(totals), torch.cat(counts), roots[0])


def score(tallied: ClipStatistics) -> Float[Tensor, "..."]:
    """The score of all clips."""
    return _scores(tallied, torch.ones(1, len(tallied.totals), dtype=torch.float64))[0]


def standard_error(tallied: ClipStatistics) -> Float[Tensor, "..."]:
    """The standard deviation of the score over samples of clips drawn with replacement.

    The same clips are drawn for every score of as many clips, and in every run.

    Law: that of a mean is the textbook's (test_the_error_of_a_mean_is_the_textbooks).
    """
    size = len(tallied.totals)
    generator = torch.Generator().manual_seed(size)
    drawn = torch.randint(size, (NUM_RESAMPLES, size), generator=generator)
    weights = torch.zeros(NUM_RESAMPLES, size, dtype=torch.float64)
    weights.scatter_add_(1, drawn, torch.ones_like(weights))
    return _scores(tallied, weights).std(0)


def _scores(tallied: ClipStatistics, weights: Float[Tensor, "R B"]) -> Float[Tensor, "R ..."]:
    totals, counts = (torch.tensordot(weights, part.cpu(), 1) for part in tallied[:2])
    ratios: Tensor = totals / counts
    return ratios.sqrt() if tallied.root else ratios
