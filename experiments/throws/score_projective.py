"""Score gravity in metres by a projective camera and four points of the plane of each throw.

For every free flight of the capture:

1. A projective camera (3 x 4, direct linear transformation) is fitted to the tracked pixels and the
   captured places of all OTHER flights.
2. One camera sees no depth, so the vertical plane of the flight is given: it stands on the captured
   floor places of the flight's first and last moment. Four points of it, seen by that camera, are
   what `motes infer --plane` takes; nothing else of the flight's capture is used.
3. The tracked pixels become metres by `Units.by_plane`; a parabola through the heights gives
   gravity, to be compared with that of a parabola through the captured heights.

The tracks are those of a trained model (`motes infer`) or a table of `motes track`. Neither knows
the capture.

Usage: python -m experiments.throws.score_projective TSV CLIPS MODEL_OR_TABLE [...]
           --out experiments/throws/projective.json
"""

import argparse
import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import motes
from experiments.records import write_record
from experiments.throws.score_throws import Capture, fall, free_flights, read_capture
from motes.core.axes import Bool, Float
from motes.models.checkpoint import load_with_config
from motes.video import load_video_map
from motes.video.units import Units

TALL = 2.0  # metres between the lower and the upper points of a plane
WIDE = 1.0  # metres between its left and right points
FAR = 6.0  # pixels from every other position of a table: not the ball; and of the first camera
MIN_FRAMES = 8
Camera = Float[np.ndarray, "3 4"]


class Track(NamedTuple):
    """The ball in the picture, one row a frame."""

    times: Float[np.ndarray, " V"]  # seconds
    points: Float[np.ndarray, "V 2"]  # video pixels
    found: Bool[np.ndarray, " V"]  # detected in this frame; elsewhere predicted


class Flight(NamedTuple):
    """A free flight: the frames of the video in it, and its capture at their times."""

    span: slice  # of the capture
    times: Float[np.ndarray, " V"]
    points: Float[np.ndarray, "V 2"]
    found: Bool[np.ndarray, " V"]
    space: Float[np.ndarray, "V 3"]


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tsv", type=Path)
    parser.add_argument("clips", type=Path)
    parser.add_argument("tracks", nargs="+", help="run folders, or tables of motes track")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    capture = read_capture(given.tsv)
    results = []
    for name in given.tracks:
        if name.endswith(".csv"):
            results.append({"by": "motes track", **score(read_table(Path(name), capture), capture)})
        else:
            seed = load_with_config(name)[1].seed
            ball = infer_track(given.clips, name)
            results.append({"by": "motes infer", "seed": seed, **score(ball, capture)})
    write_record({"recording": given.tsv.stem, "tracks": results}, given.out)


def infer_track(clips_file: Path, name_or_folder: str) -> Track:
    """Return the ball in every frame that a clip shows, the median where clips overlap."""
    known = load_video_map(clips_file)
    assert known is not None, "the clips were not cut by motes prepare"
    where, _ = known
    model, frames = motes.load(name_or_folder), motes.load_clips(clips_file).frames.float()
    answers = [motes.infer(model, some, 1) for some in frames.split(16)]
    points = torch.cat([where.points(answer.pixels[:, 0]) for answer in answers])
    found = torch.cat([answer.found[:, 0] for answer in answers])
    return one_a_frame(
        where.times.flatten(), points.numpy().reshape(-1, 2), found.numpy().flatten()
    )


def one_a_frame(
    times: Float[np.ndarray, " M"], points: Float[np.ndarray, "M 2"], found: Bool[np.ndarray, " M"]
) -> Track:
    """Return the median of all positions of each frame."""
    moments, which = np.unique(times.round(5), return_inverse=True)
    groups = [which == k for k in range(len(moments))]
    middle = np.stack([np.median(points[group], 0) for group in groups])
    return Track(moments, middle, np.array([found[group].any() for group in groups]))


def read_table(path: Path, capture: Capture) -> Track:
    """Return the ball of a table of `motes track`, which may hold other things that move.

    In each frame the position nearest to a camera that is fitted to the tracks of free flights.
    """
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seen"] in ("True", "true", "1")]
    times = np.array([float(row["time"]) for row in rows])
    points = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    space = in_space(capture, times)
    inside = np.zeros(len(times), dtype=bool)
    for span in free_flights(capture):
        inside |= (times > capture.times[span.start]) & (times < capture.times[span.stop - 1])
    good = inside
    for limit in (200.0, 50.0, 20.0, FAR, FAR, FAR):
        camera = fit_camera(space[good], points[good])
        good = inside & (np.linalg.norm(project(camera, space) - points, axis=1) < limit)
    return one_a_frame(times[good], points[good], np.ones(good.sum(), dtype=bool))


