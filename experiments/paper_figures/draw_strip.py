"""Draw the images of README.md: a clip of two balls with three answers, and the forecast horizon.

Usage: python -m experiments.paper_figures.draw_strip [MODEL]
       (MODEL: name of a shipped model or a run folder)
"""

import sys

import motes
from experiments.paper_figures.figures import FIGURES
from experiments.paper_figures.stored import Stored
from experiments.records import ROOT
from motes.output import plots as pictures
from motes.output.figures import example_views

OUT = ROOT / "docs" / "images"
SEED = 2_000_001  # of the clip; training uses other seeds
TIMES = (0, 4, 8, 12, 16, 20, 24, 29)


def main(name: str) -> None:
    """Ask the model about the first clip of the seed, whatever comes of it."""
    model = motes.load(name)
    clips = motes.cannonballs(num_clips=1, num_objects=2, size=model.image_size, seed=SEED)
    (views,) = example_views(model, clips)
    (OUT / "strip.png").write_bytes(pictures.png(pictures.strip(views, TIMES)))
    horizon = FIGURES["horizon"](Stored(name))
    (OUT / "horizon.png").write_bytes(pictures.png(horizon))
    print("wrote strip.png and horizon.png")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cannonballs-48")
