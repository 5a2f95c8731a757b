"""JSON requests and responses of the page for own videos; places are in pixels of the video."""

from typing import Annotated, Any, Literal

from pydantic import Field

from motes.server.schemas import Count, Covariance, Number, Point, Record

MAX_CORNERS, MAX_POLYGONS = 100, 20
MAX_CORRECTIONS = 500
Polygon = Annotated[list[Point], Field(min_length=3, max_length=MAX_CORNERS)]
Pixel = Annotated[int, Field(ge=0, le=10_000)]
FrameNumber = Annotated[int, Field(ge=0, lt=100_000, description="Counted from 0.")]


class Recording(Record):
    """The recording that is open."""

    title: str
    width: int
    height: int
    num_frames: int
    fps: float | None = Field(description="Frames per second; null if unknown.")
    note: str | None = Field(default=None, description="A message for the user.")


class Settings(Record):
    """How the recording is prepared."""

    crop: Annotated[list[Pixel], Field(min_length=4, max_length=4)] | None = Field(
        default=None, description="left, top, right, bottom; null: all of it"
    )
    threshold: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Difference from the background; null: automatic."
    )
    keep: list[Polygon] = Field(default=[], max_length=MAX_POLYGONS)
    leave_out: list[Polygon] = Field(default=[], max_length=MAX_POLYGONS)


class PreviewRequest(Record):
    """Ask what `motes prepare` sees in a frame."""

    frame: FrameNumber
    settings: Settings


class Preview(Record):
    """What `motes prepare` sees in a frame."""

    box: list[int] = Field(description="left, top, right, bottom of the crop")
    mask: str = Field(description="base64 of a PNG: the foreground of the crop")
    prepared: str = Field(description="base64 of a PNG: the frame that the model receives")
    threshold: float
    objects_here: int
    typical_objects: int


class TrainRequest(Record):
    """Ask for a model of the recording."""

    settings: Settings
    num_objects: Count | None = Field(default=None, description="null: estimated")
    iterations: Annotated[int, Field(ge=10, le=3000)] = 150


class VideoJob(Record):
    """What the process that trains reads."""

    path: str
    num_frames: int
    settings: Settings
    num_objects: int | None
    iterations: int


class Progress(Record):
    """How far training is."""

    phase: Literal["preparing", "starting", "training", "following", "done", "failed"]
    step: int = 0
    of: int = 0
    steps_per_second: float = 0.0
    bound: float | None = None
    sprite: str | None = Field(default=None, description="base64 of a PNG: the learned object")
    message: str | None = None
    warnings: list[str] = Field(default=[])


class Status(Record):
    """The state of the page."""

    recording: Recording | None
    progress: Progress | None
    corrections: list[dict[str, Any]]


class Correction(Record):
    """A pin, a forbidden detection or a swap; see docs/howto/correct.md."""

    kind: Literal["pin", "forbid", "swap"]
    frame: FrameNumber
    object: Annotated[int, Field(ge=0, lt=16)] | None = None
    other: Annotated[int, Field(ge=0, lt=16)] | None = None
    end: FrameNumber | None = None
    x: Number | None = None
    y: Number | None = None
    sd: Annotated[float, Field(gt=0, le=1e3)] | None = None
    radius: Annotated[float, Field(gt=0, le=1e3)] | None = None


class TracksRequest(Record):
    """Ask where the objects are, given corrections."""

    num_objects: Count | None = Field(default=None, description="null: inferred")
    corrections: list[Correction] = Field(default=[], max_length=MAX_CORRECTIONS)


class Track(Record):
    """An object in every frame of the recording."""

    places: list[Point]
    covariances: list[Covariance]
    found: list[bool] = Field(description="whether it was detected; else it is predicted")


class Tracks(Record):
    """All objects; item i of every list belongs to frame `numbers[i]` of the recording."""

    numbers: list[int]
    tracks: list[Track]
    warning: str | None = None
    milliseconds: int
