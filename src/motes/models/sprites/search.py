"""q(a | v) of the sprite family: search where the dynamics predict, refine, undo identity swaps."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from motes.config import DataConfig, require, require_positive
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman import DENSE_FRAMES
from motes.kalman.track_evidence import pair_gains
from motes.models.protocols import Family, Pins, Search
from motes.models.sprites.forward_pass import forward_pass, in_pixels
from motes.models.sprites.grid_posterior import (
    GridPosterior,
    PosteriorBlocks,
    StreamedPosterior,
)
from motes.models.sprites.likelihood_maps import (
    AnyRenderer,
    CropView,
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    Window,
    WindowPosterior,
    dark_probability,
    determinant,
    evaluate_window,
    nearest_pixel,
    pixel_mahalanobis,
    scene_of,
    sliding_crops,
    unexplained_fraction,
)
from motes.models.sprites.occlusion import OccludedObjects, infer_occluded_objects
from motes.models.sprites.renderer import SpriteRenderer

if TYPE_CHECKING:
    from motes.models.sprites.pins import PixelPins

CHUNK_PIXELS = 2**22  # pixels per object that are held together, which bounds memory
MIN_SEPARATION = 64  # frames between two swaps that are applied together
MAX_OBJECTS = 16
FINE_WINDOW = 2  # pixels around a detection in which sub-pixel cells are evaluated
MAX_SWAPS = 8  # rounds of swaps from a frame on, then in single frames
SWAP_FRAMES = 512  # frames refined again for swaps; at least one round is always made
REVISITS = 2  # rounds of coordinate ascent, one object at a time with the others fixed
# The second hypothesis starts after this share of the frames, the third after twice that.
LATER_START = 1 / 6
OFF_FRAME = 1e4  # latent units; an object there lights no pixel
# Peak memory as measured, in bytes: per position, and per component, hypothesis, position and
# other frame of a short clip, whose covariance is a dense matrix.
BYTES_PER_POSITION, BYTES_PER_PAIR = 6_000, 150


def predict_from_other_frames(scene: Scene[AnyRenderer], found: Detections) -> PixelGaussian:
    """Return the leave-one-out prediction of each position, in pixels."""
    positions = scene.renderer.from_pixels(found.place.mean).double()
    return in_pixels(scene.renderer, scene.dynamics.leave_one_out(positions, found.detected))


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
        here, there = guess.during(time), expected.during(time)
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
    prior = PixelGaussian(by_frame(expected.mean), by_frame(expected.covariance))
    pixels = nearest_pixel(by_frame(guess.mean), size)
    place, seen = prior.map(torch.clone), torch.zeros_like(present)
    centre, llr = torch.zeros_like(place.mean), torch.zeros_like(place.mean[..., 0])
    cells = len(template.offsets)
    log_weights = llr[..., None].repeat(1, 1, cells) - math.log(cells)
    # Rows by slices where all are looked for: views need no copies, and a GPU need not wait.
    everywhere = bool(looked_for.all())
    order, objects = (torch.arange(size, device=present.device) for size in present.shape)
    for n in range(N):
        rows = order if everywhere else looked_for[:, n].nonzero()[:, 0]
        at = slice(None) if everywhere else rows, slice(n, n + 1)
        its_prior = prior.select(at)
        view = CropView.through(
            Window.at(pixels[at], template.crop_radius, size), template, frames, rows
        )
        others = torch.cat([objects[:n], objects[n + 1 :]])
        dark = dark_probability(
            template, view, *(part[at[0]][:, others] for part in (pixels, lights))
        )
        window = evaluate_window(
            template, view, unexplained_fraction(template, dark * view.background_dark), its_prior
        )
        seen[at] = window.log_likelihood_ratio > template.min_llr
        if scene.renderer.models_occlusion:
            lights[at] = seen[at]
        place.mean[at], place.covariance[at] = PixelGaussian.where(
            seen[at], window.moments(), its_prior
        )
        pixels[at] = nearest_pixel(place.mean[at], size)
        centre[at], log_weights[at] = window.centre, window.log_weights
        llr[at] = window.log_likelihood_ratio
    windows = WindowPosterior(centre, log_weights, template.offsets, 1 / template.phases, llr)
    return WindowPosterior.by_clips([windows], B), Detections(place, seen).by_clips(B)


def frame_swap_gains(found: Detections, expected: PixelGaussian) -> Float[Tensor, "B N N T"]:
    """Return the gain in log p(a) if two objects swap positions in frame t alone.

    Positions are scored under the leave-one-out predictions of both objects. That of an undetected
    object is the prediction itself and scores nothing.
    """
    # B, prediction of, position of, frame
    away = found.place.mean[:, None] - expected.mean[:, :, None]
    spread = expected.covariance[:, :, None]
    fit = -0.5 * (pixel_mahalanobis(away[..., None, :], spread)[..., 0] + determinant(spread).log())
    return pair_gains(torch.where(found.detected[:, None], fit, 0.0))


def swap_gains(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian, persistent: bool
) -> Float[Tensor, "B N N T"]:
    """Return the gain in log p(a) if two objects swap from frame t on, or in frame t alone."""
    if not persistent:
        return frame_swap_gains(found, expected)
    # Absent objects get the mask of the first, so that masks can be shared.
    detected = torch.where(scene.present[..., None], found.detected, found.detected[:, :1])
    positions = scene.renderer.from_pixels(found.place.mean)
    gains: Tensor = scene.dynamics.swap_gains(positions, detected)
    return gains


def best_swaps(
    gains: Float[Tensor, "B N N T"], present: Bool[Tensor, "B N"], persistent: bool
) -> tuple[Float[Tensor, " B"], Int[Tensor, "B N T"]]:
    """Return the total gain of each clip's best swaps, and the source of every object's position.

    The best swap of a short clip. In a long one further swaps are taken as long as they gain and
    are MIN_SEPARATION frames or more from those taken: crossings that far apart are independent,
    and their gains add up.

    Law: of a short clip it is the best pair and frame
    (test_the_best_swap_undoes_one_and_leaves_absent_objects_alone).
    """
    N, T = gains.shape[2:]
    slots, time = (torch.arange(size, device=gains.device) for size in (N, T))
    pairs = present[:, :, None] & present[:, None]
    left = gains.masked_fill(~pairs[..., None], -torch.inf)
    total, picks = torch.zeros_like(gains[:, 0, 0, 0]), []
    while bool((left > 0).any()):
        gain, index = left.flatten(1).max(1)
        total = total + gain.clamp(min=0)
        # Clips without further gain swap an object with itself.
        one, frame = index // (N * T), index % T
        picks.append(torch.stack([frame, one, torch.where(gain > 0, index // T % N, one)]))
        near = (time - frame[:, None]).abs() < MIN_SEPARATION
        left = left.masked_fill(near[:, None, None], -torch.inf)
    source = slots[:, None].expand(len(gains), N, T)
    # In temporal order: each swap acts on the result of earlier ones.
    if len(picks) > 1:
        stacked = torch.stack(picks)
        picks = list(stacked.take_along_dim(stacked[:, :1].argsort(0), 0))
    for pick in picks:
        frame, one, other = (part[:, None, None] for part in pick)
        swapped = torch.where(source == one, other, torch.where(source == other, one, source))
        source = torch.where(time >= frame if persistent else time == frame, swapped, source)
    return total, source


class GridInference(nn.Module):
    """Inference by search, with a posterior over grid cells. Without parameters."""

    requires_zeroed_frames = False
    exchangeable = True
    clips_per_thread = 32  # a step of the search has many small operations

    def __init__(self, window: int) -> None:
        """Set how many pixels an object may be away from its prediction, along each axis."""
        super().__init__()
        self.window = window

    @torch.no_grad()
    def infer(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        *,
        dynamics: Any,
        renderer: Any,
        slots: int,
        search: Search,
    ) -> GridPosterior | StreamedPosterior:
        """Return q(a | v); no gradient passes through the search."""
        scene = scene_of(renderer.with_channels(frames), num_objects, dynamics, renderer, observed)
        found = self.search(scene, search.hypotheses, search.explore)
        return _posterior(found, slots, search, frames.shape[1])

    def search(
        self, scene: Scene[Any], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames."""
        raise NotImplementedError

    @torch.no_grad()
    def search_again(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        *,
        dynamics: Any,
        renderer: Any,
        slots: int,
        search: Search,
        start: Pins,
        pins: Pins,
        released: Bool[Tensor, "B N"],
        appearance: Any = None,
    ) -> GridPosterior | StreamedPosterior:
        """Return q(a | v) of tracks that start from known ones and obey pins; see `pins`."""
        from motes.models.sprites.pins import in_scene

        scene = scene_of(renderer.with_channels(frames), num_objects, dynamics, renderer, observed)
        known, given = Detections(*in_scene(scene, start)), in_scene(scene, pins)
        chosen = released[:, : scene.present.shape[1]]
        found = self.search_pinned(scene, known, given, chosen, appearance)
        return _posterior(found, slots, search, frames.shape[1])

    # Returns q(a | v) of a search that starts from tracks and obeys pins.
    search_pinned: Callable[..., PosteriorBlocks]

    def max_objects(self, trained: int) -> int:
        """Return the largest count that can be searched for."""
        return MAX_OBJECTS

    def bytes_per_clip(
        self, num_objects: int, num_frames: int, num_components: int, search: Search
    ) -> int:
        """Return the peak memory of `infer` for each of many clips."""
        positions = num_objects * num_frames
        if num_frames > DENSE_FRAMES:
            return BYTES_PER_POSITION * positions
        searches = 1 if num_objects == 1 else search.hypotheses
        pairs = BYTES_PER_PAIR * searches * num_components * num_frames
        return (BYTES_PER_POSITION + pairs) * positions


