"""Videos stored as images: GIFs, multi-page TIFFs, folders of PNG or JPEG files."""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motes.core.axes import UInt
from motes.core.errors import InputError
from motes.video.source import Frame, Video, require_size

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


def open_pages(path: Path) -> Video:
    """Return the video of a GIF or of a multi-page TIFF.

    In a GIF the shortest delay is one frame; an image with a longer delay is repeated, because
    GIF writers join equal frames in that way.
    """
    with _opened(path) as book:
        require_size(path, *book.size)
        count, size = getattr(book, "n_frames", 1), book.size
        delays = []
        for index in range(count if path.suffix.lower() == ".gif" else 0):
            book.seek(index)
            require_size(path, *book.size)  # a damaged file may grow from frame to frame
            delays.append(int(book.info.get("duration", 0)))
    repeats = _repeats(delays) if delays else [1] * count
    delay = min(delays, default=0)  # milliseconds

    def frames() -> Iterator[Frame]:
        t = 0
        with _opened(path) as book:
            for index, repeat in enumerate(repeats):
                book.seek(index)
                _require_same_size(path, f"page {index}", book.size, size)
                picture = _pixels(book, path)
                for _ in range(repeat):
                    yield Frame(t * (delay or 1000) / 1000, picture)
                    t += 1

    fps = 1000 / delay if delay else None
    return Video(path.name, size[1], size[0], sum(repeats), fps, frames)


def open_folder(folder: Path) -> Video:
    """Return the video of the PNG or JPEG images in a folder, in the order of their numbers."""
    paths = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    paths = sorted((path for path in paths if not path.name.startswith(".")), key=_natural_order)
    if not paths:
        raise InputError(f"got {folder}; expected PNG or JPEG images in it; choose another folder")
    with _opened(paths[0]) as first:
        size = first.size
    require_size(folder, *size)

    def frames() -> Iterator[Frame]:
        for t, path in enumerate(paths):
            with _opened(path) as picture:
                _require_same_size(folder, path.name, picture.size, size)
                yield Frame(float(t), _pixels(picture, path))

    return Video(folder.resolve().name, size[1], size[0], len(paths), None, frames)


def _repeats(delays: list[int]) -> list[int]:
    """Return how many frames each image lasts; one each if delays are no multiple of the least."""
    least = min(delays)
    if least == 0 or any(delay % least for delay in delays):
        return [1] * len(delays)
    return [delay // least for delay in delays]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key by which frame 9 comes before frame 10."""
    words = re.split("([0-9]+)", path.name.lower())
    return [(int(word) if odd % 2 else 0, word) for odd, word in enumerate(words)]


def _require_same_size(
    path: Path, which: str, size: tuple[int, int], first: tuple[int, int]
) -> None:
    if size != first:
        raise InputError(
            f"got {path} where {which} has {size[0]}x{size[1]} pixels; expected "
            f"{first[0]}x{first[1]} as the first image has; make all images of one size"
        )


@contextmanager
def _opened(path: Path) -> Iterator["Image"]:
    """Yield an image that is not decoded yet; raise `InputError` if it cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            yield picture
    except InputError:
        raise
    except (
        *(OSError, SyntaxError, ValueError, EOFError, LookupError, struct.error, TypeError),
        *(Image.DecompressionBombError, Image.DecompressionBombWarning),
    ) as error:
        raise InputError(
            f"got {path}; expected a whole image, and this one is damaged, too large or of "
            "another kind; write it again"
        ) from error


def _pixels(picture: "Image", path: Path) -> UInt[np.ndarray, "height width channels"]:
    """Return the pixels of an image with one or three channels of 8 or 16 bits."""
    if picture.mode.startswith("I"):  # 16-bit grey, which a conversion to "L" would truncate
        return np.asarray(picture).clip(0, 65535).astype(np.uint16)[..., None]
    if picture.mode == "F":
        levels = np.asarray(picture, dtype=np.float32)
        if not (levels.min() >= 0 and levels.max() <= 1):
            raise InputError(
                f"got {path} with values from {levels.min():g} to {levels.max():g}; expected "
                "floats in [0, 1]; rescale them"
            )
        return (levels * 65535).round().astype(np.uint16)[..., None]
    if picture.mode in ("1", "L", "LA"):
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))
