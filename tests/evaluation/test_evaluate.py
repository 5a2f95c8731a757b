"""Scores of a model, against the same questions asked one by one."""

import math
from dataclasses import replace

import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.data import World, worlds
from motes.data.clips import find_colour_axis
from motes.evaluation import metrics
from motes.evaluation.evaluate import NUM_CONTEXT, compare_physics, evaluate, score_gaps
from motes.evaluation.iwae import bound_and_weighted, score_bounds
from motes.evaluation.learned import learned_force, true_initial_states
from motes.evaluation.predictor import ModelPredictor, Prediction, Truth
from motes.models.model import Model, build
from motes.training.presets import PRESETS
from tiny import tiny_config

T, SIZE = 12, 16


@pytest.fixture(scope="module")
def model() -> Model:
    config = tiny_config()
    return build(replace(config, data=replace(config.data, height=SIZE, width=SIZE)))


@pytest.fixture(scope="module")
def clips() -> motes.Clips:
    return motes.cannonballs(7, (1, 2), T, SIZE, seed=8)


def test_scores_are_those_of_the_questions_asked_at_once(model: Model, clips: motes.Clips) -> None:
    told: list[int] = []
    scores = evaluate(ModelPredictor(model), clips, progress=told.append, batch_size=2)
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
        # Each is rounded to six digits.
        each = torch.tensor(scores["forecast_loss_of_clips"])[own]
        assert given["forecast_loss"] == pytest.approx(each.mean().item(), abs=1e-6)

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
        loss = metrics.frame_losses(ahead.mean_frames[:, future], frames[:, future])
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
    scores = evaluate(ModelPredictor(blind), clips)["by_count"]["1"]
    assert scores["forecast_coverage90"] == 0
    assert scores["noisy_rmse"] > 1


def test_the_force_is_the_second_difference_of_the_mean_path(model: Model) -> None:
    with torch.no_grad():
        model.dynamics.force.copy_(torch.tensor([0.3, -0.1, 0.02, 0.05]))
    far = motes.forecast(model, torch.zeros(1, 2, SIZE, SIZE), 1, horizon=6).path_pixels[0, 0]
    # float32 second differences of numbers of order one
    torch.testing.assert_close(
        far[3:].diff(dim=0).diff(dim=0),
        learned_force(model).float().expand(3, 2),
        rtol=1e-3,
        atol=1e-5,
    )


def test_clips_without_truth_or_too_short_are_refused(model: Model, clips: motes.Clips) -> None:
    with pytest.raises(InputError, match="truth"):
        evaluate(ModelPredictor(model), replace(clips, clean=None))
    with pytest.raises(InputError, match="10 frames"):
        evaluate(ModelPredictor(model), motes.cannonballs(2, (1,), 10, SIZE, seed=8))
    with pytest.raises(InputError, match="lost frames"):
        evaluate(ModelPredictor(model), replace(clips, observed=torch.ones(len(clips), T).bool()))


class Grey:
    """Says that every picture is grey, and nothing else."""

    interpolates = True

    def predict(self, frames: torch.Tensor, observed: torch.Tensor, num_objects: int) -> Prediction:
        assert frames.shape[1:] == (T, SIZE, SIZE, 3)
        assert not frames[:, ~observed].any()
        return Prediction(draw_frames=lambda: torch.full_like(frames, 0.5))


def test_pictures_in_colour_are_scored_too() -> None:
    clips = worlds.make("colour", 2, 1, T, SIZE, seed=3)
    scores = evaluate(Grey(), clips)["by_count"]["1"]
    assert scores["forecast_loss"] == pytest.approx(math.log(2))


def test_a_model_that_sees_colour_as_grey_is_scored_without_pictures() -> None:
    clips = worlds.make("colour", 2, 1, T, SIZE, seed=3)
    base = PRESETS["sprites-smoke"]
    sizes = replace(base.data, num_objects=(1,), num_frames=T, height=SIZE, width=SIZE)
    model = build(replace(base, data=replace(sizes, colour_axis=find_colour_axis(clips.frames))))
    scores = evaluate(ModelPredictor(model), clips)["by_count"]["1"]
    assert scores["noisy_rmse"] >= 0
    assert "forecast_loss" not in scores
    assert score_bounds(model, clips)["1"]["clips"] == 2


