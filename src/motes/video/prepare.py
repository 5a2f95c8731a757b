"""From a video to frames that a model can be asked about or learn from."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from motes.core.axes import Bool, UInt8
from motes.core.errors import InputError
from motes.video.blobs import blob_inks
from motes.video.foreground import (
    BackgroundKind,
    Foreground,
    automatic_threshold,
    find_background,
    parse_colour,
    sample_pictures,
)
from motes.video.geometry import Box, Geometry, fit_box
from motes.video.source import MAX_SIDE, Frame, Video

Progress = Callable[[int], None]

PREPARATION = "preparation.json"  # in a run folder: how the clips were made from a video
SMALLEST_RADIUS = 1.6  # frame pixels
GROWTH_SAMPLE = 15  # pictures in which objects are measured
NOISE_INK = 4  # pixels; smaller blobs are not objects


@dataclass(frozen=True)
class Preparation:
    """How a video becomes frames; stored with clips and models, so that others are made alike.

    Attributes:
        height: of a frame in pixels.
        width: of a frame in pixels.
        crop: left, top, right, bottom of the part of the video that is used; None is all.
        fps: frames a second; None keeps those of the video.
        source_fps: pictures a second of a video that has no clock of its own.
        background: median of the video, or black or white where objects may rest for long.
        threshold: smallest difference from the background, of 1; None finds it.
        colour: "grey" or "#rrggbb": what moving pixels have to look like besides.
        grow: video pixels by which all that moves is made larger on every side, so that small
            objects do not fade in small frames; None finds it.
    """

    height: int
    width: int
    crop: tuple[int, int, int, int] | None = None
    fps: float | None = None
    source_fps: float | None = None
    background: BackgroundKind = "median"
    threshold: float | None = None
    colour: str | None = None
    grow: int | None = None

    def __post_init__(self) -> None:
        if not (4 <= self.height <= 512 and 4 <= self.width <= 512):
            raise InputError(
                f"frames would be {self.height}x{self.width} pixels; expected sides of 4 to 512; "
                "choose another size or crop"
            )
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise InputError(f"threshold is {self.threshold}; give a number from 0 up to 1")
        for name in ("fps", "source_fps"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate <= 1e6:
                raise InputError(f"{name} is {rate}; give a positive number of frames a second")
        if self.grow is not None and not 0 <= self.grow <= 200:
            raise InputError(f"grow is {self.grow}; give 0 to 200 pixels of the video")
        if self.background not in get_args(BackgroundKind):
            raise InputError(f"background is {self.background!r}; give median, black or white")
        if self.colour not in (None, "grey"):
            parse_colour(str(self.colour))


class Prepared(NamedTuple):
    """One frame as a model sees it."""

    number: int  # of the picture in the video
    time: float  # seconds
    frame: UInt8[np.ndarray, "height width *channels"]


@dataclass(frozen=True)
class Plan:
    """A video with everything that its preparation needs, found in one pass over it."""

    video: Video
    preparation: Preparation  # with the threshold that was found
    geometry: Geometry
    foreground: Foreground
    span: tuple[float, float]  # seconds

    def frames(self) -> Iterator[Prepared]:
        """The frames, one after the other, in a second pass over the video."""
        box = self.geometry.box
        for number, frame in _timed(self.video, self.span, self.preparation.fps):
            part = frame.picture[box.top : box.bottom, box.left : box.right]
            mask = grown(self.foreground.mask(part), self.preparation.grow or 0)
            yield Prepared(number, frame.time, self.geometry.shrink(mask))


def plan(
    video: Video,
    preparation: Preparation,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Progress = lambda done: None,
) -> Plan:
    """Finds background and threshold in a first pass over the video.

    Args:
        video: from `open_video`.
        preparation: what is asked for.
        span: first and last second to use.
        progress: told how many pictures were read.
    """
    video = with_clock(video, preparation.source_fps)
    if preparation.fps is not None and preparation.fps > 1.01 * (video.fps or 1.0):
        raise InputError(
            f"fps is {preparation.fps:g}, but the video has {video.fps or 1.0:g} frames a second; "
            "give no more than that"
        )
    box = fit_box(preparation.crop and Box(*preparation.crop), video.width, video.height)

    def parts() -> Iterator[np.ndarray]:
        for count, (_, frame) in enumerate(_timed(video, span, None)):
            progress(count + 1)
            yield frame.picture[box.top : box.bottom, box.left : box.right]

    sample = sample_pictures(parts())
    background = find_background(sample, preparation.background)
    threshold = preparation.threshold
    if threshold is None:
        threshold = automatic_threshold(sample, background)
    geometry = Geometry(box, preparation.height, preparation.width)
    foreground = Foreground(background, threshold, preparation.colour)
    grow = preparation.grow
    if grow is None:
        some = sample[:: max(len(sample) // GROWTH_SAMPLE, 1)]
        grow = needed_growth(usual_radius([foreground.mask(part) for part in some]), geometry)
    found = replace(preparation, threshold=threshold, grow=grow)
    return Plan(video, found, geometry, foreground, span)


def usual_radius(masks: list[Bool[np.ndarray, "height width"]]) -> float:
    """The median radius of disks with the ink of the blobs, in pixels; large without blobs."""
    inks = [ink for mask in masks for ink in blob_inks(mask.astype(np.uint8) * np.uint8(255))]
    inks = [ink for ink in inks if ink > NOISE_INK]
    return math.sqrt(float(np.median(inks)) / math.pi) if inks else MAX_SIDE


def needed_growth(radius: float, geometry: Geometry) -> int:
    """Video pixels that objects of this radius must gain to be seen well in a frame.

    They should have SMALLEST_RADIUS there. [Choice 22]
    """
    return max(math.ceil(SMALLEST_RADIUS * max(geometry.scale) - radius), 0)


def grown(mask: Bool[np.ndarray, "rows columns"], by: int) -> Bool[np.ndarray, "rows columns"]:
    """The mask with every pixel spread to a square of 2 by + 1 pixels.

    Law: keeps the centroid of a lone object (test_growing_keeps_centroids); equals a loop over
    pixels (test_growing_equals_the_naive_loop).
    """
    if by == 0:
        return mask
    for axis in (0, 1):
        # Pixels lit up to each place: a stretch is lit where the number grows along it.
        lit = np.pad(mask, [(by + 1, by) if this == axis else (0, 0) for this in (0, 1)])
        count = lit.cumsum(axis, dtype=np.int32)
        length = mask.shape[axis]
        ends = np.take(count, range(2 * by + 1, 2 * by + 1 + length), axis)
        mask = ends > np.take(count, range(length), axis)
    return mask


def with_clock(video: Video, fps: float | None) -> Video:
    """The video at so many pictures a second; as it is for None."""
    if fps is None:
        return video

    def frames() -> Iterator[Frame]:
        for number, frame in enumerate(video.frames()):
            yield frame._replace(time=number / fps)

    return replace(video, fps=fps, frames=frames)


def _timed(
    video: Video, span: tuple[float, float], fps: float | None
) -> Iterator[tuple[int, Frame]]:
    """The pictures within a span of seconds with their numbers, the nearest to every beat of fps.

    Law: a video at its own rate is taken whole (test_resampling_takes_the_nearest_picture).
    """
    beat = 0
    before: tuple[int, Frame] | None = None
    for number, frame in enumerate(video.frames()):
        if frame.time > span[1]:
            break  # pictures come in the order of their times, and the rest may be long
        if frame.time < span[0]:
            continue
        if fps is None:
            yield number, frame
            continue
        here = (number, frame)
        # A beat is due once a picture is past it; the one before may have been nearer.
        while frame.time - span[0] >= beat / fps - 1e-6:
            wanted = span[0] + beat / fps
            nearer = before is not None and wanted - before[1].time < frame.time - wanted
            yield before if before is not None and nearer else here
            beat += 1
        before = here


def find_preparation(folder: str | Path) -> Preparation | None:
    """How the clips that a run learned from were made of a video, where that is known."""
    path = Path(folder) / PREPARATION
    return preparation_from_json(path.read_text("utf-8"), str(path)) if path.is_file() else None


def preparation_to_json(preparation: Preparation) -> str:
    """The preparation as JSON text."""
    return json.dumps(asdict(preparation))


def preparation_from_json(text: str, origin: str) -> Preparation:
    """The preparation that `preparation_to_json` wrote; `origin` is named in errors."""
    try:
        raw: dict[str, Any] = json.loads(text)
        crop = raw.pop("crop")
        return Preparation(**raw, crop=None if crop is None else Box(*map(int, crop)))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(
            f"{origin} does not say how its video was prepared; expected what motes prepare "
            "writes; prepare the video again"
        ) from None
