import itertools

import numpy as np
import pytest
import torch

from motes.structured.places import Glyph, Place, _responsibility, detect, look

HEIGHT, WIDTH, REACH, WINDOW = 9, 11, 2, 3


def random_glyph(generator: torch.Generator) -> Glyph:
    """A glyph without symmetry, so that a turned kernel shows."""
    depth = torch.rand(2 * REACH + 1, 2 * REACH + 1, generator=generator, dtype=torch.float64)
    return Glyph.of(depth, torch.tensor(0.05).double(), torch.tensor(1.3).double())


def random_place(generator: torch.Generator, num_clips: int, num_objects: int) -> Place:
    shape = (num_clips, num_objects, 2)
    size = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64)
    mean = torch.rand(shape, generator=generator, dtype=torch.float64) * (size + 2) - 1.5
    factor = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return Place(mean, factor @ factor.mT + 0.5 * torch.eye(2))


def gaussian(offset: np.ndarray, covariance: np.ndarray) -> float:
    distance = offset @ np.linalg.solve(covariance, offset)
    return float(np.exp(-0.5 * distance) / np.sqrt(np.linalg.det(covariance)))


def naive_look(
    glyph: Glyph, frame: np.ndarray, guess: Place, prior: Place | None, present: list[bool], n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of object n of one clip, place by place and pixel by pixel."""
    depth, gain = glyph.depth.numpy(), glyph.lit_gain.numpy()
    means, inks = guess.mean.numpy(), guess.covariance.numpy() + float(glyph.spread) * np.eye(2)
    centre = np.clip(np.rint(means[n]), 0, [WIDTH - 1, HEIGHT - 1]).astype(int)
    places, scores = [], []
    for dy, dx in itertools.product(range(-WINDOW, WINDOW + 1), repeat=2):
        place, score = centre + np.array([dx, dy]), 0.0
        for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
            pixel = place + np.array([j, i]) - REACH
            if not (0 <= pixel[0] < WIDTH and 0 <= pixel[1] < HEIGHT):
                continue
            if frame[pixel[1], pixel[0]]:
                ink = [here * gaussian(pixel - means[m], inks[m]) for m, here in enumerate(present)]
                score += ink[n] / sum(ink) * gain[i, j]
            else:
                score -= depth[i, j]
        if prior is not None:
            score += np.log(gaussian(place - prior.mean[n].numpy(), prior.covariance[n].numpy()))
        places.append(place)
        scores.append(score)
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    mean = weights @ np.array(places)
    offsets = np.array(places) - mean
    return mean, (weights[:, None] * offsets).T @ offsets + np.eye(2) / 12


@pytest.mark.parametrize("with_prior", [True, False])
def test_looking_equals_the_naive_loop(with_prior: bool, generator: torch.Generator) -> None:
    glyph, guess = random_glyph(generator), random_place(generator, 2, 3)
    prior = random_place(generator, 2, 3) if with_prior else None
    frames = (torch.rand(2, HEIGHT, WIDTH, generator=generator) < 0.3).double()
    present = torch.tensor([[True, True, True], [True, True, False]])
    found = look(glyph, frames, guess, prior, present, WINDOW)
    for b, n in present.nonzero().tolist():
        one = Place(*(part[b] for part in guess))
        its_prior = None if prior is None else Place(*(part[b] for part in prior))
        mean, covariance = naive_look(
            glyph, frames[b].numpy(), one, its_prior, present[b].tolist(), n
        )
        # The variance of a cell, 1/12, is kept in float32: an error of 2e-9.
        np.testing.assert_allclose(found.mean[b, n].numpy(), mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.covariance[b, n].numpy(), covariance, rtol=1e-7, atol=1e-8)


def test_the_gain_of_a_lit_pixel_is_what_the_object_adds_to_its_log_probability() -> None:
    depth, background = (torch.tensor(d, dtype=torch.float64) for d in ([[0.7]], 0.1))
    glyph = Glyph.of(depth, background, torch.tensor(1.0).double())
    expected = np.log((1 - np.exp(-0.8)) / (1 - np.exp(-0.1)))
    assert float(glyph.lit_gain) == pytest.approx(expected, rel=1e-12)


def test_shares_of_a_pixel_sum_to_one_over_present_objects(generator: torch.Generator) -> None:
    guess = random_place(generator, 2, 3)
    present = torch.tensor([[True, True, True], [False, True, True]])
    x, y = (torch.arange(length).expand(2, 3, -1) for length in (WIDTH, WIDTH))
    share = _responsibility(random_glyph(generator), guess, present, x, y)  # one window for all
    torch.testing.assert_close(share.sum(1), torch.ones_like(share[:, 0]), rtol=0, atol=1e-12)
    assert (share[1, 0] == 0).all()
    assert share[0].std() > 0.1


DISK = (torch.arange(-3, 4)[:, None].square() + torch.arange(-3, 4).square() <= 4).double()


def disk_glyph() -> Glyph:
    """The paper's ball: the 13 pixels within a distance of 2."""
    depth = 4 * DISK + 1e-3
    return Glyph.of(depth, torch.tensor(0.01).double(), torch.tensor(1.0).double())


def frame_with(places: list[tuple[int, int]], size: int = 24) -> torch.Tensor:
    frame = torch.zeros(1, size + 6, size + 6, dtype=torch.float64)
    for x, y in places:
        frame[0, y : y + 7, x : x + 7] = frame[0, y : y + 7, x : x + 7].maximum(DISK)
    return frame[:, 3:-3, 3:-3]


def test_separated_disks_are_found_from_left_to_right() -> None:
    places = [(20, 5), (4, 18), (12, 11)]
    found = detect(disk_glyph(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[4, 18], [12, 11], [20, 5]]


def test_touching_disks_and_disks_at_the_border_are_found() -> None:
    places = [(1, 10), (5, 11), (22, 23)]
    found = detect(disk_glyph(), frame_with(places), torch.tensor([3]), slots=3)
    assert found[0].tolist() == [[1, 10], [5, 11], [22, 23]]


def test_spare_slots_come_last() -> None:
    frame = frame_with([(20, 5), (4, 18)])
    frame[0, 18, 3:6] = 0  # a ball of which less is seen is found later
    for count, expected in ((2, [[4, 18], [20, 5]]), (1, [[20, 5], [4, 18]])):
        found = detect(disk_glyph(), frame, torch.tensor([count]), slots=2)
        assert found[0].tolist() == expected
