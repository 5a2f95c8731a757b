"""Scores as ratios of sums, and their standard errors."""

import math

import pytest
import torch

from motes.evaluation.bootstrap import (
    ClipStatistics,
    clip_statistics,
    concatenate,
    curve_statistics,
    score,
    standard_error,
)


def test_a_score_is_the_mean_over_everything_known():
    values = torch.tensor([[[1.0, math.nan]], [[4.0, 7.0]]])
    assert float(score(clip_statistics(values))) == 4
    assert float(score(clip_statistics(values, root=True))) == 2
    assert score(curve_statistics(values)).tolist() == [2.5, 7.0]


def test_the_score_of_parts_is_that_of_the_whole(generator: torch.Generator):
    values = torch.rand(7, 2, 3, generator=generator)
    parts = [clip_statistics(values[:2], root=True), clip_statistics(values[2:], root=True)]
    torch.testing.assert_close(score(concatenate(parts)), score(clip_statistics(values, root=True)))


@pytest.mark.statistical
def test_the_error_of_a_mean_is_the_textbooks(generator: torch.Generator):
    values = torch.randn(400, generator=generator).double()
    textbook = float(values.std() / 400**0.5)
    # 500 resamples give a standard deviation to 1 / sqrt(1000) = 3 %; five of those.
    assert float(standard_error(clip_statistics(values))) == pytest.approx(textbook, rel=0.16)


def test_clips_count_by_how_much_of_them_is_scored():
    unequal = ClipStatistics(torch.tensor([1.0, 30.0]).double(), torch.tensor([1.0, 9.0]).double())
    assert float(score(unequal)) == pytest.approx(3.1)


def test_errors_are_the_same_in_every_run(generator: torch.Generator):
    values = torch.rand(20, generator=generator)
    assert torch.equal(
        standard_error(clip_statistics(values)), standard_error(clip_statistics(values))
    )
