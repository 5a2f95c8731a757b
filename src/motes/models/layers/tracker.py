"""Pictures to positions: the search of `tracker`, for kinds of objects and their order as well."""

from collections.abc import Iterator

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman import mixture
from motes.models.layers.likelihood_maps import SpriteClasses
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.search import (
    explained_llr,
    forward_pass,
    order_depth,
    refine_positions,
    revisit,
    select_likelier,
)
from motes.models.sprites.forward_pass import Scene
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks
from motes.models.sprites.leave_one_out import expect
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.tracker import FINE_WINDOW, begun_later, best_of


@torch.no_grad()
def search_layers(
    scene: Scene[LayeredRenderer], hypotheses: int = 1, *, window: int
) -> PosteriorBlocks:
    """Return q(a | v), a stretch of frames at a time, as often as it is asked for.

    All of q is as it was found: neighbouring cells look different here, so that none has to be
    tried against what it seems.

    Args:
        scene: frames, and the model that says where to look and how objects look.
        hypotheses: searches to choose from by the bound, as in `Tracker.search`.
        window: pixels that an object may be away from its prediction, along each axis.
    """
    if hypotheses == 1 or scene.present.shape[1] == 1:
        found = _search(scene, scene.observed, window)
    else:
        many = scene.repeated(hypotheses)
        place, expected, appearance = _search(many, begun_later(scene.observed, hypotheses), window)
        best = best_of(_bound(many, place, expected, appearance), hypotheses)
        found = place.select(best), expected.select(best), appearance.select(best)
    return lambda: _stretches(scene, *found)


def _search(
    scene: Scene[LayeredRenderer], trusted: Bool[Tensor, "B T"], window: int
) -> tuple[PixelGaussian, PixelGaussian, Appearance]:
    """Follow the objects through the trusted frames, then look everywhere.

    What comes out is where they are, where the other frames say that they are, and their looks.
    """
    coarse = SpriteClasses.coarse(scene.renderer, window)
    found, sprite_class = forward_pass(scene, coarse, trusted)
    expected = expect(scene, found)
    place = PixelGaussian.where(trusted[:, None].expand_as(found.seen), found.place, expected)
    anyhow = torch.arange(sprite_class.shape[1], device=sprite_class.device).expand_as(sprite_class)
    appearance = order_depth(scene, place.mean, Appearance(sprite_class, anyhow))
    found, appearance = revisit(scene, coarse, place, appearance, expected)
    expected = expect(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Objects that were mistaken for one another stay so when one is looked for at a time, each
    # being held where the other should be found: so once from where all are expected.
    again, appearance = revisit(scene, coarse, expected, appearance, expected)
    found = select_likelier(scene, found, again, appearance, expected)
    expected = expect(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Finely: until now the others stood where a coarse look left them.
    found, appearance = revisit(
        scene, SpriteClasses.fine(scene.renderer, FINE_WINDOW), found.place, appearance, expected
    )
    return found.place, expected, order_depth(scene, found.place.mean, appearance)


@torch.no_grad()
def _stretches(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Iterator[tuple[slice, GridPosterior]]:
    """q, the weights of cells around the places found, a stretch of frames at a time."""
    fine = SpriteClasses.fine(scene.renderer, FINE_WINDOW)
    for time, cells, seen in refine_positions(scene, fine, place, appearance, expected):
        there = PixelGaussian(*(part[:, :, time] for part in expected))
        yield (
            time,
            GridPosterior.of(cells, seen, there, scene.renderer)._replace(appearance=appearance),
        )


def _bound(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Float[Tensor, " B"]:
    """The bound at the means of q, up to what is the same for all searches of a clip."""
    parts = [
        (q.means, q.seen, q.entropy()) for _, q in _stretches(scene, place, expected, appearance)
    ]
    means, seen, entropy = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    of_objects = entropy.sum(-1) + mixture.log_prior(scene.dynamics, means, seen).float()
    nats = explained_llr(scene, scene.renderer.to_pixels(means), appearance).sum(1)
    nats = nats + scene.renderer.log_prior(appearance, scene.present)
    return nats + torch.where(scene.present, of_objects, 0.0).sum(1)
