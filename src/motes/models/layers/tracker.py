"""Pictures to positions: the search of `tracker`, for kinds of objects and their order as well."""

from collections.abc import Iterator

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman import mixture
from motes.models.layers.likelihood_maps import Kinds
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.search import (
    arrange,
    explained,
    follow,
    likelier,
    look_closely,
    revisit,
)
from motes.models.sprites.forward_pass import Scene
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks
from motes.models.sprites.leave_one_out import expect
from motes.models.sprites.likelihood_maps import PixelGaussian, chosen
from motes.models.sprites.tracker import FINE_WINDOW, begun_later, best_of


@torch.no_grad()
def search_pictures(
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
        place, expected, looks = _search(many, begun_later(scene.observed, hypotheses), window)
        best = best_of(_bound(many, place, expected, looks), hypotheses)
        found = place.taken(best), expected.taken(best), looks.taken(best)
    return lambda: _stretches(scene, *found)


def _search(
    scene: Scene[LayeredRenderer], trusted: Bool[Tensor, "B T"], window: int
) -> tuple[PixelGaussian, PixelGaussian, Appearance]:
    """Follow the objects through the trusted frames, then look everywhere.

    What comes out is where they are, where the other frames say that they are, and their looks.
    """
    coarse = Kinds.coarse(scene.renderer, window)
    found, kind = follow(scene, coarse, trusted)
    expected = expect(scene, found)
    place = chosen(trusted[:, None].expand_as(found.seen), found.place, expected)
    anyhow = torch.arange(kind.shape[1], device=kind.device).expand_as(kind)
    looks = arrange(scene, place.mean, Appearance(kind, anyhow))
    found, looks = revisit(scene, coarse, place, looks, expected)
    expected = expect(scene, found)
    looks = arrange(scene, found.place.mean, looks)
    # Objects that were mistaken for one another stay so when one is looked for at a time, each
    # being held where the other should be found: so once from where all are expected.
    again, looks = revisit(scene, coarse, expected, looks, expected)
    found = likelier(scene, found, again, looks, expected)
    expected = expect(scene, found)
    looks = arrange(scene, found.place.mean, looks)
    # Finely: until now the others stood where a coarse look left them.
    found, looks = revisit(
        scene, Kinds.fine(scene.renderer, FINE_WINDOW), found.place, looks, expected
    )
    return found.place, expected, arrange(scene, found.place.mean, looks)


@torch.no_grad()
def _stretches(
    scene: Scene[LayeredRenderer], place: PixelGaussian, expected: PixelGaussian, looks: Appearance
) -> Iterator[tuple[slice, GridPosterior]]:
    """q, the weights of cells around the places found, a stretch of frames at a time."""
    fine = Kinds.fine(scene.renderer, FINE_WINDOW)
    for time, cells, seen in look_closely(scene, fine, place, looks, expected):
        there = PixelGaussian(*(part[:, :, time] for part in expected))
        yield time, GridPosterior.of(cells, seen, there, scene.renderer)._replace(looks=looks)


def _bound(
    scene: Scene[LayeredRenderer], place: PixelGaussian, expected: PixelGaussian, looks: Appearance
) -> Float[Tensor, " B"]:
    """The bound at the means of q, up to what is the same for all searches of a clip."""
    parts = [(q.means, q.seen, q.entropy()) for _, q in _stretches(scene, place, expected, looks)]
    means, seen, entropy = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    of_objects = entropy.sum(-1) + mixture.log_prior(scene.dynamics, means, seen).float()
    nats = explained(scene, scene.renderer.to_pixels(means), looks).sum(1)
    nats = nats + scene.renderer.log_prior(looks, scene.present)
    return nats + torch.where(scene.present, of_objects, 0.0).sum(1)
