"""From a video's pixels and seconds to a model's frames, and back."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from motes.core.axes import Bool, Float, Int, Tensor, UInt8
from motes.core.errors import InputError


class Box(NamedTuple):
    """A part of a picture: from (left, top) to just before (right, bottom), in pixels."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Geometry:
    """Which part of the pictures becomes a frame, and where in the frame it lies.

    The part is shrunk by nearly the same factor along both axes and centred; what is left over at
    the sides stays black.

    Attributes:
        box: the part of a picture.
        height: of a frame.
        width: of a frame.
    """

    box: Box
    height: int
    width: int

    @property
    def inner(self) -> tuple[int, int]:
        """Width and height that the part has in the frame, in whole pixels."""
        across, down = self.box.right - self.box.left, self.box.bottom - self.box.top
        factor = min(self.width / across, self.height / down)
        return max(round(across * factor), 1), max(round(down * factor), 1)

    @property
    def margin(self) -> tuple[int, int]:
        """Black columns at the left of the part and black rows above it."""
        return (self.width - self.inner[0]) // 2, (self.height - self.inner[1]) // 2

    @property
    def scale(self) -> tuple[float, float]:
        """Video pixels in a frame pixel, along x and y."""
        across, down = self.box.right - self.box.left, self.box.bottom - self.box.top
        return across / self.inner[0], down / self.inner[1]

    @property
    def offset(self) -> tuple[float, float]:
        """Where in the video the centre of the frame's first pixel is."""
        (sx, sy), (mx, my) = self.scale, self.margin
        return self.box.left + (0.5 - mx) * sx - 0.5, self.box.top + (0.5 - my) * sy - 0.5

    def shrink(self, mask: Bool[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "height width"]:
        """The mask of the box as a frame: how much of each pixel is covered, 0 to 255.

        Law: a disk's centroid comes back through the map (test_a_centroid_survives_the_journey).
        """
        (left, top), (across, down) = self.margin, self.inner
        rows, columns = shares(mask.shape[0], down), shares(mask.shape[1], across)
        frame = np.zeros((self.height, self.width), dtype=np.uint8)
        covered = rows @ mask.astype(np.float32) @ columns.T
        frame[top : top + down, left : left + across] = (255 * covered).round()
        return frame


@cache
def shares(before: int, after: int) -> Float[np.ndarray, "after before"]:
    """What share each of the pixels before has in each of the pixels after, along one axis."""
    edges = np.linspace(0, before, after + 1)
    start, pixel = edges[:-1, None], np.arange(before)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(start, pixel)
    return (overlap.clip(0) * (after / before)).astype(np.float32)


def fit_box(box: Box | None, width: int, height: int) -> Box:
    """The part of a picture that was asked for, once it lies inside; all of it for None."""
    if box is None:
        return Box(0, 0, width, height)
    if not (0 <= box.left < box.right <= width and 0 <= box.top < box.bottom <= height):
        raise InputError(
            f"crop is {' '.join(map(str, box))}; the video is {width}x{height} pixels: give left, "
            "top, right, bottom inside it"
        )
    return box


def frame_size(box: Box, longest: int) -> tuple[int, int]:
    """Height and width of a frame in the shape of the box, by its longer side."""
    across, down = box.right - box.left, box.bottom - box.top
    factor = longest / max(across, down)
    return max(round(down * factor), 1), max(round(across * factor), 1)


@dataclass(frozen=True, eq=False)
class VideoMap:
    """Where and when the frames of clips are in the video that they were cut from.

    Attributes:
        scale: video pixels in a frame pixel, along x and y.
        offset: where in the video the centre of a frame's first pixel is, (x, y).
        times: seconds of every frame of every clip.
        numbers: the same counted in pictures of the video.
    """

    scale: Float[np.ndarray, "2"]
    offset: Float[np.ndarray, "2"]
    times: Float[np.ndarray, "B T"]
    numbers: Int[np.ndarray, "B T"]

    @property
    def fps(self) -> float:
        """Frames a second."""
        return float(1 / np.median(np.diff(self.times, axis=1)))

    def points(self, pixels: Tensor) -> Tensor:
        """Positions [..., 2] in video pixels."""
        return pixels * pixels.new_tensor(self.scale) + pixels.new_tensor(self.offset)

    def covariances(self, pixels: Tensor) -> Tensor:
        """Covariances [..., 2, 2] in square video pixels."""
        scale = pixels.new_tensor(self.scale)
        return pixels * scale[:, None] * scale

    def velocities(self, pixels: Tensor) -> Tensor:
        """Velocities [..., 2], given in pixels a frame, in video pixels a second."""
        return pixels * pixels.new_tensor(self.scale * self.fps)

    def extended(self, num_frames: int) -> "VideoMap":
        """The map of longer clips: the clock and the count go on as they went."""
        more = np.arange(1, num_frames - self.times.shape[1] + 1)
        step = max(round(float(np.median(np.diff(self.numbers, axis=1)))), 1)
        return VideoMap(
            self.scale,
            self.offset,
            np.concatenate([self.times, self.times[:, -1:] + more / self.fps], 1),
            np.concatenate([self.numbers, self.numbers[:, -1:] + more * step], 1),
        )
