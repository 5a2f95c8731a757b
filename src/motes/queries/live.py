"""Tracks of frames as they come, with a bounded delay: the smoother of a sliding window.

Inference runs on the last `window` frames after every `every` new ones, and tells positions of
frames that at least `delay` later frames have confirmed. A frame therefore waits for at most
`delay + every - 1` later frames. Objects keep their numbers from one window to the next by the
assignment that moves them least in the frames that both windows share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from motes import queries
from motes.core.axes import Float
from motes.core.errors import require
from motes.models.model import Model

Picture = Float[np.ndarray, "height width"]


class LiveRow(NamedTuple):
    """One object in one frame, in pixels and pixels per frame."""

    frame: int  # its index
    particle: int
    place: Float[np.ndarray, "2"]
    covariance: Float[np.ndarray, "2 2"]
    velocity: Float[np.ndarray, "2"]
    observed: bool  # whether the frame came
    found: bool  # whether the object was detected in it


@dataclass(eq=False)
class LiveTracker:
    """Follows a fixed number of objects in frames that are pushed one by one.

    Law: every frame is told once, in order, after at most `longest_delay` later frames
    (test_every_frame_is_told_once_within_the_delay).
    """

    model: Model
    num_objects: int
    window: int = 30
    delay: int = 5
    every: int = 5
    _frames: dict[int, Picture] = field(default_factory=dict)  # by index, the last ones
    _told: int | None = None  # index of the last frame that was told
    _paths: dict[int, Float[np.ndarray, "N 2"]] = field(default_factory=dict)  # by index
    _numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    _pushed: int = 0  # frames since the last inference

    def __post_init__(self) -> None:
        require(
            self.every >= 1 and self.delay >= 0 and self.window > self.delay + self.every,
            f"window is {self.window}, delay {self.delay}, every {self.every}; give a window that "
            "is longer than delay and every together",
        )

    @property
    def longest_delay(self) -> int:
        """Later frames that a frame waits for at most."""
        return self.delay + self.every - 1

    def push(self, index: int, frame: Picture) -> list[LiveRow]:
        """Take the next frame; return the rows that are now due.

        Frames whose index was skipped did not come, and are predicted.
        """
        last = max(self._frames, default=index - 1)
        require(index > last, f"frame {index} came after frame {last}; expected a later one")
        rows: list[LiveRow] = []
        if index - last > self.window:  # nothing connects the windows
            rows = self.flush()
            self._frames, self._paths, self._told = {}, {}, None
        self._frames[index] = frame
        self._pushed += 1
        if self._pushed >= self.every and len(self._frames) > 1:
            rows += self._tell(index - self.delay)
        return rows

    def flush(self) -> list[LiveRow]:
        """Return the rows of all frames that have not been told yet."""
        pending = len(self._frames) > 1 and (self._told is None or self._told < max(self._frames))
        return self._tell(max(self._frames)) if pending else []

    def _tell(self, until: int) -> list[LiveRow]:
        """Infer the window; return the rows up to a frame."""
        self._pushed = 0
        end = max(self._frames)
        # Frames that were not told yet stay, however many were lost.
        begin = max(min(self._frames), end - self.window + 1)
        if self._told is not None:
            begin = min(begin, self._told + 1)
        self._frames = {index: kept for index, kept in self._frames.items() if index >= begin}
        begin = min(self._frames)
        blank = np.zeros_like(self._frames[end])
        stack = np.stack([self._frames.get(index, blank) for index in range(begin, end + 1)])
        observed = torch.tensor([index in self._frames for index in range(begin, end + 1)])
        answer = queries.interpolate(
            self.model, torch.from_numpy(stack)[None], observed, self.num_objects
        )
        paths = answer.path_pixels[0].double().cpu().numpy()
        self._name(paths, begin)
        first = begin if self._told is None else self._told + 1
        rows = list(self._rows(answer, begin, first, until))
        if until >= first:
            self._told = until
        self._paths = {begin + t: paths[:, t] for t in range(paths.shape[1])}
        return rows

    def _name(self, paths: Float[np.ndarray, "N T 2"], begin: int) -> None:
        """Number the objects of a window like those of the one before."""
        shared = [t for t in range(paths.shape[1]) if begin + t in self._paths]
        if not shared:
            start = int(self._numbers.max()) + 1 if len(self._numbers) else 0
            self._numbers = start + np.arange(self.num_objects)
            return
        before = np.stack([self._paths[begin + t] for t in shared], 1)
        apart = np.linalg.norm(paths[:, None][:, :, shared] - before[None], axis=-1).mean(-1)
        mine, theirs = linear_sum_assignment(apart)
        self._numbers = self._numbers[theirs[np.argsort(mine)]]

    def _rows(self, answer: Any, begin: int, first: int, until: int) -> Iterator[LiveRow]:
        fields = (answer.pixels, answer.pixel_covariances, answer.pixel_velocities)
        places, spreads, velocities = (part[0].double().cpu().numpy() for part in fields)
        found, observed = answer.found[0].tolist(), answer.observed[0].tolist()
        order = np.argsort(self._numbers).tolist()
        for index in range(first, until + 1):
            t = index - begin
            for n in order:
                moments = (places[n, t], spreads[n, t], velocities[n, t])
                number = int(self._numbers[n])
                yield LiveRow(index, number, *moments, observed[t], found[n][t])
