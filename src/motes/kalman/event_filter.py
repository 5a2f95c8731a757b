"""Proposals of event sequences by a Gaussian-sum filter.

Each hypothesis is split by its guards in every frame: with an event and without, weighed by the
probability of the guard and conditioned on it by the moments of the truncated Gaussian. The
likeliest are kept. Weights are approximate; `motes.kalman.events.weigh` makes them exact.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.events import (
    LOG_2PI,
    EventLaw,
    Guards,
    Hypotheses,
    both,
    guards_at,
    innovation,
    pair_directions,
    reflections,
    since_hit,
    with_contacts,
)
from motes.kalman.linalg import map_vector

SLOTS = 8  # hypotheses of a track
NEGLIGIBLE = -14.0  # log weight of sequences that are dropped, relative to the best


class Filter(NamedTuple):
    """Gaussian-sum filter: H hypotheses for each track; dead ones have weight -inf."""

    mean: Float[Tensor, "*batch H D"]
    covariance: Float[Tensor, "*batch H D D"]
    log_weights: Float[Tensor, "*batch H"]  # of the past too, not normalised
    component: Int[Tensor, "*batch H"]
    hits: Bool[Tensor, "*batch H steps E"]
    directions: Float[Tensor, "*batch H steps pairs 2"]

    def select(self, index: Int[Tensor, "*batch H"]) -> "Filter":
        """Return some of the hypotheses of each track."""

        def pick(part: Tensor) -> Tensor:
            axis = index.ndim - 1
            at = index.view(*index.shape, *[1] * (part.ndim - index.ndim))
            return part.take_along_dim(at, axis)

        return Filter(*(pick(part) for part in self))


def initial_filter(law: EventLaw, batch: tuple[int, ...], slots: int = SLOTS) -> Filter:
    """Return the belief about the first frame: one hypothesis for each component."""
    K, D = law.model.initial_mean.shape
    H, N = max(slots, K), D // 4
    pairs = N * (N - 1) // 2 if law.contacts is not None else 0
    at = torch.arange(H, device=law.log_weights.device).clamp(max=K - 1)
    weights = torch.where(torch.arange(H, device=at.device) < K, law.log_weights[at], -torch.inf)
    mean, covariance = law.model.initial_mean[at], law.model.initial_covariance[at]
    return Filter(
        mean.expand(*batch, H, D),
        covariance.expand(*batch, H, D, D),
        weights.expand(*batch, H),
        at.expand(*batch, H),
        torch.zeros(*batch, H, 0, law.num_events, dtype=torch.bool, device=at.device),
        mean.new_zeros(*batch, H, 0, pairs, 2),
    )


def predict_filter(law: EventLaw, belief: Filter, slots: int = SLOTS) -> Filter:
    """Return the belief about the next frame: hypotheses are split by their guards and pruned."""
    A, u, Q, D = law.model.transition, law.model.force, law.model.state_noise, belief.mean.shape[-1]
    P = D // 2
    free, spread = map_vector(A, belief.mean) + u, A @ belief.covariance @ A.mT
    directions = belief.directions
    if law.contacts is not None and P > 2:
        along = pair_directions(free[..., :P])
        directions = torch.cat([directions, along[..., None, :, :]], -3)
    else:
        directions = pad(directions, (0, 0, 0, 0, 0, 1))
    flags = belief.hits.new_zeros(*belief.log_weights.shape, 1, law.num_events)
    state = Filter(
        free, spread, belief.log_weights, belief.component,
        torch.cat([belief.hits, flags], -2), directions,
    )  # fmt: skip
    E = law.num_events - (law.kicks is not None)
    for e in range(E):
        state = _split(state, _guards_of(law, state), e, slots)
    Q_t: Tensor = Q
    if law.kicks is not None:
        rate = law.kicks.log_rate
        kicked = state.log_weights + rate
        calm = state.log_weights + torch.log1p(-rate.exp())
        state = _keep(state, kicked, calm, state.hits[..., -1:, :], E, slots)
        Q_t = Q + state.hits[..., -1, E, None, None] * law.kicks.covariance
    if E == 0:
        return state._replace(covariance=state.covariance + Q_t)
    guards, hits = _guards_of(law, state), state.hits[..., -1, :E]
    R, c = reflections(guards, hits)
    turn = both(R)
    mean = map_vector(turn, state.mean) + pad(c, (0, P))
    if law.in_time:
        mean = mean + since_hit(law, guards, state.mean, hits)
    return state._replace(mean=mean, covariance=turn @ state.covariance @ turn.mT + Q_t)


def _guards_of(law: EventLaw, state: Filter) -> Guards:
    P = state.mean.shape[-1] // 2
    plain = guards_at(law._replace(contacts=None), state.mean[..., :P])
    if law.contacts is None or P == 2:
        return plain
    return with_contacts(law, plain, state.directions[..., -1, :, :])


def _split(state: Filter, guards: Guards, event: int, slots: int) -> Filter:
    """Split each hypothesis into one with an event and one without, and keep the likeliest."""
    P = state.mean.shape[-1] // 2
    g, d = guards.normal[..., event, :], guards.offset[..., event]
    y = (state.mean[..., :P] * g).sum(-1) - d
    C = (state.covariance[..., :P] * g[..., None, :]).sum(-1)  # Cov(h, y)
    sd = (C[..., :P] * g).sum(-1).clamp(min=1e-18).sqrt()
    alpha = y / sd
    hit, free = torch.special.log_ndtr(-alpha), torch.special.log_ndtr(alpha)
    if bool(guards.closing[event]):
        apart = (state.mean[..., P:] * g).sum(-1) > 0
        hit, free = hit.masked_fill(apart, -torch.inf), free.masked_fill(apart, 0.0)
    if not bool((hit + state.log_weights > state.log_weights.amax(-1, True) + NEGLIGIBLE).any()):
        return state
    weights = state.log_weights
    kept = _keep(
        state, weights + hit, weights + free, state.hits[..., -1:, :], event, slots,
        extra=(alpha, sd, C, free == 0.0),
    )  # fmt: skip
    return kept


def _keep(
    state: Filter,
    happened: Float[Tensor, "*batch H"],
    did_not: Float[Tensor, "*batch H"],
    flags: Bool[Tensor, "*batch H 1 E"],
    event: int,
    slots: int,
    extra: tuple[Tensor, ...] | None = None,
) -> Filter:
    """Return the likeliest of all hypotheses with and without an event.

    With `extra` the state is conditioned on the side of the guard, by matching the moments of the
    truncated Gaussian.
    """
    H = happened.shape[-1]
    weights, index = torch.cat([did_not, happened], -1).topk(min(slots, 2 * H), -1)
    hit, parent = index >= H, index % H
    chosen = state.select(parent)
    flags = chosen.hits.clone()
    flags[..., -1, event] = hit
    chosen = chosen._replace(hits=flags, log_weights=weights)
    if extra is None:
        return chosen
    alpha, sd, C, certain = (
        part.take_along_dim(parent.view(*parent.shape, *[1] * (part.ndim - parent.ndim)),
                            parent.ndim - 1)
        for part in extra
    )  # fmt: skip
    side = torch.where(hit, -1.0, 1.0)
    beyond = side * alpha
    ratio = (-0.5 * beyond.square() - 0.5 * LOG_2PI - torch.special.log_ndtr(beyond)).exp()
    ratio = torch.where(certain & ~hit, 0.0, ratio)
    shrink = (ratio * (ratio + beyond)).clamp(0.0, 1 - 1e-6)
    gain = C / sd[..., None]
    mean = chosen.mean + (side * ratio)[..., None] * gain
    scatter = shrink[..., None, None] * gain[..., :, None] * gain[..., None, :]
    return chosen._replace(mean=mean, covariance=chosen.covariance - scatter)


def update_filter(
    law: EventLaw,
    belief: Filter,
    positions: Float[Tensor, "*batch P"],
    known: Bool[Tensor, "*batch P"],
) -> Filter:
    """Return the belief after observing the known coordinates."""
    R, P = law.model.position_noise, positions.shape[-1]
    residual, K, _, log_density = innovation(
        belief.mean, belief.covariance, positions[..., None, :], known[..., None, :], R
    )
    mean = belief.mean + map_vector(K, residual)
    covariance = belief.covariance - K @ belief.covariance[..., :P, :]
    return belief._replace(
        mean=mean, covariance=covariance, log_weights=belief.log_weights + log_density
    )


@torch.no_grad()
def propose(
    law: EventLaw,
    positions: Float[Tensor, "M T P"],
    known: Bool[Tensor, "M T P"],
    slots: int = SLOTS,
    negligible: float = NEGLIGIBLE,
) -> Hypotheses:
    """Return the likely sequences of events of each track, by the Gaussian-sum filter.

    Args:
        law: The law.
        positions: Of all tracks.
        known: Which coordinates were observed.
        slots: Hypotheses of a track.
        negligible: Log weight of those that are dropped, relative to the best.
    """
    belief = initial_filter(law, (len(positions),), slots)
    for t in range(positions.shape[1]):
        belief = predict_filter(law, belief, slots) if t else belief
        belief = update_filter(law, belief, positions[:, t], known[:, t])
    weights = belief.log_weights
    track, slot = (weights > weights.amax(1, keepdim=True) + negligible).nonzero().unbind(1)
    parts = (belief.component, belief.hits, belief.directions, weights)
    return Hypotheses(track, *(part[track, slot] for part in parts))


def best_hypotheses(rows: Hypotheses, num_tracks: int) -> Hypotheses:
    """Return the likeliest hypothesis of each track, in the order of tracks."""
    order = rows.log_weight.argsort()
    best = torch.zeros(num_tracks, dtype=torch.int64, device=order.device)
    best[rows.track[order]] = order  # the last one written is the likeliest
    return Hypotheses(*(part[best] for part in rows))
