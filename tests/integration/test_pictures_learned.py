"""A model of pictures, from clips to answers."""

import dataclasses

import pytest
import torch

import motes
from motes.cli import queries as ask
from motes.cli.inputs import Options
from motes.config import DataConfig
from motes.core.errors import InputError
from motes.data import load_clips, save_clips, worlds, write_gif
from motes.evaluation.evaluate import ModelPredictor, evaluate
from motes.models.layers.renderer import BACKGROUND_UNIT, LayeredRenderer
from motes.server import playground
from motes.training import initialization as beginnings
from motes.training.dataset import fit_to_data, make_dataset
from motes.training.initialization import first_weights, with_initial_model
from motes.training.presets import PRESETS
from motes.training.train import train

SIZE = 24


@pytest.fixture(scope="module", params=["pictures", "colour"])
def run(request, tmp_path_factory):
    """The folder of a run of a few steps, and the world of its clips."""
    folder = tmp_path_factory.mktemp(request.param)
    save_clips(folder / "clips.npz", worlds.make(request.param, 20, (1, 2), 12, SIZE, seed=1))
    config = PRESETS["layers"]
    schedule = dataclasses.replace(
        config.schedule.stretched(8), steps_per_search=4, seed_mixture=(4,)
    )
    config = dataclasses.replace(
        config,
        data=DataConfig(path=str(folder / "clips.npz")),
        schedule=schedule,
        batch_size=8,
        log_every=4,
        checkpoint_every=4,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "STEPS", 4)
        patch.setattr(beginnings, "STARTS", ((1.0, 1.0),))
        train(config, folder / "run")
    return folder / "run", request.param


@pytest.fixture(scope="module")
def learned(run):
    """The model, and clips that it has not seen."""
    folder, world = run
    return motes.load(folder), worlds.make(world, 4, 2, 12, SIZE, seed=2)


def test_objects_are_found_where_they_were_drawn_after_a_few_steps(learned):
    model, clips = learned
    assert isinstance(model.renderer, LayeredRenderer)
    answer = motes.infer(model, clips.frames, 2)
    gap = torch.cdist(
        answer.pixels.transpose(1, 2).flatten(0, 1), clips.positions.transpose(1, 2).flatten(0, 1)
    )
    # Kinds begin as they look, so that most positions are right before anything is learned. An
    # object of three pixels somewhere in a frame of 24 is ten pixels away by chance.
    assert gap.amin(1).median() < 0.5


def test_every_question_about_pictures_is_answered(learned):
    model, clips = learned
    frames, channels = clips.frames[:2], clips.frames.shape[4:]
    observed = torch.arange(12) % 3 > 0
    counted = motes.infer(model, frames)
    assert counted.count_probabilities is not None
    assert counted.count_probabilities.shape == (2, 2)
    for answer, num_frames in (
        (motes.infer(model, frames, 2), 12),
        (motes.forecast(model, frames[:, :6], 2, horizon=4), 10),
        (motes.interpolate(model, frames, observed, 2), 12),
        (motes.sample(model, 2, 2, 5), 5),
    ):
        for pictures in (answer.frames, answer.mean_frames):
            assert pictures.shape == (2, num_frames, SIZE, SIZE, *channels)
            assert 0 <= pictures.min() <= pictures.max() <= 1
        assert answer.pixels.isfinite().all()


def test_inferred_pictures_are_nearer_to_the_frames_than_the_background_is(learned):
    model, clips = learned
    drawn = motes.infer(model, clips.frames, 2).mean_frames
    background = model.renderer.background().detach().view(clips.frames.shape[2:])
    error, empty = ((clips.frames - picture).square().mean() for picture in (drawn, background))
    assert error < 0.5 * empty


def test_a_model_of_pictures_is_scored(learned):
    model, clips = learned
    scores = evaluate(ModelPredictor(model), clips)["by_count"]["2"]
    assert scores["clips"] == len(clips)
    assert 0 < scores["forecast_loss"] < 10


