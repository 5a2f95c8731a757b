"""Foreground of a video: background, threshold, colours, masks and blobs."""

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from scipy import ndimage

from motes.core.axes import Bool, Float, Int, UInt, UInt8
from motes.core.errors import InputError, require
from motes.video.source import Picture

MIN_MASS = 4  # pixels; smaller blobs are noise
BackgroundKind = Literal["median", "black", "white"]
Pictures = UInt[np.ndarray, "sample height width channels"]
Mask = Bool[np.ndarray, "rows columns"]
BINS = 512
HUE_TOLERANCE = 25.0  # degrees
MAX_GREY_SATURATION, MIN_HUE_SATURATION = 0.3, 0.2
MIN_LEVEL = 64  # of 255; a quarter of the pixel is covered
MIN_MASS_FRACTION = 0.25  # of the median mass: smaller blobs are not counted


@dataclass(frozen=True, eq=False)
class Foreground:
    """The rule that classifies a pixel as foreground."""

    background: Picture  # the scene without moving objects
    threshold: float  # smallest difference from it in any channel, as a fraction of the full scale
    colour: str | None = None  # "grey" or "#rrggbb", a further condition on the pixel
    region: Mask | None = None  # where foreground can be; None: everywhere

    def mask(self, picture: Picture) -> Mask:
        """Return which pixels of a frame are foreground."""
        # At least half a level: thresholds lie between levels, and zero difference never counts.
        least = max(self.threshold * np.iinfo(picture.dtype).max, 0.5)
        mask: Mask = background_difference(picture, self.background) > least
        if self.colour is not None:
            mask[mask] = has_colour(picture[mask], self.colour)
        return mask if self.region is None else mask & self.region


def find_background(sample: Pictures, kind: BackgroundKind) -> Picture:
    """Return the median of the sampled frames, or a black or white image."""
    if kind == "median":  # row by row: the median of the whole array would copy it
        rows = [np.median(sample[:, row], axis=0) for row in range(sample.shape[1])]
        return np.stack(rows).astype(sample.dtype)
    return np.full_like(sample[0], 0 if kind == "black" else np.iinfo(sample.dtype).max)


def background_difference(
    picture: Picture,
    background: Picture,
) -> UInt[np.ndarray, "height width"]:
    """Return the largest absolute difference over the channels of each pixel, in levels."""
    apart = np.maximum(picture, background) - np.minimum(picture, background)
    # Channel by channel: numpy's maximum over so short an axis is many times slower.
    largest: UInt[np.ndarray, "height width"] = reduce(np.maximum, np.moveaxis(apart, -1, 0))
    return largest


def automatic_threshold(
    sample: Pictures,
    background: Picture,
) -> float:
    """Return half the contrast of moving pixels, as a fraction of the full scale.

    Moving pixels are above Otsu's threshold of all differences that exceed the noise; noise is
    left out because objects of one pixel in ten thousand would not weigh against it. Half of the
    median contrast is where the blurred border of an object belongs. [Choice 19]

    Law: lies between noise and objects (test_the_threshold_parts_noise_from_small_objects).
    """
    full = float(np.iinfo(sample.dtype).max)
    top = max(int(background_difference(picture, background).max()) for picture in sample)
    edges = np.linspace(0, top + 1, min(BINS, top + 1) + 1)
    levels = np.zeros(top + 1, dtype=np.int64)
    for picture in sample:
        levels += np.bincount(background_difference(picture, background).ravel(), minlength=top + 1)
    counts = np.histogram(np.arange(top + 1), edges, weights=levels)[0].astype(np.int64)
    centres = (edges[1:] + edges[:-1]) / 2
    floor = max(4 * noise_level(counts, edges), full / 100)
    above = centres > floor
    require(
        counts[above].any() or floor < full / 4,
        "a quarter of the picture or more changes all the time: the camera moves, or objects fill "
        "the picture; expected small objects; choose a --crop or give --threshold",
    )
    require(
        counts[above].any(),
        "nothing moves in the video: no pixel differs from the background by more than "
        f"{floor / full:.3f} of the full scale; expected moving objects; give --threshold",
    )
    moving = centres > otsu_threshold(counts[above], centres[above])
    share = counts[moving].cumsum() / counts[moving].sum()
    contrast = float(centres[moving][np.searchsorted(share, 0.5)])
    return max(contrast / 2, floor) / full


def noise_level(counts: Int[np.ndarray, " bins"], edges: Float[np.ndarray, " edges"]) -> float:
    """Return the standard deviation of noise whose absolute values have this histogram.

    Estimated by the upper quartile (1.15 standard deviations), so up to a quarter of the pixels
    may be foreground.
    """
    share = np.concatenate([[0], counts.cumsum()]) / counts.sum()
    return float(np.interp(0.75, share, edges)) / 1.15


