import io

import numpy as np
import pytest
import torch
from PIL import Image

from motes.models.model import Model
from motes.models.pixel_map import (
    FLAT,
    FOLDED,
    NUM_LINES,
    LatentMap,
    draw_latent_map,
    find_latent_map,
)
from motes.models.protocols import PlainRenderer
from tiny import tiny_model

SIZE = 24


class Bend(PlainRenderer):
    """Draws a soft disk where a function of the latent position says."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def forward(self, positions, present, appearance=None):
        axis = torch.arange(SIZE, dtype=positions.dtype)
        x, y = (part[:, 0, :, None, None] for part in self.place(positions).unbind(-1))
        distance = (axis - x).square() + (axis[:, None] - y).square()
        return torch.where(present[:, :1, None, None], 6 - 4 * distance, -20.0)


def model_that_draws(place) -> Model:
    """A model whose pixel map is 2 a + 4, whatever its renderer does."""
    model = tiny_model()
    model.image_size, model.renderer = (SIZE, SIZE), Bend(place)
    with torch.no_grad():
        model.pixel_matrix.copy_(2 * torch.eye(2))
        model.pixel_offset.fill_(4.0)
    return model


def test_an_affine_renderer_has_a_flat_grid():
    found = find_latent_map(model_that_draws(lambda a: 2 * a + 4))
    assert found.folded == 0
    inner = slice(2, -2)  # at the border a disk is cut off
    even = torch.linspace(0, SIZE - 1, NUM_LINES)[inner]
    # A disk of radius 1.2 on whole pixels has its centroid within a fifth of a pixel.
    assert (found.centroids[inner, inner, 0] - even).abs().max() < 0.2
    assert (found.centroids[inner, inner, 1] - even[:, None]).abs().max() < 0.2


def test_a_mirrored_renderer_is_not_folded():
    mirrored = find_latent_map(model_that_draws(lambda a: 2 * a * torch.tensor([-1, 1]) + 12))
    assert mirrored.folded == 0


def test_a_fold_flips_the_cells_behind_it():
    """The right third of the plane is drawn back over the middle one."""

    def fold(a):
        x, y = (2 * a + 4).unbind(-1)
        return torch.stack([torch.where(x > 15.5, 31 - x, x), y], -1)

    found = find_latent_map(model_that_draws(fold))
    turned, whole = found.flipped()
    # Columns from 15.5 px on, of 16 over 23 px; the one that holds the crease may go either way.
    assert 3.5 / 16 < found.folded < 6.5 / 16
    assert turned[:, :10].sum() == 0
    assert (turned == whole)[:, 12:].all()


@pytest.mark.parametrize("colour", [FLAT, FOLDED])
def test_the_picture_shows_flat_and_flipped_cells(colour):
    def fold(a):
        x, y = (2 * a + 4).unbind(-1)
        return torch.stack([torch.where(x > 15.5, 31 - x, x), y], -1)

    found = find_latent_map(model_that_draws(fold))
    pixels = np.asarray(Image.open(io.BytesIO(draw_latent_map(found, (SIZE, SIZE)))))
    assert pixels.shape == (SIZE * 6 + 12, SIZE * 6 + 12, 3)
    assert (pixels == colour).all(-1).sum() > 100


def test_an_untrained_model_has_a_map_too():
    found = find_latent_map(tiny_model())
    assert 0 <= found.folded <= 1
    assert draw_latent_map(found, (6, 8))[:4] == b"\x89PNG"


def grid(side=5):
    axis = torch.arange(float(side))
    return torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)


def folded_cells(centroids):
    return LatentMap(centroids, ~centroids.isnan().any(-1)).flipped()[0]


def test_only_overturned_cells_are_folded():
    assert not folded_cells(grid()).any()
    assert not folded_cells(-1 * grid()).any()
    assert not folded_cells(grid() * torch.tensor([-1, 1])).any()
    creased = grid()
    creased[:, 4, 0] = 2.5  # the last column is bent back over its neighbour
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[:, 3] = True
    assert torch.equal(folded_cells(creased), expected)


def test_cells_with_an_unknown_corner_are_not_called_folded():
    unknown = grid()
    unknown[2, 2] = torch.nan
    assert not folded_cells(unknown).any()
