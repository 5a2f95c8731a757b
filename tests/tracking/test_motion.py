"""The filter of many tracks equals dense Gaussian conditioning."""

import numpy as np
import pytest

from motes.tracking.motion import mixed, smooth, spans, two_laws

LAWS = two_laws(0.7, 2.0, 0.05)


def dense_posterior(
    k: int, detections: dict[int, np.ndarray], covariances: dict[int, np.ndarray], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of all states, from the joint Gaussian of a track under one law."""
    a, q = LAWS.transition[k], LAWS.noise[k]
    prior_mean = np.zeros(4 * length)
    prior_cov = np.zeros((4 * length, 4 * length))
    mean = np.concatenate((detections[0], LAWS.velocity[k]))
    cov = np.zeros((4, 4))
    cov[:2, :2], cov[2:, 2:] = covariances[0], LAWS.velocity_cov[k]
    blocks = np.zeros((length, length, 4, 4))
    for t in range(length):
        if t:
            mean, cov = a @ mean + LAWS.force[k], a @ cov @ a.T + q
        prior_mean[4 * t : 4 * t + 4] = mean
        blocks[t, t] = cov
        for later in range(t + 1, length):
            blocks[later, t] = np.linalg.matrix_power(a, later - t) @ cov
            blocks[t, later] = blocks[later, t].T
    prior_cov = blocks.transpose(0, 2, 1, 3).reshape(4 * length, 4 * length)
    times = [t for t in detections if t]
    rows = np.concatenate([[4 * t, 4 * t + 1] for t in times])
    noise = np.zeros((len(rows), len(rows)))
    for n, t in enumerate(times):
        noise[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] = covariances[t]
    values = np.concatenate([detections[t] for t in times])
    gain = prior_cov[:, rows] @ np.linalg.inv(prior_cov[np.ix_(rows, rows)] + noise)
    mean = prior_mean + gain @ (values - prior_mean[rows])
    cov = prior_cov - gain @ prior_cov[rows]
    return mean.reshape(length, 4), cov.reshape(length, 4, length, 4)


def test_smoothing_many_tracks_equals_the_dense_posterior():
    random = np.random.default_rng(3)
    first, last = np.array([2, 0, 5]), np.array([8, 4, 6])
    table = spans(first, last)
    detected = (random.random(len(table.track)) < 0.6) | (table.frame == first[table.track])
    detected |= table.frame == last[table.track]
    positions = random.normal(0, 3, (len(table.track), 2))
    roots = random.normal(0, 0.3, (len(table.track), 2, 2))
    covariances = roots @ roots.swapaxes(1, 2) + 0.05 * np.eye(2)
    found = smooth(table, LAWS, detected, positions, covariances)
    for track in range(3):
        rows = np.flatnonzero(table.track == track)
        rows = rows[np.argsort(table.frame[rows])]
        seen = {int(t): positions[row] for t, row in enumerate(rows) if detected[row]}
        spread = {t: covariances[rows[t]] for t in seen}
        for k in range(2):
            mean, cov = dense_posterior(k, seen, spread, len(rows))
            # Inverses of matrices with condition numbers up to 1e9 (velocities of a walk are 0).
            np.testing.assert_allclose(found.mean[rows, k, :2], mean[:, :2], atol=1e-6)
            for t, row in enumerate(rows):
                np.testing.assert_allclose(found.cov[row, k, :2, :2], cov[t, :2, t, :2], atol=1e-6)


def test_rows_of_spans_follow_their_tracks():
    table = spans(np.array([3, 0, 7]), np.array([5, 4, 7]))
    pairs = sorted(zip(table.track.tolist(), table.frame.tolist(), strict=True))
    assert pairs == [(0, 3), (0, 4), (0, 5), *((1, t) for t in range(5)), (2, 7)]
    for age in range(1, len(table.bounds) - 1):
        here = table.track[table.bounds[age] : table.bounds[age + 1]]
        before = table.track[table.bounds[age - 1] :][: len(here)]
        assert here.tolist() == before.tolist()


def test_a_mixture_has_the_variance_between_its_parts():
    mean = np.array([[[0.0, 0, 0, 0], [2, 0, 0, 0]]])
    centre, cov = mixed(mean, np.zeros((1, 2, 4, 4)), np.array([[0.5, 0.5]]))
    assert centre[0, 0] == pytest.approx(1.0)
    assert cov[0, 0, 0] == pytest.approx(1.0)
