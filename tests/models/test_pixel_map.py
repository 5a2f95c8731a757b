import math
from dataclasses import replace

import pytest
import torch

from motes.models.layers.search import LayerSettings
from motes.models.model import Model, build
from motes.models.pixel_map import NUM_PATHS, align_pixel_map, find_pixel_map, rendered_centroids
from motes.models.protocols import PlainRenderer
from motes.models.sprites.search import SpriteSettings
from tiny import tiny_config

SIZE = (64, 80)
FLOOR = 1e-6  # probability of white where nothing is drawn
MATRIX = torch.tensor([[3.0, -1.0], [0.5, 2.5]])
OFFSET = torch.tensor([38.0, 30.0])


class Blobs(PlainRenderer):
    """Draws a soft blob for each present object, where `to_pixels` puts it."""

    def __init__(self, to_pixels, strength: float = 0.9) -> None:
        super().__init__()
        self.to_pixels, self.strength = to_pixels, strength

    def forward(
        self, positions: torch.Tensor, present: torch.Tensor, appearance: object = None
    ) -> torch.Tensor:
        x, y = self.to_pixels(positions).unbind(-1)
        rows, columns = torch.arange(SIZE[0])[:, None], torch.arange(SIZE[1])
        # Pixel sums of a Gaussian of 1.5 px have its centroid to exp(-2 pi^2 1.5^2) = 1e-19.
        squares = (columns - x[..., None, None]) ** 2 + (rows - y[..., None, None]) ** 2
        blobs = (-squares / (2 * 1.5**2)).exp() * present[..., None, None, None]
        return (FLOOR + self.strength * blobs.sum(1)).logit()


def affine(positions: torch.Tensor) -> torch.Tensor:
    return positions @ MATRIX.T + OFFSET


def folded(positions: torch.Tensor) -> torch.Tensor:
    return affine(torch.stack([positions[..., 0].abs(), positions[..., 1]], -1))


def drawing(blobs: Blobs) -> Model:
    """A model whose prior keeps an object well inside the frame, for a fold at latent x = 0."""
    config = tiny_config()
    config = replace(
        config,
        data=replace(config.data, height=SIZE[0], width=SIZE[1]),
        dynamics=replace(config.dynamics, position_noise=0.1),
        model=replace(config.model, inference_state_size=1),
    )
    model = build(config)
    with torch.no_grad():
        model.dynamics.initial_mean.zero_()
    model.renderer = blobs
    return model


def test_an_affine_renderer_is_recovered() -> None:
    model = drawing(Blobs(affine))
    found = find_pixel_map(model, num_frames=5)
    # float32 centroids of coordinates up to 80, over 1e-6 of floor: 80 * 1e-7 * a few, and the
    # 320 positions of the prior reach 3 latent units to every side.
    torch.testing.assert_close(found.matrix, MATRIX, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.offset, OFFSET, rtol=0, atol=1e-3)
    assert found.residual < 1e-3


def test_a_folded_renderer_shows_a_large_residual() -> None:
    # |x| of a symmetric x is unrelated to x: of its spread, 3.2 px a unit, 0.4 is left in the
    # median for x ~ N(0, 1), so about 1.3 px.
    assert find_pixel_map(drawing(Blobs(folded)), num_frames=5).residual > 0.8


def test_a_folded_corner_cannot_tilt_the_map_of_the_rest() -> None:
    def corner(positions: torch.Tensor) -> torch.Tensor:
        kept = positions.clone()
        kept[..., 0] = torch.where(positions[..., 0] > 1.3, 1.3 - positions[..., 0], kept[..., 0])
        return affine(kept)

    model = drawing(Blobs(corner))
    generator = torch.Generator().manual_seed(0)
    tracks = model.dynamics.sample((NUM_PATHS,), 5, generator)
    assert 0.05 < (tracks.positions[..., 0] > 1.3).double().mean() < 0.2
    found = find_pixel_map(model, num_frames=5)
    # The folded tenth pulls with weight 0.25 / distance of 4 px or more: a tenth of a unit slope.
    torch.testing.assert_close(found.matrix, MATRIX, rtol=0, atol=0.15)
    assert found.residual < 0.3


def test_centroids_and_masses_are_those_of_one_object_alone(generator: torch.Generator) -> None:
    positions = 2 * torch.randn(20, 2, generator=generator)
    centroids, mass = rendered_centroids(drawing(Blobs(affine)), positions)
    torch.testing.assert_close(centroids, affine(positions), rtol=0, atol=1e-3)
    expected = torch.full((20,), 0.9 * 2 * math.pi * 1.5**2)
    torch.testing.assert_close(mass, expected, rtol=1e-3, atol=0)


def test_a_renderer_that_draws_nothing_gets_a_finite_map() -> None:
    found = find_pixel_map(drawing(Blobs(affine, strength=0.0)), num_frames=5)
    assert found.matrix.isfinite().all()
    assert found.offset.isfinite().all()


def test_align_stores_the_map_and_keeps_the_random_state() -> None:
    model, before = drawing(Blobs(affine)), torch.get_rng_state()
    residual = align_pixel_map(model, 5)
    assert residual == pytest.approx(0, abs=1e-3)
    point = torch.tensor([[0.7, -1.2]])
    torch.testing.assert_close(model.to_pixels(point), affine(point), rtol=0, atol=2e-3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_map_of_sprites_is_exact_although_the_frame_cuts_them_off(
    generator: torch.Generator,
) -> None:
    """Against centroids of rendered sprites far from the edge, with the same prior as near it."""
    config = replace(tiny_config(), model=SpriteSettings())
    config = replace(config, data=replace(config.data, height=40, width=40))
    model = build(config)
    with torch.no_grad():
        depth = model.renderer.root_depth
        depth.mul_(torch.rand(depth.shape, generator=generator))
        model.renderer.root_background.zero_()
    # The centres of all cells of a pixel: together they show each cell of the sprite once.
    phase = (torch.arange(4) - 1.5) / 4
    pixels = 20 + torch.cartesian_prod(phase, phase)
    latent = (pixels - 19.5) / model.renderer.pixels_per_unit
    centroids, mass = rendered_centroids(model, latent)
    expected = (mass[:, None] * (centroids - pixels)).sum(0) / mass.sum()
    found = find_pixel_map(model, 5)
    torch.testing.assert_close(found.matrix, model.renderer.pixels_per_unit * torch.eye(2))
    torch.testing.assert_close(found.offset - 19.5, expected, rtol=0, atol=1e-3)


def test_the_map_of_layered_sprites_is_that_of_their_renderer(generator: torch.Generator) -> None:
    model = build(replace(tiny_config(), model=LayerSettings()))
    found = find_pixel_map(model, 5)
    places = torch.randn(7, 2, generator=generator)
    mapped = places @ found.matrix.T + found.offset
    torch.testing.assert_close(mapped, model.renderer.to_pixels(places))
