"""Backgrounds of a recording: still with parts that change on their own, or a smooth surface."""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from motes.tracking.classes import robust_scale
from motes.tracking.sprite import Array

STRONG = 6.0  # standard deviations of a pixel that is no background
NOISE_FLOOR = 1 / 255  # a grey level of 8 bits
UNEVEN_FLOOR = 2 / 255  # the same where compression makes some pixels change more than others
WOBBLE_SHARE, WOBBLE = 0.75, 1.5  # quantile of a pixel's changes over time, and a factor
LARGE_WOBBLE, MOST_LARGE = 12 / 255, 0.01  # a change for compression, and share of such pixels
MIN_UNEVEN = 0.03  # of the pixels that change more than noise does
AT_REST = 0.1  # of the pixels of a caption that may change from frame to frame
DIAMETER_FRAMES = 10  # in which the sizes of things are measured
MIN_FRAMES = 5  # for a still background


@dataclass(frozen=True, eq=False)
class Scene:
    """Frames of a recording and what is known of the pixels behind its objects.

    Attributes:
        frames: [S, height, width], without those that differ from the others as a whole.
        tolerance: changes of a pixel up to this are of the background, infinite where captions,
            clocks or lamps change; None where pixels change by white noise only, [height, width].
        fullest: frames in the order of how much they differ from the background; None for white
            noise.
        middle: median of the frames, [height, width].
    """

    frames: Array
    tolerance: Array | None
    fullest: Array | None
    middle: Array


def look(frames: Array, following: Array | None = None) -> Scene:
    """Return what changes in frames spread over a recording.

    Args:
        frames: [S, height, width].
        following: the frame after each of them; with these, parts of the scene that change
            without moving (a clock, a caption) become background.
    """
    background = np.median(frames, 0).astype(np.float32)
    if len(frames) < MIN_FRAMES:
        return Scene(frames, None, None, background)
    tolerance = pixel_tolerance(frames, background)
    if tolerance is None:
        return Scene(frames, None, None, background)
    if following is not None:
        tolerance = _with_captions(tolerance, frames, following, background)
    areas, kept = _ordinary(frames, background, tolerance)
    fullest = np.argsort(-areas[kept], kind="stable")
    return Scene(frames[kept], tolerance, fullest, background)


def object_diameter(scene: Scene) -> float:
    """Return the diameter in pixels of the things that make up most of what changes; 0 for none.

    Law: doubling the frames doubles it (test_the_diameter_of_things_grows_with_the_frames).
    """
    areas: list[Array] = [np.zeros(0)]
    weights: list[Array] = [np.zeros(0)]
    for frame in scene.frames[:: max(1, len(scene.frames) // DIAMETER_FRAMES)]:
        change = beyond(frame - scene.middle, scene.tolerance)
        floor = NOISE_FLOOR if scene.tolerance is None else UNEVEN_FLOOR
        strong = np.abs(change) > STRONG * max(robust_scale(change), floor)
        labels, count = ndimage.label(strong, np.ones((3, 3)))
        areas.append(np.bincount(labels.ravel(), minlength=count + 1)[1:])
        weights.append(np.bincount(labels.ravel(), np.square(change).ravel(), count + 1)[1:])
    area, weight = np.concatenate(areas), np.concatenate(weights)
    if len(area) == 0:
        return 0.0
    order = np.argsort(area)
    middle = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2).clip(0, len(area) - 1)
    return float(np.sqrt(4 / np.pi * area[order[middle]]))


def pixel_tolerance(frames: Array, background: Array) -> Array | None:
    """Return by how much pixels of a still background change without an object; None for noise.

    Compression makes edges of the scene change much more than flat parts, where there is next to
    no noise. Objects cover a pixel in less than a quarter of the frames.
    """
    change = np.abs(frames - background)
    noise = max(robust_scale(change), NOISE_FLOOR)
    if noise > NOISE_FLOOR:  # flat parts are noisy: changes of other parts may be objects
        return None
    change.partition(int(WOBBLE_SHARE * (len(frames) - 1)), 0)
    bound = WOBBLE * change[int(WOBBLE_SHARE * (len(frames) - 1))]
    uneven = bound > 3 * noise
    if uneven.mean() < MIN_UNEVEN or (bound > LARGE_WOBBLE).mean() > MOST_LARGE:
        return None
    tolerance: Array = ndimage.maximum_filter(np.where(uneven, bound, 0.0), 3)
    return tolerance.astype(np.float32)


def _ordinary(frames: Array, background: Array, tolerance: Array) -> tuple[Array, Array]:
    """Return how much of each frame differs from the background, and which are no cuts."""
    bound = np.maximum(tolerance, STRONG * UNEVEN_FLOOR)
    areas = np.array([(np.abs(frame - background) > bound).mean() for frame in frames])
    return areas, areas <= 4 * np.median(areas) + 1e-3


def _with_captions(tolerance: Array, frames: Array, following: Array, background: Array) -> Array:
    """Return a tolerance that is infinite where things come and go but never move.

    A connected change of the background is at rest if few of its pixels change until the next
    frame. Pixels where that is the rule, at different times, are of captions, clocks or lamps; an
    object that comes to rest does so once in a place.
    """
    noise = NOISE_FLOOR
    resting, moving, times = (np.zeros(background.shape, np.int32) for _ in range(3))
    before = np.zeros(background.shape, bool)
    for frame, after in zip(frames, following, strict=True):
        bound = np.maximum(tolerance, STRONG * noise)
        labels, count = ndimage.label(np.abs(frame - background) > bound, np.ones((3, 3)))
        changes = np.abs(frame - after) > bound
        sizes = np.bincount(labels.ravel())
        moves = np.bincount(labels.ravel(), changes.ravel(), count + 1) > AT_REST * sizes
        moves[0] = True
        now = ~moves[labels]
        resting += now
        times += now & ~before
        before = now
        moving += moves[labels] & (labels > 0)
    captions = ndimage.binary_dilation((times >= 2) & (resting > 2 * moving), iterations=2)
    whole: Array = np.where(captions, np.float32(np.inf), tolerance)
    return whole


def beyond(change: Array, tolerance: Array | None) -> Array:
    """Return changes less the tolerance, 0 within it."""
    if tolerance is None:
        return change
    rest: Array = np.maximum(np.abs(change) - tolerance, 0)
    signed: Array = np.copysign(rest, change)
    return signed


def smooth_surface(image: Array, tile: int = 16) -> Array:
    """Return a smooth surface through the medians of tiles of an image."""
    height, width = image.shape
    rows, columns = max(1, round(height / tile)), max(1, round(width / tile))
    row_edges = np.linspace(0, height, rows + 1).astype(int)
    column_edges = np.linspace(0, width, columns + 1).astype(int)
    middle = np.array(
        [
            [
                np.median(image[top:bottom, left:right])
                for left, right in itertools.pairwise(column_edges)
            ]
            for top, bottom in itertools.pairwise(row_edges)
        ]
    )
    if min(rows, columns) >= 3:
        middle = ndimage.median_filter(middle, 3, mode="nearest")
    y = (np.arange(height) + 0.5) * rows / height - 0.5
    x = (np.arange(width) + 0.5) * columns / width - 0.5
    grid = np.meshgrid(y, x, indexing="ij")
    surface = ndimage.map_coordinates(middle, grid, order=min(3, 1), mode="nearest")
    return ndimage.gaussian_filter(surface, tile / 2, mode="nearest").astype(np.float32)
