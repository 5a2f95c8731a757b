"""The sparse assignment equals a search over all matchings."""

from itertools import combinations

import numpy as np
import pytest

from motes.tracking.assignment import best_pairs, swap_losses


def brute_force(rows: np.ndarray, columns: np.ndarray, gains: np.ndarray) -> float:
    """The largest total gain of any set of edges that share no row and no column."""
    best = 0.0
    for count in range(1, 5):
        for edges in combinations(range(len(gains)), count):
            chosen = list(edges)
            distinct = len(set(rows[chosen])) == count == len(set(columns[chosen]))
            best = max(best, float(gains[chosen].sum())) if distinct else best
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_assignment_equals_brute_force(seed: int):
    random = np.random.default_rng(seed)
    everything = random.permutation(16)[: random.integers(1, 12)]
    rows, columns = everything // 4, everything % 4
    gains = random.normal(0.5, 1.0, len(everything))
    chosen = best_pairs(rows, columns, gains, (4, 4))
    assert len(set(rows[chosen])) == chosen.sum() == len(set(columns[chosen]))
    # The sum of at most four numbers of order one: rounding is below 1e-14.
    assert gains[chosen].sum() == pytest.approx(brute_force(rows, columns, gains), abs=1e-12)


def test_without_edges_nothing_is_chosen():
    none = np.zeros(0, int)
    assert best_pairs(none, none, np.zeros(0), (3, 2)).sum() == 0


def test_a_swap_loses_the_difference_of_the_two_pairings():
    rows, columns = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 1])
    gains = np.array([5.0, 3.0, 2.0, 4.0, 1.0])
    chosen = best_pairs(rows, columns, gains, (3, 2))
    assert chosen.tolist() == [True, False, False, True, False]
    loss = swap_losses(rows, columns, gains, chosen, (3, 2))
    # (0,1) and (1,0) instead of (0,0) and (1,1); (2,1) instead of (1,1), whose row stays alone.
    assert loss.tolist() == [np.inf, 4.0, 4.0, np.inf, 3.0]
