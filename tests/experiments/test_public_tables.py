"""Oracles and scores of the public tables."""

import numpy as np
import pytest
import torch

from experiments.public_tables.make_page import page
from experiments.public_tables.score_forces import CASES, ask_oracle, scores
from experiments.public_tables.score_phyworld import KINDS, LAST, SEEN, oracle
from motes.data.worlds.published import Scene


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_of_a_scene_that_sees_exactly_is_right(kind: str) -> None:
    scene = Scene(kind)  # type: ignore[arg-type]
    states = scene.simulate(20, LAST, 0)
    truth = scene.pixels(states[:, :, SEEN - 1 :, :2])
    np.testing.assert_allclose(oracle(scene, states, 1e-9).numpy(), truth, atol=1e-6)


def test_the_oracle_of_a_force_that_sees_exactly_is_right() -> None:
    case = CASES["paig-spring"]
    states = case.world.simulate(3, case.last, 0)
    truth = torch.from_numpy(case.world.pixels(states[:, :, case.seen :, :2]))
    draws = ask_oracle(case, states, 1e-5, 3)
    torch.testing.assert_close(draws.mean(0), truth, rtol=0.0, atol=1e-2)


def test_regions_of_draws_hold_what_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(300, 40, 2, 10, 2, dtype=torch.float64, generator=generator)
    truth = torch.randn(40, 2, 10, 2, dtype=torch.float64, generator=generator)
    found = scores(draws, truth)
    # 800 positions: a standard error of 0.011; finite draws cost half a hundredth.
    assert found["coverage90"] == pytest.approx(0.895, abs=0.04)
    assert found["mean_error_pixels"] == pytest.approx(1.25, abs=0.06)


def test_a_page_without_records_says_what_it_is() -> None:
    assert page({}).startswith("# Laws learned from video")
