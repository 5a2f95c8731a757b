"""The quality of a model in words: good and bad ones, and what to try."""

import math

import pytest
import torch

import motes
from motes.queries.fit import FitStatistics
from motes.queries.quality import ClipErrors, Quality

FINE = Quality(
    num_clips=8, explained=0.97, unexpected=0.05, detected=0.98, foreground=0.02, nearby=0.5,
    residual=0.4, expected_error=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def answered():
    model = motes.load("cannonballs-structured")
    clips = motes.cannonballs(num_clips=6, num_objects=(2,), num_frames=20, size=48, seed=5)
    return model, clips, motes.infer(model, clips.frames.float(), 2)


def test_a_good_run_says_so_and_expects_the_error_it_makes(answered):
    _, clips, answer = answered
    quality = Quality.of(answer.measure(), ClipErrors.of(answer), None)
    assert quality.verdict == "good"
    assert quality.advice == ""
    assert str(quality).startswith("good: the model explains 100 % of what moves")
    truth, found = clips.positions, answer.found
    direct, crossed = (
        (answer.pixels - other).square().sum(-1).where(found, 0).sum(2)
        for other in (truth, truth.flip(1))
    )
    swapped = crossed.sum(1) < direct.sum(1)
    error = torch.where(swapped[:, None], crossed, direct).sum() / found.sum()
    # 240 positions: the standard error of a root mean square of theirs is a few percent; balls are
    # drawn to whole pixels, which the error bars take for noise.
    assert quality.expected_error == pytest.approx(math.sqrt(float(error)), rel=0.35)


def test_the_sums_are_those_of_a_loop(answered):
    _, _, answer = answered
    residual = expected = detections = 0.0
    for b, n, t in answer.found.nonzero().tolist():
        away = answer.pixels[b, n, t] - answer.path_pixels[b, n, t]
        residual += float(away @ away)
        expected += float(answer.pixel_covariances[b, n, t].trace())
        detections += 1
    quality = Quality.of(answer.measure(), ClipErrors.of(answer), None)
    assert quality.residual == pytest.approx(math.sqrt(residual / detections), rel=1e-4)
    assert quality.expected_error == pytest.approx(math.sqrt(expected / detections), rel=1e-4)


def test_a_bad_model_says_what_to_try(answered):
    """Two balls move, one is looked for."""
    model, clips, _ = answered
    answer = motes.infer(model, clips.frames.float(), 1)
    quality = Quality.of(answer.measure(), ClipErrors.of(answer), None)
    assert quality.verdict in ("fair", "poor")
    assert "larger --num-objects" in quality.advice
    assert quality.advice in str(quality)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"foreground": 0.0}, "lower --threshold"),
        ({"foreground": 0.6, "explained": 0.2}, "--crop"),
        ({"explained": 0.5, "gain": 0.1}, "more --iterations"),
        ({"explained": 0.5, "nearby": 0.9}, "smaller --size"),
        ({"explained": 0.5, "nearby": 0.1}, "larger --num-objects"),
        ({"detected": 0.5}, "smaller --num-objects"),
        ({"unexpected": 0.5}, "more --iterations"),
        ({"residual": 3.0}, "--fps"),
        ({"explained": 0.5, "networks": True}, "--preset paper-distilled"),
    ],
)
def test_every_fault_names_an_option(change, said):
    bad = FINE._replace(**change)
    assert bad.verdict != "good"
    assert said in bad.advice
    assert "\n" not in str(bad)


def test_a_gain_is_the_change_since_the_check_before():
    shares = [torch.full((2,), value) for value in (0.9, 0.1, 0.0, 1.0, 0.02, 0.5, 1.0)]
    errors = ClipErrors(*(torch.ones(2, dtype=torch.float64) for _ in range(3)))
    after = Quality.of(FitStatistics(*shares), errors, FINE._replace(explained=0.7))
    assert after.gain == pytest.approx(0.2)


def test_quality_is_stored_in_the_run_folder(tmp_path):
    assert Quality.load(tmp_path) is None
    FINE.save(tmp_path)
    assert Quality.load(tmp_path) == FINE
    (tmp_path / "quality.json").write_text("{")
    assert Quality.load(tmp_path) is None
