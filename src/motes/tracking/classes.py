"""Noise with structure and sprites of two widths, for recordings that one sprite does not explain.

Halos, objects out of focus and compression leave residuals that are smooth over a sprite, so that
the matched filter responds to them more than white noise of the same size would make it. Then the
noise is set to what the filter measures, which keeps false alarms at their nominal rate, and a
wider sprite for objects out of focus is added if it explains more than it costs.
"""

from dataclasses import replace

import numpy as np
from scipy import ndimage

from motes.tracking.detection import Candidates, Looks, find_candidates
from motes.tracking.fitting import canvas, overlapping
from motes.tracking.sprite import OVERSAMPLING, Array, Sprite, learn_sprite, sprite_from_grid

LEAST = 3.0  # standard deviations of a peak: the measured noise includes faint objects
STRUCTURED = 2.5  # ratio of the noise after and before the matched filter; 1 for white noise
WIDENING = 1.6  # of the first guess of a sprite out of focus
ROUNDS = 2  # searches from which the sprites of two classes are learned
MIN_CROPS, MAX_CROPS = 40, 400  # crops from which the sprite of a class is learned
TOLERANCE = 1.1  # of the cost with one sprite; two that need fewer objects may cost that much more
OBJECT_COST = 12.0  # nats: what a detection must explain to be worth its position and amplitude


