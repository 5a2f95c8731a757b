"""Open video files by their suffix. `READERS` is the place to register a new file format."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt, UInt8
from motes.core.errors import InputError
from motes.data import load_clips
from motes.video.ffmpeg import DEMUXERS, open_container
from motes.video.images import open_folder, open_pages
from motes.video.source import Frame, Video, grey, require_size

MAX_PIXELS = 2**31  # of all frames of a clip that is held in memory
ARRAYS = (".npz", ".npy")


def open_array(path: Path) -> Video:
    """Return the video in an array file: one clip, [frames, height, width] or [1, frames, ...].

    Colour clips have a last axis of red, green and blue.
    """
    clips = load_clips(path)
    if len(clips) != 1:
        raise InputError(
            f"got {path} with {len(clips)} clips; expected one video [frames, height, width]; "
            "use the clips as they are, they need no preparation"
        )
    video = clips.frames[0].numpy()
    num_frames, height, width = video.shape[:3]
    require_size(path, width, height)

    def frames() -> Iterator[Frame]:
        for t, picture in enumerate(video):
            yield Frame(float(t), _to_integers(picture))

    return Video(path.name, height, width, num_frames, None, frames)


def _to_integers(picture: np.ndarray) -> UInt[np.ndarray, "height width channels"]:
    """Return zeros and ones as 0 and 255, and floats in [0, 1] as 16-bit integers."""
    picture = picture[..., None] if picture.ndim == 2 else picture
    if picture.dtype == np.uint8:
        return picture * np.uint8(255)
    return (picture * 65535).round().astype(np.uint16)


READERS: dict[str, Callable[[Path], Video]] = {
    **dict.fromkeys(DEMUXERS, open_container),
    **dict.fromkeys((".gif", ".tif", ".tiff"), open_pages),
    **dict.fromkeys(ARRAYS, open_array),
}
FORMATS = f"{', '.join(READERS)}, or a folder of PNG or JPEG images"


def open_video(path: str | Path) -> Video:
    """Return the video of a file or folder; `FORMATS` lists what is accepted.

    Only the first frame is decoded.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():  # a named pipe could block for ever
        state = "is no plain file" if path.exists() else "does not exist"
        raise InputError(f"got {path}, which {state}; expected {FORMATS}; check the path")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"got {path}; expected {FORMATS}; convert the video to one of them")
    return reader(path)


def read_frames(
    path: str | Path,
) -> UInt8[Tensor, "B T height width"] | Float[Tensor, "B T height width *channels"]:
    """Return all frames in memory: of a video grey in [0, 1], of a clip file as `Clips.frames`.

    Args:
        path: anything that `open_video` opens, which is one clip, or an npz or npy file of clips
            (see `load_clips`).
    """
    path = Path(path)
    if path.suffix.lower() in ARRAYS and path.is_file():
        return load_clips(path).frames
    video = open_video(path)
    pictures: list[Float[np.ndarray, "height width"]] = []
    for frame in video.frames():
        if (len(pictures) + 1) * video.height * video.width > MAX_PIXELS:
            raise InputError(
                f"got {path} with more than {MAX_PIXELS} pixels in all; expected a short clip; "
                "make it smaller or shorter, or use motes prepare"
            )
        pictures.append(grey(frame.picture))
    return torch.from_numpy(np.stack(pictures))[None]
