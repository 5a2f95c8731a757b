"""Learned force and initial states in pixels, and the true ones of clips."""

from typing import Any, NamedTuple

import torch

from motes.core.axes import Float, Tensor
from motes.data import Clips
from motes.kalman.dynamics import require_linear
from motes.kalman.linalg import map_vector
from motes.kalman.model import POSITION_DIM
from motes.models.model import Model


class InitialStates(NamedTuple):
    """Components of the initial state in pixels; a step is that to the second frame."""

    shares: Float[Tensor, " K"]
    places: Float[Tensor, "K 2"]
    spreads: Float[Tensor, "K 2 2"]  # covariances of the places
    steps: Float[Tensor, "K 2"]

    def as_lists(self) -> dict[str, Any]:
        """Return the components as plain numbers."""
        return {name: values.tolist() for name, values in self._asdict().items()}


@torch.no_grad()
def learned_initial_states(model: Model) -> InitialStates:
    """Return the initial-state components of the model's dynamics.

    Law: equal the moments of many first steps that the model samples
    (test_learned_initial_states_are_the_moments_of_samples).
    """
    linear = require_linear(model.dynamics)
    dynamics, to_pixels = linear.components(), model.pixel_matrix.double()
    first, here = dynamics.initial_mean, slice(POSITION_DIM)
    second = map_vector(dynamics.transition, first) + dynamics.force
    return InitialStates(
        shares=linear.log_weights().exp(),
        places=model.to_pixels(first[:, here]),
        spreads=to_pixels @ dynamics.initial_covariance[:, here, here] @ to_pixels.mT,
        steps=map_vector(to_pixels, (second - first)[:, here]),
    )


def true_initial_states(clips: Clips) -> InitialStates:
    """Return the moments of true initial states by the side of the shot: left, then right.

    The covariance of a single object is zero.
    """
    points, steps = first_points_and_steps(clips)
    sides = [side for side in (steps[:, 0] > 0, steps[:, 0] <= 0) if bool(side.any())]
    return InitialStates(
        shares=torch.stack([side.double().mean() for side in sides]),
        places=torch.stack([points[side].mean(0) for side in sides]),
        spreads=torch.stack(
            [points[side].T.cov(correction=min(1, int(side.sum()) - 1)) for side in sides]
        ),
        steps=torch.stack([steps[side].mean(0) for side in sides]),
    )


def first_points_and_steps(clips: Clips) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "M 2"]]:
    """Return the first noise-free positions of all objects and their first displacements."""
    assert clips.clean is not None
    two = clips.clean[:, :, :2].flatten(0, 1)
    two = two[~two.isnan().any(-1).any(-1)]
    return two[:, 0], two[:, 1] - two[:, 0]


def learned_force(model: Model) -> Float[Tensor, " 2"]:
    """Return the change of displacement per frame under the learned dynamics, in pixels.

    The displacement over a frame is delta v + u_position, and v grows by u_velocity per frame.
    """
    dynamics = require_linear(model.dynamics)
    latent = dynamics.log_delta.exp().detach() * dynamics.force.detach()[POSITION_DIM:]
    force: Tensor = model.pixel_matrix.double() @ latent
    return force


def true_force(clips: Clips) -> Float[Tensor, " 2"]:
    """Return the mean second difference of the noise-free paths, in pixels per frame squared."""
    assert clips.clean is not None
    bends = clips.clean.double().diff(dim=2).diff(dim=2)
    return bends.flatten(0, 2).nanmean(0)
