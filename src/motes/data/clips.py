"""Clips in memory: frames, numbers of objects, and ground truth where it is known."""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from motes.core.axes import Bool, Float, Int, Tensor, UInt8
from motes.core.errors import InputError


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
        known = [name for name in ANNOTATIONS if getattr(self, name) is not None] or [
            "nothing else"
        ]
        size = f"{clips} clips of {frames} frames, {height}x{width}"
        return f"Clips({size}, known: {', '.join(known)})"

    def __len__(self) -> int:
        return len(self.video)

    def __getitem__(self, index: int | slice | Tensor) -> "Clips":
        if isinstance(index, int):
            index = range(len(self))[index]
            index = slice(index, index + 1)
        known = {name: getattr(self, name) for name in ANNOTATIONS}
        return Clips(
            video=self.video[index],
            **{name: part if part is None else part[index] for name, part in known.items()},
        )


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
    if not (frames.ndim == 4 or colour) or 0 in frames.shape:
        raise InputError(
            f"got frames of shape {frames.shape}; expected [clips, frames, height, width], with a "
            "last axis of 3 in colour, or [frames, height, width]; reshape the array"
        )
    if frames.dtype != np.uint8 and frames.dtype.kind not in "bf":
        raise InputError(
            f"got frames of type {frames.dtype}; expected bool, uint8 or floats in [0, 1]; "
            "convert them with astype"
        )
    low, high = frames.min(), frames.max()
    if frames.dtype.kind == "f" and not (low >= 0 and high <= 1):
        raise InputError(
            f"got frames with values from {low} to {high}; expected every value in [0, 1]; "
            "rescale the frames and fill in missing values"
        )
    if frames.dtype.kind != "f" or ((frames == 0) | (frames == 1)).all():
        if high <= 1 and not colour:
            return pack(torch.from_numpy(frames.astype(np.uint8)))
        if high > 1:
            frames = frames / np.float32(255)
    return torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float32))
