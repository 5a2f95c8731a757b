"""The rough starts, of which the bound chooses one."""

import dataclasses

import pytest
import torch

from motes import beginnings
from motes.beginnings import STARTS, best_start
from motes.presets import preset
from motes.trainer import Trainer
from motes.training_data import make_dataset

CPU = torch.device("cpu")


def with_scales(width, noise):
    """A small run of one ball whose first scales are these multiples of the preset's."""
    config = preset("structured", "robust")
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
