"""The true physics and prior of a world, in pixels and frames, for the limits."""

import math
from typing import NamedTuple

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.data import OpticalTrap, World
from motes.kalman.model import LGSSM

ROUNDING = 1 / 12  # variance of a position that is rounded to a pixel


class TruePhysics(NamedTuple):
    """Newton's law in pixels and frames, and one Gaussian for the initial states on each side."""

    model: LGSSM  # initial moments have a leading axis of two: from the left, from the right
    log_weights: Float[Tensor, " K"]
    observation_scale: Float[Tensor, "2"]  # standard deviation (x, y) of positions around paths


def true_physics(world: World | OpticalTrap) -> TruePhysics:
    """Return the physics of a world; initial states have the true moments of each side.

    Positions are rounded to pixels, so the observation noise includes the variance of rounding.

    Law: means and covariances are those of many drawn paths
    (test_true_physics_has_the_moments_of_the_clips).
    """
    if isinstance(world, OpticalTrap):
        return _trapped(world)
    scale = world.pixels_per_unit
    to_pixels = np.diag([*scale, *(scale * world.sampling_period)])
    place, velocity = _start_moments(world)
    means, covariances = [], []
    for x, sign in ((world.left, 1.0), (world.right, -1.0)):
        mirror = np.diag([sign, 1.0])
        corner = world.to_pixels(np.array([np.mean(x), np.mean(world.heights)]))
        mean = np.concatenate([corner, to_pixels[2:, 2:] @ mirror @ velocity[0]])
        spread = np.zeros((4, 4))
        spread[:2, :2] = place
        spread[2:, 2:] = mirror @ velocity[1] @ mirror
        means.append(mean)
        covariances.append(to_pixels @ spread @ to_pixels)
    noise = scale[:, None] * world.position_covariance * scale
    model = LGSSM(
        transition=torch.from_numpy(to_pixels @ world.transition @ np.linalg.inv(to_pixels)),
        force=torch.from_numpy(to_pixels @ np.array(world.step_force)),
        emission=torch.eye(4, dtype=torch.float64)[:2],
        state_noise=torch.from_numpy(to_pixels @ world.state_covariance @ to_pixels),
        position_noise=torch.from_numpy(noise + ROUNDING * np.eye(2)),
        initial_mean=torch.from_numpy(np.stack(means)),
        initial_covariance=torch.from_numpy(np.stack(covariances)),
    )
    halves = torch.full((2,), math.log(0.5), dtype=torch.float64)
    return TruePhysics(model, halves, torch.from_numpy(np.sqrt(noise.diagonal())))


def _trapped(trap: OpticalTrap) -> TruePhysics:
    """Return the physics of a trap, whose states are relative to the centre of the frame."""
    centre = np.array([*trap.to_pixels(np.zeros(2)), 0.0, 0.0])
    model = LGSSM(
        transition=torch.from_numpy(trap.transition),
        force=torch.from_numpy(centre - trap.transition @ centre),
        emission=torch.eye(4, dtype=torch.float64)[:2],
        state_noise=torch.from_numpy(trap.state_covariance),
        position_noise=torch.from_numpy(trap.position_covariance + ROUNDING * np.eye(2)),
        initial_mean=torch.from_numpy(centre)[None],
        initial_covariance=torch.from_numpy(trap.stationary_covariance)[None],
    )
    noise = torch.from_numpy(np.sqrt(trap.position_covariance.diagonal()))
    return TruePhysics(model, torch.zeros(1, dtype=torch.float64), noise)


def _start_moments(
    world: World,
) -> tuple[Float[np.ndarray, "2 2"], tuple[Float[np.ndarray, " 2"], Float[np.ndarray, "2 2"]]]:
    """Return position covariance, velocity mean and covariance of shots from the left."""
    place = np.diag([np.ptp(world.left) ** 2 / 12, np.ptp(world.heights) ** 2 / 12])
    # Midpoints of a fine grid: the moments of uniform angles and speeds to 1e-6.
    shares = (np.arange(400) + 0.5) / 400
    angle = np.radians(world.angles[0] + shares * np.ptp(world.angles))
    speed = world.speeds[0] + shares * np.ptp(world.speeds)
    shots = np.stack(
        [np.multiply.outer(speed, np.cos(angle)), np.multiply.outer(speed, np.sin(angle))], -1
    ).reshape(-1, 2)
    return place, (shots.mean(0), np.cov(shots.T, bias=True))
