"""Frames that are expected when positions are uncertain, without drawing any."""

import math

import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from motes.core.axes import Bool, Float, Tensor
from motes.models.sprites.grid_posterior import GridPosterior, StreamedPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.renderer import CELLS_PER_PIXEL, SpriteRenderer

CHUNK = 512  # frames of an object at a time, which bounds memory


@torch.no_grad()
def expected_frames(
    renderer: SpriteRenderer,
    q: GridPosterior | StreamedPosterior,
    present: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B N K"],
    predicted: PixelGaussian,
) -> Float[Tensor, "B T height width"]:
    """The probability of white in each pixel, all positions averaged out.

    Depths add and objects are independent, so the probability of dark is a product over objects
    of E exp(-glyph(pixel - position)), and each expectation is a convolution of the glyph with
    the weights of places: those of q where the object was seen, else those of the mixture of
    the components' predictions.

    Args:
        renderer: Draws the objects.
        q: Where they are, where they were seen; it may end before the frames do.
        present: Which objects a clip has.
        weights: Of the components of each object.
        predicted: Under each component, [B N K T], latent units.

    Law: the average picture of many draws (test_expected_frames_are_the_average_of_draws), of a
    long clip as well (test_a_long_clip_is_answered_as_a_short_one_is).
    """
    if isinstance(q, StreamedPosterior):
        parts = []
        for time, part in q.pieces():
            there = PixelGaussian(*(moments[:, :, :, time] for moments in predicted))
            parts.append(expected_frames(renderer, part, present, weights, there))
        return torch.cat(parts, 1)
    B, N, _ = q.seen.shape
    T = predicted.mean.shape[3]
    was_seen = pad(q.seen, (0, T - q.seen.shape[2]))
    log_dark = q.log_weights.new_zeros(B, T, *renderer.image_size)  # by the objects alone
    for n in range(N):
        for seen in (True, False):
            selected = (present[:, n, None] & (was_seen[:, n] == seen)).nonzero()
            for clip, frame in (part.unbind(1) for part in selected.split(CHUNK)):
                if seen:
                    lit = _lit_by_cells(renderer, q, clip, n, frame)
                else:
                    place = PixelGaussian(*(part[clip, n, :, frame] for part in predicted))
                    lit = _lit_by_gaussians(renderer, weights[clip, n], place)
                log_dark[clip, frame] += torch.log1p(-lit.clamp(max=1 - 1e-7))
    depth = renderer.background() + renderer.visible_depth(-log_dark, renderer.visibility())
    return -torch.expm1(-depth)


def _lit_by_cells(
    renderer: SpriteRenderer, q: GridPosterior, clip: Tensor, n: int, frame: Tensor
) -> Float[Tensor, "M height width"]:
    """The probability that an object that was seen lights each pixel."""
    radius, (height, width) = renderer.radius, renderer.image_size
    weights = q.log_weights[clip, n, frame].exp()
    window = math.isqrt(weights.shape[-1] // CELLS_PER_PIXEL**2) // 2
    side = 2 * window + 1
    kernels = -torch.expm1(-renderer.kernels().flatten(0, 1))[:, None]
    patch = conv_transpose2d(weights.view(-1, CELLS_PER_PIXEL**2, side, side), kernels)[:, 0]
    crop_radius = window + radius
    corner = renderer.to_pixels(q.origin[clip, n, frame]).round().long()  # x, y
    canvas = patch.new_zeros(len(patch), height + 2 * crop_radius, width + 2 * crop_radius)
    taps = torch.arange(2 * crop_radius + 1, device=patch.device)
    rows = corner[:, 1, None, None] + taps[:, None]
    columns = corner[:, 0, None, None] + taps
    canvas[torch.arange(len(patch), device=patch.device)[:, None, None], rows, columns] = patch
    return canvas[:, crop_radius : crop_radius + height, crop_radius : crop_radius + width]


def _lit_by_gaussians(
    renderer: SpriteRenderer, weights: Float[Tensor, "M K"], place: PixelGaussian
) -> Float[Tensor, "M height width"]:
    """The probability that an object somewhere in a mixture of Gaussians lights each pixel."""
    radius, (height, width) = renderer.radius, renderer.image_size
    mean = renderer.to_pixels(place.mean).float()
    covariance = (place.covariance * renderer.pixels_per_unit**2).float()
    x, y = (torch.arange(-radius, size + radius).to(mean) for size in (width, height))
    c_xx, c_xy, c_yy = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]
    along = _cell_mass(x, mean[..., :1], c_xx[..., None].sqrt())  # M K columns
    slope = c_xy / c_xx
    shifted = mean[..., 1:] + slope[..., None] * (x - mean[..., :1])
    rest = (c_yy - slope * c_xy).clamp(min=1e-6).sqrt()
    across = _cell_mass(y[:, None], shifted[..., None, :], rest[..., None, None])
    mass = torch.einsum("mk,mkx,mkyx->myx", weights.to(mean), along, across)
    kernel = -torch.expm1(-renderer.kernels()).mean((0, 1))
    # A transposed convolution by the kernel, written as a plain one: a ninth of the time on a CPU.
    return conv2d(mass[:, None], kernel.flip(0, 1)[None, None])[:, 0]


def _cell_mass(
    cells: Float[Tensor, "*#shape"], mean: Float[Tensor, "*#shape"], scale: Float[Tensor, "*#shape"]
) -> Float[Tensor, "*shape"]:
    """The mass of a Gaussian in intervals of length one around the cells."""
    unit = scale * math.sqrt(2)
    return 0.5 * (torch.erf((cells + 0.5 - mean) / unit) - torch.erf((cells - 0.5 - mean) / unit))
