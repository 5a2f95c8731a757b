"""The clips of a run: generated or loaded, split, and moved to the training device."""

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Int, Tensor
from motes.core.errors import InputError
from motes.data import Clips, PackedFrames, cannonballs, load_clips
from motes.data.clips import (
    MAX_CLIPS,
    clips_to_grey,
    colour_to_grey,
    find_colour_axis,
    median_background,
)
from motes.models.model import FAMILIES
from motes.training.inputs import TrainingData


class Dataset(NamedTuple):
    """Training clips, and held-out clips for the reported bound."""

    training: TrainingData
    held_out: TrainingData


def fit_to_data(config: RunConfig) -> RunConfig:
    """Return the configuration with the sizes of the clips in its file, if it has one."""
    if config.data.path is None:
        return config
    clips = load_clips(config.data.path)
    counts = known_counts(clips, config.data.path)
    family = FAMILIES[config.family]
    if clips.observed is not None and family.networks:
        raise InputError(
            f"{config.data.path} has unobserved frames; the paper's networks need complete clips: "
            "use a preset of the sprite family, such as sprites-video"
        )
    num_clips, num_frames, height, width = clips.video.shape[:4]
    held_out = min(config.data.num_held_out, max(num_clips // 10, 1))
    if num_clips <= held_out:
        raise InputError(f"{config.data.path} holds {num_clips} clip; training needs at least 2")
    data = dataclasses.replace(
        config.data,
        path=str(Path(config.data.path).resolve()),
        num_clips=num_clips - held_out,
        num_held_out=held_out,
        num_objects=tuple(range(1, int(counts.max()) + 1)),
        num_frames=num_frames,
        height=height,
        width=width,
        channels=3 if clips.in_colour and family.keeps_colour else 1,
        colour_axis=find_colour_axis(clips.frames)
        if clips.in_colour and not family.keeps_colour
        else None,
    )
    return dataclasses.replace(config, data=data)


def fit_sprite_size(config: RunConfig) -> RunConfig:
    """Return the configuration with a sprite of the size of the objects in its clips."""
    assert config.data.path is not None
    clips = load_clips(config.data.path)
    if clips.in_colour:
        grey = colour_to_grey(clips.frames, find_colour_axis(clips.frames))
        empty = median_background(grey[:MAX_CLIPS].flatten(0, 1))
        clips = dataclasses.replace(clips, video=(grey - empty).clamp(min=0))
    mass = mean_mass(clips, known_counts(clips, config.data.path))
    if mass == 0:
        raise InputError(f"{config.data.path} has black frames only; give clips with objects")
    radius = math.sqrt(mass / math.pi)
    model = dataclasses.replace(
        config.model, sprite_width=0.9 * radius, sprite_radius=min(math.ceil(2 * radius), 64)
    )
    return dataclasses.replace(config, model=model)


def make_dataset(config: RunConfig, device: torch.device) -> Dataset:
    """Return the clips of a run, the last ones held out, on the training device."""
    data = config.data
    if data.path is not None:
        clips = clips_to_grey(load_clips(data.path), data.colour_axis)
    else:
        clips = cannonballs(
            num_clips=data.num_clips + data.num_held_out,
            num_objects=data.num_objects,
            num_frames=data.num_frames,
            size=(data.height, data.width),
            seed=data.seed,
        )
    return Dataset(
        training=to_device(clips[: data.num_clips], device),
        held_out=to_device(clips[data.num_clips :], device),
    )


def to_device(clips: Clips, device: torch.device) -> TrainingData:
    """Return clips as the trainer reads them."""
    counts = known_counts(clips, "the clips")
    mass = max(mean_mass(clips, counts), 1.0)
    observed = None if clips.observed is None else clips.observed.to(device)
    return TrainingData(clips.video.to(device), counts.to(device), mass, None, observed)


def mean_mass(clips: Clips, counts: Int[Tensor, " B"]) -> float:
    """Return the lit pixels of one object in an observed frame, averaged over some clips."""
    some, counts = clips[:256], counts[:256]
    pixels = some.video.unpack_all() if isinstance(some.video, PackedFrames) else some.video
    if some.observed is None:
        return float(pixels.sum()) / (pixels.shape[1] * float(counts.sum()))
    return float(pixels[some.observed].sum()) / float((some.observed.sum(1) * counts).sum())


def known_counts(clips: Clips, origin: str) -> Int[Tensor, " B"]:
    """Return the number of objects in each clip, one or more, which training requires."""
    if clips.num_objects is None:
        raise InputError(
            f"{origin} does not say how many objects each clip holds; "
            "add an integer array num_objects with one entry a clip"
        )
    if int(clips.num_objects.min()) < 1:
        raise InputError(f"{origin} has clips without objects; remove them")
    return clips.num_objects
