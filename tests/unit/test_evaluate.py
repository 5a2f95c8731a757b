"""Scores of a model, against the same questions asked one by one."""

from dataclasses import replace

import pytest
import torch

import motes
from motes import metrics
from motes.errors import InputError
from motes.evaluate import NUM_CONTEXT, acceleration, evaluate
from motes.model import Model, build
from tiny import tiny_config

T, SIZE = 12, 16


@pytest.fixture(scope="module")
def model() -> Model:
    config = tiny_config()
    return build(replace(config, data=replace(config.data, height=SIZE, width=SIZE)))


@pytest.fixture(scope="module")
def clips() -> motes.Clips:
    return motes.cannonballs(7, (1, 2), T, SIZE, seed=8)


def test_scores_are_those_of_the_questions_asked_at_once(
    model: Model, clips: motes.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `answer.frames` averages draws, and clips in other batches get other draws.
    monkeypatch.setattr("motes.evaluate.BATCH", 2)
    told: list[int] = []
    scores = evaluate(model, clips, told.append)
    assert clips.num_objects is not None
    assert clips.positions is not None
    assert clips.clean is not None
    assert told == sorted(told)
    assert told[-1] == len(clips)
    for count in (1, 2):
        own = (clips.num_objects == count).nonzero()[:, 0]
        frames, noisy = clips.frames[own].float(), clips.positions[own, :count]
        clean = clips.clean[own, :count]
        given = scores["by_count"][str(count)]
        assert given["clips"] == len(own)

        seen = motes.infer(model, frames, count)
        order = metrics.best_order(seen.pixels, noisy)
        assert given["noisy_rmse"] == pytest.approx(
            metrics.rmse(metrics.reorder(seen.pixels, order), noisy), rel=1e-4
        )
        tracked = metrics.tracked(metrics.reorder(seen.pixels, order), noisy)
        assert given["tracked"] == pytest.approx(float(tracked.float().mean()))

        future = torch.arange(T) >= NUM_CONTEXT
        ahead = motes.forecast(model, frames[:, :NUM_CONTEXT], count, horizon=T - NUM_CONTEXT)
        assert given["forecast_rmse"] == pytest.approx(in_order(ahead, clean, future), rel=1e-4)
        loss = metrics.picture_loss(ahead.mean_frames[:, future], frames[:, future])
        assert given["forecast_loss_of_mean"] == pytest.approx(float(loss.mean()), rel=1e-4)

        gap = future & (torch.arange(T) < T - NUM_CONTEXT)
        between = motes.interpolate(model, frames, ~gap, count)
        assert given["interpolation_rmse"] == pytest.approx(in_order(between, clean, gap), rel=1e-4)


def in_order(answer: motes.Answer, clean: torch.Tensor, frames: torch.Tensor) -> float:
    order = metrics.best_order(answer.path_pixels, clean)
    return metrics.rmse(metrics.reorder(answer.path_pixels, order), clean, frames)


def test_a_model_that_draws_nothing_is_scored_too(clips: motes.Clips) -> None:
    config = tiny_config()
    blind = build(replace(config, data=replace(config.data, height=SIZE, width=SIZE)))
    with torch.no_grad():
        blind.pixel_matrix.zero_()
    scores = evaluate(blind, clips)["by_count"]["1"]
    assert scores["forecast_coverage90"] == 0
    assert scores["noisy_rmse"] > 1


def test_the_force_is_the_second_difference_of_the_mean_path(model: Model) -> None:
    with torch.no_grad():
        model.dynamics.force.copy_(torch.tensor([0.3, -0.1, 0.02, 0.05]))
    far = motes.forecast(model, torch.zeros(1, 2, SIZE, SIZE), 1, horizon=6).path_pixels[0, 0]
    # float32 second differences of numbers of order one
    torch.testing.assert_close(
        far[3:].diff(dim=0).diff(dim=0),
        (model.pixel_matrix.double() @ acceleration(model)).float().expand(3, 2),
        rtol=1e-3,
        atol=1e-5,
    )


def test_clips_without_truth_or_too_short_are_refused(model: Model, clips: motes.Clips) -> None:
    with pytest.raises(InputError, match="truth"):
        evaluate(model, replace(clips, clean=None))
    with pytest.raises(InputError, match="10 frames"):
        evaluate(model, motes.cannonballs(2, (1,), 10, SIZE, seed=8))
