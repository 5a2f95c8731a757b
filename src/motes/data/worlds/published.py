"""Small worlds of published benchmarks, written anew by their rules.

`bouncing_series` is the one-dimensional ball of NCDSSM (Ansari et al. 2023; clear-nus/NCDSSM at
7212bba, data/bouncing_ball.py). `Scene` holds the scenes of phyworld (Kang et al. 2024;
phyworld/phyworld, id_ood_data at 1c7dd96 and, for collisions, 1c65f0f): uniform motion, a parabola
and a head-on collision, with speeds inside or outside those of training. Their radii vary from clip
to clip; here all balls of a scene have one radius.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from motes.core.axes import Float
from motes.core.errors import require
from motes.data.clips import Clips

Kind = Literal["uniform", "parabola", "collision"]
IN_DISTRIBUTION = (1.0, 4.0)  # units per second
SLOWER, FASTER = (0.0, 0.8), (4.5, 6.0)
NOISE = 0.05  # of the series
FINE = 8  # subpixels of a side


def bouncing_series(
    num_series: int, num_steps: int = 300, seed: int = 0
) -> tuple[Float[np.ndarray, "series steps"], Float[np.ndarray, "series steps"]]:
    """Return noisy and exact positions of a ball between -1 and 1.

    A step lasts 0.1; a ball turns back in the step after that in which it passed an end.
    """
    rng = np.random.default_rng(seed)
    y = rng.uniform(-1.0, 1.0, num_series)
    v = rng.uniform(0.05, 0.5, num_series) * rng.choice([-1.0, 1.0], num_series)
    exact = np.empty((num_series, num_steps))
    for t in range(num_steps):
        exact[:, t] = y
        y = y + 0.1 * v
        v = np.where((y <= -1.0) | (y >= 1.0), -v, v)
    return exact + NOISE * rng.normal(size=exact.shape), exact


@dataclass(frozen=True)
class Scene:
    """A scene of phyworld: a square of ten units, ten frames per second."""

    kind: Kind
    speeds: tuple[float, float] = IN_DISTRIBUTION
    radius: float = 1.0
    gravity: float = 2.5  # of the parabola, units per squared second
    side: float = 10.0
    size: int = 64  # of frames in pixels; 256 in the benchmark
    rate: float = 10.0  # frames per second

    def __post_init__(self) -> None:
        low, high = self.speeds
        require(0 <= low <= high, f"got speeds {self.speeds}; give two, the smaller first")

    def simulate(
        self, num_clips: int, num_frames: int, seed: int
    ) -> Float[np.ndarray, "clips balls frames 4"]:
        """Return positions, y pointing down, and velocities per frame, also out of sight."""
        rng = np.random.default_rng(seed)
        speed = rng.uniform(*self.speeds, (num_clips, 2)) / self.rate
        time = np.arange(num_frames)
        margin = self.radius + 0.05 * self.side
        height = rng.uniform(margin, self.side - margin, num_clips)[:, None] + 0 * time
        states = np.zeros((num_clips, 2 if self.kind == "collision" else 1, num_frames, 4))
        if self.kind == "collision":
            self._collide(rng, states, speed, time)
        else:
            room = np.maximum(self.side - 2 * self.radius - 24 * speed[:, 0], 0.5)
            first = self.radius + room * rng.random(num_clips)
            states[:, 0, :, 0] = first[:, None] + speed[:, :1] * time
            states[:, 0, :, 2] = speed[:, :1]
        if self.kind == "parabola":
            height = margin + rng.random(num_clips)[:, None] + 0 * time
            fall = self.gravity / self.rate**2
            height = height + 0.5 * fall * time**2
            states[..., 3] = fall * time
        states[..., 1] = height[:, None]
        return states

    def _collide(
        self, rng: np.random.Generator, states: np.ndarray, speed: np.ndarray, time: np.ndarray
    ) -> None:
        """Set x and its velocity of two balls that meet between the frames 8 and 24."""
        closing = speed.sum(1)
        near = np.minimum(8 * closing + 2 * self.radius, self.side - 2 * self.radius)
        far = np.clip(24 * closing + 2 * self.radius, near, self.side - 2 * self.radius)
        apart = rng.uniform(near, far)
        left = self.radius + (self.side - 2 * self.radius - apart) * rng.random(len(speed))
        meet = (apart - 2 * self.radius) / np.maximum(closing, 1e-9)
        before = time < meet[:, None]
        for ball, (start, own, other) in enumerate(
            ((left, speed[:, 0], -speed[:, 1]), (left + apart, -speed[:, 1], speed[:, 0]))
        ):
            later = start + own * meet
            free = start[:, None] + own[:, None] * time
            back = later[:, None] + other[:, None] * (time - meet[:, None])
            states[:, ball, :, 0] = np.where(before, free, back)
            states[:, ball, :, 2] = np.where(before, own[:, None], other[:, None])

    def in_sight(
        self, states: Float[np.ndarray, "clips balls frames 4"]
    ) -> Float[np.ndarray, "clips frames"]:
        """Return the frames in which every ball is wholly inside the picture."""
        x = states[..., :2]
        return np.asarray(((x >= self.radius) & (x <= self.side - self.radius)).all((1, 3)))

    def pixels(self, lengths: np.ndarray) -> np.ndarray:
        """Return positions in pixels, the first pixel's centre being 0."""
        return np.asarray(lengths * (self.size / self.side) - 0.5)

    def make(self, num_clips: int, num_frames: int = 32, seed: int = 0) -> Clips:
        """Return clips of grey frames, bright balls on black, with true positions in pixels."""
        states = self.simulate(num_clips, num_frames, seed)
        axis = (np.arange(self.size * FINE) + 0.5) * (self.side / (self.size * FINE))
        frames = np.zeros((num_clips, num_frames, self.size, self.size), dtype=np.float32)
        for clip, balls in enumerate(states[..., :2]):
            for x, y in balls.transpose(0, 2, 1):
                away = (axis - x[:, None])[:, None, :] ** 2 + (axis - y[:, None])[:, :, None] ** 2
                inside = (away <= self.radius**2).astype(np.float32)
                blocks = inside.reshape(num_frames, self.size, FINE, self.size, FINE)
                frames[clip] = np.maximum(frames[clip], blocks.mean((2, 4)))
        positions = torch.from_numpy(self.pixels(states[..., :2]).astype(np.float32))
        return Clips(
            video=torch.from_numpy(frames),
            num_objects=torch.full((num_clips,), states.shape[1]),
            positions=positions,
            clean=positions.clone(),
        )
