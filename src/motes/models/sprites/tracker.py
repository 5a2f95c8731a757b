"""Frames to positions: look where the dynamics predict, and tell the dynamics what was seen."""

from collections.abc import Iterator

import torch
from torch import nn

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman import mixture
from motes.models.sprites.forward_pass import Scene, Sightings, forward_pass, revisit_blocks
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks
from motes.models.sprites.leave_one_out import expect
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.occlusion import OccludedObjects, infer_occluded
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.track_swaps import best_exchanges, gains_in_frame, gains_onwards

FINE_WINDOW = 2  # pixels around the place found in which cells are told apart
EXCHANGES = 8  # of later parts of two tracks, then of places in a frame, one after the other
EXCHANGED_FRAMES = 512  # of a clip are looked at again for them; but one is always tried
REVISITS = 2  # rounds in which one object after the other is looked for with the others held
# Of the frames up to the last seen one: where the second hypothesis begins; twice that, the third.
LATER_START = 1 / 6
NOWHERE = 1e4  # latent units: what stands there lights nothing


class Tracker(nn.Module):
    """q(a|v) by a filter that meets every frame with a prediction for every object.

        for each frame t, for each object n:
            predict    a_t^n ~ sum_k w_k N(B m_k, B P_k B' + Sigma_A), from the frames before
            look       weigh the places near the prediction by how well the frame is explained
            update     m_k, P_k and w_k by the place found; nothing, where nothing was seen
        then for all frames at once:
            look again where the other frames, earlier and later, say that the object is
            q          the weights of places in the end, a quarter of a pixel apart

    While an object is hidden it coasts on its dynamics with growing uncertainty, and identity is
    held by motion. Nothing is learned here: the search uses the renderer and the dynamics, and
    gets better as they do.

    Law: pixels of hidden frames cannot matter, and in a hidden frame an object is where the Kalman
    prediction is; tests/unit/test_tracker.py.
    """

    def __init__(self, window: int) -> None:
        """Build a tracker.

        Args:
            window: pixels that an object may be away from its prediction, along each axis.
        """
        super().__init__()
        self.window = window

    @torch.no_grad()
    def search(
        self, scene: Scene[SpriteRenderer], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v), a stretch of frames at a time, as often as it is asked for.

        No gradient passes through the search.

        Args:
            scene: frames, and the model that says where to look and how an object looks.
            hypotheses: searches to choose from by the bound. All but the first begin later in
                the clip, so that what is found wrongly at first does not lead the path astray,
                and go back from there. [Choice 26]
            explore: share of q that is spread evenly over the cells of a pixel, for learning: a
                cell that looks bad by mistake would else never be drawn, and never mended.
        """
        if hypotheses == 1 or scene.present.shape[1] == 1:
            found, expected, _ = self._search(scene, scene.observed)
        else:
            # What is hidden at first may show at any time.
            many = 2 * hypotheses if scene.renderer.models_occlusion else hypotheses
            found, expected = self._best(scene, many)
        occluded = _infer_occluded(scene, found, expected)
        return lambda: _stretches(scene, found, expected, explore, occluded)

    def _best(
        self, scene: Scene[SpriteRenderer], hypotheses: int
    ) -> tuple[Sightings, PixelGaussian]:
        """What the best of several searches of each clip found."""
        # At once: a search of one clip is many small steps, and three of them cost little more.
        many = scene.repeated(hypotheses)
        found, expected, bound = self._search(many, begun_later(scene.observed, hypotheses))
        bound = _filled(bound, many, found, expected)
        best = best_of(bound, hypotheses)
        return found.select(best), expected.select(best)

    def _search(
        self, scene: Scene[SpriteRenderer], trusted: Bool[Tensor, "B T"]
    ) -> tuple[Sightings, PixelGaussian, Float[Tensor, " B"]]:
        """Follow the objects through the trusted frames, then look everywhere.

        What comes out is where they are, where the other frames say that they are, and the bound
        where it was needed; NaN elsewhere.
        """
        coarse = SpriteTemplate.coarse(scene.renderer, self.window)
        found = forward_pass(scene, coarse, trusted)
        found, expected = self._settle(scene, coarse, found, trusted)
        unknown = torch.full((len(trusted),), torch.nan, device=trusted.device)
        if scene.present.shape[1] == 1:
            return found, expected, unknown
        return self._exchange(scene, coarse, found, expected, unknown)

    def _settle(
        self,
        scene: Scene[SpriteRenderer],
        coarse: SpriteTemplate,
        found: Sightings,
        trusted: Bool[Tensor, "B T"],
    ) -> tuple[Sightings, PixelGaussian]:
        """Look again at all frames, where the sightings in some of them say."""
        expected = expect(scene, found)
        place = PixelGaussian.where(trusted[:, None] & found.seen, found.place, expected)
        for _ in range(REVISITS):
            # One that hides shall not be taken to light what it is expected to stand before.
            occluded = _infer_occluded(scene, found, expected)
            if occluded is not None:
                place = PixelGaussian.where(found.seen, place, occluded.place)
            appearance = revisit_blocks(scene, coarse, place, expected)
            found = Sightings.joined([part for *_, part in appearance], 2)
            place, expected = found.place, expect(scene, found)
        return found, expected

    def _exchange(
        self,
        scene: Scene[SpriteRenderer],
        coarse: SpriteTemplate,
        found: Sightings,
        expected: PixelGaussian,
        bound: Float[Tensor, " B"],
    ) -> tuple[Sightings, PixelGaussian, Float[Tensor, " B"]]:
        """Let two objects exchange parts of their tracks, where the bound rises. [Choice 30]."""
        rounds = min(max(EXCHANGED_FRAMES // scene.observed.shape[1], 1), EXCHANGES)
        for onwards in (True, False):
            clips = torch.arange(len(scene.present), device=scene.present.device)
            for _ in range(rounds):
                kept, before = found.select(clips), expected.select(clips)
                present = scene.present[clips]
                if onwards:
                    positions = scene.renderer.from_pixels(kept.place.mean)
                    # An object that is not there shall not keep the others from being alike.
                    seen = torch.where(present[..., None], kept.seen, kept.seen[:, :1])
                    gains = gains_onwards(scene.dynamics, positions, seen)
                else:
                    gains = gains_in_frame(kept, before)
                gain, source = best_exchanges(gains, present, onwards)
                worth = (gain > 0).nonzero()[:, 0]
                if not len(worth):
                    break
                clips, kept, before = clips[worth], kept.select(worth), before.select(worth)
                part = scene.select(clips)
                new, after = self._settle(
                    part, coarse, kept.reordered(source[worth]), part.observed
                )
                bound = bound.index_copy(0, clips, _filled(bound[clips], part, kept, before))
                reached = _bound(part, new, after)
                gained = (reached > bound[clips]).nonzero()[:, 0]
                clips = clips[gained]
                bound = bound.index_copy(0, clips, reached[gained])
                found = found.put(clips, new.select(gained))
                expected = expected.put(clips, after.select(gained))
        return found, expected, bound


def begun_later(observed: Bool[Tensor, "B T"], hypotheses: int) -> Bool[Tensor, "H T"]:
    """The frames that each hypothesis trusts at first, one hypothesis of all clips after another.

    All seen ones, then those from a part of the clip on, where any of them were seen.
    """
    time = torch.arange(observed.shape[1], device=observed.device)
    length = (observed * (time + 1)).amax(1, keepdim=True)  # what is hidden at the end is none
    trusted = [observed]
    for number in range(1, hypotheses):
        late = observed & (time >= number * LATER_START * length)
        trusted.append(torch.where(late.any(1, keepdim=True), late, observed))
    return torch.cat(trusted)


def best_of(bound: Float[Tensor, " B"], hypotheses: int) -> Int[Tensor, " clips"]:
    """The search with the highest bound for each clip, in the order of `begun_later`."""
    best: Tensor = bound.unflatten(0, (hypotheses, -1)).argmax(0)
    return best * len(best) + torch.arange(len(best), device=best.device)


def _infer_occluded(
    scene: Scene[SpriteRenderer], found: Sightings, expected: PixelGaussian
) -> OccludedObjects | None:
    """Where unseen objects hide; None of a model that does not ask. [Choice 38]."""
    if not scene.renderer.models_occlusion:
        return None
    return infer_occluded(scene, SpriteTemplate.coarse(scene.renderer, 0), found, expected)


@torch.no_grad()
def _stretches(
    scene: Scene[SpriteRenderer],
    found: Sightings,
    expected: PixelGaussian,
    explore: float = 0.0,
    occluded: OccludedObjects | None = None,
) -> Iterator[tuple[slice, GridPosterior]]:
    """q, the weights of cells around the places found, a stretch of frames at a time."""
    fine = SpriteTemplate.fine(scene.renderer, FINE_WINDOW)
    guessed = expected if occluded is None else occluded.place
    for time, cells, _ in revisit_blocks(scene, fine, found.place, expected):
        there = PixelGaussian(*(part[:, :, time] for part in guessed))
        occlusion = None if occluded is None else occluded.during(time, scene.renderer)
        seen = found.seen[:, :, time]
        yield time, GridPosterior.of(cells.blended(explore), seen, there, scene.renderer, occlusion)


def _filled(
    bound: Float[Tensor, " B"],
    scene: Scene[SpriteRenderer],
    found: Sightings,
    expected: PixelGaussian,
) -> Float[Tensor, " B"]:
    """The bound of each search, computed where it is not known yet."""
    unknown = bound.isnan().nonzero()[:, 0]
    if not len(unknown):
        return bound
    parts = scene.select(unknown), found.select(unknown), expected.select(unknown)
    return bound.index_copy(0, unknown, _bound(*parts))


def _bound(
    scene: Scene[SpriteRenderer], found: Sightings, expected: PixelGaussian
) -> Float[Tensor, " B"]:
    """The bound at the means of q, which is enough to compare one search with another.

    Where something may hide objects, those that were not seen are not drawn: the mean of two hiding
    places is none.
    """
    occluded = _infer_occluded(scene, found, expected)
    total, means = torch.zeros(len(scene.present), device=scene.present.device), []
    if occluded is not None:
        total += occluded.log_occluded.sum((1, 2))
    for time, q in _stretches(scene, found, expected):
        part = scene.during(time)
        means.append(q.means)
        drawn = means[-1]
        if occluded is not None:
            drawn = torch.where(q.seen[..., None], drawn, NOWHERE)
        nats = scene.renderer.log_likelihood(drawn, scene.present, part.frames)
        total += torch.where(part.observed, nats, 0.0).sum(1)
        total += torch.where(scene.present, q.entropy().sum(-1), 0.0).sum(1)
    prior = mixture.log_prior(scene.dynamics, torch.cat(means, 2), found.seen).float()
    return total + torch.where(scene.present, prior, 0.0).sum(1)
