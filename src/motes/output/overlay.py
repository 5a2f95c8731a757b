"""Draw tracks on the images of a video."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import Float, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data.gif import encode_gif, gif_delay
from motes.output.plots import View, outline
from motes.video.source import write_mp4

# Okabe and Ito's palette for colour-blind readers, in an order that suits dark scenes.
COLOURS = ("#56b4e9", "#e69f00", "#f0e442", "#cc79a7", "#009e73", "#d55e00", "#ffffff", "#0072b2")
TAIL = 30  # frames of the path drawn behind an object
DASHES = 6  # of the ellipse of an object that is not detected
MAX_GIF_FRAMES = 600
MAX_GIF_SIDE = 640  # pixels


def draw_tracks(
    images: Iterator[UInt8[np.ndarray, "height width 3"]], view: View
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Yield the images with paths and 90 % ellipses, dashed where an object is not detected.

    Images may end before the tracks do, as in a forecast; the last one is repeated, darker.
    """
    last = None
    for t in range(view.pixels.shape[1]):
        image = next(images, None)
        if image is None:
            if last is None:
                return
            image = last // np.uint8(3)
        else:
            last = image
        yield _draw_frame(image, view, t)


def check_overlay(path: Path, num_frames: int = 0) -> None:
    """Raise `InputError` unless a file of this name can hold so many frames."""
    suffix = path.suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise InputError(f"overlay is {path}; expected a name that ends in .mp4 or .gif")
    if suffix == ".gif" and num_frames > MAX_GIF_FRAMES:
        raise InputError(
            f"overlay is {path} with more than {MAX_GIF_FRAMES} frames; write an .mp4, or take "
            "less with --start and --end"
        )


def write_overlay(
    path: Path, images: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> None:
    """Write images as an mp4 or a GIF, by the suffix of the name."""
    check_overlay(path)
    write = write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    write(path, images, fps)


def _write_gif(
    path: Path, images: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> None:
    from PIL import Image

    stills: list[Image.Image] = []
    for picture in images:
        check_overlay(path, len(stills) + 1)
        still = Image.fromarray(picture)
        still.thumbnail((MAX_GIF_SIDE, MAX_GIF_SIDE))
        # By coverage: a palette of the commonest colours would lose the thin lines. One for all
        # frames: colours of a scene at rest should not flicker.
        palette = stills[0] if stills else still.quantize(128, Image.Quantize.MAXCOVERAGE)
        stills.append(still.quantize(palette=palette, dither=Image.Dither.NONE))
    content = encode_gif(stills, gif_delay(fps))
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _draw_frame(
    picture: UInt8[np.ndarray, "height width 3"], view: View, t: int
) -> UInt8[np.ndarray, "height width 3"]:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    line = max(1, round(min(image.size) / 200))
    font = ImageFont.load_default(max(10.0, min(image.size) / 40))
    for n, path in enumerate(view.path_pixels):
        colour = COLOURS[n % len(COLOURS)]
        tail = path[max(0, t - TAIL) : t + 1]
        if len(tail) > 1:
            draw.line([(float(x), float(y)) for x, y in tail], fill=colour, width=line)
        ring = outline(view.pixels[n, t], view.pixel_covariances[n, t])
        _draw_ring(draw, ring, colour, line, solid=bool(view.detected[n, t]))
        x, y = view.pixels[n, t]
        radius = float(np.abs(ring - (x, y)).max()) + 2
        draw.text((float(x) + radius, float(y) - radius), str(n), fill=colour, font=font)
    return np.asarray(image)


def _draw_ring(
    draw: Any, ring: Float[np.ndarray, "corners 2"], colour: str, width: int, solid: bool
) -> None:
    """Draw a closed line, or dashes."""
    corners = [(float(x), float(y)) for x, y in ring]
    if solid:
        draw.line([*corners, corners[0]], fill=colour, width=width)
        return
    step = math.ceil(len(corners) / (2 * DASHES))
    for start in range(0, len(corners), 2 * step):
        draw.line(corners[start : start + step + 1], fill=colour, width=width)
