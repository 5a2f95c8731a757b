"""What a training step reads: the clips of a run, the schedule, batches and noise, blurred frames.

Settings of a step are pure functions of the step ([Choice 5]); batches and noise of (seed, step).
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from motes.config import Knots, RunConfig, ScheduleConfig
from motes.core.axes import Bool, Float, Float64, Int, Tensor
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
from motes.models.protocols import GaussianPosterior


class TrainingData(NamedTuple):
    """Training clips on the training device."""

    video: PackedFrames | Float[Tensor, "B T height width *channels"]
    num_objects: Int[Tensor, " B"]
    mass: float  # lit pixels of one object on average; sets the contrast of blurred frames
    pseudo_labels: GaussianPosterior | None = None  # a teacher's positions of all clips
    observed: Bool[Tensor, "B T"] | None = None  # which frames count; all, if None

    def frames(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b T height width *channels"]:
        """Return the clips of these indices, values in [0, 1]."""
        if isinstance(self.video, PackedFrames):
            return self.video.unpack(indices)
        return self.video.index_select(0, indices)

    def observed_in(self, indices: Int[Tensor, " b"]) -> Bool[Tensor, "b T"] | None:
        """Return which frames of these clips count; None if all do."""
        return None if self.observed is None else self.observed.index_select(0, indices)


class Dataset(NamedTuple):
    """Training clips, and held-out clips for the reported bound."""

    training: TrainingData
    held_out: TrainingData


def fit_to_data(config: RunConfig) -> RunConfig:
    """Return the configuration with the sizes of the clips in its file, if it has one.

    Raises:
        InputError: a model cannot be trained on these clips.
    """
    if config.data.path is None:
        _check_num_frames(config.data.num_frames, "the configuration")
        return config
    clips = load_clips(config.data.path)
    counts = counts_for_training(clips, config.data.path)
    family = FAMILIES[config.family]
    if clips.observed is not None and family.networks:
        raise InputError(
            f"{config.data.path} has unobserved frames; the paper's networks need complete clips: "
            "use a preset of the sprite family, such as sprites-video"
        )
    num_clips, num_frames, height, width = clips.video.shape[:4]
    _check_num_frames(num_frames, config.data.path)
    held_out = min(config.data.num_held_out, max(num_clips // 10, 1))
    if num_clips <= held_out:
        raise InputError(f"{config.data.path} holds {num_clips} clip; training needs at least 2")
    _check_observed(clips[: num_clips - held_out], config.data.path)
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
        colour_axis=None,
    )
    if clips.in_colour and not family.keeps_colour:
        data = dataclasses.replace(data, colour_axis=find_colour_axis(clips.frames))
    return dataclasses.replace(config, data=data)


def fit_sprite_size(config: RunConfig) -> RunConfig:
    """Return the configuration with a sprite of the size of the objects in its clips."""
    assert config.data.path is not None
    clips = load_clips(config.data.path)
    _check_observed(clips, config.data.path)
    if clips.in_colour:
        grey = colour_to_grey(clips.frames, find_colour_axis(clips.frames))
        empty = median_background(grey[:MAX_CLIPS].flatten(0, 1))
        clips = dataclasses.replace(clips, video=(grey - empty).clamp(min=0))
    mass = pixels_per_object(clips, counts_for_training(clips, config.data.path))
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
            data.num_clips + data.num_held_out,
            data.num_objects,
            data.num_frames,
            (data.height, data.width),
            data.seed,
        )
    parts = clips[: data.num_clips], clips[data.num_clips :]
    return Dataset(*(to_training_data(part, device) for part in parts))


def to_training_data(clips: Clips, device: torch.device) -> TrainingData:
    """Return clips as the trainer reads them."""
    counts = counts_for_training(clips, "the clips")
    mass = max(pixels_per_object(clips, counts), 1.0)
    observed = None if clips.observed is None else clips.observed.to(device)
    return TrainingData(clips.video.to(device), counts.to(device), mass, None, observed)


def pixels_per_object(clips: Clips, counts: Int[Tensor, " B"]) -> float:
    """Return the lit pixels of one object in an observed frame, averaged over some clips."""
    some, counts = clips[:256], counts[:256]
    pixels = some.video.unpack_all() if isinstance(some.video, PackedFrames) else some.video
    if some.observed is None:
        return float(pixels.sum()) / (pixels.shape[1] * float(counts.sum()))
    shown = float((some.observed.sum(1) * counts).sum())
    return float(pixels[some.observed].sum()) / max(shown, 1.0)


def _check_num_frames(num_frames: int, origin: str) -> None:
    if num_frames < 2:
        raise InputError(
            f"{origin} has clips of {num_frames} frame; motion needs at least 2: give longer clips"
        )


def _check_observed(clips: Clips, origin: str) -> None:
    if clips.observed is not None and not bool(clips.observed.any()):
        raise InputError(
            f"{origin} has {len(clips)} training clips without an observed frame (its array "
            "observed is all False); training needs observed frames: correct that array"
        )


def counts_for_training(clips: Clips, origin: str) -> Int[Tensor, " B"]:
    """Return the number of objects in each clip, one or more, which training requires."""
    if clips.num_objects is None:
        raise InputError(
            f"{origin} does not say how many objects each clip holds; "
            "add an integer array num_objects with one entry a clip"
        )
    if int(clips.num_objects.min()) < 1:
        raise InputError(f"{origin} has clips without objects; remove them")
    return clips.num_objects


class Phase(NamedTuple):
    """The settings of one training step."""

    learning_rate: float
    dynamics_learning_rate: float  # 0 while the dynamics are frozen
    kl_weight: float
    blur: float  # standard deviation of the blur of frames, pixels


def schedule_at_step(schedule: ScheduleConfig, step: int) -> Phase:
    """Return the settings of a step, counted from 0."""
    learning_rate = interpolate_knots(schedule.learning_rate, step)
    return Phase(
        learning_rate=learning_rate,
        dynamics_learning_rate=(
            0.0 if step < schedule.frozen_dynamics else schedule.dynamics_rate * learning_rate
        ),
        kl_weight=interpolate_knots(schedule.kl_weight, step),
        blur=interpolate_knots(schedule.blur, step),
    )


def interpolate_knots(knots: Knots, step: int) -> float:
    """Return the value at a step of a curve through knots (step, value).

    Geometric between two positive values, linear if one is zero, constant outside the knots. Two
    knots at one step are a jump to the later one.

    Law: passes through its knots and stays between neighbours
    (test_a_curve_passes_through_its_knots, test_a_curve_stays_between_its_neighbours).
    """
    past = [knot for knot in knots if knot[0] <= step]
    future = [knot for knot in knots if knot[0] > step]
    if not past:
        return future[0][1]
    if not future:
        return past[-1][1]
    (start, low), (end, high) = past[-1], future[0]
    fraction = (step - start) / (end - start)
    if low > 0 and high > 0:
        return math.exp((1 - fraction) * math.log(low) + fraction * math.log(high))
    return (1 - fraction) * low + fraction * high


class StepInputs(NamedTuple):
    """The inputs of a step; of R replicas, with a leading axis."""

    indices: Int[Tensor, "*R B"]
    noise: Float[Tensor, "*R B N T 2"]
    settings: Float64[Tensor, "*R 5"]  # the four fields of Phase, then the step


def step_inputs(config: RunConfig, num_clips: int, step: int) -> StepInputs:
    """Return the clips, noise and settings of a step, a function of (seed, step) alone.

    Law: the same on every machine and however often training was resumed;
    tests/training/test_step.py.
    """
    searched = step - step % config.schedule.steps_per_search  # the step of this batch's search
    batch = np.random.Generator(np.random.Philox(key=(2 * config.seed, searched)))
    random = np.random.Generator(np.random.Philox(key=(2 * config.seed + 1, step)))
    shape = (config.batch_size, config.data.max_objects, config.data.num_frames, 2)
    phase = schedule_at_step(config.schedule, step)
    return StepInputs(
        indices=torch.from_numpy(batch.integers(num_clips, size=config.batch_size)),
        noise=torch.from_numpy(random.standard_normal(shape, dtype=np.float32)),
        settings=torch.tensor([*phase, step], dtype=torch.float64),
    )


def joined_inputs(configs: Sequence[RunConfig], num_clips: int, step: int) -> StepInputs:
    """Return the inputs of a step of several replicas, with a leading axis R."""
    return stack_inputs([step_inputs(config, num_clips, step) for config in configs])


def stack_inputs(parts: Sequence[StepInputs]) -> StepInputs:
    """Return inputs with a leading axis."""
    return StepInputs(*(torch.stack(values) for values in zip(*parts, strict=True)))


class InputBlocks:
    """The inputs of many steps of R replicas at a time, on the GPU before they are needed.

    A thread prepares the next block while the GPU works. The numbers are those of `step_inputs`.
    """

    STEPS = 64

    def __init__(self, configs: Sequence[RunConfig], num_clips: int, device: torch.device) -> None:
        self.configs, self.num_clips, self.device = configs, num_clips, device
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.pending: dict[int, Future[StepInputs]] = {}
        self.block: StepInputs | None = None
        self.start = self.expected = -1
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)

    def load(self, step: int) -> None:
        """Make `take` return the inputs of this step next, and request the block after it."""
        start = step - step % self.STEPS
        if start != self.start:
            made = self._request(start).result()
            del self.pending[start]
            self._request(start + self.STEPS)
            if self.block is None:
                self.block = StepInputs(*(torch.empty_like(v, device=self.device) for v in made))
            for buffer, values in zip(self.block, made, strict=True):
                source = values.pin_memory() if buffer.is_cuda else values
                buffer.copy_(source, non_blocking=True)
            self.start = start
        if step != self.expected or step == start:
            self.cursor.fill_(step - start)
        self.expected = step + 1

    def take(self) -> StepInputs:
        """Return the inputs of the next step; captured in a graph, it advances at every replay."""
        assert self.block is not None
        inputs = StepInputs(*(part.index_select(0, self.cursor)[0] for part in self.block))
        self.cursor += 1
        return inputs

    def _request(self, start: int) -> "Future[StepInputs]":
        if start not in self.pending:
            self.pending[start] = self.thread.submit(self._make, start)
        return self.pending[start]

    def _make(self, start: int) -> StepInputs:
        steps = range(start, start + self.STEPS)
        return stack_inputs([joined_inputs(self.configs, self.num_clips, step) for step in steps])


def blur(
    frames: Float[Tensor, "B T height width"], width: Float[Tensor, ""], mass: float
) -> Float[Tensor, "B T height width"]:
    """Return frames convolved with a Gaussian, their contrast restored ([Choice 7]).

    A single disk of `mass` lit pixels keeps a peak of about 1: blurring takes the peak of a disk to
    1 - exp(-mass / (2 pi width^2)), which is divided out. Width 0 leaves frames unchanged.
    """
    width = width.clamp(min=1e-2)
    for axis in (-2, -1):
        size = frames.shape[axis]
        distance = torch.arange(size, device=frames.device, dtype=frames.dtype)
        weights = (-0.5 * ((distance[:, None] - distance) / width) ** 2).exp()
        offsets = torch.arange(-size, size + 1, device=frames.device, dtype=frames.dtype)
        kernel = weights / (-0.5 * (offsets / width) ** 2).exp().sum()
        frames = kernel @ frames if axis == -2 else frames @ kernel
    return (frames / -torch.expm1(-mass / (2 * math.pi * width**2))).clamp(0, 1)