def robust_scale(values: Array) -> float:
    """Return the standard deviation of the bulk of the values."""
    flat = values.ravel()[:: max(1, values.size // 40_000)]
    return float(np.median(np.abs(flat - np.median(flat))) / 0.6745)


def filtered_noise(residual: Array, looks: Looks) -> float:
    """Return the noise that the matched filter of the first sprite measures in a residual.

    Law: equals the standard deviation of white noise
    (test_the_matched_filter_measures_white_noise).
    """
    first = replace(looks, sprites=looks.sprites[:1])
    return robust_scale(first.matched_filter(*residual.shape[1:]).responses(residual)[0])


def frame_surfaces(frames: Array, tile: int) -> Array:
    """Return a smooth surface for each frame [F, height, width], through the medians of tiles."""
    count, height, width = frames.shape
    rows, columns = -(-height // tile), -(-width // tile)
    pad = ((0, 0), (0, rows * tile - height), (0, columns * tile - width))
    tiles = np.pad(frames, pad, mode="reflect" if min(height, width) > tile else "edge")
    tiles = tiles.reshape(count, rows, tile, columns, tile).swapaxes(2, 3)
    middle = np.median(tiles.reshape(count, rows, columns, -1), -1)
    middle = ndimage.median_filter(middle, (1, 3, 3), mode="nearest")
    surfaces: Array = _spread(height, tile) @ middle @ _spread(width, tile).T
    return surfaces


def _spread(length: int, tile: int) -> Array:
    """Return weights [length, tiles] that interpolate and smooth the values of tiles."""
    count = -(-length // tile)
    place = (np.arange(length) + 0.5) / tile - 0.5
    # Hats of one tile, blurred by half a tile: within 2 % of a Gaussian of .65 tiles.
    weights = np.exp(-0.5 * ((place[:, None] - np.arange(count)) / 0.65) ** 2)
    normalised: Array = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return normalised


def is_structured(residual: Array, count: int, looks: Looks) -> bool:
    """Return whether the matched filter responds more to a residual than to white noise.

    Fewer than 2 MIN_CROPS objects do not suffice to learn two sprites; the answer is then no.
    """
    many = count >= 2 * MIN_CROPS
    return many and filtered_noise(residual, looks) >= STRUCTURED * looks.noise


def with_structure(signed: Array, looks: Looks) -> Looks:
    """Return looks with the noise that the matched filter measures and, if it pays, two sprites.

    Args:
        signed: frames minus background, objects brighter, [S, height, width].
        looks: of one sprite, with the noise of a pixel.
    """
    _, rest = _search(signed, replace(looks, rounds=1))
    noise = max(filtered_noise(rest, looks), looks.noise)
    single = replace(looks, noise=noise, rounds=1)
    two = _widened(single)
    for _ in range(ROUNDS):
        found, rest = _search(signed, two)
        if min(np.bincount(found.kinds, minlength=2)) < MIN_CROPS:
            return replace(single, least=LEAST)
        two = _relearned(rest, found, two)
    cost_two, count_two = description_cost(signed, two)
    cost, count = description_cost(signed, single)
    fewer = count_two < count and cost_two < TOLERANCE * cost
    return replace(two if fewer or cost_two < cost else single, least=LEAST)


def _search(signed: Array, looks: Looks) -> tuple[Candidates, Array]:
    return find_candidates(signed, looks, looks.matched_filter(*signed.shape[1:]), looks.rounds)


def description_cost(signed: Array, looks: Looks) -> tuple[float, int]:
    """Return the nats that describe frames by objects and noise, and the number of objects."""
    found, residual = _search(signed, looks)
    return nats(residual, len(found), looks.noise), len(found)


def nats(residual: Array, count: int, noise: float) -> float:
    """Return the nats that describe frames by a number of objects and what they leave."""
    return float(np.square(residual).sum()) / (2 * noise**2) + OBJECT_COST * count


def _widened(looks: Looks) -> Looks:
    """Return looks with a second sprite, a blurred copy of the first with the same integral."""
    first = looks.sprites[0]
    half = int(np.ceil(WIDENING * first.half))
    grid = np.pad(first.grid, (half - first.half) * OVERSAMPLING)
    # The standard deviation along an axis of a Gaussian spot is half of `radius`.
    blur = np.sqrt(WIDENING**2 - 1) * first.radius / 2 * OVERSAMPLING
    wide = ndimage.gaussian_filter(grid, blur)
    scales = np.array((1.0, 1 / WIDENING**2))
    means, spreads = (table[0] * scales for table in looks.amplitude)
    sprites = (sprite_from_grid(grid, half), sprite_from_grid(wide, half))
    return replace(looks, sprites=sprites, amplitude=(means, spreads))


def _relearned(residual: Array, found: Candidates, looks: Looks) -> Looks:
    """Return looks whose sprites and amplitudes are learned from candidates of each class."""
    alone = is_alone(found, looks.sprites[0], residual.shape[1:])
    strong = found.evidence > OBJECT_COST
    sprites, means, spreads = [], [], []
    for kind, old in enumerate(looks.sprites):
        mine = strong & (found.kinds == kind)
        chosen = np.flatnonzero(mine & alone)
        if len(chosen) < MIN_CROPS:
            chosen = np.flatnonzero(mine)
        if len(chosen) == 0:
            return looks
        if len(chosen) > MAX_CROPS:
            chosen = chosen[np.linspace(0, len(chosen) - 1, MAX_CROPS).round().astype(int)]
        crops, offsets = object_crops(residual, found.select(chosen), old, old.half)
        gains = found.amplitudes[chosen]
        sprites.append(learn_sprite(crops, offsets, gains, old.half, looks.noise))
        gains = found.amplitudes[mine]
        means.append(float(np.median(gains)))
        spreads.append(max(robust_scale(gains), 0.1 * means[-1]))
    return replace(looks, sprites=tuple(sprites), amplitude=(np.array(means), np.array(spreads)))


def object_crops(
    residual: Array, found: Candidates, sprite: Sprite, half: int
) -> tuple[Array, Array]:
    """Return crops around objects with all others taken out, and offsets from their middles."""
    picture = canvas(residual, half + 1)
    high = np.array((residual.shape[2] - 1, residual.shape[1] - 1))
    centres = np.rint(found.positions).clip(0, high).astype(np.int64)
    offsets = found.positions - centres
    crops = picture.values[picture.index(found.frame, centres, half)]
    crops = crops.reshape(len(found), 2 * half + 1, 2 * half + 1)
    own = sprite.crops(offsets)[0].reshape(len(found), sprite.side, sprite.side)
    edge = half - sprite.half
    inner = slice(edge, edge + sprite.side)
    crops[:, inner, inner] += found.amplitudes[:, None, None] * own
    rim = np.concatenate((crops[:, 0], crops[:, -1], crops[:, 1:-1, 0], crops[:, 1:-1, -1]), 1)
    return crops - np.median(rim, 1)[:, None, None], offsets


def is_alone(found: Candidates, sprite: Sprite, size: tuple[int, ...]) -> Array:
    """Return which candidates overlap no other and lie well inside the picture."""
    alone = np.ones(len(found), bool)
    alone[overlapping(found.frame, found.positions, sprite).ravel()] = False
    high = np.array((size[1] - 1, size[0] - 1)) - sprite.half
    return alone & ((found.positions >= sprite.half) & (found.positions <= high)).all(1)
