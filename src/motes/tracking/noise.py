"""Noise of the laws of motion, by maximum likelihood of the detections of given tracks.

EM moves a small noise by a small fraction in each round, because smoothed states already contain
the noise that it is about. The likelihood itself needs a filter only. Its two axes are treated as
independent (a composite likelihood), so that a state has two numbers and one pass serves many
trial values.
"""

from dataclasses import dataclass

import numpy as np

from motes.tracking.motion import LOG_2PI
from motes.tracking.sprite import Array

STEPS = (1.0, 0.3, 0.1)  # of the search, natural logarithms of variances
LOWEST = 1e-6  # pixels^2, smallest variance


@dataclass(frozen=True, eq=False)
class Detections:
    """Detections of N tracks, the longest first, padded to the length L of the longest.

    Attributes:
        lengths: detections of each track, decreasing, [N].
        gaps: frames since the detection before, [N, L].
        positions: [N, L, 2].
        variances: of the positions along each axis, [N, L, 2].
    """

    lengths: Array
    gaps: Array
    positions: Array
    variances: Array


def gather(track: Array, frame: Array, positions: Array, covariances: Array) -> Detections:
    """Return detections [M], ordered by track and frame, as a table of tracks."""
    _, begin, lengths = np.unique(track, return_index=True, return_counts=True)
    order = np.argsort(-lengths, kind="stable")
    begin, lengths = begin[order], lengths[order]
    index = begin[:, None] + np.arange(lengths.max(initial=1))
    index = np.minimum(index, (begin + lengths - 1)[:, None])
    gaps = np.diff(frame[index], axis=1, prepend=frame[begin][:, None])
    return Detections(lengths, gaps, positions[index], covariances[index][..., (0, 1), (0, 1)])


def log_densities(
    found: Detections,
    place: Array,
    speed: Array,
    force: tuple[Array, Array],
    velocity: Array,
    velocity_variance: Array,
) -> Array:
    """Return log densities [P, N] of the detections of each track but the first, for P noises.

    Law: equals the dense Gaussian density (test_axis_densities_equal_dense_gaussians).

    Args:
        found: tracks.
        place: variances of position noise, [P].
        speed: variances of velocity noise, [P].
        force: what a step adds to position and velocity, [2] each.
        velocity: mean of the first velocity, [2].
        velocity_variance: of the first velocity, [2].
    """
    place, speed = place[:, None, None], speed[:, None, None]
    shape = (len(place), len(found.lengths), 2)
    x = np.broadcast_to(found.positions[:, 0], shape)
    v = np.broadcast_to(velocity, shape)
    xx = np.broadcast_to(found.variances[:, 0], shape)
    xv, vv = np.zeros(shape), np.broadcast_to(velocity_variance, shape)
    total = np.zeros(shape[:2])
    for at in range(1, found.gaps.shape[1]):
        size = int(np.searchsorted(-found.lengths, -at, side="left"))
        g = found.gaps[:size, at, None].astype(float)
        once, twice = g * (g - 1) / 2, (g - 1) * g * (2 * g - 1) / 6
        x, v, xx, xv, vv = (part[:, :size] for part in (x, v, xx, xv, vv))
        x = x + g * v + g * force[0] + once * force[1]
        v = v + g * force[1]
        xx = xx + 2 * g * xv + g**2 * vv + g * place + twice * speed
        xv = xv + g * vv + once * speed
        vv = vv + g * speed
        spread = xx + found.variances[:size, at]
        off = found.positions[:size, at] - x
        total[:, :size] -= 0.5 * (off**2 / spread + np.log(spread) + LOG_2PI).sum(2)
        a, b = xx / spread, xv / spread
        x, v = x + a * off, v + b * off
        xx, xv, vv = xx - a * xx, xv - a * xv, vv - b * xv
    return total


def most_likely_noise(
    found: Detections,
    weights: Array,
    first: tuple[float, float],
    force: tuple[Array, Array],
    velocity: Array,
    velocity_variance: Array,
) -> tuple[float, float]:
    """Return the variances of position and velocity noise that maximise the likelihood.

    A search over a grid of five by five around the best values, moved until the best is inside,
    then refined. A velocity noise of 0 stays 0.

    Args:
        found: tracks, in the order of `weights`.
        weights: of the tracks, [N].
        first: values from which to search.
        force: what a step adds to position and velocity, [2] each.
        velocity: mean of the first velocity, [2].
        velocity_variance: of the first velocity, [2].
    """
    moving = first[1] > 0
    best = np.log(np.maximum((first[0], first[1] if moving else 1.0), LOWEST))
    around = np.arange(-2.0, 3.0)
    grid = np.stack(np.meshgrid(around, around if moving else np.zeros(1)), -1).reshape(-1, 2)
    for step in STEPS:
        outside = True
        while outside:
            trials = np.maximum(best + step * grid, np.log(LOWEST))
            place, speed = np.exp(trials).T
            density = log_densities(
                found, place, speed if moving else 0 * speed, force, velocity, velocity_variance
            )
            winner = int((density @ weights).argmax())
            outside = bool(np.abs(grid[winner]).max() == 2) and not np.allclose(
                trials[winner], best
            )
            best = trials[winner]
    place, speed = np.exp(best)
    return float(place), float(speed) if moving else 0.0
