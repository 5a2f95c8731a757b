"""Scores of forecasts of billiards."""

import pytest
import torch

from experiments.events.score_billiards import CASES, SEEN, ask_oracle, forecast_scores, lost_at


def test_scores_of_known_errors() -> None:
    truth = torch.zeros(4, 3, 12, 2, dtype=torch.float64)
    noise = torch.randn(200, 4, 3, 12, 2, generator=torch.Generator().manual_seed(0)).double()
    draws = truth + torch.tensor([3.0, 4.0]).double() + 1e-3 * noise
    found = forecast_scores(draws, truth, size=10)
    # Every forecast is 5 pixels off, in units of half a box of 10, in ten frames.
    assert found["summed_error"] == pytest.approx(10.0, rel=1e-3)
    assert found["coverage90"] == 0.0
    shifted = forecast_scores(draws, draws[0], size=10)
    # 144 draws like all others: 0.9 with a deviation of 0.025.
    assert 0.8 < shifted["coverage90_9_100"] <= 1.0
    assert lost_at([0.1, 0.3, 0.2], 0.25) == SEEN + 2
    assert lost_at([0.1], 0.25) is None


def test_the_oracle_continues_the_simulation() -> None:
    world = CASES["fine"]
    states = world.simulate(3, SEEN + 6, seed=0)
    drawn = ask_oracle(world, states)
    truth = world.pixels(states[:, :, SEEN:, :2])
    # Noise of 0.01 px and 0.01 px per frame over six frames; contacts widen it a few times.
    assert float((drawn - truth).abs().max()) < 1.0
    assert float((drawn.mean(0) - truth).abs().median()) < 0.05
