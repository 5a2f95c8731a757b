"""Baselines and limits: predictors without any of the package's models, by name.

    limit              global assignment, exact posterior, Bayes-optimal frames
    kalman             disks, assigned frame by frame by a Kalman filter with the true physics
    trackpy            trackpy's detection and linking, settings chosen on training clips (extra)
    disks-trackpy      disks, linked by trackpy in the same way
    known-gravity      disks, nearest neighbours, a straight line plus the known gravity
    constant-velocity  the same without gravity
    constant-image     the best frame that uses no input

`limit`, `kalman` and `known-gravity` are given the physics; all but the last are given the shape
of the disks and their number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips, World
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.baselines.disk_trackers import KalmanTracker, StraightLine, true_physics
from motes.evaluation.baselines.trackpy import TrackpyTracker
from motes.evaluation.evaluate import Frames, Mask, Prediction, Predictor, by_count


@dataclass(frozen=True, eq=False)
class ConstantImage:
    """For each number of objects, the share of training frames in which a pixel is white."""

    images: dict[int, Float[Tensor, "height width"]]
    interpolates: bool = True

    @classmethod
    def of(cls, training: Clips) -> "ConstantImage":
        """Return the mean images of training clips."""
        own = by_count(training).items()
        return cls({count: training[indices].frames.float().mean((0, 1)) for count, indices in own})

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return the same image for every hidden frame."""
        if num_objects not in self.images:
            raise InputError(f"no training clip has {num_objects} objects; give some that have")
        image = self.images[num_objects]
        return Prediction(draw_frames=lambda: torch.where(observed[:, None, None], frames, image))


BASELINES: dict[str, Callable[[World, Clips], Predictor]] = {
    "limit": lambda world, training: BayesLimit.of(world),
    "kalman": lambda world, training: KalmanTracker(world.radius, true_physics(world)),
    "disks-trackpy": lambda world, training: TrackpyTracker.of(training, world.radius),
    "trackpy": lambda world, training: TrackpyTracker.of(training),
    "known-gravity": lambda world, training: StraightLine(world.radius, world.pixel_force),
    "constant-velocity": lambda world, training: StraightLine(world.radius, np.zeros(2)),
    "constant-image": lambda world, training: ConstantImage.of(training),
}


def baseline(name: str, world: World, training: Clips) -> Predictor:
    """Return a baseline for clips of a world; some are fitted to training clips."""
    if name not in BASELINES:
        raise InputError(f"no baseline {name!r}; choose from {', '.join(BASELINES)}")
    return BASELINES[name](world, training)
