"""The steps of the search for objects: follow them forwards, expect them, look again."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import side_by_side
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM, POSITION_DIM
from motes.models.sprites.detection import detect, spot
from motes.models.sprites.likelihood_maps import (
    Look,
    PixelGaussian,
    SpriteTemplate,
    View,
    by_clip,
    chosen,
    covers,
    darkness,
    look,
    responsibility,
    unexplained,
)
from motes.models.sprites.patches import Shown, Window, pixel_of, squares
from motes.models.sprites.renderer import SpriteRenderer, Stage

LOOKS = 2  # at each frame: the second shares lit pixels out by what the first one found
AT_ONCE = 2**22  # pixels of frames, for each object, that are held side by side: bounds memory


AnyRenderer = TypeVar("AnyRenderer", bound=Stage)


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
    dynamics: LinearDynamics
    renderer: AnyRenderer

    def repeated(self, times: int) -> "Scene[AnyRenderer]":
        """All searches, again and again."""
        return self.taken(torch.arange(len(self.clip), device=self.clip.device).repeat(times))

    def taken(self, searches: Int[Tensor, " b"]) -> "Scene[AnyRenderer]":
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

    def shown(self, time: slice) -> Shown:
        """The same without a copy."""
        return Shown.during(self.frames, self.clip, self.observed, time)

    def stretches(self, at_once: int) -> Iterator[slice]:
        """PosteriorBlocks of the clip; all searches together see so many frames of one, or one each."""
        step = max(side_by_side(at_once, self.frames) // len(self.clip), 1)
        return (slice(t, t + step) for t in range(0, self.observed.shape[1], step))


def scene_of(
    frames: Float[Tensor, "B T height width *C"],
    num_objects: Int[Tensor, " B"],
    dynamics: LinearDynamics,
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


class Sightings(NamedTuple):
    """Where each object is, in each frame or in one, in pixels, and whether it was seen there.

    Where it was not, the place is what the dynamics say.
    """

    place: PixelGaussian  # B N T, or B N
    seen: Bool[Tensor, "B N *T"]

    @staticmethod
    def joined(parts: list["Sightings"], axis: int) -> "Sightings":
        """Those of some objects after the others (axis 1), or of some frames (axis 2)."""
        means, covariances = zip(*(part.place for part in parts), strict=True)
        place = PixelGaussian(torch.cat(means, axis), torch.cat(covariances, axis))
        return Sightings(place, torch.cat([part.seen for part in parts], axis))

    def one_frame(self) -> "Sightings":
        """Those in a frame as those in a stretch of one."""
        return Sightings(
            PixelGaussian(*(part[:, :, None] for part in self.place)), self.seen[..., None]
        )

    def by_clips(self, num_clips: int) -> "Sightings":
        """Those in frames, one clip after the other, [M N], as [B N T]."""
        place = PixelGaussian(*(by_clip(part, num_clips) for part in self.place))
        return Sightings(place, by_clip(self.seen, num_clips))

    def taken(self, clips: Int[Tensor, " b"]) -> "Sightings":
        """Those of some of the clips."""
        return Sightings(self.place.taken(clips), self.seen[clips])

    def put(self, clips: Int[Tensor, " b"], others: "Sightings") -> "Sightings":
        """With those of some clips replaced."""
        seen = self.seen.index_copy(0, clips, others.seen)
        return Sightings(self.place.put(clips, others.place), seen)

    def reordered(self, source: Int[Tensor, "B N T"]) -> "Sightings":
        """Every object at the place of another one, frame by frame."""
        mean, covariance = self.place
        place = PixelGaussian(
            mean.take_along_dim(source[..., None], 1),
            covariance.take_along_dim(source[..., None, None], 1),
        )
        return Sightings(place, self.seen.take_along_dim(source, 1))


def follow(
    scene: Scene[SpriteRenderer], glyph: SpriteTemplate, trusted: Bool[Tensor, "B T"]
) -> Sightings:
    """Finds the objects in the first trusted frame and follows them forwards from there.

    One that does not show in that frame, or is lost later, is looked for in the whole of each
    frame after it, see `recover`.
    """
    renderer, present = scene.renderer, scene.present
    (B, N), device = present.shape, present.device
    components = scene.dynamics.components()
    belief = kalman.StateEstimate(components.initial_mean, components.initial_covariance)
    log_weights = scene.dynamics.log_weights().expand(B, N, -1)
    first = trusted.int().argmax(1)
    start, nats = detect(glyph, scene.frame(first), scene.num_objects, N)
    wide = (2 * glyph.spread * torch.eye(2, device=device)).expand(B, N, 2, 2)
    searches, found = torch.arange(B, device=device), []
    for t in range(trusted.shape[1]):
        frame = scene.frame(t)
        prediction = predict_place(components, belief, log_weights, renderer)
        new = (first == t)[:, None] & (nats > glyph.least)
        place = guess = chosen(new, PixelGaussian(start, wide), prediction)
        # Of a first place nothing is known before.
        prior = chosen(new, PixelGaussian(start, 1e6 * wide), prediction)
        seen = trusted[:, t, None].expand(B, N)
        around = squares(frame, glyph.far)
        for _ in range(LOOKS if bool(seen.any()) else 0):
            near = Window.around(place.mean, glyph.far, renderer.image_size)
            share = responsibility(glyph, near, place, present)
            looked = look(glyph, View.through(near, glyph, around, searches), share, prior)
            place, seen = looked.place(), trusted[:, t, None] & (looked.told > glyph.least)
        sighting = Sightings(chosen(seen, place, guess), seen)
        lost = trusted[:, t, None] & present & ~seen
        if bool(lost.any()):
            sighting = recover(glyph, frame, sighting, lost)
        place, seen = sighting
        found.append(sighting)
        position = renderer.from_pixels(place.mean)[:, :, None]
        belief, log_density = kalman.update(components, *belief, position, seen[..., None])
        log_weights = log_weights + log_density
        belief = kalman.predict(components, *belief)
    return Sightings.joined([sighting.one_frame() for sighting in found], 2)


def recover(
    glyph: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    found: Sightings,
    lost: Bool[Tensor, "B N"],
) -> Sightings:
    """Appearance for lost objects in a whole frame, in the ink that objects in sight leave unexplained.

    An object that was hidden may show again farther from its prediction than the window reaches.
    It is back where that is likelier than that it does not show: by the prediction, which may be
    wide, and by the ink. [Choice 29]

    Args:
        glyph: What to look for.
        frame: One frame of each clip.
        found: The objects in that frame, the lost ones where they are predicted.
        lost: Those that are looked for.
    """
    means, covariances = (part.clone() for part in found.place)
    seen = found.seen.clone()
    around = squares(frame, glyph.far)
    for n in lost.any(0).nonzero()[:, 0].tolist():
        clips = lost[:, n].nonzero()[:, 0]
        at, here = (clips, slice(n, n + 1)), frame[clips]
        covered = 1 - (1 - covers(glyph, means[clips], seen[clips])).prod(1)
        prior = PixelGaussian(means[at], covariances[at])
        best, told = spot(
            glyph, here, covered, PixelGaussian(means[clips, n], covariances[clips, n])
        )
        near = Window.around(best[:, None], glyph.far, glyph.image_size)
        view = View.through(near, glyph, around, clips)
        shade = squares((1 - covered).view_as(here), glyph.far)
        dark = near.cut(shade, torch.arange(len(here), device=here.device))
        looked = look(glyph, view, unexplained(glyph, view, dark), prior)
        back = (told > glyph.missed)[:, None] & (looked.told > glyph.least)
        means[at], covariances[at] = chosen(back, looked.place(), prior)
        seen[at] |= back
    return Sightings(PixelGaussian(means, covariances), seen)


def predict_place(
    components: LGSSM,
    belief: kalman.StateEstimate,
    log_weights: Float[Tensor, "B N K"],
    renderer: Stage,
) -> PixelGaussian:
    """Mean and covariance of the mixture of the components' predictions, in pixels."""
    weights = log_weights.softmax(-1)[..., None]
    means = belief.mean[..., :POSITION_DIM]
    covariances = belief.covariance[..., :POSITION_DIM, :POSITION_DIM] + components.position_noise
    mean = (weights * means).sum(2)
    offsets = means - mean[:, :, None]
    scatter = covariances + offsets[..., :, None] * offsets[..., None, :]
    covariance = (weights[..., None] * scatter).sum(2) * renderer.pixels_per_unit**2
    return PixelGaussian(renderer.to_pixels(mean).float(), covariance.float())


