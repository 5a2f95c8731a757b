"""What the page and the server tell each other, as JSON; frames travel as base64 bytes."""

import base64
import binascii
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError

MAX_FRAMES = 150  # of a clip and of a look beyond its end, each
MAX_PIXELS = 2**23  # of a clip: 150 frames of 236x236
MAX_SIDE = 512

# Lists, because tuples become a schema that OpenAPI does not allow.
Point = Annotated[list[float], Field(min_length=2, max_length=2, description="x right, y down")]
Covariance = Annotated[list[float], Field(min_length=3, max_length=3, description="xx, xy, yy")]
Seed = Annotated[int, Field(ge=0, lt=2**31, description="The same seed gives the same answer.")]
Count = Annotated[int, Field(ge=1, le=16, description="Objects in a clip.")]
Length = Annotated[int, Field(ge=2, le=MAX_FRAMES, description="Frames in a clip.")]
Number = Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)]


class Record(BaseModel):
    """Everything on the wire: no unknown fields, no words for numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Video(Record):
    """The frames of a clip: one byte a pixel, 255 is white, row by row, frame by frame."""

    num_frames: Length
    height: Annotated[int, Field(ge=4, le=MAX_SIDE)]
    width: Annotated[int, Field(ge=4, le=MAX_SIDE)]
    frames: Annotated[str, Field(max_length=4 * MAX_PIXELS // 3 + 4, description="base64")]


class Clip(Video):
    """A clip and what is known about it."""

    title: str
    num_objects: int | None = Field(description="null where nobody knows")
    truth: list[list[Point]] | None = Field(description="noise-free paths, one list an object")
    observed: list[bool] | None = Field(description="frames that were filmed; null: all of them")


class Clips(Record):
    """Several clips."""

    clips: list[Clip]
    note: str | None = Field(default=None, description="What a person should know about them.")


class Kind(Record):
    """One kind of start that the model has learned, in pixels."""

    share: float = Field(description="How often.")
    place: Point = Field(description="Where, on average.")
    step: Point = Field(description="The way to the second frame, on average.")


class About(Record):
    """What the page must know of the model before it asks."""

    model: str
    height: int
    width: int
    num_frames: int = Field(description="Frames of the clips it learned from.")
    max_objects: int
    kinds: list[Kind]
    acceleration: Point = Field(description="The law it learned, in pixels a frame squared.")
    max_frames: int = MAX_FRAMES
    max_upload_bytes: int
    upload_kinds: list[str] = Field(description="File name suffixes that can be uploaded.")


class Question(Record):
    """A clip, and which of its frames the model may see: one answer for each mask.

    A mask of true alone infers; true, then false forecasts; any other interpolates. Masks may be
    longer than the clip: nobody has seen the frames beyond its end.
    """

    video: Video
    masks: Annotated[list[Annotated[list[bool], Field(max_length=2 * MAX_FRAMES)]], Field(
        min_length=1, max_length=3
    )]  # fmt: skip
    num_objects: Count


class Track(Record):
    """One object in every frame."""

    positions: list[Point] = Field(description="of the object as drawn")
    covariances: list[Covariance]
    path: list[Point] = Field(description="without the jitter of single frames")
    path_covariances: list[Covariance]
    kinds: list[float] = Field(description="probability of each kind of start")


class View(Record):
    """What the model thinks happened, given one mask."""

    observed: list[bool]
    tracks: list[Track]
    frames: str = Field(description="base64; probability that a pixel is white, 255 is certain")


class Views(Record):
    """One view for each mask, and how long the model took."""

    views: list[View]
    milliseconds: float


class CountQuestion(Record):
    """How many objects does a clip hold, seen through one mask?"""

    video: Video
    mask: Annotated[list[bool], Field(min_length=2, max_length=MAX_FRAMES)]


class Counts(Record):
    """The probability of 1, 2, ... objects."""

    probabilities: list[float]
    milliseconds: float


class Wish(Record):
    """What to imagine."""

    num_objects: Count
    num_frames: Length
    seed: Seed = 0


class Ball(Record):
    """A ball at the first frame: where it is, and how far it moves to the next, in pixels."""

    x: Number
    y: Number
    vx: Number
    vy: Number


class Throw(Record):
    """Balls to be thrown into an empty picture."""

    balls: Annotated[list[Ball], Field(min_length=1, max_length=16)]
    num_frames: Length
    seed: Seed = 0


class Error(Record):
    """What went wrong and what to do, in one line."""

    error: str


def encode_frames(frames: Float[Tensor, "T height width"]) -> str:
    """Frames in [0, 1] as base64 bytes."""
    levels = (255 * frames).round().to(torch.uint8).cpu().numpy()
    return base64.b64encode(levels.tobytes()).decode("ascii")


def decode_frames(video: Video) -> Float[Tensor, "T height width"]:
    """The frames of a video as floats in [0, 1].

    Law: returns what `encode_frames` was given, to half a level of 255
    (test_frames_survive_the_wire).
    """
    shape = (video.num_frames, video.height, video.width)
    try:
        levels = np.frombuffer(base64.b64decode(video.frames, validate=True), np.uint8)
    except (binascii.Error, ValueError):
        raise InputError("frames are not base64; encode one byte a pixel") from None
    expected = video.num_frames * video.height * video.width
    if len(levels) != expected:
        raise InputError(
            f"frames hold {len(levels)} bytes; expected {expected}, one a pixel of "
            f"{video.num_frames} frames of {video.height}x{video.width}"
        )
    return torch.from_numpy(levels.reshape(shape).astype(np.float32) / np.float32(255))
