"""Draw docs/images/worlds.png: one clip of every world.

Usage: python -m experiments.worlds.draw_worlds
"""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.records import ROOT
from motes.data import worlds

PAGE = ROOT / "docs" / "images" / "worlds.png"
SHOWN = 7  # frames of each clip
SEED, CLIP = 3, 3
LONG = 60  # frames of the long world that are shown


def main() -> None:
    """Write the picture."""
    names = list(worlds.WORLDS)
    figure, axes = plt.subplots(
        len(names), SHOWN + 1, figsize=(SHOWN + 1, len(names)), layout="constrained"
    )
    for row, name in zip(axes, names, strict=True):
        clips = worlds.make(name, CLIP + 1, num_frames=LONG if name == "long" else None, seed=SEED)
        frames = clips.frames[CLIP].float()
        for k in range(SHOWN):
            row[k].imshow(frames[k * (len(frames) - 1) // (SHOWN - 1)], "gray", vmin=0, vmax=1)
        row[-1].imshow(frames.amax(0), "gray", vmin=0, vmax=1)
        assert clips.clean is not None
        for path in clips.clean[CLIP]:
            row[-1].plot(*path.T, linewidth=0.8)
        row[-1].set(xlim=(-0.5, 47.5), ylim=(47.5, -0.5))
        row[0].set_ylabel(name, fontsize=7)
        for panel in row:
            panel.set(xticks=[], yticks=[])
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PAGE, dpi=80)
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
