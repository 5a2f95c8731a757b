"""Noise of the laws by maximum likelihood, against dense Gaussians and simulated tracks."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from motes.tracking.detection import Candidates
from motes.tracking.existence import Rates
from motes.tracking.learning import rebirth_weights
from motes.tracking.motion import Laws, smooth, spans, two_laws
from motes.tracking.noise import gather, log_densities, most_likely_noise

FORCE = (np.array((0.01, -0.02)), np.array((0.0, 0.08)))
VELOCITY, VARIANCE = np.array((0.3, -0.1)), np.array((1.5, 2.0))


def dense_log_density(
    laws: Laws, k: int, frames: np.ndarray, positions: np.ndarray, covariances: np.ndarray
) -> float:
    """Log density of all positions but the first, from their joint Gaussian under one law."""
    a = laws.transition[k]
    mean = np.concatenate((positions[0], laws.velocity[k]))
    cov = np.zeros((4, 4))
    cov[:2, :2], cov[2:, 2:] = covariances[0], laws.velocity_cov[k]
    means, blocks = [mean], {(0, 0): cov}
    length = int(frames[-1] - frames[0]) + 1
    for t in range(1, length):
        means.append(a @ means[-1] + laws.force[k])
        for s in range(t):
            blocks[t, s] = a @ blocks[t - 1, s] if t - 1 >= s else blocks[s, t].T
        blocks[t, t] = a @ blocks[t - 1, t - 1] @ a.T + laws.noise[k]
    at = frames[1:] - frames[0]
    joint = np.block(
        [[(blocks[i, j] if i >= j else blocks[j, i].T)[:2, :2] for j in at] for i in at]
    )
    for n, r in enumerate(covariances[1:]):
        joint[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] += r
    centre = np.concatenate([means[t][:2] for t in at])
    return float(multivariate_normal(centre, joint).logpdf(positions[1:].ravel()))


def flight_laws(place: float, speed: float) -> Laws:
    laws = two_laws(0.7, 1.0, 0.1)
    laws.force[1] = np.concatenate(FORCE)
    laws.velocity[1], laws.velocity_cov[1] = VELOCITY, np.diag(VARIANCE)
    laws.noise[1] = np.diag((place, place, speed, speed))
    return laws


def test_axis_densities_equal_dense_gaussians():
    random = np.random.default_rng(0)
    frames = [np.array((2, 3, 6, 7)), np.array((0, 1, 2)), np.array((4, 9))]
    positions = [random.normal(0, 2, (len(part), 2)) for part in frames]
    covariances = [
        np.stack([np.diag(row) for row in random.uniform(0.1, 0.5, (len(part), 2))])
        for part in frames
    ]
    track = np.repeat(np.arange(3), [len(part) for part in frames])
    found = gather(
        track, np.concatenate(frames), np.concatenate(positions), np.concatenate(covariances)
    )
    place, speed = np.array((0.01, 0.3)), np.array((0.2, 0.05))
    densities = log_densities(found, place, speed, FORCE, VELOCITY, VARIANCE)
    for p in range(2):
        laws = flight_laws(place[p], speed[p])
        for n in range(3):
            dense = dense_log_density(laws, 1, frames[n], positions[n], covariances[n])
            assert densities[p, n] == pytest.approx(dense, abs=1e-9)


def test_the_noise_of_simulated_flights_is_recovered():
    """The kicks are a seventh of the error of a detection: EM needs hundreds of rounds here."""
    random = np.random.default_rng(1)
    kick, error, length, count = 0.02, 0.15, 40, 150
    velocity = VELOCITY + np.sqrt(VARIANCE) * random.standard_normal((count, 2))
    place, paths = np.zeros((count, 2)), []
    for _ in range(length):
        paths.append(place + error * random.standard_normal((count, 2)))
        place = place + velocity + FORCE[0]
        velocity = velocity + FORCE[1] + kick * random.standard_normal((count, 2))
    positions = np.stack(paths, 1).reshape(-1, 2)
    found = gather(
        np.repeat(np.arange(count), length), np.tile(np.arange(length), count), positions,
        np.broadcast_to(error**2 * np.eye(2), (count * length, 2, 2)),
    )  # fmt: skip
    start = (0.09**2, 0.09**2)
    _, speed = most_likely_noise(found, np.ones(count), start, FORCE, VELOCITY, VARIANCE)
    # 300 paths of 40 frames tell a standard deviation to 3 %; the search stops at steps of 5 %.
    assert np.sqrt(speed) == pytest.approx(kick, rel=0.12)


def test_rebirth_weights_equal_dense_densities():
    """A gap of three frames: the later detections may be of a new object."""
    random = np.random.default_rng(2)
    laws, rates = flight_laws(0.01, 0.02), Rates(birth=0.003, density=0.1)
    frames = np.array((0, 1, 2, 6, 7, 8))
    positions = np.cumsum(random.normal(0.2, 0.4, (6, 2)), 0)
    covariances = np.stack([np.diag(row) for row in random.uniform(0.1, 0.4, (6, 2))])
    none = np.zeros(9)
    other = random.normal(40, 1, (3, 2))  # a track without a gap, frames 0 to 2
    candidates = Candidates(
        np.concatenate((frames, np.arange(3))), np.concatenate((positions, other)),
        np.concatenate((covariances, covariances[:3])), none, none, none.astype(int),
    )  # fmt: skip
    table = spans(np.array([0, 0]), np.array([2, 8]))
    candidate = np.full(len(table.track), -1)
    for track, entries in ((0, np.arange(6, 9)), (1, np.arange(6))):
        for entry in entries:
            at = (table.track == track) & (table.frame == candidates.frame[entry])
            candidate[at] = entry
    paths = smooth(
        table, laws, candidate >= 0, candidates.positions[candidate],
        candidates.covariances[candidate],
    )  # fmt: skip
    found = rebirth_weights(candidates, candidate, table, paths, laws, rates)

    def mixture(part: slice) -> float:
        return float(
            np.logaddexp.reduce(
                [
                    np.log(laws.weights[k])
                    + dense_log_density(laws, k, frames[part], positions[part], covariances[part])
                    for k in range(2)
                ]
            )
        )

    together = mixture(slice(0, 6)) - mixture(slice(0, 3))
    expected = rates.birth * rates.showing * np.exp(mixture(slice(3, 6)) - together)
    assert found[(table.track == 1) & (table.frame == 6)] == pytest.approx(expected, rel=1e-6)
    assert np.count_nonzero(found) == 1
