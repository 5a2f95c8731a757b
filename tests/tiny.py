"""Models of a few hundred numbers; no parameter of the paper's has its special initial value."""

from dataclasses import replace

import torch

from motes.config import DataConfig, RunConfig, ScheduleConfig
from motes.models.model import Model, build
from motes.models.paper import PaperSettings
from motes.training.presets import PRESETS

HEIGHT, WIDTH, MAX_OBJECTS = 6, 8, 3


def tiny_config(**changes: object) -> RunConfig:
    config = RunConfig(
        data=DataConfig(
            num_clips=12,
            num_objects=tuple(range(1, MAX_OBJECTS + 1)),
            num_frames=7,
            height=HEIGHT,
            width=WIDTH,
            num_held_out=4,
        ),
        model=PaperSettings(inference_state_size=5, renderer_state_size=6),
        schedule=ScheduleConfig(iterations=8, frozen_dynamics=4),
        batch_size=4,
        log_every=2,
        checkpoint_every=4,
    )
    return replace(config, **changes)


def tiny_model(seed: int = 0) -> Model:
    model = build(tiny_config(seed=seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name == "calibration_scale":  # the reference results have q's own covariances
                continue
            value += 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return model


def tiny_sprite_model() -> Model:
    config = PRESETS["sprites-smoke"]
    return build(replace(config, data=tiny_config().data))


def tiny_frames(num_clips: int, num_frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(num_clips, num_frames, HEIGHT, WIDTH, generator=generator) < 0.2).float()
