"""The sprite renderer against loops over pixels."""

import math

import pytest
import torch

from motes.models.sprites.likelihood_maps import SpriteTemplate
from motes.models.sprites.renderer import (
    BACKGROUND_UNIT,
    CELLS_PER_PIXEL,
    MIN_BACKGROUND,
    MIN_OCCLUSION,
    SpriteRenderer,
)
from sprite_scenes import odd_renderer

HEIGHT, WIDTH, RADIUS, PIXELS_PER_UNIT = 6, 7, 2, 3.0
# Float64 sums of a dozen products of order one; a wrong cell is an error of order 1e-2.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


def odd_sprite(seed: int = 0) -> tuple[SpriteRenderer, torch.Generator]:
    renderer = odd_renderer((HEIGHT, WIDTH), RADIUS, PIXELS_PER_UNIT, seed)
    return renderer, torch.Generator().manual_seed(seed)


def scene(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two clips of two objects, in and around the frame; one object is absent."""
    positions = 1.3 * torch.randn(2, 2, 3, 2, generator=generator, dtype=torch.float64)
    return positions, torch.tensor([[True, True], [True, False]])


def naive_sprite(renderer: SpriteRenderer, dx: float, dy: float) -> torch.Tensor | float:
    """The value of the cell of the table in which an offset (pixel minus object) lies."""
    cells = renderer.root_depth.shape[0]
    row, column = (math.floor((d + RADIUS + 0.5) * CELLS_PER_PIXEL) for d in (dy, dx))
    if not (0 <= row < cells and 0 <= column < cells):
        return 0.0
    return renderer.root_depth[row, column] ** 2


def naive_logits(
    renderer: SpriteRenderer, positions: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    B, N, T, _ = positions.shape
    background = (BACKGROUND_UNIT * renderer.root_background) ** 2 + MIN_BACKGROUND
    visibility = (1 - MIN_OCCLUSION) / (1 + torch.exp(-renderer.visibility_logit))
    logits = torch.zeros(B, T, HEIGHT, WIDTH, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            for row in range(HEIGHT):
                for column in range(WIDTH):
                    depth = torch.zeros((), dtype=torch.float64)
                    for n in range(N):
                        x = float(positions[b, n, t, 0]) * PIXELS_PER_UNIT + (WIDTH - 1) / 2
                        y = float(positions[b, n, t, 1]) * PIXELS_PER_UNIT + (HEIGHT - 1) / 2
                        if present[b, n]:
                            depth = depth + naive_sprite(renderer, column - x, row - y)
                    visible = visibility[row, column]
                    dark = 1 - visible + visible * torch.exp(-depth)
                    dark = dark * torch.exp(-background[row, column])
                    logits[b, t, row, column] = torch.log((1 - dark) / dark)
    return logits


def test_sprite_renderer_equals_the_naive_loop() -> None:
    renderer, generator = odd_sprite()
    positions, present = scene(generator)
    pixels = renderer.to_pixels(positions)[present]
    assert ((pixels < -0.5) | (pixels > 6.5)).any(), "some object should be partly outside"
    ours, theirs = renderer(positions, present), naive_logits(renderer, positions, present)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    cotangent = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    inputs = list(renderer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(theirs, inputs, cotangent),
        **TOLERANCE,
    )


def test_sparse_log_likelihood_equals_that_of_the_logits() -> None:
    renderer, generator = odd_sprite(1)
    positions, present = scene(generator)
    positions[0, 1] = positions[0, 0] + 0.2  # sprites overlap
    frames = torch.rand(2, 3, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    frames *= torch.rand(frames.shape, generator=generator) < 0.4  # grey, white and mostly dark
    white = renderer(positions, present).sigmoid()
    theirs = (frames * white.log() + (1 - frames) * (1 - white).log()).sum((2, 3))
    ours = renderer.log_likelihood(positions, present, frames)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    cotangent = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    inputs = list(renderer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(theirs, inputs, cotangent),
        **TOLERANCE,
    )


def test_without_occlusion_a_pixel_is_dark_only_if_every_object_leaves_it_dark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motes.models.sprites.renderer.MIN_OCCLUSION", 0.0)
    renderer, generator = odd_sprite(1)
    with torch.no_grad():
        renderer.visibility_logit.fill_(50.0)
    positions = 0.3 * torch.randn(1, 2, 1, 2, generator=generator, dtype=torch.float64)
    some = ([False, False], [True, False], [False, True], [True, True])
    empty, one, other, both = (
        1 - renderer(positions, torch.tensor([flags])).sigmoid() for flags in some
    )
    torch.testing.assert_close(both * empty, one * other, **TOLERANCE)
    assert (both < one).any()


def test_gradients_stay_finite_where_a_deep_object_leaves_a_pixel_dark() -> None:
    """In float32 exp(-depth) is nothing beside one, and its logarithm infinite."""
    renderer, _ = odd_sprite(2)
    renderer.float()
    with torch.no_grad():
        renderer.visibility_logit.fill_(200.0)
        renderer.root_depth.fill_(10.0)
    positions, present = torch.zeros(1, 1, 1, 2), torch.tensor([[True]])
    nats = renderer.log_likelihood(positions, present, torch.zeros(1, 1, HEIGHT, WIDTH))
    nats.sum().backward()
    assert nats.isfinite().all()
    assert renderer.root_depth.grad is not None
    assert renderer.root_depth.grad.isfinite().all()


def test_undetected_objects_give_gradients_for_the_visibility_alone() -> None:
    renderer, generator = odd_sprite()
    renderer.models_occlusion = True
    positions, present = scene(generator)
    frames = (torch.rand(2, 3, HEIGHT, WIDTH, generator=generator) < 0.4).double()
    parts = [renderer.root_depth, renderer.visibility_logit]
    nats_of_all = renderer.log_likelihood(positions, present, frames)
    gradients = {}
    for share in (0, 1):
        seen = torch.full((2, 2, 3), bool(share))
        nats = renderer.log_likelihood(positions, present, frames, seen)
        assert torch.equal(nats, nats_of_all)
        gradients[share] = torch.autograd.grad(nats.sum(), parts)
    assert not gradients[0][0].any()
    assert gradients[1][0].any()
    torch.testing.assert_close(gradients[0][1], gradients[1][1], **TOLERANCE)


def test_an_occluded_pixel_visible_the_background_alone() -> None:
    renderer, _ = odd_sprite(2)
    with torch.no_grad():
        renderer.visibility_logit[:, :3] = -200.0
        renderer.visibility_logit[:, 3:] = 200.0
    positions, present = torch.zeros(1, 1, 1, 2, dtype=torch.float64), torch.tensor([[True]])
    drawn, empty = renderer(positions, present), renderer(positions, ~present)
    torch.testing.assert_close(drawn[..., :3], empty[..., :3], **TOLERANCE)
    assert (drawn[..., 1:5, 3:5] > empty[..., 1:5, 3:5]).all()


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e30])
def test_absent_sprites_have_no_effect(filler: float) -> None:
    renderer, generator = odd_sprite(2)
    positions, present = scene(generator)
    frames = (torch.rand(2, 3, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    filled = positions.masked_fill(~present[:, :, None, None], filler)
    for draw in (renderer, lambda *scene: renderer.log_likelihood(*scene, frames)):
        assert torch.equal(draw(filled, present), draw(positions, present))
        gradients = torch.autograd.grad(
            draw(filled, present).square().sum(), list(renderer.parameters())
        )
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("distance", [3.0, 50.0, 1e12, -3.0, -1e12])
def test_an_object_outside_leaves_the_frame_empty(distance: float) -> None:
    renderer, generator = odd_sprite(3)
    frames = (torch.rand(1, 1, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    for axis in (0, 1):
        far = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
        far[..., axis] = distance
        present = torch.tensor([[True]])
        assert torch.equal(renderer(far, present), renderer(far, ~present))
        torch.testing.assert_close(
            renderer.log_likelihood(far, present, frames),
            renderer.log_likelihood(far, ~present, frames),
            **TOLERANCE,
        )


def test_kernels_are_the_depth_added_by_an_object_in_each_cell() -> None:
    renderer, _ = odd_sprite(4)
    kernels = renderer.kernels()
    assert kernels.shape == (CELLS_PER_PIXEL, CELLS_PER_PIXEL, 2 * RADIUS + 1, 2 * RADIUS + 1)
    for row, column in torch.cartesian_prod(*[torch.arange(CELLS_PER_PIXEL)] * 2).tolist():
        x, y = ((cell + 0.5) / CELLS_PER_PIXEL - 0.5 for cell in (column, row))
        for i, j in torch.cartesian_prod(*[torch.arange(2 * RADIUS + 1)] * 2).tolist():
            expected = naive_sprite(renderer, j - RADIUS - x, i - RADIUS - y)
            torch.testing.assert_close(kernels[row, column, i, j], expected, **TOLERANCE)


def test_template_has_the_mass_and_the_variance_of_the_initial_blob() -> None:
    renderer = SpriteRenderer((30, 30), radius=9, initial_width=1.7, pixels_per_unit=1.0)
    template = SpriteTemplate.coarse(renderer, 1)
    mass, spread = template.mass, template.spread
    # The blob, and that an object is in the middle of any of four cells of its pixel. The table
    # ends more than five widths from the centre: 1e-7 of the mass lies beyond.
    anywhere = (
        sum(((cell + 0.5) / CELLS_PER_PIXEL - 0.5) ** 2 for cell in range(CELLS_PER_PIXEL))
        / CELLS_PER_PIXEL
    )
    assert spread.item() == pytest.approx(1.7**2 + anywhere, rel=1e-5)
    assert mass.item() == pytest.approx(2 * math.pi * 1.7**2, rel=1e-5)


def test_latent_positions_and_pixels_are_inverse_and_meet_at_the_centre() -> None:
    renderer, generator = odd_sprite(5)
    positions = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(renderer.from_pixels(renderer.to_pixels(positions)), positions)
    assert renderer.to_pixels(torch.zeros(2)).tolist() == [(WIDTH - 1) / 2, (HEIGHT - 1) / 2]
    step = renderer.to_pixels(torch.tensor([1.0, 0.0])) - renderer.to_pixels(torch.zeros(2))
    assert step.tolist() == [PIXELS_PER_UNIT, 0.0]
