"""Positions in shrunk videos are fitted to the pixels of the recording."""

import csv
from pathlib import Path

import numpy as np

from motes.cli import main
from motes.video.source import write_mp4
from swinging import SIZE, swinging_run

FACTOR, FRAMES, RADIUS = 4, 60, 10.0


def truth() -> np.ndarray:
    """Return the centres [2, T, 2] of two disks in pixels of the recording."""
    t = np.arange(FRAMES)
    one = np.stack([44 + 24 * np.sin(t / 9), 80 + 40 * np.cos(t / 11)], -1)
    two = np.stack([112 + 24 * np.cos(t / 8), 80 + 40 * np.sin(t / 7)], -1)
    return np.stack([one, two])


def errors(table: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return distances of seen rows from the nearest true centre, and stated deviations."""
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["seen"] == "True"]
    places = truth()
    away = [
        np.hypot(*(places[:, int(row["frame"])] - (float(row["x"]), float(row["y"]))).T).min()
        for row in rows
    ]
    return np.array(away), np.array([float(row["sd_x"]) for row in rows])


def test_positions_in_a_shrunk_video_are_fitted_to_its_pixels(tmp_path: Path) -> None:
    y, x = np.mgrid[: FACTOR * SIZE, : FACTOR * SIZE].astype(float)
    frames = []
    for now in truth().transpose(1, 0, 2):
        cover = sum((RADIUS + 0.5 - np.hypot(x - cx, y - cy)).clip(0, 1) for cx, cy in now)
        frames.append(np.repeat(np.rint(20 + 200 * cover).astype(np.uint8)[..., None], 3, 2))
    write_mp4(tmp_path / "swing.mp4", iter(frames), 25.0)
    run = swinging_run(tmp_path / "run")
    asked = ["infer", f"{tmp_path}/swing.mp4", f"--model={run}", "--num-objects=2", "--force"]
    found = {}
    for name, more in (("fine", []), ("coarse", ["--no-full-resolution"])):
        assert main([*asked, f"--out={tmp_path}/{name}.csv", *more]) == 0
        found[name] = errors(tmp_path / f"{name}.csv")
    (fine, stated), (coarse, before) = found["fine"], found["coarse"]
    assert len(fine) == len(coarse) > 1.8 * FRAMES
    # The codec and rounding leave hundredths of a pixel; a shrunk pixel is four of them.
    assert np.median(fine) < 0.1 < np.median(coarse)
    assert np.median(stated) < 0.2 < np.median(before)
