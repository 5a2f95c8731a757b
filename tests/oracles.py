"""Reference results: the joint Gaussian of all states and positions, by naive loops in numpy.

Of `motes.kalman` only the type `LGSSM` may be imported here.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm

from motes.kalman.model import LGSSM


class Joint(NamedTuple):
    """Moments of h = (h_1 .. h_T) and a = (a_1 .. a_T), flattened frame by frame."""

    state_mean: np.ndarray
    state_cov: np.ndarray
    position_mean: np.ndarray
    position_cov: np.ndarray
    cross_cov: np.ndarray


def one_model(model: LGSSM, lead: tuple[int, ...], index: tuple[int, ...]) -> LGSSM:
    """The model at one index of the broadcast leading axes, as numpy arrays."""
    trailing = (2, 1, 2, 2, 2, 1, 2)
    return LGSSM(
        *(
            field.detach().expand(*lead, *field.shape[field.ndim - own :])[index].numpy()
            for field, own in zip(model, trailing, strict=True)
        )
    )


def joint(model: LGSSM, num_frames: int) -> Joint:
    A, u, B, Q, R, mu, Sigma = model
    D, P, T = len(A), len(B), num_frames
    mean, cov = np.zeros((T, D)), np.zeros((T, D, T, D))
    mean[0], cov[0, :, 0, :] = mu, Sigma
    for t in range(1, T):
        mean[t] = A @ mean[t - 1] + u
        for s in range(t):
            cov[t, :, s, :] = A @ cov[t - 1, :, s, :]
            cov[s, :, t, :] = cov[t, :, s, :].T
        cov[t, :, t, :] = A @ cov[t - 1, :, t - 1, :] @ A.T + Q
    emission, noise = np.zeros((T, P, T, D)), np.zeros((T, P, T, P))
    for t in range(T):
        emission[t, :, t, :], noise[t, :, t, :] = B, R
    H, C = emission.reshape(T * P, T * D), cov.reshape(T * D, T * D)
    m = mean.reshape(-1)
    return Joint(m, C, H @ m, H @ C @ H.T + noise.reshape(T * P, T * P), C @ H.T)


def observed_rows(observed: np.ndarray, num_axes: int) -> np.ndarray:
    return np.flatnonzero(np.repeat(observed, num_axes))


def log_density(model: LGSSM, positions: np.ndarray, observed: np.ndarray) -> float:
    """Unobserved positions are deleted from the problem, not masked."""
    rows = observed_rows(observed, positions.shape[-1])
    if len(rows) == 0:
        return 0.0
    full = joint(model, len(positions))
    residual = (positions.reshape(-1) - full.position_mean)[rows]
    cov = full.position_cov[np.ix_(rows, rows)]
    distance = residual @ np.linalg.solve(cov, residual)
    return -0.5 * (distance + np.linalg.slogdet(cov)[1] + len(rows) * math.log(2 * math.pi))


def gains(model: LGSSM, observed: np.ndarray) -> np.ndarray:
    """d E[h | a] / d a, with zero columns for unobserved positions: [T D, T P]."""
    P = len(model.emission)
    full, rows = joint(model, len(observed)), observed_rows(observed, P)
    gain = np.zeros_like(full.cross_cov)
    cov = full.position_cov[np.ix_(rows, rows)]
    gain[:, rows] = np.linalg.solve(cov, full.cross_cov[:, rows].T).T
    return gain


def posterior(
    model: LGSSM, positions: np.ndarray, observed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean [T, D] and full covariance [T, D, T, D] of the states given observed positions."""
    T, D = len(positions), len(model.transition)
    full, gain = joint(model, T), gains(model, observed)
    a = np.where(np.repeat(observed, positions.shape[-1]), positions.reshape(-1), 0.0)
    mean = full.state_mean + gain @ (a - full.position_mean)
    cov = full.state_cov - gain @ full.cross_cov.T
    return mean.reshape(T, D), cov.reshape(T, D, T, D)


def diagonal_blocks(cov: np.ndarray) -> np.ndarray:
    """[T, D, T, D] -> [T, D, D]."""
    return np.stack([cov[t, :, t, :] for t in range(len(cov))])


def assert_draws_follow(
    draws: torch.Tensor, mean: np.ndarray, cov: np.ndarray, false_alarm_rate: float = 1e-6
) -> None:
    """Sample means and covariances of draws [S, n] of a Gaussian agree with the exact ones.

    A sample mean has variance C_ii / S, an entry of the sample covariance about the true mean
    (C_ii C_jj + C_ij^2) / S; the rate is shared out among all entries (Bonferroni).
    """
    x = draws.numpy() - mean
    S, n = x.shape
    limit = norm.isf(false_alarm_rate / (2 * (n + n * n)))
    variance = np.diag(cov)
    mean_scale = np.sqrt(variance / S)
    cov_scale = np.sqrt((np.outer(variance, variance) + cov**2) / S)
    # Directions without noise have scale 0: they must agree to rounding.
    assert (np.abs(x.mean(0)) <= limit * mean_scale + 1e-9).all()
    assert (np.abs(x.T @ x / S - cov) <= limit * cov_scale + 1e-9).all()
