"""Objects looked for in all pixels of a frame: at first, or when they were lost or hide."""

import torch
from torch.nn.functional import conv2d

from motes.core.axes import Float, Int, Tensor
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    SpriteTemplate,
    determinant,
    from_left_to_right,
    left_over,
    mahalanobis,
)


def detect(
    glyph: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    num_objects: Int[Tensor, " B"],
    slots: int,
) -> tuple[Float[Tensor, "B N 2"], Float[Tensor, "B N"]]:
    """Places of objects in a frame of which nothing is known, and how much each explains, in nats.

    The best place is taken first; what an object there would light is then no longer free to be
    explained by the next one, and where fewer show than there are the last ones explain nothing.
    Slots beyond the number of objects come last and mean nothing. From left to right, so that the
    order of objects can be read off the frame. [Choice 18]

    Law: separated disks are found (test_separated_disks_are_found_from_left_to_right).
    """
    B, height, width = frame.shape
    reach, depth, gain = glyph.reach, glyph.depth.mean(0), glyph.lit_gain.mean(0)
    dark = conv2d(((1 - frame) * glyph.visibility)[:, None], depth[None, None], padding=reach)
    stays = (-2 * depth).exp()
    clips, taps = torch.arange(B).to(frame.device), torch.arange(2 * reach + 1).to(frame.device)
    shown = glyph.visibility * depth.max()
    free, found, nats = frame * shown / (shown + glyph.background), [], []
    for _ in range(slots):
        score = conv2d(free[:, None], gain[None, None], padding=reach) - dark
        told, best = score.flatten(1).max(1)
        nats.append(told)
        x, y = best % width, best // width
        found.append(torch.stack([x, y], -1))
        canvas = frame.new_ones(B, height + 2 * reach, width + 2 * reach)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, reach : reach + height, reach : reach + width]
    places = torch.stack(found, 1).to(frame.dtype)
    order = from_left_to_right(places, num_objects, width)
    told = torch.stack(nats, 1).take_along_dim(order, 1)
    return places.take_along_dim(order[..., None], 1), told


def spot(
    glyph: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
    prior: PixelGaussian,
) -> tuple[Float[Tensor, "B 2"], Float[Tensor, " B"]]:
    """The likeliest pixel of one object in the whole frame, and the log of its joint density.

    Its ink is what the others leave unexplained; the prior says how likely each pixel was.

    Law: equals a loop over pixels (test_spotting_equals_the_naive_loop).
    """
    pixels = frame_pixels(glyph)
    away = mahalanobis(pixels - prior.mean[:, None], prior.covariance)
    log_area = (2 * torch.pi * determinant(prior.covariance).sqrt()).log()
    told, best = (survey(glyph, frame, covered) - 0.5 * away - log_area[:, None]).max(1)
    return pixels[best], told


def survey(
    glyph: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
) -> Float[Tensor, "B pixels"]:
    """How well one object would explain a frame in each of its pixels, against without it.

    Its ink is what the others leave unexplained; `covered` is the chance that they light a pixel.
    """
    dark = (1 - covered).view_as(frame) * (-glyph.background).exp()
    lit = frame * glyph.visibility * left_over(glyph, dark)
    dark = (1 - frame) * glyph.visibility
    kernel = torch.stack([glyph.lit_gain.mean(0), -glyph.depth.mean(0)])[None]
    score: Tensor = conv2d(torch.stack([lit, dark], 1), kernel, padding=glyph.reach)
    return score.flatten(1)


def frame_pixels(glyph: SpriteTemplate) -> Float[Tensor, "pixels 2"]:
    """(x, y) of the pixels of a frame, row by row."""
    sizes = (torch.arange(size).to(glyph.depth) for size in glyph.image_size)
    y, x = torch.meshgrid(*sizes, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)
