"""Filter and smoother of few long tracks in NumPy, whose calls cost a fraction of PyTorch's.

The recursions of `motes.kalman.sequential`. Covariances depend on the model and the mask alone:
they are computed once for each distinct mask, and only the means for each track. Operations without
a recursion are done for all frames at once.

`few_tracks` returns None for what this form does not cover: gradients, GPUs, other precisions,
models whose matrices have batch axes, batches of many tracks, and singular covariances.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import EPSILON, LGSSM, Smoothed

Array = np.ndarray
MAX_TRACKS = 512  # tracks times components; PyTorch is as fast for more
MAX_STATES = 2**13  # of all tracks, components and frames, which bounds memory: 1 kB each
MAX_JOINS = 2**15  # of all pairs of tracks and frames, likewise


class Tracks(NamedTuple):
    """M tracks, the K models of their motion, and their distinct masks."""

    model: LGSSM  # of arrays; the initial state has an axis K
    positions: Float[Array, "M T P"]  # zero where unobserved
    masks: Bool[Array, "U T"]
    which: Int[Array, " M"]  # the mask of each track
    lead: tuple[int, ...]  # leading axes of the result, K among them if the model has it


class Pass(NamedTuple):
    """The forward pass, time first; covariances and gains for each mask, means for each track."""

    gain: Float[Array, "T U K D P"]
    predicted: Float[Array, "T U K D D"]
    filtered: Float[Array, "T U K D D"]
    predicted_mean: Float[Array, "T M K D"]
    mean: Float[Array, "T M K D"]
    log_density: Float[Array, "T M K"]


class FewTracks(NamedTuple):
    """What `few_tracks` returns."""

    smoothed: Smoothed
    log_likelihood: Float[Tensor, "..."]
    rounding: Float[Tensor, ""]  # estimate of the error of variances, relative to them


def few_tracks(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    variances: Float[Tensor, "... T P"] | None = None,
) -> FewTracks | None:
    """Return smoothed states and the log density of the positions, or None.

    Law: equals the sequential smoother and the filter's density
    (test_few_tracks_equal_the_sequential_smoother).
    """
    tracks = _tracks_of(model, positions, observed)
    if tracks is None:
        return None
    with np.errstate(all="ignore"):
        try:
            forward = _filter(tracks)
            inverse = np.linalg.inv(forward.predicted[1:])
        except np.linalg.LinAlgError:
            return None
        V = None
        if variances is not None:
            shape = (*positions.shape[:-2], *variances.shape[-2:])
            V = variances.expand(shape).reshape(tracks.positions.shape).numpy()
        means, covariances, error = _smooth(tracks, forward, inverse, V)
        error = max(error, _filter_rounding(tracks.model, forward))
    if not math.isfinite(error):
        return None
    T, D = means.shape[0], means.shape[-1]
    shape = (*tracks.lead, T, D)
    smoothed = Smoothed(
        torch.from_numpy(np.moveaxis(means, 0, 2).reshape(shape)),
        torch.from_numpy(np.moveaxis(covariances, 0, 2).reshape(*shape, D)),
    )
    total = torch.from_numpy(forward.log_density.sum(0).reshape(tracks.lead))
    return FewTracks(smoothed, total, torch.tensor(error, dtype=torch.float64))


def _tracks_of(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> Tracks | None:
    """Return the tracks as arrays, or None if another form must be used."""
    mu, T = model.initial_mean, positions.shape[-2]
    per_component = mu.ndim == 2
    given = (*model, positions)
    plain = (
        all(part.device.type == "cpu" and part.dtype == torch.float64 for part in given)
        and not (torch.is_grad_enabled() and any(part.requires_grad for part in given))
        and all(part.ndim == 2 for part in (*model[:1], *model[2:5]))
        and model.force.ndim == 1
        and mu.ndim in (1, 2)
        and model.initial_covariance.ndim == mu.ndim + 1
        and T > 1
    )
    lead = positions.shape[:-2]
    if not plain or (per_component and (not lead or lead[-1] != 1)):
        return None
    if observed is not None and observed.ndim > positions.ndim - 1:
        return None
    K, M = (len(mu) if per_component else 1), math.prod(lead)
    if not 0 < M * K <= MAX_TRACKS or M * K * T > MAX_STATES:
        return None
    a = positions.detach().reshape(M, T, positions.shape[-1]).numpy()
    if observed is None or observed.ndim == 1:
        flags = torch.ones(T, dtype=torch.bool) if observed is None else observed
        masks, which = flags.numpy()[None], np.zeros(M, dtype=np.int64)
    else:
        if torch.broadcast_shapes(observed.shape[:-1], lead) != lead:
            return None
        rows = observed.expand(*lead, T).reshape(M, T).numpy()
        masks, which = np.unique(rows, axis=0, return_inverse=True)
        which = which.reshape(M)
    arrays = [part.detach().numpy() for part in model]
    if not per_component:
        arrays[5:] = [part[None] for part in arrays[5:]]
    shape = (*lead[:-1], K) if per_component else tuple(lead)
    return Tracks(LGSSM(*arrays), a, masks, which, shape)  # type: ignore[arg-type]


def _filter(tracks: Tracks) -> Pass:
    """Return the forward pass: predict, and update in Joseph form."""
    model, a, masks, which, _ = tracks
    A, u, B, Q, R, mu, Sigma = (np.asarray(part) for part in model)
    (U, T), (K, D), P = masks.shape, mu.shape, len(B)
    eye, seen = np.eye(D), masks.astype(np.float64)
    gain = np.empty((T, U, K, D, P))
    predicted, filtered = np.empty((T, U, K, D, D)), np.empty((T, U, K, D, D))
    innovation, precision = np.empty((T, U, K, P, P)), np.empty((T, U, K, P, P))
    now, everywhere = np.broadcast_to(Sigma, (U, K, D, D)), np.asarray(masks.all(0))
    for t in range(T):
        predicted[t] = now
        cross = now @ B.T
        innovation[t] = B @ cross + R
        precision[t] = _inverse(innovation[t])
        K_t = cross @ precision[t]
        if not everywhere[t]:
            K_t = K_t * seen[:, t, None, None, None]
        gain[t] = K_t
        kept = eye - K_t @ B
        now = kept @ now @ kept.swapaxes(-1, -2) + K_t @ R @ K_t.swapaxes(-1, -2)
        filtered[t] = now
        now = A @ now @ A.T + Q
    kept = eye - gain @ B
    # m_t = F_t m_{t-1} + (I - K B) u + K a_t
    F = (kept @ A)[:, which]
    drive = (gain[:, which] @ a.swapaxes(0, 1)[:, :, None, :, None])[..., 0]
    drive[1:] += (kept[1:] @ u)[:, which]
    mean = np.empty((T, len(a), K, D))
    mean[0] = (kept[0] @ mu[..., None])[..., 0][which] + drive[0]
    for t in range(1, T):
        mean[t] = (F[t] @ mean[t - 1][..., None])[..., 0] + drive[t]
    before = np.empty_like(mean)
    before[0], before[1:] = mu, mean[:-1] @ A.T + u
    away = a.swapaxes(0, 1)[:, :, None] - before @ B.T
    square = ((precision[:, which] @ away[..., None])[..., 0] * away).sum(-1)
    constant = P * math.log(2 * math.pi)
    # NaN where the covariance of an innovation is not positive.
    log_det = np.log(np.linalg.det(innovation))
    log_density = -0.5 * (square + log_det[:, which] + constant)
    log_density = np.where(masks[which].T[..., None], log_density, 0.0)
    return Pass(gain, predicted, filtered, before, mean, log_density)


def _inverse(matrix: Float[Array, "... P P"]) -> Float[Array, "... P P"]:
    """Return inverses; those of 2 x 2 matrices written out, a tenth of LAPACK's overhead."""
    if matrix.shape[-1] != 2:
        found: Array = np.linalg.inv(matrix)
        return found
    a, b, c, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 0], matrix[..., 1, 1]
    scale = 1 / (a * d - b * c)
    adjugate = np.empty_like(matrix)
    adjugate[..., 0, 0], adjugate[..., 0, 1] = d * scale, -b * scale
    adjugate[..., 1, 0], adjugate[..., 1, 1] = -c * scale, a * scale
    return adjugate


