"""Videos in npy and npz files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from motes.core.axes import UInt
from motes.core.errors import InputError
from motes.data import load_clips
from motes.video.source import Frame, Video, require_size


def open_array(path: Path) -> Video:
    """The video of an array file: one clip, [frames, height, width] or [1, frames, ...].

    Colour has a last axis of red, green and blue.
    """
    clips = load_clips(path)
    if len(clips) != 1:
        raise InputError(
            f"got {path} with {len(clips)} clips; expected one video [frames, height, width]; "
            "ask about the clips as they are, they need no preparation"
        )
    video = clips.frames[0].numpy()
    num_frames, height, width = video.shape[:3]
    require_size(path, width, height)

    def frames() -> Iterator[Frame]:
        for t, picture in enumerate(video):
            yield Frame(float(t), _levels(picture))

    return Video(path.name, height, width, num_frames, None, frames)


def _levels(picture: np.ndarray) -> UInt[np.ndarray, "height width channels"]:
    """Zeros and ones as 0 and 255; floats in [0, 1] as 16 bits."""
    picture = picture[..., None] if picture.ndim == 2 else picture
    if picture.dtype == np.uint8:
        return picture * np.uint8(255)
    return (picture * 65535).round().astype(np.uint16)
