"""Clips cut from a video, in an npz file together with the map back to the video."""

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from motes.core.axes import Float, Int, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data.clips import MAX_BYTES, load_arrays
from motes.video.foreground import blob_masses, typical_count
from motes.video.geometry import Geometry, VideoMap
from motes.video.prepare import (
    Plan,
    Preparation,
    PreparedFrame,
    preparation_from_json,
    preparation_to_json,
)

SHEET_CLIPS, SHEET_FRAMES = 8, 10  # rows and columns of a contact sheet
CHUNK_BYTES = 2**20  # copied at a time
MEMBERS = ("video_scale", "video_offset", "video_times", "video_numbers", "video_preparation")


@dataclass(frozen=True, eq=False)
class SheetRow:
    """A clip on the contact sheet."""

    time: float
    num_objects: int
    frames: UInt8[np.ndarray, "T height width"]


@dataclass(frozen=True)
class CutSummary:
    """The clips that were cut from a video.

    Attributes:
        counts: estimated number of objects in each clip.
        num_empty: clips that were left out because they hold no objects.
        sheet: clips from all parts of the video, for a contact sheet.
    """

    counts: list[int]
    num_empty: int
    sheet: list[SheetRow]


def cut_clips(
    plan: Plan,
    path: Path,
    num_frames: int,
    stride: int,
    num_objects: int | None,
    progress: Callable[[int], None] = lambda done: None,
) -> CutSummary:
    """Write the clips of a video to an npz file and return their summary.

    Args:
        plan: of the preparation.
        path: of the npz file.
        num_frames: of each clip.
        stride: frames from the start of a clip to the start of the next.
        num_objects: of every clip; None estimates it for each clip.
        progress: called with the number of frames read.
    """
    counts: list[int] = []
    sheet: list[SheetRow] = []
    num_empty, every = 0, 1
    with ClipWriter(path, plan.geometry, plan.preparation) as writer:
        for clip, masses in windows(_with_masses(plan, progress), num_frames, stride):
            estimate = typical_count(masses)
            if estimate == 0:
                num_empty += 1
                continue
            count = estimate if num_objects is None else num_objects
            writer.write(clip, count)
            if len(counts) % every == 0:
                columns = np.linspace(0, num_frames - 1, SHEET_FRAMES).round().astype(int)
                frames = np.stack([clip[t].frame for t in columns])
                sheet.append(SheetRow(clip[0].time, count, frames))
            counts.append(count)
            if len(sheet) > 2 * SHEET_CLIPS:  # from here on, half as often
                sheet, every = sheet[::2], 2 * every
        if not counts:
            raise InputError(
                f"{plan.video.name} gives no clip of {num_frames} frames in which anything moves"
                + (f" ({num_empty} are empty)" if num_empty else "")
                + "; take fewer --frames, a lower --threshold or another --crop"
            )
    return CutSummary(counts, num_empty, sheet[:: max(len(sheet) // SHEET_CLIPS, 1)][:SHEET_CLIPS])


def windows(
    frames: Iterator[tuple[PreparedFrame, list[float]]], num_frames: int, stride: int
) -> Iterator[tuple[list[PreparedFrame], list[list[float]]]]:
    """Yield clips of `num_frames` frames with the blob masses of their frames.

    Clips start `stride` frames (at most `num_frames`) apart.

    Law: a clip starts at every multiple of the stride (test_clips_start_at_every_stride).
    """
    held = list(islice(frames, num_frames))
    while len(held) == num_frames:
        yield [prepared for prepared, _ in held], [masses for _, masses in held]
        held = held[stride:] + list(islice(frames, stride))


def _with_masses(
    plan: Plan, progress: Callable[[int], None]
) -> Iterator[tuple[PreparedFrame, list[float]]]:
    for prepared in plan.frames():
        progress(prepared.number + 1)
        yield prepared, blob_masses(prepared.frame)


class ClipWriter:
    """Writer of one clip after the other; only times and numbers of written clips stay in memory.

    A context manager: the file appears whole when the block succeeds, and not at all otherwise.

    Law: `load_clips` and `load_video_map` return what was written
    (test_clips_written_one_by_one_come_back_with_their_map).
    """

    def __init__(self, path: Path, geometry: Geometry, preparation: Preparation) -> None:
        """Store the arguments; the file is opened when the context is entered.

        Args:
            path: of the npz file.
            geometry: of the prepared frames.
            preparation: stored in the file.
        """
        self._path, self._geometry, self._preparation = path, geometry, preparation
        self._times: list[Float[np.ndarray, " T"]] = []
        self._numbers: list[Int[np.ndarray, " T"]] = []
        self._counts: list[int] = []
        self._grey = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._final = self._stack.enter_context(atomic_path(self._path))
        self._raw: IO[bytes] = self._stack.enter_context(
            tempfile.TemporaryFile(dir=self._path.parent)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._finish()
            except BaseException as failure:
                self._stack.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._stack.__exit__(kind, error, trace)

    def write(self, clip: list[PreparedFrame], num_objects: int) -> None:
        """Append one clip."""
        frames = np.stack([prepared.frame for prepared in clip])
        self._grey |= bool(((frames > 0) & (frames < 255)).any())
        self._raw.write(frames.tobytes())
        if self._raw.tell() > MAX_BYTES:
            raise InputError(
                f"{self._path} would hold more than {MAX_BYTES / 2**30:.0f} GiB; take smaller "
                "frames, less overlap, or --start and --end"
            )
        self._times.append(np.array([prepared.time for prepared in clip]))
        self._numbers.append(np.array([prepared.number for prepared in clip], dtype=np.int64))
        self._counts.append(num_objects)

    def _finish(self) -> None:
        text = preparation_to_json(self._preparation).encode()
        small = {
            "num_objects": np.array(self._counts, dtype=np.int64),
            "video_scale": np.array(self._geometry.scale),
            "video_offset": np.array(self._geometry.offset),
            "video_times": np.array(self._times),
            "video_numbers": np.array(self._numbers),
            "video_preparation": np.frombuffer(text, dtype=np.uint8),
        }
        shape = (*small["video_times"].shape, self._geometry.height, self._geometry.width)
        with zipfile.ZipFile(self._final, "w", zipfile.ZIP_DEFLATED) as archive:
            with archive.open("frames.npy", "w", force_zip64=True) as member:
                self._copy_frames(member, shape)
            for name, array in small.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    def _copy_frames(self, member: IO[bytes], shape: tuple[int, ...]) -> None:
        """Copy grey frames as bytes, and frames without grey as booleans, which load as bits."""
        header = {
            "descr": "|u1" if self._grey else "|b1",
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(member, header)
        self._raw.seek(0, os.SEEK_SET)
        while chunk := self._raw.read(CHUNK_BYTES):
            levels: UInt8[np.ndarray, " bytes"] = np.frombuffer(chunk, dtype=np.uint8)
            member.write(levels.tobytes() if self._grey else (levels > 0).tobytes())


def load_video_map(path: Path) -> tuple[VideoMap, Preparation] | None:
    """Return the video map and the preparation of a clip file, or None if it stores none."""
    if path.suffix.lower() != ".npz":
        return None
    arrays = load_arrays(path, MEMBERS)
    if len(arrays) < len(MEMBERS):
        return None
    scale, offset, times, numbers = (arrays[name] for name in MEMBERS[:4])
    shapes = (scale.shape, offset.shape, numbers.shape, times.ndim)
    kinds = [array.dtype.kind for array in (scale, offset, times, numbers)]
    if shapes != ((2,), (2,), times.shape, 2) or kinds != ["f", "f", "f", "i"]:
        raise InputError(f"{path} holds a damaged map to its video; prepare the video again")
    text = arrays["video_preparation"].tobytes().decode("utf-8", "replace")
    return VideoMap(scale, offset, times, numbers), preparation_from_json(text, str(path))
