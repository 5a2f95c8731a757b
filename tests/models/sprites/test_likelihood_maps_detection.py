"""Detection in whole frames."""

import itertools

import numpy as np
import torch

from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    SpriteTemplate,
    correlate,
    detect,
    redetect,
)
from motes.models.sprites.renderer import BACKGROUND_UNIT
from sprite_scenes import (
    HEIGHT,
    RADIUS,
    WIDTH,
    disk_renderer,
    distance,
    frame_with,
    odd_template,
    random_belief,
)


def disk_template(size: int = 24) -> SpriteTemplate:
    return SpriteTemplate.coarse(disk_renderer(size), window=1)


def test_separated_disks_are_detected_from_left_to_right() -> None:
    places = [(20, 5), (4, 18), (12, 11)]
    found, _ = detect(disk_template(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[4, 18], [12, 11], [20, 5]]


def test_touching_disks_and_disks_at_the_border_are_detected() -> None:
    places = [(1, 10), (5, 11), (22, 23)]
    found, _ = detect(disk_template(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[1, 10], [5, 11], [22, 23]]


def test_spare_slots_come_last() -> None:
    frame = frame_with([(20, 5), (4, 18)])
    frame[0, 18, 3:6] = 0  # a ball of which less is seen is found later
    for count, expected in ((2, [[4, 18], [20, 5]]), (1, [[20, 5], [4, 18]])):
        found, _ = detect(disk_template(), frame, torch.tensor([count]), slots=2)
        assert found[0].tolist() == expected


def test_a_slot_without_unexplained_mass_has_a_small_ratio() -> None:
    _, llr = detect(disk_template(), frame_with([(4, 18), (20, 5)]), torch.tensor([3]), slots=3)
    # A disk has 13 pixels, each worth about the log of 1 over its background of 1e-4.
    assert (llr[0] > 100).sum() == 2
    assert (llr[0] < 1).sum() == 1


def test_redetection_equals_the_naive_loop(generator: torch.Generator) -> None:
    template = odd_template(4)
    frames = (torch.rand(3, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    covered = torch.rand(3, HEIGHT * WIDTH, generator=generator, dtype=torch.float64)
    prior = PixelGaussian(*(part[:, 0] for part in random_belief(generator, 3, 1)))
    found, llr = redetect(template, frames, covered, prior)
    depth, visible = template.depth.mean(0).numpy(), template.visibility.numpy()
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
            for i, j in itertools.product(range(2 * RADIUS + 1), repeat=2):
                y, x = row + i - RADIUS, column + j - RADIUS
                if not (0 <= y < HEIGHT and 0 <= x < WIDTH):
                    continue
                lit = frames[b, y, x].item()
                score += visible[y, x] * (lit * left[y, x] * gain[i, j] - (1 - lit) * depth[i, j])
            best = max(best, (score, np.array([column, row])), key=lambda pair: pair[0])
        np.testing.assert_allclose(llr[b], best[0], rtol=1e-9)
        np.testing.assert_array_equal(found[b], best[1])


def test_a_bright_background_is_not_detected() -> None:
    renderer, frame = disk_renderer(24), frame_with([(6, 6)])
    frame[0, 14:20, 14:20] = 1  # a lamp, of which more is lit than of the ball
    dazzled, _ = detect(SpriteTemplate.coarse(renderer, 1), frame, torch.tensor([1]), slots=1)
    assert dazzled[0].min() >= 14
    with torch.no_grad():
        renderer.root_background[14:20, 14:20] = 2.0 / BACKGROUND_UNIT
    found, _ = detect(SpriteTemplate.coarse(renderer, 1), frame, torch.tensor([1]), slots=1)
    assert found[0].tolist() == [[6, 6]]


def test_correlation_by_rows_equals_the_convolution(generator: torch.Generator) -> None:
    images = torch.rand(3, 2, 12, 9, dtype=torch.float64, generator=generator)
    kernel = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)
    plain = torch.nn.functional.conv2d(images, kernel[None], padding=2)[:, 0]
    torch.testing.assert_close(correlate(images, kernel), plain, rtol=1e-12, atol=1e-12)
