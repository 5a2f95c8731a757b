"""Worlds harder than the paper's: more objects, hidden objects, lost frames, pictures, other laws.

Each is the cannonballs' world with one thing changed, so that a failure has one cause. Units and
truth are those of `cannonballs`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from motes.core.errors import InputError
from motes.data.clips import Clips
from motes.data.worlds.cannonballs import draw_clips
from motes.data.worlds.corruptions import drop_frames, hide_behind_bar, photograph
from motes.data.worlds.optical_trap import OpticalTrap
from motes.data.worlds.physics import World

Physics = Callable[[int, int], World | OpticalTrap]  # from frames in a clip and pixels on a side
Scene = Callable[[Clips, int], Clips]  # from clips and a seed

_WIND = 6.0  # sideways acceleration, where gravity is 9.81
_SHARE_LOST = 0.5


class Recipe(NamedTuple):
    """What a world is made of."""

    told: str  # in a line
    physics: Physics = World
    scene: Scene = lambda clips, seed: clips
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
    # Shot flatter and from higher up than the paper's, so that most balls meet the floor.
    return World(num_frames, size, angles=(-30.0, 30.0), heights=(-0.3, 0.7), floor=-0.5)


def bar_columns(size: int) -> tuple[int, int]:
    """First and last column of the bar: a sixth of the frame, in its middle.

    The slowest balls of the paper's world stay wholly hidden for about ten frames.
    """
    width = size // 6
    first = (size - width) // 2
    return first, first + width - 1


def _barred(clips: Clips, seed: int) -> Clips:
    first, last = bar_columns(clips.video.shape[-1])
    return hide_behind_bar(clips, first, last, radius=World.radius)


WORLDS: dict[str, Recipe] = {
    "cannonballs": Recipe("the paper's clips"),
    "many": Recipe("up to eight balls", num_objects=(4, 5, 6, 7, 8)),
    "bar": Recipe("an opaque bar hides balls for up to about ten frames", scene=_barred),
    "drops": Recipe(
        "half of the frames of each clip are lost",
        scene=lambda clips, seed: drop_frames(clips, _SHARE_LOST, seed),
    ),
    "pictures": Recipe(
        "grey levels, soft edges, sensor noise, texture; disks, squares and rings",
        scene=lambda clips, seed: photograph(clips, seed),
    ),
    "colour": Recipe(
        "the same in red, green and blue",
        scene=lambda clips, seed: photograph(clips, seed, colour=True),
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
    """Return the law of a world by name."""
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
    """Return clips of a world by name, with their truth; the same seed gives the same clips.

    Args:
        name: a key of `WORLDS`.
        num_clips: how many clips.
        num_objects: in a clip; of several numbers each clip takes one; None: the world's own.
        num_frames: in a clip; None: the world's own.
        size: pixels on a side.
        seed: a whole number >= 0.
    """
    recipe = _recipe(name)
    counts = recipe.num_objects if num_objects is None else num_objects
    clips = draw_clips(physics_of(name, num_frames, size), num_clips, counts, seed)
    return recipe.scene(clips, seed)


def _recipe(name: str) -> Recipe:
    if name not in WORLDS:
        raise InputError(f"got world {name!r}; expected one of {', '.join(WORLDS)}; choose one")
    return WORLDS[name]
