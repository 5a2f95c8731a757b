"""Answers as HTML, for notebooks: an animated clip and the first rows; nothing is loaded."""

import base64
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from motes.core.axes import Float, UInt8
from motes.data.gif import encode_gif, gif_delay

if TYPE_CHECKING:
    from motes.queries.answer import Answer

MAX_FRAMES = 120  # of the animation
SIDE = 240  # pixels of its longer side
TAIL = 12  # frames
FPS = 10.0
ROWS = 6
# Okabe and Ito's palette, as in motes.output.tracks.
COLOURS = ("#56b4e9", "#e69f00", "#f0e442", "#cc79a7", "#009e73", "#d55e00", "#ffffff", "#0072b2")


def answer_html(answer: "Answer") -> str:
    """Return the first clip with its tracks as an animation, and the first rows of the table."""
    title = f"<p><code>{escape(repr(answer))}</code></p>"
    gif = base64.b64encode(animation(answer)).decode()
    picture = f'<img alt="the first clip with its tracks" src="data:image/gif;base64,{gif}">'
    return f'<div class="motes">{title}{picture}{_rows(answer)}</div>'


def animation(answer: "Answer", clip: int = 0) -> bytes:
    """Return a GIF of a clip: frames at the mean positions, paths, and rings around objects.

    Rings are dashed where an object was not detected.
    """
    from PIL import Image, ImageDraw

    pixels = answer.path_pixels[clip].cpu().numpy()
    levels = answer.mean_frames[clip, :MAX_FRAMES].float().cpu().numpy()
    found = answer.found[clip].tolist()
    factor = max(round(SIDE / max(levels.shape[1:3])), 1)
    stills = []
    for t, frame in enumerate(levels):
        image = Image.fromarray(_enlarged(frame, factor))
        draw = ImageDraw.Draw(image)
        for n in range(int(answer.num_objects[clip])):
            colour = COLOURS[n % len(COLOURS)]
            path = (pixels[n, max(0, t - TAIL) : t + 1] + 0.5) * factor
            corners = [(float(x), float(y)) for x, y in path]
            if len(corners) > 1:
                draw.line(corners, fill=colour, width=2)
            (x, y), radius = corners[-1], 1.5 * factor
            box = (x - radius, y - radius, x + radius, y + radius)
            for start in (0,) if found[n][t] else range(0, 360, 60):
                draw.arc(box, start, start + (360 if found[n][t] else 30), fill=colour, width=2)
        stills.append(image.quantize(64, Image.Quantize.MAXCOVERAGE))
    return encode_gif(stills, gif_delay(FPS))


def _enlarged(
    frame: Float[np.ndarray, "height width *channels"], factor: int
) -> UInt8[np.ndarray, "H W 3"]:
    levels = (255 * frame.clip(0, 1)).round().astype(np.uint8)
    large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
    return large if large.ndim == 3 else np.repeat(large[..., None], 3, axis=2)


def _rows(answer: "Answer") -> str:
    from motes.queries.answer import COLUMNS

    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = []
    for count, row in enumerate(answer.rows()):
        if count == ROWS:
            break
        rows.append("".join(f"<td>{_cell(value)}</td>" for value in row))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = int(answer.num_objects.sum()) * answer.observed.shape[1] - len(rows)
    rest = f"<p>and {more} rows more: <code>answer.to_dataframe()</code></p>" if more > 0 else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def _cell(value: Any) -> str:
    if isinstance(value, float) and not isinstance(value, bool):
        return f"{value:.3g}" if torch.isfinite(torch.tensor(value)) else "nan"
    return escape(str(value))
