"""Videos as people have them: npz and npy arrays, GIFs, folders of pictures."""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from motes.atomic import atomic_path
from motes.data.npz import load_clips
from motes.errors import InputError
from motes.shapes import Float, Tensor, UInt8

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 4096  # pixels
MAX_PIXELS = 2**31  # of all frames together
_PICTURES = (".png", ".jpg", ".jpeg")
_SUPPORTED = ".npz, .npy, .gif or a folder of PNG or JPEG pictures"


def read_frames(
    path: str | Path,
) -> UInt8[Tensor, "B T height width"] | Float[Tensor, "B T height width"]:
    """Return the frames of a file or folder: grey in [0, 1], or uint8 in {0, 1} from bit files.

    Args:
        path: an npz or npy file (see `load_clips`), a GIF, or a folder of PNG or JPEG pictures in
            the order of the numbers in their names. GIFs and folders are one clip. In a GIF the
            shortest delay is one frame; a picture that is held longer counts several times,
            because writers of GIFs join equal frames in that way.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise InputError(f"got {path}, which does not exist; expected {_SUPPORTED}; check the path")
    if path.suffix.lower() in (".npz", ".npy"):
        return load_clips(path).frames
    if path.suffix.lower() == ".gif":
        return _read_gif(path)
    raise InputError(f"got {path}; expected {_SUPPORTED}; convert the video to one of them")


def write_gif(path: str | Path, frames: Float[Tensor, "T height width"], fps: float = 10.0) -> None:
    """Write frames in [0, 1] as a grey GIF that repeats for ever, atomically.

    Args:
        path: of the file.
        frames: one clip.
        fps: frames a second, above 0 and up to 50; rounded to the hundredths of a second that a
            GIF can hold.

    Law: `read_frames` returns the frames to half a grey level
    (test_a_gif_returns_every_frame_even_repeated_ones).
    """
    from PIL import Image
    from PIL.GifImagePlugin import getdata, getheader

    if not 0 < fps <= 50:
        raise InputError(f"got fps={fps}; expected more than 0 and at most 50; use 10")
    if 0 in frames.shape or not (frames.min() >= 0 and frames.max() <= 1):
        raise InputError(
            f"got frames of shape {tuple(frames.shape)}; expected at least one frame and values "
            "in [0, 1]; rescale them"
        )
    levels = (255 * frames).round().to(torch.uint8).cpu().numpy()
    pictures = [Image.fromarray(level).convert("P") for level in levels]
    delay = max(2, round(100 / fps)) * 10  # milliseconds
    # Image.save would join equal frames into one; block by block every frame is kept.
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.writelines(getheader(pictures[0], info={"loop": 0})[0])
        for picture in pictures:
            file.writelines(getdata(picture, duration=delay))
        file.write(b";")


def _read_gif(path: Path) -> Float[Tensor, "1 T height width"]:
    with _opened(path) as gif:
        count = getattr(gif, "n_frames", 1)
        pictures, delays = [], []
        for index in range(count):
            gif.seek(index)
            _require_size(path, gif.size, count)  # a damaged file may grow from frame to frame
            pictures.append(_grey(gif))
            delays.append(int(gif.info.get("duration", 0)))
        held = _frames_held(delays)
        _require_size(path, gif.size, sum(held))
        return torch.from_numpy(np.repeat(np.stack(pictures), held, axis=0))[None]


def _frames_held(delays: list[int]) -> list[int]:
    """Return how many frames each picture lasts; one each where the delays have no common beat."""
    beat = min(delays)
    if beat == 0 or any(delay % beat for delay in delays):
        return [1] * len(delays)
    return [delay // beat for delay in delays]


def _read_folder(folder: Path) -> Float[Tensor, "1 T height width"]:
    paths = [path for path in folder.iterdir() if path.suffix.lower() in _PICTURES]
    paths = sorted((path for path in paths if not path.name.startswith(".")), key=_natural_order)
    if not paths:
        raise InputError(
            f"got {folder}; expected PNG or JPEG pictures in it; choose another folder"
        )
    with _opened(paths[0]) as first:
        size = first.size
    _require_size(folder, size, len(paths))
    pictures = []
    for path in paths:
        with _opened(path) as picture:
            if picture.size != size:
                raise InputError(
                    f"got {path} of {picture.size} pixels; expected {size} as {paths[0].name} has; "
                    "make all pictures of one size"
                )
            pictures.append(_grey(picture))
    return torch.from_numpy(np.stack(pictures))[None]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key by which frame 9 comes before frame 10."""
    words = re.split("([0-9]+)", path.name.lower())
    return [(int(word) if odd % 2 else 0, word) for odd, word in enumerate(words)]


@contextmanager
def _opened(path: Path) -> Iterator["Image"]:
    """Yield a picture whose pixels are not decoded yet; a file that is no picture is bad input."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            yield picture
    except InputError:
        raise
    except (
        *(OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error),
        *(Image.DecompressionBombError, Image.DecompressionBombWarning),
    ) as error:
        raise InputError(
            f"got {path}; expected a whole picture, and this one is damaged, too large or of "
            "another kind; write it again"
        ) from error


def _require_size(path: Path, size: tuple[int, int], count: int) -> None:
    if max(size) > MAX_SIDE or size[0] * size[1] * count > MAX_PIXELS:
        raise InputError(
            f"got {path} with {count} frames of {size[0]}x{size[1]}; expected sides up to "
            f"{MAX_SIDE} and {MAX_PIXELS} pixels in all; make it smaller or shorter"
        )


def _grey(picture: "Image") -> Float[np.ndarray, "height width"]:
    """Return the luma of a picture in [0, 1]."""
    if picture.mode.startswith("I"):  # 16 bits of grey, which a conversion to "L" would cut off
        return np.asarray(picture, dtype=np.float32) / np.float32(65535)
    return np.asarray(picture.convert("L"), dtype=np.float32) / np.float32(255)
