"""Prepare a video: find background and threshold, then extract small foreground frames."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from motes.core.axes import UInt, UInt8
from motes.core.errors import InputError, require
from motes.video.camera import Camera, CameraSample, inside, shifted
from motes.video.checks import (
    camera_warnings,
    clock_warnings,
    foreground_warnings,
    growth_warnings,
)
from motes.video.foreground import (
    MIN_MASS,
    BackgroundKind,
    Foreground,
    Mask,
    Pictures,
    automatic_threshold,
    blob_masses,
    dilate,
    find_background,
    object_counts,
    parse_colour,
)
from motes.video.geometry import Box, Geometry, Polygon, fit_box, polygon_region
from motes.video.source import MAX_SIDE, Frame, Picture, Video, frames_from, grey
from motes.video.units import Units, units_from_json, units_to_json

Progress = Callable[[int], None]
PREPARATION = "preparation.json"  # in a run folder: the preparation of the training clips
MIN_RADIUS = 1.6  # prepared pixels
RADIUS_SAMPLE = 15  # frames in which objects are measured
CameraKind = Literal["auto", "still"]

SAMPLE_BYTES = 256 * 2**20  # of the sampled frames of a video
MIN_SAMPLE, MAX_SAMPLE = 9, 101  # frames in a sample, whatever their size
MIN_SEEKABLE = 40  # different frames that seeking must find


@dataclass(frozen=True)
class Preparation:
    """Settings of a preparation, stored with clips and models to prepare other videos alike."""

    height: int  # of a prepared frame in pixels
    width: int
    crop: tuple[int, int, int, int] | None = None  # left, top, right, bottom; None: all
    fps: float | None = None  # prepared frames per second; None: the rate of the video
    source_fps: float | None = None  # of a video without a clock
    background: BackgroundKind = "median"  # black or white if objects may rest for long
    # Smallest difference from the background, as a fraction of the full scale; None: estimated.
    threshold: float | None = None
    colour: str | None = None  # "grey" or "#rrggbb": a further condition on foreground pixels
    # Recording pixels by which the foreground is dilated, so that small objects do not fade in
    # small frames; None: estimated.
    grow: int | None = None
    camera: CameraKind = "auto"  # motion of the camera is taken out, or it is taken to be at rest
    keep: tuple[Polygon, ...] = ()  # regions of the video outside which nothing is foreground
    leave_out: tuple[Polygon, ...] = ()  # regions in which nothing is foreground
    units: Units | None = None  # from pixels of the video to lengths

    def __post_init__(self) -> None:
        require(
            4 <= self.height <= 512 and 4 <= self.width <= 512,
            f"frames would be {self.height}x{self.width} pixels; expected sides of 4 to 512; "
            "choose another size or crop",
        )
        require(
            self.threshold is None or 0 <= self.threshold < 1,
            f"threshold is {self.threshold}; give a number from 0 up to 1",
        )
        for name, rate in (("fps", self.fps), ("source_fps", self.source_fps)):
            require(
                rate is None or 0 < rate <= 1e6,
                f"{name} is {rate}; give a positive number of frames a second",
            )
        require(
            self.grow is None or 0 <= self.grow <= 200,
            f"grow is {self.grow}; give 0 to 200 pixels of the video",
        )
        require(
            self.background in get_args(BackgroundKind),
            f"background is {self.background!r}; give median, black or white",
        )
        require(
            self.camera in get_args(CameraKind), f"camera is {self.camera!r}; give auto or still"
        )
        if self.colour not in (None, "grey"):
            parse_colour(str(self.colour))


def sample_frames(
    pictures: Iterable[Picture],
) -> Pictures:
    """Return a uniform random sample of a stream of unknown length (reservoir sampling).

    The sample size depends on the frame size alone, so the memory used does not grow with the
    length of the video.

    Law: holds at most SAMPLE_BYTES, or MIN_SAMPLE frames (test_a_sample_is_bounded_and_fair).
    """
    random = np.random.default_rng(0)
    sample: list[Picture] = []
    for count, picture in enumerate(pictures):
        capacity = min(max(SAMPLE_BYTES // picture.nbytes, MIN_SAMPLE), MAX_SAMPLE)
        if count < capacity:
            sample.append(picture.copy())
        elif (index := int(random.integers(count + 1))) < capacity:
            sample[index] = picture.copy()
    require(sample, "the video holds no frames there; expected at least one; check the times")
    return np.stack(sample)


class PreparedFrame(NamedTuple):
    """One frame as a model receives it."""

    number: int  # of the frame in the video
    time: float  # seconds
    frame: UInt8[np.ndarray, "height width *channels"]
    shift: tuple[float, float] = (0.0, 0.0)  # of the camera in video pixels, see `VideoMap`


class Place(NamedTuple):
    """The last prepared frame before a pass that goes on."""

    used: int  # prepared frames up to here
    number: int  # of the frame in the video
    time: float  # seconds
    shift: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Plan:
    """A video with the background and settings that a first pass over it determined."""

    video: Video
    preparation: Preparation  # complete: threshold and growth are set
    geometry: Geometry
    foreground: Foreground
    span: tuple[float, float]  # seconds
    camera: Camera | None = None  # of a camera that moves a little
    warnings: tuple[str, ...] = ()  # one line each, with the option that helps

    def frames(self, after: Place | None = None) -> Iterator[PreparedFrame]:
        """Yield the prepared frames in a second pass over the video, or those after a place.

        Law: equals the end of a whole pass (test_a_pass_goes_on_after_a_place).
        """
        shift = (0.0, 0.0) if after is None else after.shift
        for number, frame in timed_frames(self.video, self.span, self.preparation.fps, after):
            if self.camera is not None:
                shift = self.camera.shift(frame.picture, shift)
            mask = self.foreground.mask(_steady_part(frame.picture, self.geometry.box, shift))
            if self.camera is not None:
                mask &= inside(frame.picture, shift, self.geometry.box)
            mask = dilate(mask, self.preparation.grow or 0)
            yield PreparedFrame(number, frame.time, self.geometry.shrink(mask), shift)


def _steady_part(
    picture: Picture, box: Box, shift: tuple[float, float]
) -> UInt[np.ndarray, "rows columns channels"]:
    """Return the crop of a picture, with the shift of the camera taken out."""
    if shift == (0.0, 0.0):
        return picture[box.top : box.bottom, box.left : box.right]
    return shifted(picture, shift, box).round().astype(picture.dtype)


def plan(
    video: Video,
    preparation: Preparation,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Progress = lambda done: None,
    *,
    by_seeking: bool = False,
) -> Plan:
    """Return the plan of a preparation, after a first pass that estimates settings that are None.

    `span` is the first and the last second to use; `progress` is called with the frames read. With
    `by_seeking`, the first pass reads a few frames all over the video, where that is possible.
    """
    require(
        video.rereadable,
        f"{video.name} can be read only once, and preparing it needs several passes; record it to "
        "a file first",
    )
    video = with_frame_rate(video, preparation.source_fps)
    rate = video.fps or 1.0
    require(
        preparation.fps is None or preparation.fps <= 1.01 * rate,
        f"fps is {preparation.fps}, but the video has {rate:g} frames a second; give no more",
    )
    box = fit_box(preparation.crop and Box(*preparation.crop), video.width, video.height)

    seen = CameraSample()
    seekable = by_seeking and _is_sampled_by_seeking(video, span)

    def parts(camera: Camera | None = None) -> Iterator[Picture]:
        shift = (0.0, 0.0)
        for count, (picture, successor) in enumerate(_first_pass(video, span, seekable)):
            if camera is not None:
                shift = camera.shift(picture, shift)
            elif preparation.camera == "auto":
                seen.add(picture, successor)
            progress(count + 1)
            yield _steady_part(picture, box, shift)

    sample = sample_frames(parts())
    motion = seen.find_motion()
    if motion.camera is not None:
        sample = sample_frames(parts(motion.camera))
    background = find_background(sample, preparation.background)
    threshold = preparation.threshold
    region = polygon_region(box, preparation.keep, preparation.leave_out)
    if threshold is None and region is None:
        threshold = automatic_threshold(sample, background)
    elif threshold is None:  # the pixels of the region as one column
        threshold = automatic_threshold(sample[:, region][:, :, None], background[region][:, None])
    geometry = Geometry(box, preparation.height, preparation.width)
    foreground = Foreground(background, threshold, preparation.colour, region)
    some = sample[:: max(len(sample) // RADIUS_SAMPLE, 1)]
    masks = [foreground.mask(part) for part in some]
    grow = required_growth(masks, geometry) if preparation.grow is None else preparation.grow
    found = replace(preparation, threshold=threshold, grow=grow)
    warnings = [
        *camera_warnings(motion),
        *clock_warnings(video),
        *foreground_warnings(
            float(np.median([mask.mean() for mask in masks])), flicker(some), threshold
        ),
        *growth_warnings(*_blob_counts(masks, grow, geometry), grow),
    ]
    return Plan(video, found, geometry, foreground, span, motion.camera, tuple(warnings))


def _first_pass(
    video: Video, span: tuple[float, float], seekable: bool
) -> Iterator[tuple[Picture, Picture | None]]:
    """Yield all pictures of a span, or by seeking some of them, each with its successor."""
    if not seekable or video.sample is None:
        yield from ((frame.picture, None) for _, frame in timed_frames(video, span, None))
        return
    for frame, successor in video.sample(_sample_places(video, span)):
        if span[0] <= frame.time <= span[1]:
            yield frame.picture, successor.picture


def _sample_places(video: Video, span: tuple[float, float]) -> int:
    """Return the places in a whole video of which about MAX_SAMPLE lie in a span."""
    length = (video.num_frames or 1) / (video.fps or 1.0)
    share = (min(span[1], length) - min(span[0], length)) / length
    return math.ceil(MAX_SAMPLE / max(share, 0.01))


def _is_sampled_by_seeking(video: Video, span: tuple[float, float]) -> bool:
    """Return whether seeking finds enough different frames of a span for a background."""
    found = enumerate(_first_pass(video, span, True), 1) if video.sample is not None else ()
    return any(count >= MIN_SEEKABLE for count, _ in found)


def required_growth(masks: list[Mask], geometry: Geometry) -> int:
    """Return the recording pixels that bring a typical blob to MIN_RADIUS in prepared frames.

    The typical radius is that of a disk with the median area of the blobs. [Choice 22]
    """
    areas = [mass for mask in masks for mass in blob_masses(mask.astype(np.uint8) * np.uint8(255))]
    areas = [area for area in areas if area > MIN_MASS]
    radius = math.sqrt(float(np.median(areas)) / math.pi) if areas else MAX_SIDE
    return max(math.ceil(MIN_RADIUS * max(geometry.scale) - radius), 0)


def _blob_counts(masks: list[Mask], grow: int, geometry: Geometry) -> tuple[float, float, float]:
    """Return mean numbers of blobs in masks, in dilated masks, and in prepared frames."""
    grown = [dilate(mask, grow) for mask in masks]
    stages = (
        [mask.astype(np.uint8) * np.uint8(255) for mask in masks],
        [mask.astype(np.uint8) * np.uint8(255) for mask in grown],
        [geometry.shrink(mask) for mask in grown],
    )
    blobs, dilated, prepared = (
        float(np.mean(object_counts([blob_masses(frame) for frame in frames]))) for frames in stages
    )
    return blobs, dilated, prepared


def flicker(pictures: Pictures) -> float:
    """Return the spread of brightness over frames, as a fraction of the full scale.

    The brightness of a frame is the median over pixels of its difference from the median frame,
    which objects that cover less than half of the picture hardly affect.

    Law: equals a change of exposure that is known (test_flicker_is_the_change_of_exposure).
    """
    levels = np.stack([grey(picture[::2, ::2]) for picture in pictures])
    brightness = np.median(levels - np.median(levels, axis=0), axis=(1, 2))
    low, high = np.percentile(brightness, (5, 95))
    return float(high - low)


def with_frame_rate(video: Video, fps: float | None) -> Video:
    """Return the video with times at a constant frame rate; unchanged for None."""
    if fps is None:
        return video

    def frames() -> Iterator[Frame]:
        for number, frame in enumerate(video.frames()):
            yield frame._replace(time=number / fps)

    def start_at(number: int, time: float) -> Iterator[Frame]:
        assert video.start_at is not None
        for count, frame in enumerate(video.start_at(number, number / rate), number):
            yield frame._replace(time=count / fps)

    def sample(count: int) -> Iterator[tuple[Frame, Frame]]:
        assert video.sample is not None
        for pair in video.sample(count):
            one, two = (frame._replace(time=frame.time * rate / fps) for frame in pair)
            yield one, two

    rate = video.fps or 1.0  # of the source; folders have one frame a second
    constant = replace(video, fps=fps, frames=frames, start_at=None)
    if video.sample is not None:
        constant = replace(constant, sample=sample)
    # Numbers lead to frames only where there are no time stamps.
    return replace(constant, start_at=start_at) if video.start_at and not video.fps else constant


def timed_frames(
    video: Video, span: tuple[float, float], fps: float | None, after: Place | None = None
) -> Iterator[tuple[int, Frame]]:
    """Yield (number, frame) within a span of seconds, resampled to fps by the nearest frame.

    Those after a place only, if one is given.

    Law: a video at its own rate is used whole (test_resampling_takes_the_nearest_frame).
    """
    tick = 0 if after is None else after.used
    before: tuple[int, Frame] | None = None
    frames = enumerate(video.frames())
    if after is not None:
        frames = enumerate(frames_from(video, after.number, after.time), after.number)
    if after is not None and fps is None:
        next(frames, None)
    for number, frame in frames:
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
    return json.dumps({**asdict(preparation), "units": units_to_json(preparation.units)})


def preparation_from_json(text: str, origin: str) -> Preparation:
    """Return the preparation that `preparation_to_json` wrote; `origin` is named in errors."""
    try:
        raw: dict[str, Any] = json.loads(text)
        crop = raw.pop("crop")
        for name in ("keep", "leave_out"):  # lists in JSON
            regions = raw.get(name, ())
            raw[name] = tuple(tuple((float(x), float(y)) for x, y in region) for region in regions)
        units = units_from_json(raw.pop("units", None))
        return Preparation(**raw, units=units, crop=None if crop is None else Box(*map(int, crop)))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(
            f"{origin} holds no valid preparation; expected the output of motes prepare; "
            "prepare the video again"
        ) from None
