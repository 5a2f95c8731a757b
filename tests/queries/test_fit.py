import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import max_pool2d

import motes
from motes.core.errors import InputError
from motes.data import World
from motes.data.worlds.changing import changing_cannonballs
from motes.data.worlds.registry import draw_clips
from motes.kalman.dynamics import LinearDynamics
from motes.models.checkpoint import SHIPPED
from motes.models.model import Model
from motes.models.sprites.search import Tracker
from motes.queries.answer import Fit
from motes.queries.fit import (
    FILE,
    LAW_TEST,
    MIN_CLIPS,
    MIN_SD,
    FitReference,
    FitStatistics,
    judge_fit,
)
from sprite_scenes import disk_renderer
from tiny import tiny_frames, tiny_model, tiny_sprite_model

MODELS = ("cannonballs-48", "cannonballs-48-distilled", "cannonballs-structured")


@pytest.fixture(scope="module", params=("cannonballs-48", "cannonballs-structured"))
def shipped(request: pytest.FixtureRequest) -> Model:
    return motes.load(request.param)


def two_balls(num_clips: int = 3, seed: int = 8) -> torch.Tensor:
    return motes.cannonballs(num_clips, 2, seed=seed).frames.float()


def test_clips_of_the_learned_kind_do_not_warn(shipped: Model) -> None:
    clips = motes.cannonballs(12, (1, 2, 3), seed=31)
    fit = motes.infer(shipped, clips.frames, clips.num_objects).fit
    assert fit is not None
    assert fit.warning is None
    assert bool(fit.fits.all())
    assert set(fit.causes) == {""}


