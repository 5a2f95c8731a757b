"""A whole video as one clip of a model's frame size, for queries on the video itself."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt, UInt8
from motes.core.errors import InputError
from motes.video.geometry import VideoMap
from motes.video.prepare import Preparation, PreparedFrame, plan, with_frame_rate
from motes.video.readers import open_video
from motes.video.source import Video, grey, to_rgb

MAX_FRAMES = 10_000


@dataclass(frozen=True, eq=False)
class WholeClip:
    """One clip that covers a video, or a span of it.

    Attributes:
        frames: in [0, 1].
        where: the map to the pixels and seconds of the video.
        video: the source, which is read again to draw on it.
    """

    frames: Float[Tensor, "1 T height width *channels"]
    where: VideoMap
    video: Video

    def pictures(self) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        """Yield the original images of these frames in RGB, in a second pass over the video."""
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
    """
    video = open_video(path)
    if preparation is None and (video.height, video.width) == (height, width):
        clip = _collect(_unchanged(video, span, in_colour), video)
        scale, offset = (1.0, 1.0), (0.0, 0.0)
    else:
        preparation = replace(preparation or Preparation(height, width), height=height, width=width)
        found = plan(video, preparation, span, progress)
        clip = _collect(found.frames(), video)
        scale, offset = found.geometry.scale, found.geometry.offset
        video = with_frame_rate(video, preparation.source_fps)
    frames = np.stack([prepared.frame for prepared in clip]) / np.float32(255)
    times = np.array([[prepared.time for prepared in clip]])
    numbers = np.array([[prepared.number for prepared in clip]])
    where = VideoMap(np.array(scale), np.array(offset), times, numbers)
    return WholeClip(torch.from_numpy(frames)[None], where, video)


def _unchanged(video: Video, span: tuple[float, float], in_colour: bool) -> Iterator[PreparedFrame]:
    for number, frame in enumerate(video.frames()):
        if span[0] <= frame.time <= span[1]:
            levels = to_rgb(frame.picture) if in_colour else _grey_levels(frame.picture)
            yield PreparedFrame(number, frame.time, levels)


def _grey_levels(
    picture: UInt[np.ndarray, "height width channels"],
) -> UInt8[np.ndarray, "height width"]:
    levels: UInt8[np.ndarray, "height width"] = (255 * grey(picture)).round().astype(np.uint8)
    return levels


def _collect(frames: Iterable[PreparedFrame], video: Video) -> list[PreparedFrame]:
    """Return the frames as a list, if there are at least two and at most MAX_FRAMES."""
    clip: list[PreparedFrame] = []
    for prepared in frames:
        if len(clip) == MAX_FRAMES:
            raise InputError(
                f"{video.name} has more than {MAX_FRAMES} frames; select a part of it with "
                "--start and --end"
            )
        clip.append(prepared)
    if len(clip) < 2:
        raise InputError(f"{video.name} has {len(clip)} frames there; expected at least two")
    return clip
