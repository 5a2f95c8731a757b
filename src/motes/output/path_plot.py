"""A picture of where everything went."""

from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import UInt8
from motes.core.files import atomic_path
from motes.output.overlay import COLOURS, Trails
from motes.output.plots import outline, png

ELLIPSES = 12  # at most, along a path that was not seen


def write_paths(
    path: Path, trails: Trails, picture: UInt8[np.ndarray, "height width 3"], title: str
) -> None:
    """Writes a PNG of the paths over a picture: solid where seen, else dotted with ellipses."""
    from matplotlib.figure import Figure

    height, width = picture.shape[:2]
    figure = Figure(figsize=(6.4, max(6.4 * height / width, 2.0) + 0.4), dpi=120)
    axis = figure.add_axes((0.1, 0.08, 0.88, 0.86))
    axis.imshow(picture // np.uint8(2))
    for n in range(len(trails.path)):
        _draw_path(axis, trails, n)
    axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xlabel="x, pixels")
    axis.set_ylabel("y, pixels")
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=8, framealpha=0.6)
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(figure))


def _draw_path(axis: Any, trails: Trails, n: int) -> None:
    colour, path = COLOURS[n % len(COLOURS)], trails.path[n]
    axis.plot(*path.T, ":", color=colour, lw=1.2)
    seen = np.where(trails.seen[n, :, None], path, np.nan)
    axis.plot(*seen.T, "-", color=colour, lw=1.6, label=f"object {n}")
    hidden = np.flatnonzero(~trails.seen[n])
    for t in hidden[:: max(-(-len(hidden) // ELLIPSES), 1)]:
        ring = outline(trails.positions[n, t], trails.covariances[n, t])
        # Faint: many lie one on another, and none shall hide a path.
        axis.fill(*ring.T, facecolor=(colour, 0.05), edgecolor=(colour, 0.4), lw=0.8, zorder=1)
