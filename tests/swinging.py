"""A model of two disks that swing, and recordings of any length of them."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from motes.config import RunConfig
from motes.core.axes import Tensor
from motes.models.checkpoint import save_model
from motes.models.model import Model, build
from motes.models.sprites.search import SpriteSettings
from motes.training.presets import PRESETS
from sprite_scenes import disk_renderer, frame_with, straight

SIZE = 40


def swinging_config() -> RunConfig:
    config = PRESETS["sprites-smoke"]
    return replace(
        config,
        data=replace(config.data, height=SIZE, width=SIZE, num_objects=(2,), num_frames=8),
        dynamics=replace(config.dynamics, num_components=1),
        model=SpriteSettings(sprite_radius=3),
    )


def swinging_model() -> Model:
    """Return the model; its law forgets within some ten frames."""
    model, dynamics = build(swinging_config()), straight(1.0)
    with torch.no_grad():
        dynamics.state_factor.diagonal().fill_(0.5 * math.log(0.02))
    model.renderer.load_state_dict(disk_renderer(SIZE).state_dict())
    model.dynamics.load_state_dict(dynamics.state_dict())
    model.pixel_matrix.copy_(3 * torch.eye(2))  # as the renderer has it
    model.pixel_offset.fill_((SIZE - 1) / 2)
    return model


def swinging_run(folder: Path) -> Path:
    """Return a run folder of the model."""
    folder.mkdir(parents=True)
    save_model(folder, swinging_model(), swinging_config())
    return folder


def swinging_places(num_frames: int) -> Tensor:
    """Return the whole pixels [2 T 2] of both disks."""
    t = torch.arange(num_frames)
    one = torch.stack([11 + 6 * (t / 9).sin(), 20 + 10 * (t / 11).cos()], -1)
    two = torch.stack([28 + 6 * (t / 8).cos(), 20 + 10 * (t / 7).sin()], -1)
    return torch.stack([one, two]).round()


def frames_of(places: Tensor) -> Tensor:
    """Return frames [1 T SIZE SIZE] of disks at whole pixels [N T 2]."""
    pairs = [[tuple(xy) for xy in now] for now in places.long().transpose(0, 1).tolist()]
    return torch.cat([frame_with(pair, SIZE) for pair in pairs])[None]
