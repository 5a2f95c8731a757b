"""Closed-form refit of the sprite classes, with positions defined as centres of mass.

The likelihood does not identify which point of an object is its position: a shifted table with
positions shifted the other way explains frames as well, and so does one with cells of unequal
width. Training ends with offsets of a few hundredths of a pixel, too much for a posterior that is
a twentieth of a pixel wide. The position is therefore defined as the centre of mass. [Choice 35]
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.models.layers.likelihood_maps import FrameObjects, SpriteClasses, render_context
from motes.models.layers.renderer import DARKEST, LayeredRenderer
from motes.models.protocols import InferredBatch, Posterior, Reduce
from motes.models.sprites.patches import Window
from motes.models.sprites.renderer import CELLS_PER_PIXEL

ROUNDS = 2  # the second with positions inferred by the tables of the first
PRIOR_WEIGHT = 0.1  # of the previous table, in squared contrast: less than one pixel's


class CellSums(NamedTuple):
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
def cell_sums(
    renderer: LayeredRenderer,
    frames: Float[Tensor, "B T height width *channels"],
    q: Posterior,
    present: Bool[Tensor, "B N"],
    noise: Float[Tensor, "B N T 2"],
) -> CellSums:
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
    sums = CellSums(*torch.zeros(2, *renderer.root_depth.shape).to(video))
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
    return CellSums(sums.pull / unit, sums.weight / unit)


@torch.no_grad()
def set_tables(renderer: LayeredRenderer, sums: CellSums) -> None:
    """Set the tables to the least-squares opacities; cells without data keep theirs.

    Law: a shifted and warped table is corrected
    (test_a_shifted_and_warped_table_is_corrected).
    """
    before = -torch.expm1(-renderer.root_depth.square())
    opacity = (sums.pull + PRIOR_WEIGHT * before) / (sums.weight + PRIOR_WEIGHT)
    renderer.root_depth.copy_((-torch.log1p(-opacity.clamp(0, 1 - DARKEST))).sqrt())


@torch.no_grad()
def refit_classes(
    renderer: LayeredRenderer, batches: Callable[[], Iterator[InferredBatch]], reduce: Reduce
) -> None:
    """Fit the sprite classes to batches of clips, inferred with the current renderer."""
    for _ in range(ROUNDS):
        sums = torch.zeros(2, *renderer.root_depth.shape).to(renderer.root_depth)
        for batch in batches():
            sums += torch.stack(cell_sums(renderer, *batch))
        reduce(sums)
        set_tables(renderer, CellSums(*sums))


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
