"""The chain of existence equals a sum over all sequences of states."""

from itertools import pairwise, product

import numpy as np
import pytest

from motes.tracking.existence import (
    GONE,
    NOT_YET,
    OFF,
    ON,
    Rates,
    solve_chain,
    unseen_after,
    unseen_before,
)
from motes.tracking.motion import spans


def sequence_weight(
    states: tuple[int, ...],
    rates: Rates,
    evidence: np.ndarray,
    arrival: np.ndarray,
    stay: np.ndarray,
    rebirth: np.ndarray,
) -> float:
    """The weight of one sequence of states, from the definition."""
    shows = {ON: rates.showing, OFF: 1 - rates.showing, GONE: 0.0}
    weight, before = 1.0, NOT_YET
    for t, state in enumerate(states):
        if before == NOT_YET:
            weight *= 1.0 if state == NOT_YET else arrival[t] * shows[state]
        elif before == GONE:
            weight *= {GONE: 1.0, ON: rebirth[t]}.get(state, 0.0)
        else:
            alive = (1 - rates.death) * stay[t]
            to_on = 1 - rates.off if before == ON else rates.on
            weight *= {NOT_YET: 0.0, ON: alive * to_on, OFF: alive * (1 - to_on)}.get(
                state, 1 - alive
            )
        weight *= np.exp(evidence[t]) if state == ON else 1.0
        before = state
    return weight


def death_share(states: tuple[int, ...], rates: Rates, stay: np.ndarray) -> float:
    """The probability that an end is a death: the object was inside and died."""
    ends = [t for t in range(1, len(states)) if states[t] == GONE and states[t - 1] in (ON, OFF)]
    dies, leaves = (stay[ends] * rates.death, 1 - stay[ends])
    return float((dies / (dies + leaves)).sum())


@pytest.mark.parametrize("reborn", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(6))
def test_the_chain_equals_the_sum_over_all_sequences(seed: int, reborn: float):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 7, 4)
    first = random.integers(0, 5, 4)
    table = spans(first, first + lengths - 1)
    rates = Rates(death=0.1, off=0.2, on=0.4)
    rows = len(table.track)
    evidence = random.normal(0, 3, rows)
    arrival, stay = random.uniform(0, 0.3, rows), random.uniform(0.5, 1, rows)
    rebirth = reborn * random.random(rows)
    found = solve_chain(table, rates, evidence, arrival, stay, rebirth=rebirth)
    births = deaths = again = 0.0
    for track in range(4):
        mine = np.flatnonzero(table.track == track)
        mine = mine[np.argsort(table.frame[mine])]
        total, never = 0.0, 0.0
        shows, exists = np.zeros(len(mine)), np.zeros(len(mine))
        later = ended = returned = 0.0
        for states in product(range(4), repeat=len(mine)):
            weight = sequence_weight(
                states, rates, evidence[mine], arrival[mine], stay[mine], rebirth[mine]
            )
            total += weight
            never += weight if states[-1] == NOT_YET else 0.0
            shows += weight * (np.array(states) == ON)
            exists += weight * np.isin(states, (ON, OFF))
            later += weight * (states[0] == NOT_YET and states[-1] != NOT_YET)
            ended += weight * death_share(states, rates, stay[mine])
            returned += weight * sum(a == GONE and b == ON for a, b in pairwise(states))
        births += later / total
        deaths += ended / total
        again += returned / total
        # Sums of at most 4^6 products of order one: relative rounding is below 1e-12.
        np.testing.assert_allclose(found.shows[mine], shows / total, atol=1e-10)
        np.testing.assert_allclose(found.exists[mine], exists / total, atol=1e-10)
        odds = np.log(total - never) - np.log(never)
        assert found.log_odds[track] == pytest.approx(odds, abs=1e-9)
    assert found.births == pytest.approx(births, abs=1e-9)
    assert found.deaths == pytest.approx(deaths, abs=1e-9)
    assert found.moves[2, 0] == pytest.approx(again, abs=1e-9)


def test_frames_beyond_the_rows_equal_rows_without_detection():
    """Nine frames with a detection in the fifth: rows for all of them, or for three of them."""
    rates = Rates(birth=0.02, density=0.3, death=0.1, off=0.2, on=0.4, missed=0.05)
    evidence = np.full(9, np.log(rates.missed))
    evidence[4] = 3.0
    arrival = np.where(np.arange(9) == 0, rates.density, rates.birth)
    arrival[5:] = 0.0
    whole = solve_chain(spans(np.array([0]), np.array([8])), rates, evidence, arrival, np.ones(9))
    part = solve_chain(
        spans(np.array([3]), np.array([5])), rates, evidence[3:6], arrival[3:6], np.ones(3),
        unseen_before(rates, np.array([3])), unseen_after(rates, np.array([3])),
    )  # fmt: skip
    np.testing.assert_allclose(part.exists, whole.exists[3:6], atol=1e-12)
    np.testing.assert_allclose(part.shows, whole.shows[3:6], atol=1e-12)
    np.testing.assert_allclose(part.log_odds, whole.log_odds, atol=1e-9)


def test_overwhelming_evidence_does_not_overflow():
    table = spans(np.array([0]), np.array([3]))
    found = solve_chain(
        table, Rates(), np.array([900.0, 900.0, -5.0, 900.0]), np.full(4, 1e-6), np.ones(4)
    )
    np.testing.assert_allclose(found.shows[[0, 1, 3]], 1.0, atol=1e-9)
    assert 0 < found.shows[2] < 1
    assert np.isfinite(found.log_odds).all()
