"""Posteriors over windows against naive loops over pixels and positions."""

import itertools

import numpy as np
import pytest
import torch

from motes.models.sprites.likelihood_maps import (
    CropView,
    FrameBatch,
    PixelGaussian,
    SpriteTemplate,
    Window,
    coverage,
    dark_probability,
    evaluate_window,
    nearest_pixel,
    responsibilities,
    sliding_crops,
    unexplained_fraction,
    window_offsets,
)
from sprite_scenes import HEIGHT, RADIUS, WIDTH, distance, odd_renderer, odd_template, random_belief


def view_around(template: SpriteTemplate, mean: torch.Tensor, frames: torch.Tensor) -> CropView:
    """Return the crops of frames around means."""
    near = Window.around(mean, template.crop_radius, (HEIGHT, WIDTH))
    return CropView.through(
        near, template, sliding_crops(frames, template.crop_radius), torch.arange(len(frames))
    )


def naive_responsibilities(
    template: SpriteTemplate, guess: PixelGaussian, present: list[bool], n: int
) -> np.ndarray:
    """Return the responsibility of object n for each pixel."""
    depth, background = template.depth.numpy().mean(0), template.background.numpy()
    mass, second = 0.0, 0.0
    for i, j in itertools.product(range(2 * RADIUS + 1), repeat=2):
        mass += depth[i, j]
        second += depth[i, j] * ((i - RADIUS) ** 2 + (j - RADIUS) ** 2) / 2
    blobs = guess.covariance.numpy() + second / mass * np.eye(2)
    share = np.zeros((HEIGHT, WIDTH))
    for row, column in np.ndindex(HEIGHT, WIDTH):
        pixel = np.array([column, row])
        lit = [
            here
            * mass
            * np.exp(-0.5 * distance(pixel - mean, blob))
            / (2 * np.pi * np.sqrt(np.linalg.det(blob)))
            for here, mean, blob in zip(present, guess.mean.numpy(), blobs, strict=True)
        ]
        share[row, column] = lit[n] / (sum(lit) + background[row, column])
    return share


