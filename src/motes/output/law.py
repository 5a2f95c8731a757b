"""A picture of the walls that a model found."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from motes.core.files import atomic_path
from motes.models.law import Wall


def draw_walls(walls: Sequence[Wall], image_size: tuple[int, int], path: Path) -> None:
    """Write a PNG of the frame with a line for each wall; hatches are on its far side."""
    from matplotlib.figure import Figure

    height, width = image_size
    figure = Figure(figsize=(5, 5 * height / width))
    axes = figure.subplots()
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xlabel("x (px)")
    axes.set_ylabel("y (px)")
    reach = np.array([-2.0, 2.0]) * max(height, width)
    for number, wall in enumerate(walls):
        normal = np.array(wall.normal)
        along = np.array([-normal[1], normal[0]])
        line = wall.offset * normal + reach[:, None] * along
        far = line - 4 * normal
        label = f"{wall.name}, restitution {wall.restitution:.2f}"
        axes.plot(*line.T, color=f"C{number}", label=label)
        corners = np.concatenate([line, far[::-1]])
        axes.fill(*corners.T, color=f"C{number}", alpha=0.15, linewidth=0)
    if walls:
        axes.legend(loc="upper right", fontsize=8)
    else:
        axes.set_title("no walls found")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, bbox_inches="tight")
