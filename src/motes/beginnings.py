"""Where the structured family begins: a few rough starts, of which the bound chooses one.

How large objects are and how far they stray is not known beforehand, and a start that is far off
on either takes long to mend. So some starts take a few steps each on small batches. [Choice 25]
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from motes.batches import TrainingData
from motes.config import RunConfig
from motes.model import Model
from motes.shapes import Tensor
from motes.trainer import Trainer

# Multiples of the glyph's width and of the variance of positions. A glyph that is too wide and
# positions that are too steady are what learning does not leave by itself.
STARTS = ((1.0, 1.0), (0.25, 1.0), (1.0, 16.0), (0.25, 16.0))
STEPS = 24
BATCH = 16
REPORTED = 4  # steps that a bound is averaged over


class Trial(NamedTuple):
    """One of the starts, some steps on."""

    start: int  # counted from 1
    step: int  # of STEPS
    bound: float  # of the last steps, nats a clip
    model: Model  # as it stands; it goes on changing


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
    while trainer.step < STEPS:
        trainer.advance()
        if trainer.step % REPORTED == 0:
            bound = float(trainer.mean_terms().weighted(1.0))
            yield Trial(number, trainer.step, bound, trainer.model)
