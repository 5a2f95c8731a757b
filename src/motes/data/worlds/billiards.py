"""Balls in a box by the rules of the STOVE benchmark (Kossen et al. 2020), written anew.

Lengths are units of the box, times frames. A frame has several substeps; a ball that would pass a
wall in the next substep is put there and turned back, and two balls that would overlap in the next
substep exchange momentum along the line between them. Disks are soft, each in a colour of its own.
"""

from dataclasses import dataclass

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.data.clips import Clips


@dataclass(frozen=True)
class Billiards:
    """A box of balls."""

    masses: tuple[float, ...] = (1.0, 1.0, 1.0)
    radius: float = 1.2
    side: float = 10.0  # of the box
    total_speed: float = 0.5  # root of the sum of all squared velocities
    substeps: int = 10  # of a frame; the benchmark's stored files were made with 2
    size: int = 32  # of frames in pixels

    def simulate(
        self, num_clips: int, num_frames: int, seed: int
    ) -> Float[Tensor, "clips balls frames 4"]:
        """Return positions and velocities of all balls."""
        rng, balls = np.random.default_rng(seed), len(self.masses)
        x = self._starts(rng, num_clips)
        v = rng.normal(size=(num_clips, balls, 2))
        v *= self.total_speed / np.sqrt((v**2).sum((1, 2), keepdims=True))
        return self.simulate_from(torch.from_numpy(np.concatenate([x, v], -1)), num_frames)

    def simulate_from(
        self, states: Float[Tensor, "clips balls 4"], num_frames: int
    ) -> Float[Tensor, "clips balls frames 4"]:
        """Return positions and velocities of all balls in the frames after given ones."""
        x, v = np.split(states.numpy(), 2, -1)
        after = np.empty((len(x), x.shape[1], num_frames, 4))
        for t in range(num_frames):
            for _ in range(self.substeps):
                x = x + v / self.substeps
                x, v = self._bounce(x, v)
            after[:, :, t, :2], after[:, :, t, 2:] = x, v
        return torch.from_numpy(after)

    def _starts(self, rng: np.random.Generator, num_clips: int) -> np.ndarray:
        """Return places in the middle of the box without overlap."""
        balls = len(self.masses)
        x = np.full((num_clips, balls, 2), self.side / 2)
        left = np.arange(num_clips)
        while len(left):
            x[left] = self.side * (0.25 + 0.5 * rng.random((len(left), balls, 2)))
            apart = np.linalg.norm(x[left, :, None] - x[left, None], axis=-1)
            apart += 2 * self.side * np.eye(balls)
            left = left[apart.min((1, 2)) < 2 * self.radius]
        return x

    def _bounce(self, x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities after the events of a substep."""
        dt, low, high = 1 / self.substeps, self.radius, self.side - self.radius
        for wall, beyond in ((low, x + dt * v <= low), (high, x + dt * v >= high)):
            x, v = np.where(beyond, wall, x), np.where(beyond, -v, v)
        for i in range(len(self.masses)):
            for j in range(i):
                w = x[:, i] - x[:, j]
                met = np.linalg.norm(w + dt * (v[:, i] - v[:, j]), axis=1) < 2 * self.radius
                w = w / np.linalg.norm(w, axis=1, keepdims=True)
                speed = ((v[:, i] - v[:, j]) * w).sum(1, keepdims=True)
                pull = np.where(met[:, None], 2 * speed * w, 0.0) / (
                    self.masses[i] + self.masses[j]
                )
                v = v.copy()
                v[:, i] -= self.masses[j] * pull
                v[:, j] += self.masses[i] * pull
        return x, v

    def pixels(self, positions: Tensor) -> Tensor:
        """Return positions in pixels, the first pixel's centre being 0."""
        return positions * (self.size / self.side) - 0.5

    def render(
        self, positions: Float[Tensor, "clips balls frames 2"]
    ) -> Float[Tensor, "clips frames size size 3"]:
        """Return frames in colour, levels from 0 to 1, of at most six balls."""
        axis = (torch.arange(self.size, dtype=torch.float32) + 0.5) * (self.side / self.size)
        colours = torch.tensor(
            [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)]
        ).float()
        x = positions.float()
        frames = torch.zeros(len(x), x.shape[2], self.size, self.size, 3)
        for n in range(x.shape[1]):
            away = (axis - x[:, n, :, None, 0])[:, :, None] ** 2
            away = away + ((axis - x[:, n, :, None, 1]) ** 2)[..., None]
            frames += torch.exp(-((away / self.radius**2) ** 4))[..., None] * colours[n]
        return frames.clamp(max=1.0)

    def make(self, num_clips: int, num_frames: int = 100, seed: int = 0) -> Clips:
        """Return clips with true positions in pixels."""
        states = self.simulate(num_clips, num_frames, seed)
        positions = self.pixels(states[..., :2]).float()
        return Clips(
            video=self.render(states[..., :2]),
            num_objects=torch.full((num_clips,), len(self.masses)),
            positions=positions,
            clean=positions,
        )
