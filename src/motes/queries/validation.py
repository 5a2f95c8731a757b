"""Checks of the input of queries: frames, masks, counts, whole numbers."""

import math
import operator
from typing import Any

import numpy as np
import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.data.clips import colour_to_grey
from motes.models.model import CHUNK_FRAMES, Model


def as_input_tensor(name: str, given: Any) -> Tensor:
    """Return the input as a tensor of any type and shape.

    Arrays that PyTorch cannot share are copied: read-only, reversed or of foreign byte order.

    Law: these hold the same numbers (test_frames_of_any_layout_are_read_as_the_same_numbers).
    """
    try:
        if isinstance(given, np.ndarray) and (
            not (given.flags.writeable and given.dtype.isnative)
            or min(given.strides, default=0) < 0
        ):
            given = np.array(given, given.dtype.newbyteorder("="), order="C")
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"{name}: a {type(given).__name__} that cannot be read as numbers ({error}); "
            "give a tensor or an array"
        ) from None


def check_frames(
    model: Model, frames: Any, observed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T height width *channels"]:
    """Return frames as float32 on the model's device; unobserved ones may hold anything.

    Unobserved frames become zero if the inference requires it, else long videos are not copied.
    """
    given = as_input_tensor("frames", frames)
    height, width = model.image_size
    hint = "; add the clip axis: frames[None]" if given.ndim == 3 else ""
    in_colour = model.in_colour
    if given.ndim == 5 and given.shape[-1] == 3 and not in_colour:
        raise InputError(
            f"frames have shape {tuple(given.shape)}, in colour; this model was trained on grey "
            "frames: give those"
        )
    if given.ndim != 4 + in_colour or (in_colour and given.shape[-1] != 3):
        raise InputError(
            f"frames have shape {tuple(given.shape)}; expected [clips, frames, {height}, {width}"
            + (", 3 colours]" if in_colour else "]")
            + hint
        )
    if tuple(given.shape[2:4]) != model.image_size:
        raise InputError(
            f"frames are {given.shape[2]}x{given.shape[3]} pixels; this model takes "
            f"{height}x{width}: resize them or train a model of that size"
        )
    if given.shape[0] < 1 or given.shape[1] < 2:
        raise InputError(
            f"frames hold {given.shape[0]} clips of {given.shape[1]} frames; "
            "expected at least 1 clip of at least 2 frames"
        )
    if given.is_complex():
        raise InputError("frames are complex numbers; expected real values in [0, 1]")
    given = given.to(model.device, torch.float32)
    if observed is not None and model.inference.requires_zeroed_frames:
        shown = observed.reshape(*observed.shape, *[1] * (given.ndim - 2))
        given = torch.where(shown, given, 0.0)
    low, high = _extremes(given, observed)
    if not math.isfinite(low + high):
        raise InputError("frames hold NaN or infinite values; expected values in [0, 1]")
    if low < 0 or high > 1:
        raise InputError(
            f"frames hold values from {low:g} to {high:g}; expected [0, 1]"
            + ("; divide by 255" if 1 < high <= 255 and low >= 0 else "")
        )
    return given if model.colour_axis is None else colour_to_grey(given, model.colour_axis)


def _extremes(
    frames: Float[Tensor, "B T height width *channels"], observed: Bool[Tensor, "B T"] | None
) -> tuple[float, float]:
    """Return the smallest and largest value of observed frames; NaN, if there is one."""
    if observed is None:
        return float(frames.min()), float(frames.max())
    # In chunks: indexing with a mask copies.
    parts = (part.split(CHUNK_FRAMES, 1) for part in (frames, observed))
    picked = (some[flags].aminmax() for some, flags in zip(*parts, strict=True) if flags.any())
    lows, highs = zip(*picked, strict=True)
    return float(torch.stack(lows).min()), float(torch.stack(highs).max())


def check_observed(model: Model, observed: Any, frames: Any) -> Bool[Tensor, "B T"]:
    """Return which frames were observed, [T] for all clips or [B, T], as [B, T]."""
    shape = tuple(as_input_tensor("frames", frames).shape[:2])
    flags = as_input_tensor("observed", observed)
    if flags.dtype != torch.bool:
        raise InputError(f"observed has type {flags.dtype}; expected booleans, True where observed")
    if len(shape) < 2 or flags.ndim not in (1, 2) or tuple(flags.shape) not in (shape, shape[1:]):
        raise InputError(
            f"observed has shape {tuple(flags.shape)} for frames of shape {shape}; expected one "
            "flag a frame: [frames] or [clips, frames]"
        )
    flags = flags.to(model.device).expand(shape)
    if not bool(flags.any(1).all()):
        clip = int((~flags.any(1)).nonzero()[0])
        raise InputError(f"clip {clip} has no observed frame; to sample clips use motes.sample")
    return flags


def check_counts(model: Model, num_objects: Any, num_clips: int) -> Int[Tensor, " B"]:
    """Return the number of objects in each clip, from one integer or one for each clip."""
    counts = as_input_tensor("num_objects", num_objects)
    if counts.dtype == torch.bool or counts.is_floating_point() or counts.is_complex():
        raise InputError(f"num_objects has type {counts.dtype}; expected whole numbers")
    if counts.ndim > 1 or (counts.ndim == 1 and len(counts) != num_clips):
        raise InputError(
            f"num_objects has shape {tuple(counts.shape)} for {num_clips} clips; "
            "give one number, or one for each clip"
        )
    low, high = int(counts.min()), int(counts.max())
    if low < 1 or high > model.max_searchable_objects:
        raise InputError(
            f"num_objects is {low if low < 1 else high}; this model takes 1 to "
            f"{model.max_searchable_objects} objects"
        )
    return counts.to(model.device, torch.int64).expand(num_clips).clone()


def check_whole(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number within limits."""
    try:
        whole = operator.index(value)  # Python's, NumPy's and PyTorch's integers
    except TypeError:
        whole = low - 1
    if isinstance(value, bool) or not low <= whole <= high:
        raise InputError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    return whole
