"""Clips of a video on disk: an npz file of frames that knows where and when they were."""

import os
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from motes.core.axes import Float, Int, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data.npz import MAX_BYTES, load_arrays
from motes.video.geometry import Geometry, VideoMap
from motes.video.prepare import (
    Preparation,
    Prepared,
    preparation_from_json,
    preparation_to_json,
)

CHUNK = 2**20  # bytes copied at a time
MEMBERS = ("video_scale", "video_offset", "video_times", "video_numbers", "video_preparation")


class ClipWriter:
    """Writes clips one after the other; of those written only times and numbers stay in memory.

    Used as a context: the file appears whole when the block ends well, and not at all otherwise.

    Law: `load_clips` and `load_video_map` return what was written
    (test_clips_written_one_by_one_come_back_with_their_map).
    """

    def __init__(self, path: Path, geometry: Geometry, preparation: Preparation) -> None:
        """Prepare to write.

        Args:
            path: of the npz file.
            geometry: of the frames in the video.
            preparation: how they were made.
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

    def write(self, clip: list[Prepared], num_objects: int) -> None:
        """Adds one clip."""
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
        """Grey frames as bytes; frames without grey as booleans, which are kept as bits."""
        header = {
            "descr": "|u1" if self._grey else "|b1",
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(member, header)
        self._raw.seek(0, os.SEEK_SET)
        while chunk := self._raw.read(CHUNK):
            levels: UInt8[np.ndarray, " bytes"] = np.frombuffer(chunk, dtype=np.uint8)
            member.write(levels.tobytes() if self._grey else (levels > 0).tobytes())


def load_video_map(path: Path) -> tuple[VideoMap, Preparation] | None:
    """Where the clips of a file are in their video, and how they were made; None if unsaid."""
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
