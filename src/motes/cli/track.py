"""`motes track`: track a changing number of objects in a recording, without a model."""

from pathlib import Path

from tyro.conf import Positional

from motes.cli.options import Json, Out, time_span
from motes.cli.terminal import bar, join_paths, print_result
from motes.core.files import all_or_none, check_output_paths


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
    with bar("searching", video.num_frames) as progress:
        tracks = track_objects(video, span=span, progress=progress)
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
        "out": str(table),
        "overlay": overlay and str(overlay),
    }
    text = (
        f"track: {tracks.num_tracks} tracks in {tracks.num_frames} frames, "
        f"{record['mean_count']:.1f} objects at a time: {join_paths(table, overlay)}"
    )
    print_result(record, as_json, text)