def naive_window(
    template: SpriteTemplate,
    frame: np.ndarray,
    share: np.ndarray,
    prior: PixelGaussian,
    centre: np.ndarray,
    window: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of one object, their log-likelihood ratios and their weights."""
    depth, visible = template.depth.numpy(), template.visibility.numpy()
    typical = template.background.median().item()
    gain = np.log((1 - np.exp(-depth - typical)) / (1 - np.exp(-typical)))
    cells, near = range(template.phases), range(-window, window + 1)
    miss = np.median(1 - visible)
    places, gains, scores = [], [], []
    for row, column, dy, dx in itertools.product(cells, cells, near, near):
        score, phase = 0.0, row * template.phases + column
        for i, j in itertools.product(range(2 * RADIUS + 1), repeat=2):
            x, y = centre + np.array([dx + j, dy + i]) - RADIUS
            if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
                continue
            if frame[y, x]:
                score += visible[y, x] * share[y, x] * gain[phase, i, j]
            else:
                score -= visible[y, x] * depth[phase, i, j]
        within = (np.array([column, row]) + 0.5) / template.phases - 0.5
        places.append(centre + np.array([dx, dy]) + within)
        gains.append(np.log(np.exp(score) + miss))
        away = distance(places[-1] - prior.mean.numpy(), prior.covariance.numpy())
        scores.append(gains[-1] - 0.5 * away)
    after = np.exp(np.array(scores) - max(scores))
    return np.array(places), np.array(gains), after / after.sum()


@pytest.mark.parametrize(("phases", "window"), [(1, 3), (4, 1)])
def test_evaluate_window_equals_the_naive_loop(
    phases: int, window: int, generator: torch.Generator
) -> None:
    guess, prior = (random_belief(generator, 2, 3) for _ in range(2))
    template = odd_template(phases, window)
    frames = (torch.rand(2, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    present = torch.tensor([[True, True, True], [True, True, False]])
    view = view_around(template, guess.mean, frames)
    found = evaluate_window(
        template, view, responsibilities(template, view.window, guess, present), prior
    )
    summary = found.moments()
    for b, n in present.nonzero().tolist():
        share = naive_responsibilities(
            template, PixelGaussian(*(part[b] for part in guess)), present[b].tolist(), n
        )
        centre = np.clip(np.rint(guess.mean[b, n].numpy()), 0, [WIDTH - 1, HEIGHT - 1]).astype(int)
        its_prior = PixelGaussian(*(part[b, n] for part in prior))
        places, gains, weights = naive_window(
            template, frames[b].numpy(), share, its_prior, centre, window
        )
        np.testing.assert_allclose(found.centre[b, n] + found.offsets, places, atol=1e-12)
        # The width of the blob is kept in float32: an error of 6e-8, in scores of order ten.
        np.testing.assert_allclose(found.log_weights[b, n].exp(), weights, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found.log_likelihood_ratio[b, n], weights @ gains, rtol=1e-5)
        mean = weights @ places
        covariance = (weights[:, None] * (places - mean)).T @ (places - mean)
        covariance += np.eye(2) / phases**2 / 12  # anywhere in its cell
        np.testing.assert_allclose(summary.mean[b, n], mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(summary.covariance[b, n], covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("phases", [1, 4])
def test_lit_llr_is_the_change_of_the_log_probability_of_white(phases: int) -> None:
    template = odd_template(phases)
    typical = template.background.median().item()
    for depth, gain in zip(template.depth.flatten(), template.lit_llr.flatten(), strict=True):
        expected = np.log((1 - np.exp(-depth.item() - typical)) / (1 - np.exp(-typical)))
        assert gain.item() == pytest.approx(expected, rel=1e-9)


def test_the_coarse_template_is_the_average_of_the_fine_one() -> None:
    average = torch.stack(list(odd_template(4).depth)).mean(0)
    torch.testing.assert_close(odd_template(1).depth[0], average)


def test_responsibilities_sum_to_one_with_the_background(
    generator: torch.Generator,
) -> None:
    guess, template = random_belief(generator, 2, 3), odd_template(1)
    present = torch.tensor([[True, True, True], [False, True, True]])
    middle = torch.tensor([5.0, 4.0], dtype=torch.float64).expand(2, 3, 2)
    one_for_all = Window.around(middle, 4, (HEIGHT, WIDTH))
    alone = template._replace(background=torch.zeros_like(template.background))
    share = responsibilities(alone, one_for_all, guess, present)
    torch.testing.assert_close(share.sum(1), torch.ones_like(share[:, 0]), rtol=0, atol=1e-12)
    assert (share[1, 0] == 0).all()
    assert share[0].std() > 0.1
    bright = responsibilities(template, one_for_all, guess, present)
    assert (bright.sum(1) < 1).all()
    # All objects give way to the background in the same proportion.
    torch.testing.assert_close(bright / bright.sum(1, keepdim=True), share)


def test_coverage_equals_the_naive_loop(generator: torch.Generator) -> None:
    template, mean = odd_template(4), random_belief(generator, 2, 3).mean
    present = torch.tensor([[True, True, True], [True, False, True]])
    ours = coverage(template, mean, present).view(2, 3, HEIGHT, WIDTH)
    depth, visible = template.depth.numpy().mean(0), template.visibility.numpy()
    for b, n, row, column in np.ndindex(2, 3, HEIGHT, WIDTH):
        x, y = np.clip(np.rint(mean[b, n].numpy()), 0, [WIDTH - 1, HEIGHT - 1]).astype(int)
        i, j = row - y + RADIUS, column - x + RADIUS
        lit = 0.0
        if present[b, n] and 0 <= i <= 2 * RADIUS and 0 <= j <= 2 * RADIUS:
            lit = visible[row, column] * (1 - np.exp(-depth[i, j]))
        assert ours[b, n, row, column].item() == pytest.approx(lit, rel=1e-9, abs=1e-12)


def test_dark_probability_is_one_minus_the_coverage(generator: torch.Generator) -> None:
    template, mean = odd_template(4), random_belief(generator, 40, 3).mean
    mean[0, 1] = mean[0, 0] + 100  # as far as can be
    present = torch.rand(40, 3, generator=generator) < 0.8
    view = view_around(template, mean[:, :1], torch.zeros(40, HEIGHT, WIDTH).double())
    ours = dark_probability(
        template, view, nearest_pixel(mean[:, 1:], (HEIGHT, WIDTH)), present[:, 1:]
    )
    whole = (1 - coverage(template, mean[:, 1:], present[:, 1:])).prod(1).view(40, HEIGHT, WIDTH)
    theirs = view.window.crop(sliding_crops(whole, template.crop_radius), torch.arange(40))
    inside = view.window.inside
    assert (theirs[inside] < 0.9).any()
    torch.testing.assert_close(ours[inside], theirs[inside])
    assert (ours[~inside] == 1).all()


def test_unexplained_fraction_is_zero_under_certain_coverage_and_one_on_bare_background(
    generator: torch.Generator,
) -> None:
    template, mean = odd_template(1), random_belief(generator, 2, 3).mean
    covered = torch.rand(2, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    covered[:, :, ::3], covered[:, :, 1::3] = 0.0, 1.0
    view = view_around(template, mean, 1 - covered)
    near, share = view.window, unexplained_fraction(template, view.frame * view.background_dark)
    white_background = 1 - np.exp(-template.background.median().item())
    for b, n, i, j in near.inside.nonzero().tolist():
        x, y = near.x[b, n, j].item(), near.y[b, n, i].item()
        by_others = covered[b, y, x].item()
        white = 1 - (1 - by_others) * np.exp(-template.background[y, x].item())
        expected = min(np.log(white) / np.log(white_background), 1.0)
        assert share[b, n, i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_blending_spreads_a_share_over_the_cells_of_each_pixel(generator: torch.Generator) -> None:
    window, share = 1, 0.3
    guess = random_belief(generator, 2, 3)
    template = odd_template(4, window)
    frames = (torch.rand(2, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    view = view_around(template, guess.mean, frames)
    fine = evaluate_window(template, view, torch.ones_like(view.frame), guess)
    blended, weights = fine.blended(share).log_weights.exp(), fine.log_weights.exp()
    pixel = fine.offsets.round()
    for k in range(len(pixel)):
        same = (pixel == pixel[k]).all(1)
        assert same.sum() == 16
        expected = (1 - share) * weights[..., k] + share * weights[..., same].mean(-1)
        torch.testing.assert_close(blended[..., k], expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(fine.blended(0.0).log_weights.exp(), weights)


def test_where_selects_by_the_flag(generator: torch.Generator) -> None:
    yes, no = random_belief(generator, 2, 3), random_belief(generator, 2, 3)
    flags = torch.tensor([[True, False, True], [False, False, True]])
    picked = PixelGaussian.where(flags, yes, no)
    for b, n in np.ndindex(2, 3):
        source = yes if flags[b, n] else no
        for part, expected in zip(picked, source, strict=True):
            assert torch.equal(part[b, n], expected[b, n])


def test_cell_scores_equal_the_log_likelihood_of_the_renderer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a dark frame, scores are the log likelihood of an object in each cell."""
    monkeypatch.setattr("motes.models.sprites.renderer.MIN_OCCLUSION", 0.0)
    renderer = odd_renderer((HEIGHT, WIDTH), RADIUS)
    with torch.no_grad():
        renderer.visibility_logit.fill_(200.0)
    centre = torch.tensor([[[5.0, 4.0]]], dtype=torch.float64)
    frame = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.float64)
    anywhere = PixelGaussian(centre, 1e12 * torch.eye(2).double()[None, None])
    template = SpriteTemplate.fine(renderer, 1)
    view = view_around(template, centre, frame)
    found = evaluate_window(template, view, torch.ones_like(view.frame), anywhere)
    places = renderer.from_pixels(centre + window_offsets(4, 1))
    nats = renderer.log_likelihood(
        places[None], torch.tensor([[True]]), frame[:, None].expand(1, 144, -1, -1)
    )
    torch.testing.assert_close(found.log_weights[0, 0], nats[0].log_softmax(0))


def test_crops_of_unobserved_frames_are_zero() -> None:
    frames = torch.ones(1, 2, HEIGHT, WIDTH, 1)
    observed = torch.tensor([[True, False]])
    batch = FrameBatch.during(frames, torch.tensor([0]), observed, slice(0, 2))
    centres = torch.tensor([[[3.0, 4.0]], [[3.0, 4.0]]])
    shown, hidden = batch.crop(Window.around(centres, 1, (HEIGHT, WIDTH)))
    assert (shown == 1).all()
    assert (hidden == 0).all()