def in_space(capture: Capture, times: Float[np.ndarray, " V"]) -> Float[np.ndarray, "V 3"]:
    """Return where the capture has the ball at some times."""
    return np.stack([np.interp(times, capture.times, axis) for axis in capture.points.T], 1)


def score(ball: Track, capture: Capture) -> dict[str, Any]:
    """Return gravity of every flight by the video, in m/s^2, beside that of the capture."""
    flights = []
    for span in free_flights(capture):
        first, last = capture.times[span.start], capture.times[span.stop - 1]
        inside = (ball.times > first) & (ball.times < last)
        times = ball.times[inside]
        flights.append(
            Flight(span, times, ball.points[inside], ball.found[inside], in_space(capture, times))
        )
    usable = [flight for flight in flights if len(flight.times) >= MIN_FRAMES]
    rows = [
        score_flight(flight, [other for other in usable if other is not flight], capture)
        for flight in usable
    ]
    video, true = (np.array([row[name] for row in rows]) for name in ("video", "capture"))
    return {
        "flights_of_the_capture": len(flights),
        "flights": rows,
        "gravity_from_video": float(video.mean()),
        "gravity_from_capture": float(true.mean()),
        "relative_error": float(video.mean() / true.mean() - 1),
        "worst_flight": float(np.abs(video / true - 1).max()),
    }


def score_flight(flight: Flight, others: list[Flight], capture: Capture) -> dict[str, Any]:
    """Return gravity in one flight, the camera being fitted to the others."""
    camera = fit_camera(
        np.concatenate([other.space for other in others]),
        np.concatenate([other.points for other in others]),
    )
    ends = capture.points[[flight.span.start, flight.span.stop - 1], :2]
    corners, places = plane_of(*ends)
    pixels = project(camera, corners)
    units = Units.by_plane(pixels, places, "m")
    heights = units.points(torch.from_numpy(flight.points))[:, 1].numpy()
    true = fall(capture.times[flight.span], capture.points[flight.span, 2])
    video = fall(flight.times, heights)
    missed = np.linalg.norm(project(camera, flight.space) - flight.points, axis=1)
    pairs = (f"{x:.1f},{y:.1f}={u:g},{v:g}" for (x, y), (u, v) in zip(pixels, places, strict=True))
    return {
        "from_second": float(capture.times[flight.span.start]),
        "frames": len(flight.times),
        "detected": int(flight.found.sum()),
        "plane": " ".join([*pairs, "m"]),
        "camera_residual_px": float(np.median(missed)),
        "video": video,
        "capture": true,
        "relative_error": video / true - 1,
    }


def plane_of(
    first: Float[np.ndarray, " 2"], last: Float[np.ndarray, " 2"]
) -> tuple[Float[np.ndarray, "4 3"], Float[np.ndarray, "4 2"]]:
    """Return four points in space of the vertical plane over two floor places, and in the plane."""
    along = WIDE * (last - first) / np.linalg.norm(last - first)
    places = np.array([[0, 0], [WIDE, 0], [WIDE, TALL], [0, TALL]])
    corners = [[*(first + along * (u > 0)), v] for u, v in places]
    return np.array(corners), places


def fit_camera(space: Float[np.ndarray, "V 3"], points: Float[np.ndarray, "V 2"]) -> Camera:
    """Return the projective camera of matching points: the direct linear transformation.

    The singular vector of the smallest singular value, after both sets of points are centred and
    scaled (Hartley and Zisserman, Multiple View Geometry, 7.1).
    """
    to_space, to_points = (_normaliser(some) for some in (space, points))
    a = _homogeneous(space) @ to_space.T
    b = (_homogeneous(points) @ to_points.T)[:, :2]
    zeros = np.zeros_like(a)
    design = np.concatenate(
        [
            np.concatenate([a, zeros, -b[:, :1] * a], 1),
            np.concatenate([zeros, a, -b[:, 1:] * a], 1),
        ]
    )
    matrix = np.linalg.svd(design, full_matrices=False)[2][-1].reshape(3, 4)
    camera: Camera = np.linalg.inv(to_points) @ matrix @ to_space
    return camera


def project(camera: Camera, space: Float[np.ndarray, "V 3"]) -> Float[np.ndarray, "V 2"]:
    """Return where points in space are in the picture."""
    seen = _homogeneous(space) @ camera.T
    pixels: Float[np.ndarray, "V 2"] = seen[:, :2] / seen[:, 2:]
    return pixels


def _homogeneous(points: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V E"]:
    return np.concatenate([points, np.ones((len(points), 1))], 1)


def _normaliser(points: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "E E"]:
    centre, spread = points.mean(0), float(points.std(0).mean())
    matrix = np.diag([*[1 / spread] * len(centre), 1.0])
    matrix[:-1, -1] = -centre / spread
    return matrix


if __name__ == "__main__":
    main()
