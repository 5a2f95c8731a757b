"""Long clips: whether objects that look alike could have been told apart better."""

import pytest

from experiments.long_clips.score_long import surplus
from experiments.worlds.oracle import Law, log_evidence
from motes.data import worlds


def test_the_surplus_is_what_an_exchange_costs():
    law = Law.of(worlds.physics_of("long", 30))
    truth = worlds.make("long", 1, 3, 200, seed=3).positions
    assert surplus(truth, truth, law) == 0
    wrong = truth.clone()
    wrong[:, [0, 1], 90:] = truth[:, [1, 0], 90:]
    lost = log_evidence(truth.double(), law) - log_evidence(wrong.double(), law)
    assert lost > 1
    assert surplus(wrong, truth, law) == pytest.approx(-float(lost))
    # What objects are called does not matter.
    assert surplus(truth.flip(1), truth, law) == pytest.approx(0, abs=1e-6)
