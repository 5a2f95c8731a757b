"""Scores against the truth, in pixels; pure functions. Truth is used here and nowhere else.

Objects have no names, so estimates are first put in the order of the truth: one permutation for
the whole clip, so that an identity that swaps half-way costs.
"""

import math
from itertools import permutations

import torch

from motes.shapes import Bool, Float, Int, Tensor

TRACKED_WITHIN = 4.0  # pixels


def best_order(
    estimate: Float[Tensor, "B N T 2"], truth: Float[Tensor, "B N T 2"]
) -> Int[Tensor, "B N"]:
    """For each clip the permutation of the estimate that is closest to the truth.

    Closest in summed squared distance; entries where either is NaN (absent objects) count nothing.

    Law: undoes any permutation (test_best_order_undoes_any_permutation).
    """
    orders = torch.tensor(list(permutations(range(truth.shape[1]))), device=truth.device)
    # distance[b, i, j]: between estimate i and truth j
    gaps = (estimate[:, :, None] - truth[:, None]).square().sum(-1).nansum(-1)
    slots = torch.arange(truth.shape[1], device=truth.device)
    costs = gaps[:, orders, slots].sum(-1).double()  # float32 would drown beside the penalty
    # An absent estimate may be matched only with an absent object.
    absent = estimate.isnan().all(-1).all(-1)[:, orders] != truth.isnan().all(-1).all(-1)[:, None]
    return orders[(costs + 1e12 * absent.sum(-1)).argmin(1)]


def reorder(values: Tensor, order: Int[Tensor, "B N"]) -> Tensor:
    """Values [B, N, ...] with the objects of each clip in the given order."""
    return values[torch.arange(len(order), device=order.device)[:, None], order]


def rmse(
    estimate: Float[Tensor, "B N T 2"],
    truth: Float[Tensor, "B N T 2"],
    frames: Bool[Tensor, " T"] | None = None,
) -> float:
    """Root mean squared Euclidean distance per object and frame, over the chosen frames."""
    squares = (estimate - truth).square().sum(-1)
    if frames is not None:
        squares = squares[..., frames]
    return math.sqrt(float(squares.nanmean()))


def tracked(
    estimate: Float[Tensor, "B N T 2"], truth: Float[Tensor, "B N T 2"]
) -> Bool[Tensor, " B"]:
    """Whether every object of a clip is within 4 px of its true position in every frame."""
    distance = (estimate - truth).norm(dim=-1)
    near: Tensor = (distance <= TRACKED_WITHIN) | truth.isnan().any(-1)
    return near.all(-1).all(-1)


def coverage(
    estimate: Float[Tensor, "B N T 2"],
    covariances: Float[Tensor, "B N T 2 2"],
    truth: Float[Tensor, "B N T 2"],
    frames: Bool[Tensor, " T"],
    level: float = 0.9,
) -> float:
    """The share of true positions that lie inside the estimate's region of this probability.

    The region is the ellipse of a Gaussian: squared Mahalanobis distance up to -2 log(1 - level).
    """
    gap = (truth - estimate)[..., frames, :].double()
    known = ~gap.isnan().any(-1)
    chosen = covariances[..., frames, :, :][known].double()
    solved, singular = torch.linalg.solve_ex(chosen, gap[known])
    # An ellipse without area, which a model that draws nothing claims, holds nothing.
    inside = (singular == 0) & ((gap[known] * solved).sum(-1) <= -2 * math.log(1 - level))
    return float(inside.double().mean())


def picture_loss(
    probabilities: Float[Tensor, "B T height width"], frames: Float[Tensor, "B T height width"]
) -> Float[Tensor, " B"]:
    """Mean Bernoulli cross-entropy of a pixel, in nats, for each clip."""
    p = probabilities.clamp(1e-6, 1 - 1e-6)
    return -(frames * p.log() + (1 - frames) * (1 - p).log()).mean((1, 2, 3))
