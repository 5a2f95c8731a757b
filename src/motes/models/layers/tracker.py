"""q(a | v) of the layered family: the sprite search, with sprite classes and depth order."""

from collections.abc import Iterator

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.models.layers.likelihood_maps import SpriteClasses
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.search import (
    forward_pass,
    frame_llr,
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
    """Run the forward pass over the trusted frames, then refine all frames.

    Returns positions, leave-one-out predictions and the appearance.
    """
    coarse = SpriteClasses.coarse(scene.renderer, window)
    found, sprite_class = forward_pass(scene, coarse, trusted)
    expected = predict_from_other_frames(scene, found)
    place = PixelGaussian.where(trusted[:, None].expand_as(found.detected), found.place, expected)
    order = torch.arange(sprite_class.shape[1], device=sprite_class.device).expand_as(sprite_class)
    appearance = order_depth(scene, place.mean, Appearance(sprite_class, order))
    found, appearance = revisit(scene, coarse, place, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Objects with swapped identities stay so when one is evaluated at a time, since each occupies
    # the position of the other. Hence once with all objects at their predictions.
    again, appearance = revisit(scene, coarse, expected, appearance, expected)
    found = select_likelier(scene, found, again, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    fine = SpriteClasses.fine(scene.renderer, FINE_WINDOW)
    found, appearance = revisit(scene, fine, found.place, appearance, expected)
    return found.place, expected, order_depth(scene, found.place.mean, appearance)


@torch.no_grad()
def _blocks(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Iterator[tuple[slice, GridPosterior]]:
    """Yield q, the weights of cells around the detections, in blocks of frames."""
    fine = SpriteClasses.fine(scene.renderer, FINE_WINDOW)
    for time, cells, detected in refine_positions(scene, fine, place, appearance, expected):
        q = GridPosterior.of(cells, detected, expected.during(time), scene.renderer)
        yield time, q._replace(appearance=appearance)


def _bound(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q, up to terms that all searches of a clip share."""
    parts = [
        (q.means, q.detected, q.entropy()) for _, q in _blocks(scene, place, expected, appearance)
    ]
    means, detected, entropy = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    of_objects = entropy.sum(-1) + scene.dynamics.track_log_density(means, detected).float()
    nats = frame_llr(scene, scene.renderer.to_pixels(means), appearance).sum(1)
    nats = nats + scene.renderer.appearance_log_prior(appearance, scene.present)
    return nats + torch.where(scene.present, of_objects, 0.0).sum(1)
