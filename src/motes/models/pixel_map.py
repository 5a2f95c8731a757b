"""The map from latent positions to pixels, found from the renderer without labels.

One object is rendered at positions drawn from the model's prior, and an affine map is fitted to the
centroids of what appears [Choice 6]. The residual, and the share of a latent grid that is
rendered with the opposite orientation, show whether the learned map is folded [Choice 27].
"""

import io
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.models.model import Model

NUM_PATHS = 64
NUM_REWEIGHTINGS = 10
MIN_VISIBLE = 0.3  # of the median mass: less is not a visible object
NUM_LINES = 17  # of the latent grid along each axis
ZOOM = 6  # pixels of the picture for a pixel of the frame
FLAT, FOLDED = (235, 235, 235), (255, 80, 60)  # colours of grid cells
BACKGROUND, MARGIN = (24, 26, 32), (60, 64, 76)


class PixelMap(NamedTuple):
    """pixel = matrix @ latent + offset."""

    matrix: Float[Tensor, "2 2"]
    offset: Float[Tensor, " 2"]
    residual: float  # median distance between a rendered centroid and the map, in pixels


def rendered_centroids(
    model: Model, positions: Float[Tensor, "M 2"]
) -> tuple[Float[Tensor, "M 2"], Float[Tensor, " M"]]:
    """Return where one object at each latent position appears, (x, y) in pixels, and its mass."""
    height, width = model.image_size
    mass = model.renderer.coverage(positions)
    if mass is None:
        one = torch.zeros(1, model.max_objects, dtype=torch.bool, device=positions.device)
        slots = torch.zeros(1, model.max_objects, len(positions), 2).to(positions)
        slots[0, 0] = positions
        empty = model.render(slots[:, :, :1], one)
        one[0, 0] = True
        mass = (model.render(slots, one) - empty).clamp(min=0)[0]
    total = mass.sum((1, 2))
    x = (mass.sum(1) * torch.arange(width).to(mass)).sum(1)
    y = (mass.sum(2) * torch.arange(height).to(mass)).sum(1)
    return torch.stack([x, y], -1) / total.clamp(min=1e-6)[:, None], total


def is_visible(mass: Float[Tensor, " M"]) -> Bool[Tensor, " M"]:
    """Return which of the rendered objects are inside the frame, by their mass."""
    return mass > MIN_VISIBLE * mass.median()


@torch.no_grad()
def find_pixel_map(model: Model, num_frames: int) -> PixelMap:
    """Return the affine map that best predicts where objects of the prior are rendered.

    Fitted by iteratively reweighted least squares (weights 1 / distance, from 0.25 px on), so that
    a folded corner of the latent plane does not tilt the map of the rest. A renderer with an exact
    map of its own provides it.

    Law: exact when the renderer is an affine map itself; tests/models/test_pixel_map.py.
    """
    generator = torch.Generator().manual_seed(0)
    tracks = model.dynamics.sample((NUM_PATHS, 1), num_frames, generator)
    positions = tracks.positions.reshape(-1, 2).to(model.pixel_matrix)
    centroids, mass = rendered_centroids(model, positions)
    visible = is_visible(mass)
    design = torch.cat([positions, torch.ones_like(positions[:, :1])], -1)[visible].double()
    target = centroids[visible].double()
    weights = torch.ones_like(target[:, :1])
    for _ in range(NUM_REWEIGHTINGS):
        ridge = 1e-9 * torch.eye(3).to(design)
        gram = design.T @ (weights * design) + ridge
        solution = torch.linalg.solve(gram, design.T @ (weights * target))
        distance = (target - design @ solution).norm(dim=-1, keepdim=True)
        weights = 1 / distance.clamp(min=0.25)
    own = model.renderer.pixel_map()
    if own is not None:
        solution = own.to(design)
        distance = (target - design @ solution).norm(dim=-1, keepdim=True)
    to_model = model.pixel_matrix.dtype
    return PixelMap(
        matrix=solution[:2].T.to(to_model),
        offset=solution[2].to(to_model),
        residual=float(distance.median()),
    )


def align_pixel_map(model: Model, num_frames: int) -> float:
    """Store the pixel map in the model and return its residual in pixels."""
    pixel_map = find_pixel_map(model, num_frames)
    model.pixel_matrix.copy_(pixel_map.matrix)
    model.pixel_offset.copy_(pixel_map.offset)
    return pixel_map.residual


class LatentMap(NamedTuple):
    """Where the points of a latent grid are rendered in the frame."""

    centroids: Float[Tensor, "lines lines 2"]  # (x, y) in pixels
    visible: Bool[Tensor, "lines lines"]

    def flipped(self) -> tuple[Bool[Tensor, "cells cells"], Bool[Tensor, "cells cells"]]:
        """Return which grid cells have the minority orientation, and which are fully visible."""
        x, y = self.centroids.unbind(-1)
        # Twice the signed area that the two diagonals span.
        area = (x[1:, 1:] - x[:-1, :-1]) * (y[1:, :-1] - y[:-1, 1:])
        area = area - (y[1:, 1:] - y[:-1, :-1]) * (x[1:, :-1] - x[:-1, 1:])
        seen = self.visible
        whole = seen[1:, 1:] & seen[:-1, :-1] & seen[1:, :-1] & seen[:-1, 1:]
        orientation = area[whole].sign().sum().sign()
        return whole & (area * orientation < 0), whole

    @property
    def folded(self) -> float:
        """The share of visible grid cells with the minority orientation; 0 for a flat map."""
        flipped, whole = self.flipped()
        return float(flipped.sum() / whole.sum().clamp(min=1))


@torch.no_grad()
def find_latent_map(model: Model) -> LatentMap:
    """Return the latent grid that the model's pixel map takes to an even grid over the frame.

    Law: an affine renderer gives an even grid without flipped cells
    (test_an_affine_renderer_has_a_flat_grid).
    """
    height, width = model.image_size
    x, y = (torch.linspace(0, size - 1, NUM_LINES) for size in (width, height))
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    matrix, offset = model.pixel_matrix.double(), model.pixel_offset.double()
    latent = (points.to(offset) - offset) @ torch.linalg.pinv(matrix).T
    centroids, mass = rendered_centroids(model, latent.to(model.pixel_matrix))
    shape = (NUM_LINES, NUM_LINES)
    return LatentMap(centroids.view(*shape, 2).cpu(), is_visible(mass).view(shape).cpu())


def draw_latent_map(found: LatentMap, image_size: tuple[int, int]) -> bytes:
    """Return the grid as a PNG picture, flipped cells in red."""
    from PIL import Image, ImageDraw

    height, width = (side * ZOOM for side in image_size)
    canvas = Image.new("RGB", (width + 2 * ZOOM, height + 2 * ZOOM), MARGIN)
    canvas.paste(BACKGROUND, (ZOOM, ZOOM, width + ZOOM, height + ZOOM))
    pen = ImageDraw.Draw(canvas)
    flipped, whole = found.flipped()
    corners = (found.centroids.double() + 0.5) * ZOOM + ZOOM
    for colour, cells in ((FLAT, whole & ~flipped), (FOLDED, flipped)):
        for i, j in cells.nonzero().tolist():
            loop = corners[[i, i, i + 1, i + 1, i], [j, j + 1, j + 1, j, j]]
            pen.line([tuple(point) for point in loop.tolist()], fill=colour)
    file = io.BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()
