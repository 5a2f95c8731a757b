"""`motes watch`: follow objects in a camera or stream as frames come."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tyro.conf import Positional

from motes.cli.options import Json, ModelName, NumObjects, Out
from motes.core.errors import InputError, require
from motes.core.files import check_output_paths, growing_file

if TYPE_CHECKING:
    from motes.models.model import Model
    from motes.queries.live import LiveRow, LiveTracker
    from motes.video import Frame, Plan, Video

COLUMNS = (
    "frame", "particle", "x", "y", "sd_x", "sd_y", "cov_xy", "vx", "vy", "observed", "seen",
    "time",
)  # fmt: skip


def watch(
    source: Positional[str],
    *,
    model: ModelName[str],
    num_objects: NumObjects[int | None] = None,
    out: Out[Path | None] = None,
    delay: int = 5,
    every: int = 5,
    window: int = 30,
    warm_up: float = 3.0,
    ring: Path | None = None,
    ring_seconds: float = 60.0,
    seconds: float | None = None,
    as_json: Json = False,
) -> None:
    """Follow objects in a camera or stream; write rows as frames come.

    Example: motes watch 0 --model runs/rig --out live.csv --ring last-minute

    Args:
        source: camera number or device, stream (rtsp://...), - for standard input, or a video file,
            which is played at its own speed.
        model: shipped model or run folder, trained on such recordings.
        num_objects: number of objects in a clip; default: the usual number during the warm-up.
        out: output file: CSV rows as they come; default: standard output.
        delay: later frames that confirm a position before it is written.
        every: frames between two updates; a row waits for at most delay + every - 1 later frames.
        window: frames that a position may depend on.
        warm_up: seconds at the start from which the background is found; no rows are written.
        ring: new folder that always holds the last pictures.
        ring_seconds: length of that buffer.
        seconds: stop after this time of the source; default: at its end, or with Ctrl-C.
        as_json: print one JSON line instead of text for each row.
    """
    from motes.models.checkpoint import load
    from motes.video.live import Ring, open_source

    require(0 < warm_up <= 600, f"warm_up is {warm_up:g}; give seconds above 0 and up to 600")
    check_output_paths(out)
    loaded, video = load(model), open_source(source)
    rate = video.fps or 25.0
    buffer = None if ring is None else Ring(ring, max(round(ring_seconds * rate), 1))
    frames = kept(video.frames(), buffer, rate, seconds)
    plan, count = prepare_live(model, loaded, video, frames, warm_up)
    with _rows_file(out) as file:
        write = _writer(file, as_json)
        tracker = _tracker(loaded, num_objects or count, window, delay, every)
        fps = plan.preparation.fps or rate
        bound = tracker.longest_delay / fps
        print(
            f"motes: {tracker.num_objects} objects at {fps:g} frames/s; a row comes at most "
            f"{tracker.longest_delay} frames ({bound:.2f} s) and two updates after its frame",
            file=sys.stderr,
        )
        try:
            for row in follow(tracker, plan, fps):
                write(row)
                file.flush()
        except KeyboardInterrupt:
            pass


def _writer(file: TextIO, as_json: bool) -> Callable[[tuple[Any, ...]], object]:
    """Return a function that writes a row, as CSV with a head or as a line of JSON."""
    if as_json:
        return lambda row: file.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")
    table = csv.writer(file)
    table.writerow(COLUMNS)
    return table.writerow


def _tracker(model: "Model", count: int, window: int, delay: int, every: int) -> "LiveTracker":
    from motes.queries.live import LiveTracker

    require(count >= 1, "nothing moved during the warm-up; give --num-objects")
    return LiveTracker(model, count, window, delay, every)


def kept(
    frames: "Iterator[Frame]", ring: Any, rate: float, seconds: float | None
) -> "Iterator[Frame]":
    """Yield the frames up to a time, each stored in the ring buffer first."""
    for frame in frames:
        if seconds is not None and frame.time > seconds:
            return
        if ring is not None:
            ring.add(round(frame.time * rate), frame.picture)
        yield frame


def prepare_live(
    name: str, model: "Model", video: "Video", frames: "Iterator[Frame]", warm_up: float
) -> "tuple[Plan, int]":
    """Return the plan of the frames after the warm-up, and the usual number of objects in it."""
    from dataclasses import replace

    from motes.video import Preparation, find_preparation, plan
    from motes.video.foreground import blob_masses, typical_count

    first: list[Frame] = []
    for frame in frames:
        first.append(frame)
        if frame.time - first[0].time >= warm_up:
            break
    require(len(first) >= 2, f"{video.name} ended during the warm-up; give less --warm-up")
    if not model.black_and_white:
        raise InputError(f"{name} was trained on grey or colour frames; watch needs a sprite model")
    height, width = model.image_size
    stored = find_preparation(name) or Preparation(height, width)
    begun = replace(video, frames=lambda: iter(first), rereadable=True, num_frames=len(first))
    found = plan(begun, replace(stored, height=height, width=width))
    count = typical_count([blob_masses(prepared.frame) for prepared in found.frames()])
    later = replace(video, frames=lambda: frames, rereadable=True)
    return replace(found, video=later), count


def follow(tracker: "LiveTracker", plan: "Plan", fps: float) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a plan's frames as they come, in pixels and seconds of the source."""
    import numpy as np

    shifts: dict[int, tuple[float, float]] = {}
    times: dict[int, float] = {}
    scale, offset = np.array(plan.geometry.scale), np.array(plan.geometry.offset)
    last = -1

    def shown(row: "LiveRow") -> tuple[Any, ...]:
        shift = np.array(shifts.get(row.frame, (0.0, 0.0)))
        x, y = (row.place * scale + offset + shift).tolist()
        spread = row.covariance * scale[:, None] * scale
        vx, vy = (row.velocity * scale * fps).tolist()
        sds = np.sqrt(np.diagonal(spread)).tolist()
        when = times.get(row.frame, row.frame / fps)
        numbers = (x, y, *sds, float(spread[0, 1]), vx, vy)
        return row.frame, row.particle, *numbers, row.observed, row.found, when

    for prepared in plan.frames():
        index = round(prepared.time * fps)
        if index <= last:
            continue  # two frames in the time of one
        last = index
        shifts[index], times[index] = prepared.shift, prepared.time
        for old in [known for known in times if known < index - 10 * tracker.window]:
            del shifts[old], times[old]
        yield from map(shown, tracker.push(index, prepared.frame / np.float32(255)))
    yield from map(shown, tracker.flush())


@contextmanager
def _rows_file(path: Path | None) -> Iterator[TextIO]:
    """Yield the file of the rows, or standard output."""
    if path is None:
        yield sys.stdout
        return
    with growing_file(path) as file:
        yield file
