"""Objects looked for in all pixels of a frame: at first, or when they were lost or hide."""

import torch
from torch.nn.functional import conv2d

from motes.core.axes import Float, Int, Tensor
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    SpriteTemplate,
    determinant,
    left_to_right_order,
    mahalanobis,
    unexplained_fraction,
)


def detect(
    template: SpriteTemplate,
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
    radius, depth, gain = template.radius, template.depth.mean(0), template.lit_llr.mean(0)
    dark = conv2d(((1 - frame) * template.visibility)[:, None], depth[None, None], padding=radius)
    stays = (-2 * depth).exp()
    clips, taps = torch.arange(B).to(frame.device), torch.arange(2 * radius + 1).to(frame.device)
    shown = template.visibility * depth.max()
    free, found, nats = frame * shown / (shown + template.background), [], []
    for _ in range(slots):
        score = conv2d(free[:, None], gain[None, None], padding=radius) - dark
        llr, best = score.flatten(1).max(1)
        nats.append(llr)
        x, y = best % width, best // width
        found.append(torch.stack([x, y], -1))
        canvas = frame.new_ones(B, height + 2 * radius, width + 2 * radius)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, radius : radius + height, radius : radius + width]
    places = torch.stack(found, 1).to(frame.dtype)
    order = left_to_right_order(places, num_objects, width)
    llr = torch.stack(nats, 1).take_along_dim(order, 1)
    return places.take_along_dim(order[..., None], 1), llr


def redetect(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
    prior: PixelGaussian,
) -> tuple[Float[Tensor, "B 2"], Float[Tensor, " B"]]:
    """The likeliest pixel of one object in the whole frame, and the log of its joint density.

    Its ink is what the others leave unexplained; the prior says how likely each pixel was.

    Law: equals a loop over pixels (test_spotting_equals_the_naive_loop).
    """
    pixels = pixel_grid(template)
    away = mahalanobis(pixels - prior.mean[:, None], prior.covariance)
    log_area = (2 * torch.pi * determinant(prior.covariance).sqrt()).log()
    llr, best = (score_map(template, frame, covered) - 0.5 * away - log_area[:, None]).max(1)
    return pixels[best], llr


def score_map(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
) -> Float[Tensor, "B pixels"]:
    """How well one object would explain a frame in each of its pixels, against without it.

    Its ink is what the others leave unexplained; `covered` is the chance that they light a pixel.
    """
    dark = (1 - covered).view_as(frame) * (-template.background).exp()
    lit = frame * template.visibility * unexplained_fraction(template, dark)
    dark = (1 - frame) * template.visibility
    kernel = torch.stack([template.lit_llr.mean(0), -template.depth.mean(0)])[None]
    score: Tensor = conv2d(torch.stack([lit, dark], 1), kernel, padding=template.radius)
    return score.flatten(1)


def pixel_grid(template: SpriteTemplate) -> Float[Tensor, "pixels 2"]:
    """(x, y) of the pixels of a frame, row by row."""
    sizes = (torch.arange(size).to(template.depth) for size in template.image_size)
    y, x = torch.meshgrid(*sizes, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)
