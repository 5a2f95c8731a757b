"""Evidence about tracks, for the search: leave-one-out predictions and the gain of swaps.

The leave-one-out (cavity) prediction of a position is its distribution given the observations of
all other frames. A swap exchanges the identities of two tracks from some frame on.
"""

import math
from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.arrays import few_tracks, joined_few
from motes.kalman.dense import joint_prior
from motes.kalman.linalg import (
    identity,
    inverse_cholesky,
    log_det_triangular,
    map_vector,
    mask_covariance,
    unique_masks,
)
from motes.kalman.model import (
    LGSSM,
    POSITION_DIM,
    Gaussian,
    SmoothedTracks,
    StateEstimate,
    aligned,
    diagonal_blocks,
)
from motes.kalman.sequential import predict, run_filter

CHUNK_FRAMES = 128  # frames evaluated together, which bounds memory


def by_regression(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return cavity predictions from the joint Gaussian N(m, C) of all positions of a track.

    With L the inverse of C over the observed positions, zero elsewhere, and x = L (a - m), the
    prediction of an observed position is N(a_t - L_tt^-1 x_t, L_tt^-1), that of an unobserved one
    N(m_t + C_t x, C_tt - C_t L C_t'). Matrices are formed once for each mask and component. The
    most likely component is used.
    """
    masks, which, m, C, L, scale, residual = track_joint(model, positions, observed)
    x = map_vector(L[which], residual)
    evidence = log_weights + scale[which] - 0.5 * (residual * x).sum(-1)
    component = evidence.argmax(-1, keepdim=True)

    def selected(values: Float[Tensor, "B N K TP"]) -> Float[Tensor, "B N T 2"]:
        picked: Tensor = values.take_along_dim(component[..., None], 2)[:, :, 0]
        return picked.view(positions.shape)

    rows = (-1, POSITION_DIM)
    explained = (C @ L).unflatten(-2, rows) @ C.unflatten(-2, rows).mT
    if_unobserved = diagonal_blocks(C, POSITION_DIM).movedim(-1, -3) - explained
    if_observed = inverse_2x2(diagonal_blocks(L, POSITION_DIM).movedim(-1, -3))
    covariances = torch.where(masks[:, None, :, None, None], if_observed, if_unobserved)
    covariance = covariances[which, component[..., 0]]
    correction = map_vector(covariance, selected(x))
    predicted = selected(m + map_vector(C, x))
    return Gaussian(torch.where(observed[..., None], positions - correction, predicted), covariance)


class TrackJoint(NamedTuple):
    """The joint Gaussian of a track's positions under each component, for each distinct mask."""

    masks: Bool[Tensor, "U T"]  # the distinct ones
    which: Int[Tensor, "*tracks"]  # the mask of each track
    mean: Float[Tensor, "K TP"]
    covariance: Float[Tensor, "K TP TP"]
    precision: Float[Tensor, "U K TP TP"]  # of the observed positions; zero elsewhere
    log_scale: Float[Tensor, "U K"]
    residual: Float[Tensor, "*tracks K TP"]  # of the observed positions; zero elsewhere


def track_joint(
    model: LGSSM, positions: Float[Tensor, "*tracks T 2"], observed: Bool[Tensor, "*tracks T"]
) -> TrackJoint:
    """Return the joint Gaussians that densities of tracks of a short clip are made of."""
    prior = joint_prior(aligned(model), positions.shape[-2])
    masks, which = unique_masks(observed)
    known = masks.repeat_interleave(POSITION_DIM, -1)[:, None]  # the same for all components
    W = inverse_cholesky(mask_covariance(prior.covariance, known.to(prior.covariance)))
    offsets = positions.flatten(-2)[..., None, :] - prior.mean
    return TrackJoint(
        masks=masks,
        which=which,
        mean=prior.mean,
        covariance=prior.covariance,
        precision=W.mT @ W * known[..., None],
        log_scale=log_det_triangular(W),
        residual=torch.where(known[which], offsets, 0.0),
    )


def by_smoothing(
    model: LGSSM,
    smoothed: SmoothedTracks,
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return cavity predictions by removing each frame's own observation from the smoother."""
    states = smoothed.select(smoothed.log_weights.argmax(-1))
    mean, P = states.mean[..., :POSITION_DIM], states.covariance[..., :POSITION_DIM, :POSITION_DIM]
    own = torch.where(observed[..., None, None], inverse_2x2(model.position_noise), 0.0)
    precision = inverse_2x2(P)
    covariance = inverse_2x2(precision - own)
    shift = map_vector(precision, mean) - map_vector(own, positions)
    return Gaussian(map_vector(covariance, shift), covariance + model.position_noise)


def inverse_2x2(matrix: Float[Tensor, "*batch 2 2"]) -> Float[Tensor, "*batch 2 2"]:
    """Return the inverse in closed form; batches of small matrices are slow in LAPACK."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    adjugate = trace * identity(2, matrix) - matrix
    determinant = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    return adjugate / determinant[..., None, None]


def leave_one_out(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return each position's prediction from the observations of all other frames.

    Law: equals smoothing with that frame unobserved
    (test_leave_one_out_is_smoothing_without_the_frame).
    """
    positions = positions.double()
    if positions.shape[2] <= kalman.DENSE_FRAMES:
        return by_regression(model, log_weights, positions, observed)
    a, mask = positions[:, :, None], observed[:, :, None]
    few = few_tracks(model, torch.where(mask[..., None], a, 0.0), mask)
    if few is not None and few.rounding <= kalman.MAX_ROUNDING:
        likelihood, states = few.log_likelihood, few.smoothed
    else:
        likelihood = kalman.log_likelihood(model, a, mask, checked=False)
        states = kalman.smooth(model, a, mask)
    smoothed = SmoothedTracks((log_weights + likelihood).log_softmax(-1), *states)
    return by_smoothing(model, smoothed, positions, observed)


class BackwardMessage(NamedTuple):
    """For every frame t the log density of the positions from t on, given the state h at t.

    It is level + slope' h - h' curvature h / 2.
    """

    curvature: Float[Tensor, "... T D D"]
    slope: Float[Tensor, "... T D"]
    level: Float[Tensor, "... T"]


def backward_messages(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"],
    after: BackwardMessage | None = None,
) -> BackwardMessage:
    """Return the backward messages of consecutive frames, given those of the frames `after` them.

    Law: with the prediction from the frames before it gives the evidence of the whole track
    (test_swap_gains_are_the_evidence_of_the_swapped_tracks).
    """
    A, u, B, Q, R = model[:5]
    weight = B.mT @ R.inverse()
    levels = -0.5 * (map_vector(R.inverse(), positions) * positions).sum(-1)
    levels = torch.where(observed, levels - 0.5 * torch.logdet(2 * math.pi * R), 0.0)
    curvatures = torch.where(observed[..., None, None], weight @ B, 0.0)
    slopes = torch.where(observed[..., None], map_vector(weight, positions), 0.0)
    T, own = observed.shape[-1], BackwardMessage(curvatures, slopes, levels)
    last, at = (own, -1) if after is None else (after, 0)
    messages = [(last.curvature[..., at, :, :], last.slope[..., at, :], last.level[..., at])]
    for t in reversed(range(T - 1 if after is None else T)):
        Lam, eta, level = messages[-1]
        level = level + overlap(u.expand_as(eta), Q, Lam, eta) + levels[..., t]
        # Marginalise the state of the next frame.
        widened = identity(len(Q), Q) + Lam @ Q
        Lam = torch.linalg.solve(widened, Lam)
        eta = torch.linalg.solve(widened, eta) - map_vector(Lam, u)
        curvature = A.mT @ Lam @ A + curvatures[..., t, :, :]
        messages.append((curvature, map_vector(A.mT, eta) + slopes[..., t, :], level))
    parts = zip(*messages[: -T - 1 : -1], strict=True)
    return BackwardMessage(
        *(torch.stack(part, axis) for part, axis in zip(parts, (-3, -2, -1), strict=True))
    )


def overlap(
    mean: Float[Tensor, "... D"],
    covariance: Float[Tensor, "... D D"],
    curvature: Float[Tensor, "... D D"],
    slope: Float[Tensor, "... D"],
) -> Float[Tensor, "..."]:
    """Return log E exp(slope' h - h' curvature h / 2) over h ~ N(mean, covariance).

    The covariance may be singular.
    """
    spread = identity(covariance.shape[-1], covariance) + covariance @ curvature
    # Around the mean the exponent is pull' x - x' curvature x / 2.
    pull = slope - map_vector(curvature, mean)
    gained = torch.linalg.solve(spread, map_vector(covariance, pull))
    log_scale = torch.linalg.slogdet(spread).logabsdet
    nats: Tensor = 0.5 * ((slope + pull) * mean + pull * gained).sum(-1) - 0.5 * log_scale
    return nats


class ChunkStart(NamedTuple):
    """The forward message into a chunk of frames."""

    predicted: StateEstimate | None  # of the state in its first frame; None: the clip starts here
    level: Float[Tensor, "... 1"] | float  # log density of the positions before


def swap_gains(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T P"],
    observed: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B N N T"]:
    """Return the gain in log p(a) if objects i and j swap identities from frame t on, in nats.

    Law: equals the evidence of the swapped tracks, whether or not both were observed in the same
    frames (test_swap_gains_are_the_evidence_of_the_swapped_tracks).
    """
    (B, N, T), positions = observed.shape, torch.where(observed[..., None], positions, 0.0).double()
    alike = (observed == observed[:, :1]).flatten(1).all(1) & (T <= kalman.DENSE_FRAMES)
    joined = positions.new_empty(B, N, N, T)
    for which, join in ((alike, joined_by_density), (~alike, joined_by_filter)):
        if bool(which.any()):
            joined[which] = join(model, log_weights, positions[which], observed[which])
    gains = pair_gains(joined)
    gains[..., 0] = 0.0  # a swap from the first frame on only renames; remove rounding
    return gains


def pair_gains(fit: Float[Tensor, "B N N T"]) -> Float[Tensor, "B N N T"]:
    """Return the gain of each pair by swapping, from the fit of each object to each track."""
    own = fit.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return fit + fit.transpose(1, 2) - own[:, :, None] - own[:, None]


def joined_by_density(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T P"],
    observed: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B N N T"]:
    """Return the log evidence of each object's frames before t joined to another's from t on.

    Up to a constant shared by all objects of a clip, which must be observed in the same frames.
    Then they share the precision L, and the exponent is a sum over pairs of frames of r' L r, with
    the residuals r of the one object before t and of the other from t on.
    """
    _, which, _, _, L, scale, residual = track_joint(model, positions, observed)
    which, frames = which[:, 0], (positions.shape[2], -1)
    r, blocks = residual.unflatten(-1, frames), L.unflatten(-1, frames)[which]
    pulls = torch.einsum("bkxtd,bjktd->bjkxt", blocks, r).unflatten(-2, frames)
    products = torch.einsum("biksc,bjksct->bijkst", r, pulls)  # frame s of i with frame t of j
    time = torch.arange(frames[0], device=r.device)
    past = (time < time[:, None]).to(r)
    rest = 1 - past
    own = products.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    before, later = (((part @ own) * part).sum(-1) for part in (past, rest))
    between = ((past @ products) * rest).sum(-1)
    exponent = before[:, :, None] + later[:, None] + 2 * between
    evidence = (log_weights + scale[which])[:, None, None, :, None] - 0.5 * exponent
    return evidence.logsumexp(3)


def joined_by_filter(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T P"],
    observed: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B N N T"]:
    """Return the same for any masks: forward predictions meet backward messages.

    A long clip is processed in chunks, the last first. Forward messages are kept for the first
    frame of each chunk only, so memory grows with the gains alone.
    """
    few = joined_few(model, log_weights, positions, observed)
    if few is not None:
        return few
    T = observed.shape[2]
    chunks = [slice(t, t + CHUNK_FRAMES) for t in range(0, T, CHUNK_FRAMES)]
    starts = [ChunkStart(None, 0.0)]
    for time in chunks[:-1]:
        *_, start = _forward_messages(
            model, positions[:, :, time], observed[:, :, time], starts[-1]
        )
        starts.append(start)
    backward, joined = None, []
    for time, start in zip(reversed(chunks), reversed(starts), strict=True):
        predicted, before, _ = _forward_messages(
            model, positions[:, :, time], observed[:, :, time], start
        )
        backward = backward_messages(model, positions[:, :, time], observed[:, :, time], backward)
        heads = (part[:, :, None] for part in predicted)
        tails = (part[:, None, :, None] for part in (backward.curvature, backward.slope))
        met = overlap(*heads, *tails) + before[:, :, None] + backward.level[:, None, :, None]
        joined.append((met + log_weights[:, None]).logsumexp(3))
    return torch.cat(joined[::-1], -1)  # head of, tail of, frame


def _forward_messages(
    model: LGSSM,
    positions: Float[Tensor, "B N T P"],
    observed: Bool[Tensor, "B N T"],
    start: ChunkStart,
) -> tuple[StateEstimate, Float[Tensor, "B N K T"], ChunkStart]:
    """Return predicted states, log densities before each frame, and the next chunk's start."""
    found, innovation = run_filter(
        model, positions[:, :, None], observed[:, :, None], start.predicted
    )
    level = start.level + innovation.log_density.cumsum(-1)
    following = predict(model, found.means[..., -1, :], found.covariances[..., -1, :, :])
    predicted = StateEstimate(found.predicted_means, found.predicted_covariances)
    return predicted, level - innovation.log_density, ChunkStart(following, level[..., -1:])
