"""Pictures to positions: the search of `tracker`, for kinds of objects and their order as well."""

import torch

from motes import mixture
from motes.lgssm import Dynamics
from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.expecting import expect_by
from motes.structured.picture import Looks, PictureRenderer
from motes.structured.picture_search import Kinds, Photos, arrange, follow, likelier, revisit
from motes.structured.places import chosen
from motes.structured.posterior import OF_OBJECTS, PlacePosterior
from motes.structured.tracker import FINE_WINDOW, begun_later

FINE_LOOKS = 2  # the first time, the others stand where a coarse look left them


@torch.no_grad()
def track_pictures(
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    dynamics: Dynamics,
    renderer: PictureRenderer,
    observed: Bool[Tensor, "B T"] | None,
    hypotheses: int,
    *,
    window: int,
) -> PlacePosterior:
    """Return q(a | v) with a slot for each object that the fullest clip holds.

    All of q is as it was found: neighbouring cells look different here, so that none has to be
    tried against what it seems.

    Args:
        frames: values in [0, 1].
        num_objects: objects in each clip.
        dynamics: say where to look.
        renderer: says how objects look.
        observed: which frames were seen (all, if None).
        hypotheses: searches to choose from by the bound, as in `Tracker.track`.
        window: pixels that an object may be away from its prediction, along each axis.
    """
    if observed is None:
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    most = int(num_objects.max())
    present = torch.arange(most, device=frames.device) < num_objects[:, None]
    pictures = renderer.as_channels(frames)
    scene = Photos(pictures, observed, num_objects, present, dynamics, renderer)
    if hypotheses == 1 or most == 1:
        return _search(scene, observed, window)
    many = scene.repeated(hypotheses)
    q = _search(many, begun_later(observed, hypotheses), window)
    best = _bound(many, q).unflatten(0, (hypotheses, -1)).argmax(0)
    best = best * len(frames) + torch.arange(len(frames), device=frames.device)
    parts = {name: getattr(q, name)[best] for name in OF_OBJECTS}
    looks = None if q.looks is None else q.looks.taken(best)
    return q._replace(looks=looks, **parts)


def _search(scene: Photos, trusted: Bool[Tensor, "B T"], window: int) -> PlacePosterior:
    """Follow the objects through the trusted frames, then look everywhere."""
    dynamics, renderer = scene.dynamics, scene.renderer
    coarse, fine = Kinds.coarse(renderer), Kinds.fine(renderer)
    found, kind = follow(scene, coarse, trusted, window)
    expected = expect_by(dynamics, renderer, found)
    place = chosen(trusted[:, None].expand_as(found.seen), found.place, expected)
    anyhow = torch.arange(kind.shape[1], device=kind.device).expand_as(kind)
    looks = arrange(scene, place.mean, Looks(kind, anyhow))
    _, found, looks = revisit(scene, coarse, place, looks, expected, window)
    expected = expect_by(dynamics, renderer, found)
    looks = arrange(scene, found.place.mean, looks)
    # Objects that were mistaken for one another stay so when one is looked for at a time, each
    # being held where the other should be found: so once from where all are expected.
    _, again, looks = revisit(scene, coarse, expected, looks, expected, window)
    found = likelier(scene, found, again, looks, expected)
    place, expected = found.place, expect_by(dynamics, renderer, found)
    looks = arrange(scene, place.mean, looks)
    for _ in range(FINE_LOOKS):
        cells, found, looks = revisit(scene, fine, place, looks, expected, FINE_WINDOW)
        place = found.place
    looks = arrange(scene, found.place.mean, looks)
    return PlacePosterior.of(cells, found.seen, expected, renderer)._replace(looks=looks)


def _bound(scene: Photos, q: PlacePosterior) -> Float[Tensor, " B"]:
    """The bound at the means of q, which is enough to compare one search with another."""
    present, renderer = scene.present, scene.renderer
    assert q.looks is not None
    nats = renderer.log_likelihood(q.means, present, scene.frames, q.looks)
    explained = torch.where(scene.observed, nats, 0.0).sum(1) + renderer.log_prior(q.looks, present)
    prior = mixture.log_prior(scene.dynamics, q.means, q.seen).float()
    return explained + torch.where(present, q.entropy().sum(-1) + prior, 0.0).sum(1)
