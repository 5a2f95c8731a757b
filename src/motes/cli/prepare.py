"""`motes prepare`: clips of one video, or of many."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from motes.cli import batch
from motes.cli.options import (
    Json,
    LengthOptions,
    NumObjects,
    Out,
    ProcessOptions,
    time_span,
)
from motes.cli.terminal import bar, print_result, print_warnings
from motes.core.errors import InputError, require
from motes.core.files import all_or_none, check_output_paths

if TYPE_CHECKING:
    from motes.video import Preparation, Video
    from motes.video.recordings import Recording
    from motes.video.units import Units

SHORTEST = 5  # frames of a recording that is shorter than a clip


@dataclass(frozen=True)
class Cutting:
    """How clips are cut from videos."""

    size: tuple[int, ...] = (96,)
    """frame size: pixels of the longer side, in the shape of the crop; or height and width."""
    crop: tuple[int, int, int, int] | None = None
    """left, top, right and bottom of the part to use, in pixels of the video."""
    start: float = 0.0
    """first second of the video to use."""
    end: float | None = None
    """last second of the video to use; default: all."""
    fps: float | None = None
    """frames per second to keep; default: all, of videos that differ the lowest rate."""
    source_fps: float | None = None
    """frames per second of a video without time stamps (folder, TIFF, array, some GIFs)."""
    num_frames: Annotated[int, arg(aliases=("--frames",))] = 30
    """number of frames in a clip."""
    stride: int | None = None
    """frames between the starts of consecutive clips; default: half a clip."""
    background: Literal["median", "black", "white"] = "median"
    """median of the video, or black or white if objects rest for long."""
    threshold: float | None = None
    """smallest difference from the background, 0 to 1; default: chosen from the video."""
    colour: str | None = None
    """keep only pixels that are grey, or of a hue like '#ff8800'."""
    grow: Annotated[
        int | None,
        arg(
            help="pixels by which moving regions are dilated, so that small objects do not fade; "
            "default: chosen from the video."
        ),
    ] = None
    camera: Literal["auto", "still"] = "auto"
    """auto takes out a small motion of the camera; still leaves it in."""
    keep: tuple[str, ...] = ()
    """polygons outside which nothing counts, as '10,20 200,20 100,150' in video pixels."""
    mask: tuple[str, ...] = ()
    """polygons in which nothing counts."""
    num_objects: NumObjects[int | None] = None
    """number of objects in a clip; default: estimated for each clip."""

    def check(self) -> None:
        """Raise `InputError` if a number is out of range."""
        frames = self.num_frames
        require(2 <= frames <= 10_000, f"num_frames is {frames}; give 2 to 10000 frames per clip")
        if self.stride is not None and not 1 <= self.stride <= frames:
            raise InputError(f"stride is {self.stride}; give 1 to {frames}, the frames of a clip")
        if self.num_objects is not None and not 1 <= self.num_objects <= 16:
            raise InputError(f"num_objects is {self.num_objects}; give 1 to 16")
        if len(self.size) not in (1, 2):
            raise InputError(f"size is {' '.join(map(str, self.size))}; give one number, or two")
        time_span(self.start, self.end)

    def frame_size(self, video: "Video") -> tuple[int, int]:
        """Return height and width of the frames of a video."""
        from motes.video.geometry import Box, fit_box, frame_size

        box = fit_box(self.crop and Box(*self.crop), video.width, video.height)
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        return frame_size(box, self.size[0])

    def preparation(self, height: int, width: int, units: "Units | None") -> "Preparation":
        """Return the preparation that these options ask for."""
        from motes.video import Preparation
        from motes.video.geometry import Box, parse_polygon

        return Preparation(
            *(height, width, self.crop and Box(*self.crop), self.fps, self.source_fps),
            *(self.background, self.threshold, self.colour, self.grow, self.camera),
            *(tuple(map(parse_polygon, self.keep)), tuple(map(parse_polygon, self.mask)), units),
        )


CuttingOptions = Annotated[Cutting, arg(name="")]  # its fields become options of the command


@dataclass(frozen=True)
class CutJob:
    """The clips to cut from one video; can be sent to another process."""

    video: Path
    cutting: Cutting
    units: "Units | None" = None
    size: tuple[int, int] | None = None  # height and width; None: by the video
    sheet: Path | None = None
    shortest: int | None = None  # frames of a video that is one clip, though shorter than a clip


def prepare(
    video: Positional[tuple[Path, ...]],
    cutting: CuttingOptions,
    lengths: LengthOptions,
    processes: ProcessOptions,
    *,
    out: Out[Path] = Path("clips.npz"),
    sheet: Path | None = None,
    resume: bool = False,
    as_json: Json = False,
) -> None:
    """Turn videos into clips of their moving objects.

    Example: motes prepare juggling.mp4 -o clips.npz --crop 530 0 850 690 --size 160 --colour grey

    Example: motes prepare monday/ 'tuesday/*.mp4' -o clips.npz --jobs 4

    Args:
        video: mp4, mov, avi, mkv, webm, GIF, TIFF, npy, npz, or a folder of PNG or JPEG images;
            several, folders of videos and patterns in quotes become one file of clips.
        cutting: how clips are cut.
        lengths: the size of things.
        processes: where the work is done.
        out: output file: npz of clips.
        sheet: PNG to write: a contact sheet of the clips; default: name of out with .png.
        resume: skip recordings that are done.
        as_json: print one JSON line instead of text.
    """
    from motes.video.recordings import are_many, find_recordings

    cutting.check()
    units = lengths.units()
    check_output_paths(out, sheet)
    if are_many(video):
        workers = batch.Workers(processes.jobs, processes.cluster, resume)
        results = prepare_many(find_recordings(video), cutting, units, out, workers)
        print_warnings(batch.recording_warnings(results))
        record = _record_of_many(results, cutting, out)
        print_result(record, as_json, _prepared_text(record))
        batch.require_all(results, batch.parts_folder(out))
        return
    if sheet is None and (out.is_file() or not out.exists()):  # none beside a device or FIFO
        sheet = out.with_suffix(".png")
    record = cut(CutJob(video[0], cutting, units, sheet=sheet), out, show_progress=True)
    print_warnings(record["warnings"])
    print_result(record, as_json, _prepared_text(record))


def cut(job: CutJob, out: Path, show_progress: bool = False) -> dict[str, Any]:
    """Cut the clips of one video, write them and a contact sheet; return what was written."""
    from motes.video import open_video, plan
    from motes.video.clips import cut_clips, write_sheet

    cutting, source = job.cutting, open_video(job.video)
    height, width = job.size or cutting.frame_size(source)
    requested = cutting.preparation(height, width, job.units)
    span = time_span(cutting.start, cutting.end)
    total = None if source.num_frames is None else 2 * source.num_frames
    frames = cutting.num_frames
    windows = (frames, cutting.stride or max(frames // 2, 1), cutting.num_objects)
    with all_or_none(), bar("reading", total, hidden=not show_progress) as progress:
        found = plan(source, requested, span, progress)

        def second_pass(done: int) -> None:
            progress((source.num_frames or 0) + done)

        summary = cut_clips(found, out, *windows, second_pass, shortest=job.shortest)
        if job.sheet is not None:
            write_sheet(job.sheet, summary.sheet)
    return {
        "verb": "prepare",
        "clips": len(summary.counts),
        "empty": summary.num_empty,
        "frames": frames,
        "height": height,
        "width": width,
        "threshold": found.preparation.threshold,
        "grow": found.preparation.grow,
        "num_objects": summary.counts,
        "warnings": summary.warnings,
        "out": str(out),
        "sheet": None if job.sheet is None else str(job.sheet),
    }


def prepare_many(
    recordings: "Sequence[Recording]",
    cutting: Cutting,
    units: "Units | None",
    out: Path,
    workers: batch.Workers,
) -> list[batch.Result]:
    """Cut the clips of several videos and merge them; return how each video went.

    Frames have one size and one rate: the largest size and the lowest rate of all. A recording
    shorter than a clip is one clip whose missing frames are unobserved.
    """
    from motes.video.merge import merge_clips

    folder = batch.parts_folder(out)
    cutting, size = _common_frames(recordings, cutting)
    jobs = []
    for recording in recordings:
        part = batch.part_path(folder, recording, ".npz")
        video = recording.path.resolve()
        work = CutJob(video, cutting, units, size, part.with_suffix(".png"), SHORTEST)
        key = batch.job_key(recording.path, work)
        jobs.append(batch.Job(recording.name, cut, work, part, key))
    results = batch.run_jobs(jobs, workers)
    batch.write_summary(folder, results)
    batch.require_some(results)
    done = [(result.recording, result.part) for result in results if result.failed is None]
    merge_clips(out, done, cutting.preparation(*size, units))
    return results


def _common_frames(
    recordings: "Sequence[Recording]", cutting: Cutting
) -> tuple[Cutting, tuple[int, int]]:
    """Return the cutting at a rate that all videos have, and a height and width for all frames.

    Videos that cannot be opened are left out; their jobs will say why.
    """
    from motes.video import open_video
    from motes.video.merge import RATE_TOLERANCE

    sizes, rates = [], []
    for recording in recordings:
        try:
            video = open_video(recording.path)
            sizes.append(cutting.frame_size(video))
        except InputError:
            continue
        if (rate := cutting.source_fps or video.fps) is not None:
            rates.append(rate)
    if cutting.fps is None and rates and max(rates) > (1 + RATE_TOLERANCE) * min(rates):
        cutting = replace(cutting, fps=min(rates))
    height, width = (max(lengths) for lengths in zip(*sizes or [(4, 4)], strict=True))
    return cutting, (height, width)


def _record_of_many(results: Sequence[batch.Result], cutting: Cutting, out: Path) -> dict[str, Any]:
    """Return what was written about several videos."""
    done = [result for result in results if result.failed is None]
    first = done[0].record
    return {
        "verb": "prepare",
        "recordings": {result.recording: result.record["clips"] for result in done},
        "failed": batch.failures(results),
        "clips": sum(result.record["clips"] for result in done),
        "empty": sum(result.record["empty"] for result in done),
        "frames": cutting.num_frames,
        **{name: first[name] for name in ("height", "width")},
        "num_objects": [count for result in done for count in result.record["num_objects"]],
        "warnings": batch.recording_warnings(results),
        "out": str(out),
        "sheet": str(batch.parts_folder(out)),
    }


def _prepared_text(record: dict[str, Any]) -> str:
    """Return what was written, the numbers of objects, and the next steps."""
    counts = sorted(Counter(record["num_objects"]).items())
    held = ", ".join(f"{count} in {clips} clips" for count, clips in counts)
    dropped = f", {record['empty']} empty ones skipped" if record["empty"] else ""
    look = f"check the clips: {record['sheet']}\n" if record["sheet"] else ""
    chosen = ""
    if "threshold" in record:
        chosen = f" (threshold {record['threshold']:.3f}, dilated by {record['grow']} px)"
    source = f" of {len(record['recordings'])} recordings" if "recordings" in record else ""
    return (
        f"wrote {record['clips']} clips{source} of {record['frames']} frames of "
        f"{record['height']}x{record['width']} pixels{dropped}: {record['out']}\n"
        f"objects: {held}{chosen}\n{look}"
        f"next: motes train --data {record['out']} --out run"
    )
