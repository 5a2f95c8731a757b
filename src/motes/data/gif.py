"""Animated GIF files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.core.files import atomic_path

if TYPE_CHECKING:
    from PIL.Image import Image


def write_gif(
    path: str | Path, frames: Float[Tensor, "T height width *channels"], fps: float = 10.0
) -> None:
    """Write a clip, grey or in colour with values in [0, 1], as a repeating GIF, atomically.

    Args:
        path: of the file.
        frames: one clip.
        fps: frames per second, above 0 and up to 50; see `gif_delay`.

    Law: `motes.video.read_frames` returns the frames to half a grey level
    (test_a_gif_returns_every_frame_even_repeated_ones).
    """
    from PIL import Image

    if not 0 < fps <= 50:
        raise InputError(f"got fps={fps}; expected more than 0 and at most 50; use 10")
    if 0 in frames.shape or not (frames.min() >= 0 and frames.max() <= 1):
        raise InputError(
            f"got frames of shape {tuple(frames.shape)}; expected at least one frame and values "
            "in [0, 1]; rescale them"
        )
    levels = (255 * frames).round().to(torch.uint8).cpu().numpy()
    images = [Image.fromarray(level).convert("P") for level in levels]
    if frames.ndim == 4:  # in colour: one palette for all frames, without dithering
        palette = Image.fromarray(levels.reshape(-1, *levels.shape[2:])).quantize()
        images = [
            Image.fromarray(level).quantize(palette=palette, dither=Image.Dither.NONE)
            for level in levels
        ]
    content = encode_gif(images, gif_delay(fps), keep_repeats=True)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def encode_gif(
    images: Sequence["Image"], delay: int | Sequence[int], *, keep_repeats: bool = False
) -> bytes:
    """Return palette images as a GIF that repeats for ever.

    Args:
        images: of one size, in palette mode.
        delay: milliseconds of every image, or of each; one for all with `keep_repeats`.
        keep_repeats: whether equal images that follow each other stay separate frames. Otherwise
            they are joined into one longer frame and only changed regions are stored.
    """
    from PIL.GifImagePlugin import getdata, getheader

    buffer = io.BytesIO()
    if keep_repeats:  # block by block, because Image.save always joins equal frames
        buffer.writelines(getheader(images[0], info={"loop": 0})[0])
        for image in images:
            buffer.writelines(getdata(image, duration=delay))
        buffer.write(b";")
    else:
        options = {"save_all": True, "append_images": images[1:], "duration": delay, "loop": 0}
        images[0].save(buffer, "GIF", **options)
    return buffer.getvalue()


def gif_delay(fps: float) -> int:
    """Return the delay of a frame in milliseconds, in the steps of 10 that a GIF can store."""
    return max(2, round(100 / fps)) * 10
