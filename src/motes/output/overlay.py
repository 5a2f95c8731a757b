"""A video with what a model says about it drawn on its pictures."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import Bool, Float, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data.gif import encode_gif, gif_delay
from motes.output.plots import outline
from motes.queries.answer import Answer
from motes.video.ffmpeg import write_mp4

# Okabe and Ito's colours, which the colour-blind tell apart, in an order that suits dark scenes.
COLOURS = ("#56b4e9", "#e69f00", "#f0e442", "#cc79a7", "#009e73", "#d55e00", "#ffffff", "#0072b2")
TAIL = 30  # frames of the path that are drawn behind an object
DASHES = 6  # of the ellipse of an object that cannot be seen
MAX_GIF_FRAMES = 600
MAX_GIF_SIDE = 640  # pixels


@dataclass(frozen=True, eq=False)
class Trails:
    """The objects of one clip in the pixels of the pictures that they are drawn on."""

    positions: Float[np.ndarray, "N T 2"]
    covariances: Float[np.ndarray, "N T 2 2"]
    path: Float[np.ndarray, "N T 2"]
    seen: Bool[np.ndarray, "N T"]

    @staticmethod
    def of(answer: Answer, clip: int) -> "Trails":
        """The trails of a clip of an answer."""
        present = slice(int(answer.num_objects[clip]))
        return Trails(
            answer.pixels[clip, present].numpy(),
            answer.pixel_covariances[clip, present].numpy(),
            answer.path_pixels[clip, present].numpy(),
            answer.found[clip, present].numpy(),
        )


def draw_trails(
    pictures: Iterator[UInt8[np.ndarray, "height width 3"]], trails: Trails
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """The pictures with tracks, 90 % ellipses, and dashed ghosts of what was not seen.

    Pictures may end before the trails do, as those of a forecast; the last one stays, darker.
    """
    last = None
    for t in range(trails.positions.shape[1]):
        picture = next(pictures, None)
        if picture is None:
            if last is None:
                return
            picture = last // np.uint8(3)
        else:
            last = picture
        yield _drawn(picture, trails, t)


def check_overlay(path: Path, num_frames: int = 0) -> None:
    """Raises `InputError` unless a file of this name can show so many frames."""
    suffix = path.suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise InputError(f"overlay is {path}; expected a name that ends in .mp4 or .gif")
    if suffix == ".gif" and num_frames > MAX_GIF_FRAMES:
        raise InputError(
            f"overlay is {path} with more than {MAX_GIF_FRAMES} frames; write an .mp4, or take "
            "less with --start and --end"
        )


def write_overlay(
    path: Path, pictures: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> None:
    """Writes pictures as an mp4 or a GIF, by the suffix of the name."""
    check_overlay(path)
    write = write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    write(path, pictures, fps)


def _write_gif(
    path: Path, pictures: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> None:
    from PIL import Image

    stills: list[Image.Image] = []
    for picture in pictures:
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


def _drawn(
    picture: UInt8[np.ndarray, "height width 3"], trails: Trails, t: int
) -> UInt8[np.ndarray, "height width 3"]:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    line = max(1, round(min(image.size) / 200))
    font = ImageFont.load_default(max(10.0, min(image.size) / 40))
    for n, path in enumerate(trails.path):
        colour = COLOURS[n % len(COLOURS)]
        tail = path[max(0, t - TAIL) : t + 1]
        if len(tail) > 1:
            draw.line([(float(x), float(y)) for x, y in tail], fill=colour, width=line)
        ring = outline(trails.positions[n, t], trails.covariances[n, t])
        _draw_ring(draw, ring, colour, line, solid=bool(trails.seen[n, t]))
        x, y = trails.positions[n, t]
        reach = float(np.abs(ring - (x, y)).max()) + 2
        draw.text((float(x) + reach, float(y) - reach), str(n), fill=colour, font=font)
    return np.asarray(image)


def _draw_ring(
    draw: Any, ring: Float[np.ndarray, "corners 2"], colour: str, width: int, solid: bool
) -> None:
    """A closed line, or dashes."""
    corners = [(float(x), float(y)) for x, y in ring]
    if solid:
        draw.line([*corners, corners[0]], fill=colour, width=width)
        return
    step = math.ceil(len(corners) / (2 * DASHES))
    for start in range(0, len(corners), 2 * step):
        draw.line(corners[start : start + step + 1], fill=colour, width=width)
