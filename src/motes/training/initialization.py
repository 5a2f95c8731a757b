"""Initial weights: another model's, or those of the best of a few short restarts.

The size of objects and their process noise are unknown, and a sprite model that starts far from
either takes long to recover. So restarts with different scales take a few steps each on small
batches, and the bound selects one. [Choice 25]
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Int, Tensor
from motes.core.errors import InputError
from motes.models.model import FAMILIES, Model, build, find_model, load, read_config
from motes.training.inputs import TrainingData
from motes.training.step import Trainer

# Multiples of the sprite's width and of the variance of positions. Training does not recover by
# itself from a sprite that is too wide, nor from positions with too little noise.
RESTARTS = ((1.0, 1.0), (0.25, 1.0), (1.0, 16.0), (0.25, 16.0))
STEPS = 24
BATCH = 16
INITIAL_CLIPS = 64  # clips that background and sprite classes are initialised from
REPORT_EVERY = 4  # steps that a reported bound is averaged over


class Trial(NamedTuple):
    """A restart after some steps."""

    restart: int  # counted from 1
    step: int  # of STEPS
    bound: float  # of the last steps, nats per clip
    model: Model  # training continues to change it


def initialize(trainer: Trainer, report: Callable[[Trial], None] = lambda trial: None) -> None:
    """Give a new trainer's model the weights that training starts from.

    Those of `config.initial_model`, or of the best restart for families that have them; else the
    random ones.
    """
    config, data, model = trainer.config, trainer.data, trainer.model
    if config.initial_model is not None:
        model.load_state_dict(inherited(config), strict=False)
        some = _initial_clips(data)  # the background belongs to the camera of these clips
        model.renderer.initialize_background(data.frames(some), data.observed_in(some))
    elif FAMILIES[config.family].restarts:
        weights = best_restart(config, data, trainer.device, report)
        model.load_state_dict(weights, strict=False)


def _initial_clips(data: TrainingData) -> Int[Tensor, " b"]:
    """Return the indices of the clips that initial values are taken from."""
    return torch.arange(min(INITIAL_CLIPS, len(data.num_objects)), device=data.num_objects.device)


def with_initial_model(config: RunConfig, name_or_folder: str) -> RunConfig:
    """Return the configuration of a run that starts from a model: its sizes, the run's own law."""
    its = read_config(find_model(name_or_folder))
    model, dynamics = its.model, dataclasses.replace(its.dynamics, law=config.dynamics.law)
    if its.family == config.family and hasattr(model, "window"):
        model = dataclasses.replace(model, window=config.model.window)
    elif its.family != config.family:
        model = config.model  # refused later, by `check_initial_model`
    return dataclasses.replace(config, model=model, dynamics=dynamics, initial_model=name_or_folder)


def check_initial_model(config: RunConfig) -> None:
    """Refuse a run that starts from an incompatible model.

    Raises:
        InputError: there is no such model, or it is of another family or frame size.
    """
    if config.initial_model is None:
        return
    name_or_folder, its = config.initial_model, read_config(find_model(config.initial_model))
    if its.family != config.family:
        raise InputError(
            f"{name_or_folder} is of the {its.family} family; this run is of the "
            f"{config.family} family: start from a model of its own family"
        )
    size, its_size = ((c.data.height, c.data.width) for c in (config, its))
    if size != its_size and FAMILIES[config.family].networks:
        raise InputError(
            f"{name_or_folder} takes {its_size[0]}x{its_size[1]} frames, yours are "
            f"{size[0]}x{size[1]}: prepare them with --size {its_size[0]} {its_size[1]}"
        )


def inherited(config: RunConfig) -> dict[str, Tensor]:
    """Return the weights of the initial model that fit: those of the same name and shape.

    For sprites of another frame size, all but background and visibility: what belongs to the
    camera's view is learned again.
    """
    assert config.initial_model is not None
    shapes = {name: weights.shape for name, weights in build(config).state_dict().items()}
    theirs: dict[str, Tensor] = load(config.initial_model).state_dict()
    return {name: part for name, part in theirs.items() if shapes.get(name) == part.shape}


def best_restart(
    config: RunConfig,
    data: TrainingData,
    device: torch.device,
    report: Callable[[Trial], None] = lambda trial: None,
) -> dict[str, Tensor]:
    """Return the weights of the restart whose bound is highest after a few steps.

    Args:
        config: Of the run that is to start; the restarts multiply its scales.
        data: The training clips.
        device: Where the steps are taken.
        report: Called every few steps of every restart.

    Law: no restart had a higher bound (test_the_restart_with_the_highest_bound_is_taken).
    """
    ends = []
    for number, (width, variance) in enumerate(RESTARTS, 1):
        for trial in _trials(number, _scaled(config, width, variance), data, device):
            report(trial)
        ends.append(trial)
    return max(ends, key=lambda trial: trial.bound).model.state_dict()


def _scaled(config: RunConfig, width: float, variance: float) -> RunConfig:
    """Return the configuration of a short run with other scales."""
    noise = variance * config.dynamics.position_noise
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, sprite_width=width * config.model.sprite_width),
        dynamics=dataclasses.replace(config.dynamics, position_noise=noise),
        schedule=dataclasses.replace(
            config.schedule, steps_per_search=STEPS // 2, mixture_em_steps=(STEPS // 2,)
        ),
        batch_size=min(BATCH, config.batch_size),
        checkpoint_every=STEPS,
    )


def _trials(
    number: int, config: RunConfig, data: TrainingData, device: torch.device
) -> Iterator[Trial]:
    """Take the steps of one restart; each bound is of the last few steps."""
    trainer = Trainer(config, data, device)
    some, generator = _initial_clips(data), torch.Generator().manual_seed(config.seed + number)
    trainer.model.renderer.initialize_from(
        data.frames(some), data.num_objects[some], data.observed_in(some), generator
    )
    while trainer.step < STEPS:
        trainer.advance()
        if trainer.step % REPORT_EVERY == 0:
            bound = float(trainer.mean_terms().weighted(1.0))
            yield Trial(number, trainer.step, bound, trainer.model)
