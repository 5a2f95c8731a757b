"""The forward pass of the search: predict every object, look for it in its window, update."""

from typing import Any

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.linalg import identity
from motes.kalman.model import Gaussian
from motes.models.sprites.likelihood_maps import (
    AnyRenderer,
    CropView,
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    Window,
    coverage,
    detect,
    evaluate_window,
    redetect,
    responsibilities,
    sliding_crops,
    unexplained_fraction,
)
from motes.models.sprites.renderer import PixelRenderer, SpriteRenderer

PASSES_PER_FRAME = 2  # the second assigns lit pixels by the result of the first


def forward_pass(
    scene: Scene[SpriteRenderer], template: SpriteTemplate, trusted: Bool[Tensor, "B T"]
) -> Detections:
    """Return the detections of a filter that starts in the first trusted frame.

    An object that is not detected there, or is lost later, is searched for in every whole frame
    after it, see `redetect_lost`.
    """
    renderer, present = scene.renderer, scene.present
    B, N = present.shape
    belief = scene.dynamics.initial((B, N))
    first = trusted.int().argmax(1)
    start, nats = detect(template, scene.frame(first), scene.num_objects, N)
    wide = (2 * template.spread * identity(2, start)).expand(B, N, 2, 2)
    # On a CPU absent objects are not looked for; a GPU would have to wait for their number.
    every = None if present.is_cuda or bool(present.all()) else present.nonzero()
    found = []
    for t in range(trusted.shape[1]):
        frame = scene.frame(t)
        # Beliefs about absent objects, which are never seen, grow without limit.
        prediction = PixelGaussian.where(
            present, predict_place(scene, belief), PixelGaussian(start, wide)
        )
        new = (first == t)[:, None] & (nats > template.min_llr)
        place = guess = PixelGaussian.where(new, PixelGaussian(start, wide), prediction)
        # A first detection has a flat prior.
        prior = PixelGaussian.where(new, PixelGaussian(start, 1e6 * wide), prediction)
        seen = looked = trusted[:, t, None] & present
        around = sliding_crops(frame, template.crop_radius)
        for _ in range(PASSES_PER_FRAME if bool(seen.any()) else 0):
            place, llr = look(template, around, place, prior, present, every)
            seen = looked & (llr > template.min_llr)
        detection = Detections(PixelGaussian.where(seen, place, guess), seen)
        lost = looked & ~seen
        if bool(lost.any()):
            detection = redetect_lost(template, frame, detection, lost)
        place, seen = detection
        found.append(detection)
        belief = scene.dynamics.update(belief, renderer.from_pixels(place.mean), seen)
        belief = scene.dynamics.predict(belief)
    return Detections.joined([detection.one_frame() for detection in found], 2)


def look(
    template: SpriteTemplate,
    around: Float[Tensor, "B height width side side"],
    place: PixelGaussian,
    prior: PixelGaussian,
    present: Bool[Tensor, "B N"],
    only: Int[Tensor, "M 2"] | None,
) -> tuple[PixelGaussian, Float[Tensor, "B N"]]:
    """Return positions and log-likelihood ratios from windows around the present places.

    Args:
        template: of the sprite.
        around: `sliding_crops` of the frames.
        place: where objects are taken to be.
        prior: of their positions.
        present: which objects there are.
        only: clip and number of the objects to look for; others keep their place, with a ratio of
            minus infinity. None for all.

    Law: present objects are found alike with and without (test_absent_objects_need_no_windows).
    """
    searches = torch.arange(len(present), device=present.device)
    if only is None:
        near = Window.around(place.mean, template.crop_radius, template.image_size)
        share = responsibilities(template, near, place, present)
        view = CropView.through(near, template, around, searches)
        window = evaluate_window(template, view, share, prior)
        return window.moments(), window.log_likelihood_ratio
    clip, number = at = only[:, 0], only[:, 1]
    near = Window.around(place.mean[at][:, None], template.crop_radius, template.image_size)
    share = responsibilities(template, near, place.select(clip), present[clip], number[:, None])
    its_prior = prior.select(at).map(lambda part: part[:, None])
    view = CropView.through(near, template, around, searches[clip])
    window = evaluate_window(template, view, share, its_prior)
    moments, found = window.moments(), place.map(torch.clone)
    found.mean[at], found.covariance[at] = moments.mean[:, 0], moments.covariance[:, 0]
    llr = torch.full_like(place.mean[..., 0], -torch.inf)
    llr[at] = window.log_likelihood_ratio[:, 0]
    return found, llr


def redetect_lost(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    found: Detections,
    lost: Bool[Tensor, "B N"],
) -> Detections:
    """Return the detections after searching whole frames for lost objects.

    An object that was occluded may reappear outside the window around its prediction. It is
    detected where that is more likely than that it stays undetected, given the prediction and the
    lit pixels that detected objects leave unexplained. [Choice 29]
    """
    means, covariances = (part.clone() for part in found.place)
    seen = found.detected.clone()
    around = sliding_crops(frame, template.crop_radius)
    for n in lost.any(0).nonzero()[:, 0].tolist():
        clips = lost[:, n].nonzero()[:, 0]
        at, here = (clips, slice(n, n + 1)), frame[clips]
        covered = 1 - (1 - coverage(template, means[clips], seen[clips])).prod(1)
        prior = PixelGaussian(means[at], covariances[at])
        best, llr = redetect(
            template, here, covered, PixelGaussian(means[clips, n], covariances[clips, n])
        )
        likely = llr > template.log_miss
        if not bool(likely.any()):
            continue
        near = Window.around(best[:, None], template.crop_radius, template.image_size)
        view = CropView.through(near, template, around, clips)
        shade = sliding_crops((1 - covered).view_as(here), template.crop_radius)
        dark = near.crop(shade, torch.arange(len(here), device=here.device))
        window = evaluate_window(
            template, view, unexplained_fraction(template, dark * view.background_dark), prior
        )
        back = likely[:, None] & (window.log_likelihood_ratio > template.min_llr)
        means[at], covariances[at] = PixelGaussian.where(back, window.moments(), prior)
        seen[at] |= back
    return Detections(PixelGaussian(means, covariances), seen)


def predict_place(scene: Scene[AnyRenderer], belief: Any) -> PixelGaussian:
    """Return the mean and covariance of the predicted positions, in pixels."""
    return in_pixels(scene.renderer, scene.dynamics.observe(belief).moments())


def in_pixels(renderer: PixelRenderer, latent: Gaussian) -> PixelGaussian:
    """Return a Gaussian over latent positions in pixels, float32."""
    covariance = latent.covariance * renderer.pixels_per_unit**2
    return PixelGaussian(renderer.to_pixels(latent.mean).float(), covariance.float())
