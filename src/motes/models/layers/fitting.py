"""Sprite classes from clips: initialization before any tracking, and closed-form refit."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.nn.functional import avg_pool2d, grid_sample, interpolate, one_hot

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.models.layers.renderer import COLOUR_UNIT, DARKEST, SCALE_UNIT, LayeredRenderer
from motes.models.layers.search import FrameObjects, SpriteClasses, render_context
from motes.models.protocols import InferredBatch, Posterior, Reduce
from motes.models.sprites.likelihood_maps import Window
from motes.models.sprites.renderer import CELLS_PER_PIXEL

ITERATIONS = 10  # of k-means, and of alternating least squares
MAX_OPACITY = 0.98
MIN_OPACITY = 0.05  # below it may be noise
PRIOR_WEIGHT = 0.25  # in squared contrast of one pixel
MAX_CROPS = 2_000  # that are clustered
ROUNDS = 2  # the second with positions inferred by the tables of the first
TABLE_WEIGHT = 0.1  # of the previous table, in squared contrast: less than one pixel's


class Crops(NamedTuple):
    """Crops around isolated objects."""

    frame: Float[Tensor, "M side side C"]
    background: Float[Tensor, "M side side C"]
    offset: Float[Tensor, "M 2"]  # of the centre of mass from the centre pixel


class Fit(NamedTuple):
    """Sprite classes fitted to crops."""

    opacity: Float[Tensor, "K side side"]
    colour: Float[Tensor, "K C"]
    sprite_class: Int[Tensor, " M"]  # of each crop
    variance: Float[Tensor, " C"]  # of the residuals


@torch.no_grad()
def initialize_classes(
    renderer: LayeredRenderer,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    observed: Bool[Tensor, "B T"] | None,
    generator: torch.Generator,
) -> None:
    """Set background, sprite classes and noise of a renderer from unlabelled clips.

    The background is the median frame. The regions that differ most from it, as many per frame as
    the clip has objects, are cropped and clustered; each cluster is a sprite class. [Choice 32]

    Law: background and classes of a synthetic scene are recovered
    (test_classes_of_a_synthetic_scene_are_recovered).
    """
    renderer.initialize_background(frames, observed)
    video, background = renderer.with_channels(frames).flatten(0, 1), renderer.background()
    counts = num_objects.repeat_interleave(frames.shape[1])
    if observed is not None:
        video, counts = video[observed.flatten()], counts[observed.flatten()]
    crops = crop_isolated(video, background, counts, renderer.radius)
    if not len(crops.frame):
        raise InputError(
            "no object stands alone in any frame, so none can be learned from; expected clips with "
            f"some that are {renderer.radius} pixels or more from the border and from one another"
        )
    some = torch.randperm(len(crops.frame), generator=generator)[:MAX_CROPS].to(video.device)
    crops = Crops(*(part[some] for part in crops))
    num_classes = len(renderer.kind_logits)
    centred = align_crops(crops)
    fit = fit_classes(centred, cluster_crops(centred, num_classes, generator), num_classes)
    sizes = one_hot(fit.sprite_class, num_classes).sum(0)
    cells = -torch.log1p(-sharpen_sprites(crops, fit))
    renderer.root_depth.copy_(cells.sqrt())
    renderer.raw_colour.copy_(fit.colour / COLOUR_UNIT)
    renderer.raw_scale.copy_(0.5 * fit.variance.log() / SCALE_UNIT)
    renderer.kind_logits.copy_((sizes + 1.0).log())


def crop_isolated(
    video: Float[Tensor, "F height width C"],
    background: Float[Tensor, "height width C"],
    counts: Int[Tensor, " F"],
    radius: int,
) -> Crops:
    """Return crops around isolated objects, from frames with `counts` objects each."""
    rest = video - background
    spread = rest.abs().flatten(0, 2).median(0).values.clamp(min=1e-3)
    energy = (rest / spread).square().sum(-1)
    smooth = avg_pool2d(energy[:, None], radius, 1, radius // 2, count_include_pad=False)
    smooth = smooth[:, 0, : video.shape[1], : video.shape[2]].clone()
    places = torch.stack(
        [_pop_maximum(smooth, radius) for _ in range(int(counts.max()))], 1
    )  # x, y
    there = torch.arange(places.shape[1], device=video.device) < counts[:, None]
    gap = (places[:, :, None] - places[:, None]).abs().amax(-1)
    others = there[:, None] & ~torch.eye(places.shape[1], dtype=torch.bool, device=video.device)
    alone = ((gap > 2 * radius) | ~others).all(-1) & there
    weight = (rest.abs() - 3 * spread).clamp(min=0).sum(-1)
    frame, slot = alone.nonzero().unbind(1)
    centre = places[frame, slot]
    for _ in range(2):  # the second time around the centroid of the first crop
        rows, columns, _ = _window_indices(centre, radius, video.shape[1:3])
        held = weight[frame[:, None, None], rows, columns]
        mass = held.sum((1, 2)).clamp(min=1e-6)
        x, y = ((held * part).sum((1, 2)) / mass for part in (columns, rows))
        mean = torch.stack([x, y], -1)
        centre = mean.round().long()
    rows, columns, inside = _window_indices(centre, radius, video.shape[1:3])
    at = frame[:, None, None], rows, columns
    return Crops(video[at][inside], background[rows, columns][inside], (mean - centre)[inside])


def _pop_maximum(energy: Float[Tensor, "F height width"], radius: int) -> Int[Tensor, "F 2"]:
    """Return the pixel of highest energy in each frame, and set the energy around it to zero."""
    height, width = energy.shape[1:]
    best = energy.flatten(1).argmax(1)
    x, y = best % width, best // width
    far_x = (torch.arange(width, device=energy.device) - x[:, None]).abs() > radius
    far_y = (torch.arange(height, device=energy.device) - y[:, None]).abs() > radius
    energy *= far_y[:, :, None] | far_x[:, None]
    return torch.stack([x, y], -1)


def _window_indices(
    centre: Int[Tensor, "M 2"], radius: int, size: tuple[int, ...]
) -> tuple[Int[Tensor, "M side 1"], Int[Tensor, "M 1 side"], Bool[Tensor, " M"]]:
    """Return rows and columns of windows around centres, and which lie in the frame."""
    near = torch.arange(-radius, radius + 1, device=centre.device)
    rows, columns = centre[:, 1:] + near, centre[:, :1] + near
    height, width = size
    inside = (rows >= 0).all(1) & (rows < height).all(1)
    inside &= (columns >= 0).all(1) & (columns < width).all(1)
    return rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None], inside


def cluster_crops(crops: Crops, num_classes: int, generator: torch.Generator) -> Int[Tensor, " M"]:
    """Return the cluster of each crop, by k-means on the difference from the background."""
    points = (crops.frame - crops.background).flatten(1)
    first = int(torch.randint(len(points), (1,), generator=generator))
    centres = points[first : first + 1]
    for _ in range(num_classes - 1):  # k-means++
        distance = torch.cdist(points, centres).square().amin(1).cumsum(0)
        target = torch.rand(1, generator=generator).to(points) * distance[-1]
        seed = int(torch.searchsorted(distance, target).clamp(max=len(points) - 1))
        centres = torch.cat([centres, points[seed : seed + 1]])
    for _ in range(ITERATIONS):
        nearest = torch.cdist(points, centres).argmin(1)
        share = one_hot(nearest, num_classes).to(points)
        size = share.sum(0)[:, None]
        centres = torch.where(size > 0, share.T @ points / size.clamp(min=1), centres)
    return nearest


def align_crops(crops: Crops) -> Crops:
    """Return crops shifted by less than a pixel, with the centre of mass at the centre.

    Otherwise a class would be split by the position of its objects within a pixel.
    """
    v, b, offset = crops
    side = v.shape[1]
    centres = (2 * torch.arange(side).to(v) + 1) / side - 1
    x, y = (centres + 2 * part[:, None] / side for part in offset.unbind(1))
    grid = torch.stack(torch.broadcast_tensors(x[:, None], y[:, :, None]), -1)
    v, b = (
        grid_sample(part.movedim(-1, 1), grid, padding_mode="border", align_corners=False)
        for part in (v, b)
    )
    return Crops(v.movedim(1, -1), b.movedim(1, -1), 0 * offset)


def fit_classes(crops: Crops, sprite_class: Int[Tensor, " M"], num_classes: int) -> Fit:
    """Return opacities and colours by least squares, alternating with the class of each crop."""
    v, b, _ = crops
    colour = torch.zeros(num_classes, v.shape[-1]).to(v)
    opacity = torch.zeros(num_classes, *v.shape[1:3]).to(v)
    for k in range(num_classes):
        weight = (v[sprite_class == k] - b[sprite_class == k]).abs()
        colour[k] = (weight * v[sprite_class == k]).sum((0, 1, 2)) / weight.sum((0, 1, 2)).clamp(
            min=1e-6
        )
    for _ in range(ITERATIONS):
        for k in range(num_classes):
            if int((sprite_class == k).sum()) < 2:
                continue
            vk, bk = v[sprite_class == k], b[sprite_class == k]
            for _ in range(3):
                toward = colour[k] - bk
                top, bottom = ((vk - bk) * toward).sum((0, 3)), toward.square().sum((0, 3))
                opacity[k] = (top / bottom.clamp(min=1e-6)).clamp(0, MAX_OPACITY)
                a = opacity[k][..., None]
                left = (a * (vk - (1 - a) * bk)).sum((0, 1, 2))
                colour[k] = (left / (len(vk) * a.square().sum()).clamp(min=1e-6)).clamp(0, 1)
        a = opacity[:, None, :, :, None]
        error = v - b - a * (colour[:, None, None, None] - b)
        sprite_class = error.square().sum((2, 3, 4)).argmin(0)
    best = error[sprite_class, torch.arange(len(v), device=v.device)]
    return Fit(opacity, colour, sprite_class, best.square().mean((0, 1, 2)).clamp(min=1e-5))


def sharpen_sprites(crops: Crops, fit: Fit) -> Float[Tensor, "K cells cells"]:
    """Return opacities by cell, CELLS_PER_PIXEL per pixel and axis.

    The centre of mass of a crop gives the position of its object within the pixel; the pixels of
    many crops together then fill the cells.
    """
    v, b, _ = crops
    toward = fit.colour[fit.sprite_class][:, None, None] - b
    pull, weight = ((v - b) * toward).sum(-1), toward.square().sum(-1)
    # Without faint pixels: noise far from an object would move its centre of mass most.
    mass = (pull / weight.clamp(min=1e-6)).clamp(0, 1) * (
        fit.opacity[fit.sprite_class] > MIN_OPACITY
    )
    side = v.shape[1]
    axis = torch.arange(side, device=v.device) - side // 2
    taps = torch.arange(side, device=v.device) * CELLS_PER_PIXEL + CELLS_PER_PIXEL - 1
    rows, columns = (
        taps - _cell((mass.sum(dim) * axis).sum(1) / mass.sum((1, 2)).clamp(min=1e-6))[:, None]
        for dim in (2, 1)
    )
    cells = CELLS_PER_PIXEL * side
    place = (fit.sprite_class[:, None, None] * cells + rows[:, :, None]) * cells + columns[:, None]
    # Cells with few pixels are interpolated; constant pixels would make their cells equivalent.
    smooth = interpolate(fit.opacity[None], scale_factor=CELLS_PER_PIXEL, mode="bilinear")[
        0
    ].flatten()
    top = (PRIOR_WEIGHT * smooth).index_add(0, place.flatten(), pull.flatten())
    bottom = torch.full_like(top, PRIOR_WEIGHT).index_add(0, place.flatten(), weight.flatten())
    return (top / bottom).clamp(0, MAX_OPACITY).view(-1, cells, cells)


def _cell(offset: Float[Tensor, " M"]) -> Int[Tensor, " M"]:
    """Return the cell of an object in its pixel, by its distance from the pixel's centre."""
    return ((offset + 0.5) * CELLS_PER_PIXEL).floor().clamp(0, CELLS_PER_PIXEL - 1).long()