OTHERS = {
    "inverted": (lambda: 1 - two_balls(), "most of the picture differs"),
    "blank": (lambda: torch.zeros_like(two_balls()), "nothing differs from the background"),
    "noise": (
        lambda: (torch.rand(3, 30, 48, 48, generator=torch.Generator().manual_seed(2)) < 0.05) * 1,
        "",
    ),
    "ten balls": (lambda: motes.cannonballs(3, 10, seed=8).frames, "more objects"),
    "larger balls": (lambda: draw_clips(World(radius=4), 3, 2, 8).frames, ""),
    "random order": (
        lambda: two_balls()[:, torch.randperm(30, generator=torch.Generator().manual_seed(3))],
        "",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_video_warn_with_a_cause(kind: str, shipped: Model) -> None:
    make, cause = OTHERS[kind]
    fit = motes.infer(shipped, make(), 2).fit
    assert fit is not None
    assert fit.warning is not None
    assert not fit.fits.any()
    assert "\n" not in fit.warning
    assert cause in fit.warning
    assert "3 of 3 clips do not fit this model" in fit.warning


def test_balls_that_are_slightly_larger_are_reported_as_a_change_of_size() -> None:
    model = motes.load("cannonballs-structured")
    fit = motes.infer(model, draw_clips(World(radius=3), 3, 2, 8).frames, 2).fit
    assert fit is not None
    assert all("another size" in cause for cause in fit.causes)


def test_another_order_of_the_frames_is_reported_as_another_law() -> None:
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    fit = motes.infer(motes.load("cannonballs-structured"), two_balls()[:, order], 2).fit
    assert fit is not None
    assert all("another law" in cause for cause in fit.causes)


def shaken() -> torch.Tensor:
    """Balls before a camera that swings by five pixels."""
    steps = [(round(4 * math.sin(t / 2)), round(5 * math.cos(t / 2))) for t in range(30)]
    frames = [torch.roll(two_balls()[:, t], step, (1, 2)) for t, step in enumerate(steps)]
    return torch.stack(frames, 1)


def bars() -> torch.Tensor:
    """Things as long as five balls, which move like balls."""
    near: torch.Tensor = max_pool2d(two_balls().flatten(0, 1)[:, None], (3, 13), 1, (1, 6))
    return near[:, 0].reshape(3, 30, 48, 48)


CAUSES = {
    "camera moves": shaken,
    "another size": lambda: changing_cannonballs("growth", 3, size=48, seed=1).frames,
    "more objects than were looked for": lambda: motes.cannonballs(3, 6, seed=8).frames,
    "another kind": bars,
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_warning_names_the_cause(cause: str) -> None:
    count = 1 if cause == "another size" else 2
    fit = motes.infer(motes.load("cannonballs-structured"), CAUSES[cause](), count).fit
    assert fit is not None
    assert all(cause in found for found in fit.causes)
    assert fit.refusal is not None
    assert cause in fit.refusal


def test_statistics_of_a_clip_equal_the_naive_loop() -> None:
    dynamics = LinearDynamics(num_components=1, generator=torch.Generator().manual_seed(0))
    model = Model(dynamics, disk_renderer(16), Tracker(7), image_size=(16, 16), max_objects=3)
    spots = torch.tensor([[-1.0, 0.3], [0.9, 0.5], [0.0, -0.9]])[None, :, None].expand(2, 3, 5, 2)
    frames = model.render(spots, torch.tensor([[1, 1, 0], [1, 1, 1]]) > 0).detach().round()
    frames[:, :, 0] = 1.0  # a line that no object explains
    observed = torch.tensor([[True] * 5, [True, True, False, True, True]])
    answer = motes.interpolate(model, frames, observed, torch.tensor([1, 2]))
    found = answer.measure()
    background = model.render(torch.zeros(1, 3, 1, 2), torch.zeros(1, 3) > 0)[0, 0]
    for clip, count in enumerate([1, 2]):
        lit = explained = wrong = either = seen = 0
        for t in observed[clip].nonzero()[:, 0].tolist():
            present, places = torch.zeros(1, 3, dtype=torch.bool), torch.zeros(1, 3, 1, 2)
            present[0, :count] = answer.found[clip, :count, t]
            places[0, :2, 0] = answer.positions[clip, :, t].nan_to_num()
            picture = model.render(places, present)[0, 0]
            seen += int(present.sum())
            pixels = torch.stack([frames[clip, t], picture, background]).flatten(1).T
            for v, p, b in pixels.tolist():
                is_lit, is_shown, agrees = v - b > 0.5, p - b > 0.5, v - p <= 0.5
                lit += int(is_lit)
                explained += int(is_lit and agrees)
                wrong += int((is_lit and not agrees) or (is_shown and not is_lit))
                either += int(is_lit or is_shown)
        num_frames = int(observed[clip].sum())
        assert 0 < explained < lit
        assert float(found.explained[clip]) == pytest.approx(explained / lit)
        assert float(found.unexpected[clip]) == pytest.approx(wrong / either)
        assert float(found.foreground[clip]) == pytest.approx(lit / num_frames / 256)
        assert float(found.detected[clip]) == pytest.approx(seen / num_frames / count)


def test_pixels_of_unobserved_frames_do_not_change_the_fit() -> None:
    model, frames, observed = tiny_sprite_model(), tiny_frames(2, 5), torch.arange(5) != 2
    filled = frames.clone()
    filled[:, 2] = torch.nan
    one, other = (
        motes.interpolate(model, each, observed, 2).measure() for each in (frames, filled)
    )
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def statistics(**changes: float) -> FitStatistics:
    values = {"explained": 0.9, "unexpected": 0.1, "motion": -1.0, "detected": 1.0}
    values |= {"foreground": 0.1, "nearby": 0.0, "departure": 1.5}
    return FitStatistics(**{k: torch.tensor([v]) for k, v in (values | changes).items()})


def test_scores_count_standard_deviations_from_the_mean_of_a_count() -> None:
    clips = FitStatistics(
        *(torch.rand(40, generator=torch.Generator().manual_seed(4)) for _ in FitStatistics._fields)
    )
    counts = torch.arange(40) % 2 + 1
    reference = FitReference.of(clips, counts, 30)
    row = FitStatistics(*(part[:1] for part in clips))
    values = clips.badness()[counts == 2]
    for frames, factor in ((30, 1.0), (60, 1.0), (5, math.sqrt(5 / 30))):
        score = reference.score(row, torch.tensor([2]), torch.tensor([frames]))
        spread = values.std(0, unbiased=False).maximum(torch.tensor(MIN_SD))
        expected = (row.badness() - values.mean(0)) / spread
        expected[:, :4] *= factor  # the law test has one distribution for any length
        torch.testing.assert_close(score, expected.double(), rtol=1e-5, atol=1e-6)
    # A larger count than any of the reference is compared with the largest.
    ours, theirs = (reference.score(row, torch.tensor([n]), torch.tensor([30])) for n in (2, 9))
    assert torch.equal(ours, theirs)


def test_without_a_reference_plain_limits_decide() -> None:
    model, one = tiny_model(), torch.tensor([1])
    good = judge_fit(model, statistics(), one, torch.tensor([30]))
    bad = judge_fit(model, statistics(explained=0.2), one, torch.tensor([30]))
    assert bool(good.fits)
    assert good.warning is None
    assert math.isnan(float(good.z_score))
    assert bad.warning is not None


def test_clips_are_refused_beyond_a_score_and_warned_about_below_it() -> None:
    def fit(*scores: float) -> Fit:
        z = torch.tensor(scores)
        causes = tuple("" if score < 6 else "too large; train" for score in scores)
        return Fit(torch.ones_like(z), torch.zeros_like(z), z, z < 6, causes)

    assert fit(1.0, 2.0).warning is None
    assert fit(1.0, 7.0).warning is not None
    assert fit(19.0).refusal is None
    assert fit(30.0, 1.0).refusal is None  # one of two clips
    assert fit(math.inf, math.nan).refusal is None
    refusal = fit(30.0, 50.0, 1.0).refusal
    assert refusal is not None
    assert "2 of 3 clips" in refusal
    assert "too large; train" in refusal
    assert "motes track" in refusal
    assert "--force" in refusal
    assert "\n" not in refusal


def test_a_reference_of_few_clips_refuses_nothing(tmp_path: Path) -> None:
    model = tiny_model()
    model.folder = tmp_path
    mean, sd = torch.zeros(1, 5).double(), torch.full((1, 5), 0.1).double()
    for num_clips, refused in ((MIN_CLIPS - 1, False), (MIN_CLIPS, True)):
        FitReference(mean, sd, 30, None, num_clips).save(tmp_path)
        fit = judge_fit(model, statistics(motion=-9.0), torch.tensor([1]), torch.tensor([30]))
        assert fit.warning is not None
        assert (fit.refusal is not None) == refused


def test_a_sample_has_no_fit() -> None:
    assert motes.sample(tiny_model(), 1, 1, 3).fit is None


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert FitReference.load(tmp_path) is None
    reference = FitReference(torch.rand(2, 5).double(), torch.rand(2, 5).double(), 30)
    reference.save(tmp_path)
    found = FitReference.load(tmp_path)
    assert found is not None
    assert found.num_frames == 30
    assert torch.equal(found.mean, reference.mean)
    assert torch.equal(found.sd, reference.sd)
    content = json.loads((tmp_path / FILE).read_text())
    old = {name: [row[:4] for row in content[name]] for name in ("mean", "sd")}
    (tmp_path / FILE).write_text(json.dumps(content | old))
    before = FitReference.load(tmp_path)  # as written before the law was tested
    assert before is not None
    assert torch.equal(before.mean[:, :4], reference.mean[:, :4])
    assert before.mean[:, 4].tolist() == pytest.approx([LAW_TEST[0]] * 2)
    assert before.sd[:, 4].tolist() == pytest.approx([LAW_TEST[1]] * 2)
    for text in ("{", '{"mean": 1}', '{"mean": [[1]], "sd": [[1]], "num_frames": 3}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(InputError, match="delete it"):
            FitReference.load(tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_have_a_reference(name: str) -> None:
    assert FitReference.load(SHIPPED / name) is not None


def test_positions_outside_the_picture_are_not_reported_as_detected() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.pixel_offset.fill_(1000.0)
    answer = motes.infer(model, tiny_frames(1, 4), 1)
    assert not answer.detected.any()


def test_measuring_in_chunks_equals_measuring_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, frames = tiny_sprite_model(), tiny_frames(2, 5)
    whole = motes.infer(model, frames, 2).measure()
    monkeypatch.setattr("motes.queries.fit.CHUNK_FRAMES", 2)
    parts = motes.infer(model, frames, 2).measure()
    for ours, theirs in zip(whole, parts, strict=True):
        torch.testing.assert_close(ours, theirs)
