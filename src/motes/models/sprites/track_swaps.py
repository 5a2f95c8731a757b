"""Which of two objects went on where: tracks whose later parts fit one another's beginnings better.

Two objects that meet, before the eye or behind something, may leave the meeting as one another, or
be taken for one another in a frame or two. To look again does not mend that: every place is
explained. So exchanges between two objects of a clip are weighed by the dynamics: of what they did
from some frame on, exactly and without following them again, and of their places in one frame.
"""

import math
from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM, StateEstimate
from motes.kalman.sequential import predict, run_filter
from motes.models.sprites.forward_pass import Sightings
from motes.models.sprites.leave_one_out import joint
from motes.models.sprites.likelihood_maps import PixelGaussian, determinant, mahalanobis

AT_ONCE = 128  # frames that are weighed side by side, which bounds memory
APART = 64  # frames between two exchanges that are tried together


class Future(NamedTuple):
    """For every frame t the log density of the positions from t on, given the state h there.

    It is level + slope' h - h' curvature h / 2.
    """

    curvature: Float[Tensor, "... T D D"]
    slope: Float[Tensor, "... T D"]
    level: Float[Tensor, "... T"]


def future(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    seen: Bool[Tensor, "... T"],
    after: Future | None = None,
) -> Future:
    """What the seen positions from each frame on say of the state there.

    Args:
        model: The dynamics.
        positions: Of frames in a row.
        seen: Which of them count.
        after: The same of the frames after them, if there are any.

    Law: with the prediction from the frames before it gives the evidence of the whole path
    (test_what_two_tracks_gain_is_the_evidence_of_the_exchanged_ones).
    """
    A, u, B, Q, R = model[:5]
    weight = B.mT @ R.inverse()
    told = -0.5 * (map_vector(R.inverse(), positions) * positions).sum(-1)
    told = torch.where(seen, told - 0.5 * torch.logdet(2 * math.pi * R), 0.0)
    pushes = torch.where(seen[..., None, None], weight @ B, 0.0)
    pulls = torch.where(seen[..., None], map_vector(weight, positions), 0.0)
    T = seen.shape[-1]
    if after is None:
        back = [(pushes[..., -1, :, :], pulls[..., -1, :], told[..., -1])]
    else:
        back = [(after.curvature[..., 0, :, :], after.slope[..., 0, :], after.level[..., 0])]
    for t in reversed(range(T - 1 if after is None else T)):
        Lam, eta, level = back[-1]
        level = level + overlap(u.expand_as(eta), Q, Lam, eta) + told[..., t]
        # The state of the next frame is summed out: what is left is a function of this one's.
        blurred = identity(len(Q), Q) + Lam @ Q
        Lam = torch.linalg.solve(blurred, Lam)
        eta = torch.linalg.solve(blurred, eta) - map_vector(Lam, u)
        back.append(
            (A.mT @ Lam @ A + pushes[..., t, :, :], map_vector(A.mT, eta) + pulls[..., t, :], level)
        )
    curvature, slope, levels = zip(*back[: -T - 1 : -1], strict=True)
    return Future(torch.stack(curvature, -3), torch.stack(slope, -2), torch.stack(levels, -1))


def overlap(
    mean: Float[Tensor, "... D"],
    covariance: Float[Tensor, "... D D"],
    curvature: Float[Tensor, "... D D"],
    slope: Float[Tensor, "... D"],
) -> Float[Tensor, "..."]:
    """Log E exp(slope' h - h' curvature h / 2) over h ~ N(mean, covariance), singular or not."""
    spread = identity(covariance.shape[-1], covariance) + covariance @ curvature
    # About its own mean the exponent is pull' x - x' curvature x / 2.
    pull = slope - map_vector(curvature, mean)
    gained = torch.linalg.solve(spread, map_vector(covariance, pull))
    log_scale = torch.linalg.slogdet(spread).logabsdet
    nats: Tensor = 0.5 * ((slope + pull) * mean + pull * gained).sum(-1) - 0.5 * log_scale
    return nats


