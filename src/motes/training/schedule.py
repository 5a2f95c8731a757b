"""The settings of a training step as pure functions of the step ([Choice 5])."""

import math
from typing import NamedTuple

from motes.config import Knots, ScheduleConfig


class Phase(NamedTuple):
    """The settings of one training step."""

    learning_rate: float
    dynamics_learning_rate: float  # 0 while the dynamics are frozen
    kl_weight: float
    blur: float  # standard deviation of the blur of frames, pixels


def at_step(schedule: ScheduleConfig, step: int) -> Phase:
    """Return the settings of a step, counted from 0."""
    learning_rate = interpolate(schedule.learning_rate, step)
    return Phase(
        learning_rate=learning_rate,
        dynamics_learning_rate=(
            0.0 if step < schedule.frozen_dynamics else schedule.dynamics_rate * learning_rate
        ),
        kl_weight=interpolate(schedule.kl_weight, step),
        blur=interpolate(schedule.blur, step),
    )


def interpolate(knots: Knots, step: int) -> float:
    """Return the value at a step of a curve through knots (step, value).

    Geometric between two positive values, linear if one is zero, constant outside the knots. Two
    knots at one step are a jump to the later one.

    Law: passes through its knots and stays between neighbours; tests/training/test_schedule.py.
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
