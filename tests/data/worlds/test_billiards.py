"""Billiards by the rules of a published benchmark."""

import torch

from motes.data.worlds.billiards import Billiards


def test_balls_stay_in_the_box_and_keep_their_energy() -> None:
    world = Billiards(masses=(1.0, 2.0, 4.0))
    states = world.simulate(8, 100, seed=0)
    x, v = states[..., :2], states[..., 2:]
    assert float(x.min()) > world.radius - 1e-9
    assert float(x.max()) < world.side - world.radius + 1e-9
    mass = torch.tensor(world.masses, dtype=torch.float64)[:, None]
    energy = (mass * v.square().sum(-1)).sum(1)
    # Walls and contacts are elastic: only rounding is left.
    assert torch.allclose(energy, energy[:, :1].expand_as(energy), rtol=1e-9)
    apart = torch.cdist(x.movedim(2, 1), x.movedim(2, 1)) + 9 * torch.eye(3, dtype=torch.float64)
    # A substep moves two balls by at most a tenth of twice the total speed.
    assert float(apart.min()) > 2 * world.radius - 0.1
    assert bool((v[:, :, 1:] != v[:, :, :-1]).any())


def test_frames_show_the_balls_at_their_positions() -> None:
    world = Billiards()
    clips = world.make(2, 3, seed=1)
    assert clips.frames.shape == (2, 3, 32, 32, 3)
    assert clips.positions is not None
    grid = torch.arange(32.0)
    for ball in range(3):
        level = clips.frames[..., ball]
        total = level.sum((-2, -1))
        found = torch.stack([(level.sum(-2) * grid).sum(-1), (level.sum(-1) * grid).sum(-1)], -1)
        # A disk of nearly four pixels' radius, sampled at pixel centres.
        assert torch.allclose(found / total[..., None], clips.positions[:, ball], atol=0.05)
