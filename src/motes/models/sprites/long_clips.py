"""The search of long recordings and of settled clips: work only where it changes the result.

The plain reference is `Tracker` with all hypotheses. Here later starts are only followed until they
have joined the first hypothesis, and after a swap only frames whose predictions change are refined.
Where they do not join it, all hypotheses are searched, with the forward pass of arrays.
"""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.sprites import search
from motes.models.sprites.forward_arrays import covers, forward_arrays
from motes.models.sprites.forward_pass import PASSES_PER_FRAME, redetect_lost
from motes.models.sprites.likelihood_maps import (
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    pixel_mahalanobis,
)
from motes.models.sprites.renderer import SpriteRenderer

MIN_FRAMES = 128  # of a long clip
JOIN_WITHIN, JOINED_FRAMES = 48, 16  # frames after a later start; the last of them are compared
MIN_SEEN = 0.5  # share of the frames before a later start in which an object is detected
SAME_PLACE = 0.05  # pixels; smaller differences change no decision
MAX_MAHALANOBIS = 50.0  # squared distance from the prediction that is no error
MAX_SURPRISE = 32.0  # squared Mahalanobis distance from a prediction; catches and bounces have 25
BESIDE = 4  # frames before and after those whose prediction changes
CLEAR_GAIN = 100.0  # nats by which a refined beginning beats another that swaps cannot save

Found = tuple[Detections, PixelGaussian]


