"""Detections that stay in place, in scenes that change by themselves: captions, clocks, lamps.

An object that rests is reached or left by one that moves; a caption appears and vanishes in place.
"""

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.spatial import cKDTree

from motes.tracking.detection import Candidates
from motes.tracking.sprite import Array

MIN_RANGE, MIN_STEP = 2.0, 0.3  # pixels; less is rest
MOST_RESTING = 0.3  # of the steps of a track at rest, that may be longer
GAP = 3  # frames without detection in a run, and before or after it
MIN_RUN = 3  # detections
NEAR = 5.0  # diameters from a run, within which an object may come or go


def are_resting(candidates: Candidates) -> Array:
    """Return which candidates have another one in the same place a frame before or after."""
    points = np.column_stack((candidates.positions / MIN_STEP, candidates.frame))
    tree = cKDTree(points)
    at_rest = np.zeros(len(points), bool)
    for step in (-1, 1):
        shifted = points + np.array((0.0, 0.0, step))
        distance, _ = tree.query(shifted, distance_upper_bound=0.99)
        at_rest |= np.isfinite(distance)
    return at_rest


def without_captions(candidates: Candidates, diameter: float) -> Candidates:
    """Return candidates without runs in one place that nothing comes to or goes from.

    Law: a letter that appears and vanishes is left out, a ball that comes to rest is kept
    (test_captions_are_left_out_and_resting_balls_are_kept).
    """
    if len(candidates) == 0:
        return candidates
    points = np.column_stack((candidates.positions / (2 * MIN_STEP), candidates.frame / GAP))
    pairs = cKDTree(points).query_pairs(1.0, output_type="ndarray")
    count = len(candidates)
    graph = sparse.coo_matrix((np.ones(len(pairs)), pairs.T), (count, count))
    number, run = csgraph.connected_components(graph, directed=False)
    in_run = np.bincount(run, minlength=number)[run] >= MIN_RUN
    free = np.flatnonzero(~in_run)
    order = np.lexsort((candidates.frame, run))
    first = order[np.searchsorted(run[order], np.arange(number))]
    last = order[np.searchsorted(run[order], np.arange(number), side="right") - 1]
    visited = np.zeros(number, bool)
    if len(free):
        tree = cKDTree(_lifted(candidates, free, diameter))
        for ends in (first, last):
            distance, _ = tree.query(_lifted(candidates, ends, diameter), distance_upper_bound=1.0)
            visited |= np.isfinite(distance)
    return candidates.select(~in_run | visited[run])


def _lifted(candidates: Candidates, chosen: Array, diameter: float) -> Array:
    """Return points of space and time where a distance of 1 is a move that an object may make."""
    return np.column_stack(
        (candidates.positions[chosen] / (NEAR * diameter), candidates.frame[chosen] / (GAP + 0.5))
    )


def that_move(candidates: Candidates, labels: Array, diameter: float) -> Array:
    """Return labels without tracks that stay in place, which are changes of the background.

    They stay if they never leave an object's diameter and most steps are shorter than MIN_STEP. A
    single detection cannot be told from one and is left out, too.
    """
    used = np.flatnonzero(labels >= 0)
    order = used[np.lexsort((candidates.frame[used], labels[used]))]
    names, begin, track = np.unique(labels[order], return_index=True, return_inverse=True)
    place = candidates.positions[order]
    low, high = np.full((len(names), 2), np.inf), np.full((len(names), 2), -np.inf)
    np.minimum.at(low, track, place)
    np.maximum.at(high, track, place)
    far = (high - low).max(1, initial=0.0) > max(diameter, MIN_RANGE)
    long = np.linalg.norm(np.diff(place, axis=0, prepend=place[:1]), axis=1) > MIN_STEP
    long[begin] = False
    steps = np.bincount(track, minlength=len(names)) - 1
    restless = np.bincount(track, long, len(names)) > MOST_RESTING * np.maximum(steps, 1)
    out = labels.copy()
    out[order[~(far | restless)[track]]] = -1
    return out