class CellStatistics(NamedTuple):
    """Sufficient statistics of the cells; the least-squares opacity is pull / weight."""

    pull: Float[Tensor, "K cells cells"]
    weight: Float[Tensor, "K cells cells"]


def mass_offset(renderer: LayeredRenderer) -> Float[Tensor, "K phases phases 2"]:
    """Return the offset in pixels of each class's centre of mass from its position, by phase."""
    opacity = renderer.opacities()
    phases, radius = opacity.shape[1], renderer.radius
    taps = torch.arange(-radius, radius + 1).to(opacity)
    places = ((torch.arange(phases) + 0.5) / phases - 0.5).to(opacity)
    mass = opacity.sum((-2, -1)).clamp(min=1e-6)
    x = (opacity.sum(-2) * taps).sum(-1) / mass - places
    y = (opacity.sum(-1) * taps).sum(-1) / mass - places[:, None]
    return torch.stack([x, y], -1)


@torch.no_grad()
def sprite_cell_statistics(
    renderer: LayeredRenderer,
    frames: Float[Tensor, "B T height width *channels"],
    q: Posterior,
    present: Bool[Tensor, "B N"],
    noise: Float[Tensor, "B N T 2"],
) -> CellStatistics:
    """Return the sufficient statistics of frames, given a draw of positions from q.

    Given the layers in front of an object and behind it, a pixel is linear in the opacity a:
    v = front + transmittance (behind + a (colour - behind)).
    """
    assert q.detected is not None
    T, classes, moved = q.detected.shape[2], SpriteClasses.fine(renderer, 0), mass_offset(renderer)
    sprite_class, order = q.appearance.of_frames(T)
    means, seen = (
        part.transpose(1, 2).flatten(0, 1)
        for part in (renderer.to_pixels(q.draw(noise)), q.detected)
    )
    objects = FrameObjects(means, sprite_class, present.repeat_interleave(T, 0))
    video = renderer.with_channels(frames).flatten(0, 1).flatten(1, 2)
    sums = CellStatistics(*torch.zeros(2, *renderer.root_depth.shape).to(video))
    for n in range(means.shape[1]):
        phase = _phase(means[:, n], moved.shape[1])
        place = means[:, n] + moved[sprite_class[:, n], phase[:, 1], phase[:, 0]]
        near = Window.around(place[:, None], renderer.radius, renderer.image_size)
        within = (near.centre[:, 0] == place.round()).all(-1)
        rest = render_context(classes, near, objects, n, order)
        flat = near.flat[:, 0]
        v = video.gather(1, flat.flatten(1)[..., None].expand(-1, -1, video.shape[-1]))
        clear = rest.transmittance[..., None]
        toward = clear * (classes.colours[sprite_class[:, n]][:, None, None] - rest.behind)
        left = v.view(*flat.shape, -1) - rest.front - clear * rest.behind
        counted = near.inside[:, 0] * (seen[:, n] & objects.present[:, n] & within)[:, None, None]
        pull = ((left * toward * classes.precision).sum(-1) * counted).flatten()
        weight = ((toward.square() * classes.precision).sum(-1) * counted).flatten()
        cells = _cells(renderer, sprite_class[:, n], _phase(place, CELLS_PER_PIXEL))
        sums.pull.view(-1).index_add_(0, cells, pull)
        sums.weight.view(-1).index_add_(0, cells, weight)
    unit = classes.precision.mean()  # so that weights are squared contrasts
    return CellStatistics(sums.pull / unit, sums.weight / unit)


