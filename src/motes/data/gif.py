"""Clips as GIFs."""

from pathlib import Path

import torch

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.core.files import atomic_path


def write_gif(
    path: str | Path, frames: Float[Tensor, "T height width *channels"], fps: float = 10.0
) -> None:
    """Write frames in [0, 1], grey or in colour, as a GIF that repeats for ever, atomically.

    Args:
        path: of the file.
        frames: one clip.
        fps: frames a second, above 0 and up to 50; rounded to the hundredths of a second that a
            GIF can hold.

    Law: `motes.video.read_frames` returns the frames to half a grey level
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
    if frames.ndim == 4:  # in colour: one palette for all frames, without dots
        every = Image.fromarray(levels.reshape(-1, *levels.shape[2:])).quantize()
        pictures = [
            Image.fromarray(level).quantize(palette=every, dither=Image.Dither.NONE)
            for level in levels
        ]
    delay = max(2, round(100 / fps)) * 10  # milliseconds
    # Image.save would join equal frames into one; block by block every frame is kept.
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.writelines(getheader(pictures[0], info={"loop": 0})[0])
        for picture in pictures:
            file.writelines(getdata(picture, duration=delay))
        file.write(b";")
