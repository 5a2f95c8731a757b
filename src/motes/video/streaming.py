"""A recording as a stream of prepared frames, which can go on after any of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from motes.video.checks import clock_warnings
from motes.video.geometry import VideoMap
from motes.video.prepare import (
    Place,
    Preparation,
    PreparedFrame,
    plan,
    timed_frames,
    with_frame_rate,
)
from motes.video.source import Video, grey, open_video, to_rgb
from motes.video.units import Units

Span = tuple[float, float]


@dataclass(frozen=True, eq=False)
class PreparedVideo:
    """The frames of a recording for a model, read one by one."""

    video: Video
    frames: Callable[[Place | None], Iterator[PreparedFrame]]  # all, or those after a place
    scale: tuple[float, float]  # recording pixels per prepared pixel, along x and y
    offset: tuple[float, float]  # recording (x, y) of the centre of the first prepared pixel
    units: Units | None
    warnings: tuple[str, ...]  # one line each

    def map_of(self, frames: Sequence[PreparedFrame]) -> VideoMap:
        """Return the map of one clip of these frames to the recording."""
        shifts = np.array([[prepared.shift for prepared in frames]])
        return VideoMap(
            np.array(self.scale),
            np.array(self.offset),
            np.array([[prepared.time for prepared in frames]]),
            np.array([[prepared.number for prepared in frames]]),
            shifts if shifts.any() else None,
            None,
            self.units,
        )


def prepared_video(
    path: str | Path,
    height: int,
    width: int,
    preparation: Preparation | None = None,
    span: Span = (0.0, float("inf")),
    progress: Callable[[int], None] = lambda done: None,
    *,
    in_colour: bool = False,
    source_fps: float | None = None,
    by_seeking: bool = False,
) -> PreparedVideo:
    """Return a recording prepared for a model with frames of height x width pixels.

    With `by_seeking` the background is found from frames all over the recording that are sought
    out, so that the recording is decoded once; the other arguments are those of `whole_clip`.
    """
    video = with_frame_rate(open_video(path), source_fps)
    if preparation is None and (video.height, video.width) == (height, width):
        frames = partial(_unchanged, video, span, in_colour)
        warnings = tuple(clock_warnings(video))
        return PreparedVideo(video, frames, (1.0, 1.0), (0.0, 0.0), None, warnings)
    preparation = replace(preparation or Preparation(height, width), height=height, width=width)
    if source_fps is not None:
        preparation = replace(preparation, source_fps=source_fps)
    found = plan(video, preparation, span, progress, by_seeking=by_seeking)
    geometry, units = found.geometry, preparation.units
    return PreparedVideo(
        found.video, found.frames, geometry.scale, geometry.offset, units, found.warnings
    )


def _unchanged(
    video: Video, span: Span, in_colour: bool, after: Place | None
) -> Iterator[PreparedFrame]:
    for number, frame in timed_frames(video, span, None, after):
        picture = frame.picture
        levels = to_rgb(picture) if in_colour else (255 * grey(picture)).round()
        yield PreparedFrame(number, frame.time, levels.astype(np.uint8))


def expected_frames(video: Video, span: Span, fps: float | None) -> int | None:
    """Return about how many frames a span of a video has at a rate; None if it does not tell."""
    if video.num_frames is None:
        return None
    rate = video.fps or 1.0
    seconds = min(span[1], video.num_frames / rate) - span[0]
    return max(round(seconds * min(fps or rate, rate)), 0)
