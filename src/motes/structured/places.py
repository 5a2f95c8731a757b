"""How well a frame is explained with one object at each of many places, the others held."""

from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes.shapes import Bool, Float, Int, Tensor

CELL_VARIANCE = 1 / 12  # of a position that is anywhere within a pixel


class Place(NamedTuple):
    """A belief about where each object is in a frame, in pixels."""

    mean: Float[Tensor, "B N 2"]
    covariance: Float[Tensor, "B N 2 2"]


class Glyph(NamedTuple):
    """What looking needs of the renderer, over whole-pixel offsets from an object."""

    depth: Float[Tensor, "taps taps"]
    lit_gain: Float[Tensor, "taps taps"]  # log p(white) with the object minus without it
    spread: Float[Tensor, ""]  # variance of its ink, square pixels

    @staticmethod
    def of(
        depth: Float[Tensor, "taps taps"], background: Float[Tensor, ""], spread: Float[Tensor, ""]
    ) -> "Glyph":
        """The glyph of a depth kernel over a background."""
        with_object, without = depth + background, background
        gain = (-torch.expm1(-with_object)).log() - (-torch.expm1(-without)).log()
        return Glyph(depth, gain, spread)


def detect(
    glyph: Glyph, frame: Float[Tensor, "B height width"], num_objects: Int[Tensor, " B"], slots: int
) -> Float[Tensor, "B N 2"]:
    """Places of objects in a frame about which nothing is known, from left to right.

    The best place is taken first; what an object there would light is then no longer free to be
    explained by the next one. Slots beyond the number of objects come last and mean nothing. From
    left to right, so that the order of objects can be read off the frame. [Choice 18]

    Law: separated disks are found (test_separated_disks_are_found_from_left_to_right).
    """
    B, height, width = frame.shape
    reach = glyph.depth.shape[0] // 2
    dark = conv2d((1 - frame)[:, None], glyph.depth[None, None], padding=reach)
    stays = (-2 * glyph.depth).exp()
    clips, taps = torch.arange(B).to(frame.device), torch.arange(2 * reach + 1).to(frame.device)
    free, found = frame, []
    for _ in range(slots):
        score = conv2d(free[:, None], glyph.lit_gain[None, None], padding=reach) - dark
        best = score.flatten(1).argmax(1)
        x, y = best % width, best // width
        found.append(torch.stack([x, y], -1))
        canvas = frame.new_ones(B, height + 2 * reach, width + 2 * reach)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, reach : reach + height, reach : reach + width]
    places = torch.stack(found, 1).to(frame.dtype)
    spare = torch.arange(slots, device=frame.device) >= num_objects[:, None]
    order = (places[..., 0] + spare * 2.0 * width).argsort(1)
    return places.take_along_dim(order[..., None], 1)


def look(
    glyph: Glyph,
    frame: Float[Tensor, "B height width"],
    guess: Place,
    prior: Place | None,
    present: Bool[Tensor, "B N"],
    window: int,
) -> Place:
    """The posterior belief about each object's place, near a guess.

    Lit pixels are shared out between the objects by responsibility, as their guesses stand; each
    whole-pixel place within `window` pixels of the guess is scored by how well the object would
    explain its share there, and by the prior. [Choice 15]

    Law: equals a loop over objects and places (test_looking_equals_the_naive_loop).
    """
    B, height, width = frame.shape
    N, reach = guess.mean.shape[1], glyph.depth.shape[0] // 2
    limit = torch.tensor([width - 1, height - 1], device=frame.device)
    centre = guess.mean.round().long().clamp(min=0).minimum(limit)
    around = torch.arange(-window - reach, window + reach + 1, device=frame.device)
    x, y = centre[..., 0, None] + around, centre[..., 1, None] + around  # B N side
    share = _responsibility(glyph, guess, present, x, y)
    inside = ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]
    flat = y.clamp(0, height - 1)[..., :, None] * width + x.clamp(0, width - 1)[..., None, :]
    seen = frame.flatten(1).gather(1, flat.flatten(1)).view(flat.shape) * inside
    pictures = torch.stack([seen * share, (1 - seen) * inside], 2).flatten(0, 1)  # BN 2 side side
    kernels = torch.stack([glyph.lit_gain, -glyph.depth])[None]
    score = conv2d(pictures, kernels).unflatten(0, (B, N))[:, :, 0]
    near = torch.arange(-window, window + 1, device=frame.device)
    places = torch.stack(
        torch.broadcast_tensors(
            (centre[..., 0, None] + near)[..., None, :], (centre[..., 1, None] + near)[..., None]
        ),
        -1,
    ).to(frame.dtype)  # B N side side 2
    if prior is not None:
        score = score - 0.5 * _distance(places - prior.mean[:, :, None, None], prior.covariance)
    weights = score.flatten(2).softmax(-1)
    return _moments(weights, places.flatten(2, 3))


def _responsibility(
    glyph: Glyph,
    guess: Place,
    present: Bool[Tensor, "B N"],
    x: Int[Tensor, "B N side"],
    y: Int[Tensor, "B N side"],
) -> Float[Tensor, "B N side side"]:
    """The share of object n in each pixel of its own window, among all present objects."""
    eye = torch.eye(2, device=x.device)
    ink = guess.covariance + glyph.spread * eye
    pixels = torch.stack(torch.broadcast_tensors(x[..., None, :], y[..., None]), -1)
    offsets = pixels[:, :, None] - guess.mean[:, None, :, None, None]  # B window-of object ...
    log_ink = -0.5 * (_distance(offsets, ink[:, None]) + ink.logdet()[:, None, :, None, None])
    log_ink = log_ink.masked_fill(~present[:, None, :, None, None], -torch.inf)
    own = log_ink.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return (own - log_ink.logsumexp(2)).exp().nan_to_num(0.0)


def _distance(
    offsets: Float[Tensor, "*batch rows columns 2"], covariance: Float[Tensor, "*#batch 2 2"]
) -> Float[Tensor, "*batch rows columns"]:
    """Squared Mahalanobis distances, written out for two dimensions."""
    a, b, c = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]
    scale = (a * c - b * b)[..., None, None]
    a, b, c = (part[..., None, None] for part in (a, b, c))
    x, y = offsets.unbind(-1)
    return (c * x * x - 2 * b * x * y + a * y * y) / scale


def _moments(weights: Float[Tensor, "B N places"], places: Float[Tensor, "B N places 2"]) -> Place:
    """Mean and covariance over places, each of which stands for its whole pixel."""
    mean = (weights[..., None] * places).sum(2)
    offsets = places - mean[:, :, None]
    covariance = (weights[..., None] * offsets).mT @ offsets
    return Place(mean, covariance + CELL_VARIANCE * torch.eye(2, device=mean.device))