def is_settled(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> Bool[Tensor, " B"]:
    """Return the clips in which every object was detected in every frame, where it is expected.

    Tracks that agree with their leave-one-out predictions everywhere are those that later starts
    lead to as well, so these need not be searched. With an occlusion model no clip is settled.

    Law: the best of all hypotheses is the same (test_settled_clips_need_one_hypothesis).
    """
    offset = (found.place.mean - expected.mean)[..., None, :]
    spread = expected.covariance + found.place.covariance
    near = pixel_mahalanobis(offset, spread)[..., 0] < MAX_SURPRISE
    ignored = ~(scene.present[..., None] & scene.observed[:, None])
    settled = (ignored | (found.detected & near)).all(2).all(1)
    return settled & (not scene.renderer.models_occlusion)


class LongSearch(NamedTuple):
    """What the search of a long recording came to before other hypotheses are searched."""

    result: Found | None  # detections and leave-one-out predictions, if they are known already
    first: Detections | None  # forward pass of the first hypothesis, if it was made
    joined: "list[LaterStart]"  # all later starts, if all have joined the first hypothesis


def search_long(
    scene: Scene[SpriteRenderer], starts: Bool[Tensor, "H T"], window: int
) -> LongSearch:
    """Return the search of the first hypothesis as far as it is certain to be the best.

    Args:
        scene: one or a few recordings.
        starts: the frames that each hypothesis trusts, see `search.delayed_starts`.
        window: pixels around a prediction in which an object is searched for.

    Law: equals the search with all hypotheses
    (test_a_long_clip_is_searched_as_with_all_hypotheses).
    """
    if not covers_long(scene):
        return LongSearch(None, None, [])
    coarse = SpriteTemplate.coarse(scene.renderer, window)
    first = forward(scene, coarse, scene.observed)
    later = later_starts(scene, coarse, first, starts)
    if not all(start.joins for start in later):
        return LongSearch(None, first, [])
    if any(start.doubtful for start in later):
        return LongSearch(None, first, later)
    found, expected = search.refine(scene, coarse, first, scene.observed)
    return LongSearch(undo_swaps(scene, coarse, found, expected), first, later)


def covers_long(scene: Scene[SpriteRenderer]) -> bool:
    """Return whether searches are few and long, so that their parts here are used."""
    is_long = scene.observed.shape[1] >= MIN_FRAMES
    return is_long and covers(scene) and not scene.renderer.models_occlusion


def forward(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    trusted: Bool[Tensor, "B T"],
    stop: int | None = None,
) -> Detections:
    """Return the forward pass, or only its frames before `stop`."""
    return forward_arrays(scene, template, trusted, redetect_lost, PASSES_PER_FRAME, stop)


class LaterStart(NamedTuple):
    """A hypothesis that starts later than the first one."""

    trusted: Bool[Tensor, "B T"]
    stop: int  # frame before which it was followed
    joins: bool  # whether it has the belief of the first hypothesis there, and thus from there on
    doubtful: bool  # whether the first hypothesis may be wrong before this start


def later_starts(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    first: Detections,
    starts: Bool[Tensor, "H T"],
) -> list[LaterStart]:
    """Return how the later starts compare with the first hypothesis; none after one that differs.

    A later start that has joined the first one after JOIN_WITHIN frames has the same detections
    from there on, and only frames before that may differ. These are in doubt unless every object
    was detected in most frames before the later start, each time near the prediction from all
    other frames.

    Law: separated objects join without doubt, not after a wrong first detection
    (test_later_starts_join_without_doubt_where_objects_are_separated).
    """
    present, expected = scene.present[..., None], search.predict_from_other_frames(scene, first)
    offset = (first.place.mean - expected.mean)[..., None, :]
    # Positions are whole pixels at this stage, more or less.
    blurred = expected.covariance + torch.eye(2)
    expectable = pixel_mahalanobis(offset, blurred)[..., 0] < MAX_MAHALANOBIS
    found: list[LaterStart] = []
    for trusted in starts.split(len(scene.clip))[1:]:
        begins = trusted.int().argmax(1)
        stop = min(int(begins.max()) + JOIN_WITHIN, trusted.shape[1])
        before = torch.arange(trusted.shape[1]) < begins[:, None]
        wanted = present & (scene.observed & before)[:, None]
        seen = wanted & first.detected
        rarely = seen.sum(2) < MIN_SEEN * wanted.sum(2)
        doubtful = bool((seen & ~expectable).any()) or bool(rarely.any())
        later = forward(scene, template, trusted, stop)
        last = slice(stop - JOINED_FRAMES, stop)
        # Objects are named from left to right in the first frame of a hypothesis.
        ours, theirs = (part.place.mean[:, :, last] for part in (first, later))
        away = (ours[:, :, None] - theirs[:, None]).abs().amax((-2, -1))
        one, other = (part.detected[:, :, last] for part in (first, later))
        alike = (one[:, :, None] == other[:, None]).all(-1)
        same = alike & (away < SAME_PLACE) & scene.present[:, None] & present
        joins = all(bool((same.sum(axis) == scene.present).all()) for axis in (1, 2))
        found.append(LaterStart(trusted, stop, joins, doubtful))
        if not joins:
            break
    return found


def is_best(scene: Scene[SpriteRenderer], best: Found, long: LongSearch, window: int) -> bool:
    """Return whether no later start can lead to better tracks than those of the first hypothesis.

    False unless all have joined it. Where a beginning is in doubt, that of the later start is
    refined up to the frame where it has joined, and must lose clearly or lead to the same tracks.

    Law: false after a wrong beginning (test_a_doubtful_beginning_is_kept_only_if_it_is_better).
    """
    if long.first is None or not long.joined:
        return False
    coarse = SpriteTemplate.coarse(scene.renderer, window)
    for start in long.joined:
        if not start.doubtful:
            continue
        time = slice(0, start.stop)
        part, trusted = scene.during(time), start.trusted[:, time]
        seen = long.first.detected[:, :, time] & trusted[:, None]
        found, expected = search.refine(
            part, coarse, Detections(long.first.place.during(time), seen), trusted
        )
        ours = Detections(best[0].place.during(time), best[0].detected[:, :, time])
        gain = search._bound(part, ours, best[1].during(time)) - search._bound(
            part, found, expected
        )
        away = (found.place.mean - ours.place.mean).abs().amax((-2, -1))
        same = ((away < SAME_PLACE) | ~scene.present).all(1)
        if not bool((same | (gain > CLEAR_GAIN)).all()):
            return False
    return True


def undo_swaps(
    scene: Scene[SpriteRenderer],
    coarse: SpriteTemplate,
    found: Detections,
    expected: PixelGaussian,
) -> Found:
    """Swap parts of the tracks of two objects where that raises the bound. [Choice 30]."""
    for persistent in (True, False) if scene.present.shape[1] > 1 else ():
        gains = search.swap_gains(scene, found, expected, persistent)
        gain, source = search.best_swaps(gains, scene.present, persistent)
        if bool((gain > 0).any()):
            new = found.reordered(source)
            old = Detections(PixelGaussian(*expected), found.detected).reordered(source).place
            found, expected = _refine_locally(scene, coarse, (found, expected), (new, old))
    return found, expected


def _refine_locally(
    scene: Scene[SpriteRenderer],
    coarse: SpriteTemplate,
    before: Found,
    swapped: Found,
) -> Found:
    """Refine the swapped tracks where their predictions change; return the better tracks.

    `swapped` holds the detections and the predictions before, both under their new names.
    """
    found, old = swapped
    expected = search.predict_from_other_frames(scene, found)
    time = changed_frames(expected, old)
    part = scene.during(time)
    place = PixelGaussian.where(found.detected, found.place, expected).select(_frames(time))
    for _ in range(search.REVISITS):
        blocks = search.revisit_blocks(part, coarse, place, expected.select(_frames(time)))
        new = Detections.joined([detections for *_, detections in blocks], 2)
        found, place = _with_frames(found, time, new), new.place
        expected = search.predict_from_other_frames(scene, found)
    gained = _bound(scene, part, time, found, expected) > _bound(scene, part, time, *before)
    clips = gained.nonzero()[:, 0]
    kept, predicted = before
    return (
        kept.put(clips, found.select(clips)),
        predicted.put(clips, expected.select(clips)),
    )


def changed_frames(new: PixelGaussian, old: PixelGaussian) -> Int[Tensor, " some"]:
    """Return the frames in which predictions differ, and those beside them."""
    scale = old.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    moved = ((new.mean - old.mean).abs() > 0.01 * scale).any(-1)
    spread = (new.covariance - old.covariance).abs().amax((-2, -1))
    moved |= spread > 0.01 * scale.square().amax(-1)
    flags = moved.any(1).any(0).float()[None, None]
    near = torch.nn.functional.max_pool1d(flags, 2 * BESIDE + 1, 1, BESIDE)
    return near[0, 0].nonzero()[:, 0]


def _frames(time: Int[Tensor, " some"]) -> tuple[slice, slice, Int[Tensor, " some"]]:
    """Return the index of some frames of all objects."""
    return slice(None), slice(None), time


def _with_frames(found: Detections, time: Int[Tensor, " some"], new: Detections) -> Detections:
    """Return the detections with those of some frames replaced."""
    mean, covariance = (
        part.index_copy(2, time, other) for part, other in zip(found.place, new.place, strict=True)
    )
    detected = found.detected.index_copy(2, time, new.detected)
    return Detections(PixelGaussian(mean, covariance), detected)


def _bound(
    scene: Scene[SpriteRenderer],
    part: Scene[SpriteRenderer],
    time: Int[Tensor, " some"],
    found: Detections,
    expected: PixelGaussian,
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q, up to the likelihood of all other frames."""
    there = Detections(found.place.select(_frames(time)), found.detected[:, :, time])
    nats, means = search.frame_bounds(part, there, expected.select(_frames(time)))
    positions = scene.renderer.from_pixels(found.place.mean).index_copy(2, time, means)
    prior = scene.dynamics.track_log_density(positions, found.detected).float()
    return nats + torch.where(scene.present, prior, 0.0).sum(1)
