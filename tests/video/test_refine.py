"""Fits at the full resolution of a recording."""

import numpy as np
import pytest

from motes.video.refine import (
    correlation_factor,
    fit_patches,
    learn_template,
    refine_positions,
    roughness,
)

SIZE, RADIUS, FRAMES = 120, 6.0, 24


def recording(noise=4.0, seed=0, objects=2, shape=1.0):
    """Return frames of soft disks on a texture, the true centres and rough detections."""
    draw = np.random.default_rng(seed)
    # In lanes, and fast: a place is covered in fewer than half of the frames.
    first = np.stack((draw.uniform(12, 20, objects), 30 + 60 * np.arange(objects)), 1)[:, None]
    speed = np.stack((draw.uniform(3, 3.8, objects), draw.uniform(-0.4, 0.4, objects)), 1)[:, None]
    truth = first + speed * np.arange(FRAMES)[None, :, None]
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    texture = 60 + 15 * np.sin(x / 9) * np.cos(y / 7)
    frames = []
    for t in range(FRAMES):
        image = texture.copy()
        for cx, cy in truth[:, t]:
            cover = (RADIUS + 0.5 - np.hypot((x - cx) / shape, y - cy)).clip(0, 1)
            image += cover * (190 - image)
        image += noise * draw.standard_normal(image.shape)
        frames.append(np.repeat(np.rint(image.clip(0, 255)).astype(np.uint8)[..., None], 3, 2))
    rough = truth + 0.8 * draw.standard_normal(truth.shape)
    return frames, truth, rough


def refine(frames, rough, seen=None):
    covariances = np.broadcast_to(0.64 * np.eye(2), (*rough.shape[:2], 2, 2))
    seen = np.ones(rough.shape[:2], dtype=bool) if seen is None else seen
    return refine_positions(lambda: iter(frames), rough, covariances, seen, RADIUS, 4.0)


def test_fits_are_close_and_their_regions_hold():
    errors, distances = [], []
    for seed in range(4):
        frames, truth, rough = recording(seed=seed)
        found = refine(frames, rough)
        assert found.fitted.mean() > 0.8
        error = (found.positions - truth)[found.fitted]
        covariances = found.covariances[found.fitted]
        errors.append(error)
        distances.append((error * np.linalg.solve(covariances, error[..., None])[..., 0]).sum(-1))
    error = np.concatenate(errors)
    assert np.sqrt((error**2).sum(-1).mean()) < 0.1
    inside = (np.concatenate(distances) < -2 * np.log(0.1)).mean()
    # About 150 fits: 3 standard errors of .9 are .07.
    assert 0.8 < inside <= 1


def test_rows_that_are_not_seen_or_do_not_fit_keep_what_they_had():
    frames, _, rough = recording()
    seen = np.ones(rough.shape[:2], dtype=bool)
    seen[0, 3] = False
    away = rough.copy()
    away[1, 5] = (5.0, 5.0)  # nothing is there
    found = refine(frames, away, seen)
    assert not found.fitted[0, 3]
    assert not found.fitted[1, 5]
    kept = ~found.fitted
    assert np.array_equal(found.positions[kept], away[kept])
    assert np.allclose(found.covariances[kept], 0.64 * np.eye(2))


def test_fits_that_make_paths_rougher_are_dropped():
    """Disks whose shading wanders: the picture moves, the disks do not."""
    frames, truth, _ = recording(noise=0)
    draw = np.random.default_rng(3)
    wandering = truth + 1.5 * draw.standard_normal(truth.shape)
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    for t, frame in enumerate(frames):
        for cx, cy in wandering[:, t]:
            spot = np.hypot(x - cx, y - cy) < 3
            frame[spot] = 255
        frame[frame < 255] //= 4
    found = refine(frames, truth)
    assert not found.fitted.any()
    assert np.array_equal(found.positions, truth)


def test_roughness_is_that_of_the_noise():
    draw = np.random.default_rng(0)
    t = np.arange(4000.0)
    path = np.stack((3 * t, 0.01 * t**2), 1)[None]
    used = np.ones((1, len(t)), bool)
    assert roughness(path, used) < 1e-6
    # Third differences of unit noise have variance 20; the median of a Rayleigh length is 1.177 sd.
    noisy = roughness(path + draw.standard_normal(path.shape), used)
    assert noisy == pytest.approx(1.177 * np.sqrt(20), rel=0.1)
    assert roughness(path, np.arange(len(t))[None] % 4 > 0) == 0


def test_objects_of_another_shape_are_found_by_their_own_picture():
    frames, truth, rough = recording(shape=1.6)
    found = refine(frames, rough)
    error = (found.positions - truth)[found.fitted]
    assert np.sqrt((error**2).sum(-1).mean()) < 0.12


def test_a_fit_equals_the_search_over_a_fine_grid():
    y, x = np.mgrid[-8:9, -8:9].astype(float)

    def blob(cx, cy):
        return np.exp(-0.5 * ((x - cx) ** 2 + (y - cy) ** 2) / 4)

    draw = np.random.default_rng(0)
    patch = 0.1 + 0.7 * blob(0.6, -0.4) + 0.02 * draw.standard_normal(x.shape)
    ones = np.ones((1, 17, 17))
    fit = fit_patches(patch[None], ones, np.zeros((1, 2)), blob(0, 0))
    grid = [(a, b) for a in np.arange(0.4, 0.8, 0.01) for b in np.arange(-0.6, -0.2, 0.01)]

    def cost(place):
        design = np.stack((np.ones(289), blob(*place).ravel()), 1)
        return np.linalg.lstsq(design, patch.ravel(), rcond=None)[1][0]

    assert fit.shifts[0] == pytest.approx(min(grid, key=cost), abs=0.01)
    assert np.sqrt(fit.variance[0]) == pytest.approx(0.02, rel=0.15)


def test_templates_are_centred_and_correlated_residuals_widen():
    frames, truth, _ = recording(noise=0.0)
    patches = []
    shifts = []
    for t in range(0, FRAMES, 2):
        cx, cy = truth[0, t]
        column, row = round(cx), round(cy)
        patches.append(frames[t][row - 10 : row + 11, column - 10 : column + 11, 0] / 255)
        shifts.append((cx - column, cy - row))
    patches = np.stack(patches)
    template = learn_template(patches, np.ones_like(patches), np.array(shifts))
    shape = template > (template.min() + template.max()) / 2
    assert np.argwhere(shape).mean(0) == pytest.approx((10, 10), abs=0.3)
    draw = np.random.default_rng(0)
    white = draw.standard_normal((50, 21, 21))
    smooth = white + np.roll(white, 1, 1) + np.roll(white, 1, 2)
    assert correlation_factor(white, np.ones_like(white), template) < 1.3
    assert correlation_factor(smooth, np.ones_like(white), template) > 2
