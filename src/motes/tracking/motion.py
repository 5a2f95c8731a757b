"""Laws of motion of tracked objects, and a Kalman filter and smoother for many of them at once.

States are (x, y, vx, vy) in pixels and frames. Every object follows one of K laws: a random walk,
or a ballistic flight with a constant acceleration and small kicks. Tracks start and end at
different frames; those of equal age are processed together.
"""

from dataclasses import dataclass, replace

import numpy as np

from motes.tracking.sprite import Array

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True, eq=False)
class Laws:
    """K linear Gaussian laws: h_t = A h_{t-1} + u + N(0, Q), first velocities ~ N(m, V).

    Attributes:
        transition: A, [K, 4, 4].
        force: u, [K, 4].
        noise: Q, [K, 4, 4].
        velocity: m, [K, 2].
        velocity_cov: V, [K, 2, 2].
        weights: prior probability of each law, [K].
    """

    transition: Array
    force: Array
    noise: Array
    velocity: Array
    velocity_cov: Array
    weights: Array

    def __len__(self) -> int:
        return len(self.weights)

    def powers(self, steps: int) -> "Laws":
        """Return the laws over several frames."""
        transition, force, noise = self.transition, self.force, self.noise
        for _ in range(steps - 1):
            force = np.einsum("kij,kj->ki", self.transition, force) + self.force
            noise = self.transition @ noise @ self.transition.transpose(0, 2, 1) + self.noise
            transition = self.transition @ transition
        return replace(self, transition=transition, force=force, noise=noise)

    def scaled(self, factor: float) -> "Laws":
        """Return the laws where lengths are multiplied by a factor."""
        square = factor**2
        return replace(
            self, force=factor * self.force, noise=square * self.noise,
            velocity=factor * self.velocity, velocity_cov=square * self.velocity_cov,
        )  # fmt: skip


def two_laws(step: float, speed: float, kick: float) -> Laws:
    """Return a walk with this step and flights with this speed and kick (standard deviations)."""
    eye, zero = np.eye(2), np.zeros((2, 2))
    walk = np.block([[eye, zero], [zero, zero]])
    flight = np.block([[eye, eye], [zero, eye]])
    noise = np.zeros((2, 4, 4))
    noise[0] = np.diag((step**2, step**2, 1e-9, 1e-9))
    noise[1] = np.diag((kick**2 / 3, kick**2 / 3, kick**2, kick**2))
    return Laws(
        np.stack((walk, flight)),
        np.zeros((2, 4)),
        noise,
        np.zeros((2, 2)),
        np.stack((1e-9 * eye, speed**2 * eye)),
        np.array((0.5, 0.5)),
    )


def start(laws: Laws, positions: Array, covariances: Array) -> tuple[Array, Array]:
    """Return state means [n, K, 4] and covariances of objects first seen at these positions."""
    count, kinds = len(positions), len(laws)
    mean = np.zeros((count, kinds, 4))
    mean[:, :, :2] = positions[:, None]
    mean[:, :, 2:] = laws.velocity
    cov = np.zeros((count, kinds, 4, 4))
    cov[:, :, :2, :2] = covariances[:, None]
    cov[:, :, 2:, 2:] = laws.velocity_cov
    return mean, cov


