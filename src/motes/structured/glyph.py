"""Positions to frames: one learned glyph, the same wherever an object is."""

import math

import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from motes.shapes import Bool, Float, Tensor

CELLS = 4  # of the glyph's table in a pixel, along each axis


class GlyphRenderer(nn.Module):
    """Draws every object as the same glyph; where objects overlap, their depths add.

        depth(pixel) = background + sum_n glyph(pixel - position_n)
        p(pixel is white) = 1 - exp(-depth)

    Adding depths is the union of the objects: a pixel is dark only if every object leaves it
    dark. The glyph is a table of CELLS x CELLS values a pixel, read by bilinear interpolation, so
    it can learn any shape, soft or sharp, and the rule by which a camera rounds positions.
    [Choice 14]

    Latent positions are pixels from the centre of the frame in units of `pixels_per_unit`.

    Law: equals the two lines as loops (test_glyph_renderer_equals_the_naive_loop); what an absent
    object holds cannot matter (test_absent_glyphs_cannot_matter).
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        *,
        reach: int,
        initial_width: float,
        pixels_per_unit: float,
    ) -> None:
        """Build a renderer whose glyph starts as a wide, soft blob.

        Args:
            image_size: height and width of a frame in pixels.
            reach: pixels from the centre of the glyph to its border.
            initial_width: standard deviation of the blob in pixels; too wide is safe.
            pixels_per_unit: scale of latent positions.
        """
        super().__init__()
        self.image_size, self.reach, self.pixels_per_unit = image_size, reach, pixels_per_unit
        half = (reach + 1) * CELLS
        axis = torch.arange(-half, half + 1) / CELLS
        distance = axis[:, None].square() + axis.square()
        self.log_depth = nn.Parameter(-0.5 * distance / initial_width**2)
        self.log_background = nn.Parameter(torch.tensor(math.log(0.02)))

    def forward(
        self, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B T height width"]:
        """Return the logit of each pixel being white."""
        height, width = self.image_size
        pixels = self.to_pixels(torch.where(present[:, :, None, None], positions, 0))
        corner = pixels.detach().round()
        taps = torch.arange(-self.reach, self.reach + 1, device=pixels.device)
        x = corner[..., 0, None, None] + taps
        y = corner[..., 1, None, None] + taps[:, None]
        depth = self.depth_at(x - pixels[..., :1, None], y - pixels[..., 1:, None])
        x, y = torch.broadcast_tensors(x, y)
        visible = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        depth = depth * (visible & present[:, :, None, None, None])
        place = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).long()
        canvas = self.log_background.exp().expand(len(pixels), pixels.shape[2], height * width)
        total = canvas.scatter_add(
            2, place.transpose(1, 2).flatten(2), depth.transpose(1, 2).flatten(2)
        )
        # log(p / (1 - p)) with p = 1 - exp(-depth)
        logits: Tensor = (total + (-torch.expm1(-total)).log()).unflatten(-1, self.image_size)
        return logits

    def to_pixels(self, positions: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Latent positions as pixel coordinates (x to the right, y down)."""
        return positions * self.pixels_per_unit + self._centre(positions)

    def from_pixels(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Pixel coordinates as latent positions."""
        return (pixels - self._centre(pixels)) / self.pixels_per_unit

    def depth_at(
        self, dx: Float[Tensor, "*#shape"], dy: Float[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """The glyph's depth at offsets (pixel minus object), bilinear between table cells."""
        table = self.log_depth.exp()
        size = table.shape[0]
        last = size - 1 - 1e-4
        u = (dx * CELLS + size // 2).clamp(0, last)
        v = (dy * CELLS + size // 2).clamp(0, last)
        column, row = u.floor(), v.floor()
        right, down = u - column, v - row
        corner = (row * size + column).long()
        flat = table.flatten()
        upper = torch.lerp(flat[corner], flat[corner + 1], right)
        lower = torch.lerp(flat[corner + size], flat[corner + size + 1], right)
        return torch.lerp(upper, lower, down)

    def kernel(self) -> Float[Tensor, "taps taps"]:
        """The depth that an object at a pixel's centre adds to the pixels around it.

        A table at whole-pixel offsets, averaged over the pixel that the object may be in.

        Law: equals the average over places in the pixel (test_kernel_is_the_average_over_a_pixel).
        """
        smooth = avg_pool2d(self.log_depth.exp()[None], CELLS + 1, stride=1)[0]
        middle, far = smooth.shape[0] // 2, self.reach * CELLS
        taps = slice(middle - far, middle + far + 1, CELLS)
        return smooth[taps, taps]

    def spread(self) -> Float[Tensor, ""]:
        """The variance of the glyph's ink along one axis, in square pixels."""
        table = self.log_depth.exp()
        axis = (torch.arange(len(table), device=table.device) - len(table) // 2) / CELLS
        ink = table.sum(0) + table.sum(1)
        return (ink * axis.square()).sum() / ink.sum()

    def _centre(self, like: Float[Tensor, "*batch 2"]) -> Float[Tensor, " 2"]:
        height, width = self.image_size
        return torch.tensor([(width - 1) / 2, (height - 1) / 2]).to(like)
