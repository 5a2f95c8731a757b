import itertools

import numpy as np
import pytest
import torch

from glyphs import disk_renderer, frame_with, odd_renderer
from motes.models.sprites.detection import detect, redetect
from motes.models.sprites.likelihood_maps import (
    CropView,
    PixelGaussian,
    SpriteTemplate,
    coverage,
    dark_probability,
    evaluate_window,
    responsibilities,
    unexplained_fraction,
)
from motes.models.sprites.patches import Window, nearest_pixel, sliding_crops, window_offsets
from motes.models.sprites.renderer import BACKGROUND_UNIT

HEIGHT, WIDTH, REACH = 9, 11, 2


def odd_glyph(phases: int, window: int = 1) -> SpriteTemplate:
    renderer = odd_renderer((HEIGHT, WIDTH), REACH)
    with torch.no_grad():
        template = (SpriteTemplate.coarse if phases == 1 else SpriteTemplate.fine)(renderer, window)
    assert template.phases == phases
    return template


def seen_around(template: SpriteTemplate, mean: torch.Tensor, frames: torch.Tensor) -> CropView:
    """What is seen of frames around places."""
    near = Window.around(mean, template.crop_radius, (HEIGHT, WIDTH))
    return CropView.through(
        near, template, sliding_crops(frames, template.crop_radius), torch.arange(len(frames))
    )


def random_place(generator: torch.Generator, num_clips: int, num_objects: int) -> PixelGaussian:
    shape = (num_clips, num_objects, 2)
    size = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64)
    mean = torch.rand(shape, generator=generator, dtype=torch.float64) * (size + 2) - 1.5
    factor = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return PixelGaussian(mean, factor @ factor.mT + 0.5 * torch.eye(2))


def distance(offset: np.ndarray, covariance: np.ndarray) -> float:
    return float(offset @ np.linalg.solve(covariance, offset))


def naive_shares(
    template: SpriteTemplate, guess: PixelGaussian, present: list[bool], n: int
) -> np.ndarray:
    """The share of object n in each pixel, among all objects and the background."""
    depth, background = template.depth.numpy().mean(0), template.background.numpy()
    mass, second = 0.0, 0.0
    for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
        mass += depth[i, j]
        second += depth[i, j] * ((i - REACH) ** 2 + (j - REACH) ** 2) / 2
    inks = guess.covariance.numpy() + second / mass * np.eye(2)
    share = np.zeros((HEIGHT, WIDTH))
    for row, column in np.ndindex(HEIGHT, WIDTH):
        pixel = np.array([column, row])
        lit = [
            here
            * mass
            * np.exp(-0.5 * distance(pixel - mean, ink))
            / (2 * np.pi * np.sqrt(np.linalg.det(ink)))
            for here, mean, ink in zip(present, guess.mean.numpy(), inks, strict=True)
        ]
        share[row, column] = lit[n] / (sum(lit) + background[row, column])
    return share


