"""Laws of motion and rates of a recording, learned from its own tracks by a few rounds of EM."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import ndtr

from motes.tracking.detection import Candidates
from motes.tracking.existence import (
    Existence,
    Rates,
    solve_chain,
    unseen_after,
    unseen_before,
)
from motes.tracking.linking import (
    LOOK_AHEAD,
    leap,
    link_frames,
    local_evidence,
    longest_gap,
    relink,
)
from motes.tracking.motion import (
    Laws,
    Paths,
    Spans,
    backwards,
    predict,
    smooth,
    spans,
    start,
    two_laws,
    update,
)
from motes.tracking.noise import gather, most_likely_noise
from motes.tracking.sprite import Array

ROUNDS = 3
JOINS = (8.0, 3.0, 0.0)  # nats by which joins must beat alternatives, round by round
SPARSE = 0.1  # of the mean distance of objects, within which moves are unambiguous
MIN_STEPS = 5.0  # of tracks that follow a law, from which it is learned
MIN_NOISE = 1e-9  # of the velocities of walks
STRONG = 8.0  # nats of a candidate that counts for first guesses


@dataclass(frozen=True, eq=False)
class Solution:
    """Tracks with paths and existence, on common rows.

    Attributes:
        table: rows of all tracks.
        candidate: of each row, -1 without a detection.
        paths: smoothed states.
        existence: probabilities.
    """

    table: Spans
    candidate: Array
    paths: Paths
    existence: Existence


def first_guess(candidates: Candidates, area: float, num_frames: int) -> tuple[Laws, Rates]:
    """Return rough laws and rates from displacements between mutual nearest neighbours."""
    strong = candidates.select(candidates.evidence > STRONG)
    bounds = np.searchsorted(strong.frame, np.arange(num_frames + 1))
    shifts = []
    for t in range(min(num_frames - 1, 60)):
        a = strong.positions[bounds[t] : bounds[t + 1]]
        b = strong.positions[bounds[t + 1] : bounds[t + 2]]
        if len(a) and len(b):
            near, back = cKDTree(b).query(a)[1], cKDTree(a).query(b)[1]
            mutual = back[near] == np.arange(len(a))
            shifts.append(b[near[mutual]] - a[mutual])
    moves = np.concatenate(shifts) if shifts else np.ones((1, 2))
    size = float(np.sqrt(np.median(np.square(moves).sum(1)) / 1.386)) + 0.05
    density = max(len(strong), 1) / num_frames / area
    speed = 2 * size + 0.5
    fast = float(np.quantile(np.abs(moves).max(1), 0.9))
    if fast < SPARSE / np.sqrt(density):  # neighbours are far apart: fast moves are no mistakes
        speed = max(speed, fast)
    laws = two_laws(size, speed, 0.1 * size + 0.02)
    return laws, Rates(birth=0.03 * density, density=density)


def solve(
    candidates: Candidates,
    laws: Laws,
    rates: Rates,
    size: tuple[int, int],
    num_frames: int,
    joins: tuple[float, ...] = JOINS,
) -> Solution:
    """Return tracks of the candidates under given laws and rates.

    Args:
        candidates: of all frames.
        laws: of motion.
        rates: of births, deaths and blinks.
        size: height and width of a frame.
        num_frames: of the recording.
        joins: smallest losses of the rounds of `relink`.
    """
    links = link_frames(candidates, laws, rates, num_frames)
    track = relink(candidates, links, laws, rates, joins)
    return describe(candidates, track, laws, rates, size, num_frames)


def describe(
    candidates: Candidates,
    track: Array,
    laws: Laws,
    rates: Rates,
    size: tuple[int, int],
    num_frames: int,
) -> Solution:
    """Return paths and existence of given tracks [M]."""
    used = np.flatnonzero(track >= 0)
    names, labels = np.unique(track[used], return_inverse=True)
    count = len(names)
    first, last = np.full(count, num_frames), np.full(count, -1)
    np.minimum.at(first, labels, candidates.frame[used])
    np.maximum.at(last, labels, candidates.frame[used])
    reach = min(longest_gap(rates), 12)
    begin, end = np.maximum(first - reach, 0), np.minimum(last + reach, num_frames - 1)
    core = spans(first, end)
    slot = np.full((count, int((end - first).max(initial=0)) + 1), -1)
    slot[labels, candidates.frame[used] - first[labels]] = used
    core_candidate = slot[core.track, core.frame - first[core.track]]
    paths = smooth(
        core, laws, core_candidate >= 0, candidates.positions[core_candidate],
        candidates.covariances[core_candidate],
    )  # fmt: skip
    table, candidate, paths = _with_approach(core, core_candidate, paths, laws, begin, end, first)
    beyond = unseen_before(rates, begin), unseen_after(rates, num_frames - 1 - end)
    rebirth = rebirth_weights(candidates, candidate, table, paths, laws, rates)
    existence = _existence(candidates, candidate, table, paths, rates, size, first, beyond, rebirth)
    return Solution(table, candidate, paths, existence)


def _with_approach(
    core: Spans, candidate: Array, paths: Paths, laws: Laws, begin: Array, end: Array, first: Array
) -> tuple[Spans, Array, Paths]:
    """Return rows that start before the first detections, with states predicted backwards."""
    table = spans(begin, end)
    width = int((end - begin).max(initial=0)) + 1
    source = np.full((len(begin), width), -1)
    source[core.track, core.frame - begin[core.track]] = np.arange(len(core.track))
    from_row = source[table.track, table.frame - begin[table.track]]
    mean, cov = paths.mean[from_row], paths.cov[from_row]
    reverse = backwards(laws)
    at = np.full((len(begin), width), -1)
    at[table.track, table.frame - begin[table.track]] = np.arange(len(table.track))
    for back in range(1, int((first - begin).max(initial=0)) + 1):
        tracks = np.flatnonzero(first - begin >= back)
        age = first[tracks] - begin[tracks] - back
        here, ahead = at[tracks, age], at[tracks, age + 1]
        mean[here], cov[here] = predict(reverse, mean[ahead], cov[ahead])
    density = np.where((from_row >= 0)[:, None], paths.density[from_row], 0.0)
    found = np.where(from_row >= 0, candidate[from_row], -1)
    return table, found, replace(paths, mean=mean, cov=cov, density=density)


def _existence(
    candidates: Candidates,
    candidate: Array,
    table: Spans,
    paths: Paths,
    rates: Rates,
    size: tuple[int, int],
    first: Array,
    beyond: tuple[Array, Array],
    rebirth: Array,
) -> Existence:
    detected = candidate >= 0
    evidence = np.full(len(candidate), np.log(rates.missed))
    evidence[detected] = local_evidence(candidates)[candidate[detected]] + np.log1p(-rates.missed)
    later = detected & (table.frame > first[table.track])
    weights = paths.weights[table.track[later]]
    evidence[later] += np.log(
        (weights * np.exp(np.maximum(paths.density[later], -600))).sum(1) + 1e-300
    )
    arrival = np.where(table.frame == 0, rates.density, rates.birth)
    arrival = np.where(table.frame > first[table.track], 0.0, arrival)
    survival = _survival(paths, table, detected, size)
    return solve_chain(table, rates, evidence, arrival * survival, survival, *beyond, rebirth)


def rebirth_weights(
    candidates: Candidates, candidate: Array, table: Spans, paths: Paths, laws: Laws, rates: Rates
) -> Array:
    """Return how much likelier the first detection after a gap is of a new object, [rows].

    The weight is  birth p(detections | new object) / p(detections | the one before the gap)  over
    the next LOOK_AHEAD detections, and 0 in other rows.

    Law: equals the ratio of dense Gaussian densities (test_rebirth_weights_equal_dense_densities).
    """
    weights = np.zeros(len(candidate))
    order = np.lexsort((table.frame, table.track))
    rows = order[candidate[order] >= 0]
    track, frame = table.track[rows], table.frame[rows]
    after = np.flatnonzero((np.diff(track) == 0) & (np.diff(frame) > 1)) + 1
    if len(after) == 0:
        return weights
    total = np.concatenate((np.zeros((1, len(laws))), np.cumsum(paths.density[rows], 0)))
    begin = np.searchsorted(track, track[after])
    stop = np.minimum(after + LOOK_AHEAD, np.searchsorted(track, track[after], side="right"))
    prior = np.log(np.maximum(laws.weights, 1e-12))
    earlier = prior + total[after] - total[begin]
    together = np.logaddexp.reduce(earlier + total[stop] - total[after], 1)
    together -= np.logaddexp.reduce(earlier, 1)
    used = candidate[rows]
    mean, cov = start(laws, candidates.positions[used[after]], candidates.covariances[used[after]])
    alone = np.tile(prior, (len(after), 1))
    for step in range(1, LOOK_AHEAD):
        now = np.flatnonzero(after + step < stop)
        at = after[now] + step
        mean[now], cov[now] = leap(laws, mean[now], cov[now], frame[at] - frame[at - 1])
        mean[now], cov[now], density = update(
            mean[now], cov[now], candidates.positions[used[at]], candidates.covariances[used[at]]
        )
        alone[now] += density
    apart = np.logaddexp.reduce(alone, 1) + np.log(rates.birth * rates.showing)
    weights[rows[after]] = np.exp(np.clip(apart - together, -600, 600))
    return weights


def _survival(paths: Paths, table: Spans, detected: Array, size: tuple[int, int]) -> Array:
    """Return the probability of being inside the picture in each row; 1 where detected."""
    weights = paths.weights[table.track]
    inside = np.zeros(len(weights))
    for k in range(weights.shape[1]):
        both = np.ones(len(weights))
        for axis, length in ((0, size[1]), (1, size[0])):
            scale = np.sqrt(np.maximum(paths.cov[:, k, axis, axis], 1e-6))
            middle = paths.mean[:, k, axis]
            both *= ndtr((length - 0.5 - middle) / scale) - ndtr((-0.5 - middle) / scale)
        inside += weights[:, k] * both
    inside[detected] = 1.0
    return inside.clip(1e-6, 1.0)


def learn(
    candidates: Candidates, size: tuple[int, int], num_frames: int, rounds: int = ROUNDS
) -> tuple[Laws, Rates]:
    """Return laws and rates that explain the candidates, by EM from rough guesses."""
    area = float(size[0] * size[1])
    laws, rates = first_guess(candidates, area, num_frames)
    for _ in range(rounds):
        solution = solve(candidates, laws, rates, size, num_frames, joins=JOINS[1:])
        laws = relearn_laws(candidates, solution, laws)
        rates = relearn_rates(solution, rates, area, num_frames)
    return laws, rates


def relearn_rates(solution: Solution, rates: Rates, area: float, num_frames: int) -> Rates:
    """Return the rates that the expected transitions suggest; priors of a few events."""
    existence, table = solution.existence, solution.table
    moves = existence.moves
    on, off = moves[0].sum() + 1e-9, moves[1].sum() + 1e-9
    stay_on, stay_off = moves[0, :2].sum() + 1e-9, moves[1, :2].sum() + 1e-9
    left = moves[:2, 2].sum() - existence.deaths  # steps out of the picture: no trials
    death = (existence.deaths + 0.5) / (on + off - left + 25)
    blink = (moves[0, 1] + 0.2) / (stay_on + 10)
    back = (moves[1, 0] + 1.5) / (stay_off + 5)
    exists = np.bincount(table.frame, existence.exists, num_frames)
    return replace(
        rates,
        birth=(existence.births + moves[2, 0] + 0.2) / max(num_frames - 1, 1) / area,
        density=max(float(exists.mean()), 0.1) / area,
        death=float(np.clip(death, 1e-4, 0.5)),
        off=float(np.clip(blink, 1e-4, 0.5)),
        on=float(np.clip(back, 0.02, 0.95)),
    )


def relearn_laws(candidates: Candidates, solution: Solution, laws: Laws) -> Laws:
    """Return the laws that fit the tracks best.

    Forces maximise the expected log density of the smoothed states; noises the likelihood.
    """
    table, paths = solution.table, solution.paths
    detections = np.bincount(table.track, solution.candidate >= 0, len(paths.weights))
    good = (detections >= 4) & (solution.existence.log_odds > 3)
    if good.sum() == 0:
        return laws
    past, future = steps_within(solution)
    use = good[table.track[past]]
    past, future = past[use], future[use]
    weights = paths.weights[table.track[past]]
    force = laws.force.copy()
    velocity_cov, velocity = laws.velocity_cov.copy(), laws.velocity.copy()
    if weights[:, 1].sum() >= MIN_STEPS:
        w = weights[:, 1] / weights[:, 1].sum()
        force[1] = w @ (paths.mean[future, 1] - paths.mean[past, 1] @ laws.transition[1].T)
    starts = first_rows(solution)[good]
    w = paths.weights[good][:, 1]
    if w.sum() > 3:
        v = paths.mean[starts, 1, 2:]
        centre = w @ v / w.sum()
        off = v - centre
        velocity[1] = centre
        velocity_cov[1] = np.einsum("n,ni,nj->ij", w / w.sum(), off, off) + 0.01 * np.eye(2)
    shares = paths.weights[good].sum(0) + 0.5
    laws = replace(
        laws, force=force, velocity=velocity, velocity_cov=velocity_cov,
        weights=shares / shares.sum(),
    )  # fmt: skip
    return replace(laws, noise=_noise(candidates, solution, laws, good))


def _noise(candidates: Candidates, solution: Solution, laws: Laws, good: Array) -> Array:
    """Return the most likely noise [K, 4, 4] of the laws, given which tracks follow them."""
    table, noise = solution.table, laws.noise.copy()
    rows = np.flatnonzero((solution.candidate >= 0) & good[table.track])
    rows = rows[np.lexsort((table.frame[rows], table.track[rows]))]
    used = solution.candidate[rows]
    found = gather(
        table.track[rows], table.frame[rows], candidates.positions[used],
        candidates.covariances[used],
    )  # fmt: skip
    names, lengths = np.unique(table.track[rows], return_counts=True)
    weights = solution.paths.weights[names[np.argsort(-lengths, kind="stable")]]
    for k in range(len(laws)):
        if weights[:, k] @ (found.lengths - 1) < MIN_STEPS:
            continue
        place, speed = most_likely_noise(
            found, weights[:, k], (noise[k, 0, 0], noise[k, 2, 2] if k else 0.0),
            (laws.force[k, :2], laws.force[k, 2:]), laws.velocity[k],
            np.diag(laws.velocity_cov[k]) if k else np.zeros(2),
        )  # fmt: skip
        noise[k] = np.diag((place, place, *(2 * [speed if k else MIN_NOISE])))
    return noise


def first_rows(solution: Solution) -> Array:
    """Return the row of each track's first detection."""
    rows = np.flatnonzero(solution.candidate >= 0)[::-1]
    first = np.zeros(len(solution.table.order), int)
    first[solution.table.track[rows]] = rows  # the earliest row is written last
    return first


def steps_within(solution: Solution) -> tuple[Array, Array]:
    """Return rows and next rows of the same tracks, between first and last detections."""
    table = solution.table
    bounds = table.bounds
    detected = np.flatnonzero(solution.candidate >= 0)
    first = np.full(len(table.order), np.iinfo(np.int64).max)
    last = np.full(len(table.order), -1)
    np.minimum.at(first, table.track[detected], table.frame[detected])
    np.maximum.at(last, table.track[detected], table.frame[detected])
    future = np.arange(bounds[1], bounds[-1]) if len(bounds) > 2 else np.zeros(0, int)
    age = np.searchsorted(bounds, future, side="right") - 1
    past = future - bounds[age] + bounds[age - 1]
    frame, track = table.frame[past], table.track[past]
    keep = (frame >= first[track]) & (frame < last[track])
    return past[keep], future[keep]
