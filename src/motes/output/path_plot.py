"""A plot of the paths of all objects of a clip."""

from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import UInt8
from motes.core.files import atomic_path
from motes.output.overlay import COLOURS
from motes.output.plots import View, outline, png

ELLIPSES = 12  # at most, along the part of a path without detections


def write_paths(
    path: Path, view: View, image: UInt8[np.ndarray, "height width 3"], title: str
) -> None:
    """Write a PNG of the paths over an image: solid where detected, else dotted with ellipses."""
    from matplotlib.figure import Figure

    height, width = image.shape[:2]
    figure = Figure(figsize=(6.4, max(6.4 * height / width, 2.0) + 0.4), dpi=120)
    axis = figure.add_axes((0.1, 0.08, 0.88, 0.86))
    axis.imshow(image // np.uint8(2))
    for n in range(len(view.path_pixels)):
        _draw_path(axis, view, n)
    axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xlabel="x, pixels")
    axis.set_ylabel("y, pixels")
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=8, framealpha=0.6)
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(figure))


def _draw_path(axis: Any, view: View, n: int) -> None:
    colour, path = COLOURS[n % len(COLOURS)], view.path_pixels[n]
    axis.plot(*path.T, ":", color=colour, lw=1.2)
    detected = np.where(view.detected[n, :, None], path, np.nan)
    axis.plot(*detected.T, "-", color=colour, lw=1.6, label=f"object {n}")
    hidden = np.flatnonzero(~view.detected[n])
    for t in hidden[:: max(-(-len(hidden) // ELLIPSES), 1)]:
        ring = outline(view.pixels[n, t], view.pixel_covariances[n, t])
        # Faint: many overlap, and none may hide a path.
        axis.fill(*ring.T, facecolor=(colour, 0.05), edgecolor=(colour, 0.4), lw=0.8, zorder=1)
