"""From latent positions to pixels, without labels: ask the renderer where it draws.

One object is drawn at many positions that the model's own prior thinks likely; the centroids of
what appears are fitted by an affine map. How far the centroids are from that map also tells, with
no truth at hand, whether the learned map is folded. [Choice 6]
"""

from typing import NamedTuple

import torch
from torch import nn

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.mixture import draw_prior
from motes.models.model import Model
from motes.models.sprites.renderer import PixelRenderer

NUM_PATHS = 64
NUM_REWEIGHTINGS = 10
VISIBLE = 0.3  # of the median ink: less is no object


class PixelMap(NamedTuple):
    """pixel = matrix @ latent + offset."""

    matrix: Float[Tensor, "2 2"]
    offset: Float[Tensor, " 2"]
    residual: float  # median distance between a drawn centroid and the map, in pixels


def drawn_centroids(
    model: Model, positions: Float[Tensor, "M 2"]
) -> tuple[Float[Tensor, "M 2"], Float[Tensor, " M"]]:
    """Where one object at each latent position appears, (x, y) in pixels, and how much of it."""
    height, width = model.image_size
    one = torch.zeros(1, model.max_objects, dtype=torch.bool, device=positions.device)
    slots = torch.zeros(1, model.max_objects, len(positions), 2).to(positions)
    slots[0, 0] = positions
    if model.painter is not None:
        ink = model.painter.coverage(positions)
    else:
        empty = model.draw(slots[:, :, :1], one)
        one[0, 0] = True
        ink = (model.draw(slots, one) - empty).clamp(min=0)[0]
    mass = ink.sum((1, 2))
    x = (ink.sum(1) * torch.arange(width).to(ink)).sum(1)
    y = (ink.sum(2) * torch.arange(height).to(ink)).sum(1)
    return torch.stack([x, y], -1) / mass.clamp(min=1e-6)[:, None], mass


def shows(mass: Float[Tensor, " M"]) -> Bool[Tensor, " M"]:
    """Which of the drawn objects are there to be seen, by how much of each appears."""
    return mass > VISIBLE * mass.median()


@torch.no_grad()
def find_pixel_map(model: Model, num_frames: int) -> PixelMap:
    """The affine map that best explains where the renderer draws what the prior imagines.

    Fitted by iteratively reweighted least squares (weights 1 / distance, from 0.25 px on), so that
    a folded corner of the latent plane cannot tilt the map of the rest. Some are known, see
    `own_map`.

    Law: exact when the renderer is an affine map itself; tests/unit/test_alignment.py.
    """
    generator = torch.Generator().manual_seed(0)
    _, path = draw_prior(model.dynamics, (NUM_PATHS,), num_frames, generator)
    positions = path.positions.reshape(-1, 2).to(model.pixel_matrix)
    centroids, mass = drawn_centroids(model, positions)
    visible = shows(mass)
    design = torch.cat([positions, torch.ones_like(positions[:, :1])], -1)[visible].double()
    target = centroids[visible].double()
    weights = torch.ones_like(target[:, :1])
    for _ in range(NUM_REWEIGHTINGS):
        ridge = 1e-9 * torch.eye(3).to(design)
        gram = design.T @ (weights * design) + ridge
        solution = torch.linalg.solve(gram, design.T @ (weights * target))
        distance = (target - design @ solution).norm(dim=-1, keepdim=True)
        weights = 1 / distance.clamp(min=0.25)
    own = own_map(model.renderer)
    if own is not None:
        solution = own.to(design)
        distance = (target - design @ solution).norm(dim=-1, keepdim=True)
    to_model = model.pixel_matrix.dtype
    return PixelMap(
        matrix=solution[:2].T.to(to_model),
        offset=solution[2].to(to_model),
        residual=float(distance.median()),
    )


def own_map(renderer: nn.Module) -> Float[Tensor, "3 2"] | None:
    """The map of a renderer that knows it better than what it draws tells; rows as in a design.

    Objects of pictures are where their mass is, to a hundredth of a pixel: nearer than a map fitted
    to what kinds cover on average. And of an object that something hides in part, what appears is
    not where it is.
    """
    if not isinstance(renderer, PixelRenderer):
        return None
    middle = renderer.sprite_centre()
    if middle is None:
        return None
    origin, x, y = renderer.to_pixels(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double())
    return torch.stack([x - origin, y - origin, origin + middle.to(origin)])


def align(model: Model, num_frames: int) -> float:
    """Stores the pixel map in the model; returns its residual in pixels."""
    pixel_map = find_pixel_map(model, num_frames)
    model.pixel_matrix.copy_(pixel_map.matrix)
    model.pixel_offset.copy_(pixel_map.offset)
    return pixel_map.residual
