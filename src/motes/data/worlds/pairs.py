"""Disks that pull one another: springs and gravitation, by the rules of published benchmarks.

Lengths are units of the world, times frames. `paig_spring` follows the spring data of PAIG (Jaques
et al. 2020) and `stove_gravity` the gravity data of STOVE (Kossen et al. 2020), written anew;
`spring_pair` is a spring that also swings around a point. Runs that break a world's rules, for
example by leaving the frame, are drawn again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from motes.core.axes import Bool, Float
from motes.core.errors import require
from motes.data.clips import Clips

FINE = 8  # subpixels of a side, of disks with antialiased edges
Places = Float[np.ndarray, "clips objects 2"]


@dataclass(frozen=True)
class PairWorld:
    """A law of acceleration with its first states."""

    start: Callable[[np.random.Generator, int], tuple[Places, Places]]
    accelerate: Callable[[Places], Places]  # per squared frame
    allowed: Callable[[Places], Bool[np.ndarray, " clips"]]  # at every frame
    side: float  # of the world
    size: int  # of frames in pixels
    radius: float
    substeps: int = 10
    soft: bool = False  # disks with soft edges as in STOVE; False: antialiased
    drift_first: bool = False  # positions move before velocities
    centred: bool = False  # the centre of mass is kept in the middle
    warm_up: bool = False  # the first frame is one step after the first state

    def advance(self, x: Places, v: Places) -> tuple[Places, Places]:
        """Return positions and velocities one frame later."""
        part = 1 / self.substeps
        for _ in range(self.substeps):
            if self.drift_first:
                x = x + part * v
            if self.centred:
                x = x + self.side / 2 - x.mean(1, keepdims=True)
            v = v + part * self.accelerate(x)
            if not self.drift_first:
                x = x + part * v
        return x, v

    def simulate(
        self, num_clips: int, num_frames: int, seed: int
    ) -> Float[np.ndarray, "clips objects frames 4"]:
        """Return positions and velocities of all objects.

        Law: energy is kept up to the step size (test_worlds_with_forces_keep_energy).
        """
        rng = np.random.default_rng(seed)
        kept: list[np.ndarray] = []
        while sum(map(len, kept)) < num_clips:
            x, v = self.start(rng, max(num_clips, 16))
            good, path = np.ones(len(x), dtype=bool), []
            for t in range(num_frames):
                if t or self.warm_up:
                    x, v = self.advance(x, v)
                good &= self.allowed(x)
                path.append(np.concatenate([x, v], -1))
            kept.append(np.stack(path, 2)[good])
        return np.concatenate(kept)[:num_clips]

    def forecast(
        self, states: Float[np.ndarray, "clips objects 4"], num_frames: int
    ) -> Float[np.ndarray, "clips objects frames 4"]:
        """Return the frames after given states: what someone who knows the law says."""
        x, v = states[..., :2], states[..., 2:]
        path = []
        for _ in range(num_frames):
            x, v = self.advance(x, v)
            path.append(np.concatenate([x, v], -1))
        return np.stack(path, 2)

    def pixels(self, lengths: np.ndarray) -> np.ndarray:
        """Return positions in pixels, the first pixel's centre being 0."""
        return np.asarray(lengths * (self.size / self.side) - 0.5)

    def render(
        self, positions: Float[np.ndarray, "clips objects frames 2"]
    ) -> Float[np.ndarray, "clips frames size size 3"]:
        """Return frames in colour, levels from 0 to 1, of at most three objects."""
        require(positions.shape[1] <= 3, "at most three objects have a colour of their own")
        fine = 1 if self.soft else FINE
        axis = (np.arange(self.size * fine) + 0.5) * (self.side / (self.size * fine))
        axis = axis.astype(np.float32)
        clips, objects, number = positions.shape[:3]
        frames = np.zeros((clips, number, self.size, self.size, 3), dtype=np.float32)
        for b in range(clips):
            for n in range(objects):
                x, y = positions[b, n].astype(np.float32).T
                away = (axis - x[:, None])[:, None, :] ** 2 + (axis - y[:, None])[:, :, None] ** 2
                if self.soft:
                    frames[b, ..., n] = np.exp(-((away / self.radius**2) ** 4))
                else:
                    inside = (away <= self.radius**2).astype(np.float32)
                    blocks = inside.reshape(number, self.size, fine, self.size, fine)
                    frames[b, ..., n] = blocks.mean((2, 4))
        return frames

    def make(self, num_clips: int, num_frames: int = 30, seed: int = 0) -> Clips:
        """Return clips with true positions in pixels."""
        states = self.simulate(num_clips, num_frames, seed)
        positions = torch.from_numpy(self.pixels(states[..., :2]).astype(np.float32))
        return Clips(
            video=torch.from_numpy(self.render(states[..., :2])),
            num_objects=torch.full((num_clips,), states.shape[1]),
            positions=positions,
            clean=positions.clone(),
        )


