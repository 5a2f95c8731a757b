"""q over cells against what its definition says: counts, integrals, shares of draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from motes.models.protocols import GaussianPosterior
from motes.models.sprites.grid_posterior import PER_OBJECT, REGION, GridPosterior, StreamedPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian, WindowPosterior, window_offsets
from sprite_scenes import odd_renderer

PHASES, WINDOW, UNIT = 4, 1, 3.0  # cells a pixel, pixels around the centre, pixels a unit


def posterior_of(log_weights: torch.Tensor, window: int = WINDOW) -> GridPosterior:
    """q of one object in one seen frame, with these weights up to a factor."""
    origin = torch.tensor([0.4, -0.7], dtype=torch.float64).expand(1, 1, 1, 2)
    return GridPosterior(
        origin=origin,
        log_weights=log_weights.double().log_softmax(-1).expand(1, 1, 1, -1),
        offsets=window_offsets(PHASES, window).double() / UNIT,
        cell=1 / PHASES / UNIT,
        zoom=torch.ones(1, 1, 1, dtype=torch.float64),
        detected=torch.ones(1, 1, 1, dtype=torch.bool),
        expected_means=torch.tensor([3.0, -2.0], dtype=torch.float64).expand(1, 1, 1, 2),
        expected_covariances=torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64).expand(
            1, 1, 1, 2, 2
        ),
    )


def draws_of(q: GridPosterior, count: int, generator: torch.Generator) -> torch.Tensor:
    """Independent draws: as many frames that look the same."""
    tensors = {
        name: value.expand(1, 1, count, *value.shape[3:])
        for name, value in q._asdict().items()
        if name not in ("offsets", "cell", "appearance", "occlusion")
    }
    noise = torch.randn(1, 1, count, 2, generator=generator, dtype=torch.float64)
    return q._replace(**tensors).draw(noise)[0, 0]


def random_weights(generator: torch.Generator, scale: float = 0.7) -> torch.Tensor:
    return scale * torch.randn(len(window_offsets(PHASES, WINDOW)), generator=generator)


@pytest.mark.statistical
def test_draws_follow_the_weights_and_fill_their_cells(generator: torch.Generator) -> None:
    q, count, parts = posterior_of(random_weights(generator)), 40_000, 4
    draws = draws_of(q, count, generator)
    # A grid of a quarter of a cell over the whole window; each square has a known probability.
    side = (2 * WINDOW + 1) * PHASES * parts
    step = q.cell / parts
    corner = q.origin[0, 0, 0] - side * step / 2
    index = ((draws - corner) / step).floor().long()
    assert ((index >= 0) & (index < side)).all()
    counts = torch.zeros(side, side).index_put(
        (index[:, 1], index[:, 0]), torch.ones(count), accumulate=True
    )
    probability = torch.zeros(side, side)
    for weight, offset in zip(q.log_weights[0, 0, 0].exp(), q.offsets, strict=True):
        x, y = ((offset - q.cell / 2 + side * step / 2) / step).round().long().tolist()
        probability[y : y + parts, x : x + parts] = weight / parts**2

    def surprising(seen: torch.Tensor, expected: torch.Tensor) -> bool:
        statistic = ((seen - expected).square() / expected).sum()
        return float(statistic) > stats.chi2.isf(1e-6 / 3, seen.numel() - 1)

    def summed(grid: torch.Tensor, over: tuple[int, int]) -> torch.Tensor:
        blocks = grid.unflatten(1, (-1, parts)).unflatten(0, (-1, parts))
        return blocks.sum(over)

    # Pearson's test, one false alarm in 1e6: of cells, of places in a cell, and of the corner
    # of the cell with the cell, so that no cell is filled from one side.
    cells, places = (1, 3), (0, 2)
    expected = count * probability
    assert not surprising(summed(counts, cells), summed(expected, cells))
    assert not surprising(summed(counts, places), summed(expected, places))
    halves = [
        grid.unflatten(1, (-1, parts // 2)).unflatten(0, (-1, parts // 2)).sum((1, 3))
        for grid in (counts, expected)
    ]
    assert not surprising(*halves)


def test_draws_of_undetected_positions_are_those_of_the_prediction(
    generator: torch.Generator,
) -> None:
    q = posterior_of(random_weights(generator))
    hidden = q._replace(detected=~q.detected, log_weights=torch.full_like(q.log_weights, torch.nan))
    noise = torch.randn(1, 1, 1, 2, generator=generator, dtype=torch.float64)
    factor = np.linalg.cholesky(q.expected_covariances[0, 0, 0].numpy())
    expected = q.expected_means[0, 0, 0].numpy() + factor @ noise[0, 0, 0].numpy()
    np.testing.assert_allclose(hidden.draw(noise)[0, 0, 0], expected, rtol=1e-12)
    assert torch.equal(hidden.means, q.expected_means)
    assert torch.equal(hidden.covariances(), q.expected_covariances)
    assert float(hidden.entropy()) == 0.0


@pytest.mark.parametrize("noise", [-8.0, 8.0])
def test_the_most_unlikely_noise_still_falls_into_a_cell_with_weight(noise: float) -> None:
    weights = torch.full((144,), -1e4)  # a weight of zero in float64
    weights[70:74] = 0.0
    q = posterior_of(weights)
    drawn = q.draw(torch.full((1, 1, 1, 2), noise, dtype=torch.float64))[0, 0, 0]
    within = (drawn - q.origin[0, 0, 0] - q.offsets[70:74]).abs() <= q.cell / 2 + 1e-12
    assert within.all(1).any()


def test_the_density_of_a_draw_is_that_of_the_cell_it_fell_in(generator: torch.Generator) -> None:
    q = posterior_of(random_weights(generator, scale=2.0))
    hidden = q._replace(detected=~q.detected)
    for noise in torch.randn(30, 1, 1, 1, 2, generator=generator, dtype=torch.float64):
        drawn = q.draw(noise)[0, 0, 0] - q.origin[0, 0, 0]
        cell = ((q.offsets - drawn) ** 2).sum(1).argmin()
        expected = math.log(q.log_weights[0, 0, 0, cell].exp().item() / q.cell**2)
        assert float(q.log_density(noise)) == pytest.approx(expected, rel=1e-12)
        assert float(hidden.log_density(noise)) == 0.0


def test_entropy_is_that_of_the_piecewise_constant_density(generator: torch.Generator) -> None:
    q = posterior_of(random_weights(generator, scale=3.0))
    # The integral of -p log p over points that are even in the window, nine in each cell.
    axis = np.linspace(-1.5, 1.5, 36, endpoint=False) + 1 / 24
    total, area = 0.0, (q.cell / 3) ** 2
    for x, y in itertools.product(axis / UNIT, repeat=2):
        nearest = ((q.offsets.numpy() - [x, y]) ** 2).sum(1).argmin()
        density = q.log_weights[0, 0, 0, nearest].exp().item() / q.cell**2
        total -= density * math.log(density) * area
    assert float(q.entropy()) == pytest.approx(total, rel=1e-12)


def test_cells_without_weight_have_no_entropy() -> None:
    weights = torch.full((144,), -math.inf)
    weights[:16] = 0.0  # as much as one whole pixel
    assert float(posterior_of(weights).entropy()) == pytest.approx(-2 * math.log(UNIT), rel=1e-12)


def test_means_are_those_of_the_cells(generator: torch.Generator) -> None:
    q = posterior_of(random_weights(generator))
    expected = q.origin[0, 0, 0].numpy().copy()
    for weight, offset in zip(q.log_weights[0, 0, 0].exp(), q.offsets, strict=True):
        expected += weight.item() * offset.numpy()
    np.testing.assert_allclose(q.means[0, 0, 0], expected, rtol=1e-12)


def shape_of_q(name: str) -> torch.Tensor:
    """Log weights in a window of 5 x 5 pixels."""
    offsets = window_offsets(PHASES, 2)
    x, y = offsets.unbind(1)
    pixel = (x.abs() < 0.5) & (y.abs() < 0.5)
    return {
        "a cell": torch.where((x == 0.125) & (y == 0.125), 0.0, -1e3),
        "two cells": torch.where((x.abs() == 0.125) & (y == 0.125), 0.0, -1e3),
        "a pixel": torch.where(pixel, 0.0, -1e3),
        "part of a pixel": torch.where(pixel, -8 * (x - 0.3) ** 2 - 5 * x * y - 3 * y**2, -1e3),
        "two pixels": torch.where((x > -0.5) & (x < 1.5) & (y.abs() < 0.5), 0.0, -1e3),
        "narrow": -0.5 * (x**2 + (y - 0.1) ** 2) / 0.15**2,
        "oblong": -0.5 * (x**2 - 1.2 * x * y + y**2) / 0.25**2,
        "wide": -0.5 * (x**2 + y**2) / 0.7**2,
        "flat": torch.zeros(len(offsets)),
    }[name]


@pytest.mark.statistical
@pytest.mark.parametrize(
    "shape",
    ["a cell", "two cells", "a pixel", "part of a pixel", "two pixels", "narrow", "oblong",
     "wide", "flat"],
)  # fmt: skip
def test_the_ellipse_of_an_answer_holds_its_share_of_the_draws(
    shape: str, generator: torch.Generator
) -> None:
    q, count = posterior_of(shape_of_q(shape), window=2), 10_000
    draws = draws_of(q, count, generator) - q.means[0, 0]
    covariance = q.covariances()[0, 0, 0].numpy()
    distance = (draws.numpy() @ np.linalg.inv(covariance) * draws.numpy()).sum(1)
    inside = (distance <= stats.chi2.isf(1 - REGION, 2)).mean()
    # The region is known to the spacing of points, a quarter of a cell: in a lone cell up to 0.05
    # of the probability. Of the share of draws 4.9 deviations, passed once in 1e6.
    assert abs(inside - REGION) <= 0.05 + 4.9 * math.sqrt(0.9 * 0.1 / count)


def test_the_ellipse_has_the_shape_of_q() -> None:
    q = posterior_of(shape_of_q("oblong"), window=2)
    weights, offsets = q.log_weights[0, 0, 0].exp().numpy(), q.offsets.numpy()
    moments = (weights[:, None] * offsets).T @ offsets + np.eye(2) * q.cell**2 / 12
    scale = q.covariances()[0, 0, 0].numpy() / moments
    np.testing.assert_allclose(scale, np.full((2, 2), scale[0, 0]), rtol=1e-6)


def test_the_gaussian_of_q_has_its_mean_and_the_width_of_its_ellipse() -> None:
    q = posterior_of(shape_of_q("oblong"), window=2)
    encoding = GaussianPosterior.matching(q)
    assert torch.equal(encoding.means, q.means)
    variances = q.covariances().diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(encoding.scales.square(), variances)


def test_pixels_become_latent_units(generator: torch.Generator) -> None:
    renderer = odd_renderer((9, 11), pixels_per_unit=UNIT)
    centre = torch.tensor([6.0, 3.0], dtype=torch.float64).expand(1, 1, 1, 2)
    offsets = window_offsets(PHASES, WINDOW).double()
    weights = random_weights(generator).double().expand(1, 1, 1, -1)
    cells = WindowPosterior(
        centre, weights, offsets, 0.25, log_likelihood_ratio=torch.ones(1, 1, 1)
    )
    expected = PixelGaussian(centre + 1, torch.eye(2).double().expand(1, 1, 1, 2, 2))
    q = GridPosterior.of(cells, torch.ones(1, 1, 1, dtype=torch.bool), expected, renderer)
    torch.testing.assert_close(renderer.to_pixels(q.origin + q.offsets), centre + offsets)
    torch.testing.assert_close(renderer.to_pixels(q.expected_means), centre + 1)
    assert q.expected_covariances[0, 0, 0].tolist() == [[1 / UNIT**2, 0.0], [0.0, 1 / UNIT**2]]
    assert q.cell == 0.25 / UNIT


TIMES = (slice(0, 1), slice(1, 3), slice(3, 4))


@pytest.fixture
def of_four_frames(generator: torch.Generator) -> GridPosterior:
    """q of two objects in four frames of three clips, some positions unseen."""
    factors = torch.randn(3, 2, 4, 2, 2, generator=generator)
    return GridPosterior(
        torch.randn(3, 2, 4, 2, generator=generator),
        torch.randn(3, 2, 4, 16, generator=generator).log_softmax(-1),
        window_offsets(PHASES, 0) / UNIT,
        1 / PHASES / UNIT,
        torch.rand(3, 2, 4, generator=generator),
        torch.rand(3, 2, 4, generator=generator) < 0.5,
        torch.randn(3, 2, 4, 2, generator=generator),
        factors @ factors.mT + torch.eye(2),
    )


def during(q: GridPosterior, time: slice) -> GridPosterior:
    return q._replace(**{name: getattr(q, name)[:, :, time] for name in PER_OBJECT})


def test_blocks_of_frames_are_joined_in_their_order(of_four_frames: GridPosterior) -> None:
    stretches = ((time, during(of_four_frames, time)) for time in TIMES)
    for ours, whole in zip(
        GridPosterior.joined([q for _, q in stretches]), of_four_frames, strict=True
    ):
        assert ours is whole or torch.equal(ours, whole)


def test_a_streamed_posterior_equals_the_whole_one(
    of_four_frames: GridPosterior, generator: torch.Generator
) -> None:
    q = of_four_frames
    long = StreamedPosterior.of(lambda: ((time, during(q, time)) for time in TIMES))
    noise = torch.randn(3, 2, 4, 2, generator=generator)
    assert torch.equal(long.detected, q.detected)
    for ours, whole in (
        (long.means, q.means),
        (long.covariances(), q.covariances()),
        (long.entropy(), q.entropy()),
        (long.draw(noise), q.draw(noise)),
        (long.log_density(noise), q.log_density(noise)),
    ):
        # The same sums, in batches of other sizes.
        torch.testing.assert_close(ours, whole)


def test_ellipses_do_not_depend_on_the_chunk_size(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = posterior_of(random_weights(generator))
    weights = torch.randn(2, 1, 4, len(one.offsets), generator=generator).double().log_softmax(-1)
    seen = torch.tensor([True, True, False, True]).expand(2, 1, 4)
    q = one._replace(log_weights=weights, detected=seen)
    whole = q.covariances()
    monkeypatch.setattr("motes.models.sprites.grid_posterior.CHUNK_POSITIONS", 3)
    assert torch.equal(q.covariances(), whole)


def test_a_zoomed_position_is_one_of_smaller_cells(generator: torch.Generator) -> None:
    q = posterior_of(random_weights(generator))
    zoomed = q._replace(zoom=torch.full_like(q.zoom, 0.25))
    small = q._replace(offsets=q.offsets / 4, cell=q.cell / 4)
    noise = torch.randn(1, 1, 1, 2, generator=generator, dtype=torch.float64)
    for ours, other in (
        (zoomed.means, small.means),
        (zoomed.covariances(), small.covariances()),
        (zoomed.entropy(), small.entropy()),
        (zoomed.draw(noise), small.draw(noise)),
        (zoomed.log_density(noise), small.log_density(noise)),
    ):
        torch.testing.assert_close(ours, other)


def test_slots_after_the_last_object_repeat_it(generator: torch.Generator) -> None:
    parts = (torch.randn(2, 2, 3, *shape, generator=generator) for shape in ((2,), (4,)))
    origin, log_weights = parts
    seen = torch.rand(2, 2, 3, generator=generator) < 0.5
    q = GridPosterior(
        origin,
        log_weights,
        torch.zeros(4, 2),
        0.5,
        torch.rand(2, 2, 3, generator=generator),
        seen,
        origin + 1,
        torch.rand(2, 2, 3, 2, 2, generator=generator),
    )
    wide = q.widened(4)
    for ours, theirs in zip(wide, q, strict=True):
        if isinstance(theirs, torch.Tensor) and theirs.ndim > 2:
            assert isinstance(ours, torch.Tensor)
            assert torch.equal(ours[:, :2], theirs)
            assert torch.equal(ours[:, 2:], theirs[:, 1:].expand_as(ours[:, 2:]))
    assert q.widened(2) is q
