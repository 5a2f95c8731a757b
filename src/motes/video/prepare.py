"""Prepare a video: find background and threshold, then extract small foreground frames."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from motes.core.axes import Bool, UInt8
from motes.core.errors import InputError
from motes.video.foreground import (
    BackgroundKind,
    Foreground,
    automatic_threshold,
    blob_masses,
    dilate,
    find_background,
    parse_colour,
    sample_frames,
)
from motes.video.geometry import Box, Geometry, fit_box
from motes.video.source import MAX_SIDE, Frame, Video, require_rereadable

Progress = Callable[[int], None]

PREPARATION = "preparation.json"  # in a run folder: the preparation of the training clips
MIN_RADIUS = 1.6  # prepared pixels
RADIUS_SAMPLE = 15  # frames in which objects are measured
MIN_MASS = 4  # pixels; smaller blobs are noise


@dataclass(frozen=True)
class Preparation:
    """Settings of a preparation, stored with clips and models to prepare other videos alike.

    Attributes:
        height: of a prepared frame in pixels.
        width: of a prepared frame in pixels.
        crop: left, top, right, bottom of the part of the video to use; None uses all.
        fps: prepared frames per second; None keeps the rate of the video.
        source_fps: frames per second of a video without a clock.
        background: the median of the video, or black or white if objects may rest for long.
        threshold: smallest difference from the background, as a fraction of the full scale; None
            estimates it.
        colour: "grey" or "#rrggbb": a further condition on foreground pixels.
        grow: recording pixels by which the foreground is dilated on every side, so that small
            objects do not fade in small frames; None estimates it.
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


class PreparedFrame(NamedTuple):
    """One frame as a model receives it."""

    number: int  # of the frame in the video
    time: float  # seconds
    frame: UInt8[np.ndarray, "height width *channels"]


@dataclass(frozen=True)
class Plan:
    """A video with the background and settings that a first pass over it determined."""

    video: Video
    preparation: Preparation  # complete: threshold and growth are set
    geometry: Geometry
    foreground: Foreground
    span: tuple[float, float]  # seconds

    def frames(self) -> Iterator[PreparedFrame]:
        """Yield the prepared frames in a second pass over the video."""
        box = self.geometry.box
        for number, frame in _timed(self.video, self.span, self.preparation.fps):
            part = frame.picture[box.top : box.bottom, box.left : box.right]
            mask = dilate(self.foreground.mask(part), self.preparation.grow or 0)
            yield PreparedFrame(number, frame.time, self.geometry.shrink(mask))


def plan(
    video: Video,
    preparation: Preparation,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Progress = lambda done: None,
) -> Plan:
    """Return the plan of a preparation, after a first pass that estimates what is not set.

    Args:
        video: from `open_video`.
        preparation: the settings; those that are None are estimated.
        span: first and last second to use.
        progress: called with the number of frames read.
    """
    require_rereadable(video, "preparing it")
    video = with_frame_rate(video, preparation.source_fps)
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

    sample = sample_frames(parts())
    background = find_background(sample, preparation.background)
    threshold = preparation.threshold
    if threshold is None:
        threshold = automatic_threshold(sample, background)
    geometry = Geometry(box, preparation.height, preparation.width)
    foreground = Foreground(background, threshold, preparation.colour)
    grow = preparation.grow
    if grow is None:
        some = sample[:: max(len(sample) // RADIUS_SAMPLE, 1)]
        grow = required_growth(typical_radius([foreground.mask(part) for part in some]), geometry)
    found = replace(preparation, threshold=threshold, grow=grow)
    return Plan(video, found, geometry, foreground, span)


def typical_radius(masks: list[Bool[np.ndarray, "height width"]]) -> float:
    """Return the median radius in pixels of disks with the area of the blobs; MAX_SIDE if none."""
    areas = [mass for mask in masks for mass in blob_masses(mask.astype(np.uint8) * np.uint8(255))]
    areas = [area for area in areas if area > MIN_MASS]
    return math.sqrt(float(np.median(areas)) / math.pi) if areas else MAX_SIDE


def required_growth(radius: float, geometry: Geometry) -> int:
    """Return the recording pixels to add to this radius to reach MIN_RADIUS in prepared frames.

    [Choice 22]
    """
    return max(math.ceil(MIN_RADIUS * max(geometry.scale) - radius), 0)


def with_frame_rate(video: Video, fps: float | None) -> Video:
    """Return the video with times at a constant frame rate; unchanged for None."""
    if fps is None:
        return video

    def frames() -> Iterator[Frame]:
        for number, frame in enumerate(video.frames()):
            yield frame._replace(time=number / fps)

    return replace(video, fps=fps, frames=frames)


def _timed(
    video: Video, span: tuple[float, float], fps: float | None
) -> Iterator[tuple[int, Frame]]:
    """Yield (number, frame) within a span of seconds, resampled to fps by the nearest frame.

    Law: a video at its own rate is used whole (test_resampling_takes_the_nearest_frame).
    """
    tick = 0
    before: tuple[int, Frame] | None = None
    for number, frame in enumerate(video.frames()):
        if frame.time > span[1]:
            break  # times never decrease, and the rest may be long
        if frame.time < span[0]:
            continue
        if fps is None:
            yield number, frame
            continue
        here = (number, frame)
        # A tick is due once a frame is past it; the frame before may have been nearer.
        while frame.time - span[0] >= tick / fps - 1e-6:
            wanted = span[0] + tick / fps
            nearer = before is not None and wanted - before[1].time < frame.time - wanted
            yield before if before is not None and nearer else here
            tick += 1
        before = here


def find_preparation(folder: str | Path) -> Preparation | None:
    """Return the preparation of the clips that a run was trained on, or None if not stored."""
    path = Path(folder) / PREPARATION
    return preparation_from_json(path.read_text("utf-8"), str(path)) if path.is_file() else None


def preparation_to_json(preparation: Preparation) -> str:
    """Return the preparation as JSON text."""
    return json.dumps(asdict(preparation))


def preparation_from_json(text: str, origin: str) -> Preparation:
    """Return the preparation that `preparation_to_json` wrote; `origin` is named in errors."""
    try:
        raw: dict[str, Any] = json.loads(text)
        crop = raw.pop("crop")
        return Preparation(**raw, crop=None if crop is None else Box(*map(int, crop)))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(
            f"{origin} holds no valid preparation; expected the output of motes prepare; "
            "prepare the video again"
        ) from None
