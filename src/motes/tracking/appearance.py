"""Background, noise and sprite of a recording, learned from a few of its frames.

Two backgrounds are tried: the median over time, right where the scene has structure, and a smooth
surface, right where objects are slow or many. The one that leaves less to explain is kept.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from motes.tracking.background import (
    MIN_FRAMES,
    NOISE_FLOOR,
    UNEVEN_FLOOR,
    Scene,
    beyond,
    smooth_surface,
)
from motes.tracking.classes import (
    MAX_CROPS,
    OBJECT_COST,
    description_cost,
    frame_surfaces,
    is_alone,
    is_structured,
    nats,
    object_crops,
    robust_scale,
    with_structure,
)
from motes.tracking.detection import (
    Candidates,
    Looks,
    MatchedFilter,
    find_candidates,
    peaks,
)
from motes.tracking.fitting import canvas, overlapping
from motes.tracking.sprite import (
    OVERSAMPLING,
    Array,
    Sprite,
    gaussian_crop,
    gaussian_sprite,
    learn_sprite,
    sprite_from_grid,
)

SCALES = tuple(1.0 * 1.4**power for power in range(9))  # pixels, of Gaussian first guesses
STRONG = 6.0  # standard deviations of a peak that counts as an object at first
ROUNDS = 3
TILE = 12  # pixels, the smallest
FAINTEST = 0.2  # of the mean amplitude, where compression leaves remnants
MISFIT, MOST_MISFIT = 2.5, 0.6  # of the relative residual of an object, at most
MIN_EXCESS, MIN_MISFIT = 3.0, 0.35  # residual variance of sprites that do not fit, least share
WANTED_OBJECTS = 100  # from which looks are learned, if so many are in the sample
LOOKS_SAMPLE = 6  # frames from which sprite, noise and amplitudes are learned
PLATEAU, FLAT = 0.8, 0.4  # of a sprite's largest value; share of an object's area above that
OVERLAPS = 4  # frames with overlapping objects in which opaque objects are told from others
MOST_OBJECTS = 5_000  # peaks in a frame with which a background counts as wrong


@dataclass(frozen=True, eq=False)
class Appearance:
    """How a recording looks.

    Attributes:
        background: [height, width].
        polarity: 1 if objects are brighter than the background, -1 if darker.
        looks: sprites, noise, amplitudes; None where no object was found.
        kind: "still" or "smooth" background.
        tile: side of the tiles through which the background of each frame is corrected; 0 for no
            correction, which is for white noise.
        tolerance: changes of a pixel up to this are of the background, [height, width]; None for
            white noise.
    """

    background: Array
    polarity: float
    looks: Looks | None
    kind: str
    tile: int = 0
    tolerance: Array | None = None

    def deviation(self, frames: Array) -> Array:
        """Return frames minus background, objects brighter."""
        out = beyond(frames - self.background, self.tolerance)
        if self.polarity < 0:
            np.negative(out, out)
        if self.tile:
            out -= frame_surfaces(out, self.tile)
        return out


def learn_appearance(scene: Scene) -> Appearance:
    """Return the appearance of a recording from frames [S, height, width] spread over it.

    Looks are learned from some of the frames and the background from the others, so that a
    background which absorbs noise gains nothing. Where objects are few, looks are then learned
    from more frames.
    """
    sample, tolerance = scene.frames, scene.tolerance
    chosen = np.linspace(0, len(sample) - 1, min(len(sample), LOOKS_SAMPLE)).round().astype(int)
    if scene.fullest is not None:  # objects may be absent most of the time
        chosen = np.sort(scene.fullest[:LOOKS_SAMPLE])
    few = sample[np.unique(chosen)]
    others = np.delete(sample, chosen, 0) if len(sample) >= 2 * LOOKS_SAMPLE else sample
    still = np.median(others, 0).astype(np.float32)
    options: list[tuple[str, Array, Array | None]] = [("smooth", smooth_surface(still), None)]
    if len(sample) >= MIN_FRAMES:
        options.append(("still", still, tolerance))
    best = _Learned(Appearance(still, 1.0, None, "still"), np.inf, few, 0)
    for kind, background, bound in options:
        learned = _learn(few, background, kind, bound)
        if learned.cost < best.cost:
            best = learned
    appearance = best.appearance
    wanted = min(len(sample), WANTED_OBJECTS * len(few) // max(best.objects, 1))
    if wanted > len(few) and appearance.looks is not None:
        chosen = np.linspace(0, len(sample) - 1, wanted).round().astype(int)
        few = sample[chosen if scene.fullest is None else scene.fullest[:wanted]]
        best = _learn(few, appearance.background, appearance.kind, appearance.tolerance)
        appearance = best.appearance
    looks = appearance.looks
    if looks is None:
        return appearance
    if not is_structured(best.residual, best.objects, looks):
        level = opaque_level(appearance.deviation(few), looks)
        return replace(appearance, looks=replace(looks, level=level))
    appearance = replace(appearance, tile=max(TILE, int(3 * looks.sprites[0].radius)))
    return replace(appearance, looks=with_structure(appearance.deviation(few), looks))


class _Learned(NamedTuple):
    """Appearance with one background, nats to describe the sample by it, residual, objects."""

    appearance: Appearance
    cost: float
    residual: Array
    objects: int


def _learn(few: Array, background: Array, kind: str, tolerance: Array | None) -> _Learned:
    """Return the appearance with one background, and how well it describes the sample."""
    deviation = beyond(few - background, tolerance)
    floor = NOISE_FLOOR if tolerance is None else UNEVEN_FLOOR
    noise = max(robust_scale(deviation), floor)
    polarity, scale = _polarity_and_scale(deviation[:: max(1, len(deviation) // 2)][:2], noise)
    if scale is None:
        empty = Appearance(background, 1.0, None, kind)
        cost = np.square(deviation / NOISE_FLOOR).mean() / 2 * deviation[0].size
        return _Learned(empty, float(cost), deviation, 0)
    matched = MatchedFilter((gaussian_crop(scale),), *deviation.shape[1:])
    response = matched.responses(deviation * np.float32(polarity))[0]
    if len(peaks(response, STRONG * noise)[0]) > MOST_OBJECTS * len(few):
        return _Learned(Appearance(background, 1.0, None, kind), np.inf, deviation, 0)
    first = gaussian_sprite(scale, reach=2)
    looks = Looks((first,), noise, _first_amplitudes(deviation * polarity, first, noise))
    for turn in range(ROUNDS):
        signed = beyond(few - background, tolerance) * np.float32(polarity)
        matched = looks.matched_filter(*signed.shape[1:])
        found, residual = find_candidates(
            signed, looks, matched, rounds=1, least=STRONG if turn < 1 else 5.0
        )
        if kind == "smooth":
            background = background + polarity * _surface_change(residual, scale)
        looks = _relook(signed, residual, found, looks, floor, last=turn == ROUNDS - 1)
    level = float(np.mean(np.minimum(np.square(residual / NOISE_FLOOR), 1e4))) / 2
    cost = 0.5 * residual[0].size * np.log(max(level, 0.5)) + OBJECT_COST * len(found) / len(few)
    appearance = Appearance(background, polarity, looks, kind, tolerance=tolerance)
    return _Learned(appearance, float(cost), residual, len(found))


def _polarity_and_scale(deviation: Array, noise: float) -> tuple[float, float | None]:
    """Return the sign of objects and the scale of the Gaussian that matches most of them best."""
    height, width = deviation.shape[1:]
    scales = [scale for scale in SCALES if 6 * scale + 1 <= min(height, width)] or [1.0]
    maps = []
    for scale in scales:
        matched = MatchedFilter((gaussian_crop(scale),), height, width)
        response = matched.responses(deviation)[0]
        maps.append(response / max(noise, robust_scale(response)))
    stack = np.stack(maps)
    best: tuple[float, float, float | None] = (0.0, 1.0, None)
    for polarity in (1.0, -1.0):
        top = (polarity * stack).max(0)
        frame, row, column = peaks(top, STRONG)
        if len(frame) == 0:
            continue
        strength = top[frame, row, column]
        which = (polarity * stack[:, frame, row, column]).argmax(0)
        # Half of the evidence is on each side of the median scale; single giants count little.
        weight = np.minimum(strength, 4 * np.median(strength)) ** 2
        shares = np.bincount(which, weight, len(scales))
        chosen = int(np.searchsorted(np.cumsum(shares), shares.sum() / 2))
        if weight.sum() > best[0]:
            best = (float(weight.sum()), polarity, scales[chosen])
    return best[1], best[2]


def _first_amplitudes(deviation: Array, sprite: Sprite, noise: float) -> tuple[Array, Array]:
    """Return mean and standard deviation of the amplitudes of clear peaks."""
    matched = MatchedFilter((sprite.centred,), *deviation.shape[1:])
    response = matched.responses(deviation)[0]
    frame, row, column = peaks(response, STRONG * noise)
    gains = response[frame, row, column] / matched.norms[0][row, column]
    middle = float(np.median(gains)) if len(gains) else 1.0
    high = gains[gains >= middle] if len(gains) else np.ones(1)
    mean = float(np.median(high))
    return np.array((mean,)), np.array((0.5 * mean,))


def _surface_change(residual: Array, scale: float) -> Array:
    """Return what to add to a smooth background: the mean residual, smoothed."""
    change: Array = ndimage.gaussian_filter(residual.mean(0), 3 * scale + 2, mode="nearest")
    return change


def _relook(
    signed: Array, residual: Array, found: Candidates, looks: Looks, floor: float, last: bool
) -> Looks:
    """Return looks learned from candidates: sprite, noise and amplitudes."""
    noise = max(robust_scale(residual), floor)
    if len(found) == 0:
        return looks
    old = looks.sprites[0]
    middle = float(np.median(found.evidence))
    if floor > NOISE_FLOOR:  # half of the evidence: remnants of compression are many and weak
        rising = np.sort(found.evidence.clip(0))
        half = np.searchsorted(np.cumsum(rising), rising.sum() / 2)
        middle = float(rising[min(int(half), len(rising) - 1)])
    strong = found.evidence > max(OBJECT_COST, 0.2 * middle)
    chosen = np.flatnonzero(strong & is_alone(found, old, signed.shape[1:]))
    if len(chosen) < 5:
        chosen = np.flatnonzero(strong)
    if len(chosen) == 0:
        return looks
    if len(chosen) > MAX_CROPS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MAX_CROPS).round().astype(int)]
    crops, offsets = object_crops(residual, found.select(chosen), old, old.half)
    scatter = float(np.median(found.covariances[chosen][:, (0, 1), (0, 1)]))
    sprite = learn_sprite(crops, offsets, found.amplitudes[chosen], old.half, noise, scatter)
    gains = found.amplitudes[strong] * amplitude_ratio(old, sprite)
    sprite = trimmed(sprite) if last else sprite
    mean = float(np.median(gains))
    spread = max(robust_scale(gains) if len(gains) > 4 else 0.3 * mean, 0.1 * mean)
    amplitude = np.array((mean,)), np.array((spread,))
    misfit, excess = _misfit(residual, found.select(chosen), old, noise)
    faintest = FAINTEST if floor > NOISE_FLOOR else 0.0
    if excess < MIN_EXCESS and floor == NOISE_FLOOR:
        return Looks((sprite,), noise, amplitude)
    misfit = max(misfit, MIN_MISFIT)
    return Looks((sprite,), noise, amplitude, faintest=faintest, misfit=misfit, excess=excess)


def _misfit(
    residual: Array, found: Candidates, sprite: Sprite, noise: float
) -> tuple[float, float]:
    """Return which share of an object's amplitude what the sprite leaves of it may pass for.

    The second number is the variance of what is left, relative to that of the noise.
    """
    picture = canvas(residual, sprite.half + 1)
    high = np.array((residual.shape[2] - 1, residual.shape[1] - 1))
    centres = np.rint(found.positions).clip(0, high).astype(np.int64)
    left = picture.values[picture.index(found.frame, centres, sprite.half)]
    own = found.amplitudes[:, None] * sprite.crops(found.positions - centres)[0]
    rest = float(np.square(left).mean())
    share = np.sqrt(max(rest - noise**2, 0.0) / np.square(own).mean())
    return float(min(MISFIT * share, MOST_MISFIT)), max(rest / noise**2, 1.0)


def opaque_level(signed: Array, looks: Looks) -> float:
    """Return the brightness of opaque objects, or 0 where overlapping objects add up.

    Objects with a flat top are taken for opaque unless frames with overlaps are described better,
    by OBJECT_COST nats, if objects add up; the other way round for those without.

    Law: disks that cover one another are told from spots that add up
    (test_opaque_objects_are_told_from_objects_that_add_up).
    """
    sprite = looks.sprites[0]
    top = sprite.centred > PLATEAU
    if not top.any():  # narrower than a pixel
        return 0.0
    level = float(looks.amplitude[0][0] * sprite.centred[top].mean())
    flat = float(top.sum()) > FLAT * np.pi * sprite.radius**2
    found, residual = find_candidates(signed, looks, looks.matched_filter(*signed.shape[1:]))
    pairs = overlapping(found.frame, found.positions, sprite)
    if len(pairs) == 0:
        return level if flat else 0.0
    overlaps = np.bincount(found.frame[pairs[:, 0]], minlength=len(signed))
    chosen = np.argsort(-overlaps, kind="stable")[: min((overlaps > 0).sum(), OVERLAPS)]
    adding = nats(residual[chosen], int(np.isin(found.frame, chosen).sum()), looks.noise)
    gain = adding - description_cost(signed[chosen], replace(looks, level=level))[0]
    return level if gain > (-OBJECT_COST if flat else OBJECT_COST) else 0.0


def amplitude_ratio(old: Sprite, new: Sprite) -> float:
    """Return the factor that turns amplitudes of one sprite into those of another.

    Sprites have a largest value of 1, which noise changes from one estimate to the next.

    Law: halving a sprite doubles the amplitudes (test_amplitudes_follow_the_scale_of_a_sprite).
    """
    return float((old.centred * new.centred).sum() / np.square(new.centred).sum())


def trimmed(sprite: Sprite, share: float = 0.01) -> Sprite:
    """Return the sprite without outer rims whose mean is less than a share of the largest value."""
    crop = np.abs(sprite.centred)
    half = sprite.half
    while half > 2:
        cut = sprite.half - half
        ring = crop[cut : len(crop) - cut, cut : len(crop) - cut]
        rim = np.concatenate((ring[0], ring[-1], ring[1:-1, 0], ring[1:-1, -1]))
        if rim.mean() > share * crop.max():
            break
        half -= 1
    cut = (sprite.half - half) * OVERSAMPLING
    grid = sprite.grid[cut:-cut, cut:-cut] if cut else sprite.grid
    return sprite_from_grid(grid, half)
