"""Opponents and limits, all behind `motes.evaluation.predictor.Predictor`; none of them knows our models.

    limit              global assignment, exact posterior, Bayes-optimal pictures
    kalman             disks, ordered frame by frame by the Kalman filter, true physics and prior
    trackpy            its blobs and links, settings chosen on training clips (an extra)
    disks-trackpy      disks, linked by trackpy in the same way
    known-gravity      disks, nearest neighbours, a straight line plus the known gravity
    constant-velocity  the same without gravity
    constant-image     the best picture that looks at nothing

The limit, `kalman` and `known-gravity` are told the physics; all but the last are told the shape
of the disks and their number. The paper's recurrent network is `ed_lstm`.
"""

from motes.core.errors import InputError
from motes.data import Clips, World
from motes.evaluation.baselines.bayes_limit import Limit
from motes.evaluation.baselines.constant import ConstantImage
from motes.evaluation.baselines.kalman_tracker import KalmanTracker, StraightLine
from motes.evaluation.baselines.trackpy import Blobs
from motes.evaluation.baselines.true_physics import true_physics
from motes.evaluation.predictor import Predictor

BASELINES = (
    "limit", "kalman", "disks-trackpy", "trackpy",
    "known-gravity", "constant-velocity", "constant-image",
)  # fmt: skip


def baseline(name: str, world: World, training: Clips) -> Predictor:
    """A baseline by name, for clips of a world; some of them see training clips."""
    gravity = (float(world.pixel_force[0]), float(world.pixel_force[1]))
    match name:
        case "limit":
            return Limit.of(world)
        case "kalman":
            return KalmanTracker(world.radius, true_physics(world))
        case "trackpy":
            return Blobs.of(training)
        case "disks-trackpy":
            return Blobs.of(training, world.radius)
        case "known-gravity":
            return StraightLine(world.radius, gravity)
        case "constant-velocity":
            return StraightLine(world.radius, (0.0, 0.0))
        case "constant-image":
            return ConstantImage.of(training)
    raise InputError(f"no baseline {name!r}; there are {', '.join(BASELINES)}")
