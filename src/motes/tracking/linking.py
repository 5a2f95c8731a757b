"""Linking candidates to tracks: frame by frame, then again knowing the future.

The first pass goes through the frames with Kalman predictions. Links that another explanation
would nearly match are cut, and the pieces are joined by what lies before and after the cut, surest
joins first.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from motes.tracking.assignment import best_pairs, swap_losses
from motes.tracking.detection import Candidates
from motes.tracking.existence import Rates, transition
from motes.tracking.motion import LOG_2PI, Laws, innovation, predict, start, update
from motes.tracking.sprite import Array

GATE = 4.5  # standard deviations
MAX_GATE = 40.0  # pixels
MIN_ALIVE = 0.02  # tracks less likely to come back are closed
DOUBT = 6.0  # nats: links that beat the alternative by less are cut and decided again
LOOK_AHEAD = 6  # detections after a cut that a join takes into account
MIN_BIRTH = -4.0  # nats; weaker candidates start no track


@dataclass(frozen=True, eq=False)
class Links:
    """Tracks of candidates.

    Attributes:
        track: of each candidate, -1 without one, [M].
        doubtful: whether the link from the track's earlier candidate to this one is in doubt, [M].
    """

    track: Array
    doubtful: Array


@dataclass(eq=False)
class _Active:
    """Tracks that may continue."""

    ids: Array
    mean: Array
    cov: Array
    weights: Array
    states: Array  # probabilities of ON, OFF, GONE


def local_evidence(candidates: Candidates) -> Array:
    """Return log of (likelihood ratio integrated over the position), per pixel of prior density."""
    c = candidates.covariances
    det = c[:, 0, 0] * c[:, 1, 1] - c[:, 0, 1] ** 2
    volume: Array = candidates.evidence + LOG_2PI + 0.5 * np.log(np.maximum(det, 1e-300))
    return volume


def link_frames(candidates: Candidates, laws: Laws, rates: Rates, num_frames: int) -> Links:
    """Return tracks from one pass through the frames."""
    total = len(candidates)
    track, doubtful = np.full(total, -1), np.zeros(total, bool)
    bounds = np.searchsorted(candidates.frame, np.arange(num_frames + 1))
    evidence = local_evidence(candidates)
    active = _no_tracks(len(laws))
    steps = transition(rates)
    number = 0
    for t in range(num_frames):
        here = slice(bounds[t], bounds[t + 1])
        positions, covariances = candidates.positions[here], candidates.covariances[here]
        active.mean, active.cov = predict(laws, active.mean, active.cov)
        active.states = active.states @ steps
        begin = np.log(rates.density if t == 0 else rates.birth) + np.log(rates.showing)
        births = begin + evidence[here]
        i, j, gain, density = _gains(active, positions, covariances, evidence[here], births, rates)
        shape = (len(active.ids), len(positions))
        chosen = best_pairs(i, j, gain, shape)
        mine, theirs = i[chosen], j[chosen]
        track[bounds[t] + theirs] = active.ids[mine]
        unsure = swap_losses(i, j, gain, chosen, shape) < DOUBT
        for edges, at in ((i[unsure], i[chosen]), (j[unsure], j[chosen])):
            doubtful[bounds[t] + theirs[np.isin(at, edges)]] = True
        _update(active, mine, positions[theirs], covariances[theirs], density[chosen], rates)
        fresh = np.ones(len(positions), bool)
        fresh[theirs] = False
        fresh &= births > MIN_BIRTH
        fresh_at = np.flatnonzero(fresh)
        ids = number + np.arange(len(fresh_at))
        number += len(fresh_at)
        track[bounds[t] + fresh_at] = ids
        active = _with_new(active, laws, ids, positions[fresh_at], covariances[fresh_at])
    return Links(track, doubtful)


def _no_tracks(kinds: int) -> _Active:
    return _Active(
        np.zeros(0, int), np.zeros((0, kinds, 4)), np.zeros((0, kinds, 4, 4)),
        np.zeros((0, kinds)), np.zeros((0, 3)),
    )  # fmt: skip


def _gains(
    active: _Active,
    positions: Array,
    covariances: Array,
    evidence: Array,
    births: Array,
    rates: Rates,
) -> tuple[Array, Array, Array, Array]:
    """Return track, candidate and gain of each possible link, and densities by law."""
    nothing = np.zeros(0, int)
    if len(active.ids) == 0 or len(positions) == 0:
        return nothing, nothing, np.zeros(0), np.zeros((0, active.weights.shape[1]))
    i, j = gated_pairs(active.mean, active.cov, active.weights, positions)
    density, _, _ = innovation(active.mean[i], active.cov[i], positions[j], covariances[j])
    mixture = np.log((active.weights[i] * np.exp(np.maximum(density, -600))).sum(1) + 1e-300)
    shows = active.states[:, 0]
    hidden = np.log(np.maximum(1 - shows * (1 - rates.missed), 1e-12))
    gain = np.log(np.maximum(shows[i], 1e-12)) + evidence[j] + mixture - hidden[i]
    gain -= np.maximum(births[j], 0.0)
    keep = gain > -20
    return i[keep], j[keep], gain[keep], density[keep]


def gated_pairs(mean: Array, cov: Array, weights: Array, positions: Array) -> tuple[Array, Array]:
    """Return pairs of states and positions that are close for one of the laws."""
    spread = np.sqrt(np.maximum(cov[..., 0, 0], cov[..., 1, 1])) + 0.5
    radius = np.minimum(GATE * spread, MAX_GATE)
    tree = cKDTree(positions)
    firsts, seconds = [], []
    for k in range(mean.shape[1]):
        used = np.flatnonzero(weights[:, k] > 1e-3)
        if len(used) == 0:
            continue
        lists = tree.query_ball_point(mean[used, k, :2], radius[used, k], return_sorted=False)
        counts = np.fromiter(map(len, lists), int, len(lists))
        firsts.append(np.repeat(used, counts))
        flat = [index for entry in lists for index in entry]
        seconds.append(np.array(flat, int))
    if not firsts:
        return np.zeros(0, int), np.zeros(0, int)
    size = len(positions)
    keys = np.unique(np.concatenate(firsts) * size + np.concatenate(seconds))
    return keys // size, keys % size


def _update(
    active: _Active,
    seen: Array,
    positions: Array,
    covariances: Array,
    density: Array,
    rates: Rates,
) -> None:
    """Condition the tracks on their detections, or on having none."""
    unseen = np.ones(len(active.ids), bool)
    unseen[seen] = False
    active.states[unseen, 0] *= rates.missed
    active.states[seen] = (1.0, 0.0, 0.0)
    active.states /= active.states.sum(1, keepdims=True)
    active.mean[seen], active.cov[seen], _ = update(
        active.mean[seen], active.cov[seen], positions, covariances
    )
    logits = np.log(np.maximum(active.weights[seen], 1e-12)) + density
    weights = np.exp(logits - logits.max(1, keepdims=True))
    active.weights[seen] = weights / weights.sum(1, keepdims=True)


def _with_new(
    active: _Active, laws: Laws, ids: Array, positions: Array, covariances: Array
) -> _Active:
    mean, cov = start(laws, positions, covariances)
    alive = active.states[:, :2].sum(1) > MIN_ALIVE
    return _Active(
        np.concatenate((active.ids[alive], ids)),
        np.concatenate((active.mean[alive], mean)),
        np.concatenate((active.cov[alive], cov)),
        np.concatenate((active.weights[alive], np.tile(laws.weights, (len(ids), 1)))),
        np.concatenate((active.states[alive], np.tile((1.0, 0.0, 0.0), (len(ids), 1)))),
    )


def relink(
    candidates: Candidates, links: Links, laws: Laws, rates: Rates, rounds: tuple[float, ...]
) -> Array:
    """Return tracks [M] after cutting doubtful links and joining the pieces again.

    Args:
        candidates: of all frames.
        links: of the first pass.
        laws: of motion.
        rates: of births, deaths and blinks.
        rounds: smallest loss of each round's joins against the alternatives, in nats.
    """
    track = cut(candidates, links)
    for margin in rounds:
        track = join_once(candidates, track, laws, rates, margin)
    return track


def cut(candidates: Candidates, links: Links) -> Array:
    """Return tracks in which doubtful links are cut."""
    used = np.flatnonzero(links.track >= 0)
    order = used[np.lexsort((candidates.frame[used], links.track[used]))]
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(links.track[order]) != 0) | links.doubtful[order[1:]]
    pieces = np.full(len(candidates), -1)
    pieces[order] = np.cumsum(first) - 1
    return pieces


def join_once(
    candidates: Candidates, track: Array, laws: Laws, rates: Rates, margin: float
) -> Array:
    """Return tracks [M] with those joined that fit, if the join beats alternatives by a margin."""
    used = np.flatnonzero(track >= 0)
    order = used[np.lexsort((candidates.frame[used], track[used]))]
    if len(order) == 0:
        return track
    names, begin, length = np.unique(track[order], return_index=True, return_counts=True)
    head, tail = order[begin], order[begin + length - 1]
    mean, cov, weights = end_states(candidates, order, begin, length, laws)
    i, j, gain = _join_gains(
        candidates, order, begin, length, (mean, cov, weights), laws, rates, head, tail
    )
    shape = (len(names), len(names))
    chosen = best_pairs(i, j, gain, shape)
    loss = swap_losses(i, j, gain, chosen, shape)
    if margin > 0:
        unsure = loss < margin
        picked = np.flatnonzero(chosen)
        bad = np.isin(i[picked], i[unsure]) | np.isin(j[picked], j[unsure])
        bad |= gain[picked] < margin
        chosen[picked[bad]] = False
    follower = np.full(len(names), -1)
    follower[i[chosen]] = j[chosen]
    leader = np.ones(len(names), bool)
    leader[j[chosen]] = False
    root = np.where(leader, np.arange(len(names)), -1)
    current = np.flatnonzero(leader)
    label = current.copy()
    while len(current):
        following = follower[current]
        go = following >= 0
        root[following[go]] = label[go]
        current, label = following[go], label[go]
    joined = np.full(len(track), -1)
    joined[order] = np.repeat(root, length)
    return joined


def end_states(
    candidates: Candidates, order: Array, begin: Array, length: Array, laws: Laws
) -> tuple[Array, Array, Array]:
    """Return filtered states and probabilities of the laws at the last candidate of each track."""
    count = len(begin)
    mean, cov = start(
        laws, candidates.positions[order[begin]], candidates.covariances[order[begin]]
    )
    logits = np.tile(np.log(np.maximum(laws.weights, 1e-12)), (count, 1))
    frame = candidates.frame[order[begin]].copy()
    by_length = np.argsort(-length, kind="stable")
    for age in range(1, int(length.max(initial=1))):
        now = by_length[: np.searchsorted(-length[by_length], -age, side="left")]
        at = order[begin[now] + age]
        mean[now], cov[now] = leap(laws, mean[now], cov[now], candidates.frame[at] - frame[now])
        frame[now] = candidates.frame[at]
        mean[now], cov[now], density = update(
            mean[now], cov[now], candidates.positions[at], candidates.covariances[at]
        )
        logits[now] += density
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return mean, cov, weights / weights.sum(1, keepdims=True)


def leap(laws: Laws, mean: Array, cov: Array, frames: Array) -> tuple[Array, Array]:
    """Return states predicted over a number of frames, one for each object."""
    if len(frames) and (frames == 1).all():
        return predict(laws, mean, cov)
    mean, cov = mean.copy(), cov.copy()
    for step in np.unique(frames):
        if step > 0:
            chosen = frames == step
            mean[chosen], cov[chosen] = predict(laws.powers(int(step)), mean[chosen], cov[chosen])
    return mean, cov


def gap_log_odds(rates: Rates, longest: int) -> tuple[Array, float]:
    """Return log probabilities of showing again after g = 1, 2, ... frames, and of not doing so.

    Entry g - 1 of the first is for a detection g frames after the last one, all frames between
    them without a detection.
    """
    steps = transition(rates)
    state = np.array((1.0, 0.0, 0.0))
    seen = np.zeros(longest)
    for gap in range(longest):
        state = state @ steps
        seen[gap] = np.log(max(state[0] * (1 - rates.missed), 1e-300))
        state[0] *= rates.missed
    return seen, float(np.log(state.sum()))


def longest_gap(rates: Rates) -> int:
    """Return after how many frames without detection an object is given up."""
    steps = transition(rates)
    state = np.array((1.0, 0.0, 0.0))
    for gap in range(1, 200):
        state = state @ steps
        state[0] *= rates.missed
        if state[:2].sum() < MIN_ALIVE * state.sum():
            return gap
    return 200


def _join_gains(
    candidates: Candidates,
    order: Array,
    begin: Array,
    length: Array,
    states: tuple[Array, Array, Array],
    laws: Laws,
    rates: Rates,
    head: Array,
    tail: Array,
) -> tuple[Array, Array, Array]:
    """Return tracks that may be one, earlier and later, with the gain of joining them."""
    longest = longest_gap(rates)
    seen, unseen = gap_log_odds(rates, longest)
    i, j = _join_pairs(candidates, states, laws, head, tail, longest)
    if len(i) == 0:
        return i, j, np.zeros(0)
    mean, cov, weights = (part[i] for part in states)
    logits = np.log(np.maximum(weights, 1e-12))
    alone_mean, alone_cov = start(
        laws, candidates.positions[head[j]], candidates.covariances[head[j]]
    )
    alone_logits = np.tile(np.log(np.maximum(laws.weights, 1e-12)), (len(i), 1))
    frame = candidates.frame[tail[i]].copy()
    for step in range(min(LOOK_AHEAD, int(length[j].max()))):
        now = np.flatnonzero(length[j] > step)
        at = order[begin[j[now]] + step]
        gap = candidates.frame[at] - frame[now]
        frame[now] = candidates.frame[at]
        z, r = candidates.positions[at], candidates.covariances[at]
        mean[now], cov[now] = leap(laws, mean[now], cov[now], gap)
        mean[now], cov[now], density = update(mean[now], cov[now], z, r)
        logits[now] += density
        if step:
            alone_mean[now], alone_cov[now] = leap(laws, alone_mean[now], alone_cov[now], gap)
            alone_mean[now], alone_cov[now], density = update(alone_mean[now], alone_cov[now], z, r)
            alone_logits[now] += density
    together = np.logaddexp.reduce(logits, 1)
    apart = np.logaddexp.reduce(alone_logits, 1) + np.log(rates.birth * rates.showing)
    gaps = candidates.frame[head[j]] - candidates.frame[tail[i]]
    gain = together - apart + seen[gaps - 1] - unseen
    keep = gain > -20
    return i[keep], j[keep], gain[keep]


def _join_pairs(
    candidates: Candidates,
    states: tuple[Array, Array, Array],
    laws: Laws,
    head: Array,
    tail: Array,
    longest: int,
) -> tuple[Array, Array]:
    """Return pairs of tracks where the later one begins near where the earlier one is expected."""
    firsts, seconds = [np.zeros(0, int)], [np.zeros(0, int)]
    begins, ends = candidates.frame[head], candidates.frame[tail]
    last_begin = begins.max(initial=0)
    for gap in range(1, longest + 1):
        early = np.flatnonzero(ends + gap <= last_begin)
        if len(early) == 0:
            break
        mean, cov = predict(laws.powers(gap), states[0][early], states[1][early])
        # Frames are a third coordinate, too far apart for pairs of different frames.
        apart = 4 * MAX_GATE
        lifted = np.concatenate(
            (
                mean[..., :2],
                np.broadcast_to(((ends[early] + gap) * apart)[:, None, None], (*mean.shape[:2], 1)),
            ),
            2,
        )
        points = np.column_stack((candidates.positions[head], begins * apart))
        i, j = _gated_lifted(lifted, cov, states[2][early], points)
        firsts.append(early[i])
        seconds.append(j)
    return np.concatenate(firsts), np.concatenate(seconds)


def _gated_lifted(lifted: Array, cov: Array, weights: Array, points: Array) -> tuple[Array, Array]:
    spread = np.sqrt(np.maximum(cov[..., 0, 0], cov[..., 1, 1])) + 0.5
    radius = np.minimum(GATE * spread, MAX_GATE)
    tree = cKDTree(points)
    keys = [np.zeros(0, int)]
    for k in range(lifted.shape[1]):
        used = np.flatnonzero(weights[:, k] > 1e-3)
        lists = tree.query_ball_point(lifted[used, k], radius[used, k], return_sorted=False)
        counts = np.fromiter(map(len, lists), int, len(lists))
        flat = np.array([index for entry in lists for index in entry], int)
        keys.append(np.repeat(used, counts) * len(points) + flat)
    both = np.unique(np.concatenate(keys))
    return both // len(points), both % len(points)
