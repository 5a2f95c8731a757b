"""Clips: frames with annotations in memory, on disk, and converted from colour to grey.

Colour clips become grey along the direction in which moving objects differ most from the
background: objects may be as bright as it and differ in hue alone.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from motes.core.axes import Bool, Float, Int, Tensor, UInt8
from motes.core.errors import InputError, require
from motes.core.files import atomic_path
from motes.core.memory import require_memory

MAX_BYTES = 4 * 2**30  # uncompressed size of one file
COPIES = 3  # of the arrays in memory while they are checked and packed
MAX_COMPRESSION = 1000  # ratio; deflate reaches 1030 on zeros alone
SMALL_BYTES = 2**26  # uncompressed size that any compression ratio may have
MAX_CLIPS = 64  # from which background and colour axis are estimated
TAILS = 1e-3  # fraction of pixels at either end of the colour axis that may saturate
SIMILAR = 0.5  # ratio of two principal variances of colours from which objects have several

Arrays = dict[str, NDArray[Any]]
ColourAxis = tuple[float, float, float, float]
"""Weights of red, green and blue and an offset: grey = clip(weights . colour + offset)."""


@dataclass(frozen=True, eq=False)
class PackedFrames:
    """Binary frames, eight pixels in a byte (288 bytes for a frame of 48x48).

    Pixels are in row-major order and the first of eight is the highest bit, as in
    `numpy.packbits`; the last byte of a frame is padded with zeros.

    Law: packing and unpacking return the frames
    (test_packing_then_unpacking_returns_the_frames, test_bits_are_in_the_order_of_numpy).
    """

    bits: UInt8[Tensor, "B T bytes"]
    height: int
    width: int
    # Stored, because a tensor created inside `unpack` could not be captured in a CUDA graph.
    shifts: UInt8[Tensor, "8"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the number of bytes of a frame."""
        needed = bytes_per_frame(self.height, self.width)
        if min(self.height, self.width) < 1 or self.bits.shape[-1] != needed:
            raise InputError(
                f"got {self.bits.shape[-1]} bytes a frame for {self.height}x{self.width} pixels; "
                f"expected {needed} and at least one pixel; pack the frames again"
            )
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=self.bits.device)
        object.__setattr__(self, "shifts", shifts)

    @property
    def shape(self) -> torch.Size:
        """Shape [B, T, height, width] of the unpacked frames."""
        return torch.Size((*self.bits.shape[:2], self.height, self.width))

    def __len__(self) -> int:
        return self.bits.shape[0]

    def __getitem__(self, index: slice | Tensor) -> "PackedFrames":
        return replace(self, bits=self.bits[index])

    def to(self, device: torch.device | str) -> "PackedFrames":
        """Return the same frames on another device."""
        return replace(self, bits=self.bits.to(device))

    def unpack(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b T height width"]:
        """Return the clips at `indices` as float32 zeros and ones, on the device of the bits."""
        return self._pixels(self.bits.index_select(0, indices)).float()

    def unpack_all(self) -> UInt8[Tensor, "B T height width"]:
        """Return every clip as uint8 zeros and ones."""
        return self._pixels(self.bits)

    def _pixels(self, bits: UInt8[Tensor, "b T bytes"]) -> UInt8[Tensor, "b T height width"]:
        pixels = torch.bitwise_right_shift(bits[..., None], self.shifts).bitwise_and_(1)
        pixels = pixels.flatten(-2)[..., : self.height * self.width]
        return pixels.reshape(*bits.shape[:2], self.height, self.width)


def bytes_per_frame(height: int, width: int) -> int:
    """Return the number of bytes of one packed frame."""
    return -(-height * width // 8)


def pack(
    frames: Bool[Tensor, "B T height width"] | UInt8[Tensor, "B T height width"],
) -> PackedFrames:
    """Return frames packed to bits; every value other than 0 counts as 1."""
    height, width = frames.shape[-2:]
    bits = np.packbits(frames.flatten(-2).cpu().numpy(), axis=-1)
    return PackedFrames(torch.from_numpy(bits), height, width)


@dataclass(frozen=True, eq=False, repr=False)
class Clips:
    """B clips of T frames with their annotations.

    Attributes:
        video: the frames as stored: bits if they are binary, else float32.
        num_objects: number of objects in each clip; None if unknown.
        positions: drawn positions of the objects, pixels (x, y), NaN for absent objects.
        clean: the noise-free path of the same objects.
        observed: which frames were observed; all, if None. Unobserved frames hold zeros.
        visible: whether any pixel of an object is visible in a frame, observed or not; None if
            nothing occludes objects.
    """

    video: PackedFrames | Float[Tensor, "B T height width *channels"]
    num_objects: Int[Tensor, " B"] | None = None
    positions: Float[Tensor, "B N T 2"] | None = None
    clean: Float[Tensor, "B N T 2"] | None = None
    observed: Bool[Tensor, "B T"] | None = None
    visible: Bool[Tensor, "B N T"] | None = None

    @cached_property
    def frames(
        self,
    ) -> UInt8[Tensor, "B T height width"] | Float[Tensor, "B T height width *channels"]:
        """Frames as uint8 in {0, 1} if they are binary, else float32 in [0, 1].

        Colour frames have a last axis of red, green and blue.
        """
        return self.video.unpack_all() if isinstance(self.video, PackedFrames) else self.video

    @property
    def in_colour(self) -> bool:
        """Whether frames have a last axis of red, green and blue."""
        return len(self.video.shape) == 5

    def __repr__(self) -> str:
        """Return sizes and available annotations in one line."""
        clips, frames, height, width = self.video.shape[:4]
        known = ", ".join(name for name in ANNOTATIONS if getattr(self, name) is not None)
        size = f"{clips} clips of {frames} frames, {height}x{width}"
        return f"Clips({size}, known: {known or 'nothing else'})"

    def __len__(self) -> int:
        return len(self.video)

    def __getitem__(self, index: int | slice | Tensor) -> "Clips":
        if isinstance(index, int):
            index = range(len(self))[index]
            index = slice(index, index + 1)
        parts = ((f.name, getattr(self, f.name)) for f in fields(self))
        cut: Any = {name: part if part is None else part[index] for name, part in parts}
        return Clips(**cut)


# The fields of `Clips` other than the frames.
ANNOTATIONS = tuple(f.name for f in fields(Clips) if f.name != "video")


def video_of(
    frames: NDArray[Any],
) -> PackedFrames | Float[Tensor, "B T height width *channels"]:
    """Return an array of frames in the representation of `Clips.video`.

    Args:
        frames: [B, T, height, width], or [T, height, width] for one clip, or
            [B, T, height, width, 3] in colour; bool, uint8 of 0 and 1, uint8 of 0..255 (divided
            by 255), or floats in [0, 1].
    """
    if frames.ndim == 3:
        frames = frames[None]
    colour = frames.ndim == 5 and frames.shape[-1] == 3
    require(
        (frames.ndim == 4 or colour) and 0 not in frames.shape,
        f"got frames of shape {frames.shape}; expected [clips, frames, height, width], with a last "
        "axis of 3 in colour, or [frames, height, width]; reshape the array",
    )
    require(
        frames.dtype == np.uint8 or frames.dtype.kind in "bf",
        f"got frames of type {frames.dtype}; expected bool, uint8 or floats in [0, 1]; convert "
        "them with astype",
    )
    low, high = frames.min(), frames.max()
    require(
        frames.dtype.kind != "f" or (low >= 0 and high <= 1),
        f"got frames with values from {low} to {high}; expected every value in [0, 1]; rescale the "
        "frames and fill in missing values",
    )
    if frames.dtype.kind != "f" or ((frames == 0) | (frames == 1)).all():
        if high <= 1 and not colour:
            return pack(torch.from_numpy(frames.astype(np.uint8)))
        if high > 1:
            frames = frames / np.float32(255)
    return torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float32))


