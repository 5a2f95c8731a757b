"""The interface of a video source: an iterator over timed frames of one size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from motes.core.axes import Float, UInt, UInt8
from motes.core.errors import InputError

MAX_SIDE = 8192  # pixels; larger frames are rejected before they are decoded


class Frame(NamedTuple):
    """One frame of a video with one (grey) or three (red, green, blue) channels of 8 or 16 bits."""

    time: float  # seconds from the first frame, never decreasing
    picture: UInt[np.ndarray, "height width channels"]


@dataclass(frozen=True)
class Video:
    """A video that is decoded frame by frame and never held in memory.

    A source is a function that returns a `Video`; `motes.video.readers` lists those that read
    files. A source checks the size of its frames (`require_size`) and raises `InputError` for
    input that it cannot decode.

    Attributes:
        name: name of the file or folder, without its parent folders; used in messages.
        height: of a frame in pixels; every frame has the same size.
        width: of a frame in pixels.
        num_frames: expected number of frames; None where only reading determines it.
        fps: frames per second; None without a clock, in which case a frame counts as one second.
        frames: starts a pass over the frames, from the first one.
        rereadable: whether `frames` may be called again. A live source (a camera, a pipe) sets
            False: it is read once, so it cannot be prepared with an estimated background and its
            frames cannot be drawn on afterwards.
    """

    name: str
    height: int
    width: int
    num_frames: int | None
    fps: float | None
    frames: Callable[[], Iterator[Frame]]
    rereadable: bool = True


def require_rereadable(video: Video, purpose: str) -> None:
    """Raise `InputError` if a one-pass source is used where several passes are needed."""
    if not video.rereadable:
        raise InputError(
            f"{video.name} can be read only once, and {purpose} needs several passes; record it "
            "to a file first"
        )


def require_size(path: object, width: int, height: int) -> None:
    """Raise `InputError` unless both sides of a frame are between 1 and MAX_SIDE."""
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise InputError(
            f"got {path} with frames of {width}x{height} pixels; expected sides of 1 to "
            f"{MAX_SIDE}; make it smaller"
        )


def grey(picture: UInt[np.ndarray, "height width channels"]) -> Float[np.ndarray, "height width"]:
    """Return the luma (ITU-R 601) of a frame as float32 in [0, 1]."""
    levels = picture[..., 0] if picture.shape[2] == 1 else luma(picture)
    return levels / np.float32(np.iinfo(picture.dtype).max)


def luma(picture: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "height width"]:
    """Return the luma of a colour frame in whole levels, exact where the three channels agree."""
    weights = np.array((19595, 38470, 7471), dtype=np.uint32)  # of 2^16
    levels: UInt8[np.ndarray, "height width"] = ((picture @ weights + 2**15) >> 16).astype(np.uint8)
    return levels


def to_rgb(picture: UInt[np.ndarray, "height width channels"]) -> UInt8[np.ndarray, "h w 3"]:
    """Return a grey or colour frame of 8 or 16 bits as an 8-bit RGB image."""
    levels = (picture >> 8).astype(np.uint8) if picture.dtype == np.uint16 else picture
    return np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else levels
