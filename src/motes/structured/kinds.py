"""Kinds of object and the background, found in clips before anything is known of motion.

The background is what a pixel mostly shows. What differs from it most, as often in a frame as the
clip has objects, is cut out, and the cuttings are clustered: each cluster is a kind. [Choice 32]
"""

from typing import NamedTuple

import torch
from torch.nn.functional import avg_pool2d, interpolate, one_hot

from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.glyph import CELLS
from motes.structured.picture import (
    BACKGROUND_UNIT,
    COLOUR_UNIT,
    SCALE_UNIT,
    PictureRenderer,
)

ROUNDS = 10  # of clustering, and of fitting kinds to their clusters
MOST_OPAQUE = 0.98
CUTTINGS = 2_000  # at most


class Cuttings(NamedTuple):
    """Squares around what differs from the background."""

    seen: Float[Tensor, "M side side C"]
    empty: Float[Tensor, "M side side C"]  # the background there


class Fit(NamedTuple):
    """Kinds fitted to cuttings."""

    opacity: Float[Tensor, "K side side"]
    colour: Float[Tensor, "K C"]
    kind: Int[Tensor, " M"]  # of each cutting
    variance: Float[Tensor, " C"]  # of what is left unexplained


@torch.no_grad()
def seed_kinds(
    renderer: PictureRenderer,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    observed: Bool[Tensor, "B T"] | None,
    generator: torch.Generator,
) -> None:
    """Sets background, kinds and noise of a renderer by clips.

    Args:
        renderer: keeps its sizes.
        frames: of clips like those that will be learned from; no labels.
        num_objects: in each clip.
        observed: which frames were seen (all, if None).
        generator: of the clustering's first guess.

    Law: background and kinds of a made-up scene are found
    (test_kinds_of_a_made_up_scene_are_found).
    """
    video = renderer.as_channels(frames).flatten(0, 1)
    counts = num_objects.repeat_interleave(frames.shape[1])
    if observed is not None:
        video, counts = video[observed.flatten()], counts[observed.flatten()]
    background = video.median(0).values
    cuttings = cut_out(video, background, counts, renderer.reach)
    some = torch.randperm(len(cuttings.seen), generator=generator)[:CUTTINGS].to(video.device)
    cuttings = Cuttings(*(part[some] for part in cuttings))
    num_kinds = len(renderer.kind_logits)
    fit = fit_kinds(cuttings, cluster(cuttings, num_kinds, generator), num_kinds)
    sizes = one_hot(fit.kind, num_kinds).sum(0)
    # Smooth from cell to cell, or places within a pixel would look alike.
    fine = interpolate(fit.opacity[None], scale_factor=CELLS, mode="bilinear")[0]
    cells = -torch.log1p(-torch.stack([centred(table) for table in fine]))
    renderer.raw_background.copy_(background / BACKGROUND_UNIT)
    renderer.root_depth.copy_(cells.sqrt())
    renderer.raw_colour.copy_(fit.colour / COLOUR_UNIT)
    renderer.raw_scale.copy_(0.5 * fit.variance.log() / SCALE_UNIT)
    renderer.kind_logits.copy_((sizes + 1.0).log())


def centred(table: Float[Tensor, "cells cells"]) -> Float[Tensor, "cells cells"]:
    """A table moved by whole cells until its centre of mass is in the middle.

    Cuttings have their pixels in the middle, and a cluster may hold one side of a pixel alone.
    """
    middle = (len(table) - 1) / 2
    axis = torch.arange(len(table), device=table.device) - middle
    mass = table.sum().clamp(min=1e-6)
    down, right = ((table.sum(dim) * axis).sum() / mass for dim in (1, 0))
    return table.roll((-round(float(down)), -round(float(right))), (0, 1))


