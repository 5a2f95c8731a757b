"""Scores of trackers: hand-computed cases, and searches over everything in tiny ones.

On 200 random cases the scores were also compared once with TrackEval (commit 12c8791): MOTA,
switches, false alarms, IDF1, HOTA, DetA and AssA agreed within 1e-15.
"""

import itertools

import numpy as np
import pytest

from motes.evaluation.tracking_metrics import (
    ALPHAS,
    TrackSet,
    clear_mot,
    existence,
    follow,
    hota,
    idf1,
    regions,
    score_tracks,
)

GATE = 4.0


def tiny(seed, objects=3, tracks=3, frames=4):
    """Return a random case with noisy copies of the truth, switched in the middle."""
    draw = np.random.default_rng(seed)
    truth = draw.uniform(0, 12, (objects, 1, 2)) + draw.normal(0, 1, (objects, frames, 2))
    found = truth[draw.integers(objects, size=tracks)] + draw.normal(0, 2, (tracks, frames, 2))
    found[:2, frames // 2 :] = found[:2, frames // 2 :][::-1].copy()
    return truth, draw.random((objects, frames)) < 0.8, found, draw.random((tracks, frames)) < 0.8


def alike(one, other):
    return max(0.0, 1 - float(np.hypot(*(one - other))) / (2 * GATE))


def matchings(true, found):
    """Yield every one-to-one matching of two small sets, as dictionaries."""
    for size in range(min(len(true), len(found)) + 1):
        for rows in itertools.combinations(true, size):
            for columns in itertools.permutations(found, size):
                yield dict(zip(rows, columns, strict=True))


def test_errors_are_counted_by_hand():
    """Two objects; track 0 follows the first, then the second; one false row, one miss."""
    time = np.arange(4.0)
    truth = np.stack((np.stack((time, 0 * time), 1), np.stack((time, 0 * time + 20), 1)))
    present = np.ones((2, 4), dtype=bool)
    tracks = truth.copy()
    tracks[:, 2:] = truth[::-1, 2:]  # identities are exchanged after two frames
    tracks = np.concatenate((tracks, np.full((1, 4, 2), 50.0)))
    reported = np.ones((3, 4), dtype=bool)
    reported[1, 0] = False  # a miss
    reported[2, 1:] = False  # one false row
    found = clear_mot(truth, present, tracks, reported, GATE)
    assert (found.misses, found.false_alarms, found.switches) == (1, 1, 2)
    assert found.mota == pytest.approx(1 - 4 / 8)
    # The best assignment of whole tracks shares two rows with each object.
    assert idf1(truth, present, tracks, reported, GATE) == pytest.approx(2 * 4 / (8 + 8))


def test_perfect_tracks_have_perfect_scores():
    truth, present, _, _ = tiny(0)
    arguments = (truth, present, truth, present, GATE)
    assert clear_mot(*arguments).mota == 1
    assert idf1(*arguments) == 1
    assert hota(*arguments).hota == pytest.approx(1)


def test_a_track_cut_in_two_halves_its_association():
    """One object, two half tracks: DetA = 1, AssA = 1/2, HOTA = sqrt(1/2), IDF1 = 1/2."""
    truth = np.zeros((1, 4, 2))
    reported = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=bool)
    arguments = (truth, np.ones((1, 4), dtype=bool), np.zeros((2, 4, 2)), reported, GATE)
    assert hota(*arguments).hota == pytest.approx(np.sqrt(0.5))
    assert idf1(*arguments) == pytest.approx(0.5)
    assert clear_mot(*arguments).switches == 1


@pytest.mark.parametrize("seed", range(20))
def test_clear_equals_the_brute_force_search(seed):
    truth, present, tracks, reported = tiny(seed)
    found = clear_mot(truth, present, tracks, reported, GATE)
    before, last = {}, {}
    misses = false_alarms = switches = 0
    for t in range(truth.shape[1]):
        true, shown = np.nonzero(present[:, t])[0], np.nonzero(reported[:, t])[0]

        def value(match, t=t, before=before):
            pairs = [(n, m, alike(truth[n, t], tracks[m, t])) for n, m in match.items()]
            if any(s < 0.5 for _, _, s in pairs):
                return -1.0
            return sum(1000 * (before.get(n) == m) + s for n, m, s in pairs)

        best = max(matchings(true, shown), key=value)
        switches += sum(n in last and last[n] != m for n, m in best.items())
        last |= best
        if len(true) and len(shown):
            before = best
        misses += len(true) - len(best)
        false_alarms += len(shown) - len(best)
    assert (found.misses, found.false_alarms, found.switches) == (misses, false_alarms, switches)


