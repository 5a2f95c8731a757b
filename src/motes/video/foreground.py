"""What moves in a video: the background, the difference from it, and where to cut."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from motes.core.axes import Bool, Float, Int, UInt
from motes.core.errors import InputError

BackgroundKind = Literal["median", "black", "white"]

MEMORY = 256 * 2**20  # bytes that the sampled pictures of a video may fill
FEWEST, MOST = 9, 101  # pictures in a sample, whatever their size
BINS = 512
HUE_TOLERANCE = 25.0  # degrees
GREYEST, DULLEST = 0.3, 0.2  # saturations: grey is below the first, a hue needs the second


@dataclass(frozen=True, eq=False)
class Foreground:
    """The rule by which a pixel belongs to something that moves.

    Attributes:
        background: what is there when nothing moves.
        threshold: smallest difference from it in any channel, as a share of the full scale.
        colour: "grey" or "#rrggbb": what else a pixel has to look like; None takes any colour.
    """

    background: UInt[np.ndarray, "height width channels"]
    threshold: float
    colour: str | None = None

    def mask(
        self, picture: UInt[np.ndarray, "height width channels"]
    ) -> Bool[np.ndarray, "height width"]:
        """Which pixels of a picture move."""
        # One level of a half: thresholds stand between levels, and zero difference never moves.
        least = max(self.threshold * np.iinfo(picture.dtype).max, 0.5)
        moves: Bool[np.ndarray, "height width"] = difference(picture, self.background) > least
        if self.colour is not None:
            moves[moves] = has_colour(picture[moves], self.colour)
        return moves


def sample_pictures(
    pictures: Iterable[UInt[np.ndarray, "height width channels"]],
) -> UInt[np.ndarray, "sample height width channels"]:
    """Some pictures of a stream of unknown length, each as likely as every other.

    How many depends on their size alone, so that hours of video need no more memory than minutes.

    Law: holds at most MEMORY bytes, or FEWEST pictures (test_a_sample_is_bounded_and_fair).
    """
    random = np.random.default_rng(0)
    kept: list[UInt[np.ndarray, "height width channels"]] = []
    for count, picture in enumerate(pictures):
        capacity = min(max(MEMORY // picture.nbytes, FEWEST), MOST)
        if count < capacity:
            kept.append(picture.copy())
        elif (place := int(random.integers(count + 1))) < capacity:
            kept[place] = picture.copy()
    if not kept:
        raise InputError("the video holds no frames there; expected at least one; check the times")
    return np.stack(kept)


def find_background(
    sample: UInt[np.ndarray, "sample height width channels"], kind: BackgroundKind
) -> UInt[np.ndarray, "height width channels"]:
    """The median of the pictures, or one level everywhere."""
    if kind != "median":
        level = 0 if kind == "black" else np.iinfo(sample.dtype).max
        return np.full_like(sample[0], level)
    # Row by row: the median of a whole sample would copy it.
    rows = [np.median(sample[:, row], axis=0) for row in range(sample.shape[1])]
    return np.stack(rows).astype(sample.dtype)


def difference(
    picture: UInt[np.ndarray, "height width channels"],
    background: UInt[np.ndarray, "height width channels"],
) -> UInt[np.ndarray, "height width"]:
    """The largest difference of a pixel's channels, in levels."""
    apart = np.maximum(picture, background) - np.minimum(picture, background)
    # Channel by channel: numpy's own maximum over so short an axis takes many times longer.
    largest: UInt[np.ndarray, "height width"] = reduce(np.maximum, np.moveaxis(apart, -1, 0))
    return largest


def automatic_threshold(
    sample: UInt[np.ndarray, "sample height width channels"],
    background: UInt[np.ndarray, "height width channels"],
) -> float:
    """Half the contrast of what moves, as a share of the full scale.

    What moves is above Otsu's cut of the differences that are larger than noise; the noise is left
    out because a pixel in ten thousand would not weigh against all the others. Half of the median
    contrast is where the blurred border of an object belongs. [Choice 19]

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
    """The standard deviation of noise whose absolute values have this histogram.

    By the upper quartile, which is 1.15 deviations, so that a quarter of the pixels may move.
    """
    share = np.concatenate([[0], counts.cumsum()]) / counts.sum()
    return float(np.interp(0.75, share, edges)) / 1.15


def otsu(counts: Int[np.ndarray, " bins"], values: Float[np.ndarray, " bins"]) -> float:
    """The cut that best parts a histogram into two groups; half of its value if there is but one.

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
    """Which pixels are grey, or of the hue of "#rrggbb"."""
    if pixels.shape[1] != 3:
        raise InputError(f"colour is {colour!r}, but the video is grey; leave it out")
    saturation, hue = _saturation_and_hue(pixels.astype(np.float32))
    match: Bool[np.ndarray, " M"]
    if colour == "grey":
        match = saturation < GREYEST
        return match
    wanted = _saturation_and_hue(np.array([parse_colour(colour)], dtype=np.float32))[1]
    apart = np.abs((hue - wanted + 180) % 360 - 180)
    match = (saturation > DULLEST) & (apart < HUE_TOLERANCE)
    return match


def parse_colour(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of "#rrggbb"."""
    try:
        red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    except ValueError:
        raise InputError(f"colour is {colour!r}; give grey, or a hue like '#ff8800'") from None
    return red, green, blue


def _saturation_and_hue(
    pixels: Float[np.ndarray, "M 3"],
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Saturation in [0, 1], and the angle of the colour in degrees."""
    red, green, blue = pixels.T
    span = pixels.max(1) - pixels.min(1)
    angle = np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)
    return span / pixels.max(1).clip(1), np.degrees(angle)
