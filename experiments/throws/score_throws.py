"""Score the gravity inferred from a video of throws against simultaneous motion capture.

The camera scale is fitted: an affine map from captured positions (metres) to tracked pixels. Free
flights are taken from the capture; in each, a parabola is fitted to the track that the model
inferred from the video, and the map converts its acceleration into m/s^2 along the vertical. The
model receives nothing of the capture.

Usage: python -m experiments.throws.score_throws TSV CLIPS MODEL [MODEL ...]
           --out experiments/throws/throws.json
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import motes
from experiments.records import write_record
from motes.core.axes import Bool, Float
from motes.models.checkpoint import load_with_config
from motes.video import load_video_map

FLOOR = 0.35  # metres: lower is a hand, a bounce or a rest
SHORTEST = 0.3  # seconds of a flight
CAPTURE_FALL = (8.5, 11.0)  # m/s^2: what a free flight of the capture may show
FAR = 12.0  # video pixels: farther from the fitted camera is not the ball


class Capture(NamedTuple):
    """The ball's path in space, NaN where no marker was seen."""

    times: Float[np.ndarray, " M"]
    points: Float[np.ndarray, "M 3"]  # metres, z up


def main() -> None:
    """Scores and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tsv", type=Path)
    parser.add_argument("clips", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    capture = read_capture(given.tsv)
    models = [gravity(name, given.clips, capture) for name in given.models]
    write_record({"recording": given.tsv.stem, "models": models}, given.out)


def gravity(name_or_folder: str, clips_file: Path, capture: Capture) -> dict[str, Any]:
    """Gravity by the tracks of a model, beside that of the capture."""
    config = load_with_config(name_or_folder)[1]
    times, points = tracked(clips_file, name_or_folder)
    space = np.stack([np.interp(times, capture.times, axis) for axis in capture.points.T], 1)
    camera, good = fit_camera(space, points)
    rows = [
        row
        for flight in free_flights(capture)
        if (row := score(flight, capture, times[good], points[good], camera)) is not None
    ]
    video, true = ([row[name] for row in rows] for name in ("video", "capture"))
    missed = np.linalg.norm(project(camera, space[good]) - points[good], axis=1)
    return {
        "seed": config.seed,
        "steps": config.schedule.iterations,
        "camera_residual_px": float(np.median(missed)),
        "flights": rows,
        "gravity_from_video": float(np.mean(video)),
        "gravity_from_capture": float(np.mean(true)),
        "relative_error": float(np.mean(video) / np.mean(true) - 1),
    }


def tracked(
    clips_file: Path, name_or_folder: str
) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, "V 2"]]:
    """Seconds and video pixels of the ball in every frame of every clip."""
    known = load_video_map(clips_file)
    assert known is not None, "the clips were not cut by motes prepare"
    where, _ = known
    model, frames = motes.load(name_or_folder), motes.load_clips(clips_file).frames.float()
    found = [where.points(motes.infer(model, some, 1).pixels[:, 0]) for some in frames.split(16)]
    return where.times.flatten(), torch.cat(found).numpy().reshape(-1, 2)


def read_capture(path: Path) -> Capture:
    """The ball of a Qualisys table: its markers without a name are the ball, one after another."""
    lines = [line.rstrip("\n").split("\t") for line in path.read_text("utf-8").splitlines()]
    header = next(number for number, line in enumerate(lines) if line[0] == "Frame")
    named = sum(
        bool(name) for name in next(line for line in lines if line[0] == "MARKER_NAMES")[1:]
    )
    markers = len([name for name in lines[header][2:] if name.endswith("X")])
    width = 2 + 3 * markers
    table = np.array(
        [[float(cell or "nan") for cell in line[:width]] for line in lines[header + 1 :]]
    )
    points = table[:, 2:].reshape(len(table), markers, 3)[:, named:] / 1000
    points[(points == 0).all(-1)] = np.nan
    ball = np.full((len(table), 3), np.nan)
    for marker in points.transpose(1, 0, 2):
        seen = ~np.isnan(marker[:, 0])
        ball[seen] = marker[seen]
    return Capture(table[:, 1], ball)


def free_flights(capture: Capture) -> list[slice]:
    """Spans of the capture in which the ball is high and nothing but gravity acts."""
    high = np.concatenate([[False], capture.points[:, 2] > FLOOR, [False]])
    starts, ends = (np.flatnonzero(np.diff(high.astype(int)) == step) for step in (1, -1))
    spans = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    return [
        span
        for span in spans
        if capture.times[span.stop - 1] - capture.times[span.start] > SHORTEST
        and CAPTURE_FALL[0] < fall(capture.times[span], capture.points[span, 2]) < CAPTURE_FALL[1]
    ]


def fall(times: Float[np.ndarray, " M"], heights: Float[np.ndarray, " M"]) -> float:
    """The downward acceleration of the parabola through heights."""
    return float(-2 * np.polyfit(times - times[0], heights, 2)[0])


def fit_camera(
    space: Float[np.ndarray, "V 3"], points: Float[np.ndarray, "V 2"]
) -> tuple[Float[np.ndarray, "4 2"], Bool[np.ndarray, " V"]]:
    """The affine map from metres to pixels, and the frames of which it is true."""
    design = np.concatenate([space, np.ones((len(space), 1))], 1)
    known = ~np.isnan(space[:, 0]) & (space[:, 2] > FLOOR)
    good = known
    for _ in range(10):
        camera = np.linalg.lstsq(design[good], points[good], rcond=None)[0]
        apart = np.linalg.norm(design @ camera - points, axis=1)
        good = known & (apart < max(FAR, 3 * float(np.median(apart[known]))))
    return camera, good


def project(
    camera: Float[np.ndarray, "4 2"], space: Float[np.ndarray, "V 3"]
) -> Float[np.ndarray, "V 2"]:
    """Where points in space are in the picture."""
    pixels: Float[np.ndarray, "V 2"] = space @ camera[:3] + camera[3]
    return pixels


def score(
    flight: slice,
    capture: Capture,
    times: Float[np.ndarray, " V"],
    points: Float[np.ndarray, "V 2"],
    camera: Float[np.ndarray, "4 2"],
) -> dict[str, Any] | None:
    """Gravity in one flight by the video and by the capture; None where too few frames show it."""
    first, last = capture.times[flight.start], capture.times[flight.stop - 1]
    inside = (times > first) & (times < last)
    if len(np.unique(times[inside])) < 8:
        return None
    t = times[inside] - first
    acceleration = 2 * np.polyfit(t, points[inside], 2)[0]  # pixels a second squared
    up = camera[2]  # pixels that a metre of height makes
    return {
        "from_second": float(first),
        "frames": len(np.unique(times[inside])),
        "video": float(-(acceleration @ up) / (up @ up)),
        "capture": fall(capture.times[flight], capture.points[flight, 2]),
    }


if __name__ == "__main__":
    main()