def _smooth(
    tracks: Tracks,
    forward: Pass,
    inverse: Float[Array, "T_less_1 U K D D"],
    variances: Float[Array, "M T P"] | None,
) -> tuple[Float[Array, "T M K D"], Float[Array, "T M K D D"], float]:
    """Return smoothed means and covariances, and an estimate of the rounding of the gains."""
    A, _, B, Q, *_ = (np.asarray(part) for part in tracks.model)
    gain, predicted, filtered, before, mean, _ = forward
    which, eye = tracks.which, np.eye(A.shape[0])
    G = filtered[:-1] @ A.T @ inverse
    kept = eye - G @ A
    noise = kept @ filtered[:-1] @ kept.swapaxes(-1, -2) + G @ Q @ G.swapaxes(-1, -2)
    covariances, means = filtered.copy(), mean.copy()
    mine, transposed = G[:, which], G.swapaxes(-1, -2)
    shift = mean[:-1] - (mine @ before[1:, ..., None])[..., 0]
    for t in reversed(range(len(G))):
        covariances[t] = noise[t] + G[t] @ covariances[t + 1] @ transposed[t]
        means[t] = shift[t] + (mine[t] @ means[t + 1][..., None])[..., 0]
    covariances = covariances[:, which]
    if variances is not None:
        K, V = gain[:, which], variances.swapaxes(0, 1)[:, :, None, None]
        F = ((eye - gain @ B) @ A)[:, which]
        covariances = covariances + _spread(mine, kept[:, which], F, K, V)
    diagonals = (np.diagonal(part, axis1=-2, axis2=-1) for part in (predicted[1:], inverse))
    return means, covariances, 10 * EPSILON * float(np.max(np.multiply(*diagonals)))


