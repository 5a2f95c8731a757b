"""Undetected objects of the sprite family: where they may be occluded."""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.models.sprites.grid_posterior import OcclusionPosterior
from motes.models.sprites.likelihood_maps import (
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    cell_moments,
    coverage,
    pixel_grid,
    pixel_mahalanobis,
    score_map,
)
from motes.models.sprites.renderer import PixelRenderer, SpriteRenderer

NUM_SAMPLES = 32  # that represent a posterior
CHUNK_POSITIONS = 256  # evaluated in one batch, which bounds memory


class OccludedObjects(NamedTuple):
    """Posteriors of undetected objects in observed frames, in pixels.

    Elsewhere `place` is the leave-one-out prediction, and `log_occluded` and `divergence` are 0.
    """

    occluded: Bool[Tensor, "B N T"]
    place: PixelGaussian  # B N T
    samples: Float[Tensor, "B N T samples 2"]  # of equal weight
    log_occluded: Float[Tensor, "B N T"]  # log probability, under the prediction, not to show
    divergence: Float[Tensor, "B N T"]  # from the prediction, in nats

    def during(self, time: slice, renderer: PixelRenderer) -> OcclusionPosterior:
        """Return the part of q of a block of frames, in latent units."""
        samples = renderer.from_pixels(self.samples[:, :, time])
        return OcclusionPosterior(self.occluded[:, :, time], samples, self.divergence[:, :, time])


def infer_occluded(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    found: Detections,
    expected: PixelGaussian,
) -> OccludedObjects:
    """Return the posterior over pixels of each undetected object in each observed frame.

        p(pixel | not detected) ~ exp(occlusion_scores(pixel)) N(pixel; expected)

    Frames are independent given the prediction, and objects are inside the frame. [Choice 40]

    Law: equals a loop over pixels (test_occluded_posterior_equals_the_naive_loop).
    """
    mean, covariance = (part.clone() for part in expected)
    samples = mean[..., None, :].repeat(1, 1, 1, NUM_SAMPLES, 1)
    log_occluded, divergence = (torch.zeros_like(mean[..., 0]) for _ in range(2))
    occluded = ~found.detected & scene.present[..., None] & scene.observed[:, None]
    pixels = pixel_grid(template.image_size, template.depth)
    for part in occluded.nonzero().split(chunk_size(CHUNK_POSITIONS, like=mean)):
        at = tuple(part.unbind(1))
        score = occlusion_scores(scene, template, found, part)
        away = pixels - expected.mean[at][:, None]
        before = (-0.5 * pixel_mahalanobis(away, expected.covariance[at])).log_softmax(-1)
        joint = score + before
        weights, total = joint.softmax(-1), joint.logsumexp(-1)
        mean[at], covariance[at] = cell_moments(weights, pixels, 1.0)
        samples[at] = pixels[systematic_samples(weights)]
        log_occluded[at], divergence[at] = total, (weights * score).sum(-1) - total
    place = PixelGaussian(mean, covariance)
    return OccludedObjects(occluded, place, samples, log_occluded, divergence)


def systematic_samples(weights: Float[Tensor, "M pixels"]) -> Int[Tensor, "M samples"]:
    """Return NUM_SAMPLES pixels by systematic sampling, with offsets of one half."""
    parts = (torch.arange(NUM_SAMPLES, device=weights.device) + 0.5) / NUM_SAMPLES
    cumulative = weights.cumsum(-1)
    targets = parts.to(weights) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets).clamp(max=weights.shape[-1] - 1)


def occlusion_scores(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    found: Detections,
    at: Int[Tensor, "M 3"],
) -> Float[Tensor, "M pixels"]:
    """Return log-likelihood ratios of a frame with an undetected object at each pixel.

    At most zero: lit pixels that no detected object explains do not count as a detection. `at`
    holds clip, object and frame; the scores are the same for all undetected objects of a frame.
    """
    frames, which = at[:, [0, 2]].unique(dim=0, return_inverse=True)
    clip, time = frames.unbind(1)
    lit = coverage(template, found.place.mean[clip, :, time], found.detected[clip, :, time])
    covered = 1 - (1 - lit).prod(1)
    score = score_map(template, scene.frames[scene.clip[clip], time], covered)
    return score.clamp(max=0).logaddexp(template.log_miss)[which]


def infer_occluded_objects(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> OccludedObjects | None:
    """Return the posterior of undetected objects; None without an occlusion model. [Choice 38]."""
    if not scene.renderer.models_occlusion:
        return None
    return infer_occluded(scene, SpriteTemplate.coarse(scene.renderer, 0), found, expected)
