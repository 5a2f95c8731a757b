"""Renderer of identical sprites in black-and-white frames."""

import functools
import math

import torch
from torch import nn

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import Gaussian
from motes.models.protocols import PlainRenderer, Posterior

MIN_BACKGROUND = 1e-5  # depth: an unexplained lit pixel costs 11.5 nats, not infinitely many
# Probability of occlusion: a dark pixel under an object costs at most 11.5 nats. In float32 the log
# of the probability that a deep object leaves a pixel dark would be infinite.
MIN_OCCLUSION = 1e-5
# Scale of the background's parameters: one learning step must not turn a pixel that was lit once
# by something else into one that is lit in all clips.
BACKGROUND_UNIT = 0.1
CELLS_PER_PIXEL = 4  # of the sprite's table, along each axis


class PixelRenderer(PlainRenderer):
    """Base of renderers whose latent positions are scaled pixel coordinates.

    Latent positions are pixels from the centre of the frame divided by `pixels_per_unit`.
    """

    def __init__(self, image_size: tuple[int, int], radius: int, pixels_per_unit: float) -> None:
        """Set height and width of a frame, the radius of a sprite in pixels, and the scale."""
        super().__init__()
        self.image_size, self.radius, self.pixels_per_unit = image_size, radius, pixels_per_unit

    def cell_offsets(self) -> Float[Tensor, " cells"]:
        """Return the offsets (pixel minus object) of the table's cells along one axis."""
        cells = CELLS_PER_PIXEL * (2 * self.radius + 1)
        return (torch.arange(cells, dtype=torch.float32) - (cells - 1) / 2) / CELLS_PER_PIXEL

    def to_pixels(self, positions: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Return latent positions as pixel coordinates (x to the right, y down)."""
        return positions * self.pixels_per_unit + self._centre(positions)

    def from_pixels(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Return pixel coordinates as latent positions."""
        return (pixels - self._centre(pixels)) / self.pixels_per_unit

    def with_channels(
        self, frames: Float[Tensor, "B T height width *channels"]
    ) -> Float[Tensor, "B T height width *channels"]:
        """Return frames as the search takes them: unchanged."""
        return frames

    def sprite_centre(self) -> Float[Tensor, " 2"]:
        """Return the offset in pixels from an object's position to the centre of its sprite."""
        raise NotImplementedError

    def pixel_map(self) -> Float[Tensor, "3 2"]:
        """Return the exact map to pixels, including the sprite's centre.

        Centroids of rendered frames would give one that is 0.3 to 0.6 % too small: the edge of the
        frame cuts sprites off.
        """
        centre = self.sprite_centre()
        corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
        origin, x, y = self.to_pixels(corners)
        return torch.stack([x - origin, y - origin, origin + centre.to(origin)])

    def _centre(self, like: Float[Tensor, "*batch 2"]) -> Float[Tensor, " 2"]:
        return _centre_of(self.image_size, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _centre_of(
    image_size: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " 2"]:
    """Return the centre of a frame; kept, because a copy to a GPU waits for it."""
    height, width = image_size
    with torch.inference_mode(False):
        return torch.tensor([(width - 1) / 2, (height - 1) / 2]).to(device, dtype)


class SpriteRenderer(PixelRenderer):
    """Renders every object as the same sprite, before a background and behind occluders.

        depth(pixel) = sum_n sprite(pixel - position_n)
        p(pixel is dark) = exp(-background) (1 - visibility + visibility exp(-depth))

    Depths add up to the union of the objects: a pixel is dark only if all leave it dark. The
    sprite is a table of CELLS_PER_PIXEL x CELLS_PER_PIXEL values per pixel, constant within a
    cell, which can represent any shape and the rule by which a camera rounds positions. The
    background is the depth without objects; the visibility is the probability that an object in
    a pixel is not occluded. [Choice 14]

    Law: equals the equations as loops (test_sprite_renderer_equals_the_naive_loop); the values of
    absent objects have no effect (test_absent_sprites_have_no_effect).
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
        """Build a renderer whose sprite is a Gaussian blob, of a width that may be too large.

        With `models_occlusion` undetected objects are taken to be occluded; they then give
        gradients for the visibility alone.
        """
        super().__init__(image_size, radius, pixels_per_unit)
        self.models_occlusion = models_occlusion
        axis = self.cell_offsets()
        distance = axis[:, None].square() + axis.square()
        self.root_depth = nn.Parameter((-0.25 * distance / initial_width**2).exp())
        self.root_background = nn.Parameter(
            torch.full(image_size, math.sqrt(0.02) / BACKGROUND_UNIT, dtype=torch.float32)
        )
        self.visibility_logit = nn.Parameter(torch.full(image_size, 8.0, dtype=torch.float32))

    def forward(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: None = None,
    ) -> Float[Tensor, "B T height width"]:
        """Return the logit of each pixel being white."""
        depth, index = self.sprite_pixels(positions, present)
        canvas = depth.new_zeros(len(depth), positions.shape[2], math.prod(self.image_size))
        total = canvas.scatter_add(2, *(p.transpose(1, 2).flatten(2) for p in (index, depth)))
        depth = self.visible_depth(total.unflatten(2, self.image_size), self.visibility())
        depth = depth + self.background()
        logits: Tensor = depth + log_white(depth)  # log(p / (1 - p)) with p = 1 - exp(-depth)
        return logits

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width"],
        detected: Bool[Tensor, "B _ T"] | None = None,
        *,
        appearance: None = None,
    ) -> Float[Tensor, "B T"]:
        """Return log p(v_t | a_t), summed over pixels.

        Only pixels near objects and lit pixels are evaluated, each once where sprites overlap;
        elsewhere the depth is that of the background. With `models_occlusion` the sprite gets no
        gradient from objects that are not `detected`: their dark pixels would make it dimmer.

        Law: equals the Bernoulli density of `forward`
        (test_sparse_log_likelihood_equals_that_of_the_logits).
        """
        B, _, T, _ = positions.shape
        num_pixels = math.prod(self.image_size)
        clip = present.nonzero()[:, 0]
        # As clips of one object each, so that absent objects cost nothing.
        depth, pixel = self.sprite_pixels(
            positions[present][:, None], torch.ones_like(clip, dtype=torch.bool)[:, None]
        )
        if detected is not None and self.models_occlusion:
            depth = torch.where(detected[present][:, None, :, None], depth, depth.detach())
        frame = (clip[:, None] * T + torch.arange(T, device=depth.device))[:, None]
        index = (frame[..., None] * num_pixels + pixel).flatten()
        size = B * T * num_pixels
        total = depth.new_zeros(size).index_add_(0, index, depth.flatten())
        times = depth.new_zeros(size).index_add_(0, index, torch.ones_like(depth).flatten())
        background, visibility = self.background().flatten(), self.visibility().flatten()
        touched = self.visible_depth(total[index], visibility[index % num_pixels]) / times[index]
        by_objects = touched.view(depth.shape).sum((1, 3))
        dark = by_objects.new_zeros(B, T).index_add(0, clip, by_objects) + background.sum()
        lit = frames.flatten().nonzero()[:, 0]
        at = lit % num_pixels
        depth = self.visible_depth(total[lit], visibility[at]) + background[at]
        gain = frames.flatten()[lit] * (depth + log_white(depth))
        return gain.new_zeros(B * T).index_add(0, lit // num_pixels, gain).view(B, T) - dark

    @staticmethod
    def visible_depth(
        depth: Float[Tensor, "*#shape"], visibility: Float[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """Return the depth d of partly occluded objects.

        A pixel is dark if it is occluded, or if it is not and the objects leave it dark:
        exp(-d) = 1 - visibility + visibility exp(-depth).
        """
        return -torch.log1p(visibility * torch.expm1(-depth))

    def sprite_pixels(
        self, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N T taps"], Int[Tensor, "B N T taps"]]:
        """Return the depth of each object's sprite and the row-major indices of its pixels.

        The depth is zero outside the frame and for absent objects.
        """
        height, width = self.image_size
        pixels = self.to_pixels(torch.where(present[:, :, None, None], positions, 0))
        # Clamped just outside the frame, so that it fits an integer.
        corner = pixels.round().clamp(-self.radius - 1, max(height, width) + self.radius)
        cells = CELLS_PER_PIXEL
        phase = ((pixels - corner + 0.5) * cells).floor().clamp(0, cells - 1).long()
        depth = self.kernels().flatten(0, 1).flatten(1)[phase[..., 1] * cells + phase[..., 0]]
        taps = torch.arange(-self.radius, self.radius + 1, device=pixels.device)
        x = corner[..., 0, None, None].long() + taps
        y = corner[..., 1, None, None].long() + taps[:, None]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
        shown = inside & present[:, :, None, None, None]
        return depth * shown.flatten(3), index.flatten(3)

    def kernels(self) -> Float[Tensor, "phases phases taps taps"]:
        """Return the depth that an object adds to the pixels around it, by its (y, x) phase."""
        return phase_kernels(self.root_depth.square())

    def sprite_centre(self) -> Float[Tensor, " 2"]:
        """Return the centroid of the sprite's coverage."""
        lit = -torch.expm1(-self.root_depth.square())
        axis = self.cell_offsets().to(lit)
        return torch.stack([(lit.sum(0) * axis).sum(), (lit.sum(1) * axis).sum()]) / lit.sum()

    def occlusion_parameters(self) -> list[nn.Parameter]:
        """Return the logits of the visibility of each pixel."""
        return [self.visibility_logit]

    def expected_frames(
        self,
        q: Posterior,
        present: Bool[Tensor, "B N"],
        weights: Float[Tensor, "B N K"],
        predicted: Gaussian,
    ) -> Float[Tensor, "B T height width"]:
        """Return the frames with all positions marginalised exactly."""
        from motes.models.sprites.grid_posterior import expected_frames

        return expected_frames(self, q, present, weights, predicted)

    def background(self) -> Float[Tensor, "height width"]:
        """Return the depth of each pixel without any object."""
        return (BACKGROUND_UNIT * self.root_background).square() + MIN_BACKGROUND

    def visibility(self) -> Float[Tensor, "height width"]:
        """Return the probability that objects in each pixel are not occluded."""
        return (1 - MIN_OCCLUSION) * self.visibility_logit.sigmoid()


def phase_kernels(
    table: Float[Tensor, "*classes cells cells"], phases: int = CELLS_PER_PIXEL
) -> Float[Tensor, "*classes phases phases taps taps"]:
    """Return a table's values at the pixels around an object, by its (y, x) cell in its pixel."""
    taps = table.shape[-1] // phases
    split = table.unflatten(-1, (taps, phases)).unflatten(-3, (taps, phases))
    kernels: Tensor = split.flip(-3, -1).movedim((-3, -1), (-4, -3))
    return kernels


def log_white(depth: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the log probability that a pixel of this depth is white."""
    return (-torch.expm1(-depth)).log()
