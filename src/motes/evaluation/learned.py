"""What a model has learned, in pixels: force, initial states, latent grid; and the true ones."""

from typing import Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Tensor
from motes.data import Clips
from motes.kalman.dynamics import require_linear
from motes.kalman.linalg import map_vector
from motes.kalman.model import POSITION_DIM
from motes.models.model import Model
from motes.models.pixel_map import LatentMap, is_visible, rendered_centroids

NODES = 9  # on each side of the latent grid
BORDER = 2.0  # pixels left free around the grid: the radius of a ball
NUM_VISITED = 600  # true positions kept, to show where the grid matters


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


class LatentGrid(NamedTuple):
    """One object drawn at each node of a latent grid; pixel coordinates are (x, y)."""

    tiles: Float[np.ndarray, "nodes nodes height width"]  # white probabilities
    centroids: Float[np.ndarray, "nodes nodes 2"]  # of the tiles; NaN where nothing shows
    expected: Float[np.ndarray, "nodes nodes 2"]  # where the affine pixel map puts the nodes
    folded: Bool[np.ndarray, "cells cells"]  # cells that are turned over
    visited: Float[np.ndarray, "points 2"]  # true positions of the clips


@torch.no_grad()
def latent_grid(model: Model, clips: Clips) -> LatentGrid:
    """Draw one object at the latent positions that the pixel map takes to an even grid."""
    assert clips.positions is not None
    height, width = model.image_size
    x, y = (torch.linspace(BORDER, side - 1 - BORDER, NODES) for side in (width, height))
    expected = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    latent = torch.linalg.solve(model.pixel_matrix, (expected - model.pixel_offset).T).T
    centroids, mass = rendered_centroids(model, latent)
    visible = is_visible(mass)
    centroids[~visible] = torch.nan
    found = LatentMap(*(x.unflatten(0, (NODES, NODES)) for x in (centroids, visible)))
    slots = torch.zeros(1, model.max_objects, len(latent), 2)
    slots[0, 0] = latent
    tiles = model.renderer(slots, model.present(torch.tensor([1])))[0].sigmoid()
    visited = clips.positions.reshape(-1, 2)
    visited = visited[~visited.isnan().any(-1)]
    every = max(1, len(visited) // NUM_VISITED)
    return LatentGrid(
        tiles=_nodes(tiles),
        centroids=_nodes(centroids),
        expected=_nodes(expected),
        folded=found.flipped()[0].cpu().numpy(),
        visited=visited[::every].numpy(),
    )


def _nodes(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.unflatten(0, (NODES, NODES)).cpu().numpy()
    return array