def test_a_video_of_another_size_is_not_cut_into_shapes_for_a_model_of_pictures(run, tmp_path):
    folder, _ = run
    write_gif(tmp_path / "a.gif", torch.rand(4, 30, 40, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(InputError, match=r"30x40 pixels; .* frames of 24x24"):
        ask.infer(Options(tmp_path / "a.gif", model=str(folder)))


def test_imagined_pictures_are_written_as_they_are(learned, tmp_path, monkeypatch):
    model, clips = learned
    monkeypatch.setattr(ask, "load", lambda name: model)
    ask.sample(tmp_path / "imagined.npz", num_clips=2, num_frames=5, gif=tmp_path / "a.gif")
    written = load_clips(tmp_path / "imagined.npz").frames
    assert written.shape[2:] == clips.frames.shape[2:]
    assert torch.equal(written, motes.sample(model, 2, 2, 5).frames)
    assert (tmp_path / "a.gif").exists()


def test_a_long_clip_of_pictures_is_answered_as_a_short_one_is(learned, monkeypatch):
    model, clips = learned
    frames, observed = clips.frames[:2], torch.arange(12) % 5 != 3

    def ask(**sizes):
        for name, size in sizes.items():
            monkeypatch.setattr(f"motes.{name.replace('__', '.')}", size)
        answers = motes.interpolate(model, frames, observed), motes.forecast(model, frames, 2, 5)
        return [(answer, answer.frames, answer.mean_frames) for answer in answers]

    wholes = ask(queries__NUM_DRAWS=3)
    in_pieces = ask(
        models__paper__gap_filling__LONG=11,
        models__model__AT_ONCE=4,
        models__layers__search__CHUNK_FRAMES=2 * 2 * 3 * 5,
    )
    for (whole, *drawn), (pieces, *redrawn) in zip(wholes, in_pieces, strict=True):
        # The same numbers; a convolution of fewer frames may add them in another order.
        for name in ("pixels", "pixel_covariances", "component_probabilities", "found"):
            ours, theirs = getattr(pieces, name), getattr(whole, name)
            torch.testing.assert_close(ours, theirs, equal_nan=True, msg=name)
        torch.testing.assert_close(redrawn, drawn)
    counts = (each[0][0].count_probabilities for each in (in_pieces, wholes))
    torch.testing.assert_close(*counts)


def test_hidden_pictures_cannot_matter(learned):
    model, clips = learned
    observed = torch.arange(12) % 3 > 0
    shape = (1, 12, *[1] * (clips.frames.ndim - 2))
    spoiled = torch.where(observed.view(shape), clips.frames, torch.nan)
    for count in (2, None):
        one, other = (motes.interpolate(model, f, observed, count) for f in (clips.frames, spoiled))
        torch.testing.assert_close(other.pixels, one.pixels, rtol=0, atol=0, equal_nan=True)


def test_the_playground_says_that_it_shows_no_pictures(learned, monkeypatch):
    model, _ = learned
    monkeypatch.setattr(playground, "load_with_config", lambda name: (model, None))
    with pytest.raises(InputError, match="motes infer"):
        playground.Playground.of("a run")


def test_a_run_that_begins_with_another_sees_its_own_background_and_the_same_kinds(run, tmp_path):
    folder, world = run
    clips = worlds.make(world, 20, 1, 12, SIZE + 4, seed=3)
    save_clips(tmp_path / "clips.npz", clips)
    config = PRESETS["layers"]
    config = dataclasses.replace(config, data=DataConfig(path=str(tmp_path / "clips.npz")))
    config = fit_to_data(with_initial_model(config, str(folder)))
    data = make_dataset(config, torch.device("cpu")).training
    weights = first_weights(config, data, torch.device("cpu"))
    old = motes.load(folder).renderer
    assert torch.equal(weights["renderer.root_depth"], old.root_depth)
    background = BACKGROUND_UNIT * weights["renderer.raw_background"]
    seen = data.frames(torch.arange(len(data.num_objects))).flatten(0, 1)
    torch.testing.assert_close(background.view(seen.shape[1:]), seen.median(0).values)


def test_frames_of_the_wrong_colours_are_refused(learned):
    model, clips = learned
    frames = clips.frames
    other = frames.mean(-1) if clips.in_colour else frames[..., None].expand(-1, -1, -1, -1, 3)
    with pytest.raises(InputError, match="3 colours" if clips.in_colour else "in colour"):
        motes.infer(model, other, 2)