@pytest.mark.parametrize("seed", range(20))
def test_idf1_equals_the_brute_force_search(seed):
    truth, present, tracks, reported = tiny(seed)
    frames = range(truth.shape[1])

    def shared(match):
        return sum(
            present[n, t] and reported[m, t] and alike(truth[n, t], tracks[m, t]) >= 0.5
            for n, m in match.items()
            for t in frames
        )

    best = max(map(shared, matchings(range(3), range(3))))
    expected = 2 * best / (present.sum() + reported.sum())
    assert idf1(truth, present, tracks, reported, GATE) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_hota_equals_the_naive_loop(seed):
    truth, present, tracks, reported = tiny(seed)
    frames = range(truth.shape[1])
    weight = np.zeros((3, 3))
    for t in frames:
        s = np.array(
            [
                [
                    present[n, t] * reported[m, t] * alike(truth[n, t], tracks[m, t])
                    for m in range(3)
                ]
                for n in range(3)
            ]
        )
        for n, m in itertools.product(range(3), range(3)):
            union = s[n].sum() + s[:, m].sum() - s[n, m]
            weight[n, m] += s[n, m] / union if union > 0 else 0
    total = present.sum(1)[:, None] + reported.sum(1)[None]
    weight /= np.maximum(total - weight, 1e-300)
    values = []
    for alpha in ALPHAS:
        hits = []
        for t in frames:
            true, shown = np.nonzero(present[:, t])[0], np.nonzero(reported[:, t])[0]
            size = min(len(true), len(shown))
            full = [match for match in matchings(true, shown) if len(match) == size]
            best = max(
                full,
                key=lambda match, t=t: sum(
                    weight[n, m] * alike(truth[n, t], tracks[m, t]) for n, m in match.items()
                ),
            )
            good = [(n, m) for n, m in best.items() if alike(truth[n, t], tracks[m, t]) >= alpha]
            hits += good
        detection = len(hits) / (present.sum() + reported.sum() - len(hits))
        counts = {pair: hits.count(pair) for pair in set(hits)}
        association = sum(c * c / (total[pair] - c) for pair, c in counts.items())
        values.append(np.sqrt(detection * association / max(1, len(hits))))
    assert hota(truth, present, tracks, reported, GATE).hota == pytest.approx(np.mean(values))


@pytest.mark.statistical
def test_regions_of_the_stated_law_hold_nine_of_ten():
    """20,000 draws: 5 standard errors of a share of .9 are .011."""
    draw = np.random.default_rng(0)
    factor = np.array([[1.0, 0.0], [0.6, 0.4]])
    error = draw.standard_normal((20, 1000, 2)) @ factor.T
    covariances = np.broadcast_to(factor @ factor.T, (20, 1000, 2, 2))
    ones = np.ones((20, 1000))
    tracks = TrackSet(error, ones, ones, covariances)
    pairs = np.repeat(np.arange(20)[:, None], 1000, 1)
    found = regions(np.zeros((20, 1000, 2)), tracks, pairs)
    assert abs(found.coverage - 0.9) < 5 * np.sqrt(0.09 / 20_000)
    assert found.rmse == pytest.approx(found.stated_sd, rel=0.03)


def test_a_track_follows_the_object_of_its_nearest_match():
    """An object that blinks keeps its track; a second track of it is false; after death none."""
    exists = np.array([[1, 1, 1, 1, 0]], dtype=bool)
    pairs = np.array([[0, -1, -1, 1, -1]])
    assert follow(pairs, exists, 2).tolist() == [[0, 0, 1, 1, -1]]
    stated = np.array([[0.95, 0.95, 0.95, 0.0, 0.0], [0.0, 0.0, 0.95, 0.95, 0.35]])
    found = existence(exists, TrackSet(np.zeros((2, 5, 2)), stated, stated), pairs)
    assert found.rows[9] == 5
    assert found.true[9] == pytest.approx(4 / 5)  # two tracks in frame 2, one object
    assert found.rows[3] == 1
    assert found.true[3] == 0
    assert found.expected_count == pytest.approx(stated.sum() / 5)
    assert found.true_count == pytest.approx(4 / 5)
    assert found.largest_gap(1) == pytest.approx(0.35)


def test_all_scores_of_perfect_tracks():
    truth, present, _, _ = tiny(1)
    exists = present.astype(float)
    covariances = np.broadcast_to(np.eye(2), (*present.shape, 2, 2))
    tracks = TrackSet(truth, exists, exists, covariances)
    found = score_tracks(truth, present, present, tracks)
    assert found["idf1"] == found["mota"] == found["coverage"] == 1
    assert found["rmse"] == 0
    assert found["expected_count"] == found["true_count"]
    nothing = TrackSet(np.zeros((0, 4, 2)), np.zeros((0, 4)), np.zeros((0, 4)))
    assert score_tracks(truth, present, present, nothing)["mota"] == 0
