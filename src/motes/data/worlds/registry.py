"""Simulated worlds by name. `WORLDS` is the place to register a new one.

All but the first are harder than the paper's, and each changes one thing only, so that a failure
has one cause. Units and ground truth are those of `cannonballs`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from motes.core.errors import InputError
from motes.data.clips import Clips
from motes.data.worlds.cannonballs import draw_clips
from motes.data.worlds.corruptions import add_occluder, drop_frames, photograph
from motes.data.worlds.optical_trap import OpticalTrap
from motes.data.worlds.physics import World

MakePhysics = Callable[
    [int, int], World | OpticalTrap
]  # from frames of a clip and pixels of a side
Corruption = Callable[[Clips, int], Clips]  # from clips and a seed

_WIND = 6.0  # sideways acceleration, where gravity is 9.81
_DROPPED_FRACTION = 0.5


class Recipe(NamedTuple):
    """How the clips of a world are made.

    Attributes:
        description: one line.
        physics: law of motion, see `Physics`.
        corruption: applied to the clips, see `motes.data.worlds.corruptions`.
        num_objects: default numbers of objects.
        num_frames: default number of frames.
    """

    description: str
    physics: MakePhysics = World
    corruption: Corruption = lambda clips, seed: clips
    num_objects: tuple[int, ...] = (1, 2, 3)
    num_frames: int = 30


def _windy(num_frames: int, size: int) -> World:
    delta = World.sampling_period
    force = (
        _WIND * delta**2 / 2,
        -World.gravity * delta**2 / 2,
        _WIND * delta,
        -World.gravity * delta,
    )
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
        corruption=lambda clips, seed: photograph(clips, seed),
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


def physics_of(name: str, num_frames: int | None = None, size: int = 48) -> World | OpticalTrap:
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
