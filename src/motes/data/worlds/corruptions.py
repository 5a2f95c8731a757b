"""What stands between objects and a viewer: a bar, lost frames, and cameras that see in grey.

Each function takes clips whose truth is known and returns clips of the same paths, so they can be
put one after the other. What is random has a stream of its own, filled clip by clip: fewer clips
are the first of more, as for `cannonballs`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from motes.core.axes import Bool, Float, Int
from motes.core.errors import InputError
from motes.data.clips import Clips, PackedFrames, pack
from motes.data.worlds.physics import Array

# Streams are numbered by their place: append new ones, or every seed means other clips.
_QUANTITIES = ("drops", "kind", "sensor")
_TEXTURE_SEED = 20_260_000  # of the background, which is one for all clips and all seeds

Shape = Literal["disk", "square", "ring"]


@dataclass(frozen=True)
class Kind:
    """How one kind of object looks; `radius` is half the side of a square, in pixels."""

    shape: Shape
    radius: float
    colour: tuple[float, float, float]


KINDS = (
    Kind("disk", 3.0, (1.00, 0.95, 0.85)),
    Kind("disk", 1.8, (0.55, 0.95, 0.60)),
    Kind("square", 2.2, (0.45, 0.55, 0.95)),
    Kind("ring", 3.2, (1.00, 0.60, 0.80)),
)
_HOLLOW = 0.5  # of the radius of a ring
_SOFT = 1.0  # pixels over which an edge fades
_SENSOR_SD = 0.03


def hide_behind_bar(clips: Clips, first: int, last: int, *, radius: int) -> Clips:
    """Return black-and-white clips with an opaque, upright black bar in front of the objects.

    Args:
        clips: with true positions, drawn as disks.
        first: column where the bar begins.
        last: column where it ends, itself included.
        radius: of the disks.

    Law: nothing shows inside the bar, all is as it was outside, and an object is visible where
    some pixel of it shows (test_a_bar_hides_what_is_behind_it_and_nothing_else).
    """
    if not isinstance(clips.video, PackedFrames) or clips.positions is None:
        raise InputError("got grey clips or no truth; expected disks on black; hide them first")
    frames = clips.frames.clone()
    frames[..., first : last + 1] = 0
    centre = clips.positions.round()[..., 0]
    hidden = (centre - radius >= first) & (centre + radius <= last)
    return replace(clips, video=pack(frames), visible=~hidden & ~centre.isnan())


def drop_frames(clips: Clips, share: float, seed: int) -> Clips:
    """Return clips that have lost a share of their frames, chosen anew in each clip.

    Law: each clip keeps the same number of frames; lost ones hold zeros
    (test_dropped_frames_are_blank_and_as_many_as_asked_for).
    """
    num_clips, num_frames = clips.video.shape[:2]
    lost = round(share * num_frames)
    if not 0 <= lost < num_frames:
        raise InputError(
            f"got share={share}; expected some of {num_frames} frames to stay; lower it"
        )
    order = _stream(seed, "drops").random((num_clips, num_frames)).argsort(1).argsort(1)
    observed = torch.from_numpy(order >= lost)
    kept = clips.frames * observed.reshape(num_clips, num_frames, *[1] * (clips.frames.ndim - 2))
    video = pack(kept) if isinstance(clips.video, PackedFrames) else kept
    return replace(clips, video=video, observed=observed)


def photograph(clips: Clips, seed: int, *, colour: bool = False) -> Clips:
    """Return the same paths as a camera would see them, in grey or in colour, 256 levels.

    Each object is of one of several kinds, opaque, with soft edges; later objects stand in front
    of earlier ones. Behind them is a textured background, the same in all clips; the sensor adds
    noise to every pixel.

    Law: without noise a pixel is what a loop over objects says
    (test_photographs_equal_the_naive_loop).
    """
    if clips.positions is None:
        raise InputError("got clips without positions; expected the truth; make them anew")
    num_clips, num_frames, height, width = clips.video.shape
    num_objects = clips.positions.shape[1]
    chosen = _stream(seed, "kind").integers(len(KINDS), size=(num_clips, num_objects))
    sensor = _stream(seed, "sensor")
    channels = (3,) if colour else ()
    video = np.empty((num_clips, num_frames, height, width, *channels), dtype=np.float32)
    visible = np.empty((num_clips, num_objects, num_frames), dtype=bool)
    positions = clips.positions.double().numpy()
    for clip in range(num_clips):  # a clip at a time bounds memory
        picture, visible[clip] = compose(positions[clip], chosen[clip], height, width)
        picture = picture if colour else picture.mean(-1)
        noise = _SENSOR_SD * sensor.standard_normal(picture.shape, dtype=np.float32)
        video[clip] = np.rint(255 * (picture + noise).clip(0, 1)) / 255
    return replace(clips, video=torch.from_numpy(video), visible=torch.from_numpy(visible))


def compose(
    positions: Float[np.ndarray, "N T 2"],
    chosen: Int[np.ndarray, " N"],
    height: int,
    width: int,
) -> tuple[Float[np.ndarray, "T height width 3"], Bool[np.ndarray, "N T"]]:
    """Return the noise-free pictures of one clip, and which objects show in them.

    An object shows where some pixel is more than half its own once all is drawn.
    """
    num_objects, num_frames, _ = positions.shape
    picture = np.broadcast_to(texture(height, width), (num_frames, height, width, 3)).copy()
    seen = np.zeros((num_objects, num_frames, height, width))
    for n in range(num_objects):
        if np.isnan(positions[n, 0, 0]):
            continue
        kind = KINDS[chosen[n]]
        opacity = opacity_of(kind, positions[n], height, width)
        picture += opacity[..., None] * (np.array(kind.colour) - picture)
        seen[:n] *= 1 - opacity
        seen[n] = opacity
    return picture, seen.max((2, 3)) > 0.5


def opacity_of(
    kind: Kind, centres: Float[np.ndarray, "T 2"], height: int, width: int
) -> Float[np.ndarray, "T height width"]:
    """Return how much of each pixel an object covers, from 0 to 1, fading over its edge."""
    dx = np.arange(width) - centres[:, None, None, 0]
    dy = np.arange(height)[:, None] - centres[:, None, None, 1]
    if kind.shape == "square":
        outside = np.maximum(abs(dx), abs(dy)) - kind.radius
    else:
        distance = np.hypot(dx, dy)
        outside = distance - kind.radius
        if kind.shape == "ring":
            outside = np.maximum(outside, _HOLLOW * kind.radius - distance)
    opacity: Array = (0.5 - outside / _SOFT).clip(0, 1)
    return opacity


def texture(height: int, width: int) -> Float[np.ndarray, "height width 3"]:
    """Return the background: smooth random waves between 0.1 and 0.5, with a tint."""
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
    """Return the stream of one quantity, apart from those of `cannonballs`."""
    children = np.random.SeedSequence((seed, 1)).spawn(len(_QUANTITIES))
    return np.random.Generator(np.random.PCG64(children[_QUANTITIES.index(quantity)]))
