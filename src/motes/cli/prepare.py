"""`motes prepare`: a person's own video in, clips that a model learns from out."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from motes.cli.options import Json, seconds, tell
from motes.cli.progress import bar
from motes.core.errors import InputError
from motes.core.files import all_or_none
from motes.video import Preparation, open_video
from motes.video.contact_sheet import write_sheet
from motes.video.cutting import CutSummary, cut_clips
from motes.video.geometry import Box, fit_box, frame_size
from motes.video.prepare import plan


def prepare(
    video: Positional[Path],
    out: Annotated[Path, arg(aliases=("-o",))] = Path("clips.npz"),
    size: tuple[int, ...] = (96,),
    crop: tuple[int, int, int, int] | None = None,
    start: float = 0.0,
    end: float | None = None,
    fps: float | None = None,
    source_fps: float | None = None,
    frames: int = 30,
    stride: int | None = None,
    background: Literal["median", "black", "white"] = "median",
    threshold: float | None = None,
    colour: str | None = None,
    grow: int | None = None,
    num_objects: int | None = None,
    sheet: Path | None = None,
    as_json: Json = False,
) -> None:
    """Turns a video into clips of what moves in it, to learn from and to ask about.

    Example: motes prepare juggling.mp4 -o clips.npz --crop 530 0 850 690 --size 160 --colour grey

    Args:
        video: mp4, mov, avi, mkv, webm, GIF, TIFF, npy, npz, or a folder of PNG/JPEG pictures.
        out: npz file to write.
        size: longer side of a frame in pixels, in the shape of the crop; or height and width.
        crop: left, top, right and bottom of the part to use, in pixels of the video.
        start: first second to use.
        end: last second to use.
        fps: frames a second to keep; default: all.
        source_fps: pictures a second of a video without a clock (a folder, a TIFF, an array).
        frames: in a clip.
        stride: frames from the start of a clip to that of the next; default: half a clip.
        background: median of the video, or black or white where objects may rest for long.
        threshold: smallest difference from the background, 0 to 1; default: found by itself.
        colour: take only pixels that are grey, or of a hue like '#ff8800'.
        grow: pixels by which all that moves is made larger, so that small objects do not fade;
            default: found by itself.
        num_objects: in every clip; default: what each clip seems to hold.
        sheet: PNG of what the model will see; default: the name of out with .png.
        as_json: print one JSON line instead of a sentence.
    """
    _check(frames, stride, num_objects)
    span = seconds(start, end)
    source = open_video(video)
    box = fit_box(crop and Box(*crop), source.width, source.height)
    if len(size) not in (1, 2):
        raise InputError(f"size is {' '.join(map(str, size))}; give one number, or two")
    height, width = size if len(size) == 2 else frame_size(box, size[0])
    asked = Preparation(
        height, width, crop and box, fps, source_fps, background, threshold, colour, grow
    )
    total = None if source.num_frames is None else 2 * source.num_frames
    sheet = sheet or out.with_suffix(".png")
    with all_or_none(), bar("reading", total) as progress:
        first = source.num_frames or 0
        found = plan(source, asked, span, progress)
        summary = cut_clips(
            found,
            out,
            frames,
            stride or max(frames // 2, 1),
            num_objects,
            lambda done: progress(first + done),
        )
        write_sheet(sheet, summary.shown)
    record = {
        "verb": "prepare",
        "clips": len(summary.counts),
        "empty": summary.num_empty,
        "frames": frames,
        "height": height,
        "width": width,
        "threshold": found.preparation.threshold,
        "grow": found.preparation.grow,
        "num_objects": summary.counts,
        "out": str(out),
        "sheet": str(sheet),
    }
    tell(record, as_json, _sentence(summary, record))


def _check(frames: int, stride: int | None, num_objects: int | None) -> None:
    if not 2 <= frames <= 10_000:
        raise InputError(f"frames is {frames}; give 2 to 10000 frames a clip")
    if stride is not None and not 1 <= stride <= frames:
        raise InputError(f"stride is {stride}; give 1 to {frames}, the frames of a clip")
    if num_objects is not None and not 1 <= num_objects <= 16:
        raise InputError(f"num_objects is {num_objects}; give 1 to 16")


def _sentence(summary: CutSummary, record: dict[str, object]) -> str:
    """What was cut, how many objects it seems to hold, and where to look."""
    counts = sorted(Counter(summary.counts).items())
    held = ", ".join(f"{count} in {clips} clips" for count, clips in counts)
    dropped = f", {summary.num_empty} empty ones left out" if summary.num_empty else ""
    return (
        f"cut {len(summary.counts)} clips of {record['frames']} frames of "
        f"{record['height']}x{record['width']} pixels{dropped}: {record['out']}\n"
        f"objects: {held} (threshold {record['threshold']:.3f}, grown by {record['grow']})\n"
        f"look at what the model will see: {record['sheet']}\n"
        f"then: motes train --data {record['out']} --out run"
    )
