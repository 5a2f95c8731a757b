"""Positions to frames: one learned glyph, the same wherever an object is."""

import math

import torch
from torch import nn

from motes.core.axes import Bool, Float, Int, Tensor

MIN_BACKGROUND = 1e-5  # a depth: what nothing explains costs 11.5 nats, not infinitely many
# A probability: a dark pixel where an object should shine costs 11.5 nats at most. In float32 the
# logarithm of what a deep object leaves dark would be infinite.
MIN_OCCLUSION = 1e-5
# Of the background's free numbers: a pixel that is lit once by something else shall not, by one
# step of learning, shine in all clips.
BACKGROUND_UNIT = 0.1
CELLS_PER_PIXEL = 4  # of the glyph's table in a pixel, along each axis


class PixelRenderer(nn.Module):
    """Where a renderer draws: a frame, and the latent positions in it.

    Latent positions are pixels from the centre of the frame in units of `pixels_per_unit`.
    """

    def __init__(self, image_size: tuple[int, int], radius: int, pixels_per_unit: float) -> None:
        """Set the size of a frame, the pixels from an object's centre to its border, the scale."""
        super().__init__()
        self.image_size, self.radius, self.pixels_per_unit = image_size, radius, pixels_per_unit

    def cell_offsets(self) -> Float[Tensor, " cells"]:
        """The offsets (pixel minus object) along one axis at the middle of the table's cells."""
        cells = CELLS_PER_PIXEL * (2 * self.radius + 1)
        return (torch.arange(cells) - (cells - 1) / 2) / CELLS_PER_PIXEL

    def to_pixels(self, positions: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Latent positions as pixel coordinates (x to the right, y down)."""
        return positions * self.pixels_per_unit + self._centre(positions)

    def from_pixels(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Pixel coordinates as latent positions."""
        return (pixels - self._centre(pixels)) / self.pixels_per_unit

    def sprite_centre(self) -> Float[Tensor, " 2"] | None:
        """Where the middle of an object is, in pixels from its place.

        None where what appears tells it as well.
        """
        raise NotImplementedError

    def _centre(self, like: Float[Tensor, "*batch 2"]) -> Float[Tensor, " 2"]:
        height, width = self.image_size
        return torch.tensor([(width - 1) / 2, (height - 1) / 2]).to(like)


class SpriteRenderer(PixelRenderer):
    """Draws every object as the same glyph, before a background and behind what is in the way.

        depth(pixel) = sum_n glyph(pixel - position_n)
        p(pixel is dark) = exp(-background) (1 - visibility + visibility exp(-depth))

    Adding depths is the union of the objects: a pixel is dark only if all of them leave it dark.
    The glyph is a table of CELLS x CELLS values a pixel, constant within a cell, so it can learn
    any shape, soft or sharp, and the rule by which a camera rounds positions. Background and
    visibility are pictures: what shines without an object, and where one would show. [Choice 14]

    Law: equals the equations as loops (test_glyph_renderer_equals_the_naive_loop); what an absent
    object holds cannot matter (test_absent_glyphs_cannot_matter).
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        *,
        radius: int,
        initial_width: float,
        pixels_per_unit: float,
        models_occlusion: bool = False,
    ) -> None:
        """Build a renderer whose glyph starts as a wide, soft blob.

        Args:
            image_size: height and width of a frame in pixels.
            radius: pixels from the centre of the glyph to its border.
            initial_width: standard deviation of the blob in pixels; too wide is safe.
            pixels_per_unit: scale of latent positions.
            models_occlusion: whether an object that was not seen is taken to be where something hides it,
                and teaches that alone.
        """
        super().__init__(image_size, radius, pixels_per_unit)
        self.models_occlusion = models_occlusion
        axis = self.cell_offsets()
        distance = axis[:, None].square() + axis.square()
        self.root_depth = nn.Parameter((-0.25 * distance / initial_width**2).exp())
        self.root_background = nn.Parameter(
            torch.full(image_size, math.sqrt(0.02) / BACKGROUND_UNIT)
        )
        self.visibility_logit = nn.Parameter(torch.full(image_size, 8.0))

    def forward(
        self, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B T height width"]:
        """Return the logit of each pixel being white."""
        ink, place = self.sprite_pixels(positions, present)
        canvas = ink.new_zeros(len(ink), positions.shape[2], math.prod(self.image_size))
        total = canvas.scatter_add(2, *(part.transpose(1, 2).flatten(2) for part in (place, ink)))
        depth = self.visible_depth(total.unflatten(2, self.image_size), self.visibility())
        depth = depth + self.background()
        logits: Tensor = depth + log_white(depth)  # log(p / (1 - p)) with p = 1 - exp(-depth)
        return logits

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width"],
        seen: Bool[Tensor, "B N T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the log of p(v_t | a_t), summed over pixels.

        An object that was not seen is drawn where it is expected, and its dark pixels teach that
        objects are dim; if it `models_occlusion`, they teach where something hides it alone.

        Frames are sparse: away from all objects the depth is that of the background, and
        where the stamps of objects overlap a pixel is counted once.

        Law: equals the Bernoulli density of `forward`
        (test_the_likelihood_of_sparse_frames_is_that_of_the_logits).
        """
        B, _, T, _ = positions.shape
        num_pixels = math.prod(self.image_size)
        clip = present.nonzero()[:, 0]
        # As clips of one object each: those that are not there have nothing to be worked out.
        ink, place = self.sprite_pixels(
            positions[present][:, None], torch.ones_like(clip, dtype=torch.bool)[:, None]
        )
        if seen is not None and self.models_occlusion:
            ink = torch.where(seen[present][:, None, :, None], ink, ink.detach())
        frame = (clip[:, None] * T + torch.arange(T, device=ink.device))[:, None]
        index = (frame[..., None] * num_pixels + place).flatten()
        size = B * T * num_pixels
        total = ink.new_zeros(size).index_add_(0, index, ink.flatten())
        times = ink.new_zeros(size).index_add_(0, index, torch.ones_like(ink).flatten())
        background, visibility = self.background().flatten(), self.visibility().flatten()
        touched = self.visible_depth(total[index], visibility[index % num_pixels]) / times[index]
        by_objects = touched.view(ink.shape).sum((1, 3))
        dark = by_objects.new_zeros(B, T).index_add(0, clip, by_objects) + background.sum()
        lit = frames.flatten().nonzero()[:, 0]
        depth = (
            self.visible_depth(total[lit], visibility[lit % num_pixels])
            + background[lit % num_pixels]
        )
        gain = frames.flatten()[lit] * (depth + log_white(depth))
        return gain.new_zeros(B * T).index_add(0, lit // num_pixels, gain).view(B, T) - dark

    @staticmethod
    def visible_depth(
        depth: Float[Tensor, "*#shape"], visibility: Float[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """The depth of objects as it is left by what may stand before them.

        Dark is the pixel if it is covered, or if it is not and the objects leave it dark:
        exp(-shown) = 1 - visibility + visibility exp(-depth).
        """
        return -torch.log1p(visibility * torch.expm1(-depth))

    def sprite_pixels(
        self, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N T taps"], Int[Tensor, "B N T taps"]]:
        """The glyph's depth around each object, and the pixels (row-major) where it falls.

        What falls beside the frame is given no depth.
        """
        height, width = self.image_size
        pixels = self.to_pixels(torch.where(present[:, :, None, None], positions, 0))
        # Far outside is as good as just outside, and fits an integer.
        corner = pixels.round().clamp(-self.radius - 1, max(height, width) + self.radius)
        phase = (
            ((pixels - corner + 0.5) * CELLS_PER_PIXEL).floor().clamp(0, CELLS_PER_PIXEL - 1).long()
        )
        ink = (
            self.kernels().flatten(0, 1).flatten(1)[phase[..., 1] * CELLS_PER_PIXEL + phase[..., 0]]
        )
        taps = torch.arange(-self.radius, self.radius + 1, device=pixels.device)
        x = corner[..., 0, None, None].long() + taps
        y = corner[..., 1, None, None].long() + taps[:, None]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        place = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
        visible_depth = inside & present[:, :, None, None, None]
        return ink * visible_depth.flatten(3), place.flatten(3)

    def kernels(self) -> Float[Tensor, "phases phases taps taps"]:
        """The depth that an object adds to the pixels around it, for each place in its pixel.

        The first two axes say in which row and column of cells of its own pixel the object is.
        """
        return phase_kernels(self.root_depth.square())

    def sprite_centre(self) -> Float[Tensor, " 2"] | None:
        """The centroid of what an object lights, where something may hide some of it."""
        if not self.models_occlusion:
            return None
        lit = -torch.expm1(-self.root_depth.square())
        axis = self.cell_offsets().to(lit)
        return torch.stack([(lit.sum(0) * axis).sum(), (lit.sum(1) * axis).sum()]) / lit.sum()

    def background(self) -> Float[Tensor, "height width"]:
        """The depth of each pixel without any object."""
        return (BACKGROUND_UNIT * self.root_background).square() + MIN_BACKGROUND

    def visibility(self) -> Float[Tensor, "height width"]:
        """The probability that nothing stands before the objects in each pixel."""
        return (1 - MIN_OCCLUSION) * self.visibility_logit.sigmoid()


def phase_kernels(
    table: Float[Tensor, "*kinds cells cells"], phases: int = CELLS_PER_PIXEL
) -> Float[Tensor, "*kinds phases phases taps taps"]:
    """The values of a table at the pixels around an object, for each place in its own pixel."""
    taps = table.shape[-1] // phases
    split = table.unflatten(-1, (taps, phases)).unflatten(-3, (taps, phases))
    placed: Tensor = split.flip(-3, -1).movedim((-3, -1), (-4, -3))
    return placed


def log_white(depth: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log of the probability that a pixel of this depth is white."""
    return (-torch.expm1(-depth)).log()
