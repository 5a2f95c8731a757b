"""Expected frames under uncertain positions, without sampling."""

import math
from typing import Any

import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.mixture import Gaussian
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.renderer import CELLS_PER_PIXEL, SpriteRenderer

CHUNK_FRAMES = 512  # of an object in one batch, which bounds memory


@torch.no_grad()
def expected_frames(
    renderer: SpriteRenderer,
    q: Any,
    present: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B N K"],
    predicted: Gaussian,
) -> Float[Tensor, "B T height width"]:
    """Return the probability of white in each pixel, with positions integrated out.

    Depths add and objects are independent, so the probability of dark is a product over objects
    of E exp(-sprite(pixel - position)). Each expectation is a convolution of the sprite with the
    distribution of the position: q where the object was detected, else the mixture of the
    components' predictions.

    Args:
        renderer: the renderer.
        q: the posterior; it may end before the frames do.
        present: which objects each clip has.
        weights: of the initial-state components of each object.
        predicted: positions under each component, [B N K T], latent units.

    Law: the mean of many rendered draws (test_expected_frames_are_the_average_of_draws), for a
    long clip as well (test_a_long_clip_is_answered_as_a_short_one_is).
    """
    parts = []
    for time, part in q.pieces():
        there = Gaussian(*(moments[:, :, :, time] for moments in predicted))
        parts.append(_block_frames(renderer, part, present, weights, there))
    return torch.cat(parts, 1)


def _block_frames(
    renderer: SpriteRenderer,
    q: GridPosterior,
    present: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B N K"],
    predicted: Gaussian,
) -> Float[Tensor, "B T height width"]:
    """Return the expected frames of one block of q."""
    B, N, _ = q.detected.shape
    T = predicted.mean.shape[3]
    detected = pad(q.detected, (0, T - q.detected.shape[2]))
    log_dark = q.log_weights.new_zeros(B, T, *renderer.image_size)  # by the objects alone
    for n in range(N):
        for by_cells in (True, False):
            selected = (present[:, n, None] & (detected[:, n] == by_cells)).nonzero()
            for clip, frame in (part.unbind(1) for part in selected.split(CHUNK_FRAMES)):
                if by_cells:
                    lit = _lit_by_cells(renderer, q, clip, n, frame)
                else:
                    place = Gaussian(*(part[clip, n, :, frame] for part in predicted))
                    lit = _lit_by_gaussians(renderer, weights[clip, n], place)
                log_dark[clip, frame] += torch.log1p(-lit.clamp(max=1 - 1e-7))
    depth = renderer.background() + renderer.visible_depth(-log_dark, renderer.visibility())
    return -torch.expm1(-depth)


def _lit_by_cells(
    renderer: SpriteRenderer, q: GridPosterior, clip: Tensor, n: int, frame: Tensor
) -> Float[Tensor, "M height width"]:
    """Return the probability that a detected object lights each pixel."""
    height, width = renderer.image_size
    weights = q.log_weights[clip, n, frame].exp()
    window = math.isqrt(weights.shape[-1] // CELLS_PER_PIXEL**2) // 2
    side = 2 * window + 1
    kernels = -torch.expm1(-renderer.kernels().flatten(0, 1))[:, None]
    patch = conv_transpose2d(weights.view(-1, CELLS_PER_PIXEL**2, side, side), kernels)[:, 0]
    far = window + renderer.radius
    corner = renderer.to_pixels(q.origin[clip, n, frame]).round().long()  # x, y
    canvas = patch.new_zeros(len(patch), height + 2 * far, width + 2 * far)
    taps = torch.arange(2 * far + 1, device=patch.device)
    rows = corner[:, 1, None, None] + taps[:, None]
    columns = corner[:, 0, None, None] + taps
    canvas[torch.arange(len(patch), device=patch.device)[:, None, None], rows, columns] = patch
    return canvas[:, far : far + height, far : far + width]


def _lit_by_gaussians(
    renderer: SpriteRenderer, weights: Float[Tensor, "M K"], place: Gaussian
) -> Float[Tensor, "M height width"]:
    """Return the probability that an object with a Gaussian mixture as its belief lights pixels."""
    radius, (height, width) = renderer.radius, renderer.image_size
    mean = renderer.to_pixels(place.mean).float()
    covariance = (place.covariance * renderer.pixels_per_unit**2).float()
    x, y = (torch.arange(-radius, size + radius).to(mean) for size in (width, height))
    c_xx, c_xy, c_yy = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]
    along = _interval_mass(x, mean[..., :1], c_xx[..., None].sqrt())  # p(x), M K columns
    slope = c_xy / c_xx
    shifted = mean[..., 1:] + slope[..., None] * (x - mean[..., :1])
    rest = (c_yy - slope * c_xy).clamp(min=1e-6).sqrt()
    across = _interval_mass(y[:, None], shifted[..., None, :], rest[..., None, None])  # p(y | x)
    mass = torch.einsum("mk,mkx,mkyx->myx", weights.to(mean), along, across)
    kernel = -torch.expm1(-renderer.kernels()).mean((0, 1))
    # A transposed convolution written as a plain one takes a ninth of the time on a CPU.
    return conv2d(mass[:, None], kernel.flip(0, 1)[None, None])[:, 0]


def _interval_mass(
    centre: Float[Tensor, "*#shape"],
    mean: Float[Tensor, "*#shape"],
    scale: Float[Tensor, "*#shape"],
) -> Float[Tensor, "*shape"]:
    """Return the mass of a Gaussian in unit intervals around the centres."""
    unit = scale * math.sqrt(2)
    upper, lower = (torch.erf((centre + side - mean) / unit) for side in (0.5, -0.5))
    return 0.5 * (upper - lower)
