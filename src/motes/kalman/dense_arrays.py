"""The smoother of short videos in NumPy, whose calls cost a fraction of PyTorch's.

The regression of `motes.kalman.dense.smooth_dense`, with whitened observations. Powers of A are
computed once; all matrices of the regression are made of them.

`smooth_shared` returns None for what this form does not cover: gradients, GPUs, other precisions,
dynamics with batch axes, a mask for each track, and singular covariances.
"""

import math

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dtrtri

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.model import EPSILON, LGSSM, Smoothed

Array = np.ndarray


def smooth_shared(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, " T"] | None,
) -> tuple[Smoothed, Float[Tensor, ""]] | None:
    """Return the smoothed states of tracks that share a mask and their rounding, or None.

    Law: equals the sequential smoother (test_the_numpy_form_equals_the_sequential_smoother).
    """
    T, (P, D) = positions.shape[-2], model.emission.shape[-2:]
    frames = np.arange(T) if observed is None else observed.numpy().nonzero()[0]
    n = len(frames) * P
    if not n:
        return None
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = map(_array, model)
    with np.errstate(all="ignore"):
        powers = _powers(A, T)
        H = _toeplitz(powers).reshape(T * D, T * D)  # M^-1 of `dense`
        R = _toeplitz(B @ powers)[frames].reshape(n, T * D)
        prior_mean, prior = _prior_states(powers, u, Sigma_H, mu, Sigma)

        later = (R.reshape(-1, D) @ Sigma_H).reshape(n, T * D)[:, D:]
        noise = later @ R[:, D:].T
        np.einsum("ipiq->ipq", noise.reshape(len(frames), P, len(frames), P))[...] += Sigma_A
        initial = R[:, :D] @ Sigma
        covariance = initial @ R[:, :D].T + noise
        cross = H[:, :D] @ initial.swapaxes(-1, -2) + H[:, D:] @ later.T
        W = _inverse_cholesky(covariance)
        if W is None:
            return None
        cross = cross @ W.swapaxes(-1, -2)

        rows = (frames[:, None] * P + np.arange(P)).ravel()
        observations = _array(positions).reshape(*positions.shape[:-2], T * P).take(rows, -1)
        expected = (prior_mean @ B.T).reshape(*mu.shape[:-1], T * P).take(rows, -1)
        means = _regression(prior_mean, cross, W, observations - expected)
        per_frame = cross.reshape(*cross.shape[:-2], T, D, n)
        covariances = prior - per_frame @ per_frame.swapaxes(-1, -2)

        reduced = (_diagonal(covariance) * (W * W).sum(-2)).max()
        # Of variances that are zero from the start nothing can cancel.
        ratios = _diagonal(covariances) / _diagonal(prior)
        error = float(EPSILON * reduced / np.fmin.reduce(ratios, axis=None, initial=1.0))
    if not math.isfinite(error):
        return None
    smoothed = torch.from_numpy(means), torch.from_numpy(covariances).expand(*means.shape, D)
    return Smoothed(*smoothed), torch.tensor(error, dtype=torch.float64)


def covers(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
) -> bool:
    """Return whether `smooth_shared` can be used."""
    *dynamics, mu, Sigma = model
    lead = mu.shape[:-1]
    return (
        not positions.is_cuda
        and positions.dtype == torch.float64
        and (observed is None or observed.ndim == 1)
        and all(field.ndim == 1 + (k != 1) for k, field in enumerate(dynamics))
        and len(lead) <= 1
        and Sigma.shape[:-2] == lead
        and (not lead or (positions.ndim == 4 and positions.shape[1] == 1))
        and not (
            torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*model, positions))
        )
    )


def _array(tensor: Tensor) -> Array:
    values: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return values


def _diagonal(matrices: Float[Array, "... n n"]) -> Float[Array, "... n"]:
    values: Array = np.einsum("...ii->...i", matrices)
    return values


def _powers(A: Float[Array, "D D"], num_frames: int) -> Float[Array, "T D D"]:
    """Return I, A, ..., A^(T-1)."""
    D = len(A)
    rows = np.empty((num_frames * D, D))
    rows[:D] = np.eye(D)
    known, step = D, A
    while known < len(rows):
        new = min(known, len(rows) - known)
        np.matmul(rows[:new], step, out=rows[known : known + new])
        known, step = known + new, step @ step
    return rows.reshape(num_frames, D, D)


def _toeplitz(blocks: Float[Array, "T rows D"]) -> Float[Array, "T rows T D"]:
    """Return a view of the block matrix with block t - s in row t and column s <= t, else zeros."""
    T, rows, D = blocks.shape
    padded = np.zeros((2 * T - 1, rows, D))
    padded[T - 1 :] = blocks
    size = padded.itemsize
    block, row = rows * D * size, D * size
    strides, start = (block, row, -block, size), (T - 1) * block
    return np.ndarray((T, rows, T, D), buffer=padded, offset=start, strides=strides)


def _inverse_cholesky(covariance: Float[Array, "... n n"]) -> Float[Array, "... n n"] | None:
    """Return W with W C W' = I for each matrix C, None if one is not positive definite."""
    flat = covariance.reshape(-1, *covariance.shape[-2:])
    W = np.empty_like(flat)
    for number, matrix in enumerate(flat):
        factor, failed = dpotrf(matrix, lower=1, clean=1)
        if failed:
            return None
        W[number], _ = dtrtri(factor, lower=1)
    return W.reshape(covariance.shape)


def _prior_states(
    powers: Float[Array, "T D D"],
    u: Float[Array, " D"],
    Sigma_H: Float[Array, "D D"],
    mu: Float[Array, "... D"],
    Sigma: Float[Array, "... D D"],
) -> tuple[Float[Array, "... T D"], Float[Array, "... T D D"]]:
    """Return the prior mean and covariance of every state, as in `motes.kalman.dense`."""
    T, D, _ = powers.shape
    rows, transposed = powers.reshape(T * D, D), powers.swapaxes(-1, -2)
    forces = (rows @ u).reshape(T, D)
    noises = (rows @ Sigma_H).reshape(T, D, D) @ transposed
    first = (mu @ rows.T).reshape(*mu.shape[:-1], T, D)
    spread = (rows @ Sigma).reshape(*Sigma.shape[:-2], T, D, D) @ transposed
    # Sums over s < t: up to t, less t itself.
    return first + (forces.cumsum(0) - forces), spread + (noises.cumsum(0) - noises)


def _regression(
    mean: Float[Array, "... T D"],
    cross: Float[Array, "... TD n"],
    W: Float[Array, "... n n"],
    residual: Float[Array, "... n"],
) -> Float[Array, "... T D"]:
    """Return mean + cross W residual, for all tracks of each component at once."""
    frames, flat = mean.shape[-2:], mean.reshape(*mean.shape[:-2], -1)
    if mean.ndim == 2:
        alone: Array = flat + residual @ W.T @ cross.T
        return alone.reshape(*residual.shape[:-1], *frames)
    whitened = residual.swapaxes(0, 1) @ W.swapaxes(-1, -2)
    means: Array = whitened @ cross.swapaxes(-1, -2)
    means += flat[:, None]
    return means.reshape(*means.shape[:-1], *frames).swapaxes(0, 1)
