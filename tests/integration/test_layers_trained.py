"""A layered sprite model, from clips to answers."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import motes
from motes.cli import queries as ask
from motes.cli.queries import Options
from motes.config import DataConfig
from motes.core.errors import InputError
from motes.data import load_clips, save_clips, worlds, write_gif
from motes.evaluation.evaluate import evaluate
from motes.evaluation.predictor import ModelPredictor
from motes.models.checkpoint import read_config, rename_old_tensors, save_model
from motes.models.layers.renderer import BACKGROUND_UNIT, LayeredRenderer
from motes.models.model import build
from motes.queries import SEARCH
from motes.server import playground
from motes.training import step as initialization
from motes.training.inputs import fit_to_data, make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer, initialize, with_initial_model
from motes.training.train import train

SIZE = 24


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module", params=["pictures", "colour"])
def run(request, tmp_path_factory):
    """The folder of a run of a few steps, and the world of its clips.

    Grey pictures: the recorded run of `test_golden`; colour: a new one.
    """
    if request.param == "pictures":
        folder = tmp_path_factory.mktemp("recorded") / "run"
        shutil.copytree(GOLDEN / "run_folders" / "layers", folder)
        config = read_config(folder)
        model = build(config)
        with np.load(GOLDEN / "weights_layers.npz") as arrays:
            weights = {name: torch.from_numpy(arrays[name]) for name in arrays}
        model.load_state_dict(rename_old_tensors(weights))
        save_model(folder, model, config)
        return folder, request.param
    folder = tmp_path_factory.mktemp(request.param)
    save_clips(folder / "clips.npz", worlds.make(request.param, 20, (1, 2), 12, SIZE, seed=1))
    config = PRESETS["layers"]
    schedule = dataclasses.replace(
        config.schedule.stretched(8), steps_per_search=4, mixture_em_steps=(4,)
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
        patch.setattr(initialization, "RESTART_STEPS", 4)
        patch.setattr(initialization, "RESTARTS", ((1.0, 1.0),))
        train(config, folder / "run")
    return folder / "run", request.param


@pytest.fixture(scope="module")
def trained(run):
    """Return the model, and clips that it was not trained on."""
    folder, world = run
    return motes.load(folder), worlds.make(world, 4, 2, 12, SIZE, seed=2)


def test_objects_are_found_after_a_few_steps(trained):
    model, clips = trained
    assert isinstance(model.renderer, LayeredRenderer)
    answer = motes.infer(model, clips.frames, 2)
    gap = torch.cdist(
        answer.pixels.transpose(1, 2).flatten(0, 1), clips.positions.transpose(1, 2).flatten(0, 1)
    )
    # Classes are initialised from clips, so most positions are right before any training. An
    # object of three pixels somewhere in a frame of 24 is ten pixels away by chance.
    assert gap.amin(1).median() < 0.5


def test_every_query_is_answered(trained):
    model, clips = trained
    frames, channels = clips.frames[:2], clips.frames.shape[4:]
    observed = torch.arange(12) % 3 > 0
    counted = motes.infer(model, frames)
    assert counted.count_probabilities is not None
    assert counted.count_probabilities.shape == (2, model.max_objects)
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


def test_rendered_frames_are_nearer_than_the_background(trained):
    model, clips = trained
    drawn = motes.infer(model, clips.frames, 2).mean_frames
    background = model.renderer.background().detach().view(clips.frames.shape[2:])
    error, empty = ((clips.frames - picture).square().mean() for picture in (drawn, background))
    assert error < 0.5 * empty


def test_a_layered_model_is_evaluated(trained):
    model, clips = trained
    scores = evaluate(ModelPredictor(model), clips)["by_count"]["2"]
    assert scores["clips"] == len(clips)
    assert 0 < scores["forecast_loss"] < 10


def test_a_video_of_another_size_is_refused(run, tmp_path):
    folder, _ = run
    write_gif(tmp_path / "a.gif", torch.rand(4, 30, 40, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(InputError, match=r"30x40 pixels; .* frames of 24x24"):
        ask.infer(Options((tmp_path / "a.gif",), model=str(folder)))


def test_samples_are_written_unchanged(trained, tmp_path, monkeypatch):
    model, clips = trained
    monkeypatch.setattr("motes.models.checkpoint.load", lambda name, device: model)
    ask.sample(tmp_path / "samples.npz", num_clips=2, num_frames=5, gif=tmp_path / "a.gif")
    written = load_clips(tmp_path / "samples.npz").frames
    assert written.shape[2:] == clips.frames.shape[2:]
    assert torch.equal(written, motes.sample(model, 2, 2, 5).frames)
    assert (tmp_path / "a.gif").exists()


def test_a_long_clip_is_answered_as_a_short_one_is(trained, monkeypatch):
    model, clips = trained
    frames, observed = clips.frames[:2], torch.arange(12) % 5 != 3

    def query(**sizes):
        for name, size in sizes.items():
            monkeypatch.setattr(f"motes.{name.replace('__', '.')}", size)
        answers = motes.interpolate(model, frames, observed), motes.forecast(model, frames, 2, 5)
        return [(answer, answer.frames, answer.mean_frames) for answer in answers]

    wholes = query(queries__tracks__NUM_DRAWS=3)
    in_pieces = query(
        queries__SEARCH=SEARCH._replace(stream_after=11),
        models__model__CHUNK_FRAMES=4,
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


def test_pixels_of_unobserved_frames_cannot_matter_to_layers(trained):
    model, clips = trained
    observed = torch.arange(12) % 3 > 0
    shape = (1, 12, *[1] * (clips.frames.ndim - 2))
    spoiled = torch.where(observed.view(shape), clips.frames, torch.nan)
    for count in (2, None):
        one, other = (motes.interpolate(model, f, observed, count) for f in (clips.frames, spoiled))
        torch.testing.assert_close(other.pixels, one.pixels, rtol=0, atol=0, equal_nan=True)


def test_the_playground_refuses_layered_models(trained, monkeypatch):
    model, _ = trained
    monkeypatch.setattr(playground, "load_with_config", lambda name: (model, None))
    with pytest.raises(InputError, match="motes infer"):
        playground.Playground.of("a run")


def test_a_run_from_another_model_has_its_own_background_and_the_same_classes(run, tmp_path):
    folder, world = run
    clips = worlds.make(world, 20, 1, 12, SIZE + 4, seed=3)
    save_clips(tmp_path / "clips.npz", clips)
    config = PRESETS["layers"]
    config = dataclasses.replace(config, data=DataConfig(path=str(tmp_path / "clips.npz")))
    config = fit_to_data(with_initial_model(config, str(folder)))
    data = make_dataset(config, torch.device("cpu")).training
    trainer = Trainer(config, data, torch.device("cpu"))
    list(initialize(trainer))
    weights = trainer.model.state_dict()
    old = motes.load(folder).renderer
    assert torch.equal(weights["renderer.root_depth"], old.root_depth)
    background = BACKGROUND_UNIT * weights["renderer.raw_background"]
    seen = data.frames(torch.arange(len(data.num_objects))).flatten(0, 1)
    torch.testing.assert_close(background.view(seen.shape[1:]), seen.median(0).values)


def test_frames_of_the_wrong_colours_are_refused(trained):
    model, clips = trained
    frames = clips.frames
    other = frames.mean(-1) if clips.in_colour else frames[..., None].expand(-1, -1, -1, -1, 3)
    with pytest.raises(InputError, match="3 colours" if clips.in_colour else "in colour"):
        motes.infer(model, other, 2)
