"""Coordinates: between the pixels and seconds of a recording and the frames of a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import sparse

from motes.core.axes import Bool, Float, Int, Tensor, UInt8
from motes.core.errors import require
from motes.video.units import Units


class Box(NamedTuple):
    """A rectangle from (left, top) inclusive to (right, bottom) exclusive, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Geometry:
    """How a crop of a recording becomes a prepared frame.

    The crop is shrunk by nearly the same factor along both axes and centred; the margins are
    black.
    """

    box: Box  # the crop, in recording pixels
    height: int  # of a prepared frame
    width: int

    @property
    def inner(self) -> tuple[int, int]:
        """Width and height of the crop in the prepared frame, in whole pixels."""
        across, down = self.box.right - self.box.left, self.box.bottom - self.box.top
        factor = min(self.width / across, self.height / down)
        return max(round(across * factor), 1), max(round(down * factor), 1)

    @property
    def margin(self) -> tuple[int, int]:
        """Black columns to the left of the crop and black rows above it."""
        return (self.width - self.inner[0]) // 2, (self.height - self.inner[1]) // 2

    @property
    def scale(self) -> tuple[float, float]:
        """Recording pixels per prepared pixel, along x and y."""
        across, down = self.box.right - self.box.left, self.box.bottom - self.box.top
        return across / self.inner[0], down / self.inner[1]

    @property
    def offset(self) -> tuple[float, float]:
        """Recording coordinates (x, y) of the centre of the first prepared pixel."""
        (sx, sy), (mx, my) = self.scale, self.margin
        return self.box.left + (0.5 - mx) * sx - 0.5, self.box.top + (0.5 - my) * sy - 0.5

    def shrink(self, mask: Bool[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "height width"]:
        """Return a prepared frame: how much of each pixel the mask covers, 0 to 255.

        Law: `VideoMap` maps a disk's centroid back (test_a_centroid_survives_the_journey).
        """
        (left, top), (across, down) = self.margin, self.inner
        # Sparse: a pixel has few weights, and the threads of a dense product wait for each other.
        narrow = area_weights(mask.shape[0], down) @ mask.astype(np.float32)
        covered = (area_weights(mask.shape[1], across) @ narrow.T).T
        frame = np.zeros((self.height, self.width), dtype=np.uint8)
        frame[top : top + down, left : left + across] = (255 * covered).round()
        return frame


@cache
def area_weights(before: int, after: int) -> sparse.csr_array:
    """Return the weights of area averaging along one axis, [after, before]."""
    edges = np.linspace(0, before, after + 1)
    start, pixel = edges[:-1, None], np.arange(before)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(start, pixel)
    return sparse.csr_array((overlap.clip(0) * (after / before)).astype(np.float32))


def fit_box(box: Box | None, width: int, height: int) -> Box:
    """Return the crop, or the whole frame for None; raise `InputError` if it is not inside."""
    if box is None:
        return Box(0, 0, width, height)
    require(
        0 <= box.left < box.right <= width and 0 <= box.top < box.bottom <= height,
        f"crop is {' '.join(map(str, box))}; the video is {width}x{height} pixels: give left, top, "
        "right, bottom inside it",
    )
    return box


Polygon = tuple[tuple[float, float], ...]  # corners (x, y) in recording pixels


def parse_polygon(text: str) -> Polygon:
    """Return the polygon of a text like "10,20 200,20 100,150"."""
    try:
        corners = tuple(tuple(float(part) for part in corner.split(",")) for corner in text.split())
        polygon = tuple((x, y) for x, y in corners)
    except ValueError:
        polygon = ()
    require(
        len(polygon) >= 3 and np.isfinite(polygon).all(),
        f"got the polygon {text!r:.80}; expected three or more corners x,y, as in "
        "'10,20 200,20 100,150', in pixels of the video",
    )
    return polygon


def polygon_region(
    box: Box, keep: Sequence[Polygon], leave_out: Sequence[Polygon]
) -> Bool[np.ndarray, "rows columns"] | None:
    """Return which pixel centres of a box lie in a polygon to keep and in none to leave out.

    None without polygons. Inside is decided by the even-odd rule.

    Law: equals matplotlib's test of points (test_polygons_hold_the_points_of_matplotlib).
    """
    if not keep and not leave_out:
        return None
    x, y = np.arange(box.left, box.right), np.arange(box.top, box.bottom)[:, None]

    def within(polygons: Sequence[Polygon]) -> Bool[np.ndarray, "rows columns"]:
        found = np.zeros((y.size, x.size), dtype=bool)
        for polygon in polygons:
            odd = np.zeros_like(found)
            for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
                if y0 != y1:
                    crosses = (y0 > y) != (y1 > y)
                    odd ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
            found |= odd
        return found

    region = ~within(leave_out) & (within(keep) if keep else True)
    require(region.any(), "the regions leave no pixel of the crop; expected some; change them")
    return region


def frame_size(box: Box, longest: int) -> tuple[int, int]:
    """Return height and width of a frame with the aspect ratio of the box and this longer side."""
    across, down = box.right - box.left, box.bottom - box.top
    factor = longest / max(across, down)
    return max(round(down * factor), 1), max(round(across * factor), 1)


@dataclass(frozen=True, eq=False)
class VideoMap:
    """The map from prepared pixels and frames to the pixels and seconds of the recording.

    Positions, velocities and covariances of answers leave the package through this object, in
    recording units; `units` leads on to lengths.
    """

    # Recording pixels per prepared pixel, along x and y; one row a clip if recordings differ.
    scale: Float[np.ndarray, "*B 2"]
    # Recording (x, y) of the centre of the first prepared pixel; one row a clip if they differ.
    offset: Float[np.ndarray, "*B 2"]
    times: Float[np.ndarray, "B T"]  # seconds
    numbers: Int[np.ndarray, "B T"]  # of the frame in the recording
    # Recording pixels by which the camera displaces each frame; None: a camera at rest. Velocities
    # are those against the scene.
    shifts: Float[np.ndarray, "B T 2"] | None = None
    recordings: tuple[str, ...] | None = None  # name of each clip's recording, if there are several
    units: Units | None = None  # from recording pixels to lengths

    @property
    def fps(self) -> float:
        """Frames per second of the clips.

        The time between frames of the recording, times the mean step between those that were used.

        Law: resampled clips have the rate that was asked for
        (test_the_rate_of_resampled_clips_is_the_one_that_was_asked_for).
        """
        apart, steps = np.diff(self.times, axis=1), np.diff(self.numbers, axis=1)
        moved = steps > 0
        if not moved.any():
            return float(1 / np.median(apart))
        return float(1 / (np.median(apart[moved] / steps[moved]) * steps.mean()))

    def points(self, pixels: Tensor) -> Tensor:
        """Return positions [..., 2] in recording pixels; [B, N, T, 2] if the camera moves.

        Law: the shifts of a camera are those of the frames (test_shifts_are_added_frame_by_frame).
        """
        points = self.scene_points(pixels)
        if self.shifts is None:
            return points
        return points + pixels.new_tensor(self.extended(pixels.shape[-2]).shifts)[:, None]

    def scene_points(self, pixels: Tensor) -> Tensor:
        """Return positions [..., 2] in recording pixels, the motion of the camera taken out."""
        return pixels * self._of_clips(pixels, self.scale) + self._of_clips(pixels, self.offset)

    def covariances(self, pixels: Tensor) -> Tensor:
        """Return position covariances [..., 2, 2] in squared recording pixels."""
        scale = self._of_clips(pixels, self.scale)
        return pixels * scale[..., :, None] * scale[..., None, :]

    def velocities(self, pixels: Tensor) -> Tensor:
        """Return velocities [..., 2], given in prepared pixels a frame, in recording pixels/s."""
        return pixels * self._of_clips(pixels, self.scale * self.fps)

    @staticmethod
    def _of_clips(like: Tensor, values: Float[np.ndarray, "*B 2"]) -> Tensor:
        """Return values so that they multiply [B, N, T, 2]."""
        found = like.new_tensor(values)
        return found if found.ndim == 1 else found[:, None, None]

    def extended(self, num_frames: int) -> "VideoMap":
        """Return the map of longer clips, with times and numbers continued at the same rate."""
        more = np.arange(1, num_frames - self.times.shape[1] + 1)
        shifts = self.shifts
        if shifts is not None:
            shifts = np.concatenate([shifts, shifts[:, -1:].repeat(len(more), 1)], 1)
        step = max(round(float(np.median(np.diff(self.numbers, axis=1)))), 1)
        return replace(
            self,
            times=np.concatenate([self.times, self.times[:, -1:] + more / self.fps], 1),
            numbers=np.concatenate([self.numbers, self.numbers[:, -1:] + more * step], 1),
            shifts=shifts,
        )
