"""`motes track`: track a changing number of objects in a recording, without a model."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from motes.cli.options import Json, Out, time_span
from motes.cli.terminal import bar, join_paths, print_result, print_warnings, time_left
from motes.core.files import all_or_none, check_output_paths

if TYPE_CHECKING:
    from motes.video import Video

EVERY = 30.0  # seconds between lines of progress where there is no terminal


def track(
    recording: Positional[Path],
    out: Out[Path | None] = None,
    overlay: Path | None = None,
    start: float = 0.0,
    end: float | None = None,
    as_json: Json = False,
) -> None:
    """Track small objects that come and go, without a model; write a table.

    Example: motes track cells.mov --out tracks.csv

    Example: motes track cells.mov --start 2 --end 12 --overlay tracks.mp4

    Args:
        recording: video: mp4, mov, avi, GIF, TIFF, npy or npz file, or folder of images.
        out: output file: CSV, Parquet, .trackpy.csv, .napari.csv, .xml (TrackMate) or .txt (MOT);
            default: name of the recording with -track.csv.
        overlay: mp4 or GIF to write: the video with rings, dashed where not seen.
        start: first second of the video to use.
        end: last second of the video to use; default: all.
        as_json: print one JSON line instead of text.
    """
    from motes.output.formats import format_of, write_tracks
    from motes.output.many import overlay_tracks
    from motes.output.tracks import check_overlay
    from motes.tracking import COLUMNS
    from motes.tracking import track as track_objects
    from motes.video import open_video

    source = recording.resolve() if recording.name in ("", "..") else recording
    table = out or source.with_name(f"{source.stem}-track.csv")
    if overlay is not None:
        check_overlay(overlay)
    check_output_paths(table, overlay)
    span = time_span(start, end)
    video = open_video(recording)
    total = _frames_read(video, span)
    with bar("searching", total) as progress, _lines(progress, total) as report:
        tracks = track_objects(video, span=span, progress=report)
    print_warnings(tracks.fit.warnings)
    with all_or_none():
        if overlay is not None:
            with bar("drawing", tracks.num_frames) as progress:
                overlay_tracks(overlay, video, tracks, span, progress)
        # These formats have a place for whether an object was observed in a frame, in that name.
        renamed = "observed" if format_of(table) in ("trackmate", "mot") else "seen"
        columns = [renamed if name == "seen" else name for name in COLUMNS]
        write_tracks(table, columns, tracks.rows(), diameter=tracks.diameter)
    record = {
        "verb": "track",
        "frames": tracks.num_frames,
        "tracks": tracks.num_tracks,
        "mean_count": float(tracks.expected_count.mean()),
        "detections": int(tracks.row_seen.sum()),
        "warnings": list(tracks.fit.warnings),
        "out": str(table),
        "overlay": overlay and str(overlay),
    }
    text = (
        f"track: {tracks.num_tracks} tracks in {tracks.num_frames} frames, "
        f"{record['mean_count']:.1f} objects at a time: {join_paths(table, overlay)}"
    )
    print_result(record, as_json, text)


def _frames_read(video: "Video", span: tuple[float, float]) -> int | None:
    """Return the number of frames that are read in two passes; None where it is not known."""
    if video.num_frames is None:
        return None
    fps = video.fps or 1.0
    first, last = (min(max(second, 0.0), video.num_frames / fps) for second in span)
    return max(1, round(2 * (last - first) * fps))


@contextlib.contextmanager
def _lines(bar_to: Callable[[int], None], total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that sets the bar, and prints a line now and then without a terminal."""
    begun = shown = time.monotonic()

    def report(done: int) -> None:
        nonlocal shown
        bar_to(done)
        now = time.monotonic()
        if sys.stderr.isatty() or total is None or now - shown < EVERY:
            return
        shown = now
        left = (now - begun) * max(total - done, 0) / max(done, 1)
        print(
            f"track: {done} of {total} frames read, {time_left(left)} left",
            file=sys.stderr,
            flush=True,
        )

    yield report
