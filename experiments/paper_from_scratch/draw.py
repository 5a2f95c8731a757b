"""Draw the pictures of docs/explanation/training.md from records and stored maps.

Usage: python -m experiments.paper_from_scratch.draw [--maps FOLDER]

FOLDER holds pictures of the latent plane, as `train_and_score --maps FOLDER` stores them.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw

mpl.use("Agg")
from matplotlib import pyplot as plt

RECORDS = Path(__file__).parent / "records"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SHOWN = ("single_00500", "single_01000", "single_01500", "single_03000", "single_07000")
MARGIN = 18  # pixels above a map, for its step


def draw_lost(out: Path) -> None:
    """Draw errors by frame and how three balls are lost, all eight seeds together."""
    runs = json.loads((RECORDS / "final.json").read_text("utf-8"))["runs"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), width_ratios=(3, 2))
    for count, label in (("1", "one ball"), ("2", "two"), ("3", "three")):
        squares = np.square([run["lost"][count]["rmse_by_frame"] for run in runs])
        left.plot(np.arange(1, squares.shape[1] + 1), np.sqrt(squares.mean(0)), label=label)
    left.set(xlabel="frame", ylabel="position error, px", ylim=(0, None))
    left.legend(frameon=False, ncols=3)
    names = {"swap": "swapped", "merged": "merged", "left_out": "left out", "other": "other"}
    how = [run["lost"]["3"]["how"] for run in runs]
    totals = {name: sum(own[key] for own in how) for key, name in names.items()}
    early = sum(own["begins_in_first5"] for own in how)
    clips = sum(run["lost"]["3"]["clips"] for run in runs)
    bars = right.barh(list(totals), list(totals.values()), color="0.5")
    right.bar_label(bars, padding=3)
    right.invert_yaxis()
    lost = sum(totals.values())
    right.set_title(f"{lost} of {clips} clips of three balls,\n{early} from the first five frames")
    right.title.set_fontsize(9)
    right.set(xlim=(0, 1.15 * max(totals.values())), xticks=[])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=100, bbox_inches="tight")


def draw_maps(folder: Path, out: Path) -> None:
    """Draw the latent plane at some steps of the stage on single objects, side by side."""
    maps = [Image.open(folder / f"{name}.png").convert("RGB") for name in SHOWN]
    width, height = maps[0].size
    sheet = Image.new("RGB", (len(maps) * width, height + MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for k, (name, picture) in enumerate(zip(SHOWN, maps, strict=True)):
        sheet.paste(picture, (k * width, MARGIN))
        pen.text((k * width + 6, 3), f"step {int(name.split('_')[1])}", fill="black")
    sheet.save(out, optimize=True)


def main() -> None:
    """Draw what can be drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=Path, help="folder of pictures of the latent plane")
    given = parser.parse_args()
    draw_lost(IMAGES / "lost_tracks.png")
    if given.maps is not None:
        draw_maps(given.maps, IMAGES / "latent_map_steps.png")


if __name__ == "__main__":
    main()
