"""Layered renderers with known sprite classes, and naive loops that render the same."""

import itertools
import math

import numpy as np
import torch

from motes.models.layers.renderer import (
    BACKGROUND_UNIT,
    COLOUR_UNIT,
    FINER,
    SCALE_UNIT,
    LayeredRenderer,
)
from motes.models.sprites.likelihood_maps import FrameBatch, Window
from motes.models.sprites.renderer import CELLS_PER_PIXEL


def odd_layers(
    size: tuple[int, int], channels: int = 2, num_classes: int = 3, radius: int = 2, seed: int = 0
) -> LayeredRenderer:
    """Return a float64 renderer whose sprites and background have no symmetry."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    renderer = LayeredRenderer(
        size,
        channels=channels,
        num_classes=num_classes,
        radius=radius,
        initial_width=1.5,
        pixels_per_unit=3.0,
    ).double()
    with torch.no_grad():
        renderer.root_depth.copy_(1.5 * random(*renderer.root_depth.shape))
        renderer.raw_colour.copy_(random(num_classes, channels) / COLOUR_UNIT)
        renderer.raw_background.copy_((0.1 + 0.8 * random(*size, channels)) / BACKGROUND_UNIT)
        renderer.raw_scale.copy_((0.05 + 0.1 * random(channels)).log() / SCALE_UNIT)
        renderer.kind_logits.copy_(random(num_classes))
    return renderer


def naive_opacity(
    renderer: LayeredRenderer,
    sprite_class: int,
    centre: np.ndarray,
    x: int,
    y: int,
    *,
    rounded: bool = True,
) -> float:
    """Return the opacity of an object in a pixel: its table, interpolated at the offset."""
    table = 1 - np.exp(-(renderer.root_depth[sprite_class].detach().numpy() ** 2))
    places, last = FINER * CELLS_PER_PIXEL, len(table) - 1
    # The renderer rounds a position to the centre of a thirty-second of its pixel.
    corner = np.rint(centre)
    nearest = corner + (np.floor((centre - corner + 0.5) * places) + 0.5) / places - 0.5
    middle = nearest if rounded else centre
    column, row = (
        (np.array([x, y]) - middle + renderer.radius + 0.5) * CELLS_PER_PIXEL - 0.5
    ).tolist()
    if not (-0.5 <= column <= last + 0.5 and -0.5 <= row <= last + 0.5):
        return 0.0
    total = 0.0
    for j, i in itertools.product((math.floor(row), math.floor(row) + 1), (0, 1)):
        i += math.floor(column)
        near = (1 - abs(row - j)) * (1 - abs(column - i))
        total += near * table[min(max(j, 0), last), min(max(i, 0), last)]  # the border goes on
    return float(total)


def naive_mean(
    renderer: LayeredRenderer,
    centres: np.ndarray,
    classes: list[int],
    order: list[int],
    exact: int | None = None,
) -> np.ndarray:
    """Return the mean image, pixel by pixel and object by object from back to front.

    The position of object `exact` is not rounded.
    """
    picture = renderer.background().detach().numpy().copy()
    colours = renderer.colours().detach().numpy()
    for y, x in np.ndindex(picture.shape[:2]):
        for n in order:
            a = naive_opacity(renderer, classes[n], centres[n], x, y, rounded=n != exact)
            picture[y, x] = (1 - a) * picture[y, x] + a * colours[classes[n]]
    return picture


def naive_log_density(renderer: LayeredRenderer, frame: np.ndarray, mean: np.ndarray) -> float:
    """Return the Gaussian log density of a frame around a mean image."""
    scale = renderer.scale().detach().numpy()
    away = (frame - mean) / scale
    return float((-0.5 * away**2 - np.log(scale) - 0.5 * math.log(2 * math.pi)).sum())


def disk_and_ring(size: int, shift: float = 0.0, warp: float = 0.0) -> LayeredRenderer:
    """Return a renderer of a bright disk and a darker ring, with soft edges, before grey waves.

    The noise is 0.03. Objects are rendered `shift` pixels beside their positions, and up to
    `warp` more, which depends on the position within a pixel.
    """
    renderer = LayeredRenderer(
        (size, size), channels=1, num_classes=2, radius=4, initial_width=2.0, pixels_per_unit=3.0
    )
    axis = renderer.cell_offsets()
    axis = axis + shift + warp * torch.sin(2 * torch.pi * axis)
    distance = (axis[:, None].square() + axis.square()).sqrt()
    disk = (2.9 - distance).clamp(0, 1)
    ring = (3.3 - distance).clamp(0, 1) * (distance - 0.9).clamp(0, 1)
    opacity = torch.stack([disk, ring]).clamp(max=0.98)
    x = torch.arange(size)
    waves = 0.3 + 0.1 * torch.sin(0.4 * x)[:, None] * torch.cos(0.3 * x)
    with torch.no_grad():
        renderer.root_depth.copy_((-torch.log1p(-opacity)).sqrt())
        renderer.raw_colour.copy_(torch.tensor([[0.95], [0.75]]) / COLOUR_UNIT)
        renderer.raw_background.copy_(waves[..., None] / BACKGROUND_UNIT)
        renderer.raw_scale.fill_(math.log(0.03) / SCALE_UNIT)
    return renderer


def crop_first_frames(window: Window, frames: torch.Tensor) -> torch.Tensor:
    """Return the window of the first frame of each clip."""
    observed = torch.ones(frames.shape[:2], dtype=torch.bool)
    batch = FrameBatch.during(frames, torch.arange(len(frames)), observed, slice(1))
    return batch.crop(window)[:, 0]
