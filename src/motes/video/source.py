"""A video as the rest of the package sees it: pictures that come one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from motes.core.axes import Float, UInt, UInt8
from motes.core.errors import InputError

MAX_SIDE = 8192  # pixels; wider pictures are refused before they are decoded


class Frame(NamedTuple):
    """One picture of a video, grey (one channel) or red, green, blue."""

    time: float  # seconds from the first picture
    picture: UInt[np.ndarray, "height width channels"]


@dataclass(frozen=True)
class Video:
    """A video that is read frame by frame, as often as one likes; it holds no pictures.

    Attributes:
        name: of the file or folder, without the folders above it.
        height: of a picture in pixels.
        width: of a picture in pixels.
        num_frames: how many pictures are expected; None where only reading tells.
        fps: pictures a second; None where the file has no clock, and a picture then counts as one
            second.
        frames: starts reading from the beginning.
    """

    name: str
    height: int
    width: int
    num_frames: int | None
    fps: float | None
    frames: Callable[[], Iterator[Frame]]


def require_size(path: object, width: int, height: int) -> None:
    """Raises `InputError` unless a picture has sides between 1 and MAX_SIDE."""
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise InputError(
            f"got {path} with frames of {width}x{height} pixels; expected sides of 1 to "
            f"{MAX_SIDE}; make it smaller"
        )


def grey(picture: UInt[np.ndarray, "height width channels"]) -> Float[np.ndarray, "height width"]:
    """The luma (ITU-R 601) of a picture as float32 in [0, 1]."""
    levels = picture[..., 0] if picture.shape[2] == 1 else luma(picture)
    return levels / np.float32(np.iinfo(picture.dtype).max)


def luma(picture: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "height width"]:
    """The luma of a coloured picture in whole levels, exact where the three channels agree."""
    weights = np.array((19595, 38470, 7471), dtype=np.uint32)  # of 2^16
    levels: UInt8[np.ndarray, "height width"] = ((picture @ weights + 2**15) >> 16).astype(np.uint8)
    return levels
