"""Open the table of a five-ball recording with the programs it is written for.

Usage: pip install 'motes[formats,rivals,table]'
       python -m experiments.formats.open_tables [-o experiments/formats/opened.json]

One clip of five simulated balls is inferred, written in every format and read back by the real
program. The record holds the version of each program, what it found, and the largest difference
from the answer in pixels.
"""

import argparse
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motes
from motes.core.environment import environment
from motes.core.files import write_json
from motes.output import formats
from motes.queries.answer import Answer

ROOT = Path(__file__).parents[2]
SEED, NUM_OBJECTS, NUM_FRAMES = 5, 5, 30


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).parent / "opened.json")
    out = parser.parse_args().out
    model = motes.load("cannonballs-structured")
    clips = motes.cannonballs(1, (NUM_OBJECTS,), NUM_FRAMES, 48, seed=SEED)
    answer = motes.infer(model, clips.frames.float(), NUM_OBJECTS)
    warnings.simplefilter("ignore")  # of the programs
    with tempfile.TemporaryDirectory() as folder:
        checks = (napari, trackmate, trackpy, supervision, mot, parquet)
        found = {check.__name__: check(answer, Path(folder)) for check in checks}
    record = {"seed": SEED, "objects": NUM_OBJECTS, "frames": NUM_FRAMES, "opened": found}
    write_json(out, {**record, "environment": environment(torch.device("cpu"))})
    print(found)


def napari(answer: Answer, folder: Path) -> dict[str, Any]:
    """Open as in drag and drop: without naming a reader."""
    import npe2
    from napari.components import ViewerModel
    from napari.plugins import _initialize_plugins

    _initialize_plugins()
    manager = npe2.PluginManager.instance()
    if "motes" not in manager:
        manager.register(npe2.PluginManifest.from_file(ROOT / "src" / "motes" / "napari.yaml"))
    formats.save_tracks(folder / "five.napari", answer)
    (layer,) = ViewerModel().open(folder / "five.napari", plugin=None)
    parts = [layer.data[layer.data[:, 0] == n][:, [3, 2]] for n in np.unique(layer.data[:, 0])]
    return {"version": version("napari"), "layer": type(layer).__name__, **compare(answer, parts)}


def trackmate(answer: Answer, folder: Path) -> dict[str, Any]:
    """Read the XML file with pytrackmate."""
    import pytrackmate

    formats.save_tracks(folder / "five.xml", answer)
    found = pytrackmate.trackmate_peak_import(folder / "five.xml", get_tracks=True)
    parts = [part.sort_values("t")[["x", "y"]] for _, part in found.groupby("label")]
    return {"pytrackmate": version("pytrackmate"), **compare(answer, parts)}


def trackpy(answer: Answer, folder: Path) -> dict[str, Any]:
    """Compute the mean squared displacement of the ensemble."""
    import pandas
    import trackpy as library

    formats.save_tracks(folder / "five.trackpy.csv", answer)
    found = pandas.read_csv(folder / "five.trackpy.csv")
    displacement = library.emsd(found, mpp=1, fps=1, max_lagtime=5)
    parts = [part.sort_values("frame")[["x", "y"]] for _, part in found.groupby("particle")]
    values = [round(value, 3) for value in displacement.tolist()]
    return {"version": version("trackpy"), "emsd": values, **compare(answer, parts)}


def supervision(answer: Answer, folder: Path) -> dict[str, Any]:
    """Merge the detections of all frames and select each tracker's."""
    import supervision as library

    merged = library.Detections.merge(formats.to_supervision(answer))
    centres = merged.get_anchors_coordinates(library.Position.CENTER)
    parts = [centres[merged.tracker_id == n] for n in np.unique(merged.tracker_id)]
    return {"version": version("supervision"), **compare(answer, parts)}


def mot(answer: Answer, folder: Path) -> dict[str, Any]:
    """Read the text as an array, as the MOT Challenge's tools do; no program is involved."""
    formats.save_tracks(folder / "five.txt", answer)
    rows = np.loadtxt(folder / "five.txt", delimiter=",")
    parts = [rows[rows[:, 1] == n + 1][:, 2:4] + rows[0, 4] / 2 - 1 for n in range(NUM_OBJECTS)]
    return compare(answer, parts)


def parquet(answer: Answer, folder: Path) -> dict[str, Any]:
    """Read with pandas."""
    import pandas

    formats.save_tracks(folder / "five.parquet", answer)
    found = pandas.read_parquet(folder / "five.parquet")
    parts = [part[["x", "y"]] for _, part in found.groupby("particle")]
    return {"pyarrow": version("pyarrow"), **compare(answer, parts)}


def compare(answer: Answer, tracks: list[Any]) -> dict[str, Any]:
    """Return the number of tracks and the largest difference from the answer in pixels."""
    found = np.stack([np.asarray(track, dtype=float) for track in tracks])
    difference = np.abs(found - answer.pixels[0].numpy()).max()
    return {"tracks": len(found), "largest_difference_px": float(f"{difference:.2g}")}


if __name__ == "__main__":
    main()
