"""The latent plane as the renderer draws it: a picture to see a fold by, and a number for it.

One object is drawn at the points of a grid, and the centroids of what appears are joined as the
grid was. An unfolded map is a net that lies flat on the frame. Where the plane is folded, meshes of
the net are turned over: their corners go round the other way. No truth is needed. [Choice 27]
"""

import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from motes.core.axes import Bool, Float, Tensor
from motes.models.model import Model
from motes.models.pixel_map import drawn_centroids, shows

NUM_LINES = 17  # of the grid along each axis
ZOOM = 6  # pixels of the picture for a pixel of the frame
FLAT, TURNED = (235, 235, 235), (255, 80, 60)  # colours of meshes
BACKGROUND, FRAME = (24, 26, 32), (60, 64, 76)


class LatentMap(NamedTuple):
    """Where the points of a latent grid appear in the frame."""

    centroids: Float[Tensor, "lines lines 2"]  # (x, y) in pixels
    visible: Bool[Tensor, "lines lines"]

    def turned(self) -> tuple[Bool[Tensor, "meshes meshes"], Bool[Tensor, "meshes meshes"]]:
        """Which meshes lie the other way up than most, and which have all corners visible."""
        x, y = self.centroids.unbind(-1)
        # Twice the area that the two diagonals span; its sign is the way round.
        area = (x[1:, 1:] - x[:-1, :-1]) * (y[1:, :-1] - y[:-1, 1:])
        area = area - (y[1:, 1:] - y[:-1, :-1]) * (x[1:, :-1] - x[:-1, 1:])
        seen = self.visible
        whole = seen[1:, 1:] & seen[:-1, :-1] & seen[1:, :-1] & seen[:-1, 1:]
        way = area[whole].sign().sum().sign()
        return whole & (area * way < 0), whole

    @property
    def folded(self) -> float:
        """The share of the visible meshes that are turned over; 0 for a flat map."""
        turned, whole = self.turned()
        return float(turned.sum() / whole.sum().clamp(min=1))


@torch.no_grad()
def find_latent_map(model: Model) -> LatentMap:
    """The latent grid that the model's pixel map takes to an even grid over the frame.

    Law: an affine renderer gives an even net with no mesh turned over
    (test_an_affine_renderer_has_a_flat_net).
    """
    height, width = model.image_size
    x, y = (torch.linspace(0, size - 1, NUM_LINES) for size in (width, height))
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    matrix, offset = model.pixel_matrix.double(), model.pixel_offset.double()
    latent = (points.to(offset) - offset) @ torch.linalg.pinv(matrix).T
    centroids, mass = drawn_centroids(model, latent.to(model.pixel_matrix))
    shape = (NUM_LINES, NUM_LINES)
    return LatentMap(centroids.view(*shape, 2).cpu(), shows(mass).view(shape).cpu())


def draw(found: LatentMap, image_size: tuple[int, int]) -> bytes:
    """The net as a PNG picture, meshes that are turned over in red."""
    height, width = image_size
    margin = ZOOM  # one pixel of the frame around it
    canvas = np.empty((height * ZOOM + 2 * margin, width * ZOOM + 2 * margin, 3), dtype=np.uint8)
    canvas[:] = FRAME
    canvas[margin:-margin, margin:-margin] = BACKGROUND
    turned, whole = found.turned()
    corners = (found.centroids.double().numpy() + 0.5) * ZOOM + margin
    for colour, meshes in ((FLAT, whole & ~turned), (TURNED, turned)):
        for i, j in meshes.nonzero().tolist():
            loop = corners[[i, i, i + 1, i + 1, i], [j, j + 1, j + 1, j, j]]
            _draw_lines(canvas, loop, colour)
    return _png(canvas)


def _draw_lines(
    canvas: NDArray[np.uint8], points: NDArray[np.float64], colour: tuple[int, int, int]
) -> None:
    """Joins points (x, y) by straight lines, a pixel wide."""
    for start, end in pairwise(points):
        steps = int(np.abs(end - start).max()) + 2
        line = start + np.linspace(0, 1, steps)[:, None] * (end - start)
        x, y = np.rint(line).astype(int).T
        inside = (x >= 0) & (y >= 0) & (x < canvas.shape[1]) & (y < canvas.shape[0])
        canvas[y[inside], x[inside]] = colour


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Red, green and blue as a PNG file; written out, because the core needs no picture library."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 6)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )
