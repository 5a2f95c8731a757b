"""Sheets to count by eye: what a model found in clips of juggled balls, over the blobs.

Each clip is two panels: height and side-ways place against time. Grey dots are blobs as they are in
the pictures, without a name; a coloured line is an object of the model. A person sees whether a
colour stays on one ball.

Usage: python -m experiments.juggling.contact_sheet VIDEO CLIPS TRACKS FOLDER
       (TRACKS: written by score_juggling)
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from experiments.juggling.reference import find_blobs
from motes.video import load_video_map, open_video, plan

mpl.use("Agg")
COLOURS = ("tab:red", "tab:green", "tab:blue")
ACROSS, DOWN = 4, 3


def main() -> None:
    """Draws the sheets."""
    from matplotlib import pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("video", "clips", "tracks", "folder"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    known = load_video_map(given.clips)
    assert known is not None, "the clips were not cut by motes prepare"
    blobs = find_blobs(plan(open_video(given.video), known[1]))
    with np.load(given.tracks) as archive:
        tracks, numbers = archive["tracks"], archive["numbers"]
    given.folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(tracks), ACROSS * DOWN):
        figure, axes = plt.subplots(2 * DOWN, ACROSS, figsize=(22, 18), squeeze=False)
        for place, clip in enumerate(range(first, min(first + ACROSS * DOWN, len(tracks)))):
            row, column = divmod(place, ACROSS)
            for axis, panel in ((1, axes[2 * row, column]), (0, axes[2 * row + 1, column])):
                for time in numbers[clip]:
                    panel.plot([time] * len(blobs[time]), blobs[time][:, axis], ".", c="0.6", ms=9)
                for track, colour in zip(tracks[clip], COLOURS, strict=True):
                    panel.plot(numbers[clip], track[:, axis], "-", c=colour, lw=1.3)
                panel.set_title(f"clip {clip}, {'xy'[axis]}", fontsize=9)
                panel.set_ylim((720, -40) if axis == 1 else (530, 850))
        figure.tight_layout()
        figure.savefig(given.folder / f"clips-{first:02d}.png", dpi=60)
        plt.close(figure)


if __name__ == "__main__":
    main()
