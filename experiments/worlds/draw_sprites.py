"""Draw docs/images/kinds.png: what models of pictures have learned, and tracks that they find.

Usage: python -m experiments.worlds.draw_sprites RUN_OF_PICTURES RUN_OF_COLOUR
       (runs of experiments/worlds/score_worlds.py --worlds pictures colour)
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

import motes
from experiments.records import ROOT
from motes.data import worlds
from motes.models.layers.renderer import LayeredRenderer
from motes.models.model import Model

PAGE = ROOT / "docs" / "images" / "kinds.png"
SEED, CLIP, OBJECTS = 3, 3, 3
FRAMES = (0, 10, 20)
KINDS = 6  # the preset's


def show(axes: Axes, picture: np.ndarray, title: str) -> None:
    """One panel, grey or in colour."""
    grey = picture.ndim == 2 or picture.shape[-1] == 1
    axes.imshow(picture.squeeze() if grey else picture, "gray" if grey else None, vmin=0, vmax=1)
    axes.set_title(title, fontsize=7)
    axes.set(xticks=[], yticks=[])


@torch.no_grad()
def draw_row(row: list[Axes], model: Model, world: str) -> None:
    """Background and kinds of a model, then frames of a clip that it has not seen, with tracks."""
    renderer = model.renderer
    assert isinstance(renderer, LayeredRenderer)
    shares = renderer.kind_logits.softmax(-1)
    show(row[0], renderer.background().clamp(0, 1).numpy(), "background")
    row[0].set_ylabel(world, fontsize=7)
    opacity = -torch.expm1(-renderer.root_depth.square())
    for panel, k in zip(row[1:], shares.argsort(descending=True).tolist(), strict=False):
        a, c = opacity[k][..., None], renderer.colours()[k]
        show(panel, (0.2 + a * (c - 0.2)).clamp(0, 1).numpy(), f"kind, {100 * shares[k]:.0f} %")
    clips = worlds.make(world, CLIP + 1, OBJECTS, seed=SEED)[CLIP]
    paths = motes.infer(model, clips.frames, OBJECTS).path_pixels[0].numpy()
    for panel, t in zip(row[-len(FRAMES) :], FRAMES, strict=True):
        show(panel, clips.frames[0, t].numpy(), f"frame {t + 1}")
        for path in paths:
            (line,) = panel.plot(*path[: t + 1].T, linewidth=0.8)
            panel.plot(*path[t], "o", color=line.get_color(), markersize=2)


def main() -> None:
    """Write the picture."""
    models = [motes.load(folder) for folder in sys.argv[1:3]]
    columns = 1 + KINDS + len(FRAMES)
    figure, axes = plt.subplots(2, columns, figsize=(columns, 2.4), layout="constrained")
    for row, model, world in zip(axes, models, ("pictures", "colour"), strict=True):
        draw_row(list(row), model, world)
    figure.savefig(PAGE, dpi=120)
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
