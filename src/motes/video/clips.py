"""Clips of a video: cut into an npz file with the map back, or one clip of all its frames."""

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt8
from motes.core.errors import InputError, require
from motes.core.files import atomic_path
from motes.data.clips import MAX_BYTES, load_arrays
from motes.video.checks import ClipCounts, count_warnings
from motes.video.foreground import blob_masses, object_counts, typical_count
from motes.video.geometry import Geometry, VideoMap
from motes.video.prepare import (
    PREPARATION,
    Plan,
    Preparation,
    PreparedFrame,
    find_preparation,
    preparation_from_json,
    preparation_to_json,
)
from motes.video.source import Video, to_rgb
from motes.video.streaming import prepared_video

MAX_FRAMES = 10_000  # of a whole clip
SHEET_CLIPS, SHEET_FRAMES = 8, 10  # rows and columns of a contact sheet
CELL = 120  # pixels of the longer side of a frame on the sheet
GAP, LABEL = 4, 64  # pixels between frames, and for the label of a row
CHUNK_BYTES = 2**20  # copied at a time
NO_PIXELS: UInt8[np.ndarray, "0 0"] = np.zeros((0, 0), dtype=np.uint8)
MEMBERS = ("video_scale", "video_offset", "video_times", "video_numbers", "video_preparation")
MAP = "video_map.json"  # in a run folder: where its clips are in the video
SHIFTS = "video_shifts"  # stored if the camera moves
RECORDINGS = "video_recordings"  # names, one a clip, stored if there are several recordings


@dataclass(frozen=True, eq=False)
class SheetRow:
    """A clip on the contact sheet."""

    time: float
    num_objects: int
    frames: UInt8[np.ndarray, "T height width"]


@dataclass(frozen=True)
class CutSummary:
    """The clips that were cut from a video."""

    counts: list[int]  # estimated number of objects in each clip
    num_empty: int  # clips that were left out because they hold no objects
    sheet: list[SheetRow]  # clips from all parts of the video, for a contact sheet
    warnings: list[str]  # one line each, with the option that helps