def test_the_same_record_comes_twice(model: Model, clips: motes.Clips) -> None:
    training = motes.cannonballs(4, (1, 2), T, SIZE, seed=9)
    first, second = (evaluate(ModelPredictor(model), clips, training) for _ in range(2))
    assert first == second
    assert sorted(first["worst_clips"]) == list(range(len(clips)))


def test_errors_stand_beside_every_score_and_curves_have_a_point_a_frame(
    model: Model, clips: motes.Clips
) -> None:
    record = evaluate(ModelPredictor(model), clips)
    for count, scores in record["by_count"].items():
        assert set(record["standard_errors"][count]) == set(scores) - {"clips"}
        curves = record["curves"][count]
        for name in ("rmse", "loss", "coverage90", "nees", "nll"):
            assert len(curves[f"forecast_{name}_curve"]["value"]) == T - NUM_CONTEXT
        assert len(curves["interpolation_rmse_curve"]["error"]) == T - 2 * NUM_CONTEXT
        mean_square = torch.tensor(curves["forecast_rmse_curve"]["value"]).square().mean()
        assert scores["forecast_rmse"] == pytest.approx(float(mean_square.sqrt()), rel=1e-6)


def test_an_affine_error_of_the_map_is_taken_out(clips: motes.Clips) -> None:
    """A contender that is right up to one affine map is right after it is fitted."""
    matrix, offset = torch.tensor([[2.0, 0.3], [-0.1, 1.5]]), torch.tensor([3.0, -4.0])

    class Skewed:
        interpolates = False

        def __init__(self, truth: motes.Clips) -> None:
            self.truth = truth

        def predict(
            self, frames: torch.Tensor, observed: torch.Tensor, num_objects: int
        ) -> Prediction:
            assert self.truth.positions is not None
            assert self.truth.num_objects is not None
            own = self.truth.positions[self.truth.num_objects == num_objects, :num_objects]
            return Prediction(pixels=own @ matrix.T + offset)

    record = evaluate(Skewed(clips), clips, training=clips)
    for scores in record["by_count"].values():
        assert scores["noisy_rmse"] > 1
        assert scores["affine_noisy_rmse"] < 1e-3
        assert "forecast_rmse" not in scores


def test_the_affine_map_is_fitted_on_training_clips_alone(clips: motes.Clips) -> None:
    """A contender with another error on training clips: their map is applied, right or wrong."""
    training = motes.cannonballs(5, (1, 2), T, SIZE, seed=9)
    offsets = {id(training): torch.tensor([3.0, -4.0]), id(clips): torch.tensor([1.0, 2.0])}

    class Shifted:
        interpolates = False

        def predict(
            self, frames: torch.Tensor, observed: torch.Tensor, num_objects: int
        ) -> Prediction:
            for one in (training, clips):
                assert one.positions is not None
                own = one.num_objects == num_objects
                if len(frames) == int(own.sum()) and torch.equal(frames, one[own].frames.float()):
                    return Prediction(pixels=one.positions[own, :num_objects] + offsets[id(one)])
            return Prediction()

    record = evaluate(Shifted(), clips, training)
    wrong = float((offsets[id(clips)] - offsets[id(training)]).norm())
    for scores in record["by_count"].values():
        assert scores["noisy_rmse"] == pytest.approx(5**0.5, rel=1e-4)
        assert scores["affine_noisy_rmse"] == pytest.approx(wrong, rel=1e-3)


def test_regions_of_every_level_hold_the_share_that_is_inside(clips: motes.Clips) -> None:
    """Error bars that are right: each coverage is its level, within five standard errors."""
    many = motes.cannonballs(300, (1,), T, SIZE, seed=8)
    assert many.positions is not None
    spread = torch.tensor([[0.5, 0.2], [0.2, 0.3]])
    noise = torch.randn(many.positions.shape, generator=torch.Generator().manual_seed(2))
    pixels = many.positions + noise @ torch.linalg.cholesky(spread).T

    class Told:
        interpolates, done = False, 0

        def predict(
            self, frames: torch.Tensor, observed: torch.Tensor, num_objects: int
        ) -> Prediction:
            if not bool(observed.all()):
                return Prediction()
            here = slice(self.done, self.done + len(frames))
            self.done += len(frames)
            covariances = spread.expand(len(frames), 1, T, 2, 2)
            return Prediction(pixels[here], covariances, pixels[here], covariances)

    scores = evaluate(Told(), many)["by_count"]["1"]
    for level in (50, 90, 95):
        share = level / 100
        error = 5 * (share * (1 - share) / (300 * T)) ** 0.5
        assert scores[f"infer_coverage{level}"] == pytest.approx(share, abs=error)


