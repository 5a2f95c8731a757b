"""Kinds fitted once more: where the place of an object is, and a table that was wrong about it."""

import torch
from motes.training.sprite_refit import Batch, Sums, drift, gather, refit, refit_kinds

from layer_scenes import hollow_pictures, naive_opacity, odd_pictures
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers.renderer import FINER, Appearance, LayeredRenderer
from motes.models.layers.tracker import search_layers
from motes.models.sprites.forward_pass import scene_of
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.renderer import CELLS_PER_PIXEL

B, N, T = 30, 2, 10
PRESENT = torch.ones(B, N, dtype=torch.bool)


def clips(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames with a disk and a ring in each, on straight lines; true positions in pixels."""
    renderer = hollow_pictures(32)
    start = 7 + 18 * torch.rand(B, N, 1, 2, generator=generator)
    speed = 0.8 * torch.randn(B, N, 1, 2, generator=generator)
    pixels = (start + speed * torch.arange(T)[:, None]).clamp(5, 27)
    appearance = Appearance(
        torch.tensor([[0, 1]]).expand(B, N), torch.tensor([[1, 0]]).expand(B, N)
    )
    drawn = renderer(renderer.from_pixels(pixels), PRESENT, appearance).sigmoid().detach()
    return drawn + 0.03 * torch.randn(drawn.shape, generator=generator), pixels


def found_in(frames: torch.Tensor, renderer: LayeredRenderer) -> GridPosterior:
    dynamics = LinearDynamics(
        position_noise=0.05,
        initial_spread=8.0,
        state_noise=1e-2,
        generator=torch.Generator().manual_seed(0),
    )
    scene = scene_of(frames[..., None], torch.full((len(frames),), N), dynamics, renderer)
    return GridPosterior.joined(search_layers(scene, window=7))


def typical_error(renderer: LayeredRenderer, q: GridPosterior, pixels: torch.Tensor) -> float:
    """The root of the median squared distance from the nearer object: a few are mistaken."""
    apart = (renderer.to_pixels(q.means)[:, :, None] - pixels[:, None]).square().sum(-1)
    return float(apart.amin(2)[q.seen].median().sqrt())


@torch.no_grad()
def test_a_shifted_and_warped_table_is_mended(generator):
    frames, pixels = clips(generator)
    renderer = hollow_pictures(32, shift=0.1, warp=0.06)
    q = found_in(frames, renderer)
    # As the table is wrong, so are the places: by 0.1 along both axes, 0.14 in all.
    assert typical_error(renderer, q, pixels) > 0.1
    assert drift(renderer).abs().mean() > 0.08

    def batches():
        for some, there in zip(frames.split(B // 2), PRESENT.split(B // 2), strict=True):
            its = found_in(some, renderer)
            yield Batch(some, its, there, torch.randn(its.origin.shape, generator=generator))

    refit_kinds(renderer, batches)
    q = found_in(frames, renderer)
    # A place in a cell of an eighth of a pixel is anywhere in it: half of them are within 0.05 of
    # its middle. Tables of 300 pictures of each kind are known to hundredths.
    assert typical_error(renderer, q, pixels) < 0.065
    assert drift(renderer).abs().mean() < 0.03


@torch.no_grad()
def test_the_drift_is_that_of_the_mass_of_the_naive_picture():
    renderer = odd_pictures((9, 9))
    found, phases = drift(renderer), FINER * CELLS_PER_PIXEL
    for kind, row, column in [(0, 0, 0), (1, 3, 6), (2, 7, 2)]:
        place = 4 + (torch.tensor([column, row], dtype=torch.float64) + 0.5) / phases - 0.5
        cover = torch.tensor(
            [
                [naive_opacity(renderer, kind, place.numpy(), x, y) for x in range(9)]
                for y in range(9)
            ],
            dtype=torch.float64,
        )
        axis = torch.arange(9.0).double()
        mass = torch.stack([(cover.sum(0) * axis).sum(), (cover.sum(1) * axis).sum()]) / cover.sum()
        torch.testing.assert_close(found[kind, row, column], mass - place, rtol=0, atol=1e-9)


@torch.no_grad()
def test_what_sums_say_nothing_of_is_left_as_it_was():
    renderer = hollow_pictures(32)
    before = renderer.root_depth.clone()
    refit(renderer, Sums(*torch.zeros(2, *before.shape)))
    torch.testing.assert_close(renderer.root_depth.data, before, rtol=0, atol=1e-3)


@torch.no_grad()
def test_objects_that_are_absent_or_not_seen_say_nothing(generator):
    frames, _ = clips(generator)
    renderer = hollow_pictures(32)
    q = found_in(frames, renderer)
    noise = torch.randn(q.origin.shape, generator=generator)
    unseen = gather(renderer, frames, q._replace(seen=q.seen & False), PRESENT, noise)
    absent = gather(renderer, frames, q, PRESENT & False, noise)
    assert all(not bool(part.any()) for part in (*unseen, *absent))