def _spread(
    G: Float[Array, "T_less_1 M K D D"],
    kept: Float[Array, "T_less_1 M K D D"],
    F: Float[Array, "T M K D D"],
    gain: Float[Array, "T M K D P"],
    variances: Float[Array, "T M 1 1 P"],
) -> Float[Array, "T M K D D"]:
    """Return the covariance of the smoothed means due to the variances of the positions.

    The smoothed mean is N m + r, with the filtered mean m and a function r of later positions, see
    `motes.kalman.sequential`.
    """
    T = len(F)
    added = (gain * variances) @ gain.swapaxes(-1, -2)
    of_filtered, N = np.empty_like(F), np.empty_like(F)
    of_filtered[0] = added[0]
    for t in range(1, T):
        of_filtered[t] = F[t] @ of_filtered[t - 1] @ F[t].swapaxes(-1, -2) + added[t]
    N[-1] = np.eye(F.shape[-1])
    for t in reversed(range(T - 1)):
        N[t] = kept[t] + G[t] @ N[t + 1] @ F[t + 1]
    by_next = G @ N[1:] @ gain[1:]
    later = np.zeros_like(F)
    later[:-1] = (by_next * variances[1:]) @ by_next.swapaxes(-1, -2)
    for t in reversed(range(T - 1)):
        later[t] += G[t] @ later[t + 1] @ G[t].swapaxes(-1, -2)
    total: Array = N @ of_filtered @ N.swapaxes(-1, -2) + later
    return total


def _filter_rounding(model: LGSSM, forward: Pass) -> float:
    """Return the estimate of `motes.kalman.sequential.rounding`."""
    B = np.asarray(model.emission)
    kept = np.eye(B.shape[1]) - forward.gain @ B
    sd = np.sqrt(np.diagonal(forward.predicted, axis1=-2, axis2=-1))
    squares = np.square((np.abs(kept) @ sd[..., None])[..., 0])
    ratio = squares / np.diagonal(forward.filtered, axis1=-2, axis2=-1)
    return 100 * EPSILON * float(np.max(np.where(squares == 0, 1.0, ratio)))


