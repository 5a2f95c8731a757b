"""Pure functions that compare estimates with the truth, in pixels; scores and standard errors.

Objects have no fixed order, so estimates are first matched to the truth: one permutation for the
whole clip, so that an identity switch is penalised. A score is a ratio of sums over clips, with a
bootstrap standard error.
"""

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError

TRACKED_WITHIN = 4.0  # pixels
GATE = 2.0  # pixels, for identity: the radius of an object
MOST_PERMUTED = 5  # objects; beyond, all permutations are too many
NUM_RESAMPLES = 500  # of the clips, for standard errors

Tracks = Float[Tensor, "B N T 2"]
Points = Float[Tensor, "*batch 2"]
Covariances = Float[Tensor, "*batch 2 2"]
Frames = Float[Tensor, "B T height width *channels"]


def best_order(estimate: Tracks, truth: Tracks) -> Int[Tensor, "B N"]:
    """Return, for each clip, the permutation of the estimate that is closest to the truth.

    Closest in summed squared distance; entries where either is NaN (absent objects) are ignored.

    Law: undoes any permutation (test_best_order_undoes_any_permutation).
    """
    # costs[b, i, j]: of matching estimate i to truth j; float64, or the penalty swamps them
    costs = (estimate[:, :, None] - truth[:, None]).square().sum(-1).nansum(-1).double()
    # An absent estimate may be matched only with an absent object.
    absent = estimate.isnan().all(-1).all(-1)[:, :, None] != truth.isnan().all(-1).all(-1)[:, None]
    return cheapest_order(costs + 1e12 * absent)


def cheapest_order(costs: Float[Tensor, "B N N"]) -> Int[Tensor, "B N"]:
    """Return, for each clip, the permutation i(j) with the least sum over j of costs[i(j), j].

    Law: many objects are matched as few are (test_many_objects_are_matched_as_few_are).
    """
    size = costs.shape[1]
    if size > MOST_PERMUTED:
        try:
            from scipy.optimize import linear_sum_assignment
        except ImportError:
            raise InputError(f"scores of {size} objects need scipy; pip install scipy") from None
        matched = [linear_sum_assignment(cost.T)[1] for cost in costs.cpu().numpy()]
        return torch.tensor(np.stack(matched), device=costs.device)
    orders = torch.tensor(list(permutations(range(size))), device=costs.device)
    slots = torch.arange(size, device=costs.device)
    return orders[costs[:, orders, slots].sum(-1).argmin(1)]


def reorder(values: Tensor, order: Int[Tensor, "B N"]) -> Tensor:
    """Return values [B, N, ...] with the objects of each clip in the given order."""
    return values[torch.arange(len(order), device=order.device)[:, None], order]


def rmse(estimate: Tracks, truth: Tracks, frames: Bool[Tensor, " T"] | None = None) -> float:
    """Return the root mean squared Euclidean distance over objects and the chosen frames."""
    squares = (estimate - truth).square().sum(-1)
    if frames is not None:
        squares = squares[..., frames]
    return math.sqrt(float(squares.nanmean()))


def tracked(estimate: Tracks, truth: Tracks) -> Bool[Tensor, " B"]:
    """Return whether every object is within 4 px of its true position in every frame."""
    distance = (estimate - truth).norm(dim=-1)
    near: Tensor = (distance <= TRACKED_WITHIN) | truth.isnan().any(-1)
    return near.all(-1).all(-1)


def within(estimate: Tracks, truth: Tracks) -> Bool[Tensor, "B N T"]:
    """Return whether an object is within the gate, two pixels, of its true position."""
    near: Tensor = (estimate - truth).norm(dim=-1) <= GATE
    return near


def switches(estimate: Tracks, truth: Tracks) -> Int[Tensor, " B"]:
    """Return how often an object is taken over by another estimate.

    In every frame each object keeps its estimate while that is within the gate; the others are
    matched again, nearest pairs first. A change of an object's estimate from its last one is a
    switch; frames without a match are not.

    Law: swapping two tracks half-way are two switches (test_a_swap_half_way_is_two_switches).
    """
    distance = (truth[:, :, None] - estimate[:, None]).norm(dim=-1)  # B truth estimate T
    clips = (_count_switches(clip) for clip in distance.nan_to_num(torch.inf).cpu().numpy())
    return torch.tensor(list(clips), device=truth.device)