class Start(NamedTuple):
    """What the frames before a stretch say of it."""

    predicted: StateEstimate | None  # the state in its first frame; None where the clip begins
    level: Float[Tensor, "... 1"] | float  # the log density of the positions before


def gains_onwards(
    dynamics: LinearDynamics, positions: Float[Tensor, "B N T P"], seen: Bool[Tensor, "B N T"]
) -> Float[Tensor, "B N N T"]:
    """The gain in log p(a) if objects i and j were one another from frame t on, in nats.

    Law: equals the evidence of the exchanged tracks, whether they were seen in the same frames or
    not (test_what_two_tracks_gain_is_the_evidence_of_the_exchanged_ones).
    """
    (B, N, T), positions = seen.shape, torch.where(seen[..., None], positions, 0.0).double()
    alike = (seen == seen[:, :1]).flatten(1).all(1) & (T <= kalman.DENSE_FRAMES)
    joined = positions.new_empty(B, N, N, T)
    if bool(alike.any()):
        joined[alike] = joined_by_density(dynamics, positions[alike], seen[alike])
    if not bool(alike.all()):
        law = dynamics.components(), dynamics.log_weights()
        joined[~alike] = joined_by_filter(*law, positions[~alike], seen[~alike])
    gains = of_pairs(joined)
    gains[..., 0] = 0.0  # but for rounding: from the first frame on they exchange their names alone
    return gains


def joined_by_density(
    dynamics: LinearDynamics, positions: Float[Tensor, "B N T P"], seen: Bool[Tensor, "B N T"]
) -> Float[Tensor, "B N N T"]:
    """The log evidence of each object's frames before t with another's from t on.

    Up to what is the same for all objects of a clip, which were seen in the same frames. Then the
    precision L is that of all of them, and the exponent is a sum over two frames of r' L r, with
    the residuals r of the one object before t and of the other from t on.
    """
    _, which, _, _, L, scale, residual = joint(dynamics, positions, seen)
    which, frames = which[:, 0], (positions.shape[2], -1)
    r, blocks = residual.unflatten(-1, frames), L.unflatten(-1, frames)[which]
    pulls = torch.einsum("bkxtd,bjktd->bjkxt", blocks, r).unflatten(-2, frames)
    products = torch.einsum("biksc,bjksct->bijkst", r, pulls)  # of frames s of i and t of j
    time = torch.arange(frames[0], device=r.device)
    past = (time < time[:, None]).to(r)
    rest = 1 - past
    own = products.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    before, later = (((part @ own) * part).sum(-1) for part in (past, rest))
    between = ((past @ products) * rest).sum(-1)
    exponent = before[:, :, None] + later[:, None] + 2 * between
    evidence = (dynamics.log_weights() + scale[which])[:, None, None, :, None] - 0.5 * exponent
    return evidence.logsumexp(3)