def save_clips(path: str | Path, clips: Clips) -> None:
    """Write clips as an npz file, atomically, with one bit per pixel if they are binary.

    Law: `load_clips` returns the same clips (test_clips_come_back_from_disk_as_they_were).
    """
    tensors: dict[str, Tensor | None] = {name: getattr(clips, name) for name in ANNOTATIONS}
    if isinstance(clips.video, PackedFrames):
        tensors["bits"] = clips.video.bits
        tensors["size"] = torch.tensor((clips.video.height, clips.video.width))
    else:
        tensors["frames"] = clips.video
    arrays: Any = {name: part.cpu().numpy() for name, part in tensors.items() if part is not None}
    # A handle, because numpy would add a suffix to a name.
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_clips(path: str | Path) -> Clips:
    """Return the clips of an npz or npy file, by `save_clips` or with an array `frames`.

    An npz file with `frames` (see `video_of`) may hold annotations (see `Clips`); an npy file holds
    frames alone.
    """
    arrays = load_arrays(path, ("frames", "bits", "size", *ANNOTATIONS))
    with _named_errors(path):
        return _clips_from(arrays)


def load_arrays(path: str | Path, names: Sequence[str]) -> Arrays:
    """Return the arrays of an npz file that have these names, or of an npy file as `frames`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"got {path}; expected an npz or npy file there; check the path")
    with _named_errors(path), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            return {"frames": _read_array(file, path.stat().st_size, "frames")}
        with zipfile.ZipFile(file) as archive:
            stored = set(archive.namelist())
            members = {n: archive.getinfo(f"{n}.npy") for n in names if f"{n}.npy" in stored}
            _check_bytes(sum(member.file_size for member in members.values()))
            arrays = {}
            for name, member in members.items():
                # A zip bomb has a higher compression ratio than any real clip.
                require(
                    member.file_size <= max(SMALL_BYTES, MAX_COMPRESSION * member.compress_size),
                    f"got `{member.filename}`, which unfolds to {MAX_COMPRESSION} times its size; "
                    "expected frames that are not all empty; save it without compression if it is "
                    "meant",
                )
                with archive.open(member) as content:
                    arrays[name] = _read_array(content, member.file_size, name)
            return arrays


@contextmanager
def _named_errors(path: str | Path) -> Iterator[None]:
    """Raise `InputError` with the name of the file for all that zipfile, zlib and numpy raise."""
    try:
        yield
    except InputError as error:
        raise InputError(f"in {path}: {error}") from error
    except (
        *(OSError, EOFError, ValueError, KeyError, SyntaxError, TypeError, OverflowError),
        *(RuntimeError, TokenError, RecursionError, MemoryError, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise InputError(
            f"got {path}; expected a whole npz or npy file, and this one is damaged or of another "
            "kind; write it again with numpy.savez"
        ) from error


def _check_bytes(size: int) -> None:
    require(
        size <= MAX_BYTES,
        f"got arrays of {size / 2**30:.1f} GiB; expected at most {MAX_BYTES / 2**30:.1f} GiB; "
        "split the file",
    )
    require_memory(COPIES * size, "reading these arrays")


def _read_array(file: IO[bytes] | zipfile.ZipExtFile, size: int, name: str) -> NDArray[Any]:
    """Return an npy array of `size` bytes; raise `InputError` if its header does not fit."""
    _check_bytes(size)
    if np.lib.format.read_magic(file) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    require(
        not dtype.hasobject,
        f"got `{name}` as Python objects; expected numbers; save a plain numeric array",
    )
    require(
        min(shape, default=0) >= 0 and file.tell() + prod(shape) * dtype.itemsize == size,
        f"got `{name}` cut short or damaged; expected {shape}; write it again",
    )
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _clips_from(arrays: Arrays) -> Clips:
    """Return the clips of named arrays; raise `InputError` if the arrays do not agree."""
    video: PackedFrames | Float[Tensor, "B T height width *channels"]
    if "bits" in arrays and "size" in arrays:
        bits, size = arrays["bits"], arrays["size"]
        if bits.dtype != np.uint8 or bits.ndim != 3 or 0 in bits.shape or size.shape != (2,):
            raise InputError(
                f"got `bits` of type {bits.dtype} and shape {bits.shape}; expected uint8 [clips, "
                "frames, bytes] and `size` = (height, width); write it again with save_clips"
            )
        video = PackedFrames(torch.from_numpy(bits), *(int(length) for length in size))
    elif "frames" in arrays:
        video = video_of(arrays["frames"])
    else:
        raise InputError("got no array `frames`; expected one; name it in numpy.savez")
    num_clips, num_frames = video.shape[:2]
    truth = [arrays[name].shape[1:2] for name in ("positions", "clean") if name in arrays]
    objects = truth[0] if truth else ()
    expected = {
        "num_objects": ("iu", np.int64, (num_clips,)),
        "positions": ("f", np.float32, (num_clips, *objects, num_frames, 2)),
        "clean": ("f", np.float32, (num_clips, *objects, num_frames, 2)),
        "observed": ("b", np.bool_, (num_clips, num_frames)),
        "visible": ("b", np.bool_, (num_clips, *objects, num_frames)),
    }
    annotations = {}
    for name, (kinds, kind, shape) in expected.items():
        if (array := arrays.get(name)) is None:
            continue
        if array.dtype.kind not in kinds or array.shape != shape:
            raise InputError(
                f"got `{name}` of type {array.dtype} and shape {array.shape}; expected "
                f"{np.dtype(kind)} {list(shape)}; correct or remove it"
            )
        annotations[name] = torch.from_numpy(array.astype(kind))
    if "num_objects" in annotations and annotations["num_objects"].min() < 0:
        raise InputError("got negative `num_objects`; expected counts; correct or remove them")
    return Clips(video, **annotations)


def median_background(
    frames: Float[Tensor, "F height width *channels"], observed: Bool[Tensor, " F"] | None = None
) -> Float[Tensor, "height width *channels"]:
    """Return the lower median of each pixel over (observed) frames of a camera at rest."""
    return (frames if observed is None else frames[observed]).median(0).values


def find_colour_axis(frames: Float[Tensor, "B T height width 3"]) -> ColourAxis:
    """Return the principal direction of colours around the median of each pixel, scaled to [0, 1].

    Objects are rare, so they are the long tail of the distribution, which becomes bright. Where two
    directions are about as long, objects have several colours, and one direction would hide some:
    then it is the mean deviation, if that shows more.

    Law: objects that differ from the background in hue alone become bright
    (test_objects_of_another_hue_become_bright), also if each has a hue of its own
    (test_objects_of_several_hues_become_bright).
    """
    colours = frames[:MAX_CLIPS].flatten(0, 1).double()
    deviations = (colours - median_background(colours)).flatten(0, 2)
    values, directions = torch.linalg.eigh(deviations.T @ deviations)
    direction, mean = directions[:, -1], deviations.mean(0)
    if float(values[-2]) > SIMILAR * float(values[-1]) and float(mean.norm()) > 0:
        shown = [(deviations @ each).abs().sum() for each in (direction, mean / mean.norm())]
        direction = mean / mean.norm() if bool(shown[1] > shown[0]) else direction
    if float((deviations @ direction).pow(3).sum()) < 0:
        direction = -direction
    levels = (colours @ direction).flatten().sort().values
    low, high = (float(levels[int(share * (len(levels) - 1))]) for share in (TAILS, 1 - TAILS))
    scale = 1 / max(high - low, 1e-6)
    red, green, blue = (scale * direction).tolist()
    return red, green, blue, -scale * low


def colour_to_grey(
    frames: Float[Tensor, "B T height width 3"], axis: ColourAxis
) -> Float[Tensor, "B T height width"]:
    """Return colour frames as grey ones in [0, 1]."""
    *weights, offset = axis
    return (frames @ torch.tensor(weights).to(frames) + offset).clamp(0, 1)


def clips_to_grey(clips: Clips, axis: ColourAxis | None) -> Clips:
    """Return clips converted to grey; unchanged if they are not in colour or axis is None."""
    if axis is None or not clips.in_colour:
        return clips
    return replace(clips, video=colour_to_grey(clips.frames, axis))
