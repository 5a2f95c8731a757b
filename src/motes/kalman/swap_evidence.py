"""The evidence gained if two tracks swap identities from some frame on, for all frames at once."""

import math
from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.kalman.leave_one_out import track_joint
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM, StateEstimate
from motes.kalman.sequential import predict, run_filter

CHUNK_FRAMES = 128  # frames evaluated together, which bounds memory


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
    """Return the backward messages of consecutive frames.

    Args:
        model: The dynamics.
        positions: Of consecutive frames.
        observed: Which of them count.
        after: The messages of the frames that follow, if there are any.

    Law: with the prediction from the frames before it gives the evidence of the whole track
    (test_swap_gains_are_the_evidence_of_the_swapped_tracks).
    """
    A, u, B, Q, R = model[:5]
    weight = B.mT @ R.inverse()
    levels = -0.5 * (map_vector(R.inverse(), positions) * positions).sum(-1)
    levels = torch.where(observed, levels - 0.5 * torch.logdet(2 * math.pi * R), 0.0)
    curvatures = torch.where(observed[..., None, None], weight @ B, 0.0)
    slopes = torch.where(observed[..., None], map_vector(weight, positions), 0.0)
    T = observed.shape[-1]
    if after is None:
        messages = [(curvatures[..., -1, :, :], slopes[..., -1, :], levels[..., -1])]
    else:
        messages = [(after.curvature[..., 0, :, :], after.slope[..., 0, :], after.level[..., 0])]
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
    law = model, log_weights
    if bool(alike.any()):
        joined[alike] = joined_by_density(*law, positions[alike], observed[alike])
    if not bool(alike.all()):
        joined[~alike] = joined_by_filter(*law, positions[~alike], observed[~alike])
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
