"""Opponents and limits, all behind `motes.contest.Contender`; none of them knows our models.

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

from motes.baselines.blobs import Blobs
from motes.baselines.classical import KalmanTracker, StraightLine
from motes.baselines.constant import ConstantImage
from motes.baselines.limit import Limit
from motes.baselines.truth import true_physics
from motes.contest import Contender
from motes.data import Clips, World
from motes.errors import InputError

BASELINES = (
    "limit", "kalman", "disks-trackpy", "trackpy",
    "known-gravity", "constant-velocity", "constant-image",
)  # fmt: skip


def baseline(name: str, world: World, training: Clips) -> Contender:
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
