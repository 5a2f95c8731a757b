"""Initialization of sprite classes and background from clips."""

import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate

from layer_scenes import disk_and_ring
from motes.core.errors import InputError
from motes.models.layers.fitting import Crops, align_crops, initialize_classes
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.sprites.renderer import CELLS_PER_PIXEL


def scene(generator: torch.Generator):
    """Return the true renderer, frames of one or two objects anywhere, and their number."""
    truth, B, T = disk_and_ring(32), 40, 8
    counts = 1 + torch.arange(B) % 2
    positions = 8 * (torch.rand(B, 2, T, 2, generator=generator) - 0.5)
    kind = torch.randint(2, (B, 2), generator=generator)
    appearance = Appearance(kind, torch.arange(2).expand(B, 2))
    drawn = truth(positions, torch.arange(2) < counts[:, None], appearance).sigmoid().detach()
    return truth, drawn + 0.03 * torch.randn(drawn.shape, generator=generator), counts


def fresh() -> LayeredRenderer:
    return LayeredRenderer(
        (32, 32), channels=1, num_classes=2, radius=4, initial_width=2.0, pixels_per_unit=3.0
    )


@torch.no_grad()
def test_classes_of_a_synthetic_scene_are_recovered(generator):
    truth, frames, counts = scene(generator)
    found = fresh()
    initialize_classes(found, frames, counts, None, generator)
    # A median of 320 frames: 1.25 * 0.03 / sqrt(320) = 0.002, and objects over it now and then.
    assert (found.background() - truth.background()).abs().max() < 0.02
    colours = found.colours().flatten()
    # Half of a soft edge may be attributed to the colour: a twentieth.
    assert (colours.sort().values - torch.tensor([0.75, 0.95])).abs().max() < 0.05
    ring = found.colours().flatten().argmin()
    opacity = found.opacities().mean((1, 2))
    # The ring has a hole and the disk does not, up to the resolution of a pixel.
    assert opacity[ring, 4, 4] < 0.3
    assert opacity[1 - ring, 4, 4] > 0.9
    expected = truth.opacities().mean((1, 2))
    expected = expected.flip(0) if ring == 0 else expected
    assert (opacity - expected).abs().mean() < 0.05


def test_clips_without_isolated_objects_are_rejected(generator):
    with pytest.raises(InputError, match="no object stands alone"):
        initialize_classes(
            fresh(), torch.full((2, 3, 32, 32), 0.5), torch.ones(2).long(), None, generator
        )


@torch.no_grad()
def test_unobserved_frames_have_no_effect(generator):
    _, frames, counts = scene(generator)
    observed = torch.rand(frames.shape[:2], generator=generator) < 0.5
    first, second = fresh(), fresh()
    spoiled = torch.where(observed[..., None, None], frames, 0.7)
    for renderer, given in ((first, frames), (second, spoiled)):
        initialize_classes(renderer, given, counts, observed, torch.Generator().manual_seed(1))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_classes_are_sharp_within_a_pixel(generator):
    truth, frames, counts = scene(generator)
    found = fresh()
    initialize_classes(found, frames, counts, None, generator)
    tables = [-torch.expm1(-renderer.root_depth.square()) for renderer in (found, truth)]
    ring = int(found.colours().flatten().argmin())
    sharp, expected = tables[0], tables[1].flip(0) if ring == 0 else tables[1]
    smooth = interpolate(
        avg_pool2d(expected[None], CELLS_PER_PIXEL),
        scale_factor=CELLS_PER_PIXEL,
        mode="bilinear",
        align_corners=False,
    )[0]
    # Better than the best fit without positions within a pixel.
    assert (sharp - expected).abs().mean() < (smooth - expected).abs().mean()


def test_aligned_crops_have_their_mass_at_the_centre():
    x = torch.arange(9.0)
    blob = torch.exp(-0.5 * ((x - 4.3).square() + (x[:, None] - 3.8).square()) / 1.5**2)
    empty = torch.zeros(1, 9, 9, 1)
    moved = align_crops(Crops(blob[None, ..., None], empty, torch.tensor([[0.3, -0.2]])))
    mass = moved.frame[0, ..., 0]
    # A blob of 1.5 px is cut at 2.5 deviations, which moves its centre by less than 0.02 px.
    assert abs(float((mass.sum(0) * x).sum() / mass.sum()) - 4) < 0.03
    assert abs(float((mass.sum(1) * x).sum() / mass.sum()) - 4) < 0.03
