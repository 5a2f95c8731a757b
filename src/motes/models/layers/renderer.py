"""Renderer of opaque sprites of several classes, in layers before a background."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import interpolate, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.data.clips import median_background
from motes.models.protocols import InferredBatch, Reduce
from motes.models.sprites.likelihood_maps import FrameBatch, Window
from motes.models.sprites.renderer import CELLS_PER_PIXEL, PixelRenderer, phase_kernels

# Scales of the parameters, so that one learning rate suits all: the background is known to a
# hundredth from the start, a colour to a tenth.
BACKGROUND_UNIT, COLOUR_UNIT, SCALE_UNIT = 0.01, 0.1, 0.3
MIN_SCALE = 2e-3  # half of one of 256 grey levels, the resolution of frames
FINER = 8  # interpolated cells in a cell of the table, along each axis
DARKEST = 1e-4  # and 1 - DARKEST the brightest mean, so that logits are finite


class Appearance(NamedTuple):
    """Sprite classes and depth order of the objects of each clip, constant over its frames."""

    sprite_class: Int[Tensor, "B N"]
    order: Int[Tensor, "B N"]  # objects from back to front

    def select(self, clips: Int[Tensor, " b"]) -> "Appearance":
        """Return the appearance in some of the clips."""
        return Appearance(self.sprite_class[clips], self.order[clips])

    def widened(self, slots: int) -> "Appearance":
        """Return a copy with this many slots; the added ones have class 0 and are in front."""
        B, size = self.sprite_class.shape
        more = torch.arange(size, slots, device=self.sprite_class.device).expand(B, -1)
        return Appearance(
            torch.cat([self.sprite_class, 0 * more], 1), torch.cat([self.order, more], 1)
        )

    def of_frames(self, num_frames: int) -> "Appearance":
        """Return the appearance in every frame of the clips, one clip after the other."""
        return Appearance(*(part.repeat_interleave(num_frames, 0) for part in self))


class LayeredRenderer(PixelRenderer):
    """Renders objects from back to front, each with the sprite and colour of its class.

        mean = background;  for n from the back: mean += opacity_n (colour_n - mean)
        pixel ~ Normal(mean, sigma^2), in each channel

    A class is a table of opacities as in `SpriteRenderer`, and one colour. Soft edges resolve
    positions finer than a cell, so opacities are interpolated to FINER times the resolution.
    Classes and the depth order are latent and constant through a clip; every order is equally
    likely, classes have learned probabilities. [Choice 31]

    Law: equals the equations as loops (test_layered_renderer_equals_the_naive_loop).
    """

    grey_levels = True

    def __init__(
        self,
        image_size: tuple[int, int],
        *,
        channels: int,
        num_classes: int,
        radius: int,
        initial_width: float,
        pixels_per_unit: float,
    ) -> None:
        """Build a renderer whose classes differ in brightness alone, before initialization."""
        super().__init__(image_size, radius, pixels_per_unit)
        self.channels = channels
        axis = self.cell_offsets()
        blob = (-0.25 * (axis[:, None].square() + axis.square()) / initial_width**2).exp()
        shades = torch.linspace(1, 0, num_classes + 1, dtype=torch.float32)[:-1, None].expand(
            -1, channels
        )
        self.root_depth = nn.Parameter(blob.repeat(num_classes, 1, 1))
        self.raw_colour = nn.Parameter(shades / COLOUR_UNIT)
        self.raw_background = nn.Parameter(torch.zeros(*image_size, channels, dtype=torch.float32))
        self.raw_scale = nn.Parameter(
            torch.full((channels,), math.log(0.1) / SCALE_UNIT, dtype=torch.float32)
        )
        self.kind_logits = nn.Parameter(torch.zeros(num_classes, dtype=torch.float32))

    def forward(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance | None = None,
    ) -> Float[Tensor, "B T height width *channels"]:
        """Return the logit of the mean of each pixel.

        By default objects have the most probable class, and the first one is at the back.
        """
        B, N, T, _ = positions.shape
        pixels, sprite_class, there = self._in_order(positions, present, appearance)
        opacity = opacity_at(self.padded_opacities(), sprite_class, pixels, *self._grid())
        opacity, colour = opacity * there[..., None, None], self.colours()[sprite_class]
        mean = self.background().expand(B * T, *self.image_size, -1)
        for n in range(N):
            mean = mean + opacity[:, n, ..., None] * (colour[:, n, None, None] - mean)
        logits: Tensor = mean.clamp(DARKEST, 1 - DARKEST).logit().unflatten(0, (B, T))
        return logits[..., 0] if self.channels == 1 else logits

    def _in_order(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance | None,
    ) -> tuple[Float[Tensor, "M N 2"], Int[Tensor, "M N"], Bool[Tensor, "M N"]]:
        """Return pixels, classes and presence of the objects of all frames, from back to front."""
        B, N, T, _ = positions.shape
        if appearance is None:
            order = torch.arange(N, device=self.kind_logits.device).expand(B, N)
            appearance = Appearance(self.kind_logits.argmax().expand(B, N), order)
        order = appearance.order
        placed = torch.where(present[:, :, None, None], positions, 0)
        placed = placed.take_along_dim(order[:, :, None, None], 1)
        pixels = self.to_pixels(placed).transpose(1, 2).flatten(0, 1)
        sprite_class, there = (
            part.take_along_dim(order, 1).repeat_interleave(T, 0)
            for part in (appearance.sprite_class, present)
        )
        return pixels, sprite_class, there

    def _grid(self) -> tuple[Int[Tensor, " columns"], Int[Tensor, " rows"]]:
        """Return the columns and rows of a frame."""
        height, width = self.image_size
        device = self.kind_logits.device
        return torch.arange(width, device=device), torch.arange(height, device=device)

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width *channels"],
        appearance: Appearance | None = None,
        *,
        detected: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return log p(v_t | a_t, appearance), summed over pixels.

        The log likelihood of the background plus `log_likelihood_ratio`.

        Law: equals the Gaussian density of `forward`
        (test_layered_log_likelihood_equals_the_gaussian_density).
        """
        images, b = self.with_channels(frames), self.background()
        clips = torch.arange(len(frames), device=frames.device)
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        batch = FrameBatch.during(images, clips, observed, slice(None))
        ratio = self.log_likelihood_ratio(positions, present, appearance, batch)
        # (v - b)^2 expanded, because v is large and b is shared by all frames.
        crossed = torch.einsum("btyxc,yxc->btc", images, b)
        squares = images.square().sum((2, 3)) - 2 * crossed + b.square().sum((0, 1))
        norm = math.prod(self.image_size) * (self.scale().log() + 0.5 * math.log(2 * math.pi))
        nats: Tensor = ratio - (0.5 * squares * self.scale().pow(-2) + norm).sum(-1)
        return nats

    def log_likelihood_ratio(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance | None,
        batch: FrameBatch,
        layers: tuple[int, ...] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the log-likelihood ratio of each frame, with objects against without.

        Only pixels in the windows of objects are rendered, each counted once where windows
        overlap. With `layers`, places in the depth order, only the windows of those count.
        """
        pixels, sprite_class, there = self._in_order(positions, present, appearance)
        counted = range(positions.shape[1]) if layers is None else layers
        near = Window.around(pixels[:, counted], self.radius, self.image_size)
        x, y = near.x[:, :, None], near.y[:, :, None]  # in the window of n, objects m
        table = self.padded_opacities()
        opacity = opacity_at(table, sprite_class[:, None], pixels[:, None], x, y)
        opacity = opacity * there[:, None, :, None, None]
        colour = self.colours()[sprite_class]
        frame, empty = batch.crop(near), self.background().flatten(0, 1)[near.flat]
        mean = empty
        for m in range(positions.shape[1]):
            mean = mean + opacity[:, :, m, ..., None] * (colour[:, None, m, None, None] - mean)
        precision = self.scale().pow(-2)
        ratio = 0.5 * (((frame - empty).square() - (frame - mean).square()) * precision).sum(-1)
        there = there[:, counted]
        once = near.inside * there[:, :, None, None] / _multiplicity(near, there)
        total: Tensor = (ratio * once).sum((1, 2, 3)).unflatten(0, (len(positions), -1))
        return total

    def sample_appearance(self, shape: tuple[int, ...], generator: torch.Generator) -> Appearance:
        """Return a draw of classes and depth orders from the prior, [B, N]."""
        probabilities, count = self.kind_logits.softmax(-1).cpu(), math.prod(shape)
        drawn = torch.multinomial(probabilities, count, True, generator=generator).view(shape)
        order = torch.rand(shape, generator=generator).argsort(-1)
        return Appearance(drawn.to(self.kind_logits.device), order.to(self.kind_logits.device))

    def appearance_log_prior(
        self, appearance: Appearance, present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, " B"]:
        """Return the log probability of the classes and of the depth order of each clip."""
        log_class = self.kind_logits.log_softmax(-1)[appearance.sprite_class]
        log_orders = torch.lgamma((present.sum(1) + 1).to(log_class))
        return torch.where(present, log_class, 0.0).sum(1) - log_orders

    def initialize_from(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        generator: torch.Generator,
    ) -> None:
        """Set background, sprite classes and noise from clips."""
        from motes.models.layers.fitting import initialize_classes

        initialize_classes(self, frames, num_objects, observed, generator)

    @torch.no_grad()
    def initialize_background(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, "B T"] | None,
    ) -> None:
        """Set the background to the median over the observed frames."""
        video = self.with_channels(frames).flatten(0, 1)
        empty = median_background(video, None if observed is None else observed.flatten())
        self.raw_background.copy_(empty / BACKGROUND_UNIT)

    def refit(self, batches: Callable[[], Iterator[InferredBatch]], reduce: Reduce) -> None:
        """Fit the sprite classes in closed form to inferred clips."""
        from motes.models.layers.fitting import refit_classes

        refit_classes(self, batches, reduce)

    def coverage(self, positions: Float[Tensor, "M 2"]) -> Float[Tensor, "M height width"]:
        """Return the opacity of one object in each pixel, averaged over classes."""
        probabilities = self.kind_logits.softmax(-1)
        table = torch.einsum("k,kpyx->pyx", probabilities, self.padded_opacities())[None]
        only = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
        return opacity_at(table, only, self.to_pixels(positions), *self._grid())

    def sprite_centre(self) -> Float[Tensor, " 2"]:
        """Return zero: tables are centred on their mass. [Choice 35]."""
        return torch.zeros(2)

    def with_channels(
        self, frames: Float[Tensor, "B T height width *channels"]
    ) -> Float[Tensor, "B T height width C"]:
        """Return frames with a last axis of channels."""
        return frames[..., None] if frames.ndim == 4 else frames

    def opacities(self, finer: int = FINER) -> Float[Tensor, "K phases phases taps taps"]:
        """Return the opacity of each class in the pixels around an object, see `phase_kernels`."""
        table = -torch.expm1(-self.root_depth.square())
        fine = interpolate(table[None], scale_factor=finer, mode="bilinear", align_corners=False)
        return phase_kernels(fine[0], finer * CELLS_PER_PIXEL)

    def padded_opacities(self) -> Float[Tensor, "K phases side side"]:
        """Return the opacities with a border of zeros, as `opacity_at` takes them."""
        return pad(self.opacities().flatten(1, 2), (1, 1, 1, 1))

    def colours(self) -> Float[Tensor, "K C"]:
        """Return the colour of each class."""
        return COLOUR_UNIT * self.raw_colour

    def background(self) -> Float[Tensor, "height width C"]:
        """Return the image without any object."""
        return BACKGROUND_UNIT * self.raw_background

    def scale(self) -> Float[Tensor, " C"]:
        """Return the standard deviation of a pixel in each channel."""
        return (SCALE_UNIT * self.raw_scale).exp() + MIN_SCALE


def opacity_at(
    table: Float[Tensor, "K phases side side"],
    sprite_class: Int[Tensor, "*#batch"],
    centre: Float[Tensor, "*#batch 2"],
    x: Int[Tensor, "... columns"],
    y: Int[Tensor, "... rows"],
) -> Float[Tensor, "... rows columns"]:
    """Return the opacity of objects in the pixels of a grid.

    Args:
        table: opacities by class and phase, with a border of zeros; of one phase if they are
            averaged over the cells of a pixel.
        sprite_class: of each object.
        centre: of each object, in pixels.
        x: columns of each object's grid, one axis more than objects, or one grid for all.
        y: rows.
    """
    side = table.shape[-1]
    cells = math.isqrt(table.shape[1])
    # Clamped far outside the frame, so that it fits an integer.
    corner = centre.clamp(-1e4, 1e4).round()
    phase = ((centre - corner + 0.5) * cells).floor().clamp(0, cells - 1).long()
    which = sprite_class * cells**2 + phase[..., 1] * cells + phase[..., 0]
    column = (x - corner[..., :1].long() + side // 2).clamp(0, side - 1)
    row = (y - corner[..., 1:].long() + side // 2).clamp(0, side - 1)
    index = (which[..., None, None] * side + row[..., :, None]) * side + column[..., None, :]
    return table.flatten()[index]


def _multiplicity(near: Window, there: Bool[Tensor, "M N"]) -> Float[Tensor, "M N side side"]:
    """Return in how many windows of present objects each pixel of a window lies; at least 1."""
    x, y = ((part[:, :, None] - part[:, None, :, :1]) for part in (near.x, near.y))
    side = near.x.shape[-1]
    within = ((y >= 0) & (y < side))[..., :, None] & ((x >= 0) & (x < side))[..., None, :]
    counts = (within & there[:, None, :, None, None]).sum(2).clamp(min=1)
    return counts.float()
