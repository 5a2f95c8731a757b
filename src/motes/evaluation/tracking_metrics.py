"""Scores of trackers whose objects come and go, against truth with births and deaths.

MOTA, IDF1 and HOTA follow their papers (CLEAR MOT 2008, Ristani 2016, Luiten 2021) on points: the
similarity of two points at a distance d is max(0, 1 - d / (2 gate)), so that points within `gate`
pixels may be matched at the usual threshold of one half.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment

from motes.core.axes import Bool, Float, Int

GATE = 4.0  # pixels, as in `metrics.tracked`
ALPHAS = np.arange(0.05, 0.99, 0.05)  # similarity thresholds of HOTA
REGION = 4.605170185988092  # squared Mahalanobis radius of a 90 % region in the plane: -2 log .1
SHOWN = 0.5  # a row is reported where the object is shown at least this probably
LEAST = 0.05  # probability of existence below which rows are left out
EPSILON = np.finfo(np.float64).eps
NUM_BINS = 10

Points = Float[np.ndarray, "N T 2"]
Mask = Bool[np.ndarray, "N T"]
Pairs = Int[np.ndarray, "N T"]  # index of the track that is matched to each true object, or -1


class TrackerOutput(Protocol):
    """What a tracker returns: rows are tracks, columns frames."""

    @property
    def positions(self) -> Float[np.ndarray, "M T 2"]:
        """Pixels (x, y); NaN where unknown."""

    @property
    def covariances(self) -> Float[np.ndarray, "M T 2 2"] | None:
        """Of the positions; None if the tracker states none."""

    @property
    def exists(self) -> Float[np.ndarray, "M T"]:
        """Probability that the object exists in the frame."""

    @property
    def shows(self) -> Float[np.ndarray, "M T"]:
        """Probability that the object exists and is visible in the frame."""


@dataclass(frozen=True, eq=False)
class TrackSet:
    """Tracks as arrays; see `TrackerOutput`."""

    positions: Float[np.ndarray, "M T 2"]
    exists: Float[np.ndarray, "M T"]
    shows: Float[np.ndarray, "M T"]
    covariances: Float[np.ndarray, "M T 2 2"] | None = None


class Clear(NamedTuple):
    """CLEAR MOT: errors of each kind, and the matches they come from."""

    mota: float
    misses: int
    false_alarms: int
    switches: int
    pairs: Pairs


class Hota(NamedTuple):
    """HOTA averaged over thresholds, its value at one half, and the parts of the average."""

    hota: float
    hota_50: float
    detection: float
    association: float


class Regions(NamedTuple):
    """Errors of matched rows and the share of them inside the stated 90 % regions."""

    rmse: float  # pixels, root of the mean squared distance
    coverage: float  # NaN without covariances
    stated_sd: float  # pixels, root of the mean trace
    rows: int


class Existence(NamedTuple):
    """Stated probabilities of existence against truth, in bins of 10 %."""

    stated: Float[np.ndarray, " bins"]  # mean probability in the bin; NaN if empty
    true: Float[np.ndarray, " bins"]  # share of rows whose object exists
    rows: Int[np.ndarray, " bins"]
    expected_count: float  # mean over frames of the summed probabilities
    true_count: float

    def largest_gap(self, least_rows: int = 50) -> float:
        """Return the largest difference of stated and true in bins with enough rows."""
        enough = self.rows >= least_rows
        gaps = np.abs(self.stated - self.true)[enough]
        return float(gaps.max()) if len(gaps) else 0.0


def similarity(
    one: Float[np.ndarray, "n 2"], other: Float[np.ndarray, "m 2"], gate: float
) -> Float[np.ndarray, "n m"]:
    """Return max(0, 1 - distance / (2 gate)) of all pairs of points."""
    distance = np.linalg.norm(one[:, None] - other[None], axis=-1)
    near: Float[np.ndarray, "n m"] = (1 - distance / (2 * gate)).clip(0)
    return near


def clear_mot(
    truth: Points, present: Mask, tracks: Points, reported: Mask, gate: float = GATE
) -> Clear:
    """Return MOTA = 1 - (misses + false alarms + switches) / true rows.

    Matches of the last frame are kept where they still hold; the others maximise the similarity.
    A switch is a match to another track than the object's last one, however long ago.

    Law: equals a search over all matchings of tiny cases and hand-counted errors
    (test_clear_equals_the_brute_force_search, test_errors_are_counted_by_hand).
    """
    num_objects, num_frames = present.shape
    pairs = np.full((num_objects, num_frames), -1)
    last = np.full(num_objects, -1)
    before = np.full(num_objects, -1)  # matched in the last frame that had both
    misses = false_alarms = switches = 0
    for t in range(num_frames):
        true, found = np.nonzero(present[:, t])[0], np.nonzero(reported[:, t])[0]
        matched = 0
        if len(true) and len(found):
            alike = similarity(truth[true, t], tracks[found, t], gate)
            score = 1000.0 * (before[true][:, None] == found) + alike
            score[alike < 0.5 - EPSILON] = 0
            rows, columns = linear_sum_assignment(-score)
            good = score[rows, columns] > EPSILON
            objects, partners = true[rows[good]], found[columns[good]]
            switches += int(((last[objects] >= 0) & (last[objects] != partners)).sum())
            last[objects] = partners
            before[:] = -1
            before[objects] = partners
            pairs[objects, t] = partners
            matched = len(objects)
        misses += len(true) - matched
        false_alarms += len(found) - matched
    total = max(1, int(present.sum()))
    return Clear(
        1 - (misses + false_alarms + switches) / total, misses, false_alarms, switches, pairs
    )


def idf1(truth: Points, present: Mask, tracks: Points, reported: Mask, gate: float = GATE) -> float:
    """Return 2 IDTP / (true rows + reported rows) under the best assignment of whole tracks.

    Law: equals a search over all assignments of tiny cases
    (test_idf1_equals_the_brute_force_search).
    """
    together = np.zeros((len(truth), len(tracks)))
    for t in range(present.shape[1]):
        true, found = np.nonzero(present[:, t])[0], np.nonzero(reported[:, t])[0]
        alike = similarity(truth[true, t], tracks[found, t], gate)
        together[np.ix_(true, found)] += alike >= 0.5 - EPSILON
    rows, columns = linear_sum_assignment(-together)
    shared = together[rows, columns].sum()
    return float(2 * shared / max(1, present.sum() + reported.sum()))


def hota(truth: Points, present: Mask, tracks: Points, reported: Mask, gate: float = GATE) -> Hota:
    """Return HOTA = sqrt(DetA AssA), averaged over the thresholds `ALPHAS` of similarity.

    Law: equals the definition written as loops on tiny cases (test_hota_equals_the_naive_loop).
    """
    own, other = present.sum(1)[:, None], reported.sum(1)[None]
    frames, together = [], np.zeros((len(truth), len(tracks)))
    for t in range(present.shape[1]):
        true, found = np.nonzero(present[:, t])[0], np.nonzero(reported[:, t])[0]
        alike = similarity(truth[true, t], tracks[found, t], gate)
        union = alike.sum(0) + alike.sum(1)[:, None] - alike
        together[np.ix_(true, found)] += alike / np.where(union > EPSILON, union, 1.0)
        frames.append((true, found, alike))
    alignment = together / np.maximum(own + other - together, EPSILON)
    matches = np.zeros((len(ALPHAS), len(truth), len(tracks)))
    for true, found, alike in frames:
        rows, columns = linear_sum_assignment(-alignment[np.ix_(true, found)] * alike)
        for a, alpha in enumerate(ALPHAS):
            good = alike[rows, columns] >= alpha - EPSILON
            np.add.at(matches[a], (true[rows[good]], found[columns[good]]), 1)
    hits = matches.sum((1, 2))
    detection = hits / np.maximum(1, present.sum() + reported.sum() - hits)
    jaccard = matches / np.maximum(1, own + other - matches)
    association = (matches * jaccard).sum((1, 2)) / np.maximum(1, hits)
    values = np.sqrt(detection * association)
    middle = int(np.argmin(np.abs(ALPHAS - 0.5)))
    return Hota(
        float(values.mean()),
        float(values[middle]),
        float(detection.mean()),
        float(association.mean()),
    )


def regions(truth: Points, tracks: TrackerOutput, pairs: Pairs) -> Regions:
    """Return the error of matched rows, and how many lie in the stated 90 % regions.

    Law: draws from the stated Gaussians are covered at the stated rate
    (test_regions_of_the_stated_law_hold_nine_of_ten).
    """
    objects, times = np.nonzero(pairs >= 0)
    own = pairs[objects, times]
    error = tracks.positions[own, times] - truth[objects, times]
    known = ~np.isnan(error).any(-1)
    error, own, times = error[known], own[known], times[known]
    if not len(error):
        return Regions(np.nan, np.nan, np.nan, 0)
    rmse = float(np.sqrt((error**2).sum(-1).mean()))
    if tracks.covariances is None:
        return Regions(rmse, np.nan, np.nan, len(error))
    covariances = tracks.covariances[own, times]
    distance = (error * np.linalg.solve(covariances, error[..., None])[..., 0]).sum(-1)
    stated = float(np.sqrt(np.trace(covariances, axis1=-2, axis2=-1).mean()))
    return Regions(rmse, float((distance <= REGION).mean()), stated, len(error))


def follow(pairs: Pairs, exists: Mask, num_tracks: int) -> Pairs:
    """Return which track follows each existing object in each frame, matched there or not.

    A track follows the object that it is matched to in the nearest frame; a match in the frame
    itself comes first, and an object has at most one track.
    """
    num_frames = pairs.shape[1]
    objects, times = np.nonzero(pairs >= 0)
    best: Pairs = np.where(exists, pairs, -1)
    order = np.argsort(times, kind="stable")
    objects, times, tracks = objects[order], times[order], pairs[objects, times][order]
    distance = np.where(best >= 0, 0, num_frames + 1)
    for track in range(num_tracks):
        mine = tracks == track
        if not mine.any():
            continue
        gaps = np.abs(np.arange(num_frames)[:, None] - times[mine])
        nearest, gap = objects[mine][gaps.argmin(1)], gaps.min(1)
        for t in np.nonzero(gap > 0)[0]:
            n = nearest[t]
            if exists[n, t] and gap[t] < distance[n, t]:
                best[n, t], distance[n, t] = track, gap[t]
    return best


def existence(exists: Mask, tracks: TrackerOutput, pairs: Pairs) -> Existence:
    """Return how often objects exist where a probability is stated, and the expected count.

    A row is true if its track follows an object that exists (`follow`); a second track of the same
    object is false.
    """
    stated = np.where(np.isnan(tracks.exists), 0.0, tracks.exists)
    followed = follow(pairs, exists, len(stated))
    true = np.zeros(stated.shape, dtype=bool)
    objects, times = np.nonzero(followed >= 0)
    true[followed[objects, times], times] = True
    asked = stated >= LEAST
    bins = np.minimum((stated * NUM_BINS).astype(int), NUM_BINS - 1)[asked]
    rows = np.bincount(bins, minlength=NUM_BINS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(bins, stated[asked], NUM_BINS) / rows
        share = np.bincount(bins, true[asked].astype(float), NUM_BINS) / rows
    return Existence(mean, share, rows, float(stated.sum(0).mean()), float(exists.sum(0).mean()))


def score_tracks(
    positions: Points, exists: Mask, visible: Mask, tracks: TrackerOutput, gate: float = GATE
) -> dict[str, object]:
    """Return all scores of a recording by name, ready for a JSON record.

    Rows that are reported (`shows` >= .5) are compared with visible objects; probabilities of
    existence with all objects that exist.
    """
    reported = (np.nan_to_num(tracks.shows) >= SHOWN) & ~np.isnan(tracks.positions).any(-1)
    arguments = (positions, visible, tracks.positions, reported, gate)
    clear, association = clear_mot(*arguments), hota(*arguments)
    shown = regions(positions, tracks, clear.pairs)
    followed = follow(clear.pairs, exists, len(tracks.positions))
    hidden = regions(positions, tracks, np.where(exists & ~visible, followed, -1))
    calibration = existence(exists, tracks, clear.pairs)
    return {
        "mota": clear.mota,
        "idf1": idf1(*arguments),
        "hota": association.hota,
        "hota_50": association.hota_50,
        "misses": clear.misses,
        "false_alarms": clear.false_alarms,
        "switches": clear.switches,
        "true_rows": int(visible.sum()),
        "rmse": shown.rmse,
        "coverage": shown.coverage,
        "stated_sd": shown.stated_sd,
        "hidden_rows": hidden.rows,
        "hidden_rmse": hidden.rmse,
        "hidden_coverage": hidden.coverage,
        "existence": [
            {"stated": float(s), "true": float(t), "rows": int(n)}
            for s, t, n in zip(*calibration[:3], strict=True)
            if n
        ],
        "existence_gap": calibration.largest_gap(),
        "expected_count": calibration.expected_count,
        "true_count": calibration.true_count,
    }
