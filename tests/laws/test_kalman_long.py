"""Kalman code on long videos against 60 digits; long form: tests/stress/kalman_precision.py."""

import pytest

from tests.stress.kalman_precision import CASES, errors

# The bounds are those of float64 over 3,000 steps: 1e-16 a step on means of up to 1e6 standard
# deviations, hence 1e-7; variances and evidence hold no such large numbers.
EXACT = ("ordinary noise, 1,000 frames hidden", "last 1,000 frames hidden")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_three_thousand_frames_with_a_thousand_unobserved_stay_exact(name: str) -> None:
    found = errors(CASES[name])
    assert found["means_in_sds"] < 1e-7
    assert found["sds_relative"] < 1e-7
    assert found["log_likelihood_relative"] < 1e-9


@pytest.mark.slow
def test_almost_no_noise_stays_exact() -> None:
    found = errors(CASES["almost no noise, 1,000 frames hidden"])
    # The means are up to 1e5 standard deviations from zero, and rounded to 1e-16 of their size.
    assert found["sds_relative"] < 1e-6
    assert found["means_in_sds"] < 1e-6
    assert found["log_likelihood_relative"] < 1e-6