@torch.no_grad()
def set_sprite_tables(renderer: LayeredRenderer, sums: CellStatistics) -> None:
    """Set the tables to the least-squares opacities; cells without data keep theirs.

    Law: a shifted and warped table is corrected
    (test_a_shifted_and_warped_table_is_corrected).
    """
    before = -torch.expm1(-renderer.root_depth.square())
    opacity = (sums.pull + TABLE_WEIGHT * before) / (sums.weight + TABLE_WEIGHT)
    renderer.root_depth.copy_((-torch.log1p(-opacity.clamp(0, 1 - DARKEST))).sqrt())


@torch.no_grad()
def refit_classes(
    renderer: LayeredRenderer, batches: Callable[[], Iterator[InferredBatch]], reduce: Reduce
) -> None:
    """Fit the sprite classes to batches of clips, inferred with the current renderer.

    The likelihood does not identify which point of an object is its position: a shifted table with
    positions shifted the other way explains frames as well, and so does one with cells of unequal
    width. Training ends with offsets of a few hundredths of a pixel, too much for a posterior that
    is a twentieth of a pixel wide. The position is therefore the centre of mass. [Choice 35]
    """
    for _ in range(ROUNDS):
        sums = torch.zeros(2, *renderer.root_depth.shape).to(renderer.root_depth)
        for batch in batches():
            sums += torch.stack(sprite_cell_statistics(renderer, *batch))
        reduce(sums)
        set_sprite_tables(renderer, CellStatistics(*sums))


def _phase(place: Float[Tensor, "M 2"], phases: int) -> Tensor:
    """Return the column and row of the cell of its pixel that each position is in."""
    return ((place - place.round() + 0.5) * phases).floor().clamp(0, phases - 1).long()


def _cells(renderer: LayeredRenderer, sprite_class: Tensor, phase: Tensor) -> Tensor:
    """Return the indices of the table cells seen in the pixels around each object."""
    taps = torch.arange(1, 2 * renderer.radius + 2, device=phase.device) * CELLS_PER_PIXEL - 1
    side = renderer.root_depth.shape[-1]
    rows, columns = taps - phase[:, 1:], taps - phase[:, :1]
    cells = (sprite_class[:, None, None] * side + rows[:, :, None]) * side + columns[:, None]
    return cells.flatten()
