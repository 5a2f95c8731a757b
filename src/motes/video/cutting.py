"""Clips cut from a video, with overlap, the empty ones left out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from motes.core.axes import UInt8
from motes.core.errors import InputError
from motes.video.blobs import blob_inks, usual_count
from motes.video.clip_file import ClipWriter
from motes.video.prepare import Plan, Prepared

SHEET_CLIPS, SHEET_FRAMES = 8, 10  # rows and columns of a contact sheet


@dataclass(frozen=True, eq=False)
class Shown:
    """A clip on the contact sheet."""

    time: float
    num_objects: int
    frames: UInt8[np.ndarray, "T height width"]


@dataclass(frozen=True)
class CutSummary:
    """What was cut from a video."""

    counts: list[int]  # objects that each clip seems to hold
    num_empty: int
    shown: list[Shown]  # some clips of all parts of the video


def cut_clips(
    plan: Plan,
    path: Path,
    num_frames: int,
    stride: int,
    num_objects: int | None,
    progress: Callable[[int], None] = lambda done: None,
) -> CutSummary:
    """Writes the clips of a video to an npz file.

    Args:
        plan: of the preparation.
        path: of the npz file.
        num_frames: in each clip.
        stride: frames from the start of a clip to the start of the next.
        num_objects: in every clip; None takes what each clip seems to hold.
        progress: told the number of the picture that was read last.
    """
    counts: list[int] = []
    shown: list[Shown] = []
    num_empty, every = 0, 1
    with ClipWriter(path, plan.geometry, plan.preparation) as writer:
        for clip, inks in windows(_watched(plan, progress), num_frames, stride):
            seems = usual_count(inks)
            if seems == 0:
                num_empty += 1
                continue
            count = seems if num_objects is None else num_objects
            writer.write(clip, count)
            if len(counts) % every == 0:
                chosen = np.linspace(0, num_frames - 1, SHEET_FRAMES).round().astype(int)
                frames = np.stack([clip[t].frame for t in chosen])
                shown.append(Shown(clip[0].time, count, frames))
            counts.append(count)
            if len(shown) > 2 * SHEET_CLIPS:  # keep every other one from now on
                shown, every = shown[::2], 2 * every
        if not counts:
            raise InputError(
                f"{plan.video.name} gives no clip of {num_frames} frames in which anything moves"
                + (f" ({num_empty} are empty)" if num_empty else "")
                + "; take fewer --frames, a lower --threshold or another --crop"
            )
    return CutSummary(counts, num_empty, shown[:: max(len(shown) // SHEET_CLIPS, 1)][:SHEET_CLIPS])


def windows(
    frames: Iterator[tuple[Prepared, list[float]]], num_frames: int, stride: int
) -> Iterator[tuple[list[Prepared], list[list[float]]]]:
    """Clips of so many frames, each a stride (no longer than a clip) after the one before.

    Beside every clip stand the inks of the blobs in its frames.

    Law: starts at every multiple of the stride (test_clips_start_at_every_stride).
    """
    held = list(islice(frames, num_frames))
    while len(held) == num_frames:
        yield [prepared for prepared, _ in held], [inks for _, inks in held]
        held = held[stride:] + list(islice(frames, stride))


def _watched(plan: Plan, progress: Callable[[int], None]) -> Iterator[tuple[Prepared, list[float]]]:
    for prepared in plan.frames():
        progress(prepared.number + 1)
        yield prepared, blob_inks(prepared.frame)
