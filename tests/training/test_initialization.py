"""The rough starts, of which the bound chooses one."""

import dataclasses

import pytest
import torch

from motes.config import ScheduleConfig
from motes.core.errors import InputError
from motes.models.checkpoint import load, save_model
from motes.models.model import build
from motes.training import initialization as beginnings
from motes.training.dataset import make_dataset
from motes.training.initialization import (
    STARTS,
    best_start,
    check_initial_model,
    first_weights,
    with_initial_model,
)
from motes.training.presets import PRESETS
from motes.training.step import Trainer
from motes.training.train import train

CPU = torch.device("cpu")


def with_scales(width, noise):
    """A small run of one ball whose first scales are these multiples of the preset's."""
    config = PRESETS["sprites"]
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            num_clips=24,
            num_held_out=1,
            num_frames=10,
            num_objects=(1,),
            height=24,
            width=24,
        ),
        model=dataclasses.replace(
            config.model,
            glyph_width=width * config.model.glyph_width,
            position_noise=noise * config.model.position_noise,
        ),
    )


def start_again(config):
    """The place of the start that should be taken, the ends of all, and the weights taken."""
    told = []
    data = make_dataset(config, CPU).training
    weights = best_start(config, data, CPU, told.append)
    ends = [trial for trial in told if trial.step == beginnings.STEPS]
    assert [trial.start for trial in ends] == [1, 2, 3, 4]
    bounds = [trial.bound for trial in ends]
    return bounds.index(max(bounds)), ends, weights


def test_the_start_with_the_highest_bound_is_taken(monkeypatch):
    seen = []

    class Noted(Trainer):
        def __init__(self, config, data, device):
            seen.append((config.model.glyph_width, config.model.position_noise))
            super().__init__(config, data, device)

    monkeypatch.setattr(beginnings, "Trainer", Noted)
    monkeypatch.setattr(beginnings, "STEPS", 4)
    config = with_scales(2.0, 0.5)
    taken, ends, weights = start_again(config)
    # Every start is a multiple of the run's own scales, and they lead to different places.
    width, noise = config.model.glyph_width, config.model.position_noise
    assert seen == [(w * width, v * noise) for w, v in STARTS]
    assert len({trial.bound for trial in ends}) == len(STARTS)
    for place, trial in enumerate(ends):
        own = trial.model.state_dict()
        same = all(torch.equal(weights[name], value) for name, value in own.items())
        assert same == (place == taken)


@pytest.mark.slow
def test_a_glyph_four_times_too_wide_begins_from_another_start():
    narrow, *_ = start_again(with_scales(0.25, 1.0))
    wide, *_ = start_again(with_scales(4.0, 1.0))
    assert STARTS[wide][0] < STARTS[narrow][0]


@pytest.fixture
def other(tmp_path):
    """A run folder with a model that no seed of these tests would draw."""
    config = dataclasses.replace(with_scales(0.5, 2.0), seed=9)
    (tmp_path / "other").mkdir()
    save_model(tmp_path / "other", build(config), config)
    return str(tmp_path / "other")


def in_frames_of(config, height, width):
    return dataclasses.replace(
        config, data=dataclasses.replace(config.data, height=height, width=width)
    )


def test_a_run_begins_with_what_fits_of_another_model(other):
    own = in_frames_of(with_scales(1.0, 1.0), 20, 24)
    config = with_initial_model(
        dataclasses.replace(own, model=dataclasses.replace(own.model, law="linear", window=4)),
        other,
    )
    assert (config.model.law, config.model.window) == ("linear", 4)
    weights = first_weights(config, make_dataset(config, CPU).training, CPU)
    fresh, theirs = build(config).state_dict(), load(other).state_dict()
    anew = {"renderer.root_background", "renderer.visibility_logit", "dynamics.force_field"}
    assert set(fresh) - set(weights) == anew
    assert all(torch.equal(weights[name], theirs[name]) for name in weights)
    same_size = in_frames_of(config, 24, 24)
    assert set(fresh) - set(first_weights(same_size, None, CPU)) == {"dynamics.force_field"}


def test_training_goes_on_from_the_other_model(other, tmp_path):
    config = with_initial_model(with_scales(1.0, 1.0), other)
    schedule = ScheduleConfig(
        iterations=2, frozen_dynamics=0, learning_rate=((0, 1e-9),), steps_per_search=1
    )
    config = dataclasses.replace(config, schedule=schedule, batch_size=4, checkpoint_every=2)
    train(config, tmp_path / "run")
    mine, theirs = load(tmp_path / "run").renderer, load(other).renderer
    # Two steps of at most the learning rate each.
    torch.testing.assert_close(mine.root_depth, theirs.root_depth, rtol=0, atol=1e-8)


def test_a_model_of_another_kind_is_refused_before_a_run_begins(other, tmp_path):
    paper = PRESETS["paper-smoke"]
    with pytest.raises(InputError, match=r"is of the structured family; this run is of the paper"):
        train(with_initial_model(paper, other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_paper_s_networks_go_on_in_frames_of_their_size_only(tmp_path):
    config = PRESETS["paper-smoke"]
    save_model(tmp_path, build(config), config)
    larger = in_frames_of(with_initial_model(config, str(tmp_path)), 20, 24)
    with pytest.raises(InputError, match=r"draws 16x16 frames, yours are 20x24: prepare them with"):
        check_initial_model(larger)