def joined_by_filter(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T P"],
    seen: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B N N T"]:
    """The same, in whatever frames each was seen: the one filtered, the other looked back on.

    A long clip is gone through in stretches, the last first. What the frames before one say is
    kept for its first frame alone: memory does not grow by more than the gains.
    """
    T = seen.shape[2]
    stretches = [slice(t, t + AT_ONCE) for t in range(0, T, AT_ONCE)]
    starts = [Start(None, 0.0)]
    for time in stretches[:-1]:
        *_, start = _heads(model, positions[:, :, time], seen[:, :, time], starts[-1])
        starts.append(start)
    later, joined = None, []
    for time, start in zip(reversed(stretches), reversed(starts), strict=True):
        predicted, before, _ = _heads(model, positions[:, :, time], seen[:, :, time], start)
        later = future(model, positions[:, :, time], seen[:, :, time], later)
        heads = (part[:, :, None] for part in predicted)
        tails = (part[:, None, :, None] for part in (later.curvature, later.slope))
        met = overlap(*heads, *tails) + before[:, :, None] + later.level[:, None, :, None]
        joined.append((met + log_weights[:, None]).logsumexp(3))
    return torch.cat(joined[::-1], -1)  # head of, tail of, frame


def _heads(
    model: LGSSM, positions: Float[Tensor, "B N T P"], seen: Bool[Tensor, "B N T"], start: Start
) -> tuple[StateEstimate, Float[Tensor, "B N K T"], Start]:
    """For every frame the state as predicted from those before, and the log density of those.

    Then the start of the frames that follow.
    """
    found, told = run_filter(model, positions[:, :, None], seen[:, :, None], start.predicted)
    level = start.level + told.log_density.cumsum(-1)
    following = predict(model, found.means[..., -1, :], found.covariances[..., -1, :, :])
    predicted = StateEstimate(found.predicted_means, found.predicted_covariances)
    return predicted, level - told.log_density, Start(following, level[..., -1:])


def gains_in_frame(found: Sightings, expected: PixelGaussian) -> Float[Tensor, "B N N T"]:
    """The same if they were one another in frame t alone.

    A place is weighed by where the other frames expect each of the two. That of one that was not
    seen is what is expected, and weighs nothing.
    """
    away = found.place.mean[:, None] - expected.mean[:, :, None]  # of, at the place of, frame
    spread = expected.covariance[:, :, None]
    fit = -0.5 * (mahalanobis(away[..., None, :], spread)[..., 0] + determinant(spread).log())
    return of_pairs(torch.where(found.seen[:, None], fit, 0.0))


def of_pairs(fit: Float[Tensor, "B N N T"]) -> Float[Tensor, "B N N T"]:
    """What two objects gain by an exchange, from how well each fits what each has."""
    own = fit.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return fit + fit.transpose(1, 2) - own[:, :, None] - own[:, None]


def best_exchanges(
    gains: Float[Tensor, "B N N T"], present: Bool[Tensor, "B N"], onwards: bool
) -> tuple[Float[Tensor, " B"], Int[Tensor, "B N T"]]:
    """What each clip's best exchanges gain, and whose place every object then takes.

    The best one of a short clip. In a long one the next best is taken too, as long as it gains and
    is APART frames or more from those before: meetings that far from one another have nothing to
    do with one another, and their gains add up.

    Law: of a short clip it is the best pair and frame
    (test_the_best_exchange_undoes_one_and_leaves_absent_objects_alone).
    """
    N, T = gains.shape[2:]
    slots, time = (torch.arange(size, device=gains.device) for size in (N, T))
    pairs = present[:, :, None] & present[:, None]
    left = gains.masked_fill(~pairs[..., None], -torch.inf)
    total, picks = torch.zeros_like(gains[:, 0, 0, 0]), []
    while bool((left > 0).any()):
        gain, index = left.flatten(1).max(1)
        total = total + gain.clamp(min=0)
        # Where nothing is gained any more an object is exchanged with itself.
        one, frame = index // (N * T), index % T
        picks.append(torch.stack([frame, one, torch.where(gain > 0, index // T % N, one)]))
        near = (time - frame[:, None]).abs() < APART
        left = left.masked_fill(near[:, None, None], -torch.inf)
    source = slots[:, None].expand(len(gains), N, T)
    # One after the other in time: each exchanges what the objects have become by then.
    for pick in _in_time(picks):
        frame, one, other = (part[:, None, None] for part in pick)
        swapped = torch.where(source == one, other, torch.where(source == other, one, source))
        source = torch.where(time >= frame if onwards else time == frame, swapped, source)
    return total, source


def _in_time(picks: list[Int[Tensor, "3 B"]]) -> list[Int[Tensor, "3 B"]]:
    """Exchanges (frame, one, other) of each clip, the earliest first."""
    if len(picks) < 2:
        return picks
    stacked = torch.stack(picks)
    order = stacked[:, 0].argsort(0)
    return list(stacked.take_along_dim(order[:, None], 0))
