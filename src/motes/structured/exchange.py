"""Which of two objects went on where: tracks whose later parts fit one another's beginnings better.

Two objects that meet, before the eye or behind something, may leave the meeting as one another, or
be taken for one another in a frame or two. To look again does not mend that: every place is
explained. So exchanges between two objects of a clip are weighed by the dynamics: of what they did
from some frame on, exactly and without following them again, and of their places in one frame.
"""

import math
from typing import NamedTuple

import torch

from motes.lgssm import LGSSM, Dynamics, identity, map_vector
from motes.sequential import run_filter
from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.places import Place, determinant, mahalanobis
from motes.structured.search import Scene, Sightings


class Future(NamedTuple):
    """For every frame t the log density of the positions from t on, given the state h there.

    It is level + slope' h - h' curvature h / 2.
    """

    curvature: Float[Tensor, "... T D D"]
    slope: Float[Tensor, "... T D"]
    level: Float[Tensor, "... T"]


def future(
    model: LGSSM, positions: Float[Tensor, "... T P"], seen: Bool[Tensor, "... T"]
) -> Future:
    """What the seen positions from each frame on say of the state there.

    Law: with the prediction from the frames before it gives the evidence of the whole path
    (test_what_two_tracks_gain_is_the_evidence_of_the_exchanged_ones).
    """
    A, u, B, Q, R = model[:5]
    weight = B.mT @ R.inverse()
    told = -0.5 * (map_vector(R.inverse(), positions) * positions).sum(-1)
    told = torch.where(seen, told - 0.5 * torch.logdet(2 * math.pi * R), 0.0)
    pushes = torch.where(seen[..., None, None], weight @ B, 0.0)
    pulls = torch.where(seen[..., None], map_vector(weight, positions), 0.0)
    back = [(pushes[..., -1, :, :], pulls[..., -1, :], told[..., -1])]
    for t in reversed(range(seen.shape[-1] - 1)):
        Lam, eta, level = back[-1]
        level = level + overlap(u.expand_as(eta), Q, Lam, eta) + told[..., t]
        # The state of the next frame is summed out: what is left is a function of this one's.
        blurred = identity(len(Q), Q) + Lam @ Q
        Lam = torch.linalg.solve(blurred, Lam)
        eta = torch.linalg.solve(blurred, eta) - map_vector(Lam, u)
        back.append(
            (A.mT @ Lam @ A + pushes[..., t, :, :], map_vector(A.mT, eta) + pulls[..., t, :], level)
        )
    curvature, slope, levels = zip(*reversed(back), strict=True)
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


def exchange_gains(
    dynamics: Dynamics, positions: Float[Tensor, "B N T P"], seen: Bool[Tensor, "B N T"]
) -> Float[Tensor, "B N N T"]:
    """The gain in log p(a) if objects i and j were one another from frame t on, in nats."""
    model = dynamics.components()
    positions = torch.where(seen[..., None], positions, 0.0).double()
    past, told = run_filter(model, positions[:, :, None], seen[:, :, None])
    before = told.log_density.cumsum(-1) - told.log_density
    later = future(model, positions, seen)
    heads = (part[:, :, None] for part in (past.predicted_means, past.predicted_covariances))
    tails = (part[:, None, :, None] for part in (later.curvature, later.slope))
    met = overlap(*heads, *tails) + before[:, :, None] + later.level[:, None, :, None]
    joined = (met + dynamics.log_weights()[:, None]).logsumexp(3)  # head of, tail of, frame
    own = joined.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return joined + joined.transpose(1, 2) - own[:, :, None] - own[:, None]


def best_exchange(
    scene: Scene, clips: Int[Tensor, " b"], found: Sightings, expected: Place
) -> tuple[Float[Tensor, " b"], Int[Tensor, "b N T"]]:
    """The gain of each clip's best exchange, and whose place every object then takes."""
    present, seen = scene.present[clips], found.seen
    positions = scene.renderer.from_pixels(found.place.mean)
    gains = _among(present, exchange_gains(scene.dynamics, positions, seen))
    T = seen.shape[2]
    gain, index = gains.flatten(1).max(1)
    swapped = _swapped(index // T, present)
    late = torch.arange(T, device=seen.device) >= (index % T)[:, None]
    slots = torch.arange(seen.shape[1], device=seen.device)
    return gain, torch.where(late[:, None], swapped[..., None], slots[:, None])


def best_exchange_in_frames(
    scene: Scene, clips: Int[Tensor, " b"], found: Sightings, expected: Place
) -> tuple[Float[Tensor, " b"], Int[Tensor, "b N T"]]:
    """The same for exchanges in single frames, the best one of each frame, all frames at once.

    A place is weighed by where the other frames expect each of the two objects. That of one that
    was not seen is what is expected, and weighs nothing.
    """
    present = scene.present[clips]
    away = found.place.mean[:, None] - expected.mean[:, :, None]  # of, at the place of, frame
    spread = expected.covariance[:, :, None]
    fit = -0.5 * (mahalanobis(away[..., None, :], spread)[..., 0] + determinant(spread).log())
    fit = torch.where(found.seen[:, None], fit, 0.0)
    own = fit.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    gains = _among(present, fit + fit.transpose(1, 2) - own[:, :, None] - own[:, None])
    gain, index = gains.movedim(-1, 1).flatten(2).max(2)  # B T
    swapped = _swapped(index, present[:, None])
    return gain.clamp(min=0).sum(1), swapped.movedim(1, -1)


def _among(
    present: Bool[Tensor, "B N"], gains: Float[Tensor, "B N N T"]
) -> Float[Tensor, "B N N T"]:
    """Gains of pairs of objects that are there; no other pair is worth an exchange."""
    pairs = present[:, :, None] & present[:, None]
    return gains.masked_fill(~pairs[..., None], -torch.inf)


def _swapped(
    pair: Int[Tensor, "*batch"], like: Bool[Tensor, "*#batch N"]
) -> Int[Tensor, "*batch N"]:
    """All objects in order, but for the two of a pair, which is numbered row by row."""
    N = like.shape[-1]
    slots = torch.arange(N, device=like.device)
    one, other = (pair // N)[..., None], (pair % N)[..., None]
    return torch.where(slots == one, other, torch.where(slots == other, one, slots))
