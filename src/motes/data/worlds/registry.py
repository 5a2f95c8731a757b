"""Simulated clips: white disks on black frames, and the registered worlds they are drawn from.

Every random quantity has its own stream, filled clip by clip, so the first ten of a hundred clips
are the ten clips of the same seed, and changing one distribution leaves the other draws unchanged.
All worlds but the first are harder than the paper's, and each changes one thing only, so that a
failure has one cause. `WORLDS` is the place to register a new one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Float, UInt8
from motes.core.errors import InputError, require
from motes.core.memory import chunk_size, require_memory
from motes.data.clips import Clips, PackedFrames, bytes_per_frame
from motes.data.worlds.corruptions import add_occluder, drop_frames, photograph
from motes.data.worlds.physics import (
    OpticalTrap,
    Physics,
    Streams,
    World,
    gaussian_noise,
    require_whole,
)

# Streams are numbered by position: append new ones, or every seed gives other clips.
_QUANTITIES = ("count", "side", "angle", "speed", "x", "y", "state_noise", "position_noise")
CHUNK_PIXELS = 2**24  # drawn before they are packed: bounds memory, and fits caches


def cannonballs(
    num_clips: int = 100,
    num_objects: int | Sequence[int] = (1, 2, 3),
    num_frames: int = 30,
    size: int | tuple[int, int] = 48,
    seed: int = 0,
    **physics: Any,
) -> Clips:
    """Return clips of cannonballs with their true positions; the same seed gives the same clips.

    Args:
        num_clips: number of clips.
        num_objects: balls in a clip, drawn uniformly for each clip if several are given.
        num_frames: frames in a clip.
        size: of a frame in pixels, one number or (height, width).
        seed: a whole number >= 0.
        **physics: other attributes of `World`, such as gravity or position_noise.
    """
    return draw_clips(World(num_frames, size, **physics), num_clips, num_objects, seed)


def draw_clips(
    world: Physics, num_clips: int, num_objects: int | Sequence[int], seed: int
) -> Clips:
    """Return clips of a world, drawn and packed chunk by chunk.

    Law: fewer clips of one seed are the first of more
    (test_fewer_clips_are_the_first_of_more).
    """
    counts = tuple(num_objects) if isinstance(num_objects, Sequence) else (num_objects,)
    require_whole("num_clips", num_clips, least=1)
    require_whole("seed", seed, least=0)
    require(counts, "got num_objects=(); expected at least one number; give (1, 2, 3)")
    for count in counts:
        require_whole("num_objects", count, least=1)

    frame_bytes = bytes_per_frame(world.height, world.width)
    point_bytes = 2 * 2 * 4 * max(counts)  # positions and clean, (x, y), float32
    needed = num_clips * world.num_frames * (frame_bytes + point_bytes)
    require_memory(needed, f"{num_clips} clips of {world.num_frames} frames")
    # PCG64 by name, because defaults may change.
    children = np.random.SeedSequence(seed).spawn(len(_QUANTITIES))
    generators = [np.random.Generator(np.random.PCG64(child)) for child in children]
    streams = dict(zip(_QUANTITIES, generators, strict=True))
    shape = (num_clips, max(counts), world.num_frames, 2)
    present_counts = np.empty(num_clips, dtype=np.int64)
    positions, clean = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    bits = np.empty((num_clips, world.num_frames, frame_bytes), dtype=np.uint8)
    step = chunk_size(CHUNK_PIXELS, world.num_frames * world.height * world.width)
    for first in range(0, num_clips, step):
        here = slice(first, min(first + step, num_clips))
        length = here.stop - here.start
        present_counts[here] = np.array(counts)[
            (len(counts) * streams["count"].random(length)).astype(np.int64)
        ]
        clean[here], positions[here] = _draw_paths(world, streams, length, max(counts))
        absent = np.arange(max(counts)) >= present_counts[here, None]
        clean[here][absent] = positions[here][absent] = np.nan
        frames = draw_disks(positions[here], world.height, world.width, world.radius)
        bits[here] = np.packbits(frames.reshape(length, world.num_frames, -1), axis=-1)
    return Clips(
        video=PackedFrames(torch.from_numpy(bits), world.height, world.width),
        num_objects=torch.from_numpy(present_counts),
        positions=torch.from_numpy(positions),
        clean=torch.from_numpy(clean),
    )


def draw_disks(
    positions: Float[np.ndarray, "B N T 2"], height: int, width: int, radius: int
) -> UInt8[np.ndarray, "B T {height} {width}"]:
    """Return frames that are 1 within `radius` of the pixel nearest to any ball, else 0.

    Positions lie at least `radius` away from the border; NaN draws nothing.

    Law: a frame of several balls is the union of their own frames
    (test_frames_of_several_balls_are_the_union_of_single_ones).
    """
    num_clips, _, num_frames, _ = positions.shape
    frames = np.zeros((num_clips, num_frames, height, width), dtype=np.uint8)
    clip, ball, time = np.nonzero(~np.isnan(positions[..., 0]))
    x, y = np.rint(positions[clip, ball, time]).astype(np.int64).T
    centres = ((clip * num_frames + time) * height + y) * width + x
    dy, dx = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    disk = (dy * width + dx)[dx**2 + dy**2 <= radius**2]  # offsets in flattened frames
    frames.reshape(-1)[centres[:, None] + disk] = 1
    return frames


def _draw_paths(
    world: Physics, streams: Streams, num_clips: int, num_objects: int
) -> tuple[Float[np.ndarray, "B N T 2"], Float[np.ndarray, "B N T 2"]]:
    """Return noise-free paths of new objects in pixels, and the noisy positions around them."""
    first = world.sample_first_states(streams, num_clips, num_objects)
    path = _simulate(world, first, streams["state_noise"])[..., :2]
    noise = gaussian_noise(streams["position_noise"], path.shape, world.position_covariance)
    room = np.array((world.width, world.height)) - 1 - world.radius
    # Few positions lie beyond the border; clipped to it, each disk stays whole within the frame.
    positions = np.clip(world.to_pixels(path + noise), world.radius, room)
    return world.to_pixels(path), positions


def _simulate(
    world: Physics, first: Float[np.ndarray, "B N 4"], stream: np.random.Generator
) -> Float[np.ndarray, "B N T 4"]:
    """Return the states of all frames: h_t = A h_{t-1} + u + noise, then reflected."""
    *leading, _ = first.shape
    noise = gaussian_noise(stream, (*leading, world.num_frames - 1, 4), world.state_covariance)
    states = np.empty((*leading, world.num_frames, 4))
    states[..., 0, :] = first
    change = world.transition - np.eye(4)
    for t in range(1, world.num_frames):
        previous = states[..., t - 1, :]
        moved = previous + world.step_force + noise[..., t - 1, :] + previous @ change.T
        states[..., t, :] = world.reflect(moved)
    return states


MakePhysics = Callable[[int, int], Physics]  # from frames of a clip and pixels of a side
Corruption = Callable[[Clips, int], Clips]  # from clips and a seed

_WIND = 6.0  # sideways acceleration, where gravity is 9.81
_DROPPED_FRACTION = 0.5


class Recipe(NamedTuple):
    """How the clips of a world are made; numbers of objects and frames are defaults."""

    description: str
    physics: MakePhysics = World
    corruption: Corruption = lambda clips, seed: clips
    num_objects: tuple[int, ...] = (1, 2, 3)
    num_frames: int = 30


def _windy(num_frames: int, size: int) -> World:
    delta, g = World.sampling_period, World.gravity
    force = (_WIND * delta**2 / 2, -g * delta**2 / 2, _WIND * delta, -g * delta)
    return World(num_frames, size, force=force)


def _bouncy(num_frames: int, size: int) -> World:
    # Flatter and higher launches than the paper's, so that most balls reach the floor.
    return World(num_frames, size, angles=(-30.0, 30.0), heights=(-0.3, 0.7), floor=-0.5)


def occluder_columns(size: int) -> tuple[int, int]:
    """Return the first and last column of the occluder: the middle sixth of the frame.

    The slowest balls of the paper's world are fully occluded for about ten frames.
    """
    width = size // 6
    first = (size - width) // 2
    return first, first + width - 1


def _occluded(clips: Clips, seed: int) -> Clips:
    first, last = occluder_columns(clips.video.shape[-1])
    return add_occluder(clips, first, last, radius=World.radius)


WORLDS: dict[str, Recipe] = {
    "cannonballs": Recipe("the paper's clips"),
    "many": Recipe("up to eight balls", num_objects=(4, 5, 6, 7, 8)),
    "bar": Recipe("an opaque bar occludes balls for about ten frames", corruption=_occluded),
    "drops": Recipe(
        "half of the frames of each clip are dropped",
        corruption=lambda clips, seed: drop_frames(clips, _DROPPED_FRACTION, seed),
    ),
    "pictures": Recipe(
        "grey levels, soft edges, sensor noise, texture; disks, squares and rings",
        corruption=photograph,
    ),
    "colour": Recipe(
        "the same in red, green and blue",
        corruption=lambda clips, seed: photograph(clips, seed, colour=True),
    ),
    "weightless": Recipe(
        "no gravity", lambda num_frames, size: World(num_frames, size, gravity=0.0)
    ),
    "wind": Recipe("gravity and a steady wind from the left", _windy),
    "drag": Recipe(
        "balls lose 3 % of their velocity a frame",
        lambda num_frames, size: World(num_frames, size, drag=0.03),
    ),
    "bounce": Recipe("balls bounce off a floor", _bouncy),
    "long": Recipe(
        "3,000 frames of beads in a weak spring, see `OpticalTrap`", OpticalTrap, num_frames=3000
    ),
}


def physics_of(name: str, num_frames: int | None = None, size: int = 48) -> Physics:
    """Return the law of motion of a world by name."""
    recipe = _recipe(name)
    return recipe.physics(recipe.num_frames if num_frames is None else num_frames, size)


def make(
    name: str,
    num_clips: int = 100,
    num_objects: int | Sequence[int] | None = None,
    num_frames: int | None = None,
    size: int = 48,
    seed: int = 0,
) -> Clips:
    """Return clips of a world with ground truth; the same seed gives the same clips.

    Args:
        name: a key of `WORLDS`.
        num_clips: number of clips.
        num_objects: of a clip; drawn uniformly from several numbers; None: the world's default.
        num_frames: of a clip; None: the world's default.
        size: pixels of a side.
        seed: a whole number >= 0.
    """
    recipe = _recipe(name)
    counts = recipe.num_objects if num_objects is None else num_objects
    clips = draw_clips(physics_of(name, num_frames, size), num_clips, counts, seed)
    return recipe.corruption(clips, seed)


def _recipe(name: str) -> Recipe:
    if name not in WORLDS:
        raise InputError(f"got world {name!r}; expected one of {', '.join(WORLDS)}; choose one")
    return WORLDS[name]
