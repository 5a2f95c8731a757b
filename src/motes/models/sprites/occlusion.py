"""Where an object is that does not show: where something hides it, near where it is expected."""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import side_by_side
from motes.models.sprites.detection import frame_pixels, survey
from motes.models.sprites.forward_pass import Scene, Sightings
from motes.models.sprites.grid_posterior import Hiding
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    SpriteTemplate,
    covers,
    mahalanobis,
    moments,
)
from motes.models.sprites.renderer import SpriteRenderer, Stage

SPOTS = 32  # draws that stand for a belief
AT_ONCE = 256  # positions that are supposed side by side, which bounds memory


class OccludedObjects(NamedTuple):
    """Beliefs about positions in frames that were seen, of objects that were not. In pixels.

    `log_hidden` is the log of the probability that an object does not show, were it where the
    other frames expect it. It and `cost` are zero, and a place is the expected one, elsewhere.
    """

    there: Bool[Tensor, "B N T"]
    place: PixelGaussian  # B N T
    spots: Float[Tensor, "B N T spots 2"]  # each as likely as another
    log_hidden: Float[Tensor, "B N T"]
    cost: Float[Tensor, "B N T"]  # divergence from what other frames expect, in nats

    def during(self, time: slice, renderer: Stage) -> Hiding:
        """What q needs of some frames."""
        spots = renderer.from_pixels(self.spots[:, :, time])
        return Hiding(self.there[:, :, time], spots, self.cost[:, :, time])


def suppose(
    scene: Scene[SpriteRenderer], glyph: SpriteTemplate, found: Sightings, expected: PixelGaussian
) -> OccludedObjects:
    """Weighs every pixel in which an object may be by the chance that it does not show there.

    A frame in which an object is not seen tells where it is not. Each frame is taken by itself,
    and the object is taken to be in the frame. [Choice 40]

    Args:
        scene: The frames, and what may hide objects.
        glyph: How an object looks, coarsely.
        found: Where objects were seen.
        expected: Where the other frames say that they are.

    Law: equals a loop over pixels (test_supposing_equals_the_naive_loop).
    """
    mean, covariance = (part.clone() for part in expected)
    spots = mean[..., None, :].repeat(1, 1, 1, SPOTS, 1)
    log_hidden, cost = (torch.zeros_like(mean[..., 0]) for _ in range(2))
    there = ~found.seen & scene.present[..., None] & scene.observed[:, None]
    pixels = frame_pixels(glyph)
    for part in there.nonzero().split(side_by_side(AT_ONCE, mean)):
        at = tuple(part.unbind(1))
        score = silence(scene, glyph, found, part)
        away = pixels - expected.mean[at][:, None]
        before = (-0.5 * mahalanobis(away, expected.covariance[at])).log_softmax(-1)
        joint = score + before
        weights, total = joint.softmax(-1), joint.logsumexp(-1)
        mean[at], covariance[at] = moments(weights, pixels, 1.0)
        spots[at] = pixels[even_draws(weights)]
        log_hidden[at], cost[at] = total, (weights * score).sum(-1) - total
    return OccludedObjects(there, PixelGaussian(mean, covariance), spots, log_hidden, cost)


def even_draws(weights: Float[Tensor, "M pixels"]) -> Int[Tensor, "M spots"]:
    """Pixels as often as their weights say: at the middles of equal parts of the total."""
    parts = (torch.arange(SPOTS, device=weights.device) + 0.5) / SPOTS
    cumulative = weights.cumsum(-1)
    targets = parts.to(weights) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets).clamp(max=weights.shape[-1] - 1)


def silence(
    scene: Scene[SpriteRenderer], glyph: SpriteTemplate, found: Sightings, at: Int[Tensor, "M 3"]
) -> Float[Tensor, "M pixels"]:
    """The log of how likely a frame is with an unseen object in each pixel, against without it.

    At most zero: what the ink that others leave unexplained would gain is no sighting.

    Args:
        scene: The frames.
        glyph: How an object looks.
        found: Where the other objects were seen.
        at: Clip, object and frame of each.
    """
    # Of all that hide in a frame alike: only those that were seen explain its ink.
    frames, which = at[:, [0, 2]].unique(dim=0, return_inverse=True)
    clip, time = frames.unbind(1)
    lit = covers(glyph, found.place.mean[clip, :, time], found.seen[clip, :, time])
    covered = 1 - (1 - lit).prod(1)
    score = survey(glyph, scene.frames[scene.clip[clip], time], covered)
    return score.clamp(max=0).logaddexp(glyph.missed)[which]
