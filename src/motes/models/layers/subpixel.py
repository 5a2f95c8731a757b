"""Places between the cells that were looked at, where an object is known better than to a cell.

What an object gains at a place is a smooth function of the place: it changes over a pixel, however
many nats that are. So few places need to be tried, and a q that is narrower than the distance
between them is found by interpolation. [Choice 41]
"""

import torch

from motes.core.axes import Float, Tensor
from motes.models.sprites.likelihood_maps import WindowPosterior, probabilities

ZOOM = 4  # smaller cells in one that was looked at, along each axis
BEYOND = 2  # cells beside the smaller ones that are needed to interpolate
STRAY = 1e-3  # weight that may lie elsewhere


def refine_subpixel(window: WindowPosterior, phases: int) -> WindowPosterior:
    """A look with smaller cells, as many as before, where these hold what there is of weight.

    Law: the moments of a Gaussian that is much narrower than a cell
    (test_subpixel_refinement_recovers_a_narrow_gaussian).

    Args:
        window: at all cells of a square of pixels.
        phases: cells of a pixel, along each axis.
    """
    grid = _as_grid(window.log_weights.flatten(0, -2), phases)
    side, device = grid.shape[-1], grid.device
    inner = side // ZOOM
    weights = probabilities(grid.flatten(1)).view_as(grid)
    axis = torch.arange(side, device=device).to(grid)
    middle = torch.stack([weights.sum(2) @ axis, weights.sum(1) @ axis], -1)  # row, column
    start = (middle - (inner - 1) / 2).round().clamp(BEYOND, side - inner - BEYOND).long()
    near = start[..., None] + torch.arange(-BEYOND, inner + BEYOND, device=device)
    number = torch.arange(len(grid), device=device)[:, None, None]
    where = number, near[:, 0, :, None], near[:, 1, None, :]
    held = weights[where][:, BEYOND:-BEYOND, BEYOND:-BEYOND].sum((1, 2))
    between = _between(inner).to(grid)
    finer = (between @ grid[where] @ between.T).flatten(1).log_softmax(1).view_as(grid)
    narrow = (held > 1 - STRAY).view_as(window.log_likelihood_ratio)
    moved = ((start + inner / 2 - side / 2) / phases).flip(-1).view_as(window.centre)
    return window._replace(
        centre=torch.where(narrow[..., None], window.centre + moved, window.centre),
        log_weights=torch.where(
            narrow[..., None],
            _as_places(finer, phases).view_as(window.log_weights),
            window.log_weights,
        ),
        zoom=torch.where(narrow, 1 / ZOOM, 1.0),
    )


def _between(inner: int) -> Float[Tensor, "smaller cells"]:
    """The weights by which cubics through four cells give the values at smaller ones."""
    place = (torch.arange(inner * ZOOM, dtype=torch.float64) + 0.5) / ZOOM - 0.5
    first = place.floor() - 1
    rows = torch.zeros(len(place), inner + 2 * BEYOND, dtype=torch.float64)
    points = first[:, None] + torch.arange(4)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        weight = torch.stack([(place - points[:, j]) / (i - j) for j in others]).prod(0)
        rows.scatter_(1, points[:, i, None].long() + BEYOND, weight[:, None])
    return rows


def _as_grid(places: Float[Tensor, "M places"], phases: int) -> Float[Tensor, "M side side"]:
    """Values in the order of `window_offsets` as a picture."""
    pixels = round((places.shape[1] // phases**2) ** 0.5)
    split = places.unflatten(1, (phases, phases, pixels, pixels))
    grid: Tensor = split.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
    return grid


def _as_places(grid: Float[Tensor, "M side side"], phases: int) -> Float[Tensor, "M places"]:
    """A picture in the order of `window_offsets`."""
    pixels = grid.shape[1] // phases
    split = grid.unflatten(2, (pixels, phases)).unflatten(1, (pixels, phases))
    places: Tensor = split.permute(0, 2, 4, 1, 3).flatten(1)
    return places
