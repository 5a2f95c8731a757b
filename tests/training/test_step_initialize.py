"""Initial weights: the restarts, of which the bound selects one, and other models."""

import dataclasses

import pytest
import torch

from motes.config import ScheduleConfig
from motes.core.errors import InputError
from motes.models.checkpoint import load, save_model
from motes.models.model import build
from motes.training import step as initialization
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from motes.training.step import (
    RESTARTS,
    Trainer,
    check_initial_model,
    initialize,
    with_initial_model,
)
from motes.training.train import train

CPU = torch.device("cpu")


def with_scales(width, noise):
    """Return a small run of one ball with multiples of the preset's initial scales."""
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
        model=dataclasses.replace(config.model, sprite_width=width * config.model.sprite_width),
        dynamics=dataclasses.replace(
            config.dynamics, position_noise=noise * config.dynamics.position_noise
        ),
    )


def run_restarts(config):
    """Return the index of the best restart, the ends of all, and the selected weights."""
    trainer = Trainer(config, make_dataset(config, CPU).training, CPU)
    trials = list(initialize(trainer))
    ends = [trial for trial in trials if trial.step == initialization.RESTART_STEPS]
    halves = [trial for trial in trials if trial.step <= initialization.RESTART_STEPS // 2]
    assert {trial.restart for trial in halves or ends} == {1, 2, 3, 4}
    best = max(ends, key=lambda trial: trial.bound)
    return best.restart - 1, ends, trainer.model.state_dict()


@pytest.mark.slow
def test_the_restart_with_the_highest_bound_is_taken(monkeypatch):
    scales = []

    class Noted(Trainer):
        def __init__(self, config, data, device):
            scales.append((config.model.sprite_width, config.dynamics.position_noise))
            super().__init__(config, data, device)

    monkeypatch.setattr(initialization, "Trainer", Noted)
    monkeypatch.setattr(initialization, "RESTART_STEPS", 4)
    config = with_scales(2.0, 0.5)
    taken, ends, weights = run_restarts(config)
    # Every restart multiplies the run's own scales, and they end differently.
    width, noise = config.model.sprite_width, config.dynamics.position_noise
    assert scales == [(w * width, v * noise) for w, v in RESTARTS]
    assert len({trial.bound for trial in ends}) == len(RESTARTS)
    for place, trial in enumerate(ends):
        own = trial.model.state_dict()
        same = all(torch.equal(weights[name], value) for name, value in own.items())
        assert same == (place == taken)


def test_only_the_best_restarts_take_the_second_half_of_the_steps(monkeypatch):
    bounds = {1: (-9.0, -1.0), 2: (-2.0, -4.0), 3: (-8.0, 0.0), 4: (-3.0, -3.0)}
    taken = []

    def restart(number, config, data, device):
        for step, bound in zip((12, 24), bounds[number], strict=True):
            taken.append((number, step))
            model = build(dataclasses.replace(config, seed=10 * number + step))
            yield initialization.Trial(number, step, bound, model)

    monkeypatch.setattr(initialization, "restart", restart)
    config = with_scales(1.0, 1.0)
    trainer = Trainer(config, make_dataset(config, CPU).training, CPU)
    trials = list(initialize(trainer))
    # 2 and 4 lead after half of the steps; of these 4 ends higher.
    assert taken == [(1, 12), (2, 12), (3, 12), (4, 12), (2, 24), (4, 24)]
    assert [(trial.restart, trial.step) for trial in trials] == taken
    expected = next(t for t in trials if (t.restart, t.step) == (4, 24)).model.state_dict()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.slow
def test_a_sprite_four_times_too_wide_selects_another_restart():
    narrow, *_ = run_restarts(with_scales(0.25, 1.0))
    wide, *_ = run_restarts(with_scales(4.0, 1.0))
    assert RESTARTS[wide][0] < RESTARTS[narrow][0]


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


def test_a_run_starts_from_the_weights_of_another_model_that_fit(other):
    own = in_frames_of(with_scales(1.0, 1.0), 20, 24)
    config = with_initial_model(
        dataclasses.replace(
            own,
            model=dataclasses.replace(own.model, window=4),
            dynamics=dataclasses.replace(own.dynamics, law="linear"),
        ),
        other,
    )
    assert (config.dynamics.law, config.model.window) == ("linear", 4)
    fresh, theirs = build(config).state_dict(), load(other).state_dict()
    new_law = {"dynamics.force_field"}
    new_view = {"renderer.root_background", "renderer.visibility_logit"}
    same_size = in_frames_of(config, 24, 24)
    for own, kept in ((config, new_law | new_view), (same_size, new_law)):
        trainer = Trainer(own, make_dataset(own, CPU).training, CPU)
        random = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        list(initialize(trainer))
        for name, value in trainer.model.state_dict().items():
            expected = random[name] if name in kept else theirs[name]
            assert torch.equal(value, expected), name
    assert set(fresh) >= new_law | new_view


def test_training_continues_from_the_other_model(other, tmp_path):
    config = with_initial_model(with_scales(1.0, 1.0), other)
    schedule = ScheduleConfig(
        iterations=2, frozen_dynamics=0, learning_rate=((0, 1e-9),), steps_per_search=1
    )
    config = dataclasses.replace(config, schedule=schedule, batch_size=4, checkpoint_every=2)
    train(config, tmp_path / "run")
    mine, theirs = load(tmp_path / "run").renderer, load(other).renderer
    # Two steps of at most the learning rate each.
    torch.testing.assert_close(mine.root_depth, theirs.root_depth, rtol=0, atol=1e-8)


def test_a_model_of_another_family_is_refused_before_a_run_starts(other, tmp_path):
    paper = PRESETS["paper-smoke"]
    with pytest.raises(InputError, match=r"is of the sprites family; this run is of the paper"):
        train(with_initial_model(paper, other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_paper_s_networks_continue_with_frames_of_their_size_only(tmp_path):
    config = PRESETS["paper-smoke"]
    save_model(tmp_path, build(config), config)
    larger = in_frames_of(with_initial_model(config, str(tmp_path)), 20, 24)
    with pytest.raises(InputError, match=r"takes 16x16 frames, yours are 20x24: prepare them with"):
        check_initial_model(larger)
