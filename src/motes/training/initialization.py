"""What training begins with: another model's weights, or the best of a few rough starts.

How large objects are and how far they stray is not known beforehand, and a start of the structured
family that is far off on either takes long to mend. So some starts take a few steps each on small
batches, and the bound chooses one. [Choice 25]
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Int, Tensor
from motes.core.errors import InputError
from motes.models.checkpoint import find_model, load, read_config
from motes.models.model import Model, build
from motes.training.inputs import TrainingData
from motes.training.sprite_init import seed_background, seed_kinds
from motes.training.step import Trainer

# Multiples of the glyph's width and of the variance of positions. A glyph that is too wide and
# positions that are too steady are what learning does not leave by itself.
STARTS = ((1.0, 1.0), (0.25, 1.0), (1.0, 16.0), (0.25, 16.0))
STEPS = 24
BATCH = 16
SEEN = 64  # clips in which background and kinds are looked for, of pictures
REPORTED = 4  # steps that a bound is averaged over


class Trial(NamedTuple):
    """One of the starts, some steps on."""

    start: int  # counted from 1
    step: int  # of STEPS
    bound: float  # of the last steps, nats a clip
    model: Model  # as it stands; it goes on changing


def first_weights(
    config: RunConfig,
    data: TrainingData,
    device: torch.device,
    report: Callable[[Trial], None] = lambda trial: None,
) -> dict[str, Tensor]:
    """The weights, by name, that training begins with in place of those that are drawn."""
    if config.begins_with is not None:
        return inherited(config) | _own_background(config, data, device)
    if config.model.family == "structured":
        return best_start(config, data, device, report)
    return {}


def _own_background(
    config: RunConfig, data: TrainingData, device: torch.device
) -> dict[str, Tensor]:
    """The background of the run's own clips, of pictures: another camera saw another one."""
    painter = build(config).to(device).painter
    if painter is None:
        return {}
    some = _some_clips(data)
    seed_background(painter, data.frames(some), data.seen(some))
    return {"renderer.raw_background": painter.raw_background.detach()}


def _some_clips(data: TrainingData) -> Int[Tensor, " b"]:
    """The clips in which background and kinds of object are looked for, of pictures."""
    return torch.arange(min(SEEN, len(data.num_objects)), device=data.num_objects.device)


def with_initial_model(config: RunConfig, name_or_folder: str) -> RunConfig:
    """The configuration of a run that begins with another model: its sizes, the run's own law."""
    own, its = config.model, read_config(find_model(name_or_folder)).model
    model = dataclasses.replace(its, family=own.family, law=own.law, window=own.window)
    return dataclasses.replace(config, model=model, begins_with=name_or_folder)


def check_initial_model(config: RunConfig) -> None:
    """Refuses a run that is to begin with a model of another kind.

    Raises:
        InputError: there is no such model, or it is of another family, or draws other frames.
    """
    if config.begins_with is None:
        return
    name_or_folder, its = config.begins_with, read_config(find_model(config.begins_with))
    if its.model.family != config.model.family:
        raise InputError(
            f"{name_or_folder} is of the {its.model.family} family; this run is of the "
            f"{config.model.family} family: begin with a model of its own family"
        )
    size, its_size = ((c.data.height, c.data.width) for c in (config, its))
    if size != its_size and config.model.family == "paper":
        raise InputError(
            f"{name_or_folder} draws {its_size[0]}x{its_size[1]} frames, yours are "
            f"{size[0]}x{size[1]}: prepare them with --size {its_size[0]} {its_size[1]}"
        )


def inherited(config: RunConfig) -> dict[str, Tensor]:
    """The weights of another model that fit: those of the same name and shape.

    Of the structured family all fit but the pictures of background and visibility, where frames
    have another size: what belongs to the place of the camera is learned anew.
    """
    assert config.begins_with is not None
    shapes = {name: weights.shape for name, weights in build(config).state_dict().items()}
    theirs: dict[str, Tensor] = load(config.begins_with).state_dict()
    return {name: part for name, part in theirs.items() if shapes.get(name) == part.shape}


def best_start(
    config: RunConfig,
    data: TrainingData,
    device: torch.device,
    report: Callable[[Trial], None] = lambda trial: None,
) -> dict[str, Tensor]:
    """The weights of the start whose bound is highest after a few steps.

    Args:
        config: Of the run that is to begin; its scales are those that the starts are multiples of.
        data: What is learned from.
        device: Where the steps are taken.
        report: Told every few steps of every start.

    Law: of the starts that were tried none had a higher bound
    (test_the_start_with_the_highest_bound_is_taken).
    """
    ends = []
    for number, (width, variance) in enumerate(STARTS, 1):
        for trial in _steps(number, _scaled(config, width, variance), data, device):
            report(trial)
        ends.append(trial)
    return max(ends, key=lambda trial: trial.bound).model.state_dict()


def _scaled(config: RunConfig, width: float, variance: float) -> RunConfig:
    """The configuration of a short run from other scales."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            glyph_width=width * config.model.glyph_width,
            position_noise=variance * config.model.position_noise,
        ),
        schedule=dataclasses.replace(
            config.schedule, steps_per_look=STEPS // 2, seed_mixture=(STEPS // 2,)
        ),
        batch_size=min(BATCH, config.batch_size),
        checkpoint_every=STEPS,
    )


def _steps(
    number: int, config: RunConfig, data: TrainingData, device: torch.device
) -> Iterator[Trial]:
    """Takes the steps of one start; the last bound is that of the last few, not of the journey."""
    trainer = Trainer(config, data, device)
    painter = trainer.model.painter
    if painter is not None:
        some = _some_clips(data)
        generator = torch.Generator().manual_seed(config.seed + number)
        counts, seen = data.num_objects[some], data.seen(some)
        seed_kinds(painter, data.frames(some), counts, seen, generator)
    while trainer.step < STEPS:
        trainer.advance()
        if trainer.step % REPORTED == 0:
            bound = float(trainer.mean_terms().weighted(1.0))
            yield Trial(number, trainer.step, bound, trainer.model)
