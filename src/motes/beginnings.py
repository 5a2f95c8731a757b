"""Where the structured family begins: a few rough starts, of which the bound chooses one.

How large objects are and how far they stray is not known beforehand, and a start that is far off
on either takes long to mend. So some starts take a few steps each on small batches. [Choice 25]
"""

import dataclasses
import math
from collections.abc import Callable

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


def best_start(
    config: RunConfig,
    data: TrainingData,
    device: torch.device,
    report: Callable[[float, Model], None] = lambda bound, model: None,
) -> dict[str, Tensor]:
    """The weights of the start whose bound is highest after a few steps.

    Args:
        config: Of the run that is to begin; its scales are those that the starts are multiples of.
        data: What is learned from.
        device: Where the steps are taken.
        report: Told the bound in nats a clip and the model of each start, when it is tried.

    Law: of the starts that were tried none had a higher bound
    (test_the_start_with_the_highest_bound_is_taken).
    """
    best, weights = -math.inf, {}
    for start in STARTS:
        bound, model = _begin(config, data, device, *start)
        report(bound, model)
        if bound > best:
            best, weights = bound, model.state_dict()
    return weights


def _begin(
    config: RunConfig, data: TrainingData, device: torch.device, width: float, variance: float
) -> tuple[float, Model]:
    """The bound, in nats a clip, of the last steps from one start, and where they led."""
    part = dataclasses.replace(
        config.model,
        glyph_width=width * config.model.glyph_width,
        position_noise=variance * config.model.position_noise,
    )
    schedule = dataclasses.replace(
        config.schedule, steps_per_look=STEPS // 2, seed_mixture=(STEPS // 2,)
    )
    own = dataclasses.replace(
        config,
        model=part,
        schedule=schedule,
        batch_size=min(BATCH, config.batch_size),
        checkpoint_every=STEPS,
    )
    trainer = Trainer(own, data, device)
    for step in range(STEPS):
        if step == STEPS - 4:  # the bound of the steps before is that of the journey
            trainer.mean_terms()
        trainer.advance()
    return float(trainer.mean_terms().weighted(1.0)), trainer.model
