"""Closed-form refit of sprite classes, and the offsets of their mass."""

import pytest
import torch

from layer_scenes import disk_and_ring, naive_opacity, odd_layers
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers.fitting import (
    CellStatistics,
    mass_offset,
    refit_classes,
    set_sprite_tables,
    sprite_cell_statistics,
)
from motes.models.layers.renderer import FINER, Appearance, LayeredRenderer
from motes.models.layers.search import LayeredTracker
from motes.models.protocols import InferredBatch
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.renderer import CELLS_PER_PIXEL
from motes.models.sprites.search import scene_of

B, N, T = 30, 2, 10
PRESENT = torch.ones(B, N, dtype=torch.bool)


def clips(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frames with a disk and a ring on straight lines, and true positions in pixels."""
    renderer = disk_and_ring(32)
    start = 7 + 18 * torch.rand(B, N, 1, 2, generator=generator)
    speed = 0.8 * torch.randn(B, N, 1, 2, generator=generator)
    pixels = (start + speed * torch.arange(T)[:, None]).clamp(5, 27)
    appearance = Appearance(
        torch.tensor([[0, 1]]).expand(B, N), torch.tensor([[1, 0]]).expand(B, N)
    )
    drawn = renderer(renderer.from_pixels(pixels), PRESENT, appearance).sigmoid().detach()
    return drawn + 0.03 * torch.randn(drawn.shape, generator=generator), pixels


def inferred(frames: torch.Tensor, renderer: LayeredRenderer) -> GridPosterior:
    dynamics = LinearDynamics(
        position_noise=0.05,
        initial_spread=8.0,
        state_noise=1e-2,
        generator=torch.Generator().manual_seed(0),
    )
    scene = scene_of(frames[..., None], torch.full((len(frames),), N), dynamics, renderer)
    return GridPosterior.joined([q for _, q in LayeredTracker(7).search(scene)()])


def typical_error(renderer: LayeredRenderer, q: GridPosterior, pixels: torch.Tensor) -> float:
    """Return the median distance from the nearer object; a few identities are wrong."""
    apart = (renderer.to_pixels(q.means)[:, :, None] - pixels[:, None]).square().sum(-1)
    return float(apart.amin(2)[q.detected].median().sqrt())


@pytest.mark.slow
@torch.no_grad()
def test_a_shifted_and_warped_table_is_corrected(generator):
    frames, pixels = clips(generator)
    renderer = disk_and_ring(32, shift=0.1, warp=0.06)
    q = inferred(frames, renderer)
    # Positions are wrong by the shift of the table: 0.1 along both axes, 0.14 in all.
    assert typical_error(renderer, q, pixels) > 0.1
    assert mass_offset(renderer).abs().mean() > 0.08

    def batches():
        for some, there in zip(frames.split(B // 2), PRESENT.split(B // 2), strict=True):
            its = inferred(some, renderer)
            yield InferredBatch(
                some, its, there, torch.randn(its.origin.shape, generator=generator)
            )

    refit_classes(renderer, batches, lambda sums: None)
    q = inferred(frames, renderer)
    # Positions are uniform in cells of an eighth of a pixel: half of them are within 0.05 of the
    # centre. 300 images of each class determine its table to hundredths.
    assert typical_error(renderer, q, pixels) < 0.065
    assert mass_offset(renderer).abs().mean() < 0.03


@torch.no_grad()
def test_the_mass_offset_is_that_of_the_naive_image():
    renderer = odd_layers((9, 9))
    found, phases = mass_offset(renderer), FINER * CELLS_PER_PIXEL
    for sprite_class, row, column in [(0, 0, 0), (1, 3, 6), (2, 7, 2)]:
        place = 4 + (torch.tensor([column, row], dtype=torch.float64) + 0.5) / phases - 0.5
        cover = torch.tensor(
            [
                [naive_opacity(renderer, sprite_class, place.numpy(), x, y) for x in range(9)]
                for y in range(9)
            ],
            dtype=torch.float64,
        )
        axis = torch.arange(9.0).double()
        mass = torch.stack([(cover.sum(0) * axis).sum(), (cover.sum(1) * axis).sum()]) / cover.sum()
        torch.testing.assert_close(
            found[sprite_class, row, column], mass - place, rtol=0, atol=1e-9
        )


@torch.no_grad()
def test_cells_without_data_keep_their_opacity():
    renderer = disk_and_ring(32)
    before = renderer.root_depth.clone()
    set_sprite_tables(renderer, CellStatistics(*torch.zeros(2, *before.shape)))
    torch.testing.assert_close(renderer.root_depth.data, before, rtol=0, atol=1e-3)


@torch.no_grad()
def test_absent_and_undetected_objects_do_not_count(generator):
    frames, _ = clips(generator)
    renderer = disk_and_ring(32)
    q = inferred(frames, renderer)
    noise = torch.randn(q.origin.shape, generator=generator)
    undetected = sprite_cell_statistics(
        renderer, frames, q._replace(detected=q.detected & False), PRESENT, noise
    )
    absent = sprite_cell_statistics(renderer, frames, q, PRESENT & False, noise)
    assert all(not bool(part.any()) for part in (*undetected, *absent))
