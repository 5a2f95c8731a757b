"""Detection of objects in a whole frame: at the start, after a loss, or behind an occluder."""

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
from motes.models.sprites.patches import pixel_grid


def detect(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    num_objects: Int[Tensor, " B"],
    slots: int,
) -> tuple[Float[Tensor, "B N 2"], Float[Tensor, "B N"]]:
    """Return positions of objects in a frame without any prior, and their log-likelihood ratios.

    Greedy: the best pixel is taken, what an object there would light is removed from the frame,
    and so on; if fewer objects show than are asked for, the last ratios are small. Objects are
    ordered from left to right [Choice 18]; slots beyond `num_objects` come last and mean nothing.

    Law: separated disks are found (test_separated_disks_are_detected_from_left_to_right).
    """
    B, height, width = frame.shape
    radius, depth, gain = template.radius, template.depth.mean(0), template.lit_llr.mean(0)
    dark = conv2d(((1 - frame) * template.visibility)[:, None], depth[None, None], padding=radius)
    stays = (-2 * depth).exp()
    clips, taps = torch.arange(B).to(frame.device), torch.arange(2 * radius + 1).to(frame.device)
    shown = template.visibility * depth.max()
    free = frame * shown / (shown + template.background)
    pixels, ratios = [], []
    for _ in range(slots):
        score = conv2d(free[:, None], gain[None, None], padding=radius) - dark
        llr, best = score.flatten(1).max(1)
        x, y = best % width, best // width
        pixels.append(torch.stack([x, y], -1))
        ratios.append(llr)
        canvas = frame.new_ones(B, height + 2 * radius, width + 2 * radius)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, radius : radius + height, radius : radius + width]
    positions = torch.stack(pixels, 1).to(frame.dtype)
    order = left_to_right_order(positions, num_objects, width)
    llr = torch.stack(ratios, 1).take_along_dim(order, 1)
    return positions.take_along_dim(order[..., None], 1), llr


def redetect(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
    prior: PixelGaussian,
) -> tuple[Float[Tensor, "B 2"], Float[Tensor, " B"]]:
    """Return the most probable pixel of one object in a whole frame, and its log joint density.

        log p(frame, pixel) = score_map(pixel) + log N(pixel; prior)

    Law: equals a loop over pixels (test_redetection_equals_the_naive_loop).
    """
    pixels = pixel_grid(template.image_size, template.depth)
    away = mahalanobis(pixels - prior.mean[:, None], prior.covariance)
    log_area = (2 * torch.pi * determinant(prior.covariance).sqrt()).log()
    score = score_map(template, frame, covered) - 0.5 * away - log_area[:, None]
    log_joint, best = score.max(1)
    return pixels[best], log_joint


def score_map(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
) -> Float[Tensor, "B pixels"]:
    """Return the log-likelihood ratio of one more object at each pixel of a frame.

    `covered` is the probability that other objects light a pixel: of a lit pixel only what they
    leave unexplained counts.
    """
    dark = (1 - covered).view_as(frame) * (-template.background).exp()
    lit = frame * template.visibility * unexplained_fraction(template, dark)
    dark = (1 - frame) * template.visibility
    kernel = torch.stack([template.lit_llr.mean(0), -template.depth.mean(0)])[None]
    score: Tensor = conv2d(torch.stack([lit, dark], 1), kernel, padding=template.radius)
    return score.flatten(1)