def look_again(
    scene: Scene[SpriteRenderer],
    glyph: SpriteTemplate,
    guess: PixelGaussian,
    expected: PixelGaussian,
) -> Iterator[tuple[slice, Look, Sightings]]:
    """`revisit`, a stretch of frames at a time, so that memory does not grow with the clip.

    Law: equals looking at all frames at once (test_a_long_clip_is_looked_at_as_a_short_one_is).
    """
    pixels = scene.present.shape[1] * math.prod(scene.renderer.image_size)
    for time in scene.stretches(AT_ONCE // pixels):
        here, there = (
            PixelGaussian(*(part[:, :, time] for part in all)) for all in (guess, expected)
        )
        yield time, *revisit(scene.during(time), glyph, here, there)


def revisit(
    scene: Scene[SpriteRenderer],
    glyph: SpriteTemplate,
    guess: PixelGaussian,
    expected: PixelGaussian,
) -> tuple[Look, Sightings]:
    """Appearance at all frames at once, near a guess, with what is expected there as the prior.

    One object after the other, each time as the others stand: what they light is explained.
    Frames that were not seen are left out, and objects that are not there; one is then where it is
    expected. Where something may hide objects, one that is not seen explains nothing.
    """
    (B, T), (size, N) = scene.observed.shape, (scene.renderer.image_size, scene.present.shape[1])

    def by_frame(values: Tensor) -> Tensor:
        return values.transpose(1, 2).flatten(0, 1)

    frames = squares(scene.frames.flatten(0, 1), glyph.far)
    present = scene.present.repeat_interleave(T, 0)
    lights = present.clone()
    looked_for = present & scene.observed.flatten()[:, None]
    prior, pixels = PixelGaussian(*map(by_frame, expected)), pixel_of(by_frame(guess.mean), size)
    place, seen = PixelGaussian(*(part.clone() for part in prior)), torch.zeros_like(present)
    centre, told = torch.zeros_like(place.mean), torch.zeros_like(place.mean[..., 0])
    log_weights = told[..., None].repeat(1, 1, len(glyph.offsets)) - math.log(len(glyph.offsets))
    for n in range(N):
        at = looked_for[:, n].nonzero()[:, 0], slice(n, n + 1)
        its_prior = PixelGaussian(*(part[at] for part in prior))
        view = View.through(Window.at(pixels[at], glyph.far, size), glyph, frames, at[0])
        others = torch.arange(N, device=at[0].device) != n
        dark = darkness(glyph, view, *(part[at[0]][:, others] for part in (pixels, lights)))
        looked = look(glyph, view, unexplained(glyph, view, dark), its_prior)
        seen[at] = looked.told > glyph.least
        lights[at] = seen[at] if scene.renderer.may_hide else lights[at]
        place.mean[at], place.covariance[at] = chosen(seen[at], looked.place(), its_prior)
        pixels[at] = pixel_of(place.mean[at], size)
        centre[at], log_weights[at], told[at] = looked.centre, looked.log_weights, looked.told
    cells = Look(centre, log_weights, glyph.offsets, 1 / glyph.phases, told)
    return Look.by_clips([cells], B), Sightings(place, seen).by_clips(B)
