"""The scores of the worlds: what a perfect, a blind and an honest answer are given."""

import math
from types import SimpleNamespace

import pytest
import torch

from experiments.worlds import world_scores
from experiments.worlds.world_scores import Task
from motes.data import worlds
from motes.evaluation.predictor import Prediction, Truth

TASK = Task("bar", "bar", (2,), num_clips=6)


def predict_truth(truth, observed, *, flip=False, shift=0.0):
    """The truth as a prediction, its objects perhaps in another order."""
    eye = torch.eye(2).expand(*truth.noisy.shape, 2)
    parts = (truth.noisy + shift, eye, truth.clean + shift, eye)
    return Prediction(*(part.flip(1) if flip else part for part in parts))


@pytest.mark.parametrize("flip", [False, True])
def test_the_truth_in_any_order_has_no_error(flip):
    clips = worlds.make("bar", 6, 2, seed=1)
    scores = world_scores.score(lambda *a: predict_truth(*a, flip=flip), clips, 2, TASK)
    assert scores.pop("lost_clips") == []
    for name, value in scores.items():
        assert value == (0 if name.endswith("rmse") else 1)
    assert {"tracked", "hidden_rmse", "hidden_coverage90", "forecast_rmse"} <= set(scores)


def test_hidden_frames_are_scored_apart_from_seen_ones():
    clips = worlds.make("bar", 6, 2, seed=1)
    hidden = ~clips.visible

    def ask(truth, observed):
        wrong = 3.0 * (~truth.visible)[..., None]  # 3 px along each axis
        return predict_truth(truth, observed, shift=wrong)

    scores = world_scores.score(ask, clips, 2, TASK)
    assert scores["noisy_rmse"] == 0
    assert scores["hidden_rmse"] == pytest.approx(18**0.5, abs=1e-4)
    share = float(hidden.double().mean())
    assert scores["path_rmse"] == pytest.approx((18 * share) ** 0.5, abs=1e-4)
    # The squared distance is 18 for unit covariance, far outside; seen objects are inside.
    assert scores["hidden_coverage90"] == 0
    assert scores["coverage90"] == 1
    # Each object passes the bar, where it is 4.2 px off.
    assert scores["tracked"] == 0
    assert scores["lost_clips"] == list(range(6))


def test_a_forecast_is_asked_for_with_the_first_frames_only():
    asked = []
    clips = worlds.make("long", 2, 1, num_frames=40, seed=1)

    def ask(truth, observed):
        asked.append((truth.frames.shape[1], int(observed.sum())))
        return predict_truth(truth, observed)

    world_scores.score(ask, clips, 1, Task("long", "long", (1,)))
    assert asked == [(40, 40), (30, 5)]


def test_the_oracle_sees_neither_hidden_objects_nor_lost_frames(monkeypatch):
    given = []
    monkeypatch.setattr(
        world_scores, "predict_with_oracle", lambda points, law: given.append(points)
    )
    barred, lost = worlds.make("bar", 3, 2, seed=1), worlds.make("drops", 3, 2, seed=1)
    ask, until = world_scores.ask_oracle(None), torch.arange(30) < 10
    ask(Truth.of(barred, 2), torch.ones(30, dtype=torch.bool))
    ask(Truth.of(lost, 2), lost.observed & until)
    assert torch.equal(given[0].isnan().any(-1), ~barred.visible)
    assert torch.equal(~given[1].isnan().any(-1)[:, 0], lost.observed & until)


def test_reliability_tells_what_was_said_and_what_happened():
    believed = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65]]).double()
    table = world_scores.reliability(believed, torch.tensor([1, 2, 2]))
    assert [(row["cases"], round(row["said"], 3), row["happened"]) for row in table] == [
        (2, 0.05, 0.5),
        (1, 0.35, 0.0),
        (1, 0.65, 1.0),
        (2, 0.95, 0.5),
    ]


def test_counts_are_scored_against_the_truth(monkeypatch):
    truth = torch.tensor([1, 2, 3, 4, 5, 6] * 4)
    sure = torch.eye(6).double()[truth - 1]
    sure[0] = sure[0].roll(1)  # one mistake

    def interpolate(model, frames, seen):
        assert seen.tolist() == [True, False]
        assert model.max_objects == 6
        return SimpleNamespace(count_probabilities=sure)

    monkeypatch.setattr(world_scores, "interpolate", interpolate)
    model = SimpleNamespace(max_objects=3)
    believed = world_scores.believed_counts(model, torch.zeros(24, 2, 4, 4), 1)
    assert model.max_objects == 3  # as it was
    record = world_scores.count_scores(0.9 * believed + 0.1 / 6, truth)
    assert record["accuracy"] == 23 / 24
    assert record["wrong_clips"] == [0]
    assert record["by_count"] == {"1": 0.75, "2": 1.0, "3": 1.0, "4": 1.0, "5": 1.0, "6": 1.0}
    assert record["mean_said"] == pytest.approx(0.9 + 0.1 / 6)
    nats = -(23 * math.log(0.9 + 0.1 / 6) + math.log(0.1 / 6)) / 24
    assert record["nats"] == pytest.approx(nats)
