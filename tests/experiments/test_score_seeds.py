"""Runs from many seeds and starts: what is changed, what is missed, what the tables say."""

import pytest
import torch

from experiments.sprites_seeds.score_seeds import STARTS, configuration, nudged
from experiments.sprites_seeds.tables import (
    COUNTS,
    GOALS,
    missed,
    missed_goals,
    spread_table,
    start_table,
)
from motes.data import cannonballs
from motes.evaluation.learned import learned_force, true_force
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer


def first_model(start):
    config = configuration(32, 30, 0, STARTS[start])
    small = make_dataset(PRESETS["sprites-smoke"], torch.device("cpu")).training
    with nudged(STARTS[start].nudge):
        return Trainer(config, small, torch.device("cpu")).model


def run(seed=0, start="as it is", gravity=1.0, **changed):
    """A record in which every goal is just reached, but for what is changed."""
    column = {name: goal.most or goal.least for name, goal in GOALS.items()}
    by_count = {n: {s: v[k] for s, v in column.items()} for k, n in enumerate(COUNTS)}
    for scores in by_count.values():
        scores |= {"clips": 10, "forecast_loss": 0.0268, **changed}
    return {
        "size": 48, "num_frames": 30, "seed": seed, "start": start, "by_count": by_count,
        "training": {"held_out_bound": -170.0, "cpu_seconds": 100.0},
        "environment": {"motes_commit": "0" * 40, "processor": "a processor"},
        "physics": {
            "force_px_per_frame2": [0.0, gravity], "true_force_px_per_frame2": [0.0, 1.0],
            "lit_pixels": 13.0, "noise_px": 1.2,
        },
    }  # fmt: skip


@pytest.mark.parametrize(("factor", "name"), [(4.0, "gravity x 4"), (0.25, "gravity / 4")])
def test_a_run_begins_with_another_gravity(factor, name):
    true = true_force(cannonballs(60, (1,), 30, (32, 32), seed=0))
    model = first_model(name)
    latent = learned_force(model)  # before it is aligned with pixels
    assert torch.allclose(latent * model.renderer.pixels_per_unit, factor * true)


def test_a_run_begins_with_another_ink():
    depth, plain = (first_model(s).renderer.kernels() for s in ("ink x 4", "as it is"))
    assert torch.allclose(depth, 4 * plain)


def test_every_other_start_changes_the_first_model():
    plain = first_model("as it is").state_dict()
    for start in set(STARTS) - {"as it is"}:
        state = first_model(start).state_dict()
        assert any(not torch.equal(state[name], plain[name]) for name in plain), start


def test_goals_that_are_just_reached_are_not_missed():
    limit = run()
    assert list(missed(run(), limit, moves=False)) == []
    named = list(missed(run(forecast_rmse=2.3, gravity=1.04), limit, moves=False))
    assert named == ["forecast N = 1", "forecast N = 2", "gravity"]


def test_goals_move_with_a_limit_that_is_worse_and_not_with_one_that_is_better():
    worse, better = run(forecast_rmse=2.5), run(forecast_rmse=1.0)
    assert "forecast" not in " ".join(missed(run(forecast_rmse=2.5), worse, moves=True))
    assert len(list(missed(run(forecast_rmse=2.5), worse, moves=False))) == 3
    assert list(missed(run(), better, moves=True)) == []


def test_seeds_that_miss_a_goal_are_named():
    runs = [run(0), run(1, gravity=0.9), run(2)]
    assert missed_goals(runs, run(), moves=False) == "gravity (1)"
    assert missed_goals(runs[1:2], run(), moves=False) == "gravity (all)"
    assert missed_goals(runs[:1], run(), moves=False) == "none"


def test_tables_hold_the_range_of_seeds_and_a_row_for_every_start():
    runs = [run(0), run(1, noisy_rmse=0.31, gravity=0.98), run(0, "limit"), run(0, "ink x 4")]
    table = spread_table({"note": "Prediction", "runs": runs})
    assert "0.31-0.43 / 0.31-0.45 / 0.31-0.50 (0.43 / 0.45 / 0.50)" in table
    assert "| gravity, % too strong | -2.0 to +0.0 |" in table
    rows = start_table({"runs": runs}).splitlines()[2:4]
    assert [row.split(" | ")[0] for row in rows] == ["| as it is", "| ink x 4"]