def _count_switches(distance: Float[np.ndarray, "N N T"]) -> int:
    """Return the switches in one clip, from the distances of truths and estimates."""
    last: dict[int, int] = {}
    total = 0
    for gap in distance.transpose(2, 0, 1):
        kept = {i: j for i, j in last.items() if gap[i, j] <= GATE}
        pairs = sorted(
            (float(gap[i, j]), i, j)
            for i, j in zip(*np.nonzero(gap <= GATE), strict=True)
            if i not in kept and j not in kept.values()
        )
        for _, i, j in pairs:
            if i not in kept and j not in kept.values():
                total += last.get(i, j) != j
                kept[i] = j
        last.update(kept)
    return total


def identified(estimate: Tracks, truth: Tracks) -> Int[Tensor, " B"]:
    """Return how many true positions lie within the gate of their estimate, in the best order.

    With as many estimates as objects, the share of all positions is IDF1.
    """
    near = (truth[:, None] - estimate[:, :, None]).norm(dim=-1) <= GATE  # B estimate truth T
    hits = near.sum(-1)
    order = cheapest_order(-hits.double())
    own: Tensor = hits.take_along_dim(order[:, None], 1)[:, 0]
    return own.sum(-1)


def squared_distance(
    estimate: Points, covariances: Covariances, truth: Points
) -> Float[Tensor, "*batch"]:
    """Return the squared Mahalanobis distance of the truth; infinite for singular covariances.

    Its mean (NEES) is 2, the dimension, for calibrated error bars.
    """
    gap = (truth - estimate).double()
    # Unit matrices replace unknown ones, so that NaN does not spread.
    known = covariances.isfinite().all(-1).all(-1)
    safe = torch.where(known[..., None, None], covariances.double(), torch.eye(2).to(gap))
    solved, singular = torch.linalg.solve_ex(safe, gap)
    squares = (gap * solved).sum(-1)
    # An ellipse without area, as of a model that draws nothing, contains nothing.
    return torch.where(known & (singular == 0), squares, torch.where(known, torch.inf, torch.nan))


def negative_log_density(
    estimate: Points, covariances: Covariances, truth: Points
) -> Float[Tensor, "*batch"]:
    """Return the negative log density of the truth under the estimate's Gaussian, in nats."""
    determinant: Tensor = torch.linalg.det(covariances.double())
    log_scale = math.log(2 * math.pi) + 0.5 * determinant.log()
    return log_scale + 0.5 * squared_distance(estimate, covariances, truth)


def squared_radius(level: float) -> float:
    """Return the squared Mahalanobis radius of the 2D Gaussian region with this probability."""
    return -2 * math.log(1 - level)


def inside(squares: Float[Tensor, "*batch"], level: float) -> Float[Tensor, "*batch"]:
    """Return 1 where a squared distance is within the region of this probability, 0, or NaN."""
    within = (squares <= squared_radius(level)).double()
    return torch.where(squares.isnan(), torch.nan, within)


def frame_losses(probabilities: Frames, frames: Frames) -> Float[Tensor, "B T"]:
    """Return the mean Bernoulli cross-entropy of a pixel, in nats, for each frame."""
    p = probabilities.clamp(1e-6, 1 - 1e-6)
    losses = -(frames * p.log() + (1 - frames) * (1 - p).log())
    return losses.mean(tuple(range(2, losses.ndim)))


def losses_in_papers_unit(probabilities: Frames, frames: Frames) -> Float[Tensor, "B T"]:
    """Return the cross-entropy with the sigmoid applied twice, perhaps the paper's unit (0.691).

    In this unit black frames have log 2 = 0.6931.
    """
    losses = binary_cross_entropy_with_logits(probabilities, frames, reduction="none")
    return losses.mean(tuple(range(2, losses.ndim)))


class ClipStatistics(NamedTuple):
    """Sums and numbers of terms of each clip (and point of a curve); their ratio is the score."""

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
