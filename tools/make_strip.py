"""Draw the picture at the top of README.md: a clip of two balls, and three answers about it.

Usage: python tools/make_strip.py [MODEL]     a shipped name or the folder of a run
"""

import sys
from pathlib import Path

import motes
from motes import pictures
from motes.demo import ask_examples

OUT = Path(__file__).parent.parent / "docs" / "images" / "strip.png"
SEED = 2_000_001  # of the clip; training uses other seeds
TIMES = (0, 4, 8, 12, 16, 20, 24, 29)


def main(name: str) -> None:
    """Ask the model about the first clip of the seed, whatever comes of it."""
    model = motes.load(name)
    clips = motes.cannonballs(num_clips=1, num_objects=2, size=model.image_size, seed=SEED)
    (views,) = ask_examples(model, clips)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(pictures.png(pictures.strip(views, TIMES)))
    print(f"wrote {OUT.name}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cannonballs-48")
