"""Any video that a person has, by the name of its file."""

from pathlib import Path

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt8
from motes.core.errors import InputError
from motes.data import load_clips
from motes.video.arrays import open_array
from motes.video.ffmpeg import DEMUXERS, open_container
from motes.video.images import open_folder, open_pages
from motes.video.source import Video, grey

MAX_PIXELS = 2**31  # of all frames of a clip that is held in memory
PAGES = (".gif", ".tif", ".tiff")
ARRAYS = (".npz", ".npy")
KINDS = f"{', '.join((*DEMUXERS, *PAGES, *ARRAYS))}, or a folder of PNG or JPEG pictures"


def open_video(path: str | Path) -> Video:
    """The video of a file or folder; see `KINDS`. Nothing but its first frame is read yet."""
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():  # a pipe could keep us waiting for ever
        state = "is no plain file" if path.exists() else "does not exist"
        raise InputError(f"got {path}, which {state}; expected {KINDS}; check the path")
    suffix = path.suffix.lower()
    if suffix in PAGES:
        return open_pages(path)
    if suffix in DEMUXERS:
        return open_container(path)
    if suffix in ARRAYS:
        return open_array(path)
    raise InputError(f"got {path}; expected {KINDS}; convert the video to one of them")


def read_frames(
    path: str | Path,
) -> UInt8[Tensor, "B T height width"] | Float[Tensor, "B T height width *channels"]:
    """Frames in memory: of a video grey in [0, 1], of a file of clips as `Clips.frames`.

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
