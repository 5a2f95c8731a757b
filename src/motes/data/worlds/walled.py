"""Disks between straight walls: a box, a box with gravity, a regular polygon.

Lengths are pixels of the frame, times frames. Between hits a ball moves on a parabola, so the time
of a hit is the root of a quadratic and no path depends on a step size. Balls do not see each other.
The box follows the rules of the data of Kalman VAE (Fraccaro et al. 2017), written anew.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from motes.core.axes import Bool, Float
from motes.core.errors import require
from motes.data.clips import Clips, pack
from motes.data.worlds.registry import draw_disks

MAX_HITS = 100  # of one ball in one frame; more of them means that it came to rest at a wall
ROUNDING = 1e-6  # pixels


@dataclass(frozen=True)
class WalledRoom:
    """A convex room: centres of disks stay where normal'x >= offset for every wall."""

    normals: tuple[tuple[float, float], ...]  # unit vectors, into the room
    offsets: tuple[float, ...]
    restitution: float = 1.0
    gravity: tuple[float, float] = (0.0, 0.0)  # pixels per squared frame
    speeds: tuple[float, float] = (2.0, 3.0)  # of the first frame, uniform, in any direction
    size: int = 32  # of frames in pixels
    radius: int = 3
    spread: float = 10.0  # of first positions around the centre, before they are moved inside

    def __post_init__(self) -> None:
        require(
            0 <= self.restitution <= 1,
            f"restitution is {self.restitution!r:.40}; give 0 to 1, no ball gains speed by itself",
        )
        require(
            len(self.normals) == len(self.offsets) > 0,
            f"got {len(self.normals)} normals and {len(self.offsets)} offsets; give one each",
        )

    def simulate(
        self, num_clips: int, num_objects: int, num_frames: int, seed: int
    ) -> Float[np.ndarray, "clips objects frames 4"]:
        """Return positions and velocities of all balls in all frames.

        Law: energy is kept at restitution 1, and no centre leaves the room
        (test_energy_is_kept_and_no_ball_leaves).
        """
        rng = np.random.Generator(np.random.PCG64(seed))
        first = self._starts(rng, num_clips * num_objects)
        angle = 2 * math.pi * rng.random(len(first))
        speed = rng.uniform(*self.speeds, size=len(first))
        velocity = speed[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
        states = np.empty((len(first), num_frames, 4))
        state = np.concatenate([first, velocity], -1)
        for t in range(num_frames):
            states[:, t] = state
            state = self.advance(state)
        return states.reshape(num_clips, num_objects, num_frames, 4)

    def advance(self, states: Float[np.ndarray, "balls 4"]) -> Float[np.ndarray, "balls 4"]:
        """Return the states one frame later."""
        x, v = states[:, :2].copy(), states[:, 2:].copy()
        left = np.ones(len(x))
        normals, g = np.array(self.normals), np.array(self.gravity)
        for _ in range(MAX_HITS):
            times = self._hit_times(x, v)
            wall = times.argmin(1)
            until = times[np.arange(len(x)), wall]
            hits = until < left
            step = np.where(hits, until, left)[:, None]
            x, v = x + v * step + g * step**2 / 2, v + g * step
            left = left - step[:, 0]
            if not hits.any():
                break
            n = normals[wall[hits]]
            normal_speed = (v[hits] * n).sum(1, keepdims=True)
            v[hits] -= (1 + self.restitution) * normal_speed * n
        resting = hits.any() or not _inside(x, normals, np.array(self.offsets) - ROUNDING).all()
        require(not resting, "a ball came to rest at a wall; give more restitution or fewer frames")
        return np.concatenate([x, v], -1)

    def _hit_times(
        self, x: Float[np.ndarray, "balls 2"], v: Float[np.ndarray, "balls 2"]
    ) -> Float[np.ndarray, "balls walls"]:
        """Return when each ball next reaches each wall from inside, infinity if never."""
        normals = np.array(self.normals)
        height = np.maximum(x @ normals.T - np.array(self.offsets), 0.0)
        speed, pull = v @ normals.T, np.array(self.gravity) @ normals.T
        root = np.sqrt(np.maximum(speed**2 - 2 * pull * height, 0.0))
        # The root at which the ball moves outwards, in the form that does not cancel.
        outward = (speed - root < 0) & (speed**2 >= 2 * pull * height)
        with np.errstate(divide="ignore", invalid="ignore"):
            later = np.where(speed < 0, 2 * height / (root - speed), -(speed + root) / pull)
        return np.where(outward & ((speed < 0) | (pull < 0)), later, np.inf)

    def _starts(self, rng: np.random.Generator, number: int) -> Float[np.ndarray, "balls 2"]:
        """Return places at least one pixel away from every wall."""
        normals, offsets = np.array(self.normals), np.array(self.offsets)
        places, left = np.empty((number, 2)), np.ones(number, dtype=bool)
        while left.any():
            places[left] = (self.size - 1) / 2 + self.spread * rng.normal(size=(left.sum(), 2))
            left = ~_inside(places, normals, offsets + 1.0)
        return places

    def make(
        self, num_clips: int, num_frames: int = 20, seed: int = 0, num_objects: int = 1
    ) -> Clips:
        """Return clips of binary frames with true positions."""
        path = self.simulate(num_clips, num_objects, num_frames, seed)[..., :2].astype(np.float32)
        frames = draw_disks(path, self.size, self.size, self.radius)
        return Clips(
            video=pack(torch.from_numpy(frames)),
            num_objects=torch.full((num_clips,), num_objects),
            positions=torch.from_numpy(path),
            clean=torch.from_numpy(path.copy()),
        )


def _inside(
    places: Float[np.ndarray, "balls 2"],
    normals: Float[np.ndarray, "walls 2"],
    offsets: Float[np.ndarray, " walls"],
) -> Bool[np.ndarray, " balls"]:
    """Return which places are inside all walls."""
    inside: np.ndarray = (places @ normals.T >= offsets).all(1)
    return inside


def box(size: int = 32, radius: int = 3, margin: int = 2, gravity: float = 0.0) -> WalledRoom:
    """Return a box whose walls are `margin` pixels inside the frame; gravity points down."""
    near, far = float(margin + radius), float(size - 1 - margin - radius)
    return WalledRoom(
        normals=((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)),
        offsets=(near, -far, near, -far),
        gravity=(0.0, gravity),
        size=size,
        radius=radius,
    )


def polygon(sides: int, size: int = 48, radius: int = 3, turn: float = 0.3) -> WalledRoom:
    """Return a regular polygon around the centre of the frame, turned by an angle."""
    require(sides >= 3, f"got a polygon of {sides} sides; give at least 3")
    angles = turn + 2 * math.pi * np.arange(sides) / sides
    normals = -np.stack([np.cos(angles), np.sin(angles)], -1)
    centre = (size - 1) / 2
    reach = centre - radius - 1
    apothem = reach * math.cos(math.pi / sides)  # corners are at `reach`
    offsets = normals @ np.array((centre, centre)) - apothem
    return WalledRoom(
        normals=tuple((float(x), float(y)) for x, y in normals),
        offsets=tuple(map(float, offsets)),
        size=size,
        radius=radius,
        spread=size / 6,
    )