def cut_clips(
    plan: Plan,
    path: Path,
    num_frames: int,
    stride: int,
    num_objects: int | None,
    progress: Callable[[int], None] = lambda done: None,
    *,
    shortest: int | None = None,
) -> CutSummary:
    """Write the clips of a video to an npz file and return their summary.

    Clips of `num_frames` frames start `stride` frames apart; `num_objects` None estimates the
    number for each clip; `progress` is called with the number of frames read. A shorter video is
    one clip of its own length if it has `shortest` frames or more.
    """
    counts: list[int] = []
    sheet: list[SheetRow] = []
    observed: list[ClipCounts] = []
    num_empty, every = 0, 1

    def frames() -> Iterator[tuple[PreparedFrame, list[float]]]:
        for prepared in plan.frames():
            progress(prepared.number + 1)
            yield prepared, blob_masses(prepared.frame)

    with clip_writer(path, plan.geometry, plan.preparation) as write:
        for clip, masses in clip_windows(frames(), num_frames, stride, shortest):
            estimate = typical_count(masses)
            if estimate == 0:
                num_empty += 1
                continue
            observed.append(ClipCounts.of(masses, estimate, object_counts(masses)))
            count = estimate if num_objects is None else num_objects
            write(clip, count)
            if len(counts) % every == 0:
                columns = np.linspace(0, len(clip) - 1, SHEET_FRAMES).round().astype(int)
                shown = np.stack([clip[t].frame for t in columns])
                sheet.append(SheetRow(clip[0].time, count, shown))
            counts.append(count)
            if len(sheet) > 2 * SHEET_CLIPS:  # from here on, half as often
                sheet, every = sheet[::2], 2 * every
        require(
            counts,
            f"{plan.video.name} gives no clip of {num_frames} frames in which anything moves"
            + (f" ({num_empty} are empty)" if num_empty else "")
            + "; take fewer --frames, a lower --threshold or another --crop",
        )
    warnings = [*plan.warnings, *count_warnings(observed, num_empty, num_objects is not None)]
    sheet = sheet[:: max(len(sheet) // SHEET_CLIPS, 1)][:SHEET_CLIPS]
    return CutSummary(counts, num_empty, sheet, warnings)


def clip_windows(
    frames: Iterator[tuple[PreparedFrame, list[float]]],
    num_frames: int,
    stride: int,
    shortest: int | None = None,
) -> Iterator[tuple[list[PreparedFrame], list[list[float]]]]:
    """Yield clips of `num_frames` frames with the blob masses of their frames.

    Clips start `stride` frames (at most `num_frames`) apart. If there are fewer frames, but
    `shortest` or more, they are one clip.

    Law: a clip starts at every multiple of the stride (test_clips_start_at_every_stride).
    """
    held = list(islice(frames, num_frames))
    if shortest is not None and shortest <= len(held) < num_frames:
        yield [prepared for prepared, _ in held], [masses for _, masses in held]
    while len(held) == num_frames:
        yield [prepared for prepared, _ in held], [masses for _, masses in held]
        held = held[stride:] + list(islice(frames, stride))


@contextmanager
def clip_writer(
    path: Path, geometry: Geometry, preparation: Preparation
) -> Iterator[Callable[[list[PreparedFrame], int], None]]:
    """Yield a function that appends one clip and its number of objects to an npz file.

    Only times and numbers of written clips stay in memory. The file appears whole when the block
    succeeds, and not at all otherwise.

    Law: `load_clips` and `load_video_map` return what was written
    (test_clips_written_one_by_one_come_back_with_their_map).
    """
    written: list[list[PreparedFrame]] = []  # without their pixels
    counts: list[int] = []
    in_grey = False
    with atomic_path(path) as final, tempfile.TemporaryFile(dir=final.parent) as raw:

        def write(clip: list[PreparedFrame], num_objects: int) -> None:
            nonlocal in_grey
            frames = np.stack([prepared.frame for prepared in clip])
            in_grey |= bool(((frames > 0) & (frames < 255)).any())
            raw.write(frames.tobytes())
            require(
                raw.tell() <= MAX_BYTES,
                f"{path} would hold more than {MAX_BYTES / 2**30:.0f} GiB; take smaller frames, "
                "less overlap, or --start and --end",
            )
            written.append([prepared._replace(frame=NO_PIXELS) for prepared in clip])
            counts.append(num_objects)

        yield write
        small = {
            "num_objects": np.array(counts, dtype=np.int64),
            "video_scale": np.array(geometry.scale),
            "video_offset": np.array(geometry.offset),
            "video_times": np.array([[prepared.time for prepared in clip] for clip in written]),
            "video_numbers": np.array([[prepared.number for prepared in clip] for clip in written]),
            "video_preparation": np.frombuffer(preparation_to_json(preparation).encode(), np.uint8),
        }
        shifts = np.array([[prepared.shift for prepared in clip] for clip in written])
        if shifts.any():
            small[SHIFTS] = shifts
        shape = (*small["video_times"].shape, geometry.height, geometry.width)
        with zipfile.ZipFile(final, "w", zipfile.ZIP_DEFLATED) as archive:
            with archive.open("frames.npy", "w", force_zip64=True) as member:
                # Frames without grey are booleans, which load as bits.
                kind = "|u1" if in_grey else "|b1"
                header = {"descr": kind, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                raw.seek(0)
                while chunk := raw.read(CHUNK_BYTES):
                    levels: UInt8[np.ndarray, " bytes"] = np.frombuffer(chunk, np.uint8)
                    member.write(chunk if in_grey else (levels > 0).tobytes())
            for name, array in small.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def load_video_map(path: Path) -> tuple[VideoMap, Preparation] | None:
    """Return the video map and the preparation of a clip file, or None if it stores none."""
    if path.suffix.lower() != ".npz":
        return None
    arrays = load_arrays(path, (*MEMBERS, SHIFTS, RECORDINGS))
    shifts, names = arrays.pop(SHIFTS, None), arrays.pop(RECORDINGS, None)
    if len(arrays) < len(MEMBERS):
        return None
    scale, offset, times, numbers = (arrays[name] for name in MEMBERS[:4])
    num_clips = len(times) if times.ndim == 2 else 0
    kinds = [array.dtype.kind for array in (scale, offset, times, numbers)]
    require(
        scale.shape in ((2,), (num_clips, 2))
        and (offset.shape, numbers.shape, times.ndim) == (scale.shape, times.shape, 2)
        and kinds == ["f", "f", "f", "i"]
        and (shifts is None or (shifts.shape == (*times.shape, 2) and shifts.dtype.kind == "f"))
        and (names is None or (names.shape == (num_clips,) and names.dtype.kind == "U")),
        f"{path} holds a damaged map to its video; prepare the video again",
    )
    text = arrays["video_preparation"].tobytes().decode("utf-8", "replace")
    preparation = preparation_from_json(text, str(path))
    recordings = None if names is None else tuple(names.tolist())
    where = VideoMap(scale, offset, times, numbers, shifts, recordings, preparation.units)
    return where, preparation


def store_video_map(folder: Path, clips: Path) -> None:
    """Store in a run folder how its clips were made from a video, and where they are in it.

    Queries then prepare videos alike, and the law is known in units of the scene.
    """
    stored = load_video_map(clips) if clips.is_file() else None
    if stored is None:
        return
    where, preparation = stored
    place = {"scale": where.scale.tolist(), "offset": where.offset.tolist()}
    first = {"times": where.times[:1].tolist(), "numbers": where.numbers[:1].tolist()}
    for name, text in (
        (PREPARATION, preparation_to_json(preparation)),
        (MAP, json.dumps({**place, **first})),
    ):
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, "utf-8")


def find_video_map(folder: Path) -> VideoMap | None:
    """Return the map of the first clip of a run, that `store_video_map` wrote; None without it."""
    path, preparation = folder / MAP, find_preparation(folder)
    if not path.is_file() or preparation is None:
        return None
    try:
        raw = json.loads(path.read_text("utf-8"))
        rows = (np.array(raw[name], float).reshape(-1, 2) for name in ("scale", "offset"))
        scale, offset = (row[0] for row in rows)
        times, numbers = np.array(raw["times"], float), np.array(raw["numbers"], int)
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(f"{path} holds no map to a video; delete it") from None
    return VideoMap(scale, offset, times, numbers, units=preparation.units)


def write_sheet(path: Path, rows: Sequence[SheetRow]) -> None:
    """Write a PNG with one row of frames per clip, labelled with time and number of objects."""
    from PIL import Image, ImageDraw, ImageFont

    columns, height, width = rows[0].frames.shape
    scale = CELL / max(height, width)
    across, down = max(round(width * scale), 1), max(round(height * scale), 1)
    size = (LABEL + columns * (across + GAP), len(rows) * (down + GAP) + GAP)
    sheet = Image.new("L", size, 70)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, clip in enumerate(rows):
        top = GAP + row * (down + GAP)
        noun = "object" if clip.num_objects == 1 else "objects"
        label = f"{clip.time:.1f} s\n{clip.num_objects} {noun}"
        draw.multiline_text((4, top + 2), label, fill=255, font=font)
        for column, frame in enumerate(clip.frames):
            cell = Image.fromarray(frame).resize((across, down), Image.Resampling.NEAREST)
            sheet.paste(cell, (LABEL + column * (across + GAP), top))
    with atomic_path(path) as temporary:
        sheet.save(temporary, "PNG")  # whatever the suffix


@dataclass(frozen=True, eq=False)
class WholeClip:
    """One clip that covers a video, or a span of it."""

    frames: Float[Tensor, "1 T height width *channels"]  # in [0, 1]
    where: VideoMap  # to the pixels and seconds of the video
    video: Video  # the source, which is read again to draw on it
    warnings: tuple[str, ...] = ()  # of the preparation, one line each

    def pictures(self) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        """Yield the original images of these frames in RGB, in a second pass over the video.

        They go on, at the same steps, to the end of the video, where a forecast meets them.

        Law: images after the span are those of the video
        (test_pictures_go_on_to_the_end_of_the_video).
        """
        numbers = self.where.numbers[0]
        step = max(round(float(np.median(np.diff(numbers)))), 1)
        wanted = chain(numbers.tolist(), count(int(numbers[-1]) + step, step))
        number = next(wanted)
        for here, frame in enumerate(self.video.frames()):
            while number == here:
                yield to_rgb(frame.picture)
                number = next(wanted)


def whole_clip(
    path: str | Path,
    height: int,
    width: int,
    preparation: Preparation | None = None,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Callable[[int], None] = lambda done: None,
    *,
    in_colour: bool = False,
    source_fps: float | None = None,
) -> WholeClip:
    """Return the frames of a video for a model with frames of height x width pixels.

    A video of this size is used unchanged, unless a preparation is given. Any other is prepared,
    with the preparation of the model's training clips where that is known.

    Args:
        path: anything that `open_video` opens.
        height: of the model's frames.
        width: of the model's frames.
        preparation: of the clips that the model was trained on.
        span: first and last second to use.
        progress: called with the number of frames read.
        in_colour: whether a video that is used unchanged keeps its colours.
        source_fps: frames per second of a video without time stamps; None: of the preparation.
    """
    found = prepared_video(
        *(path, height, width, preparation, span, progress),
        in_colour=in_colour,
        source_fps=source_fps,
    )
    clip = _collect(found.frames(None), found.video)
    frames = np.stack([prepared.frame for prepared in clip]) / np.float32(255)
    whole = torch.from_numpy(frames)[None]
    return WholeClip(whole, found.map_of(clip), found.video, found.warnings)


def _collect(frames: Iterable[PreparedFrame], video: Video) -> list[PreparedFrame]:
    """Return the frames as a list, if there are at least two and at most MAX_FRAMES."""
    clip: list[PreparedFrame] = []
    for prepared in frames:
        require(
            len(clip) < MAX_FRAMES,
            f"{video.name} has more than {MAX_FRAMES} frames, too many for one clip; select a part "
            "of it with --start and --end, or infer it with --stretch 2000",
        )
        clip.append(prepared)
    require(len(clip) >= 2, f"{video.name} has {len(clip)} frames there; expected at least two")
    return clip