def otsu_threshold(counts: Int[np.ndarray, " bins"], values: Float[np.ndarray, " bins"]) -> float:
    """Return Otsu's threshold of a histogram, or half its value if only one bin is filled.

    Law: maximises the variance between the groups (test_otsu_equals_the_search_by_hand).
    """
    filled = counts > 0
    counts, values = counts[filled].astype(np.float64), values[filled]
    if len(values) == 1:
        return float(values[0]) / 2
    below, total = counts.cumsum()[:-1], counts.sum()
    mean_below = (counts * values).cumsum()[:-1] / below
    mean_above = ((counts * values).sum() - (counts * values).cumsum()[:-1]) / (total - below)
    best = int((below * (total - below) * (mean_above - mean_below) ** 2).argmax())
    return float(values[best] + values[best + 1]) / 2


def has_colour(pixels: UInt[np.ndarray, "M channels"], colour: str) -> Bool[np.ndarray, " M"]:
    """Return which pixels are grey, or have the hue of "#rrggbb"."""
    require(pixels.shape[1] == 3, f"colour is {colour!r}, but the video is grey; leave it out")
    saturation, hue = _saturation_and_hue(pixels.astype(np.float32))
    if colour == "grey":
        match: Bool[np.ndarray, " M"] = saturation < MAX_GREY_SATURATION
    else:
        wanted = _saturation_and_hue(np.array([parse_colour(colour)], dtype=np.float32))[1]
        apart = np.abs((hue - wanted + 180) % 360 - 180)
        match = (saturation > MIN_HUE_SATURATION) & (apart < HUE_TOLERANCE)
    return match


def parse_colour(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb"."""
    try:
        red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    except ValueError:
        raise InputError(f"colour is {colour!r}; give grey, or a hue like '#ff8800'") from None
    return red, green, blue


def _saturation_and_hue(
    pixels: Float[np.ndarray, "M 3"],
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Return saturations in [0, 1] and hues in degrees."""
    red, green, blue = pixels.T
    span = pixels.max(1) - pixels.min(1)
    angle = np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)
    return span / pixels.max(1).clip(1), np.degrees(angle)


def dilate(mask: Mask, by: int) -> Mask:
    """Return the mask with every pixel spread to a square of 2 by + 1 pixels.

    Law: keeps the centroid of a lone object (test_dilation_keeps_centroids); equals a loop over
    pixels (test_dilation_equals_the_naive_loop).
    """
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if by == 0 or not len(rows):
        return mask
    # Outside of this box there is nothing.
    top, left = max(rows[0] - by, 0), max(columns[0] - by, 0)
    box = np.s_[top : rows[-1] + by + 1, left : columns[-1] + by + 1]
    grown = np.zeros_like(mask)
    grown[box] = _dilate_rows(_dilate_rows(mask[box], by).T, by).T
    return grown


def _dilate_rows(mask: Mask, by: int) -> Mask:
    """Return the mask with every pixel spread to 2 by + 1 pixels of its column.

    The spread doubles with every step: y[i] = x[i] or ... or x[i + span - 1].
    """
    padded = np.pad(mask, ((by, by), (0, 0)))
    span, wanted = 1, 2 * by + 1
    while span < wanted:
        step = min(span, wanted - span)
        padded = padded[:-step] | padded[step:]
        span += step
    return padded


def blob_masses(frame: UInt8[np.ndarray, "height width"]) -> list[float]:
    """Return the mass of every 8-connected blob of pixels of at least MIN_LEVEL, in whole pixels.

    Law: equals a flood fill by hand (test_blobs_equal_a_flood_fill).
    """
    labels, count = ndimage.label(frame >= MIN_LEVEL, np.ones((3, 3)))
    masses: list[float] = (np.bincount(labels.ravel(), frame.ravel(), count + 1)[1:] / 255).tolist()
    return masses


def typical_count(masses: list[list[float]]) -> int:
    """Return the most frequent number of objects, given the masses of the blobs in every frame.

    Small blobs do not count. Objects that touch form one blob and an occluded one forms none, so
    ties go to the larger number. [Choice 20]
    """
    counts = Counter(object_counts(masses))
    return max(counts, key=lambda count: (counts[count], count)) if any(masses) else 0


def object_counts(masses: list[list[float]]) -> list[int]:
    """Return the number of blobs in every frame that are not small."""
    every = [mass for frame in masses for mass in frame]
    least = MIN_MASS_FRACTION * float(np.median(every)) if every else 0.0
    return [sum(mass >= least for mass in frame) for frame in masses]
