"""A grid of latent positions as the renderer draws it: tiles, their centroids, true positions."""

from typing import NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Tensor
from motes.data import Clips
from motes.models.model import Model
from motes.models.pixel_map import LatentMap, is_visible, rendered_centroids

NODES = 9  # on each side of the grid
BORDER = 2.0  # pixels left free around the grid: the radius of a ball
NUM_VISITED = 600  # true positions kept, to show where the grid matters


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
    shape = (NODES, NODES)
    found = LatentMap(centroids.unflatten(0, shape), visible.unflatten(0, shape))
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
