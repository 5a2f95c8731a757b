"""Clips on disk: bit-packed npz files, and any npz or npy file of frames."""

import zipfile
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.core.memory import require_memory
from motes.data.clips import ANNOTATIONS, Clips, PackedFrames, video_of

MAX_BYTES = 4 * 2**30  # uncompressed size of one file
COPIES = 3  # of the arrays in memory while they are checked and packed
MAX_COMPRESSION = 1000  # ratio; deflate reaches 1030 on zeros alone
SMALL_BYTES = 2**26  # uncompressed size that any compression ratio may have
_MEMBERS = ("frames", "bits", "size", *ANNOTATIONS)
Read = TypeVar("Read")
# Raised by zipfile, zlib and numpy on damaged files.
_READING_ERRORS = (
    *(OSError, EOFError, ValueError, KeyError, SyntaxError, TypeError, OverflowError),
    *(RuntimeError, TokenError, RecursionError, MemoryError, zipfile.BadZipFile, zlib.error),
)


def save_clips(path: str | Path, clips: Clips) -> None:
    """Write clips as an npz file, atomically, with one bit per pixel if they are binary.

    Law: `load_clips` returns the same clips (test_clips_come_back_from_disk_as_they_were).
    """
    arrays: dict[str, Any] = {
        name: tensor.cpu().numpy()
        for name in ANNOTATIONS
        if (tensor := getattr(clips, name)) is not None
    }
    if isinstance(clips.video, PackedFrames):
        arrays["bits"] = clips.video.bits.cpu().numpy()
        arrays["size"] = np.array((clips.video.height, clips.video.width))
    else:
        arrays["frames"] = clips.video.cpu().numpy()
    # A handle, because numpy would add a suffix to a name.
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_clips(path: str | Path) -> Clips:
    """Return the clips of an npz or npy file, by `save_clips` or with an array `frames`.

    Args:
        path: an npz file of `save_clips`; an npz file with `frames` (see `video_of`) and
            optional annotations (see `Clips`); or an npy file of frames alone.
    """
    return _read_file(Path(path), _MEMBERS, _clips_from)