def joined_few(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T P"],
    observed: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B N N T"] | None:
    """Return `track_evidence.joined_by_filter` of few tracks, or None.

    Predicted covariances and curvatures depend on masks alone, so that matrices are formed for
    pairs of masks, and only vectors for pairs of tracks.

    Law: equals it (test_few_tracks_are_joined_as_by_the_filter).
    """
    (B, N, T), D = observed.shape, model.transition.shape[-1]
    tracks = _tracks_of(model, positions[:, :, None], observed[:, :, None])
    if tracks is None or B * N * N * T > MAX_JOINS:
        return None
    with np.errstate(all="ignore"):
        try:
            forward = _filter(tracks)
            curvature, slope, level = _backward_messages(tracks)
        except np.linalg.LinAlgError:
            return None
        P, Lam = forward.predicted, curvature  # T U K D D, T U D D
        spread = np.eye(D) + P[:, :, None] @ Lam[:, None, :, None]
        W = np.linalg.solve(spread, np.broadcast_to(P[:, :, None], spread.shape))
        log_scale = np.linalg.slogdet(spread)[1]
    K, which = log_scale.shape[-1], tracks.which.reshape(B, N)
    heads, tails = which[:, :, None], which[:, None]
    m = forward.predicted_mean.reshape(T, B, N, 1, K, D)
    eta = slope.reshape(T, B, 1, N, 1, D)
    pull = eta - (Lam[:, tails][:, :, :, :, None] @ m[..., None])[..., 0]
    gained = (W[:, heads, tails] @ pull[..., None])[..., 0]
    nats = 0.5 * ((eta + pull) * m + pull * gained).sum(-1) - 0.5 * log_scale[:, heads, tails]
    before = forward.log_density.cumsum(0) - forward.log_density
    nats += before.reshape(T, B, N, 1, K) + level.reshape(T, B, 1, N, 1)
    found = torch.from_numpy(np.moveaxis(nats, 0, -2)) + log_weights.detach()
    return None if bool(found.isnan().any()) else found.logsumexp(-1)


def _backward_messages(
    tracks: Tracks,
) -> tuple[Float[Array, "T U D D"], Float[Array, "T M D"], Float[Array, "T M"]]:
    """Return curvature, slope and level of `track_evidence.BackwardMessage`, time first."""
    model, a, masks, which, _ = tracks
    A, u, B, Q, R, *_ = (np.asarray(part) for part in model)
    T, D = masks.shape[1], len(A)
    weight, seen = B.T @ np.linalg.inv(R), masks.T.astype(np.float64)
    mine, points = seen[:, which], a.swapaxes(0, 1)
    curvature, slope = seen[:, :, None, None] * (weight @ B), mine[..., None] * (points @ weight.T)
    square = ((points @ np.linalg.inv(R)) * points).sum(-1)
    constant = np.linalg.slogdet(2 * math.pi * R)[1]
    level = -0.5 * mine * (square + constant)
    eye = np.eye(D)
    for t in reversed(range(T - 1)):
        Lam, eta = curvature[t + 1], slope[t + 1]
        # log E exp(eta' h - h' Lam h / 2) over h ~ N(u, Q), then marginalise that state.
        narrowed = np.linalg.inv(eye + Lam @ Q)
        pull = eta - (Lam @ u)[which]
        gained = ((Q @ narrowed)[which] @ pull[..., None])[..., 0]
        level[t] += level[t + 1] + 0.5 * ((eta + pull) @ u + (pull * gained).sum(-1))
        level[t] += 0.5 * np.linalg.slogdet(narrowed)[1][which]
        Lam = narrowed @ Lam
        curvature[t] += A.T @ Lam @ A
        slope[t] += ((narrowed[which] @ eta[..., None])[..., 0] - (Lam @ u)[which]) @ A
    return curvature, slope, level