def predict(laws: Laws, mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return the states one step of the laws later."""
    moved = np.einsum("kij,nkj->nki", laws.transition, mean) + laws.force
    spread = laws.transition @ cov @ laws.transition.transpose(0, 2, 1) + laws.noise
    return moved, spread


def innovation(
    mean: Array, cov: Array, positions: Array, covariances: Array
) -> tuple[Array, Array, Array]:
    """Return log densities [n, K] of positions, innovations and inverse innovation covariances."""
    off = positions[:, None] - mean[..., :2]
    total = cov[..., :2, :2] + covariances[:, None]
    a, b, d = total[..., 0, 0], total[..., 0, 1], total[..., 1, 1]
    det = np.maximum(a * d - b * b, 1e-300)
    inverse = np.empty_like(total)
    inverse[..., 0, 0], inverse[..., 1, 1] = d / det, a / det
    inverse[..., 0, 1] = inverse[..., 1, 0] = -b / det
    square = np.einsum("nki,nkij,nkj->nk", off, inverse, off)
    return -0.5 * square - LOG_2PI - 0.5 * np.log(det), off, inverse


def update(
    mean: Array, cov: Array, positions: Array, covariances: Array
) -> tuple[Array, Array, Array]:
    """Return states given positions with these covariances, and log densities [n, K]."""
    density, off, inverse = innovation(mean, cov, positions, covariances)
    gain = cov[..., :, :2] @ inverse
    mean = mean + np.einsum("nkij,nkj->nki", gain, off)
    cov = cov - gain @ cov[..., :2, :]
    return mean, 0.5 * (cov + cov.swapaxes(-1, -2)), density


@dataclass(frozen=True, eq=False)
class Spans:
    """Frames of many tracks in one table, ordered by age, then by length.

    Attributes:
        track: of each row, [rows].
        frame: of each row.
        bounds: rows of age a are bounds[a] to bounds[a + 1]; the tracks of age a + 1 are the first
            ones of age a.
        order: tracks by decreasing length.
    """

    track: Array
    frame: Array
    bounds: Array
    order: Array


def spans(first: Array, last: Array) -> Spans:
    """Return the table of tracks that last from frame `first` to frame `last`, [n] each."""
    length = last - first + 1
    order = np.argsort(-length, kind="stable")
    longest = int(length.max(initial=0))
    alive = np.searchsorted(-length[order], -np.arange(longest), side="left")
    bounds = np.concatenate(([0], np.cumsum(alive)))
    age = np.repeat(np.arange(longest), alive)
    rank = np.arange(len(age)) - bounds[age]
    track = order[rank]
    return Spans(track, first[track] + age, bounds, order)


@dataclass(frozen=True, eq=False)
class Paths:
    """Smoothed states of the rows of `Spans`.

    Attributes:
        mean: [rows, K, 4].
        cov: [rows, K, 4, 4].
        density: log density of each detection given the earlier ones, [rows, K]; 0 without one.
        weights: probabilities of the laws given all detections of the track, [n, K].
        log_density: of all detections of a track but the first, [n, K].
    """

    mean: Array
    cov: Array
    density: Array
    weights: Array
    log_density: Array


def smooth(
    table: Spans,
    laws: Laws,
    detected: Array,
    positions: Array,
    covariances: Array,
) -> Paths:
    """Return smoothed states in every row, given detections in some of them.

    The first row of every track has a detection; before it, its position may be anywhere.

    Law: equals the dense posterior (test_smoothing_many_tracks_equals_the_dense_posterior).

    Args:
        table: rows.
        laws: of motion.
        detected: which rows have a detection, [rows].
        positions: of the detections, [rows, 2].
        covariances: of the detections, [rows, 2, 2].
    """
    rows, kinds = len(table.track), len(laws)
    mean, cov = np.empty((rows, kinds, 4)), np.empty((rows, kinds, 4, 4))
    before_mean, before_cov = np.empty_like(mean), np.empty_like(cov)
    density = np.zeros((rows, kinds))
    bounds = table.bounds
    count = bounds[1] if len(bounds) > 1 else 0
    m, p = start(laws, positions[:count], covariances[:count])
    for age in range(len(bounds) - 1):
        low, high = bounds[age], bounds[age + 1]
        size = high - low
        if age:
            m, p = predict(laws, m[:size], p[:size])
            before_mean[low:high], before_cov[low:high] = m, p
            seen = np.flatnonzero(detected[low:high])
            rows_seen = low + seen
            m, p = m.copy(), p.copy()
            m[seen], p[seen], density[rows_seen] = update(
                m[seen], p[seen], positions[rows_seen], covariances[rows_seen]
            )
        mean[low:high], cov[low:high] = m, p
    total = np.zeros((len(table.order), kinds))
    np.add.at(total, table.track, density)
    for age in range(len(bounds) - 2, 0, -1):
        low, high = bounds[age], bounds[age + 1]
        past = slice(bounds[age - 1], bounds[age - 1] + high - low)
        gain = _smoother_gain(cov[past], laws.transition, before_cov[low:high])
        off = mean[low:high] - before_mean[low:high]
        mean[past] += np.einsum("nkij,nkj->nki", gain, off)
        change = cov[low:high] - before_cov[low:high]
        cov[past] += gain @ change @ gain.swapaxes(-1, -2)
    logits = total + np.log(np.maximum(laws.weights, 1e-12))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return Paths(mean, cov, density, weights, total)


def _smoother_gain(cov: Array, transition: Array, before: Array) -> Array:
    gain: Array = np.linalg.solve(before, transition @ cov).swapaxes(-1, -2)
    return gain


def backwards(laws: Laws) -> Laws:
    """Return the laws in reversed time: where an object was a frame before."""
    inverse = laws.transition.copy()
    inverse[:, :2, 2:] *= -1
    force = -np.einsum("kij,kj->ki", inverse, laws.force)
    return replace(laws, transition=inverse, force=force)


def mixed(mean: Array, cov: Array, weights: Array) -> tuple[Array, Array]:
    """Return mean and covariance of mixtures over laws, [n, 4] and [n, 4, 4]."""
    centre = np.einsum("nk,nki->ni", weights, mean)
    off = mean - centre[:, None]
    spread = np.einsum("nk,nkij->nij", weights, cov) + np.einsum(
        "nk,nki,nkj->nij", weights, off, off
    )
    return centre, spread
