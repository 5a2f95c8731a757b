"""Foreground extraction: background, threshold, moving pixels, and the blobs that they form."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from scipy import ndimage

from motes.core.axes import Bool, Float, Int, UInt, UInt8
from motes.core.errors import InputError

BackgroundKind = Literal["median", "black", "white"]

SAMPLE_BYTES = 256 * 2**20  # of the sampled frames of a video
MIN_SAMPLE, MAX_SAMPLE = 9, 101  # frames in a sample, whatever their size
BINS = 512
HUE_TOLERANCE = 25.0  # degrees
MAX_GREY_SATURATION, MIN_HUE_SATURATION = 0.3, 0.2
MIN_LEVEL = 64  # of 255; a quarter of the pixel is covered
MIN_MASS_FRACTION = 0.25  # of the median mass: smaller blobs are not counted


@dataclass(frozen=True, eq=False)
class Foreground:
    """The rule that classifies a pixel as foreground.

    Attributes:
        background: the scene without moving objects.
        threshold: smallest difference from it in any channel, as a fraction of the full scale.
        colour: "grey" or "#rrggbb", a further condition on the pixel; None accepts any colour.
    """

    background: UInt[np.ndarray, "height width channels"]
    threshold: float
    colour: str | None = None

    def mask(
        self, picture: UInt[np.ndarray, "height width channels"]
    ) -> Bool[np.ndarray, "height width"]:
        """Return which pixels of a frame are foreground."""
        # At least half a level: thresholds lie between levels, and zero difference never counts.
        least = max(self.threshold * np.iinfo(picture.dtype).max, 0.5)
        mask: Bool[np.ndarray, "height width"] = difference(picture, self.background) > least
        if self.colour is not None:
            mask[mask] = has_colour(picture[mask], self.colour)
        return mask


def sample_frames(
    pictures: Iterable[UInt[np.ndarray, "height width channels"]],
) -> UInt[np.ndarray, "sample height width channels"]:
    """Return a uniform random sample of a stream of unknown length (reservoir sampling).

    The sample size depends on the frame size alone, so the memory used does not grow with the
    length of the video.

    Law: holds at most SAMPLE_BYTES, or MIN_SAMPLE frames (test_a_sample_is_bounded_and_fair).
    """
    random = np.random.default_rng(0)
    sample: list[UInt[np.ndarray, "height width channels"]] = []
    for count, picture in enumerate(pictures):
        capacity = min(max(SAMPLE_BYTES // picture.nbytes, MIN_SAMPLE), MAX_SAMPLE)
        if count < capacity:
            sample.append(picture.copy())
        elif (index := int(random.integers(count + 1))) < capacity:
            sample[index] = picture.copy()
    if not sample:
        raise InputError("the video holds no frames there; expected at least one; check the times")
    return np.stack(sample)


def find_background(
    sample: UInt[np.ndarray, "sample height width channels"], kind: BackgroundKind
) -> UInt[np.ndarray, "height width channels"]:
    """Return the median of the sampled frames, or a black or white image."""
    if kind == "median":  # row by row: the median of the whole array would copy it
        rows = [np.median(sample[:, row], axis=0) for row in range(sample.shape[1])]
        return np.stack(rows).astype(sample.dtype)
    return np.full_like(sample[0], 0 if kind == "black" else np.iinfo(sample.dtype).max)


def difference(
    picture: UInt[np.ndarray, "height width channels"],
    background: UInt[np.ndarray, "height width channels"],
) -> UInt[np.ndarray, "height width"]:
    """Return the largest absolute difference over the channels of each pixel, in levels."""
    apart = np.maximum(picture, background) - np.minimum(picture, background)
    # Channel by channel: numpy's maximum over so short an axis is many times slower.
    largest: UInt[np.ndarray, "height width"] = reduce(np.maximum, np.moveaxis(apart, -1, 0))
    return largest


def automatic_threshold(
    sample: UInt[np.ndarray, "sample height width channels"],
    background: UInt[np.ndarray, "height width channels"],
) -> float:
    """Return half the contrast of moving pixels, as a fraction of the full scale.

    Moving pixels are above Otsu's threshold of all differences that exceed the noise; noise is
    left out because objects of one pixel in ten thousand would not weigh against it. Half of the
    median contrast is where the blurred border of an object belongs. [Choice 19]

    Law: lies between noise and objects (test_the_threshold_parts_noise_from_small_objects).
    """
    full = float(np.iinfo(sample.dtype).max)
    top = max(int(difference(picture, background).max()) for picture in sample)
    edges = np.linspace(0, top + 1, min(BINS, top + 1) + 1)
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    for picture in sample:
        counts += np.histogram(difference(picture, background), edges)[0]
    centres = (edges[1:] + edges[:-1]) / 2
    floor = max(4 * noise_level(counts, edges), full / 100)
    above = centres > floor
    if not counts[above].any():
        raise InputError(
            "nothing moves in the video: no pixel differs from the background by more than "
            f"{floor / full:.3f} of the full scale; expected moving objects; give --threshold"
        )
    moving = centres > otsu(counts[above], centres[above])
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


def otsu(counts: Int[np.ndarray, " bins"], values: Float[np.ndarray, " bins"]) -> float:
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
    if pixels.shape[1] != 3:
        raise InputError(f"colour is {colour!r}, but the video is grey; leave it out")
    saturation, hue = _saturation_and_hue(pixels.astype(np.float32))
    match: Bool[np.ndarray, " M"]
    if colour == "grey":
        match = saturation < MAX_GREY_SATURATION
        return match
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


def dilate(mask: Bool[np.ndarray, "rows columns"], by: int) -> Bool[np.ndarray, "rows columns"]:
    """Return the mask with every pixel spread to a square of 2 by + 1 pixels.

    Law: keeps the centroid of a lone object (test_dilation_keeps_centroids); equals a loop over
    pixels (test_dilation_equals_the_naive_loop).
    """
    levels = mask.view(np.uint8)
    for axis in (0, 1) if by else ():
        levels = ndimage.maximum_filter1d(levels, 2 * by + 1, axis, mode="constant")
    return levels.view(np.bool_)


def blob_masses(frame: UInt8[np.ndarray, "height width"]) -> list[float]:
    """Return the mass of every 8-connected blob of pixels of at least MIN_LEVEL, in whole pixels.

    Law: equals a flood fill by hand (test_blobs_equal_a_flood_fill).
    """
    labels, count = ndimage.label(frame >= MIN_LEVEL, np.ones((3, 3)))
    masses: list[float] = (np.bincount(labels.ravel(), frame.ravel(), count + 1)[1:] / 255).tolist()
    return masses


def typical_count(masses: list[list[float]]) -> int:
    """Return the most frequent number of objects in the frames of a clip.

    Small blobs do not count. Objects that touch form one blob and an occluded one forms none, so
    ties go to the larger number. [Choice 20]

    Args:
        masses: of the blobs in every frame.
    """
    every: Float[np.ndarray, " M"] = np.array([mass for frame in masses for mass in frame])
    if not len(every):
        return 0
    least = MIN_MASS_FRACTION * float(np.median(every))
    counts = Counter(sum(mass >= least for mass in frame) for frame in masses)
    return max(counts, key=lambda count: (counts[count], count))
