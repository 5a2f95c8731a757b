"""Scenes of objects that pull one another, as positions without pixels."""

import torch

from motes.data.worlds.pairs import PairWorld
from motes.training.contact_fit import Scenes

NOISE = 0.01  # of positions in latent units, 0.03 px


def scenes(world: PairWorld, clips: int, frames: int) -> Scenes:
    """Return noisy positions of a world's clips in latent units."""
    path = world.pixels(world.simulate(clips, frames, 0)[..., :2])
    return noisy((torch.from_numpy(path) - 0.5 * (world.size - 1)) / 3)


def noisy(positions: torch.Tensor) -> Scenes:
    """Return positions with noise."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(positions.shape, generator=generator, dtype=torch.float64)
    seen = torch.ones(positions.shape[:3], dtype=torch.bool)
    return Scenes(positions.double() + NOISE * noise, seen, NOISE**2)