def load_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file that have these names; missing ones are left out."""
    return _read_file(Path(path), names, lambda arrays: arrays)


def _read_file(
    path: Path, names: Sequence[str], make: Callable[[dict[str, NDArray[Any]]], Read]
) -> Read:
    """Return `make(arrays)`; raise `InputError` for a damaged file."""
    if not path.is_file():
        raise InputError(f"got {path}; expected an npz or npy file there; check the path")
    try:
        with open(path, "rb") as file:
            arrays = _read_arrays(file, path.stat().st_size, names)
        return make(arrays)
    except InputError as error:
        raise InputError(f"in {path}: {error}") from error
    except _READING_ERRORS as error:
        raise InputError(
            f"got {path}; expected a whole npz or npy file, and this one is damaged or of another "
            "kind; write it again with numpy.savez"
        ) from error


def _read_arrays(file: IO[bytes], size: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an open npz or npy file that have these names."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return {"frames": _read_array(file, size, "frames")}
    with zipfile.ZipFile(file) as archive:
        stored = set(archive.namelist())
        sizes = {
            name: archive.getinfo(f"{name}.npy").file_size
            for name in names
            if f"{name}.npy" in stored
        }
        _check_bytes(sum(sizes.values()))
        for name in sizes:
            _check_compression(archive.getinfo(f"{name}.npy"))
        arrays = {}
        for name, member_size in sizes.items():
            with archive.open(f"{name}.npy") as member:
                arrays[name] = _read_array(member, member_size, name)
        return arrays


def _check_bytes(size: int) -> None:
    if size > MAX_BYTES:
        raise InputError(
            f"got arrays of {size / 2**30:.1f} GiB; expected at most {MAX_BYTES / 2**30:.1f} GiB; "
            "split the file"
        )
    require_memory(COPIES * size, "reading these arrays")


def _check_compression(member: zipfile.ZipInfo) -> None:
    """Raise `InputError` for a zip bomb: a member with a higher ratio than any real clip."""
    if member.file_size > max(SMALL_BYTES, MAX_COMPRESSION * member.compress_size):
        raise InputError(
            f"got `{member.filename}`, which unfolds to {MAX_COMPRESSION} times its size; "
            "expected frames that are not all empty; save it without compression if it is meant"
        )


def _read_array(file: IO[bytes] | zipfile.ZipExtFile, size: int, name: str) -> NDArray[Any]:
    """Return an npy array of `size` bytes; raise `InputError` if its header does not fit."""
    _check_bytes(size)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise InputError(
            f"got `{name}` as Python objects; expected numbers; save a plain numeric array"
        )
    if min(shape, default=0) < 0 or file.tell() + prod(shape) * dtype.itemsize != size:
        raise InputError(f"got `{name}` cut short or damaged; expected {shape}; write it again")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _clips_from(arrays: dict[str, NDArray[Any]]) -> Clips:
    """Return the clips of named arrays; raise `InputError` if the arrays do not agree."""
    video = _video_from(arrays)
    num_clips, num_frames = video.shape[:2]
    num_objects = arrays.get("num_objects")
    if num_objects is not None:
        whole = num_objects.dtype.kind in "iu" and num_objects.shape == (num_clips,)
        if not whole or num_objects.min() < 0:
            raise InputError(
                f"got `num_objects` of type {num_objects.dtype} and shape {num_objects.shape}; "
                f"expected {num_clips} whole numbers, one a clip; correct or remove it"
            )
        num_objects = num_objects.astype(np.int64)
    truth = {}
    for name in ("positions", "clean"):
        points = arrays.get(name)
        if points is None:
            continue
        expected = (num_clips, *points.shape[1:2], num_frames, 2)
        if points.ndim != 4 or points.shape != expected or points.dtype.kind != "f":
            raise InputError(
                f"got `{name}` of type {points.dtype} and shape {points.shape}; expected floats "
                f"[{num_clips}, objects, {num_frames}, 2]; correct or remove it"
            )
        truth[name] = torch.from_numpy(points.astype(np.float32))
    if len({points.shape for points in truth.values()}) > 1:
        raise InputError("got `positions` and `clean` of two shapes; expected one; correct them")
    flags = _flags_from(arrays, truth, num_clips, num_frames)
    counts = None if num_objects is None else torch.from_numpy(num_objects)
    return Clips(video, counts, **truth, **flags)


def _flags_from(
    arrays: dict[str, NDArray[Any]], truth: dict[str, Tensor], num_clips: int, num_frames: int
) -> dict[str, Tensor]:
    """Return `observed` and `visible` as tensors, if given; raise if their shapes do not fit."""
    num_objects = [points.shape[1] for points in truth.values()][:1]
    expected = {
        "observed": (num_clips, num_frames),
        "visible": (num_clips, *num_objects, num_frames),
    }
    flags = {}
    for name, shape in expected.items():
        if name not in arrays:
            continue
        if arrays[name].dtype != np.bool_ or arrays[name].shape != shape:
            raise InputError(
                f"got `{name}` of type {arrays[name].dtype} and shape {arrays[name].shape}; "
                f"expected booleans {list(shape)}; correct or remove it"
            )
        flags[name] = torch.from_numpy(arrays[name])
    return flags


def _video_from(
    arrays: dict[str, NDArray[Any]],
) -> PackedFrames | Float[Tensor, "B T height width *channels"]:
    if "bits" in arrays and "size" in arrays:
        bits, size = arrays["bits"], arrays["size"]
        if bits.dtype != np.uint8 or bits.ndim != 3 or 0 in bits.shape or size.shape != (2,):
            raise InputError(
                f"got `bits` of type {bits.dtype} and shape {bits.shape}; expected uint8 [clips, "
                "frames, bytes] and `size` = (height, width); write it again with save_clips"
            )
        return PackedFrames(torch.from_numpy(bits), *(int(length) for length in size))
    if "frames" not in arrays:
        raise InputError("got no array `frames`; expected one; name it in numpy.savez")
    return video_of(arrays["frames"])