def naive_look(
    template: SpriteTemplate,
    frame: np.ndarray,
    share: np.ndarray,
    prior: PixelGaussian,
    centre: np.ndarray,
    window: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of one object, how each explains the frame, its weight: place by place and pixel."""
    depth, shows = template.depth.numpy(), template.visibility.numpy()
    typical = template.background.median().item()
    gain = np.log((1 - np.exp(-depth - typical)) / (1 - np.exp(-typical)))
    cells, near = range(template.phases), range(-window, window + 1)
    log_miss = np.median(1 - shows)
    places, gains, scores = [], [], []
    for row, column, dy, dx in itertools.product(cells, cells, near, near):
        score, phase = 0.0, row * template.phases + column
        for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
            x, y = centre + np.array([dx + j, dy + i]) - REACH
            if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
                continue
            if frame[y, x]:
                score += shows[y, x] * share[y, x] * gain[phase, i, j]
            else:
                score -= shows[y, x] * depth[phase, i, j]
        within = (np.array([column, row]) + 0.5) / template.phases - 0.5
        places.append(centre + np.array([dx, dy]) + within)
        gains.append(np.log(np.exp(score) + log_miss))
        away = distance(places[-1] - prior.mean.numpy(), prior.covariance.numpy())
        scores.append(gains[-1] - 0.5 * away)
    after = np.exp(np.array(scores) - max(scores))
    return np.array(places), np.array(gains), after / after.sum()


@pytest.mark.parametrize(("phases", "window"), [(1, 3), (4, 1)])
def test_looking_equals_the_naive_loop(
    phases: int, window: int, generator: torch.Generator
) -> None:
    guess, prior = (random_place(generator, 2, 3) for _ in range(2))
    template = odd_glyph(phases, window)
    frames = (torch.rand(2, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    present = torch.tensor([[True, True, True], [True, True, False]])
    view = seen_around(template, guess.mean, frames)
    found = evaluate_window(
        template, view, responsibilities(template, view.window, guess, present), prior
    )
    summary = found.moments()
    for b, n in present.nonzero().tolist():
        share = naive_shares(
            template, PixelGaussian(*(part[b] for part in guess)), present[b].tolist(), n
        )
        centre = np.clip(np.rint(guess.mean[b, n].numpy()), 0, [WIDTH - 1, HEIGHT - 1]).astype(int)
        its_prior = PixelGaussian(*(part[b, n] for part in prior))
        places, gains, weights = naive_look(
            template, frames[b].numpy(), share, its_prior, centre, window
        )
        np.testing.assert_allclose(found.centre[b, n] + found.offsets, places, atol=1e-12)
        # The width of the ink is kept in float32: an error of 6e-8, in scores of order ten.
        np.testing.assert_allclose(found.log_weights[b, n].exp(), weights, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found.log_likelihood_ratio[b, n], weights @ gains, rtol=1e-5)
        mean = weights @ places
        covariance = (weights[:, None] * (places - mean)).T @ (places - mean)
        covariance += np.eye(2) / phases**2 / 12  # anywhere in its cell
        np.testing.assert_allclose(summary.mean[b, n], mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(summary.covariance[b, n], covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("phases", [1, 4])
def test_gains_are_what_an_object_adds_to_the_log_probability_of_white(phases: int) -> None:
    template = odd_glyph(phases)
    typical = template.background.median().item()
    for depth, gain in zip(template.depth.flatten(), template.lit_llr.flatten(), strict=True):
        expected = np.log((1 - np.exp(-depth.item() - typical)) / (1 - np.exp(-typical)))
        assert gain.item() == pytest.approx(expected, rel=1e-9)


def test_the_coarse_glyph_is_the_average_of_the_fine_one() -> None:
    average = torch.stack(list(odd_glyph(4).depth)).mean(0)
    torch.testing.assert_close(odd_glyph(1).depth[0], average)


def test_shares_of_a_pixel_sum_to_one_over_all_that_may_light_it(
    generator: torch.Generator,
) -> None:
    guess, template = random_place(generator, 2, 3), odd_glyph(1)
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


def test_an_object_covers_what_its_glyph_lights_in_the_frame(generator: torch.Generator) -> None:
    template, mean = odd_glyph(4), random_place(generator, 2, 3).mean
    present = torch.tensor([[True, True, True], [True, False, True]])
    ours = coverage(template, mean, present).view(2, 3, HEIGHT, WIDTH)
    depth, shows = template.depth.numpy().mean(0), template.visibility.numpy()
    for b, n, row, column in np.ndindex(2, 3, HEIGHT, WIDTH):
        x, y = np.clip(np.rint(mean[b, n].numpy()), 0, [WIDTH - 1, HEIGHT - 1]).astype(int)
        i, j = row - y + REACH, column - x + REACH
        lit = 0.0
        if present[b, n] and 0 <= i <= 2 * REACH and 0 <= j <= 2 * REACH:
            lit = shows[row, column] * (1 - np.exp(-depth[i, j]))
        assert ours[b, n, row, column].item() == pytest.approx(lit, rel=1e-9, abs=1e-12)


def test_others_leave_dark_what_they_do_not_cover(generator: torch.Generator) -> None:
    template, mean = odd_glyph(4), random_place(generator, 40, 3).mean
    mean[0, 1] = mean[0, 0] + 100  # as far as can be
    present = torch.rand(40, 3, generator=generator) < 0.8
    view = seen_around(template, mean[:, :1], torch.zeros(40, HEIGHT, WIDTH).double())
    ours = dark_probability(
        template, view, nearest_pixel(mean[:, 1:], (HEIGHT, WIDTH)), present[:, 1:]
    )
    whole = (1 - coverage(template, mean[:, 1:], present[:, 1:])).prod(1).view(40, HEIGHT, WIDTH)
    theirs = view.window.crop(sliding_crops(whole, template.crop_radius), torch.arange(40))
    inside = view.window.inside
    assert (theirs[inside] < 0.9).any()
    torch.testing.assert_close(ours[inside], theirs[inside])
    assert (ours[~inside] == 1).all()


def test_what_others_light_for_sure_is_no_gain_and_what_nobody_lights_is_all(
    generator: torch.Generator,
) -> None:
    template, mean = odd_glyph(1), random_place(generator, 2, 3).mean
    covered = torch.rand(2, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    covered[:, :, ::3], covered[:, :, 1::3] = 0.0, 1.0
    view = seen_around(template, mean, 1 - covered)
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
    guess = random_place(generator, 2, 3)
    template = odd_glyph(4, window)
    frames = (torch.rand(2, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    view = seen_around(template, guess.mean, frames)
    fine = evaluate_window(template, view, torch.ones_like(view.frame), guess)
    blended, weights = fine.blended(share).log_weights.exp(), fine.log_weights.exp()
    pixel = fine.offsets.round()
    for k in range(len(pixel)):
        same = (pixel == pixel[k]).all(1)
        assert same.sum() == 16
        expected = (1 - share) * weights[..., k] + share * weights[..., same].mean(-1)
        torch.testing.assert_close(blended[..., k], expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(fine.blended(0.0).log_weights.exp(), weights)


def test_a_place_is_chosen_by_its_flag(generator: torch.Generator) -> None:
    yes, no = random_place(generator, 2, 3), random_place(generator, 2, 3)
    flags = torch.tensor([[True, False, True], [False, False, True]])
    picked = PixelGaussian.where(flags, yes, no)
    for b, n in np.ndindex(2, 3):
        source = yes if flags[b, n] else no
        for part, expected in zip(picked, source, strict=True):
            assert torch.equal(part[b, n], expected[b, n])


def disk_glyph(size: int = 24) -> SpriteTemplate:
    return SpriteTemplate.coarse(disk_renderer(size), window=1)


def test_separated_disks_are_found_from_left_to_right() -> None:
    places = [(20, 5), (4, 18), (12, 11)]
    found, _ = detect(disk_glyph(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[4, 18], [12, 11], [20, 5]]


def test_touching_disks_and_disks_at_the_border_are_found() -> None:
    places = [(1, 10), (5, 11), (22, 23)]
    found, _ = detect(disk_glyph(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[1, 10], [5, 11], [22, 23]]


def test_spare_slots_come_last() -> None:
    frame = frame_with([(20, 5), (4, 18)])
    frame[0, 18, 3:6] = 0  # a ball of which less is seen is found later
    for count, expected in ((2, [[4, 18], [20, 5]]), (1, [[20, 5], [4, 18]])):
        found, _ = detect(disk_glyph(), frame, torch.tensor([count]), slots=2)
        assert found[0].tolist() == expected


def test_a_slot_for_which_no_ink_is_left_explains_nothing() -> None:
    _, told = detect(disk_glyph(), frame_with([(4, 18), (20, 5)]), torch.tensor([3]), slots=3)
    # A disk has 13 pixels, each worth about the log of 1 over its background of 1e-4.
    assert (told[0] > 100).sum() == 2
    assert (told[0] < 1).sum() == 1


def test_spotting_equals_the_naive_loop(generator: torch.Generator) -> None:
    template = odd_glyph(4)
    frames = (torch.rand(3, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    covered = torch.rand(3, HEIGHT * WIDTH, generator=generator, dtype=torch.float64)
    prior = PixelGaussian(*(part[:, 0] for part in random_place(generator, 3, 1)))
    found, told = redetect(template, frames, covered, prior)
    depth, shows = template.depth.mean(0).numpy(), template.visibility.numpy()
    gain = template.lit_llr.mean(0).numpy()
    typical = 1 - np.exp(-template.background.median().item())
    for b in range(3):
        best = (-np.inf, np.zeros(2))
        dark = (1 - covered[b].view(HEIGHT, WIDTH).numpy()) * np.exp(-template.background.numpy())
        left = np.log(np.maximum(1 - dark, typical)) / np.log(typical)
        scale = 2 * np.pi * np.sqrt(np.linalg.det(prior.covariance[b].numpy()))
        for row, column in np.ndindex(HEIGHT, WIDTH):
            away = np.array([column, row]) - prior.mean[b].numpy()
            score = -0.5 * distance(away, prior.covariance[b].numpy()) - np.log(scale)
            for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
                y, x = row + i - REACH, column + j - REACH
                if not (0 <= y < HEIGHT and 0 <= x < WIDTH):
                    continue
                lit = frames[b, y, x].item()
                score += shows[y, x] * (lit * left[y, x] * gain[i, j] - (1 - lit) * depth[i, j])
            best = max(best, (score, np.array([column, row])), key=lambda pair: pair[0])
        np.testing.assert_allclose(told[b], best[0], rtol=1e-9)
        np.testing.assert_array_equal(found[b], best[1])


def test_what_the_background_lights_is_no_object() -> None:
    renderer, frame = disk_renderer(24), frame_with([(6, 6)])
    frame[0, 14:20, 14:20] = 1  # a lamp, of which more is lit than of the ball
    dazzled, _ = detect(SpriteTemplate.coarse(renderer, 1), frame, torch.tensor([1]), slots=1)
    assert dazzled[0].min() >= 14
    with torch.no_grad():
        renderer.root_background[14:20, 14:20] = 2.0 / BACKGROUND_UNIT
    found, _ = detect(SpriteTemplate.coarse(renderer, 1), frame, torch.tensor([1]), slots=1)
    assert found[0].tolist() == [[6, 6]]


def test_cells_are_those_that_the_renderer_tells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is lit, scores are the log likelihood of an object in each cell."""
    monkeypatch.setattr("motes.models.sprites.renderer.MIN_OCCLUSION", 0.0)
    renderer = odd_renderer((HEIGHT, WIDTH), REACH)
    with torch.no_grad():
        renderer.visibility_logit.fill_(200.0)
    centre = torch.tensor([[[5.0, 4.0]]], dtype=torch.float64)
    frame = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.float64)
    anywhere = PixelGaussian(centre, 1e12 * torch.eye(2).double()[None, None])
    template = SpriteTemplate.fine(renderer, 1)
    view = seen_around(template, centre, frame)
    found = evaluate_window(template, view, torch.ones_like(view.frame), anywhere)
    places = renderer.from_pixels(centre + window_offsets(4, 1))
    nats = renderer.log_likelihood(
        places[None], torch.tensor([[True]]), frame[:, None].expand(1, 144, -1, -1)
    )
    torch.testing.assert_close(found.log_weights[0, 0], nats[0].log_softmax(0))
