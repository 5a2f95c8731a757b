"""The learned kinds of start and the learned force, in pixels, and the true ones of clips."""

from typing import Any, NamedTuple

import torch

from motes.core.axes import Float, Tensor
from motes.data import Clips
from motes.kalman.linalg import map_vector
from motes.kalman.model import POSITION_DIM
from motes.models.model import Model


class Starts(NamedTuple):
    """Kinds of start, in pixels; a step is that to the second frame."""

    shares: Float[Tensor, " K"]
    places: Float[Tensor, "K 2"]
    spreads: Float[Tensor, "K 2 2"]
    steps: Float[Tensor, "K 2"]

    def as_lists(self) -> dict[str, Any]:
        """The starts as plain numbers."""
        return {name: values.tolist() for name, values in self._asdict().items()}


@torch.no_grad()
def learned_starts(model: Model) -> Starts:
    """Where, how and how often the model lets objects start.

    Law: equals the mean of many first steps that the model imagines
    (test_learned_starts_are_the_mean_of_imagined_ones).
    """
    dynamics, to_pixels = model.dynamics.components(), model.pixel_matrix.double()
    first, here = dynamics.initial_mean, slice(POSITION_DIM)
    second = map_vector(dynamics.transition, first) + dynamics.force
    return Starts(
        shares=model.dynamics.log_weights().exp(),
        places=model.to_pixels(first[:, here]),
        spreads=to_pixels @ dynamics.initial_covariance[:, here, here] @ to_pixels.mT,
        steps=map_vector(to_pixels, (second - first)[:, here]),
    )


def true_starts(clips: Clips) -> Starts:
    """The true starts of clips, apart by the side that balls are shot from: left, then right.

    A single ball has no spread.
    """
    points, steps = first_points_and_steps(clips)
    sides = [side for side in (steps[:, 0] > 0, steps[:, 0] <= 0) if bool(side.any())]
    return Starts(
        shares=torch.stack([side.double().mean() for side in sides]),
        places=torch.stack([points[side].mean(0) for side in sides]),
        spreads=torch.stack(
            [points[side].T.cov(correction=min(1, int(side.sum()) - 1)) for side in sides]
        ),
        steps=torch.stack([steps[side].mean(0) for side in sides]),
    )


def first_points_and_steps(clips: Clips) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "M 2"]]:
    """First clean positions of all balls, and the way to the second."""
    assert clips.clean is not None
    two = clips.clean[:, :, :2].flatten(0, 1)
    two = two[~two.isnan().any(-1).any(-1)]
    return two[:, 0], two[:, 1] - two[:, 0]


def learned_force(model: Model) -> Float[Tensor, " 2"]:
    """The change of displacement from frame to frame that the learned dynamics imply, in pixels.

    Displacement over a frame is delta v + u_position, and v grows by u_velocity a frame.
    """
    dynamics = model.dynamics
    latent = dynamics.log_delta.exp().detach() * dynamics.force.detach()[POSITION_DIM:]
    return model.pixel_matrix.double() @ latent


def true_force(clips: Clips) -> Float[Tensor, " 2"]:
    """The mean second difference of the noise-free paths, in pixels a frame squared."""
    assert clips.clean is not None
    bends = clips.clean.double().diff(dim=2).diff(dim=2)
    return bends.flatten(0, 2).nanmean(0)
