"""Kinds of object and the background, found in clips before anything is known of motion.

The background is what a pixel mostly shows. What differs from it most, as often in a frame as the
clip has objects, is cut out, and the cuttings are clustered: each cluster is a kind. [Choice 32]
"""

from typing import NamedTuple

import torch
from torch.nn.functional import avg_pool2d, grid_sample, interpolate, one_hot

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.models.layers.renderer import (
    COLOUR_UNIT,
    SCALE_UNIT,
    LayeredRenderer,
)
from motes.models.sprites.renderer import CELLS_PER_PIXEL

ROUNDS = 10  # of clustering, and of fitting kinds to their clusters
MOST_OPAQUE = 0.98
FAINT = 0.05  # opacity that may be noise
FEW = 0.25  # square of contrast: one pixel's
CUTTINGS = 2_000  # at most


class Cuttings(NamedTuple):
    """Squares around what differs from the background."""

    seen: Float[Tensor, "M side side C"]
    empty: Float[Tensor, "M side side C"]  # the background there
    offset: Float[Tensor, "M 2"]  # of the centre of mass from the middle, less than a pixel


class Fit(NamedTuple):
    """Kinds fitted to cuttings."""

    opacity: Float[Tensor, "K side side"]
    colour: Float[Tensor, "K C"]
    kind: Int[Tensor, " M"]  # of each cutting
    variance: Float[Tensor, " C"]  # of what is left unexplained


