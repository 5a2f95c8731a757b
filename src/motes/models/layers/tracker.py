"""Pictures to positions: the search of `tracker`, for kinds of objects and their order as well."""

from collections.abc import Iterator

import torch

from motes.core.axes import Bool, Float, Tensor
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
from motes.models.sprites.forward_pass import Scene, predict_from_other_frames
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.tracker import FINE_WINDOW, GridInference, best_hypothesis, delayed_starts


class LayeredTracker(GridInference):
    """The search of `Tracker`, for sprite classes and depth order as well."""

    @torch.no_grad()
    def search(
        self, scene: Scene[LayeredRenderer], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames.

        `explore` has no effect: neighbouring cells differ enough that none is missed.

        Args:
            scene: frames, dynamics and renderer.
            hypotheses: searches to choose from by the bound, as in `Tracker.search`.
            explore: ignored.
        """
        if hypotheses == 1 or scene.present.shape[1] == 1:
            found = _search(scene, scene.observed, self.window)
        else:
            many = scene.repeated(hypotheses)
            starts = delayed_starts(scene.observed, hypotheses)
            place, expected, appearance = _search(many, starts, self.window)
            best = best_hypothesis(_bound(many, place, expected, appearance), hypotheses)
            found = place.select(best), expected.select(best), appearance.select(best)
        return lambda: _blocks(scene, *found)


def _search(
    scene: Scene[LayeredRenderer], trusted: Bool[Tensor, "B T"], window: int
) -> tuple[PixelGaussian, PixelGaussian, Appearance]:
    """Follow the objects through the trusted frames, then look everywhere.

    What comes out is where they are, where the other frames say that they are, and their looks.
    """
    coarse = SpriteClasses.coarse(scene.renderer, window)
    found, sprite_class = forward_pass(scene, coarse, trusted)
    expected = predict_from_other_frames(scene, found)
    place = PixelGaussian.where(trusted[:, None].expand_as(found.detected), found.place, expected)
    anyhow = torch.arange(sprite_class.shape[1], device=sprite_class.device).expand_as(sprite_class)
    appearance = order_depth(scene, place.mean, Appearance(sprite_class, anyhow))
    found, appearance = revisit(scene, coarse, place, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Objects that were mistaken for one another stay so when one is looked for at a time, each
    # being held where the other should be found: so once from where all are expected.
    again, appearance = revisit(scene, coarse, expected, appearance, expected)
    found = select_likelier(scene, found, again, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Finely: until now the others stood where a coarse look left them.
    found, appearance = revisit(
        scene, SpriteClasses.fine(scene.renderer, FINE_WINDOW), found.place, appearance, expected
    )
    return found.place, expected, order_depth(scene, found.place.mean, appearance)


@torch.no_grad()
def _blocks(
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
        (q.means, q.detected, q.entropy()) for _, q in _blocks(scene, place, expected, appearance)
    ]
    means, seen, entropy = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    of_objects = entropy.sum(-1) + scene.dynamics.track_log_density(means, seen).float()
    nats = explained_llr(scene, scene.renderer.to_pixels(means), appearance).sum(1)
    nats = nats + scene.renderer.appearance_log_prior(appearance, scene.present)
    return nats + torch.where(scene.present, of_objects, 0.0).sum(1)
