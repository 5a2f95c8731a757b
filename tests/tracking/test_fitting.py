"""The joint fit of overlapping objects equals a dense fit by another method."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from motes.data.worlds.arrivals import draw_scene
from motes.tracking.appearance import amplitude_ratio, learn_appearance, opaque_level
from motes.tracking.background import look
from motes.tracking.detection import Looks
from motes.tracking.fitting import MAX_CLUSTER, canvas, clusters, fit_objects, overlapping
from motes.tracking.sprite import gaussian_sprite, learn_sprite

NOISE, SCALE = 0.03, 1.5


def draw(positions: np.ndarray, amplitudes: np.ndarray, size: int = 24) -> np.ndarray:
    """Gaussian spots that add up."""
    y, x = np.mgrid[:size, :size]
    picture = np.zeros((size, size))
    for (cx, cy), gain in zip(positions, amplitudes, strict=True):
        picture += gain * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * SCALE**2))
    return picture


@pytest.mark.parametrize("apart", [2.5, 4.0, 9.0])
def test_a_cluster_fit_equals_a_dense_fit(apart: float):
    random = np.random.default_rng(int(10 * apart))
    truth = np.array([[10.3, 11.6], [10.3 + apart, 12.1]])
    gains = np.array([0.5, 0.45])
    picture = draw(truth, gains) + NOISE * random.standard_normal((24, 24))
    sprite = gaussian_sprite(SCALE, reach=2)
    prior = (np.full(2, 0.5), np.full(2, 0.1))
    fit, residual = fit_objects(
        canvas(picture[None], 9), (sprite,), np.zeros(2, int), truth + 0.3, np.full(2, 0.5),
        np.zeros(2, int), NOISE, prior, steps=12,
    )  # fmt: skip

    def misfit(parameters: np.ndarray) -> np.ndarray:
        at, gain = parameters[:4].reshape(2, 2), parameters[4:]
        return np.concatenate(
            (((picture - draw(at, gain)) / NOISE).ravel(), (gain - prior[0]) / prior[1])
        )

    dense = least_squares(misfit, np.concatenate(((truth + 0.3).ravel(), [0.5, 0.5])), xtol=1e-12)
    cov = np.linalg.inv(dense.jac.T @ dense.jac)
    # The sprite is tabulated in steps of 1/8 pixel with first-order corrections, and cut at 4.7
    # standard deviations: relative errors of 1e-3 of its slope, a few thousandths of a pixel.
    np.testing.assert_allclose(fit.positions.ravel(), dense.x[:4], atol=0.01)
    np.testing.assert_allclose(fit.amplitudes, dense.x[4:], atol=0.005)
    for n in range(2):
        own = cov[2 * n : 2 * n + 2, 2 * n : 2 * n + 2]
        np.testing.assert_allclose(fit.covariances[n, :2, :2], own, rtol=0.06, atol=3e-4)
        assert fit.covariances[n, 2, 2] == pytest.approx(cov[4 + n, 4 + n], rel=0.06)
    inner = residual.reshape(42, 42)[9:-9, 9:-9]
    np.testing.assert_allclose(inner, picture - draw(fit.positions, fit.amplitudes), atol=0.01)


def test_a_fit_of_opaque_objects_equals_a_dense_fit():
    """Two soft spots that cover one another, each as bright as the level."""
    random = np.random.default_rng(5)
    truth, gains, level = np.array([[10.3, 11.6], [12.3, 12.1]]), np.array([0.48, 0.47]), 0.5

    def cover(positions: np.ndarray, amplitudes: np.ndarray) -> np.ndarray:
        one, other = (draw(positions[n : n + 1], amplitudes[n : n + 1]) for n in range(2))
        return level * (1 - (1 - one / level) * (1 - other / level))

    picture = cover(truth, gains) + NOISE * random.standard_normal((24, 24))
    prior = (np.full(2, 0.48), np.full(2, 0.03))
    fit, residual = fit_objects(
        canvas(picture[None], 9), (gaussian_sprite(SCALE, reach=2),), np.zeros(2, int),
        truth + 0.2, np.full(2, 0.48), np.zeros(2, int), NOISE, prior, level, steps=20,
    )  # fmt: skip

    def misfit(parameters: np.ndarray) -> np.ndarray:
        at, gain = parameters[:4].reshape(2, 2), parameters[4:]
        return np.concatenate(
            (((picture - cover(at, gain)) / NOISE).ravel(), (gain - prior[0]) / prior[1])
        )

    dense = least_squares(misfit, np.concatenate(((truth + 0.2).ravel(), prior[0])), xtol=1e-12)
    cov = np.linalg.inv(dense.jac.T @ dense.jac)
    # Tolerances as in the fit of objects that add up.
    np.testing.assert_allclose(fit.positions.ravel(), dense.x[:4], atol=0.015)
    np.testing.assert_allclose(fit.amplitudes, dense.x[4:], atol=0.005)
    for n in range(2):
        own = cov[2 * n : 2 * n + 2, 2 * n : 2 * n + 2]
        np.testing.assert_allclose(fit.covariances[n, :2, :2], own, rtol=0.08, atol=1e-4)
    inner = residual.reshape(42, 42)[9:-9, 9:-9]
    np.testing.assert_allclose(inner, picture - cover(fit.positions, fit.amplitudes), atol=0.01)


def test_a_fit_at_the_border_uses_only_pixels_of_the_picture():
    truth = np.array([[0.4, 11.2]])
    picture = draw(truth, np.array([0.5]))
    fit, _ = fit_objects(
        canvas(picture[None], 9), (gaussian_sprite(SCALE, reach=2),), np.zeros(1, int),
        truth + 0.4, np.full(1, 0.4), np.zeros(1, int), NOISE, (np.full(1, 0.5), np.full(1, 0.1)),
        steps=12,
    )  # fmt: skip
    np.testing.assert_allclose(fit.positions, truth, atol=0.01)


def test_clusters_join_objects_of_one_frame_that_overlap():
    frame = np.array([0, 0, 0, 1])
    positions = np.array([[5.0, 5], [8, 5], [40, 40], [5, 5]])
    pairs = overlapping(frame, positions, gaussian_sprite(SCALE))
    assert pairs.tolist() == [[0, 1]]
    groups = clusters(4, pairs)
    assert [group.tolist() for group in groups] == [[[2], [3]], [[0, 1]]]


def test_a_large_cluster_is_divided_and_still_fitted():
    """A row of touching objects longer than MAX_CLUSTER: every object is found to its noise."""
    count = MAX_CLUSTER + 20
    truth = np.column_stack((8 + 4.0 * np.arange(count), np.full(count, 10.25)))
    sprite = gaussian_sprite(SCALE)
    x, y = np.meshgrid(np.arange(4.0 * count + 16), np.arange(20.0))
    square = (x - truth[:, 0, None, None]) ** 2 + (y - truth[:, 1, None, None]) ** 2
    picture = canvas(0.5 * np.exp(-square / (2 * SCALE**2)).sum(0)[None], sprite.half + 1)
    groups = clusters(count, overlapping(np.zeros(count, int), truth, sprite))
    assert sorted(group.shape[1] for group in groups for _ in group) == [20, MAX_CLUSTER]
    prior = (np.full(count, 0.5), np.full(count, 0.1))
    zeros = np.zeros(count, int)
    fit, _ = fit_objects(
        picture, (sprite,), zeros, truth + 0.3, prior[0], zeros, NOISE, prior, steps=12
    )
    np.testing.assert_allclose(fit.positions, truth, atol=0.02)


def test_a_sprite_is_learned_from_noisy_crops():
    random = np.random.default_rng(0)
    half = 6
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    offsets = random.uniform(-0.5, 0.5, (200, 2))
    square = (x - offsets[:, 0, None, None]) ** 2 + (y - offsets[:, 1, None, None]) ** 2
    crops = 0.5 * np.exp(-square / (2 * SCALE**2)) + NOISE * random.standard_normal(square.shape)
    sprite = learn_sprite(crops, offsets, np.full(200, 0.5), half, NOISE)
    expected = gaussian_sprite(SCALE, reach=half - 5).centred
    # Noise: .03 / .5 / sqrt(200 / 16) = .017 in a point of the fine grid before smoothing along
    # circles.
    np.testing.assert_allclose(sprite.centred, expected, atol=0.04)


def test_a_learned_sprite_is_neither_blurred_nor_sharpened():
    """Slopes relative to the norm set stated errors; the grid's blur would lower them by 1.4 %."""
    half, count, noise = 6, 400, 0.06
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    ratios = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        offsets = random.uniform(-0.5, 0.5, (count, 2))
        square = (x - offsets[:, 0, None, None]) ** 2 + (y - offsets[:, 1, None, None]) ** 2
        crops = np.exp(-square / (2 * SCALE**2)) + noise * random.standard_normal(square.shape)
        sprite = learn_sprite(crops, offsets, np.ones(count), half, noise)
        ratios.append(np.square(sprite.slopes[0, 4, 4]).sum() / np.square(sprite.centred).sum())
    exact = gaussian_sprite(SCALE, reach=half - 5)
    expected = np.square(exact.slopes[0, 4, 4]).sum() / np.square(exact.centred).sum()
    # One ratio scatters by 2 %, the mean of twelve by .6 %.
    assert np.mean(ratios) == pytest.approx(expected, rel=0.012)


def test_amplitudes_follow_the_scale_of_a_sprite():
    sprite = gaussian_sprite(SCALE)
    half = replace(sprite, bank=sprite.bank / 2)
    assert amplitude_ratio(sprite, half) == pytest.approx(2.0)
    assert amplitude_ratio(sprite, sprite) == pytest.approx(1.0)


def test_objects_narrower_than_a_pixel_have_no_flat_top():
    """No warning either: pytest turns it into an error."""
    sprite = gaussian_sprite(1.0)
    narrow = replace(sprite, bank=0.7 * sprite.bank)
    looks = Looks((narrow,), NOISE, (np.array((0.5,)), np.array((0.1,))))
    assert opaque_level(NOISE * np.random.default_rng(0).standard_normal((2, 24, 24)), looks) == 0


@pytest.mark.parametrize(("name", "opaque"), [("50 mixed", True), ("50 dense walks", False)])
def test_opaque_objects_are_told_from_objects_that_add_up(name: str, opaque: bool):
    frames = draw_scene(name, 7, 12).frames
    looks = learn_appearance(look(frames)).looks
    assert looks is not None
    assert (looks.level > 0) == opaque
