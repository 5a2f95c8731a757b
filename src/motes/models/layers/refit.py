"""Kinds fitted once more to all that was found, with objects where their mass is.

Frames do not say which point of an object is its place. A table that is shifted explains them as
well with places shifted the other way, and so does one whose cells are of unequal width: within
a pixel, any relabelling of places is as good. What learning ends in is a little of both, a few
hundredths of a pixel, and a q that knows places to a twentieth is then wrong too often. So the
place of an object is said to be its centre of mass, and tables are fitted in closed form.
[Choice 35]
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

REFITS = 2  # the second time objects are looked for with the kinds of the first
FEW = 0.1  # square of contrast that the table before counts for: less than one pixel's


class Sums(NamedTuple):
    """What the pixels of some frames say of each cell: opacity is pull / weight."""

    pull: Float[Tensor, "K cells cells"]
    weight: Float[Tensor, "K cells cells"]


def drift(renderer: LayeredRenderer) -> Float[Tensor, "K phases phases 2"]:
    """How far the centre of mass of each kind is from its place, in pixels, by where that is."""
    opacity = renderer.opacities()
    phases, radius = opacity.shape[1], renderer.radius
    taps = torch.arange(-radius, radius + 1).to(opacity)
    places = ((torch.arange(phases) + 0.5) / phases - 0.5).to(opacity)
    mass = opacity.sum((-2, -1)).clamp(min=1e-6)
    x = (opacity.sum(-2) * taps).sum(-1) / mass - places
    y = (opacity.sum(-1) * taps).sum(-1) / mass - places[:, None]
    return torch.stack([x, y], -1)


@torch.no_grad()
def gather(
    renderer: LayeredRenderer,
    frames: Float[Tensor, "B T height width *channels"],
    q: Posterior,
    present: Bool[Tensor, "B N"],
    noise: Float[Tensor, "B N T 2"],
) -> Sums:
    """What frames say of the kinds, given a draw of where objects are.

    With what stands before an object and behind it known, its pixel is v = front + clear
    (behind + a (colour - behind)): linear in the opacity a, which is fitted by least squares.
    """
    assert q.detected is not None
    T, kinds, moved = q.detected.shape[2], SpriteClasses.fine(renderer, 0), drift(renderer)
    kind, order = q.appearance.of_frames(T)
    means, seen = (
        part.transpose(1, 2).flatten(0, 1)
        for part in (renderer.to_pixels(q.draw(noise)), q.detected)
    )
    cast = FrameObjects(means, kind, present.repeat_interleave(T, 0))
    video = renderer.with_channels(frames).flatten(0, 1).flatten(1, 2)
    sums = Sums(*torch.zeros(2, *renderer.root_depth.shape).to(video))
    for n in range(means.shape[1]):
        phase = _phase(means[:, n], moved.shape[1])
        place = means[:, n] + moved[kind[:, n], phase[:, 1], phase[:, 0]]
        near = Window.around(place[:, None], renderer.radius, renderer.image_size)
        within = (near.centre[:, 0] == place.round()).all(-1)
        rest = render_context(kinds, near, cast, n, order)
        flat = near.flat[:, 0]
        v = video.gather(1, flat.flatten(1)[..., None].expand(-1, -1, video.shape[-1]))
        clear = rest.transmittance[..., None]
        toward = clear * (kinds.colours[kind[:, n]][:, None, None] - rest.behind)
        left = v.view(*flat.shape, -1) - rest.front - clear * rest.behind
        counted = near.inside[:, 0] * (seen[:, n] & cast.present[:, n] & within)[:, None, None]
        pull = ((left * toward * kinds.precision).sum(-1) * counted).flatten()
        weight = ((toward.square() * kinds.precision).sum(-1) * counted).flatten()
        cells = _cells(renderer, kind[:, n], _phase(place, CELLS_PER_PIXEL))
        sums.pull.view(-1).index_add_(0, cells, pull)
        sums.weight.view(-1).index_add_(0, cells, weight)
    unit = kinds.precision.mean()  # so that weights are squares of contrast
    return Sums(sums.pull / unit, sums.weight / unit)


@torch.no_grad()
def refit(renderer: LayeredRenderer, sums: Sums) -> None:
    """Sets the tables to what the sums say, or leaves a cell of which they say nothing.

    Law: a table that was shifted and warped is mended
    (test_a_shifted_and_warped_table_is_mended).
    """
    before = -torch.expm1(-renderer.root_depth.square())
    opacity = (sums.pull + FEW * before) / (sums.weight + FEW)
    renderer.root_depth.copy_((-torch.log1p(-opacity.clamp(0, 1 - DARKEST))).sqrt())


@torch.no_grad()
def refit_classes(
    renderer: LayeredRenderer, batches: Callable[[], Iterator[InferredBatch]], reduce: Reduce
) -> None:
    """Fits kinds of object to what is found in batches of clips with the renderer as it is."""
    for _ in range(REFITS):
        sums = torch.zeros(2, *renderer.root_depth.shape).to(renderer.root_depth)
        for batch in batches():
            sums += torch.stack(gather(renderer, *batch))
        reduce(sums)
        refit(renderer, Sums(*sums))


def _phase(place: Float[Tensor, "M 2"], phases: int) -> Tensor:
    """The column and the row of cells of its pixel that each place is in."""
    return ((place - place.round() + 0.5) * phases).floor().clamp(0, phases - 1).long()


def _cells(renderer: LayeredRenderer, kind: Tensor, phase: Tensor) -> Tensor:
    """The cells of the tables that pixels around objects show, one object after the other."""
    taps = (
        torch.arange(2 * renderer.radius + 1, device=phase.device) * CELLS_PER_PIXEL
        + CELLS_PER_PIXEL
        - 1
    )
    side = renderer.root_depth.shape[-1]
    rows, columns = taps - phase[:, 1:], taps - phase[:, :1]
    cells = (kind[:, None, None] * side + rows[:, :, None]) * side + columns[:, None]
    return cells.flatten()
