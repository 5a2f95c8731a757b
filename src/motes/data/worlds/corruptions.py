"""Corruptions of simulated clips: an occluder, dropped frames, grey and colour cameras.

Each function takes clips with ground truth and returns clips of the same paths, so corruptions
compose. Each random quantity has its own stream, filled clip by clip: fewer clips are the first of
more, as for `cannonballs`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from motes.core.axes import Bool, Float, Int
from motes.core.errors import InputError, require
from motes.data.clips import Clips, PackedFrames, pack
from motes.data.worlds.physics import Array

# Streams are numbered by position: append new ones, or every seed gives other clips.
_QUANTITIES = ("dropped_frames", "sprite_class", "sensor")
_TEXTURE_SEED = 20_260_000  # one background for all clips and all seeds

Shape = Literal["disk", "square", "ring"]


@dataclass(frozen=True)
class SpriteClass:
    """The appearance of a class of objects; `radius` is half the side of a square, in pixels."""

    shape: Shape
    radius: float
    colour: tuple[float, float, float]


SPRITE_CLASSES = (
    SpriteClass("disk", 3.0, (1.00, 0.95, 0.85)),
    SpriteClass("disk", 1.8, (0.55, 0.95, 0.60)),
    SpriteClass("square", 2.2, (0.45, 0.55, 0.95)),
    SpriteClass("ring", 3.2, (1.00, 0.60, 0.80)),
)
_INNER_RADIUS = 0.5  # of a ring, as a fraction of its radius
_EDGE_WIDTH = 1.0  # pixels over which an edge fades
_SENSOR_SD = 0.03


def add_occluder(clips: Clips, first: int, last: int, *, radius: int) -> Clips:
    """Return disks on black with an opaque, vertical black bar from column first to last.

    Law: pixels of the bar are black, all others are unchanged, and an object is visible if some
    pixel of it is (test_an_occluder_hides_what_is_behind_it_and_nothing_else).
    """
    if not isinstance(clips.video, PackedFrames) or clips.positions is None:
        raise InputError(
            "got grey clips or clips without ground truth; expected simulated disks on black; "
            "add the occluder before other corruptions"
        )
    frames = clips.frames.clone()
    frames[..., first : last + 1] = 0
    centre = clips.positions.round()[..., 0]
    hidden = (centre - radius >= first) & (centre + radius <= last)
    return replace(clips, video=pack(frames), visible=~hidden & ~centre.isnan())


def drop_frames(clips: Clips, share: float, seed: int) -> Clips:
    """Return clips without a fraction of their frames, drawn at random for each clip.

    Law: each clip keeps the same number of frames; dropped ones hold zeros
    (test_dropped_frames_are_blank_and_as_many_as_requested).
    """
    num_clips, num_frames = clips.video.shape[:2]
    dropped = round(share * num_frames)
    require(
        0 <= dropped < num_frames,
        f"got share={share}; expected to keep some of {num_frames} frames; lower it",
    )
    order = _stream(seed, "dropped_frames").random((num_clips, num_frames)).argsort(1).argsort(1)
    observed = torch.from_numpy(order >= dropped)
    kept = clips.frames * observed.reshape(num_clips, num_frames, *[1] * (clips.frames.ndim - 2))
    video = pack(kept) if isinstance(clips.video, PackedFrames) else kept
    return replace(clips, video=video, observed=observed)


def photograph(clips: Clips, seed: int, *, colour: bool = False) -> Clips:
    """Return the same paths as camera images, in grey or in colour, with 256 levels.

    Each object has one of SPRITE_CLASSES and is opaque with soft edges; later objects are in front
    of earlier ones. The textured background is the same in all clips; sensor noise is added to
    every pixel.

    Law: without noise, pixels equal a loop over objects (test_photographs_equal_the_naive_loop).
    """
    if clips.positions is None:
        raise InputError(
            "got clips without ground truth; expected simulated clips with positions; make them "
            "again"
        )
    num_clips, num_frames, height, width = clips.video.shape
    num_objects = clips.positions.shape[1]
    shape = (num_clips, num_objects)
    classes = _stream(seed, "sprite_class").integers(len(SPRITE_CLASSES), size=shape)
    sensor = _stream(seed, "sensor")
    channels = (3,) if colour else ()
    video = np.empty((num_clips, num_frames, height, width, *channels), dtype=np.float32)
    visible = np.empty((num_clips, num_objects, num_frames), dtype=bool)
    positions = clips.positions.double().numpy()
    for clip in range(num_clips):  # a clip at a time bounds memory
        image, visible[clip] = compose(positions[clip], classes[clip], height, width)
        image = image if colour else image.mean(-1)
        noise = _SENSOR_SD * sensor.standard_normal(image.shape, dtype=np.float32)
        video[clip] = np.rint(255 * (image + noise).clip(0, 1)) / 255
    return replace(clips, video=torch.from_numpy(video), visible=torch.from_numpy(visible))


def compose(
    positions: Float[np.ndarray, "N T 2"],
    classes: Int[np.ndarray, " N"],
    height: int,
    width: int,
) -> tuple[Float[np.ndarray, "T height width 3"], Bool[np.ndarray, "N T"]]:
    """Return the noise-free images of one clip, and which objects are visible in them.

    An object is visible if it contributes more than half of some pixel after all are drawn.
    """
    num_objects, num_frames, _ = positions.shape
    image = np.repeat(background_texture(height, width)[None], num_frames, axis=0)
    contribution = np.zeros((num_objects, num_frames, height, width))
    for n in range(num_objects):
        if np.isnan(positions[n, 0, 0]):
            continue
        sprite = SPRITE_CLASSES[classes[n]]
        opacity = opacity_of(sprite, positions[n], height, width)
        image += opacity[..., None] * (np.array(sprite.colour) - image)
        contribution[:n] *= 1 - opacity
        contribution[n] = opacity
    return image, contribution.max((2, 3)) > 0.5


def opacity_of(
    sprite: SpriteClass, centres: Float[np.ndarray, "T 2"], height: int, width: int
) -> Float[np.ndarray, "T height width"]:
    """Return the fraction of each pixel that an object covers, from 0 to 1, with soft edges."""
    dx = np.arange(width) - centres[:, None, None, 0]
    dy = np.arange(height)[:, None] - centres[:, None, None, 1]
    if sprite.shape == "square":
        outside = np.maximum(abs(dx), abs(dy)) - sprite.radius
    else:
        distance = np.hypot(dx, dy)
        outside = distance - sprite.radius
        if sprite.shape == "ring":
            outside = np.maximum(outside, _INNER_RADIUS * sprite.radius - distance)
    opacity: Array = (0.5 - outside / _EDGE_WIDTH).clip(0, 1)
    return opacity


def background_texture(height: int, width: int) -> Float[np.ndarray, "height width 3"]:
    """Return the background: a sum of tinted sine waves, scaled to [0.1, 0.5]."""
    random = np.random.Generator(np.random.PCG64(_TEXTURE_SEED))
    y, x = np.mgrid[:height, :width]
    waves = np.zeros((height, width, 3))
    for _ in range(12):
        kx, ky = random.uniform(-1, 1, 2)
        phase, tint = random.uniform(0, 2 * np.pi), random.uniform(0.5, 1.0, 3)
        waves += np.sin(kx * x + ky * y + phase)[..., None] * tint
    low, high = waves.min(), waves.max()
    background: Array = 0.1 + 0.4 * (waves - low) / (high - low)
    return background


def _stream(seed: int, quantity: str) -> np.random.Generator:
    """Return the stream of one quantity, independent of those of `cannonballs`."""
    children = np.random.SeedSequence((seed, 1)).spawn(len(_QUANTITIES))
    return np.random.Generator(np.random.PCG64(children[_QUANTITIES.index(quantity)]))
