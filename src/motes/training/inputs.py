"""Inputs of a training step: clips, noise and settings, and the blur of frames."""

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Float64, Int, Tensor
from motes.data.clips import PackedFrames
from motes.models.protocols import GaussianPosterior
from motes.training.schedule import at_step


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
    return StepInputs(
        indices=torch.from_numpy(batch.integers(num_clips, size=config.batch_size)),
        noise=torch.from_numpy(random.standard_normal(shape, dtype=np.float32)),
        settings=torch.tensor([*at_step(config.schedule, step), step], dtype=torch.float64),
    )


def joined_inputs(configs: Sequence[RunConfig], num_clips: int, step: int) -> StepInputs:
    """Return the inputs of a step of several replicas, with a leading axis R."""
    return _stack([step_inputs(config, num_clips, step) for config in configs])


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
        """Make `take` return the inputs of this step next."""
        start = step - step % self.STEPS
        if start != self.start:
            self._load_block(start)
        if step != self.expected or step == start:
            self.cursor.fill_(step - start)
        self.expected = step + 1

    def _load_block(self, start: int) -> None:
        """Copy the block of these steps to the device and request the next one."""
        made = self._request(start).result()
        del self.pending[start]
        self._request(start + self.STEPS)
        if self.block is None:
            self.block = StepInputs(*(torch.empty_like(v, device=self.device) for v in made))
        for buffer, values in zip(self.block, made, strict=True):
            source = values.pin_memory() if buffer.is_cuda else values
            buffer.copy_(source, non_blocking=True)
        self.start = start

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
        return _stack([joined_inputs(self.configs, self.num_clips, step) for step in steps])


def _stack(parts: Sequence[StepInputs]) -> StepInputs:
    return StepInputs(*(torch.stack(values) for values in zip(*parts, strict=True)))


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
