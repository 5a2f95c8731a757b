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

from motes.core.errors import InputError
from motes.data import Clips, World
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.baselines.constant import ConstantImage
from motes.evaluation.baselines.kalman_tracker import KalmanTracker, StraightLine
from motes.evaluation.baselines.trackpy import TrackpyTracker
from motes.evaluation.baselines.true_physics import true_physics
from motes.evaluation.predictor import Predictor


def _known_gravity(world: World, training: Clips) -> Predictor:
    x, y = world.pixel_force.tolist()
    return StraightLine(world.radius, (x, y))


BASELINES: dict[str, Callable[[World, Clips], Predictor]] = {
    "limit": lambda world, training: BayesLimit.of(world),
    "kalman": lambda world, training: KalmanTracker(world.radius, true_physics(world)),
    "disks-trackpy": lambda world, training: TrackpyTracker.of(training, world.radius),
    "trackpy": lambda world, training: TrackpyTracker.of(training),
    "known-gravity": _known_gravity,
    "constant-velocity": lambda world, training: StraightLine(world.radius, (0.0, 0.0)),
    "constant-image": lambda world, training: ConstantImage.of(training),
}


def baseline(name: str, world: World, training: Clips) -> Predictor:
    """Return a baseline for clips of a world; some are fitted to training clips."""
    if name not in BASELINES:
        raise InputError(f"no baseline {name!r}; choose from {', '.join(BASELINES)}")
    return BASELINES[name](world, training)
