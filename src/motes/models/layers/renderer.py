"""Positions to pictures: several kinds of opaque objects before a learned background."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import interpolate, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.data.background import median_background
from motes.models.protocols import InferredBatch, Reduce
from motes.models.sprites.patches import FrameBatch, Window
from motes.models.sprites.renderer import CELLS_PER_PIXEL, PixelRenderer, phase_kernels

# Units of the free numbers, so that one learning rate suits them and the glyphs: a background is
# known to a hundredth from the start, a colour to a tenth.
BACKGROUND_UNIT, COLOUR_UNIT, SCALE_UNIT = 0.01, 0.1, 0.3
MIN_SCALE = 2e-3  # half a level of 256: frames tell no more
FINER = 8  # places told apart in a cell of the table when it is painted, along each axis
DARKEST = 1e-4  # and 1 - DARKEST the brightest, so that a picture has logits


class Appearance(NamedTuple):
    """What is known of objects beside their places, through a whole clip."""

    sprite_class: Int[Tensor, "B N"]
    order: Int[Tensor, "B N"]  # the objects from the back to the front

    def select(self, clips: Int[Tensor, " b"]) -> "Appearance":
        """Those of some of the clips."""
        return Appearance(self.sprite_class[clips], self.order[clips])

    def widened(self, slots: int) -> "Appearance":
        """With slots for so many objects; those after the last are of any kind, in front."""
        B, size = self.sprite_class.shape
        more = torch.arange(size, slots, device=self.sprite_class.device).expand(B, -1)
        return Appearance(
            torch.cat([self.sprite_class, 0 * more], 1), torch.cat([self.order, more], 1)
        )

    def of_frames(self, num_frames: int) -> "Appearance":
        """Those of the frames of the clips, one clip after the other."""
        return Appearance(*(part.repeat_interleave(num_frames, 0) for part in self))


class LayeredRenderer(PixelRenderer):
    """Paints objects from the back to the front, each with the glyph and the colour of its kind.

        mean = background;  for n from the back: mean += opacity_n (colour_n - mean)
        pixel ~ Normal(mean, sigma^2), in each channel

    A kind is a table of CELLS x CELLS opacities a pixel, as in `SpriteRenderer`, and one colour.
    Soft edges tell more than a cell: opacities are painted FINER times as fine, by interpolation.
    Kinds and the order in which objects stand are latent and constant through a clip; every order
    is equally likely, kinds have learned shares. [Choice 31]

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
        """Build a renderer whose kinds differ in brightness alone, see `classes.seed_kinds`.

        Args:
            image_size: height and width of a frame in pixels.
            channels: 1 for grey, 3 for colour.
            num_classes: kinds of object.
            radius: pixels from the centre of a glyph to its border.
            initial_width: standard deviation of the blobs in pixels.
            pixels_per_unit: scale of latent positions.
        """
        super().__init__(image_size, radius, pixels_per_unit)
        self.channels = channels
        axis = self.cell_offsets()
        blob = (-0.25 * (axis[:, None].square() + axis.square()) / initial_width**2).exp()
        shades = torch.linspace(1, 0, num_classes + 1)[:-1, None].expand(-1, channels)
        self.root_depth = nn.Parameter(blob.repeat(num_classes, 1, 1))
        self.raw_colour = nn.Parameter(shades / COLOUR_UNIT)
        self.raw_background = nn.Parameter(torch.zeros(*image_size, channels))
        self.raw_scale = nn.Parameter(torch.full((channels,), math.log(0.1) / SCALE_UNIT))
        self.kind_logits = nn.Parameter(torch.zeros(num_classes))

    def forward(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance | None = None,
    ) -> Float[Tensor, "B T height width *channels"]:
        """Return the logit of the mean of each pixel.

        Without looks, objects are of the likeliest kind and the first one stands behind.
        """
        B, N, T, _ = positions.shape
        if appearance is None:
            sprite_class = self.kind_logits.argmax().expand(B, N)
            appearance = Appearance(
                sprite_class, torch.arange(N, device=sprite_class.device).expand(B, N)
            )
        height, width = self.image_size
        x, y = (torch.arange(size, device=positions.device) for size in (width, height))
        opacity, colour = self._layers(positions, present, appearance, x, y)
        mean = self.background().expand(B * T, height, width, -1)
        for n in range(N):
            mean = mean + opacity[:, n, ..., None] * (colour[:, n, None, None] - mean)
        logits: Tensor = mean.clamp(DARKEST, 1 - DARKEST).logit().unflatten(0, (B, T))
        return logits[..., 0] if self.channels == 1 else logits

    def _layers(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance,
        x: Int[Tensor, " columns"],
        y: Int[Tensor, " rows"],
    ) -> tuple[Float[Tensor, "M N rows columns"], Float[Tensor, "M N C"]]:
        """Opacities of the objects of all frames at these pixels, and colours, back to front."""
        pixels, sprite_class, there = self._in_order(positions, present, appearance)
        opacity = (
            opacity_at(self.padded_opacities(), sprite_class, pixels, x, y) * there[..., None, None]
        )
        return opacity, self.colours()[sprite_class]

    def _in_order(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance,
    ) -> tuple[Float[Tensor, "M N 2"], Int[Tensor, "M N"], Bool[Tensor, "M N"]]:
        """Pixels, kinds and presence of the objects of all frames, from the back to the front."""
        T = positions.shape[2]
        placed = torch.where(present[:, :, None, None], positions, 0)
        placed = placed.take_along_dim(appearance.order[:, :, None, None], 1)
        sprite_class, there = (
            part.take_along_dim(appearance.order, 1) for part in (appearance.sprite_class, present)
        )
        pixels = self.to_pixels(placed).transpose(1, 2).flatten(0, 1)
        return pixels, sprite_class.repeat_interleave(T, 0), there.repeat_interleave(T, 0)

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width *channels"],
        appearance: Appearance,
        *,
        detected: Bool[Tensor, "B N T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the log of p(v_t | a_t, looks), summed over pixels.

        Away from all objects it is that of the background; only the pixels around objects are
        painted, and where their windows overlap a pixel is counted once.

        Law: equals the Gaussian density of `forward`
        (test_layered_log_likelihood_equals_the_gaussian_density).
        """
        pictures, b = self.with_channels(frames), self.background()
        clips = torch.arange(len(frames), device=frames.device)
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        batch = FrameBatch.during(pictures, clips, observed, slice(None))
        gained = self.gain(positions, present, appearance, batch)
        # (v - b)^2 written out, because v is large and b is one for all frames.
        crossed = torch.einsum("btyxc,yxc->btc", pictures, b)
        squares = pictures.square().sum((2, 3)) - 2 * crossed + b.square().sum((0, 1))
        norm = math.prod(self.image_size) * (self.scale().log() + 0.5 * math.log(2 * math.pi))
        nats: Tensor = gained - (0.5 * squares * self.scale().pow(-2) + norm).sum(-1)
        return nats

    def gain(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance,
        batch: FrameBatch,
        layers: tuple[int, ...] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return by how many nats objects explain frames better than the background alone.

        Args:
            positions: of the objects.
            present: which of them are there.
            appearance: of the objects.
            batch: the frames.
            layers: places in the order; then the pixels around the objects there count alone.
        """
        pixels, sprite_class, there = self._in_order(positions, present, appearance)
        counted = range(positions.shape[1]) if layers is None else layers
        near = Window.around(pixels[:, counted], self.radius, self.image_size)
        x, y = near.x[:, :, None], near.y[:, :, None]  # in the window of n, objects m
        opacity = opacity_at(self.padded_opacities(), sprite_class[:, None], pixels[:, None], x, y)
        opacity = opacity * there[:, None, :, None, None]
        colour = self.colours()[sprite_class]
        seen, empty = batch.crop(near), self.background().flatten(0, 1)[near.flat]
        mean = empty
        for m in range(positions.shape[1]):
            mean = mean + opacity[:, :, m, ..., None] * (colour[:, None, m, None, None] - mean)
        precision = self.scale().pow(-2)
        gain = 0.5 * (((seen - empty).square() - (seen - mean).square()) * precision).sum(-1)
        there = there[:, counted]
        once = near.inside * there[:, :, None, None] / _times(near, there)
        gained: Tensor = (gain * once).sum((1, 2, 3)).unflatten(0, (len(positions), -1))
        return gained

    def sample_appearance(self, shape: tuple[int, ...], generator: torch.Generator) -> Appearance:
        """Return kinds and orders of imagined objects, [B, N]."""
        shares = self.kind_logits.softmax(-1).cpu()
        sprite_class = torch.multinomial(shares, math.prod(shape), True, generator=generator).view(
            shape
        )
        order = torch.rand(shape, generator=generator).argsort(-1)
        return Appearance(
            sprite_class.to(self.kind_logits.device), order.to(self.kind_logits.device)
        )

    def appearance_log_prior(
        self, appearance: Appearance, present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, " B"]:
        """Return the log probability of the kinds and of the order of the objects of a clip."""
        share = self.kind_logits.log_softmax(-1)[appearance.sprite_class]
        orders = torch.lgamma(present.sum(1) + 1.0)
        return torch.where(present, share, 0.0).sum(1) - orders

    def initialize_from(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        generator: torch.Generator,
    ) -> None:
        """Set background, sprite classes and noise from clips."""
        from motes.models.layers.initialization import initialize_classes

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
        from motes.models.layers.refit import refit_classes

        refit_classes(self, batches, reduce)

    def coverage(self, positions: Float[Tensor, "M 2"]) -> Float[Tensor, "M height width"]:
        """How much of each pixel one object covers, on average over kinds."""
        height, width = self.image_size
        x, y = (torch.arange(size, device=positions.device) for size in (width, height))
        shares = self.kind_logits.softmax(-1)
        table = torch.einsum("k,kpyx->pyx", shares, self.padded_opacities())[None]
        sprite_class = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
        return opacity_at(table, sprite_class, self.to_pixels(positions), x, y)

    def sprite_centre(self) -> Float[Tensor, " 2"]:
        """The place itself: tables are centred on their mass. [Choice 35]."""
        return torch.zeros(2)

    def with_channels(
        self, frames: Float[Tensor, "B T height width *channels"]
    ) -> Float[Tensor, "B T height width C"]:
        """Frames with a last axis of channels, grey ones too."""
        return frames[..., None] if frames.ndim == 4 else frames

    def opacities(self, finer: int = FINER) -> Float[Tensor, "K phases phases taps taps"]:
        """How much an object of each kind covers of the pixels around it, see `phase_kernels`."""
        table = -torch.expm1(-self.root_depth.square())
        fine = interpolate(table[None], scale_factor=finer, mode="bilinear", align_corners=False)
        return phase_kernels(fine[0], finer * CELLS_PER_PIXEL)

    def padded_opacities(self) -> Float[Tensor, "K phases side side"]:
        """The opacities with a border of nothing, as `opacity_at` reads them."""
        return pad(self.opacities().flatten(1, 2), (1, 1, 1, 1))

    def colours(self) -> Float[Tensor, "K C"]:
        """The colour of each kind."""
        return COLOUR_UNIT * self.raw_colour

    def background(self) -> Float[Tensor, "height width C"]:
        """The picture without any object."""
        return BACKGROUND_UNIT * self.raw_background

    def scale(self) -> Float[Tensor, " C"]:
        """The standard deviation of a pixel in each channel."""
        return (SCALE_UNIT * self.raw_scale).exp() + MIN_SCALE


def opacity_at(
    table: Float[Tensor, "K phases side side"],
    sprite_class: Int[Tensor, "*#batch"],
    centre: Float[Tensor, "*#batch 2"],
    x: Int[Tensor, "... columns"],
    y: Int[Tensor, "... rows"],
) -> Float[Tensor, "... rows columns"]:
    """How much objects cover of the pixels of a grid.

    Args:
        table: opacities by kind and place in a pixel, with a border of nothing; of one place, if
            they are those of an object that is anywhere in its pixel.
        sprite_class: of each object.
        centre: of each object, in pixels.
        x: columns of each object's grid, one axis more than objects, or one grid for all.
        y: rows.
    """
    side = table.shape[-1]
    cells = math.isqrt(table.shape[1])
    # Far away is as good as just beyond the border, and fits an integer.
    corner = centre.clamp(-1e4, 1e4).round()
    phase = ((centre - corner + 0.5) * cells).floor().clamp(0, cells - 1).long()
    which = sprite_class * cells**2 + phase[..., 1] * cells + phase[..., 0]
    column = (x - corner[..., :1].long() + side // 2).clamp(0, side - 1)
    row = (y - corner[..., 1:].long() + side // 2).clamp(0, side - 1)
    place = (which[..., None, None] * side + row[..., :, None]) * side + column[..., None, :]
    return table.flatten()[place]


def _times(near: Window, there: Bool[Tensor, "M N"]) -> Float[Tensor, "M N side side"]:
    """In how many windows of present objects each pixel of a window lies; at least in one."""
    x, y = ((part[:, :, None] - part[:, None, :, :1]) for part in (near.x, near.y))
    side = near.x.shape[-1]
    within = ((y >= 0) & (y < side))[..., :, None] & ((x >= 0) & (x < side))[..., None, :]
    counts = (within & there[:, None, :, None, None]).sum(2).clamp(min=1)
    return counts.float()
