"""A whole video as one clip of a model's size, for questions straight from the video."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt8
from motes.core.errors import InputError
from motes.video.geometry import VideoMap
from motes.video.prepare import Preparation, Prepared, plan, with_clock
from motes.video.reading import open_video
from motes.video.source import Video, grey

MAX_FRAMES = 10_000


@dataclass(frozen=True, eq=False)
class WholeClip:
    """One clip that is a whole video, or a span of its seconds."""

    frames: Float[Tensor, "1 T height width *channels"]
    where: VideoMap
    video: Video

    def pictures(self) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        """The video's own pictures of these frames, in colour; read again, one at a time."""
        wanted = iter(self.where.numbers[0].tolist())
        number = next(wanted, None)
        for count, frame in enumerate(self.video.frames()):
            while number == count:
                yield to_rgb(frame.picture)
                number = next(wanted, None)


def whole_clip(
    path: str | Path,
    height: int,
    width: int,
    preparation: Preparation | None = None,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Callable[[int], None] = lambda done: None,
    *,
    in_colour: bool = False,
) -> WholeClip:
    """The frames of a video for a model that sees height x width pixels.

    A video that has this size is taken as it is, unless a preparation says otherwise. Any other
    is prepared: as the clips that the model learned from, where that is known.

    Args:
        path: of anything that `open_video` opens.
        height: of the model's frames.
        width: of the model's frames.
        preparation: of the clips that the model learned from.
        span: first and last second to use.
        progress: told how many pictures were read.
        in_colour: whether a video that is taken as it is keeps its colours.
    """
    video = open_video(path)
    if preparation is None and (video.height, video.width) == (height, width):
        return _as_it_is(video, span, in_colour)
    asked = preparation or Preparation(height, width)
    if (asked.height, asked.width) != (height, width):
        asked = replace(asked, height=height, width=width)
    found = plan(video, asked, span, progress)
    clip = _held(found.frames(), video)
    frames = np.stack([prepared.frame for prepared in clip]) / np.float32(255)
    where = VideoMap(np.array(found.geometry.scale), np.array(found.geometry.offset), *_clock(clip))
    return WholeClip(torch.from_numpy(frames)[None], where, with_clock(video, asked.source_fps))


def to_rgb(
    picture: np.ndarray,
) -> UInt8[np.ndarray, "height width 3"]:
    """A grey or coloured picture of 8 or 16 bits as one of 8 bits in three colours."""
    levels = (picture >> 8).astype(np.uint8) if picture.dtype == np.uint16 else picture
    return np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else levels


def _as_it_is(video: Video, span: tuple[float, float], in_colour: bool) -> WholeClip:
    clip = _held(
        (
            Prepared(
                number,
                frame.time,
                to_rgb(frame.picture) if in_colour else to_levels(grey(frame.picture)),
            )
            for number, frame in enumerate(video.frames())
            if span[0] <= frame.time <= span[1]
        ),
        video,
    )
    frames = np.stack([prepared.frame for prepared in clip]) / np.float32(255)
    where = VideoMap(np.ones(2), np.zeros(2), *_clock(clip))
    return WholeClip(torch.from_numpy(frames)[None], where, video)


def to_levels(frame: Float[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    """Values in [0, 1] as 255 levels."""
    levels: UInt8[np.ndarray, "height width"] = (255 * frame).round().astype(np.uint8)
    return levels


def _held(frames: Iterator[Prepared], video: Video) -> list[Prepared]:
    """The frames in memory, if they are not too many."""
    clip: list[Prepared] = []
    for prepared in frames:
        if len(clip) == MAX_FRAMES:
            raise InputError(
                f"{video.name} has more than {MAX_FRAMES} frames; ask about a part of it with "
                "--start and --end"
            )
        clip.append(prepared)
    if len(clip) < 2:
        raise InputError(f"{video.name} has {len(clip)} frames there; expected at least two")
    return clip


def _clock(clip: list[Prepared]) -> tuple[np.ndarray, np.ndarray]:
    times = np.array([[prepared.time for prepared in clip]])
    return times, np.array([[prepared.number for prepared in clip]])
