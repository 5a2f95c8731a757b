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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips, World, worlds
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.baselines.disk_trackers import KalmanTracker, StraightLine, true_physics
from motes.evaluation.baselines.trackpy import TrackpyTracker
from motes.evaluation.evaluate import by_count
from motes.evaluation.predictor import Frames, Mask, Prediction, Predictor


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
    "disks-trackpy": lambda world, training: TrackpyTracker(training, world.radius),
    "trackpy": lambda world, training: TrackpyTracker(training),
    "known-gravity": lambda world, training: StraightLine(world.radius, world.pixel_force),
    "constant-velocity": lambda world, training: StraightLine(world.radius, np.zeros(2)),
    "constant-image": lambda world, training: ConstantImage.of(training),
}


GIVEN_PHYSICS = ("limit", "kalman", "known-gravity")
LAW_TOLERANCE = 1e-3  # pixels; paths are stored in float32


def find_world(name: str, clips: Clips) -> World:
    """Return the world that made the clips, by their true paths, for a baseline.

    Raises:
        InputError: The baseline needs the physics, and these clips follow no world with a linear
            law.

    Law: clips of other worlds are recognised or refused (test_the_world_of_clips_is_recognised).
    """
    _, num_frames, height, width = clips.video.shape
    for other in worlds.WORLDS:
        known = worlds.physics_of(other, num_frames)
        if isinstance(known, World) and known.floor is None:
            world = replace(known, size=(height, width))
            if _made_by(world, clips):
                return world
    if name in GIVEN_PHYSICS:
        raise InputError(
            f"these clips follow no law of motion that is known to {name}; give clips of another "
            "world (motes data), or choose a baseline that is not given the physics"
        )
    return World(num_frames, (height, width))


def _made_by(world: World, clips: Clips) -> bool:
    """Return whether true paths, initial states and noise of the clips are those of a world."""
    if clips.positions is None or clips.clean is None:
        return False
    limit, steps = BayesLimit.of(world), clips.clean.double().diff(dim=2)
    model, kept = limit.physics.model, 1 - world.drag
    change = steps[:, :, 1:] - kept * steps[:, :, :-1]
    expected = model.force[2:] + (1 - kept) * model.force[:2]
    if not bool(((change - expected).abs().nan_to_num(0.0) < LAW_TOLERANCE).all()):
        return False
    first = torch.cat([clips.clean[:, :, 0].double(), steps[:, :, 0] - model.force[:2]], -1)
    first = first[~first.isnan().any(-1)]
    # A state at the end of an interval may fall beyond it by rounding.
    if limit.log_prior(first).isfinite().double().mean() < 0.5:
        return False
    noise = (clips.positions - clips.clean) / limit.physics.observation_scale
    noise = noise[~noise.isnan()]
    deviation = float(noise.square().mean().sqrt())
    return abs(deviation - 1) < 0.05 + 5 / math.sqrt(2 * len(noise))


def baseline(name: str, world: World, training: Clips) -> Predictor:
    """Return a baseline for clips of a world; some are fitted to training clips."""
    if name not in BASELINES:
        raise InputError(f"no baseline {name!r}; choose from {', '.join(BASELINES)}")
    return BASELINES[name](world, training)
