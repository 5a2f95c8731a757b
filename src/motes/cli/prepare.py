"""`motes prepare`: turn a video into clips of its moving objects."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from motes.cli.options import Json, NumObjects, Out, print_result, time_span
from motes.cli.progress import bar
from motes.core.errors import InputError
from motes.core.files import all_or_none
from motes.video import Preparation, open_video
from motes.video.clips import CutSummary, cut_clips, write_sheet
from motes.video.geometry import Box, fit_box, frame_size
from motes.video.prepare import plan


def prepare(
    video: Positional[Path],
    out: Out[Path] = Path("clips.npz"),
    size: tuple[int, ...] = (96,),
    crop: tuple[int, int, int, int] | None = None,
    start: float = 0.0,
    end: float | None = None,
    fps: float | None = None,
    source_fps: float | None = None,
    num_frames: Annotated[int, arg(aliases=("--frames",))] = 30,
    stride: int | None = None,
    background: Literal["median", "black", "white"] = "median",
    threshold: float | None = None,
    colour: str | None = None,
    grow: int | None = None,
    num_objects: NumObjects[int | None] = None,
    sheet: Path | None = None,
    as_json: Json = False,
) -> None:
    """Turn a video into clips of its moving objects.

    Example: motes prepare juggling.mp4 -o clips.npz --crop 530 0 850 690 --size 160 --colour grey

    Args:
        video: mp4, mov, avi, mkv, webm, GIF, TIFF, npy, npz, or a folder of PNG or JPEG images.
        out: output file: npz of clips.
        size: frame size: pixels of the longer side, in the shape of the crop; or height and width.
        crop: left, top, right and bottom of the part to use, in pixels of the video.
        start: first second of the video to use.
        end: last second of the video to use; default: all.
        fps: frames per second to keep; default: all.
        source_fps: frames per second of a video without time stamps (folder, TIFF, array).
        num_frames: number of frames in a clip.
        stride: frames between the starts of consecutive clips; default: half a clip.
        background: median of the video, or black or white if objects rest for long.
        threshold: smallest difference from the background, 0 to 1; default: chosen from the video.
        colour: keep only pixels that are grey, or of a hue like '#ff8800'.
        grow: pixels by which moving regions are dilated, so that small objects do not fade;
            default: chosen from the video.
        num_objects: number of objects in a clip; default: estimated for each clip.
        sheet: PNG to write: a contact sheet of the clips; default: name of out with .png.
        as_json: print one JSON line instead of text.
    """
    _check(num_frames, stride, num_objects)
    span = time_span(start, end)
    source = open_video(video)
    box = fit_box(crop and Box(*crop), source.width, source.height)
    if len(size) not in (1, 2):
        raise InputError(f"size is {' '.join(map(str, size))}; give one number, or two")
    height, width = size if len(size) == 2 else frame_size(box, size[0])
    requested = Preparation(
        height, width, crop and box, fps, source_fps, background, threshold, colour, grow
    )
    total = None if source.num_frames is None else 2 * source.num_frames
    sheet = sheet or out.with_suffix(".png")
    with all_or_none(), bar("reading", total) as progress:
        first = source.num_frames or 0
        found = plan(source, requested, span, progress)
        summary = cut_clips(
            found,
            out,
            num_frames,
            stride or max(num_frames // 2, 1),
            num_objects,
            lambda done: progress(first + done),
        )
        write_sheet(sheet, summary.sheet)
    record = {
        "verb": "prepare",
        "clips": len(summary.counts),
        "empty": summary.num_empty,
        "frames": num_frames,
        "height": height,
        "width": width,
        "threshold": found.preparation.threshold,
        "grow": found.preparation.grow,
        "num_objects": summary.counts,
        "out": str(out),
        "sheet": str(sheet),
    }
    print_result(record, as_json, _sentence(summary, record))


def _check(num_frames: int, stride: int | None, num_objects: int | None) -> None:
    if not 2 <= num_frames <= 10_000:
        raise InputError(f"num_frames is {num_frames}; give 2 to 10000 frames per clip")
    if stride is not None and not 1 <= stride <= num_frames:
        raise InputError(f"stride is {stride}; give 1 to {num_frames}, the frames of a clip")
    if num_objects is not None and not 1 <= num_objects <= 16:
        raise InputError(f"num_objects is {num_objects}; give 1 to 16")


def _sentence(summary: CutSummary, record: dict[str, object]) -> str:
    """Return what was written, the numbers of objects, and the next steps."""
    counts = sorted(Counter(summary.counts).items())
    held = ", ".join(f"{count} in {clips} clips" for count, clips in counts)
    dropped = f", {summary.num_empty} empty ones skipped" if summary.num_empty else ""
    return (
        f"wrote {len(summary.counts)} clips of {record['frames']} frames of "
        f"{record['height']}x{record['width']} pixels{dropped}: {record['out']}\n"
        f"objects: {held} (threshold {record['threshold']:.3f}, dilated by {record['grow']} px)\n"
        f"check the clips: {record['sheet']}\n"
        f"next: motes train --data {record['out']} --out run"
    )