def cut_out(
    video: Float[Tensor, "F height width C"],
    background: Float[Tensor, "height width C"],
    counts: Int[Tensor, " F"],
    reach: int,
) -> Cuttings:
    """Squares around objects that stand alone, from frames with so many objects each."""
    rest = video - background
    spread = rest.abs().flatten(0, 2).median(0).values.clamp(min=1e-3)
    energy = (rest / spread).square().sum(-1)
    smooth = avg_pool2d(energy[:, None], reach, 1, reach // 2, count_include_pad=False)
    smooth = smooth[:, 0, : video.shape[1], : video.shape[2]].clone()
    places = torch.stack([_take_best(smooth, reach) for _ in range(int(counts.max()))], 1)  # x, y
    there = torch.arange(places.shape[1], device=video.device) < counts[:, None]
    gap = (places[:, :, None] - places[:, None]).abs().amax(-1)
    others = there[:, None] & ~torch.eye(places.shape[1], dtype=torch.bool, device=video.device)
    alone = ((gap > 2 * reach) | ~others).all(-1) & there
    weight = (rest.abs() - 3 * spread).clamp(min=0).sum(-1)
    frame, slot = alone.nonzero().unbind(1)
    centre = places[frame, slot]
    for _ in range(2):  # the second time around the centre of what the first one held
        rows, columns, _ = _square(centre, reach, video.shape[1:3])
        held = weight[frame[:, None, None], rows, columns]
        mass = held.sum((1, 2)).clamp(min=1e-6)
        x, y = ((held * part).sum((1, 2)) / mass for part in (columns, rows))
        centre = torch.stack([x, y], -1).round().long()
    rows, columns, inside = _square(centre, reach, video.shape[1:3])
    at = frame[:, None, None], rows, columns
    return Cuttings(video[at][inside], background[rows, columns][inside])


def _take_best(energy: Float[Tensor, "F height width"], reach: int) -> Int[Tensor, "F 2"]:
    """The place of the highest energy in each frame, which is then wiped out around there."""
    height, width = energy.shape[1:]
    best = energy.flatten(1).argmax(1)
    x, y = best % width, best // width
    far_x = (torch.arange(width, device=energy.device) - x[:, None]).abs() > reach
    far_y = (torch.arange(height, device=energy.device) - y[:, None]).abs() > reach
    energy *= far_y[:, :, None] | far_x[:, None]
    return torch.stack([x, y], -1)


def _square(
    centre: Int[Tensor, "M 2"], reach: int, size: tuple[int, ...]
) -> tuple[Int[Tensor, "M side 1"], Int[Tensor, "M 1 side"], Bool[Tensor, " M"]]:
    """Rows and columns of the squares around centres, and which lie wholly in the frame."""
    near = torch.arange(-reach, reach + 1, device=centre.device)
    rows, columns = centre[:, 1:] + near, centre[:, :1] + near
    height, width = size
    inside = (rows >= 0).all(1) & (rows < height).all(1)
    inside &= (columns >= 0).all(1) & (columns < width).all(1)
    return rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None], inside


def cluster(cuttings: Cuttings, num_kinds: int, generator: torch.Generator) -> Int[Tensor, " M"]:
    """The cluster of each cutting, by k-means on what differs from the background."""
    points = (cuttings.seen - cuttings.empty).flatten(1)
    first = int(torch.randint(len(points), (1,), generator=generator))
    centres = points[first : first + 1]
    for _ in range(num_kinds - 1):  # far from those that are taken, by k-means++
        distance = torch.cdist(points, centres).square().amin(1).cumsum(0)
        target = torch.rand(1, generator=generator).to(points) * distance[-1]
        chosen = int(torch.searchsorted(distance, target).clamp(max=len(points) - 1))
        centres = torch.cat([centres, points[chosen : chosen + 1]])
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(1)
        share = one_hot(nearest, num_kinds).to(points)
        size = share.sum(0)[:, None]
        centres = torch.where(size > 0, share.T @ points / size.clamp(min=1), centres)
    return nearest


def fit_kinds(cuttings: Cuttings, kind: Int[Tensor, " M"], num_kinds: int) -> Fit:
    """Opacities and colours by least squares, in turns with the kind of each cutting."""
    v, b = cuttings
    colour = torch.zeros(num_kinds, v.shape[-1]).to(v)
    opacity = torch.zeros(num_kinds, *v.shape[1:3]).to(v)
    for k in range(num_kinds):
        weight = (v[kind == k] - b[kind == k]).abs()
        colour[k] = (weight * v[kind == k]).sum((0, 1, 2)) / weight.sum((0, 1, 2)).clamp(min=1e-6)
    for _ in range(ROUNDS):
        for k in range(num_kinds):
            if int((kind == k).sum()) < 2:
                continue
            vk, bk = v[kind == k], b[kind == k]
            for _ in range(3):
                toward = colour[k] - bk
                top, bottom = ((vk - bk) * toward).sum((0, 3)), toward.square().sum((0, 3))
                opacity[k] = (top / bottom.clamp(min=1e-6)).clamp(0, MOST_OPAQUE)
                a = opacity[k][..., None]
                left = (a * (vk - (1 - a) * bk)).sum((0, 1, 2))
                colour[k] = (left / (len(vk) * a.square().sum()).clamp(min=1e-6)).clamp(0, 1)
        a = opacity[:, None, :, :, None]
        error = v - b - a * (colour[:, None, None, None] - b)
        kind = error.square().sum((2, 3, 4)).argmin(0)
    best = error[kind, torch.arange(len(v), device=v.device)]
    return Fit(opacity, colour, kind, best.square().mean((0, 1, 2)).clamp(min=1e-5))
