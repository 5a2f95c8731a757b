"""Honest error bars for a q that was learned: its covariances, times one number a count.

A bound is not hurt by a q that is too narrow, so the paper's inference network is too sure of
itself where it errs. Another model of the same videos, the structured one, which searches every
frame, says where objects can be; the number is chosen so that the network's regions hold as much
of that as they claim. No truth is used: both models learned from videos alone. [Choice 28]
"""

import torch

from motes.core.axes import Float, Int, Tensor
from motes.evaluation.metrics import best_order, radius_of, reorder, squared_distance
from motes.models.model import Model
from motes.models.paper.gap_filling import encode

LEVEL = 0.9  # of the region that is made honest
BATCH = 50


@torch.no_grad()
def temper(
    model: Model,
    reference: Model,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
) -> Float[Tensor, " Nmax"]:
    """Stores in the model what its covariances are multiplied by; returns it.

    Args:
        model: of the paper's family.
        reference: of the structured family, for the same videos.
        frames: training clips.
        num_objects: objects in each of them; a number that none has keeps its factor.

    Law: a q that is too narrow by a factor gets that factor
    (test_a_q_that_is_too_narrow_is_widened_by_as_much).
    """
    for count in sorted(set(num_objects.tolist())):
        own = frames[num_objects == count]
        squares = torch.cat([distances(model, reference, part, count) for part in own.split(BATCH)])
        model.temper[count - 1] = squares.flatten().quantile(LEVEL) / radius_of(LEVEL)
    return model.temper


def distances(
    model: Model, reference: Model, frames: Float[Tensor, "B T height width"], count: int
) -> Float[Tensor, "B N T"]:
    """Squared Mahalanobis distances, as the model has it, of the reference's draws."""
    everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    counts = torch.full((len(frames),), count, device=frames.device)
    q, other = (encode(m, frames, everything, counts) for m in (model, reference))
    noise = torch.randn(other.means.shape, generator=torch.Generator().manual_seed(0))
    drawn = reference.to_pixels(other.draw(noise.to(frames)))[:, :count]
    pixels, to_pixels = model.to_pixels(q.means)[:, :count], model.pixel_matrix
    covariances = to_pixels @ q.covariances()[:, :count] @ to_pixels.mT
    order = best_order(pixels, drawn)
    return squared_distance(reorder(pixels, order), reorder(covariances, order), drawn)
