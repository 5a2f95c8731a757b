"""Where an object is that does not show: where something hides it, near where it is expected."""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.models.sprites.detection import pixel_grid, score_map
from motes.models.sprites.forward_pass import Scene, Sightings
from motes.models.sprites.grid_posterior import OcclusionPosterior
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    SpriteTemplate,
    cell_moments,
    coverage,
    mahalanobis,
)
from motes.models.sprites.renderer import PixelRenderer, SpriteRenderer

NUM_SAMPLES = 32  # draws that stand for a belief
AT_ONCE = 256  # positions that are supposed side by side, which bounds memory


class OccludedObjects(NamedTuple):
    """Beliefs about positions in frames that were seen, of objects that were not. In pixels.

    `log_occluded` is the log of the probability that an object does not show, were it where the
    other frames expect it. It and `divergence` are zero, and a place is the expected one, elsewhere.
    """

    occluded: Bool[Tensor, "B N T"]
    place: PixelGaussian  # B N T
    samples: Float[Tensor, "B N T spots 2"]  # each as likely as another
    log_occluded: Float[Tensor, "B N T"]
    divergence: Float[Tensor, "B N T"]  # divergence from what other frames expect, in nats

    def during(self, time: slice, renderer: PixelRenderer) -> OcclusionPosterior:
        """What q needs of some frames."""
        samples = renderer.from_pixels(self.samples[:, :, time])
        return OcclusionPosterior(self.occluded[:, :, time], samples, self.divergence[:, :, time])


def infer_occluded(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    found: Sightings,
    expected: PixelGaussian,
) -> OccludedObjects:
    """Weighs every pixel in which an object may be by the chance that it does not show there.

    A frame in which an object is not seen tells where it is not. Each frame is taken by itself,
    and the object is taken to be in the frame. [Choice 40]

    Args:
        scene: The frames, and what may hide objects.
        template: How an object looks, coarsely.
        found: Where objects were seen.
        expected: Where the other frames say that they are.

    Law: equals a loop over pixels (test_supposing_equals_the_naive_loop).
    """
    mean, covariance = (part.clone() for part in expected)
    samples = mean[..., None, :].repeat(1, 1, 1, NUM_SAMPLES, 1)
    log_occluded, cost = (torch.zeros_like(mean[..., 0]) for _ in range(2))
    there = ~found.seen & scene.present[..., None] & scene.observed[:, None]
    pixels = pixel_grid(template)
    for part in there.nonzero().split(chunk_size(AT_ONCE, like=mean)):
        at = tuple(part.unbind(1))
        score = occlusion_scores(scene, template, found, part)
        away = pixels - expected.mean[at][:, None]
        before = (-0.5 * mahalanobis(away, expected.covariance[at])).log_softmax(-1)
        joint = score + before
        weights, total = joint.softmax(-1), joint.logsumexp(-1)
        mean[at], covariance[at] = cell_moments(weights, pixels, 1.0)
        samples[at] = pixels[systematic_samples(weights)]
        log_occluded[at], cost[at] = total, (weights * score).sum(-1) - total
    return OccludedObjects(there, PixelGaussian(mean, covariance), samples, log_occluded, cost)


def systematic_samples(weights: Float[Tensor, "M pixels"]) -> Int[Tensor, "M spots"]:
    """Pixels as often as their weights say: at the middles of equal parts of the total."""
    parts = (torch.arange(NUM_SAMPLES, device=weights.device) + 0.5) / NUM_SAMPLES
    cumulative = weights.cumsum(-1)
    targets = parts.to(weights) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets).clamp(max=weights.shape[-1] - 1)


def occlusion_scores(
    scene: Scene[SpriteRenderer], template: SpriteTemplate, found: Sightings, at: Int[Tensor, "M 3"]
) -> Float[Tensor, "M pixels"]:
    """The log of how likely a frame is with an unseen object in each pixel, against without it.

    At most zero: what the ink that others leave unexplained would gain is no sighting.

    Args:
        scene: The frames.
        template: How an object looks.
        found: Where the other objects were seen.
        at: Clip, object and frame of each.
    """
    # Of all that hide in a frame alike: only those that were seen explain its ink.
    frames, which = at[:, [0, 2]].unique(dim=0, return_inverse=True)
    clip, time = frames.unbind(1)
    lit = coverage(template, found.place.mean[clip, :, time], found.seen[clip, :, time])
    covered = 1 - (1 - lit).prod(1)
    score = score_map(template, scene.frames[scene.clip[clip], time], covered)
    return score.clamp(max=0).logaddexp(template.log_miss)[which]
