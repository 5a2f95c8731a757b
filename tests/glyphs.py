"""Renderers of the structured family whose glyph is known, and dynamics that go straight on."""

import math

import torch

from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.renderer import BACKGROUND_UNIT, CELLS_PER_PIXEL, SpriteRenderer

DISK = (torch.arange(-3, 4)[:, None].square() + torch.arange(-3, 4).square() <= 4).float()


def odd_renderer(
    size: tuple[int, int], radius: int = 2, pixels_per_unit: float = 3.0, seed: int = 0
) -> SpriteRenderer:
    """In float64; neither glyph nor background nor visibility has a symmetry."""
    generator = torch.Generator().manual_seed(seed)
    renderer = SpriteRenderer(
        size, radius=radius, initial_width=1.5, pixels_per_unit=pixels_per_unit
    ).double()
    with torch.no_grad():
        renderer.visibility_logit.fill_(0.5)
        for parameter in renderer.parameters():
            parameter += 0.5 * torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
    return renderer


def disk_renderer(size: int, pixels_per_unit: float = 3.0) -> SpriteRenderer:
    """Draws the 13 pixels within a distance of 2 of the pixel that an object is in.

    So does a camera that rounds: the picture is the same for all places in a pixel.
    """
    renderer = SpriteRenderer(
        (size, size), radius=3, initial_width=3.0, pixels_per_unit=pixels_per_unit
    )
    root = torch.where(DISK > 0, 2.0, 1e-2)
    with torch.no_grad():
        renderer.root_depth.copy_(
            root.repeat_interleave(CELLS_PER_PIXEL, 0).repeat_interleave(CELLS_PER_PIXEL, 1)
        )
        renderer.root_background.fill_(math.sqrt(1e-4) / BACKGROUND_UNIT)
        renderer.visibility_logit.fill_(20.0)
    return renderer


def frame_with(places: list[tuple[int, int]], size: int = 24) -> torch.Tensor:
    """A frame of disks at whole pixels (x, y), one on another as their union."""
    frame = torch.zeros(1, size + 6, size + 6)
    for x, y in places:
        frame[0, y : y + 7, x : x + 7] = frame[0, y : y + 7, x : x + 7].maximum(DISK)
    return frame[:, 3:-3, 3:-3]


def straight(speed: float = 0.5) -> LinearDynamics:
    """A single kind of start, anywhere and at any speed, and then nearly straight on."""
    dynamics = LinearDynamics(
        num_components=1, sampling_period=1.0, state_noise=1e-4, position_noise=0.02,
        initial_spread=1.0, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with torch.no_grad():
        dynamics.initial_mean.zero_()
        dynamics.initial_factor[0].diagonal().copy_(torch.tensor([4.0, 4.0, speed, speed]).log())
    return dynamics