def test_gaps_hide_what_they_say(model: Model, clips: motes.Clips) -> None:
    seen: list[torch.Tensor] = []

    class Listening(ModelPredictor):
        def predict(
            self, frames: torch.Tensor, observed: torch.Tensor, num_objects: int
        ) -> Prediction:
            assert not frames[:, ~observed].any()
            seen.append(observed)
            return super().predict(frames, observed, num_objects)

    record = score_gaps(Listening(model), clips)
    hidden = [int((~observed).sum()) for observed in seen[:7]]
    assert hidden == [round(T * share) for share in (0.1, 0.3, 0.5, 0.7)] + [T - 2, 5, 10]
    assert record["2"]["drop50_rmse"]["value"] > 0
    assert 0 <= record["1"]["block5_coverage90"]["value"] <= 1


def test_more_draws_tighten_the_bound(
    model: Model, clips: motes.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = clips.frames[:2].float()
    monkeypatch.setattr("motes.evaluation.iwae.NUM_DRAWS", 1)
    with torch.no_grad():
        model.inference.scale_floor = 0.01
    bound, one = bound_and_weighted(model, frames, 1)
    noise = torch.randn(2, model.max_objects, T, 2, generator=torch.Generator().manual_seed(0))
    # The single draw's ratio differs from its bound by the density of the noise alone; both are
    # float32 sums near 2,000 nats, each known to a few times 2,000 / 2^23 = 2.4e-4.
    extra = 0.5 * (noise[:, :1].square() - 1).sum((1, 2, 3)).double()
    torch.testing.assert_close(one - bound, extra, rtol=0, atol=2e-3)
    monkeypatch.setattr("motes.evaluation.iwae.NUM_DRAWS", 200)
    mean, many = bound_and_weighted(model, frames, 1)
    assert (many > mean).all()


def test_starts_of_single_balls_have_no_spread() -> None:
    clips = motes.cannonballs(1, 1, T, SIZE, seed=5)
    starts = true_initial_states(clips)
    assert starts.shares.tolist() == [1.0]
    assert clips.clean is not None
    torch.testing.assert_close(starts.places[0], clips.clean[0, 0, 0])
    assert not starts.spreads.any()


def test_beliefs_and_physics_are_told(model: Model, clips: motes.Clips) -> None:
    beliefs = score_bounds(model, clips)
    for part in beliefs.values():
        assert part["weighted_bound"]["value"] > part["bound"]["value"]
        assert 0 <= part["count_right"]["value"] <= 1
    physics = compare_physics(model, clips)
    assert physics["true_force_px_per_frame2"] == pytest.approx(
        World(T, SIZE).pixel_force.tolist(), abs=1e-4
    )
    assert sum(physics["true_starts"]["shares"]) == pytest.approx(1)


def test_objects_are_not_visible_in_frames_that_were_not_recorded(clips: motes.Clips) -> None:
    observed = torch.ones(clips.frames.shape[:2], dtype=torch.bool)
    observed[:, 3] = False
    single = (clips.num_objects == 1).nonzero().flatten()
    truth = Truth.of(replace(clips, observed=observed)[single], 1)
    assert not truth.visible[..., 3].any()
    assert truth.visible[..., :3].all()


def test_equal_draws_weigh_as_one(
    model: Model, clips: motes.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The importance-weighted bound averages ratios; the same ratio S times is that ratio."""
    found = []
    monkeypatch.setattr(torch, "randn", lambda shape, generator: torch.full(tuple(shape), 0.5))
    for draws in (1, 4):
        monkeypatch.setattr("motes.evaluation.iwae.NUM_DRAWS", draws)
        found.append(bound_and_weighted(model, clips.frames[:2].float(), 1)[1])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)  # of about 2,000 nats