@torch.no_grad()
def initialize_classes(
    renderer: LayeredRenderer,
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
    renderer.initialize_background(frames, observed)
    video, background = renderer.with_channels(frames).flatten(0, 1), renderer.background()
    counts = num_objects.repeat_interleave(frames.shape[1])
    if observed is not None:
        video, counts = video[observed.flatten()], counts[observed.flatten()]
    cuttings = cut_out(video, background, counts, renderer.radius)
    if not len(cuttings.seen):
        raise InputError(
            "no object stands alone in any frame, so none can be learned from; expected clips with "
            f"some that are {renderer.radius} pixels or more from the border and from one another"
        )
    some = torch.randperm(len(cuttings.seen), generator=generator)[:CUTTINGS].to(video.device)
    cuttings = Cuttings(*(part[some] for part in cuttings))
    num_kinds = len(renderer.kind_logits)
    middled = aligned(cuttings)
    fit = fit_kinds(middled, cluster(middled, num_kinds, generator), num_kinds)
    sizes = one_hot(fit.kind, num_kinds).sum(0)
    cells = -torch.log1p(-sharpen(cuttings, fit))
    renderer.root_depth.copy_(cells.sqrt())
    renderer.raw_colour.copy_(fit.colour / COLOUR_UNIT)
    renderer.raw_scale.copy_(0.5 * fit.variance.log() / SCALE_UNIT)
    renderer.kind_logits.copy_((sizes + 1.0).log())


def cut_out(
    video: Float[Tensor, "F height width C"],
    background: Float[Tensor, "height width C"],
    counts: Int[Tensor, " F"],
    radius: int,
) -> Cuttings:
    """Squares around objects that stand alone, from frames with so many objects each."""
    rest = video - background
    spread = rest.abs().flatten(0, 2).median(0).values.clamp(min=1e-3)
    energy = (rest / spread).square().sum(-1)
    smooth = avg_pool2d(energy[:, None], radius, 1, radius // 2, count_include_pad=False)
    smooth = smooth[:, 0, : video.shape[1], : video.shape[2]].clone()
    places = torch.stack([_take_best(smooth, radius) for _ in range(int(counts.max()))], 1)  # x, y
    there = torch.arange(places.shape[1], device=video.device) < counts[:, None]
    gap = (places[:, :, None] - places[:, None]).abs().amax(-1)
    others = there[:, None] & ~torch.eye(places.shape[1], dtype=torch.bool, device=video.device)
    alone = ((gap > 2 * radius) | ~others).all(-1) & there
    weight = (rest.abs() - 3 * spread).clamp(min=0).sum(-1)
    frame, slot = alone.nonzero().unbind(1)
    centre = places[frame, slot]
    for _ in range(2):  # the second time around the centre of what the first one held
        rows, columns, _ = _square(centre, radius, video.shape[1:3])
        held = weight[frame[:, None, None], rows, columns]
        mass = held.sum((1, 2)).clamp(min=1e-6)
        x, y = ((held * part).sum((1, 2)) / mass for part in (columns, rows))
        mean = torch.stack([x, y], -1)
        centre = mean.round().long()
    rows, columns, inside = _square(centre, radius, video.shape[1:3])
    at = frame[:, None, None], rows, columns
    return Cuttings(video[at][inside], background[rows, columns][inside], (mean - centre)[inside])


def _take_best(energy: Float[Tensor, "F height width"], radius: int) -> Int[Tensor, "F 2"]:
    """The place of the highest energy in each frame, which is then wiped out around there."""
    height, width = energy.shape[1:]
    best = energy.flatten(1).argmax(1)
    x, y = best % width, best // width
    far_x = (torch.arange(width, device=energy.device) - x[:, None]).abs() > radius
    far_y = (torch.arange(height, device=energy.device) - y[:, None]).abs() > radius
    energy *= far_y[:, :, None] | far_x[:, None]
    return torch.stack([x, y], -1)


def _square(
    centre: Int[Tensor, "M 2"], radius: int, size: tuple[int, ...]
) -> tuple[Int[Tensor, "M side 1"], Int[Tensor, "M 1 side"], Bool[Tensor, " M"]]:
    """Rows and columns of the squares around centres, and which lie wholly in the frame."""
    near = torch.arange(-radius, radius + 1, device=centre.device)
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


def aligned(cuttings: Cuttings) -> Cuttings:
    """Cuttings moved by less than a pixel, so that their centre of mass is in the middle.

    Without it, one kind would be split by where in their pixels its objects are.
    """
    v, b, offset = cuttings
    side = v.shape[1]
    middles = (2 * torch.arange(side, device=v.device) + 1) / side - 1
    x, y = (middles + 2 * part[:, None] / side for part in offset.unbind(1))
    grid = torch.stack(torch.broadcast_tensors(x[:, None], y[:, :, None]), -1)
    v, b = (
        grid_sample(part.movedim(-1, 1), grid, padding_mode="border", align_corners=False)
        for part in (v, b)
    )
    return Cuttings(v.movedim(1, -1), b.movedim(1, -1), 0 * offset)


def fit_kinds(cuttings: Cuttings, kind: Int[Tensor, " M"], num_kinds: int) -> Fit:
    """Opacities and colours by least squares, in turns with the kind of each cutting."""
    v, b, _ = cuttings
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


def sharpen(cuttings: Cuttings, fit: Fit) -> Float[Tensor, "K cells cells"]:
    """Opacities by cells, a quarter of a pixel wide.

    Where in its pixel the object of a cutting is, its centre of mass tells; the pixels of many
    cuttings together then fill the cells.
    """
    v, b, _ = cuttings
    toward = fit.colour[fit.kind][:, None, None] - b
    pull, weight = ((v - b) * toward).sum(-1), toward.square().sum(-1)
    # Noise far from an object would move its centre of mass most.
    mass = (pull / weight.clamp(min=1e-6)).clamp(0, 1) * (fit.opacity[fit.kind] > FAINT)
    side = v.shape[1]
    axis = torch.arange(side, device=v.device) - side // 2
    taps = torch.arange(side, device=v.device) * CELLS_PER_PIXEL + CELLS_PER_PIXEL - 1
    rows, columns = (
        taps - _cell((mass.sum(dim) * axis).sum(1) / mass.sum((1, 2)).clamp(min=1e-6))[:, None]
        for dim in (2, 1)
    )
    cells = CELLS_PER_PIXEL * side
    place = (fit.kind[:, None, None] * cells + rows[:, :, None]) * cells + columns[:, None]
    # Where few pixels fell, smooth from cell to cell, or places within a pixel would look alike.
    smooth = interpolate(fit.opacity[None], scale_factor=CELLS_PER_PIXEL, mode="bilinear")[
        0
    ].flatten()
    top = (FEW * smooth).index_add(0, place.flatten(), pull.flatten())
    bottom = torch.full_like(top, FEW).index_add(0, place.flatten(), weight.flatten())
    return (top / bottom).clamp(0, MOST_OPAQUE).view(-1, cells, cells)


def _cell(offset: Float[Tensor, " M"]) -> Int[Tensor, " M"]:
    """In which of its pixel's cells an object is, by its distance from the pixel's middle."""
    return ((offset + 0.5) * CELLS_PER_PIXEL).floor().clamp(0, CELLS_PER_PIXEL - 1).long()
