"""Candidates: evidence, peaks, and what is found in drawn frames."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from motes.tracking.detection import (
    Looks,
    amplitude_evidence,
    find_candidates,
    peaks,
)
from motes.tracking.sprite import gaussian_sprite

NOISE = 0.03


@pytest.mark.parametrize(("estimate", "spread"), [(0.5, 0.05), (0.1, 0.05), (0.02, 0.2)])
def test_amplitude_evidence_equals_a_quadrature(estimate: float, spread: float):
    mean, scale = 0.4, 0.1
    with_object, _ = quad(
        lambda a: norm.pdf(estimate, a, spread) * norm.pdf(a, mean, scale), -2, 3, points=(0.4, 0.5)
    )
    expected = np.log(with_object) - norm.logpdf(estimate, 0, spread)
    # What the fit returns: the posterior under the prior.
    precision = 1 / spread**2 + 1 / scale**2
    posterior = (estimate / spread**2 + mean / scale**2) / precision
    found = amplitude_evidence(
        np.array([posterior]), np.array([1 / precision]), np.array([mean]), np.array([scale])
    )
    assert found[0] == pytest.approx(expected, abs=1e-6)  # quad's accuracy


def test_peaks_are_the_pixels_above_all_neighbours():
    random = np.random.default_rng(0)
    values = random.integers(0, 4, (3, 9, 7)).astype(float)  # with ties
    values += 1e-3 * random.random(values.shape)
    frame, row, column = peaks(values, 1.0)
    found = set(zip(frame.tolist(), row.tolist(), column.tolist(), strict=True))
    expected = set()
    for t, y, x in np.ndindex(values.shape):
        patch = values[t, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
        if values[t, y, x] > 1 and values[t, y, x] == patch.max():
            expected.add((t, y, x))
    assert found == expected


def test_equal_neighbours_give_one_peak():
    values = np.zeros((1, 6, 6))
    values[0, 2, 2:4] = 1.0
    assert len(peaks(values, 0.5)[0]) == 1


def test_two_overlapping_spots_are_both_found():
    random = np.random.default_rng(1)
    y, x = np.mgrid[:32, :32]
    truth = np.array([[12.2, 14.7], [15.4, 15.1], [24.0, 5.0]])
    picture = NOISE * random.standard_normal((32, 32))
    for cx, cy in truth:
        picture += 0.5 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * 1.5**2))
    looks = Looks((gaussian_sprite(1.5),), NOISE, (np.array([0.5]), np.array([0.05])))
    matched = looks.matched_filter(32, 32)
    found, residual = find_candidates(picture[None].astype(np.float32), looks, matched)
    strong = found.positions[found.evidence > 10]
    assert len(strong) == 3
    nearest = np.linalg.norm(truth[:, None] - strong, axis=-1).min(1)
    assert nearest.max() < 0.5  # six standard deviations of the closest pair
    assert residual.std() == pytest.approx(NOISE, rel=0.1)
