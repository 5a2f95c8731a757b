"""The looks of small objects: a sprite on a fine grid, drawn at any sub-pixel position.

A sprite gives the brightness that an object of amplitude 1 adds to a pixel, as a function of the
pixel's offset from the object's centre. It is stored on a grid of OVERSAMPLING points per pixel and
tabulated at BANK sub-pixel positions per axis; between these it is expanded to first order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]

OVERSAMPLING = 4  # grid points per pixel of a sprite
BANK = 8  # tabulated sub-pixel positions per pixel and axis
SMOOTHING = 0.6  # grid points; fills gaps of the grid, blurs the sprite by .15 pixels


@dataclass(frozen=True, eq=False)
class Sprite:
    """What an object of amplitude 1 adds to the pixels around it.

    Attributes:
        half: pixels from the centre of a crop to its border; a crop has 2 half + 1 of them a side.
        grid: the sprite on the fine grid, centre in the middle, largest value 1.
        bank: crops [BANK + 1, BANK + 1, side, side] of objects at offsets (y, x) from -1/2 to 1/2.
        slopes: derivatives of `bank` by the object's x and y, [2, BANK + 1, BANK + 1, side, side].
    """

    half: int
    grid: Array
    bank: Array
    slopes: Array

    @property
    def side(self) -> int:
        """Pixels of a side of a crop."""
        return 2 * self.half + 1

    @property
    def centred(self) -> Array:
        """The crop of an object in the middle of a pixel."""
        crop: Array = self.bank[BANK // 2, BANK // 2]
        return crop

    @property
    def radius(self) -> float:
        """Radius of a disk with the same second moment, in pixels."""
        offsets = np.arange(-self.half, self.half + 1)
        weights = np.abs(self.centred)
        spread = (weights * (offsets**2 + offsets[:, None] ** 2)).sum() / weights.sum()
        return float(np.sqrt(2 * spread))

    def crops(self, offsets: Array) -> tuple[Array, Array, Array]:
        """Return crops [n, side^2] at offsets (x, y) in [-1/2, 1/2] and derivatives by x and y."""
        steps = np.clip(np.rint((offsets + 0.5) * BANK), 0, BANK).astype(int)
        rest = (offsets + 0.5 - steps / BANK).astype(np.float32)
        index = steps[:, 1] * (BANK + 1) + steps[:, 0]
        flat = self.side**2
        by_x = self.slopes[0].reshape(-1, flat)[index]
        by_y = self.slopes[1].reshape(-1, flat)[index]
        crops = self.bank.reshape(-1, flat)[index]
        crops += rest[:, :1] * by_x
        crops += rest[:, 1:] * by_y
        return crops, by_x, by_y


def sprite_from_grid(grid: Array, half: int) -> Sprite:
    """Return the sprite of values on the fine grid, scaled to a largest absolute value of 1.

    Args:
        grid: [side, side] with side = 2 OVERSAMPLING (half + 1) + 1.
        half: pixels from the centre of a crop to its border.
    """
    grid = grid / np.abs(grid).max()
    coefficients = ndimage.spline_filter(grid, order=3)
    shifts = np.arange(BANK + 1) / BANK - 0.5
    offsets = np.arange(-half, half + 1)
    points = offsets - shifts[:, None]  # [BANK + 1, side]

    def at(dx: float, dy: float) -> Array:
        rows = (points - dy + half + 1) * OVERSAMPLING
        columns = (points - dx + half + 1) * OVERSAMPLING
        shape = (BANK + 1, BANK + 1, len(offsets), len(offsets))
        where = (
            np.broadcast_to(rows[:, None, :, None], shape),
            np.broadcast_to(columns[None, :, None, :], shape),
        )
        return ndimage.map_coordinates(coefficients, where, order=3, prefilter=False)

    step = 1 / OVERSAMPLING / 2
    slopes = np.stack(
        (
            (at(step, 0.0) - at(-step, 0.0)) / (2 * step),
            (at(0.0, step) - at(0.0, -step)) / (2 * step),
        )
    )
    return Sprite(half, grid, at(0.0, 0.0).astype(np.float32), slopes.astype(np.float32))


def gaussian_sprite(scale: float, reach: int = 0) -> Sprite:
    """Return a Gaussian spot with this standard deviation, its crops larger by `reach` pixels."""
    half = max(2, int(np.ceil(3 * scale))) + reach
    limit = (half + 1) * OVERSAMPLING
    offsets = np.arange(-limit, limit + 1) / OVERSAMPLING
    line = np.exp(-0.5 * (offsets / scale) ** 2)
    return sprite_from_grid(line[:, None] * line, half)


def gaussian_crop(scale: float) -> Array:
    """Return the crop of a centred Gaussian spot."""
    half = max(2, int(np.ceil(3 * scale)))
    line = np.exp(-0.5 * (np.arange(-half, half + 1) / scale) ** 2)
    return line[:, None] * line


def learn_sprite(
    crops: Array, offsets: Array, amplitudes: Array, half: int, noise: float, scatter: float = 0.0
) -> Sprite:
    """Return the sprite that explains crops [n, side, side] of objects best, by least squares.

    The part that is not round is shrunk by how much of it noise would explain (James and Stein),
    because noise in a sprite passes for sharp detail, which makes stated errors too small.

    Args:
        crops: brightness above the background around each object.
        offsets: (x, y) of each object from the middle of its crop, in pixels.
        amplitudes: of each object.
        half: pixels from the centre of a crop to its border.
        noise: standard deviation of a pixel of a crop.
        scatter: variance of the offsets along an axis, if they were fitted to the same crops.
    """
    side = 2 * OVERSAMPLING * (half + 1) + 1
    pixels = np.arange(-half, half + 1)
    rows = np.rint((pixels - offsets[:, 1:] + half + 1) * OVERSAMPLING).astype(int)
    columns = np.rint((pixels - offsets[:, :1] + half + 1) * OVERSAMPLING).astype(int)
    rows, columns = rows.clip(0, side - 1), columns.clip(0, side - 1)
    index = rows[:, :, None] * side + columns[:, None, :]
    gains = amplitudes[:, None, None]
    top = np.bincount(index.ravel(), (crops * gains).ravel(), side**2).reshape(side, side)
    squares = np.broadcast_to(gains**2, crops.shape)
    bottom = np.bincount(index.ravel(), squares.ravel(), side**2).reshape(side, side)
    top, bottom = (
        ndimage.gaussian_filter(part, SMOOTHING, truncate=6, mode="constant")
        for part in (top, bottom)
    )
    known = bottom > 1e-3 * bottom.max()
    grid = np.where(known, top / np.maximum(bottom, 1e-300), 0.0)
    grid = _centred(grid)
    round_part = _round(grid, np.where(known, bottom, 0.0))
    rest = np.where(known, grid - round_part, 0.0)
    # Smoothing and rounding to the grid blur; aligning crops by positions that follow their noise
    # sharpens. The round part has little noise, so that the net effect can be taken back.
    blur = SMOOTHING**2 + 1 / 12 - scatter * OVERSAMPLING**2
    round_part = round_part - 0.5 * blur * ndimage.laplace(round_part)
    # Smoothing over about 4 pi SMOOTHING^2 grid points leaves that much less noise in each.
    by_noise = noise**2 / (4 * np.pi * SMOOTHING**2) / np.maximum(bottom, 1e-300)
    share = 1 - by_noise[known].sum() / max(float(np.square(rest).sum()), 1e-300)
    return sprite_from_grid(round_part + max(share, 0.0) ** 2 * rest, half)


def _round(grid: Array, weights: Array) -> Array:
    """Return the mean of the grid along circles around its middle."""
    middle = (len(grid) - 1) / 2
    points = np.arange(len(grid)) - middle
    radius = np.hypot(points, points[:, None])
    low = radius.astype(int)
    share = radius - low
    length = int(radius.max()) + 2
    # Least squares of a piecewise linear profile would be exact; weighted means are close.
    index = np.concatenate((low.ravel(), low.ravel() + 1))
    weight = np.concatenate(((weights * (1 - share)).ravel(), (weights * share).ravel()))
    values = np.tile(grid.ravel(), 2)
    total = np.bincount(index, weight, length)
    profile = np.bincount(index, weight * values, length) / np.maximum(total, 1e-300)
    profile[total <= 1e-9 * total.max()] = 0.0
    return (1 - share) * profile[low] + share * profile[low + 1]


def _centred(grid: Array) -> Array:
    """Return the grid shifted so that its centre of mass is in the middle.

    Values below a tenth of the largest do not count: their lever is long and they are noise.
    """
    weights = np.where(grid > 0.1 * grid.max(), grid, 0.0)
    middle = (len(grid) - 1) / 2
    points = np.arange(len(grid)) - middle
    y, x = (weights.sum(1) @ points / weights.sum(), weights.sum(0) @ points / weights.sum())
    shifted: Array = ndimage.shift(grid, (-y, -x), order=3)
    return shifted
