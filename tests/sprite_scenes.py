"""Sprite renderers, templates and beliefs with known values, and nearly linear dynamics."""

import math

import numpy as np
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.renderer import BACKGROUND_UNIT, CELLS_PER_PIXEL, SpriteRenderer

HEIGHT, WIDTH, RADIUS = 9, 11, 2  # of frames and sprites without a symmetry
DISK = (torch.arange(-3, 4)[:, None].square() + torch.arange(-3, 4).square() <= 4).float()


def odd_renderer(
    size: tuple[int, int], radius: int = 2, pixels_per_unit: float = 3.0, seed: int = 0
) -> SpriteRenderer:
    """Return a float64 renderer whose sprite, background and visibility have no symmetry."""
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
    """Return a renderer of the 13 pixels within a distance of 2 of an object's pixel.

    Like a camera that rounds: the frame is the same for all positions in a pixel.
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
    """Return a frame of disks at whole pixels (x, y); overlapping ones are united."""
    frame = torch.zeros(1, size + 6, size + 6)
    for x, y in places:
        frame[0, y : y + 7, x : x + 7] = frame[0, y : y + 7, x : x + 7].maximum(DISK)
    return frame[:, 3:-3, 3:-3]


def straight(speed: float = 0.5) -> LinearDynamics:
    """Return dynamics with one wide initial-state component and little process noise."""
    dynamics = LinearDynamics(
        num_components=1, sampling_period=1.0, state_noise=1e-4, position_noise=0.02,
        initial_spread=1.0, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with torch.no_grad():
        dynamics.initial_mean.zero_()
        dynamics.initial_factor[0].diagonal().copy_(torch.tensor([4.0, 4.0, speed, speed]).log())
    return dynamics


def odd_template(phases: int, window: int = 1) -> SpriteTemplate:
    """Return a template without a symmetry, coarse (1 phase) or fine."""
    renderer = odd_renderer((HEIGHT, WIDTH), RADIUS)
    with torch.no_grad():
        template = (SpriteTemplate.coarse if phases == 1 else SpriteTemplate.fine)(renderer, window)
    assert template.phases == phases
    return template


def random_belief(generator: torch.Generator, num_clips: int, num_objects: int) -> PixelGaussian:
    """Return beliefs with means in and just outside the frame."""
    shape = (num_clips, num_objects, 2)
    size = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64)
    mean = torch.rand(shape, generator=generator, dtype=torch.float64) * (size + 2) - 1.5
    factor = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return PixelGaussian(mean, factor @ factor.mT + 0.5 * torch.eye(2))


def distance(offset: np.ndarray, covariance: np.ndarray) -> float:
    """Return a squared Mahalanobis distance."""
    return float(offset @ np.linalg.solve(covariance, offset))
