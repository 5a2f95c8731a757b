"""The passes of the search: forward through time, then refinement around predictions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.kalman.mixture import Gaussian
from motes.models.sprites.detection import detect, redetect
from motes.models.sprites.likelihood_maps import (
    CropView,
    PixelGaussian,
    SpriteTemplate,
    WindowPosterior,
    by_clip,
    coverage,
    dark_probability,
    evaluate_window,
    responsibilities,
    unexplained_fraction,
)
from motes.models.sprites.patches import FrameBatch, Window, nearest_pixel, sliding_crops
from motes.models.sprites.renderer import PixelRenderer, SpriteRenderer

PASSES_PER_FRAME = 2  # the second assigns lit pixels by the result of the first
CHUNK_PIXELS = 2**22  # pixels per object that are held together, which bounds memory


AnyRenderer = TypeVar("AnyRenderer", bound=PixelRenderer)


@dataclass(frozen=True)
class Scene(Generic[AnyRenderer]):
    """The input of B searches: frames, masks and the current model.

    Frames of a clip are stored once for all searches of it: a long video dominates memory.
    """

    frames: Float[Tensor, "clips T height width *C"]
    clip: Int[Tensor, " B"]  # index of the frames of each search
    observed: Bool[Tensor, "B T"]
    num_objects: Int[Tensor, " B"]
    present: Bool[Tensor, "B N"]
    dynamics: Any
    renderer: AnyRenderer

    def repeated(self, times: int) -> "Scene[AnyRenderer]":
        """Return all searches, repeated."""
        return self.select(torch.arange(len(self.clip), device=self.clip.device).repeat(times))

    def select(self, searches: Int[Tensor, " b"]) -> "Scene[AnyRenderer]":
        """Return some of the searches."""
        return replace(
            self,
            clip=self.clip[searches],
            observed=self.observed[searches],
            num_objects=self.num_objects[searches],
            present=self.present[searches],
        )

    def frame(self, time: Int[Tensor, " B"] | int) -> Float[Tensor, "B height width *C"]:
        """Return one frame for each search, zero where it is unobserved."""
        searches = torch.arange(len(self.clip), device=self.clip.device)
        observed = self.observed[searches, time].view(-1, *[1] * (self.frames.ndim - 2))
        return self.frames[self.clip, time].masked_fill_(~observed, 0.0)

    def during(self, time: slice) -> "Scene[AnyRenderer]":
        """Return the scene of some frames, copied for each search, zero where unobserved."""
        observed, frames = self.observed[:, time], self.frames[:, time][self.clip]
        frames[~observed] = 0.0
        clips = torch.arange(len(self.clip), device=self.clip.device)
        return replace(self, frames=frames, clip=clips, observed=observed)

    def frame_batch(self, time: slice) -> FrameBatch:
        """Return some of the frames without a copy."""
        return FrameBatch.during(self.frames, self.clip, self.observed, time)

    def blocks(self, chunk_frames: int) -> Iterator[slice]:
        """Return slices of time; all searches together hold about `chunk_frames` frames of one."""
        step = chunk_size(chunk_frames, len(self.clip), self.frames)
        return (slice(t, t + step) for t in range(0, self.observed.shape[1], step))


def scene_of(
    frames: Float[Tensor, "B T height width *C"],
    num_objects: Int[Tensor, " B"],
    dynamics: Any,
    renderer: AnyRenderer,
    observed: Bool[Tensor, "B T"] | None = None,
) -> Scene[AnyRenderer]:
    """Return the input of one search per clip, with slots for the largest count."""
    if observed is None:
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    most, clips = int(num_objects.max()), torch.arange(len(frames), device=frames.device)
    present = torch.arange(most, device=frames.device) < num_objects[:, None]
    return Scene(frames, clips, observed, num_objects, present, dynamics, renderer)


class Detections(NamedTuple):
    """Positions of all objects in one or all frames, in pixels, and whether they were detected.

    The position of an undetected object is its prediction.
    """

    place: PixelGaussian  # B N T, or B N
    detected: Bool[Tensor, "B N *T"]

    @staticmethod
    def joined(parts: list["Detections"], axis: int) -> "Detections":
        """Return parts concatenated along objects (axis 1) or frames (axis 2)."""
        means, covariances = zip(*(part.place for part in parts), strict=True)
        place = PixelGaussian(torch.cat(means, axis), torch.cat(covariances, axis))
        return Detections(place, torch.cat([part.detected for part in parts], axis))

    def one_frame(self) -> "Detections":
        """Return the detections of one frame with a time axis."""
        return Detections(
            PixelGaussian(*(part[:, :, None] for part in self.place)), self.detected[..., None]
        )

    def by_clips(self, num_clips: int) -> "Detections":
        """Return detections of flattened frames [M N] as [B N T]."""
        place = PixelGaussian(*(by_clip(part, num_clips) for part in self.place))
        return Detections(place, by_clip(self.detected, num_clips))

    def select(self, clips: Int[Tensor, " b"]) -> "Detections":
        """Return the detections of some clips."""
        return Detections(self.place.select(clips), self.detected[clips])

    def put(self, clips: Int[Tensor, " b"], others: "Detections") -> "Detections":
        """Return the detections with those of some clips replaced."""
        detected = self.detected.index_copy(0, clips, others.detected)
        return Detections(self.place.put(clips, others.place), detected)

    def reordered(self, source: Int[Tensor, "B N T"]) -> "Detections":
        """Return the detections with objects permuted in every frame."""
        mean, covariance = self.place
        place = PixelGaussian(
            mean.take_along_dim(source[..., None], 1),
            covariance.take_along_dim(source[..., None, None], 1),
        )
        return Detections(place, self.detected.take_along_dim(source, 1))


def forward_pass(
    scene: Scene[SpriteRenderer], template: SpriteTemplate, trusted: Bool[Tensor, "B T"]
) -> Detections:
    """Return the detections of a filter that starts in the first trusted frame.

    An object that is not detected there, or is lost later, is searched for in every whole frame
    after it, see `redetect_lost`.
    """
    renderer, present = scene.renderer, scene.present
    (B, N), device = present.shape, present.device
    belief = scene.dynamics.initial((B, N))
    first = trusted.int().argmax(1)
    start, nats = detect(template, scene.frame(first), scene.num_objects, N)
    wide = (2 * template.spread * torch.eye(2, device=device)).expand(B, N, 2, 2)
    searches, found = torch.arange(B, device=device), []
    for t in range(trusted.shape[1]):
        frame = scene.frame(t)
        prediction = predict_place(scene, belief)
        new = (first == t)[:, None] & (nats > template.min_llr)
        place = guess = PixelGaussian.where(new, PixelGaussian(start, wide), prediction)
        # A first detection has a flat prior.
        prior = PixelGaussian.where(new, PixelGaussian(start, 1e6 * wide), prediction)
        seen = trusted[:, t, None].expand(B, N)
        around = sliding_crops(frame, template.crop_radius)
        for _ in range(PASSES_PER_FRAME if bool(seen.any()) else 0):
            near = Window.around(place.mean, template.crop_radius, renderer.image_size)
            share = responsibilities(template, near, place, present)
            window = evaluate_window(
                template, CropView.through(near, template, around, searches), share, prior
            )
            place, seen = (
                window.moments(),
                trusted[:, t, None] & (window.log_likelihood_ratio > template.min_llr),
            )
        detection = Detections(PixelGaussian.where(seen, place, guess), seen)
        lost = trusted[:, t, None] & present & ~seen
        if bool(lost.any()):
            detection = redetect_lost(template, frame, detection, lost)
        place, seen = detection
        found.append(detection)
        belief = scene.dynamics.update(belief, renderer.from_pixels(place.mean), seen)
        belief = scene.dynamics.predict(belief)
    return Detections.joined([detection.one_frame() for detection in found], 2)


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

    Args:
        template: The sprite.
        frame: One frame of each clip.
        found: The objects in that frame, the lost ones at their predictions.
        lost: The objects to search for.
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
        near = Window.around(best[:, None], template.crop_radius, template.image_size)
        view = CropView.through(near, template, around, clips)
        shade = sliding_crops((1 - covered).view_as(here), template.crop_radius)
        dark = near.crop(shade, torch.arange(len(here), device=here.device))
        window = evaluate_window(
            template, view, unexplained_fraction(template, dark * view.background_dark), prior
        )
        back = (llr > template.log_miss)[:, None] & (window.log_likelihood_ratio > template.min_llr)
        means[at], covariances[at] = PixelGaussian.where(back, window.moments(), prior)
        seen[at] |= back
    return Detections(PixelGaussian(means, covariances), seen)


def predict_place(scene: Scene[AnyRenderer], belief: Any) -> PixelGaussian:
    """Return the mean and covariance of the predicted positions, in pixels."""
    return in_pixels(scene.renderer, scene.dynamics.observe(belief).moments())


def predict_from_other_frames(scene: Scene[AnyRenderer], found: Detections) -> PixelGaussian:
    """Return the leave-one-out prediction of each position, in pixels."""
    positions = scene.renderer.from_pixels(found.place.mean).double()
    return in_pixels(scene.renderer, scene.dynamics.leave_one_out(positions, found.detected))


def in_pixels(renderer: PixelRenderer, latent: Gaussian) -> PixelGaussian:
    """Return a Gaussian over latent positions in pixels, float32."""
    covariance = latent.covariance * renderer.pixels_per_unit**2
    return PixelGaussian(renderer.to_pixels(latent.mean).float(), covariance.float())


def revisit_blocks(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    guess: PixelGaussian,
    expected: PixelGaussian,
) -> Iterator[tuple[slice, WindowPosterior, Detections]]:
    """Yield `revisit` of blocks of frames, so that memory does not grow with the clip.

    Law: equals one block of all frames (test_revisiting_in_blocks_equals_revisiting_at_once).
    """
    pixels = scene.present.shape[1] * math.prod(scene.renderer.image_size)
    for time in scene.blocks(CHUNK_PIXELS // pixels):
        here, there = (
            PixelGaussian(*(part[:, :, time] for part in all)) for all in (guess, expected)
        )
        yield time, *revisit(scene.during(time), template, here, there)


def revisit(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    guess: PixelGaussian,
    expected: PixelGaussian,
) -> tuple[WindowPosterior, Detections]:
    """Return windows and detections of all frames around a guess, predictions being the prior.

    Coordinate ascent: one object at a time, the others fixed and explaining the pixels they light.
    Unobserved frames and absent objects keep the prediction. With an occlusion model an undetected
    object explains no pixels.
    """
    (B, T), (size, N) = scene.observed.shape, (scene.renderer.image_size, scene.present.shape[1])

    def by_frame(values: Tensor) -> Tensor:
        return values.transpose(1, 2).flatten(0, 1)

    frames = sliding_crops(scene.frames.flatten(0, 1), template.crop_radius)
    present = scene.present.repeat_interleave(T, 0)
    lights = present.clone()
    looked_for = present & scene.observed.flatten()[:, None]
    prior, pixels = (
        PixelGaussian(*map(by_frame, expected)),
        nearest_pixel(by_frame(guess.mean), size),
    )
    place, seen = PixelGaussian(*(part.clone() for part in prior)), torch.zeros_like(present)
    centre, llr = torch.zeros_like(place.mean), torch.zeros_like(place.mean[..., 0])
    log_weights = llr[..., None].repeat(1, 1, len(template.offsets)) - math.log(
        len(template.offsets)
    )
    for n in range(N):
        at = looked_for[:, n].nonzero()[:, 0], slice(n, n + 1)
        its_prior = PixelGaussian(*(part[at] for part in prior))
        view = CropView.through(
            Window.at(pixels[at], template.crop_radius, size), template, frames, at[0]
        )
        others = torch.arange(N, device=at[0].device) != n
        dark = dark_probability(
            template, view, *(part[at[0]][:, others] for part in (pixels, lights))
        )
        window = evaluate_window(
            template, view, unexplained_fraction(template, dark * view.background_dark), its_prior
        )
        seen[at] = window.log_likelihood_ratio > template.min_llr
        lights[at] = seen[at] if scene.renderer.models_occlusion else lights[at]
        place.mean[at], place.covariance[at] = PixelGaussian.where(
            seen[at], window.moments(), its_prior
        )
        pixels[at] = nearest_pixel(place.mean[at], size)
        centre[at], log_weights[at], llr[at] = (
            window.centre,
            window.log_weights,
            window.log_likelihood_ratio,
        )
    cells = WindowPosterior(centre, log_weights, template.offsets, 1 / template.phases, llr)
    return WindowPosterior.by_clips([cells], B), Detections(place, seen).by_clips(B)
