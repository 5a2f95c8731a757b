"""One clip file of many recordings, from the clips of each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import require
from motes.core.files import atomic_path
from motes.data import load_clips
from motes.video.clips import MEMBERS, RECORDINGS, SHIFTS, load_video_map
from motes.video.geometry import VideoMap
from motes.video.prepare import Preparation, preparation_to_json

RATE_TOLERANCE = 0.01  # of a frame rate, within which two are the same


def merge_clips(
    out: Path, parts: Sequence[tuple[str, Path]], preparation: Preparation | None = None
) -> None:
    """Write the clips of several files (name, path) as one npz file with all maps to the videos.

    Frames are centred in the largest of all sizes, on black; clips are as long as the longest, with
    the frames that are added unobserved. `preparation` is the one that other videos should get;
    None: that of the first file.

    Law: a clip keeps its pixels, numbers and way back to the video
    (test_merged_clips_keep_their_pixels_and_maps).
    """
    clips = [load_clips(path) for _, path in parts]
    maps = [load_video_map(path) for _, path in parts]
    for (name, path), some in zip(parts, clips, strict=True):
        require(
            some.num_objects is not None and some.in_colour == clips[0].in_colour,
            f"got {path} ({name}), which has no `num_objects` or differs from the first file in "
            "colour; expected clips of one kind; prepare the videos with motes prepare",
        )
    frames = [some.frames.float() for some in clips]
    length, height, width = (max(part.shape[axis] for part in frames) for axis in (1, 2, 3))
    padded, seen = [], []
    for some, video in zip(clips, frames, strict=True):
        (left, top), missing = _margins(video, height, width), length - video.shape[1]
        right, bottom = width - video.shape[3] - left, height - video.shape[2] - top
        margins = (left, right, top, bottom, 0, missing)
        padded.append(pad(video, (0, 0, *margins) if some.in_colour else margins).numpy())
        own = np.ones(video.shape[:2], bool) if some.observed is None else some.observed.numpy()
        seen.append(np.pad(own, ((0, 0), (0, missing))))
    arrays: dict[str, Any] = {
        "frames": _compact(np.concatenate(padded)),
        "num_objects": np.concatenate([part.num_objects for part in clips]),
    }
    observed: Bool[np.ndarray, "B T"] = np.concatenate(seen)
    if not observed.all():
        arrays["observed"] = observed
    if all(stored is not None for stored in maps):
        known = [stored for stored in maps if stored is not None]
        where = [
            _moved(one, _margins(video, height, width)).extended(length)
            for (one, _), video in zip(known, frames, strict=True)
        ]
        names = [name for name, _ in parts]
        arrays |= _map_arrays(where, names, preparation or known[0][1], height, width)
    with atomic_path(out) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def _margins(video: Float[Tensor, "B T h w *channels"], height: int, width: int) -> tuple[int, int]:
    """Return the columns to the left of a smaller frame and the rows above it."""
    return (width - video.shape[3]) // 2, (height - video.shape[2]) // 2


def _compact(
    frames: Float[np.ndarray, "B T height width *channels"],
) -> Any:
    """Return frames as booleans or bytes if that loses nothing."""
    levels = (frames * 255).round().astype(np.uint8)
    if not np.array_equal(levels / np.float32(255), frames):
        return frames
    return levels > 0 if ((levels == 0) | (levels == 255)).all() else levels


def _moved(where: VideoMap, margin: tuple[int, int]) -> VideoMap:
    """Return the map of clips with a margin, with one row of scale and offset a clip."""
    scale = np.broadcast_to(where.scale, (len(where.times), 2))
    return replace(where, scale=scale, offset=where.offset - np.array(margin) * scale)


def _map_arrays(
    where: Sequence[VideoMap],
    names: Sequence[str],
    preparation: Preparation,
    height: int,
    width: int,
) -> dict[str, Any]:
    """Return the arrays that `load_video_map` reads."""
    rates = [one.fps for one in where]
    require(
        max(rates) <= (1 + RATE_TOLERANCE) * min(rates),
        f"got clips of {min(rates):g} to {max(rates):g} frames a second; one law of motion needs "
        f"one rate: prepare them with --fps {min(rates):g}",
    )
    own = [
        list(one.recordings) if one.recordings is not None else [name] * len(one.times)
        for one, name in zip(where, names, strict=True)
    ]
    stored = replace(preparation, height=height, width=width)
    parts = {
        name: np.concatenate([getattr(one, field) for one in where])
        for name, field in zip(MEMBERS[:4], ("scale", "offset", "times", "numbers"), strict=True)
    }
    if any(one.shifts is not None for one in where):
        parts[SHIFTS] = np.concatenate(
            [np.zeros((*one.times.shape, 2)) if one.shifts is None else one.shifts for one in where]
        )
    text = preparation_to_json(stored).encode()
    return {
        **parts,
        MEMBERS[4]: np.frombuffer(text, np.uint8),
        RECORDINGS: np.array([name for some in own for name in some]),
    }
