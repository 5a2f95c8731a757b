import math

import pytest
import torch

from motes.structured.glyph import CELLS, GlyphRenderer

HEIGHT, WIDTH, REACH, PIXELS_PER_UNIT = 6, 7, 2, 3.0
# Float64 sums of a dozen products of order one; a wrong cell is an error of order 1e-2.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


def glyph_renderer(seed: int = 0) -> tuple[GlyphRenderer, torch.Generator]:
    """A renderer in float64 whose glyph has no symmetry."""
    generator = torch.Generator().manual_seed(seed)
    renderer = GlyphRenderer(
        (HEIGHT, WIDTH), reach=REACH, initial_width=1.5, pixels_per_unit=PIXELS_PER_UNIT
    ).double()
    with torch.no_grad():
        for parameter in renderer.parameters():
            parameter += 0.5 * torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
    return renderer, generator


def scene(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two clips of two objects, in and around the frame; one object is absent."""
    positions = 1.3 * torch.randn(2, 2, 3, 2, generator=generator, dtype=torch.float64)
    return positions, torch.tensor([[True, True], [True, False]])


def naive_depth(
    table: torch.Tensor, dx: torch.Tensor | float, dy: torch.Tensor | float
) -> torch.Tensor:
    """Between the four cells around an offset, each weighted by the area opposite to it."""
    u, v = dx * CELLS + len(table) // 2, dy * CELLS + len(table) // 2
    j, i = (int(torch.as_tensor(w).detach().floor()) for w in (u, v))
    return sum(
        (1 - abs(u - (j + right))) * (1 - abs(v - (i + down))) * table[i + down, j + right]
        for right in (0, 1)
        for down in (0, 1)
    )


def naive_logits(
    renderer: GlyphRenderer, positions: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    table, background = renderer.log_depth.exp(), renderer.log_background.exp()
    B, N, T, _ = positions.shape
    logits = torch.zeros(B, T, HEIGHT, WIDTH, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            for row in range(HEIGHT):
                for column in range(WIDTH):
                    depth = background
                    for n in range(N):
                        x = positions[b, n, t, 0] * PIXELS_PER_UNIT + (WIDTH - 1) / 2
                        y = positions[b, n, t, 1] * PIXELS_PER_UNIT + (HEIGHT - 1) / 2
                        i, j = round(y.item()), round(x.item())
                        if present[b, n] and max(abs(row - i), abs(column - j)) <= REACH:
                            depth = depth + naive_depth(table, column - x, row - y)
                    white = 1 - torch.exp(-depth)
                    logits[b, t, row, column] = torch.log(white / (1 - white))
    return logits


def test_glyph_renderer_equals_the_naive_loop() -> None:
    renderer, generator = glyph_renderer()
    positions, present = scene(generator)
    pixels = renderer.to_pixels(positions)[present]
    assert ((pixels < -0.5) | (pixels > 6.5)).any(), "some object should be partly outside"
    positions.requires_grad_()
    ours, theirs = renderer(positions, present), naive_logits(renderer, positions, present)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    cotangent = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    inputs = [positions, *renderer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(theirs, inputs, cotangent),
        **TOLERANCE,
    )


def test_a_pixel_is_dark_only_if_every_object_leaves_it_dark() -> None:
    renderer, generator = glyph_renderer(1)
    positions = 0.3 * torch.randn(1, 2, 1, 2, generator=generator, dtype=torch.float64)
    some = ([False, False], [True, False], [False, True], [True, True])
    empty, one, other, both = (
        1 - renderer(positions, torch.tensor([flags])).sigmoid() for flags in some
    )
    torch.testing.assert_close(both * empty, one * other, **TOLERANCE)
    assert (both < one).any()


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e30])
def test_absent_glyphs_cannot_matter(filler: float) -> None:
    renderer, generator = glyph_renderer(2)
    positions, present = scene(generator)
    without = renderer(positions, present)
    filled = positions.masked_fill(~present[:, :, None, None], filler).requires_grad_()
    logits = renderer(filled, present)
    assert torch.equal(logits, without)
    gradients = torch.autograd.grad(logits.square().sum(), [filled, *renderer.parameters()])
    assert (gradients[0][~present] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_an_object_far_outside_leaves_the_frame_empty() -> None:
    renderer, _ = glyph_renderer(3)
    far = torch.full((1, 1, 1, 2), 50.0, dtype=torch.float64)
    present = torch.tensor([[True]])
    assert torch.equal(renderer(far, present), renderer(far, ~present))


def test_kernel_is_the_average_over_a_pixel() -> None:
    renderer, _ = glyph_renderer(4)
    table = renderer.log_depth.exp()
    within = [k / CELLS for k in range(-(CELLS // 2), CELLS // 2 + 1)]
    kernel = renderer.kernel()
    assert kernel.shape == (2 * REACH + 1, 2 * REACH + 1)
    for row in range(-REACH, REACH + 1):
        for column in range(-REACH, REACH + 1):
            depths = [naive_depth(table, column + x, row + y) for x in within for y in within]
            average = sum(depths) / len(depths)
            torch.testing.assert_close(kernel[row + REACH, column + REACH], average, **TOLERANCE)


def test_spread_is_the_variance_of_the_ink() -> None:
    renderer = GlyphRenderer((30, 30), reach=9, initial_width=1.7, pixels_per_unit=1.0)
    # The table ends nearly six widths from the centre: 1e-7 of the ink lies beyond.
    assert renderer.spread().item() == pytest.approx(1.7**2, rel=1e-5)


def test_latent_positions_and_pixels_are_inverse_and_meet_at_the_centre() -> None:
    renderer, generator = glyph_renderer(5)
    positions = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(renderer.from_pixels(renderer.to_pixels(positions)), positions)
    assert renderer.to_pixels(torch.zeros(2)).tolist() == [(WIDTH - 1) / 2, (HEIGHT - 1) / 2]
    step = renderer.to_pixels(torch.tensor([1.0, 0.0])) - renderer.to_pixels(torch.zeros(2))
    assert step.tolist() == [PIXELS_PER_UNIT, 0.0]
