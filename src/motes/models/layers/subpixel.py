"""Subpixel refinement of a window's posterior.

The log-likelihood ratio is a smooth function of the position, which changes over a pixel however
many nats that are. Few cells therefore suffice, and a posterior that is narrower than a cell is
found by interpolation between them. [Choice 41]
"""

import torch

from motes.core.axes import Float, Tensor
from motes.models.sprites.likelihood_maps import WindowPosterior, probabilities

ZOOM = 4  # smaller cells in a cell, along each axis
MARGIN = 2  # cells on each side that the interpolation needs
MAX_OUTSIDE = 1e-3  # weight outside the refined region


def refine_subpixel(window: WindowPosterior, phases: int) -> WindowPosterior:
    """Return a posterior over as many smaller cells around the mean, if nearly all weight is there.

    Law: has the moments of a Gaussian that is much narrower than a cell
    (test_subpixel_refinement_recovers_a_narrow_gaussian).

    Args:
        window: posterior over all cells of a square of pixels.
        phases: cells of a pixel, along each axis.
    """
    grid = _as_grid(window.log_weights.flatten(0, -2), phases)
    side, device = grid.shape[-1], grid.device
    inner = side // ZOOM
    weights = probabilities(grid.flatten(1)).view_as(grid)
    axis = torch.arange(side, device=device).to(grid)
    mean = torch.stack([weights.sum(2) @ axis, weights.sum(1) @ axis], -1)  # row, column
    start = (mean - (inner - 1) / 2).round().clamp(MARGIN, side - inner - MARGIN).long()
    near = start[..., None] + torch.arange(-MARGIN, inner + MARGIN, device=device)
    number = torch.arange(len(grid), device=device)[:, None, None]
    region = number, near[:, 0, :, None], near[:, 1, None, :]
    held = weights[region][:, MARGIN:-MARGIN, MARGIN:-MARGIN].sum((1, 2))
    cubic = _cubic_interpolation(inner).to(grid)
    finer = (cubic @ grid[region] @ cubic.T).flatten(1).log_softmax(1).view_as(grid)
    narrow = (held > 1 - MAX_OUTSIDE).view_as(window.log_likelihood_ratio)
    moved = ((start + inner / 2 - side / 2) / phases).flip(-1).view_as(window.centre)
    return window._replace(
        centre=torch.where(narrow[..., None], window.centre + moved, window.centre),
        log_weights=torch.where(
            narrow[..., None],
            _as_cells(finer, phases).view_as(window.log_weights),
            window.log_weights,
        ),
        zoom=torch.where(narrow, 1 / ZOOM, 1.0),
    )


def _cubic_interpolation(inner: int) -> Float[Tensor, "smaller cells"]:
    """Return the matrix that interpolates smaller cells by cubics through four cells."""
    place = (torch.arange(inner * ZOOM, dtype=torch.float64) + 0.5) / ZOOM - 0.5
    points = place.floor()[:, None] + torch.arange(-1, 3)
    rows = torch.zeros(len(place), inner + 2 * MARGIN, dtype=torch.float64)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        weight = torch.stack([(place - points[:, j]) / (i - j) for j in others]).prod(0)
        rows.scatter_(1, points[:, i, None].long() + MARGIN, weight[:, None])
    return rows


def _as_grid(cells: Float[Tensor, "M cells"], phases: int) -> Float[Tensor, "M side side"]:
    """Return values in the order of `window_offsets` as an image."""
    pixels = round((cells.shape[1] // phases**2) ** 0.5)
    split = cells.unflatten(1, (phases, phases, pixels, pixels))
    grid: Tensor = split.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
    return grid


def _as_cells(grid: Float[Tensor, "M side side"], phases: int) -> Float[Tensor, "M cells"]:
    """Return an image in the order of `window_offsets`, the inverse of `_as_grid`."""
    pixels = grid.shape[1] // phases
    split = grid.unflatten(2, (pixels, phases)).unflatten(1, (pixels, phases))
    cells: Tensor = split.permute(0, 2, 4, 1, 3).flatten(1)
    return cells