class Tracker(GridInference):
    """q(a | v) by a forward pass with a prediction for every object, then refinement.

        for each frame t, for each object n:
            predict    a_t^n ~ sum_k w_k N(B m_k, B P_k B' + Sigma_A), from the frames before
            evaluate   weights of positions near the prediction by how well the frame is explained
            update     m_k, P_k and w_k by the detection; nothing, where nothing was detected
        then for all frames at once:
            evaluate again around the leave-one-out prediction from all other frames
            q          the final weights of cells, a quarter of a pixel apart

    An undetected object follows its dynamics with growing uncertainty, and identity is kept by
    motion. Nothing is learned here: the search improves as the renderer and the dynamics do.

    Law: pixels of unobserved frames cannot matter, and in an unobserved frame an object is at the
    Kalman prediction; tests/models/sprites/test_search.py.
    """

    @torch.no_grad()
    def search(
        self, scene: Scene[SpriteRenderer], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames.

        Args:
            scene: frames, dynamics and renderer.
            hypotheses: searches to choose from by the bound. All but the first start later in the
                clip and go back from there, so that a wrong first detection does not decide the
                whole track. [Choice 26]
            explore: share of q that is spread evenly over the cells of a pixel, for training: a
                cell that is wrongly given no weight would never be drawn, and never corrected.
        """
        if hypotheses == 1 or scene.present.shape[1] == 1:
            found, expected, _ = self._search(scene, scene.observed)
        else:
            # An object that is occluded at first may appear at any time.
            many = 2 * hypotheses if scene.renderer.models_occlusion else hypotheses
            found, expected = self._best_search(scene, many)
        occluded = infer_occluded_objects(scene, found, expected)
        return lambda: _blocks(scene, found, expected, explore, occluded)

    def search_pinned(
        self,
        scene: Scene[SpriteRenderer],
        found: Detections,
        pins: "PixelPins",
        released: Bool[Tensor, "B N"],
        appearance: Any,
    ) -> PosteriorBlocks:
        """Return q(a | v) of a search that starts from tracks and obeys pins; see `pins`."""
        from motes.models.sprites.pins import SpriteSteps, search_again

        steps = SpriteSteps(SpriteTemplate.coarse(scene.renderer, self.window))
        found, expected, _ = search_again(scene, found, pins, released, steps, steps)
        occluded = infer_occluded_objects(scene, found, expected)
        return functools.partial(_blocks, scene, found, expected, 0.0, occluded)

    def _best_search(
        self, scene: Scene[SpriteRenderer], hypotheses: int
    ) -> tuple[Detections, PixelGaussian]:
        """Return the detections and predictions of the best of several searches of each clip."""
        from motes.models.sprites import long_clips

        starts = delayed_starts(scene.observed, hypotheses)
        if scene.frames.is_cuda:
            return self._search_together(scene, starts, hypotheses)
        once = long_clips.search_long(scene, starts, self.window)
        if once.result is not None:
            return once.result
        found, expected, bound = self._search(scene, scene.observed, once.first)
        if long_clips.is_best(scene, (found, expected), once, self.window):
            return found, expected
        doubtful = (~long_clips.is_settled(scene, found, expected)).nonzero()[:, 0]
        if not len(doubtful):
            return found, expected
        part, first = scene.select(doubtful), found.select(doubtful)
        before = expected.select(doubtful)
        # Batched: a search is many small steps, so several cost little more than one.
        many = part.repeated(hypotheses - 1)
        trusted = starts.unflatten(0, (hypotheses, -1))[1:, doubtful].flatten(0, 1)
        later, after, reached = self._search(many, trusted)
        bound = _filled(bound[doubtful], part, first, before)
        best = best_hypothesis(torch.cat([bound, _filled(reached, many, later, after)]), hypotheses)
        mean, covariance = (torch.cat(pair) for pair in zip(before, after, strict=True))
        chosen = PixelGaussian(mean, covariance).select(best)
        every = Detections.joined([first, later], 0)
        return found.put(doubtful, every.select(best)), expected.put(doubtful, chosen)

    def _search_together(
        self, scene: Scene[SpriteRenderer], starts: Bool[Tensor, "H T"], hypotheses: int
    ) -> tuple[Detections, PixelGaussian]:
        """Return the best of several searches, all at once: a GPU has the same steps for any."""
        many = scene.repeated(hypotheses)
        found, expected, bound = self._search(many, starts)
        best = best_hypothesis(_filled(bound, many, found, expected), hypotheses)
        return found.select(best), expected.select(best)

    def _search(
        self,
        scene: Scene[SpriteRenderer],
        trusted: Bool[Tensor, "B T"],
        found: Detections | None = None,
    ) -> tuple[Detections, PixelGaussian, Float[Tensor, " B"]]:
        """Return detections, leave-one-out predictions, and bounds (NaN where not computed).

        By the forward pass over the trusted frames, if not done, and a refinement of all frames.
        """
        from motes.models.sprites import long_clips

        coarse = SpriteTemplate.coarse(scene.renderer, self.window)
        if found is None and long_clips.covers_long(scene):
            found = long_clips.forward(scene, coarse, trusted)
        elif found is None:
            found = forward_pass(scene, coarse, trusted)
        found, expected = refine(scene, coarse, found, trusted)
        unknown = torch.full((len(trusted),), torch.nan, dtype=torch.float32, device=trusted.device)
        if scene.present.shape[1] == 1:
            return found, expected, unknown
        return self._undo_swaps(scene, coarse, found, expected, unknown)

    def _undo_swaps(
        self,
        scene: Scene[SpriteRenderer],
        coarse: SpriteTemplate,
        found: Detections,
        expected: PixelGaussian,
        bound: Float[Tensor, " B"],
    ) -> tuple[Detections, PixelGaussian, Float[Tensor, " B"]]:
        """Swap parts of the tracks of two objects where that raises the bound. [Choice 30].

        Tracks that cross may swap identities, from some frame on or in single frames. Refinement
        does not undo that, because every position is explained.
        """
        rounds = min(max(SWAP_FRAMES // scene.observed.shape[1], 1), MAX_SWAPS)
        for persistent in (True, False):
            clips = torch.arange(len(scene.present), device=scene.present.device)
            for _ in range(rounds):
                kept, before = found.select(clips), expected.select(clips)
                present = scene.present[clips]
                gains = swap_gains(scene.select(clips), kept, before, persistent)
                gain, source = best_swaps(gains, present, persistent)
                worth = (gain > 0).nonzero()[:, 0]
                if not len(worth):
                    break
                clips, kept, before = clips[worth], kept.select(worth), before.select(worth)
                part = scene.select(clips)
                new, after = refine(part, coarse, kept.reordered(source[worth]), part.observed)
                bound = bound.index_copy(0, clips, _filled(bound[clips], part, kept, before))
                reached = _bound(part, new, after)
                gained = (reached > bound[clips]).nonzero()[:, 0]
                clips = clips[gained]
                bound = bound.index_copy(0, clips, reached[gained])
                found = found.put(clips, new.select(gained))
                expected = expected.put(clips, after.select(gained))
        return found, expected, bound


def refine(
    scene: Scene[SpriteRenderer],
    coarse: SpriteTemplate,
    found: Detections,
    trusted: Bool[Tensor, "B T"],
) -> tuple[Detections, PixelGaussian]:
    """Refine all frames around the predictions from the detections of the trusted ones."""
    expected = predict_from_other_frames(scene, found)
    place = PixelGaussian.where(trusted[:, None] & found.detected, found.place, expected)
    for _ in range(REVISITS):
        # An occluded object must not explain lit pixels at its predicted position.
        occluded = infer_occluded_objects(scene, found, expected)
        if occluded is not None:
            place = PixelGaussian.where(found.detected, place, occluded.place)
        appearance = revisit_blocks(scene, coarse, place, expected)
        found = Detections.joined([part for *_, part in appearance], 2)
        place, expected = found.place, predict_from_other_frames(scene, found)
    return found, expected


def delayed_starts(observed: Bool[Tensor, "B T"], hypotheses: int) -> Bool[Tensor, "H T"]:
    """Return the frames that each hypothesis starts from, hypotheses outermost.

    All observed frames for the first; then those after a share of the clip, where there are any.
    """
    time = torch.arange(observed.shape[1], device=observed.device)
    # Unobserved frames at the end do not count.
    length = (observed * (time + 1)).amax(1, keepdim=True)
    trusted = [observed]
    for number in range(1, hypotheses):
        late = observed & (time >= number * LATER_START * length)
        trusted.append(torch.where(late.any(1, keepdim=True), late, observed))
    return torch.cat(trusted)


def best_hypothesis(bound: Float[Tensor, " B"], hypotheses: int) -> Int[Tensor, " clips"]:
    """Return the search with the highest bound for each clip, in the order of `delayed_starts`."""
    best: Tensor = bound.unflatten(0, (hypotheses, -1)).argmax(0)
    return best * len(best) + torch.arange(len(best), device=best.device)


def _posterior(
    found: PosteriorBlocks, slots: int, search: Search, num_frames: int
) -> GridPosterior | StreamedPosterior:
    """Return q with more slots, whole or in blocks, as a search asks for."""

    def blocks() -> Iterator[tuple[slice, GridPosterior]]:
        return ((time, q.widened(slots)) for time, q in found())

    if search.stream_after is not None and num_frames > search.stream_after:
        return StreamedPosterior.of(blocks)
    return GridPosterior.joined([q for _, q in blocks()])


@torch.no_grad()
def _blocks(
    scene: Scene[SpriteRenderer],
    found: Detections,
    expected: PixelGaussian,
    explore: float = 0.0,
    occluded: OccludedObjects | None = None,
) -> Iterator[tuple[slice, GridPosterior]]:
    """Yield q, the weights of cells around the detections, in blocks of frames."""
    fine = SpriteTemplate.fine(scene.renderer, FINE_WINDOW)
    prior = expected if occluded is None else occluded.place
    for time, cells, _ in revisit_blocks(scene, fine, found.place, expected):
        there = prior.during(time)
        occlusion = None if occluded is None else occluded.during(time, scene.renderer)
        seen = found.detected[:, :, time]
        yield time, GridPosterior.of(cells.blended(explore), seen, there, scene.renderer, occlusion)


def _filled(
    bound: Float[Tensor, " B"],
    scene: Scene[SpriteRenderer],
    found: Detections,
    expected: PixelGaussian,
) -> Float[Tensor, " B"]:
    """Return the bound of each search, computed where it is NaN."""
    unknown = bound.isnan().nonzero()[:, 0]
    if not len(unknown):
        return bound
    parts = scene.select(unknown), found.select(unknown), expected.select(unknown)
    return bound.index_copy(0, unknown, _bound(*parts))


def _bound(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q, which suffices to compare searches."""
    nats, means = frame_bounds(scene, found, expected)
    prior = scene.dynamics.track_log_density(means, found.detected).float()
    return nats + torch.where(scene.present, prior, 0.0).sum(1)


def frame_bounds(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B N T 2"]]:
    """Return the bound at the means of q without the prior of the tracks, and these means.

    With an occlusion model, undetected objects are not rendered: the mean of two possible occluded
    positions need not be occluded.
    """
    occluded = infer_occluded_objects(scene, found, expected)
    total = torch.zeros(len(scene.present), dtype=torch.float32, device=scene.present.device)
    means = []
    if occluded is not None:
        total += occluded.log_occluded.sum((1, 2))
    for time, q in _blocks(scene, found, expected):
        part = scene.during(time)
        means.append(q.means)
        drawn = means[-1]
        if occluded is not None:
            drawn = torch.where(q.detected[..., None], drawn, OFF_FRAME)
        nats = scene.renderer.log_likelihood(drawn, scene.present, part.frames)
        total += torch.where(part.observed, nats, 0.0).sum(1)
        total += torch.where(scene.present, q.entropy().sum(-1), 0.0).sum(1)
    return total, torch.cat(means, 2)


@dataclass(frozen=True)
class SearchSettings:
    """Initial size of a sprite, scale of latent units, and the search window."""

    sprite_radius: int = 5  # pixels from a sprite's centre to its border
    sprite_width: float = 3.0  # standard deviation of a sprite before training, pixels
    pixels_per_unit: float = 3.0  # scale of latent positions
    window: int = 7  # pixels around its prediction in which an object is searched for

    def __post_init__(self) -> None:
        require_positive(self, "sprite_width", "pixels_per_unit")
        require(
            1 <= self.sprite_radius <= 64 and 1 <= self.window <= 64,
            f"sprite_radius is {self.sprite_radius!r:.40}, window {self.window!r:.40}; "
            "give 1 to 64",
        )


@dataclass(frozen=True)
class SpriteSettings(SearchSettings):
    """Settings of the sprite family."""

    # Whether undetected objects are inferred to be occluded, and train the occluder only.
    # [Choice 38]
    models_occlusion: bool = False


def build(
    settings: SpriteSettings, data: DataConfig, generator: torch.Generator
) -> tuple[SpriteRenderer, Tracker]:
    """Return the renderer with a wide, soft sprite, and the tracker."""
    renderer = SpriteRenderer(
        (data.height, data.width),
        radius=settings.sprite_radius,
        initial_width=settings.sprite_width,
        pixels_per_unit=settings.pixels_per_unit,
        models_occlusion=settings.models_occlusion,
    )
    return renderer, Tracker(settings.window)


FAMILY = Family("sprites", SpriteSettings, build, restarts=True)
