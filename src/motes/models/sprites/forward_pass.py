"""The steps of the search for objects: follow them forwards, expect them, look again."""

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

PASSES_PER_FRAME = 2  # at each frame: the second shares lit pixels out by what the first one found
CHUNK_PIXELS = 2**22  # pixels of frames, for each object, that are held side by side: bounds memory


AnyRenderer = TypeVar("AnyRenderer", bound=PixelRenderer)


@dataclass(frozen=True)
class Scene(Generic[AnyRenderer]):
    """What a search knows: the frames, and the model so far.

    Frames are kept once, however many searches see them: a long video is the largest thing that
    there is.
    """

    frames: Float[Tensor, "clips T height width *C"]
    clip: Int[Tensor, " B"]  # whose frames each search sees
    observed: Bool[Tensor, "B T"]
    num_objects: Int[Tensor, " B"]
    present: Bool[Tensor, "B N"]
    dynamics: Any
    renderer: AnyRenderer

    def repeated(self, times: int) -> "Scene[AnyRenderer]":
        """All searches, again and again."""
        return self.select(torch.arange(len(self.clip), device=self.clip.device).repeat(times))

    def select(self, searches: Int[Tensor, " b"]) -> "Scene[AnyRenderer]":
        """Some of the searches."""
        return replace(
            self,
            clip=self.clip[searches],
            observed=self.observed[searches],
            num_objects=self.num_objects[searches],
            present=self.present[searches],
        )

    def frame(self, time: Int[Tensor, " B"] | int) -> Float[Tensor, "B height width *C"]:
        """One frame for each search; nothing of a hidden one."""
        searches = torch.arange(len(self.clip), device=self.clip.device)
        seen = self.observed[searches, time].view(-1, *[1] * (self.frames.ndim - 2))
        return self.frames[self.clip, time].masked_fill_(~seen, 0.0)

    def during(self, time: slice) -> "Scene[AnyRenderer]":
        """Some of the frames, for each search its own; nothing of hidden ones."""
        observed, frames = self.observed[:, time], self.frames[:, time][self.clip]
        frames[~observed] = 0.0
        clips = torch.arange(len(self.clip), device=self.clip.device)
        return replace(self, frames=frames, clip=clips, observed=observed)

    def frame_batch(self, time: slice) -> FrameBatch:
        """The same without a copy."""
        return FrameBatch.during(self.frames, self.clip, self.observed, time)

    def blocks(self, chunk_frames: int) -> Iterator[slice]:
        """PosteriorBlocks of the clip; all searches together see so many frames of one, or one each."""
        step = chunk_size(chunk_frames, len(self.clip), self.frames)
        return (slice(t, t + step) for t in range(0, self.observed.shape[1], step))


def scene_of(
    frames: Float[Tensor, "B T height width *C"],
    num_objects: Int[Tensor, " B"],
    dynamics: Any,
    renderer: AnyRenderer,
    observed: Bool[Tensor, "B T"] | None = None,
) -> Scene[AnyRenderer]:
    """What one search of each clip knows, all frames seen if it is not said which.

    Only as many objects as the fullest clip holds are looked for.
    """
    if observed is None:
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    most, clips = int(num_objects.max()), torch.arange(len(frames), device=frames.device)
    present = torch.arange(most, device=frames.device) < num_objects[:, None]
    return Scene(frames, clips, observed, num_objects, present, dynamics, renderer)


class Detections(NamedTuple):
    """Where each object is, in each frame or in one, in pixels, and whether it was seen there.

    Where it was not, the place is what the dynamics say.
    """

    place: PixelGaussian  # B N T, or B N
    detected: Bool[Tensor, "B N *T"]

    @staticmethod
    def joined(parts: list["Detections"], axis: int) -> "Detections":
        """Those of some objects after the others (axis 1), or of some frames (axis 2)."""
        means, covariances = zip(*(part.place for part in parts), strict=True)
        place = PixelGaussian(torch.cat(means, axis), torch.cat(covariances, axis))
        return Detections(place, torch.cat([part.detected for part in parts], axis))

    def one_frame(self) -> "Detections":
        """Those in a frame as those in a stretch of one."""
        return Detections(
            PixelGaussian(*(part[:, :, None] for part in self.place)), self.detected[..., None]
        )

    def by_clips(self, num_clips: int) -> "Detections":
        """Those in frames, one clip after the other, [M N], as [B N T]."""
        place = PixelGaussian(*(by_clip(part, num_clips) for part in self.place))
        return Detections(place, by_clip(self.detected, num_clips))

    def select(self, clips: Int[Tensor, " b"]) -> "Detections":
        """Those of some of the clips."""
        return Detections(self.place.select(clips), self.detected[clips])

    def put(self, clips: Int[Tensor, " b"], others: "Detections") -> "Detections":
        """With those of some clips replaced."""
        seen = self.detected.index_copy(0, clips, others.detected)
        return Detections(self.place.put(clips, others.place), seen)

    def reordered(self, source: Int[Tensor, "B N T"]) -> "Detections":
        """Every object at the place of another one, frame by frame."""
        mean, covariance = self.place
        place = PixelGaussian(
            mean.take_along_dim(source[..., None], 1),
            covariance.take_along_dim(source[..., None, None], 1),
        )
        return Detections(place, self.detected.take_along_dim(source, 1))


def forward_pass(
    scene: Scene[SpriteRenderer], template: SpriteTemplate, trusted: Bool[Tensor, "B T"]
) -> Detections:
    """Finds the objects in the first trusted frame and follows them forwards from there.

    One that does not show in that frame, or is lost later, is looked for in the whole of each
    frame after it, see `recover`.
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
        # Of a first place nothing is known before.
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
            detection = recover(template, frame, detection, lost)
        place, seen = detection
        found.append(detection)
        belief = scene.dynamics.update(belief, renderer.from_pixels(place.mean), seen)
        belief = scene.dynamics.predict(belief)
    return Detections.joined([detection.one_frame() for detection in found], 2)


def recover(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    found: Detections,
    lost: Bool[Tensor, "B N"],
) -> Detections:
    """Appearance for lost objects in a whole frame, in the ink that objects in sight leave unexplained.

    An object that was hidden may show again farther from its prediction than the window reaches.
    It is back where that is likelier than that it does not show: by the prediction, which may be
    wide, and by the ink. [Choice 29]

    Args:
        template: What to look for.
        frame: One frame of each clip.
        found: The objects in that frame, the lost ones where they are predicted.
        lost: Those that are looked for.
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
    """`revisit`, a stretch of frames at a time, so that memory does not grow with the clip.

    Law: equals looking at all frames at once (test_a_long_clip_is_looked_at_as_a_short_one_is).
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
    """Appearance at all frames at once, near a guess, with what is expected there as the prior.

    One object after the other, each time as the others stand: what they light is explained.
    Frames that were not seen are left out, and objects that are not there; one is then where it is
    expected. Where something may hide objects, one that is not seen explains nothing.
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
