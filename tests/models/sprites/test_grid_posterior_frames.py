"""Expected frames against sums over all places, and against the pictures of draws."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from motes.kalman.model import Gaussian
from motes.models.sprites.grid_posterior import GridPosterior, expected_frames
from motes.models.sprites.likelihood_maps import window_offsets
from motes.models.sprites.renderer import CELLS_PER_PIXEL, SpriteRenderer
from sprite_scenes import odd_renderer

HEIGHT, WIDTH, UNIT, WINDOW = 12, 14, 3.0, 1
K = 2


def renderer_of() -> SpriteRenderer:
    return odd_renderer((HEIGHT, WIDTH), pixels_per_unit=UNIT).float()


def posterior_at(
    renderer: SpriteRenderer, centres: list[list[float]], log_weights: torch.Tensor
) -> GridPosterior:
    """q of one clip of one frame: objects seen around these pixels."""
    origin = renderer.from_pixels(torch.tensor(centres, dtype=torch.float32))[None, :, None]
    N = len(centres)
    return GridPosterior(
        origin=origin,
        log_weights=log_weights.log_softmax(-1)[None, :, None],
        offsets=window_offsets(4, WINDOW) / UNIT,
        cell=0.25 / UNIT,
        zoom=torch.ones(1, N, 1),
        detected=torch.ones(1, N, 1, dtype=torch.bool),
        expected_means=torch.zeros(1, N, 1, 2),
        expected_covariances=torch.eye(2).expand(1, N, 1, 2, 2),
    )


def repeated(q: GridPosterior, clips: int, frames: int) -> GridPosterior:
    """Return the same q for many clips and frames."""
    tensors = {
        name: value.repeat(clips, 1, frames, *[1] * (value.ndim - 3))
        for name, value in q._asdict().items()
        if name not in ("offsets", "cell", "appearance", "occlusion")
    }
    return q._replace(**tensors)


def unused(num_objects: int) -> tuple[torch.Tensor, Gaussian]:
    """Return predictions that are NaN, since no object needs them."""
    weights = torch.full((1, num_objects, K), torch.nan, dtype=torch.float64)
    means = torch.full((1, num_objects, K, 1, 2), torch.nan, dtype=torch.float64)
    return weights, Gaussian(means, means[..., None].expand(*means.shape, 2))


def only(*cells: int) -> torch.Tensor:
    """Return log weights of 144 cells that exclude all but these."""
    weights = torch.full((144,), -1e4)
    weights[list(cells)] = torch.arange(len(cells)) * 0.5
    return weights


@torch.no_grad()
def test_the_expected_frame_of_an_object_in_a_known_cell_is_its_rendering() -> None:
    renderer, present = renderer_of(), torch.tensor([[True]])
    for cell, centre in itertools.product(range(0, 144, 11), ([6, 5], [0, 0], [13, 11])):
        q = posterior_at(renderer, [centre], only(cell)[None])
        ours = expected_frames(renderer, q, present, *unused(1))
        theirs = renderer(q.means, present).sigmoid()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # float32


@torch.no_grad()
def test_expected_frames_of_detected_objects_are_the_weighted_sum_over_cells() -> None:
    """Also where objects overlap, share a cover and reach over the border."""
    renderer, present = renderer_of(), torch.tensor([[True, True]])
    cells = [[3, 50, 100], [20, 77]]
    q = posterior_at(renderer, [[6, 5], [7, 7]], torch.stack([only(*those) for those in cells]))
    total = torch.zeros(1, 1, HEIGHT, WIDTH)
    for pair in itertools.product(*cells):
        offsets = torch.stack([q.offsets[cell] for cell in pair])[None, :, None]
        weight = torch.stack([q.log_weights[0, n, 0, cell] for n, cell in enumerate(pair)]).sum()
        total += weight.exp() * renderer(q.origin + offsets, present).sigmoid()
    ours = expected_frames(renderer, q, present, *unused(2))
    torch.testing.assert_close(ours, total, rtol=1e-5, atol=1e-6)  # float32


@torch.no_grad()
def test_an_undetected_object_is_uniform_in_each_pixel_with_the_mass_of_its_gaussians() -> None:
    renderer = renderer_of()
    q = posterior_at(renderer, [[6, 5]], only(3)[None])
    undetected = q._replace(detected=~q.detected)
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64)
    middles = torch.tensor([[5.3, 3.8], [12.9, 8.1]], dtype=torch.float64)
    deviations = torch.tensor([[0.7, 1.4], [2.0, 0.9]], dtype=torch.float64)
    predicted = Gaussian(
        renderer.from_pixels(middles)[None, None, :, None],
        (deviations / UNIT).square().diag_embed()[None, None, :, None],
    )
    ours = expected_frames(
        renderer, undetected, torch.tensor([[True]]), weights[None, None], predicted
    )
    kernel = (1 - (-renderer.kernels()).exp()).mean((0, 1)).numpy()
    lit = np.zeros((HEIGHT, WIDTH))
    for y, x in itertools.product(range(-2, HEIGHT + 2), range(-2, WIDTH + 2)):
        mass = 0.0
        for w, middle, scale in zip(weights, middles.numpy(), deviations.numpy(), strict=True):
            low, high = np.array([x, y]) - 0.5, np.array([x, y]) + 0.5
            inside = stats.norm.cdf(high, middle, scale) - stats.norm.cdf(low, middle, scale)
            mass += w.item() * inside.prod()
        for i, j in itertools.product(range(5), repeat=2):
            if 0 <= y + i - 2 < HEIGHT and 0 <= x + j - 2 < WIDTH:
                lit[y + i - 2, x + j - 2] += mass * kernel[i, j]
    dark = (-renderer.background()).exp() * (1 - renderer.visibility() * torch.from_numpy(lit))
    torch.testing.assert_close(ours[0, 0], (1 - dark).float(), rtol=1e-5, atol=1e-5)  # float32


@pytest.mark.statistical
@torch.no_grad()
def test_expected_frames_are_the_average_of_draws(generator: torch.Generator) -> None:
    """Two objects in two frames; the second is undetected in the second frame."""
    renderer, present, draws = renderer_of(), torch.ones(1, 2, dtype=torch.bool), 20_000
    # A camera that rounds: where in its pixel a undetected object is does not matter.
    root = renderer.root_depth[::CELLS_PER_PIXEL, ::CELLS_PER_PIXEL].clone()
    renderer.root_depth.copy_(
        root.repeat_interleave(CELLS_PER_PIXEL, 0).repeat_interleave(CELLS_PER_PIXEL, 1)
    )
    first = posterior_at(renderer, [[6, 5], [8, 7]], torch.randn(2, 144, generator=generator))
    q = repeated(first, 1, 2)
    q.detected[0, 1, 1] = False
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).expand(1, 2, K)
    middles = renderer.from_pixels(torch.tensor([[5.3, 3.8], [9.6, 8.1]]).double())
    shape = torch.tensor([[[2.2, 1.2], [1.2, 3.0]], [[3.0, -0.8], [-0.8, 2.0]]]).double()
    spread = shape / UNIT**2
    predicted = Gaussian(
        middles[None, None, :, None].expand(1, 2, K, 2, 2),
        spread[None, None, :, None].expand(1, 2, K, 2, 2, 2),
    )
    ours = expected_frames(renderer, q, present, weights, predicted)

    positions = repeated(q, draws, 1).draw(torch.randn(draws, 2, 2, 2, generator=generator))
    kind = torch.multinomial(weights[0, 1], draws, replacement=True, generator=generator)
    normal = torch.randn(draws, 2, 1, generator=generator, dtype=torch.float64)
    undetected = middles[kind] + (torch.linalg.cholesky(spread)[kind] @ normal)[..., 0]
    positions[:, 1, 1] = undetected.float()
    pictures = renderer(positions, present.expand(draws, 2)).sigmoid()
    # 336 pixels, one false alarm in 1e6.
    limit = 6 * pictures.std(0) / draws**0.5 + 1e-6
    gap = (ours[0] - pictures.mean(0)).abs()
    assert (gap[0] <= limit[0]).all()
    # y given x is taken in the middle of a column: up to slope^2 / 12 = 0.025 is missing from a
    # variance of 2.35, which moves the picture of the object by less than a hundredth of its peak.
    alone = expected_frames(renderer, q, torch.tensor([[True, False]]), weights, predicted)
    peak = (ours - alone)[0, 1].max()
    assert (gap[1] <= limit[1] + 0.01 * peak).all()
    assert peak > 5 * (limit[1] + 0.01 * peak).max()


@torch.no_grad()
def test_absent_objects_are_not_in_the_frame() -> None:
    renderer = renderer_of()
    q = posterior_at(renderer, [[6, 5], [8, 7]], torch.stack([only(3), only(20)]))
    some = expected_frames(renderer, q, torch.tensor([[True, False]]), *unused(2))
    alone = posterior_at(renderer, [[6, 5]], only(3)[None])
    assert torch.equal(some, expected_frames(renderer, alone, torch.tensor([[True]]), *unused(1)))
    empty = expected_frames(renderer, q, torch.tensor([[False, False]]), *unused(2))
    torch.testing.assert_close(empty[0, 0], 1 - (-renderer.background()).exp())


@torch.no_grad()
def test_chunks_do_not_change_the_expected_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = renderer_of()
    q = posterior_at(renderer, [[6, 5], [8, 7]], torch.stack([only(3, 4), only(20)]))
    q = repeated(q, 3, 1)
    present = torch.tensor([[True, True], [True, False], [False, True]])
    weights, predicted = unused(2)
    whole = expected_frames(renderer, q, present, weights.expand(3, 2, K), predicted)
    monkeypatch.setattr("motes.models.sprites.grid_posterior.CHUNK_FRAMES", 2)
    pieces = expected_frames(renderer, q, present, weights.expand(3, 2, K), predicted)
    torch.testing.assert_close(pieces, whole)