def pull(
    x: Places, strength: Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]]
) -> Places:
    """Return sum_j strength(|x_j - x_i|) (x_j - x_i)."""
    apart = x[:, None] - x[:, :, None]
    r = np.linalg.norm(apart, axis=-1)
    g = np.where(np.eye(x.shape[1], dtype=bool), 0.0, strength(np.maximum(r, 1e-9)))
    total: np.ndarray = (g[..., None] * apart).sum(2)
    return total


def spring_pair(stiffness: float = 0.02, rest_length: float = 12.0, size: int = 32) -> PairWorld:
    """Return two disks joined by a spring that swing around the middle of the frame."""
    middle, radius = size / 2, 3.0

    def start(rng: np.random.Generator, number: int) -> tuple[Places, Places]:
        angle = 2 * math.pi * rng.random(number)
        half = 0.5 * rest_length * rng.uniform(0.6, 1.3, number)
        line = half[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
        centre = middle + rng.normal(size=(number, 2)) * size / 12
        x = np.stack([centre + line, centre - line], 1)
        return x, rng.normal(size=(number, 2, 2)) * size / 80

    def accelerate(x: Places) -> Places:
        spring = pull(x, lambda r: stiffness * (1 - rest_length / r))
        return spring - 0.004 * (x - middle)

    return PairWorld(start, accelerate, _inside(size, radius), size, size, radius)


def _inside(side: float, radius: float) -> Callable[[Places], Bool[np.ndarray, " clips"]]:
    def allowed(x: Places) -> Bool[np.ndarray, " clips"]:
        return np.asarray(((x > radius) & (x < side - radius)).all((1, 2)))

    return allowed


def paig_spring(stiffness: float = 4.0, half_length: float = 6.0, speed: float = 8.0) -> PairWorld:
    """Return PAIG's two balls joined by a spring: 0.3 units of time a frame, frames of 32 pixels.

    Rules: seuqaj114/paig at 6d99b1d, nn/datasets/generators.py, file
    color_spring_vx8_vy8_sl12_r2_k4_e6. Balls that touch the edge of the frame are not allowed.
    """
    size, radius, dt = 32.0, 2.0, 0.3

    def start(rng: np.random.Generator, number: int) -> tuple[Places, Places]:
        margin = radius + half_length
        centre = margin + (size - 2 * margin) * rng.random((number, 2))
        angle = 2 * math.pi * rng.random(number)
        half = half_length * (0.5 + rng.random(number))
        line = half[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
        x = np.stack([centre + line, centre - line], 1)
        turned = 2 * math.pi * rng.random((number, 2))
        return x, dt * speed * np.stack([np.cos(turned), np.sin(turned)], -1)

    def accelerate(x: Places) -> Places:
        return dt**2 * pull(x, lambda r: stiffness * (1 - 2 * half_length / r))

    return PairWorld(start, accelerate, _inside(size, radius), size, 32, radius)


def stove_gravity() -> PairWorld:
    """Return STOVE's three bodies: masses 4, G = 0.5, a box of 30 units, frames of 50 pixels.

    Rules: jlko/STOVE at 8cbb7da, model/envs/envs.py. Beside gravitation, 0.001 r^3 / |r| by
    coordinate pulls to the middle; forces are cut off at 1; the centre of mass stays in the middle.
    Overlaps and more than a hundredth of coordinates outside are not allowed.
    """
    side, mass, strength, radius = 30.0, 4.0, 0.5, 2.0

    def start(rng: np.random.Generator, number: int) -> tuple[Places, Places]:
        x = np.empty((number, 3, 2))
        left = np.arange(number)
        while len(left):
            x[left] = side / 2 + 0.45 * side * rng.random((len(left), 3, 2))
            r = np.linalg.norm(x[left, None] - x[left, :, None], axis=-1)
            left = left[(r + side * np.eye(3)).min((1, 2)) <= side / 3]
        away = x - x.mean(1, keepdims=True)
        away /= np.linalg.norm(away, axis=-1, keepdims=True)
        turn = rng.choice([-1.0, 1.0], number)[:, None]
        speed = 0.55 + 0.13 * rng.normal(size=(number, 3, 2))
        v = np.stack(
            [turn * away[..., 1] * speed[..., 0], -turn * away[..., 0] * speed[..., 1]], -1
        )
        return x, v

    def accelerate(x: Places) -> Places:
        force = mass * mass * pull(x, lambda r: strength / (r + 1e-5) ** 3)
        inward = side / 2 - x
        away = np.maximum(np.linalg.norm(inward, axis=-1, keepdims=True), 1e-9)
        force = force + 0.001 * inward**3 / away
        return np.asarray(np.clip(force, -1.0, 1.0) / mass)

    def allowed(x: Places) -> Bool[np.ndarray, " clips"]:
        r = np.linalg.norm(x[:, None] - x[:, :, None], axis=-1) + side * np.eye(3)
        good: np.ndarray = (r.min((1, 2)) >= 0.9 * 2 * radius) & ((x > 0) & (x < side)).all((1, 2))
        return good

    return PairWorld(
        start,
        accelerate,
        allowed,
        side,
        50,
        radius,
        substeps=50,
        soft=True,
        drift_first=True,
        centred=True,
        warm_up=True,
    )
