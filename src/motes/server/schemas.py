"""JSON requests and responses of the playground; frames are base64-encoded bytes."""

import base64
import binascii
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError

MAX_FRAMES = 150  # of a clip, and as many to predict after its end
MAX_PIXELS = 2**23  # of a clip: 150 frames of 236x236
MAX_SIDE = 512

# Lists: the schema of tuples is not valid in OpenAPI.
Point = Annotated[list[float], Field(min_length=2, max_length=2, description="x right, y down")]
Covariance = Annotated[list[float], Field(min_length=3, max_length=3, description="xx, xy, yy")]
Seed = Annotated[int, Field(ge=0, lt=2**31, description="The same seed gives the same answer.")]
Count = Annotated[int, Field(ge=1, le=16, description="Objects in a clip.")]
Length = Annotated[int, Field(ge=2, le=MAX_FRAMES, description="Frames in a clip.")]
Number = Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)]


class Record(BaseModel):
    """Base of all requests and responses: no unknown fields, no strings for numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Video(Record):
    """Frames of a clip: one byte per pixel, 255 is white, row by row, frame by frame."""

    num_frames: Length
    height: Annotated[int, Field(ge=4, le=MAX_SIDE)]
    width: Annotated[int, Field(ge=4, le=MAX_SIDE)]
    frames: Annotated[str, Field(max_length=4 * MAX_PIXELS // 3 + 4, description="base64")]


class Clip(Video):
    """A clip with its title, number of objects and true paths, if known."""

    title: str
    num_objects: int | None = Field(description="null if unknown")
    truth: list[list[Point]] | None = Field(
        description="noise-free true paths, one list per object"
    )
    observed: list[bool] | None = Field(description="observed frames; null: all")


class Clips(Record):
    """Several clips."""

    clips: list[Clip]
    note: str | None = Field(default=None, description="A message for the user.")


class InitialComponent(Record):
    """A mixture component of the learned initial state, in pixels."""

    weight: float = Field(description="Mixture weight.")
    position: Point = Field(description="Mean position in the first frame.")
    step: Point = Field(description="Mean displacement from the first frame to the second.")


class About(Record):
    """Properties of the model and limits of requests."""

    model: str
    height: int
    width: int
    num_frames: int = Field(description="Frames of a training clip.")
    max_objects: int
    components: list[InitialComponent]
    acceleration: Point = Field(description="Learned acceleration, pixels per frame squared.")
    max_frames: int = MAX_FRAMES
    max_upload_bytes: int
    upload_formats: list[str] = Field(description="File name suffixes that can be uploaded.")


class QueryRequest(Record):
    """A clip, and masks of its observed frames: one prediction per mask.

    All true: infer. True, then false: forecast. Other masks: interpolate. Masks may be longer than
    the clip; frames after its end are unobserved.
    """

    video: Video
    masks: Annotated[list[Annotated[list[bool], Field(max_length=2 * MAX_FRAMES)]], Field(
        min_length=1, max_length=3
    )]  # fmt: skip
    num_objects: Count


class Track(Record):
    """One object in every frame."""

    positions: list[Point] = Field(description="positions of the object as rendered")
    covariances: list[Covariance]
    path: list[Point] = Field(description="path without observation noise")
    path_covariances: list[Covariance]
    component_probabilities: list[float] = Field(description="of each initial component")
    branches: list[list[Point]] = Field(description="drawn paths, where the future can fork")


class Prediction(Record):
    """Tracks and frames given one mask."""

    observed: list[bool]
    tracks: list[Track]
    frames: str = Field(description="base64; probability that a pixel is white, 255 is 1")


class Predictions(Record):
    """One prediction per mask, and the duration of the query."""

    predictions: list[Prediction]
    milliseconds: float


class CountRequest(Record):
    """A clip whose objects are to be counted, and a mask of its observed frames."""

    video: Video
    mask: Annotated[list[bool], Field(min_length=2, max_length=MAX_FRAMES)]


class Counts(Record):
    """Probabilities of 1, 2, ... objects."""

    probabilities: list[float]
    milliseconds: float


class SampleRequest(Record):
    """What to draw from the model."""

    num_objects: Count
    num_frames: Length
    seed: Seed = 0


class Ball(Record):
    """State of a ball in the first frame: position and step to the second frame, in pixels."""

    x: Number
    y: Number
    vx: Number
    vy: Number


class ThrowRequest(Record):
    """Initial states of balls to simulate."""

    balls: Annotated[list[Ball], Field(min_length=1, max_length=16)]
    num_frames: Length
    seed: Seed = 0


class Error(Record):
    """The problem and what to do, in one line."""

    error: str


def to_json(record: Record) -> bytes:
    """Return a response as JSON; in a worker, because large ones take milliseconds."""
    return record.model_dump_json().encode()


def encode_frames(frames: Float[Tensor, "T height width"]) -> str:
    """Return frames in [0, 1] as base64-encoded bytes."""
    levels = (255 * frames).round().to(torch.uint8).cpu().numpy()
    return base64.b64encode(levels.tobytes()).decode("ascii")


def decode_frames(video: Video) -> Float[Tensor, "T height width"]:
    """Return the frames of a video as floats in [0, 1].

    Law: inverts `encode_frames` to half a level of 255 (test_decoding_inverts_encoding).
    """
    shape = (video.num_frames, video.height, video.width)
    try:
        levels = np.frombuffer(base64.b64decode(video.frames, validate=True), np.uint8)
    except (binascii.Error, ValueError):
        raise InputError("frames are not base64; encode one byte per pixel") from None
    expected = video.num_frames * video.height * video.width
    if len(levels) != expected:
        raise InputError(
            f"frames hold {len(levels)} bytes; expected {expected}, one per pixel of "
            f"{video.num_frames} frames of {video.height}x{video.width}"
        )
    return torch.from_numpy(levels.reshape(shape).astype(np.float32) / np.float32(255))
