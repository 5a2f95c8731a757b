"""q(a | v) of the sprite family: search where the dynamics predict, refine, undo identity swaps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman import DENSE_FRAMES
from motes.models.protocols import Search
from motes.models.sprites.forward_pass import (
    Detections,
    Scene,
    forward_pass,
    predict_from_other_frames,
    revisit_blocks,
    scene_of,
)
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks, StreamedPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.occlusion import OccludedObjects, infer_occluded
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.track_swaps import best_swaps, frame_swap_gains

MAX_OBJECTS = 16
FINE_WINDOW = 2  # pixels around a detection in which sub-pixel cells are evaluated
MAX_SWAPS = 8  # rounds of swaps from a frame on, then in single frames
SWAP_FRAMES = 512  # frames refined again for swaps; at least one round is always made
REVISITS = 2  # rounds of coordinate ascent, one object at a time with the others fixed
# The second hypothesis starts after this share of the frames, the third after twice that.
LATER_START = 1 / 6
OFF_FRAME = 1e4  # latent units; an object there lights no pixel
# Peak memory as measured, in bytes: per position, and per component, hypothesis, position and
# other frame of a short clip, whose covariance is a dense matrix.
BYTES_PER_POSITION, BYTES_PER_PAIR = 6_000, 150


class GridInference(nn.Module):
    """Inference by search, with a posterior over grid cells. Without parameters."""

    requires_zeroed_frames = False
    exchangeable = True

    def __init__(self, window: int) -> None:
        """Set the search window.

        Args:
            window: pixels that an object may be away from its prediction, along each axis.
        """
        super().__init__()
        self.window = window

    @torch.no_grad()
    def infer(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        *,
        dynamics: Any,
        renderer: Any,
        slots: int,
        search: Search,
    ) -> GridPosterior | StreamedPosterior:
        """Return q(a | v); no gradient passes through the search."""
        scene = scene_of(renderer.with_channels(frames), num_objects, dynamics, renderer, observed)
        found = self.search(scene, search.hypotheses, search.explore)

        def blocks() -> Iterator[tuple[slice, GridPosterior]]:
            return ((time, q.widened(slots)) for time, q in found())

        if search.stream_after is not None and frames.shape[1] > search.stream_after:
            return StreamedPosterior.of(blocks)
        return GridPosterior.joined(blocks)

    def search(
        self, scene: Scene[Any], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames."""
        raise NotImplementedError

    def max_objects(self, trained: int) -> int:
        """Return the largest count that can be searched for."""
        return MAX_OBJECTS

    def bytes_per_clip(self, num_objects: int, num_frames: int, num_components: int) -> int:
        """Return the peak memory of `infer` for each of many clips."""
        positions = num_objects * num_frames
        if num_frames > DENSE_FRAMES:
            return BYTES_PER_POSITION * positions
        searches = 1 if num_objects == 1 else 3
        pairs = BYTES_PER_PAIR * searches * num_components * num_frames
        return (BYTES_PER_POSITION + pairs) * positions


class Tracker(GridInference):
    """q(a | v) by a forward pass with a prediction for every object, then refinement.

        for each frame t, for each object n:
            predict    a_t^n ~ sum_k w_k N(B m_k, B P_k B' + Sigma_A), from the frames before
            evaluate   weights of positions near the prediction by how well the frame is explained
            update     m_k, P_k and w_k by the detection; nothing, where nothing was detected
        then for all frames at once:
            evaluate again around the leave-one-out prediction from all other frames
            q          the final weights of cells, a quarter of a pixel apart

    An undetected object follows its dynamics with growing uncertainty, and identity is kept by
    motion. Nothing is learned here: the search improves as the renderer and the dynamics do.

    Law: pixels of unobserved frames cannot matter, and in an unobserved frame an object is at the
    Kalman prediction; tests/models/sprites/test_tracker.py.
    """

    @torch.no_grad()
    def search(
        self, scene: Scene[SpriteRenderer], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames.

        Args:
            scene: frames, dynamics and renderer.
            hypotheses: searches to choose from by the bound. All but the first start later in the
                clip and go back from there, so that a wrong first detection does not decide the
                whole track. [Choice 26]
            explore: share of q that is spread evenly over the cells of a pixel, for training: a
                cell that is wrongly given no weight would never be drawn, and never corrected.
        """
        if hypotheses == 1 or scene.present.shape[1] == 1:
            found, expected, _ = self._search(scene, scene.observed)
        else:
            # An object that is occluded at first may appear at any time.
            many = 2 * hypotheses if scene.renderer.models_occlusion else hypotheses
            found, expected = self._best_search(scene, many)
        occluded = _infer_occluded(scene, found, expected)
        return lambda: _blocks(scene, found, expected, explore, occluded)

    def _best_search(
        self, scene: Scene[SpriteRenderer], hypotheses: int
    ) -> tuple[Detections, PixelGaussian]:
        """Return the detections and predictions of the best of several searches of each clip."""
        # Batched: a search is many small steps, so several cost little more than one.
        many = scene.repeated(hypotheses)
        found, expected, bound = self._search(many, delayed_starts(scene.observed, hypotheses))
        bound = _filled(bound, many, found, expected)
        best = best_hypothesis(bound, hypotheses)
        return found.select(best), expected.select(best)

    def _search(
        self, scene: Scene[SpriteRenderer], trusted: Bool[Tensor, "B T"]
    ) -> tuple[Detections, PixelGaussian, Float[Tensor, " B"]]:
        """Run the forward pass over the trusted frames, then refine all frames.

        Returns detections, leave-one-out predictions, and the bound where it was computed (NaN
        elsewhere).
        """
        coarse = SpriteTemplate.coarse(scene.renderer, self.window)
        found = forward_pass(scene, coarse, trusted)
        found, expected = self._refine(scene, coarse, found, trusted)
        unknown = torch.full((len(trusted),), torch.nan, device=trusted.device)
        if scene.present.shape[1] == 1:
            return found, expected, unknown
        return self._undo_swaps(scene, coarse, found, expected, unknown)

    def _refine(
        self,
        scene: Scene[SpriteRenderer],
        coarse: SpriteTemplate,
        found: Detections,
        trusted: Bool[Tensor, "B T"],
    ) -> tuple[Detections, PixelGaussian]:
        """Refine all frames around the predictions from the detections of the trusted ones."""
        expected = predict_from_other_frames(scene, found)
        place = PixelGaussian.where(trusted[:, None] & found.detected, found.place, expected)
        for _ in range(REVISITS):
            # An occluded object must not explain lit pixels at its predicted position.
            occluded = _infer_occluded(scene, found, expected)
            if occluded is not None:
                place = PixelGaussian.where(found.detected, place, occluded.place)
            appearance = revisit_blocks(scene, coarse, place, expected)
            found = Detections.joined([part for *_, part in appearance], 2)
            place, expected = found.place, predict_from_other_frames(scene, found)
        return found, expected

    def _undo_swaps(
        self,
        scene: Scene[SpriteRenderer],
        coarse: SpriteTemplate,
        found: Detections,
        expected: PixelGaussian,
        bound: Float[Tensor, " B"],
    ) -> tuple[Detections, PixelGaussian, Float[Tensor, " B"]]:
        """Swap parts of the tracks of two objects where that raises the bound. [Choice 30]."""
        rounds = min(max(SWAP_FRAMES // scene.observed.shape[1], 1), MAX_SWAPS)
        for persistent in (True, False):
            clips = torch.arange(len(scene.present), device=scene.present.device)
            for _ in range(rounds):
                kept, before = found.select(clips), expected.select(clips)
                present = scene.present[clips]
                if persistent:
                    positions = scene.renderer.from_pixels(kept.place.mean)
                    # Absent objects get the mask of the first, so that masks can be shared.
                    detected = torch.where(present[..., None], kept.detected, kept.detected[:, :1])
                    gains = scene.dynamics.swap_gains(positions, detected)
                else:
                    gains = frame_swap_gains(kept, before)
                gain, source = best_swaps(gains, present, persistent)
                worth = (gain > 0).nonzero()[:, 0]
                if not len(worth):
                    break
                clips, kept, before = clips[worth], kept.select(worth), before.select(worth)
                part = scene.select(clips)
                new, after = self._refine(
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


def delayed_starts(observed: Bool[Tensor, "B T"], hypotheses: int) -> Bool[Tensor, "H T"]:
    """Return the frames that each hypothesis starts from, hypotheses outermost.

    All observed frames for the first; then those after a share of the clip, where there are any.
    """
    time = torch.arange(observed.shape[1], device=observed.device)
    length = (observed * (time + 1)).amax(
        1, keepdim=True
    )  # unobserved frames at the end do not count
    trusted = [observed]
    for number in range(1, hypotheses):
        late = observed & (time >= number * LATER_START * length)
        trusted.append(torch.where(late.any(1, keepdim=True), late, observed))
    return torch.cat(trusted)


def best_hypothesis(bound: Float[Tensor, " B"], hypotheses: int) -> Int[Tensor, " clips"]:
    """Return the search with the highest bound for each clip, in the order of `delayed_starts`."""
    best: Tensor = bound.unflatten(0, (hypotheses, -1)).argmax(0)
    return best * len(best) + torch.arange(len(best), device=best.device)


def _infer_occluded(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> OccludedObjects | None:
    """Return the posterior of undetected objects; None without an occlusion model. [Choice 38]."""
    if not scene.renderer.models_occlusion:
        return None
    return infer_occluded(scene, SpriteTemplate.coarse(scene.renderer, 0), found, expected)


@torch.no_grad()
def _blocks(
    scene: Scene[SpriteRenderer],
    found: Detections,
    expected: PixelGaussian,
    explore: float = 0.0,
    occluded: OccludedObjects | None = None,
) -> Iterator[tuple[slice, GridPosterior]]:
    """Yield q, the weights of cells around the detections, in blocks of frames."""
    fine = SpriteTemplate.fine(scene.renderer, FINE_WINDOW)
    prior = expected if occluded is None else occluded.place
    for time, cells, _ in revisit_blocks(scene, fine, found.place, expected):
        there = PixelGaussian(*(part[:, :, time] for part in prior))
        occlusion = None if occluded is None else occluded.during(time, scene.renderer)
        seen = found.detected[:, :, time]
        yield time, GridPosterior.of(cells.blended(explore), seen, there, scene.renderer, occlusion)


def _filled(
    bound: Float[Tensor, " B"],
    scene: Scene[SpriteRenderer],
    found: Detections,
    expected: PixelGaussian,
) -> Float[Tensor, " B"]:
    """Return the bound of each search, computed where it is NaN."""
    unknown = bound.isnan().nonzero()[:, 0]
    if not len(unknown):
        return bound
    parts = scene.select(unknown), found.select(unknown), expected.select(unknown)
    return bound.index_copy(0, unknown, _bound(*parts))


def _bound(
    scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q, which suffices to compare searches.

    With an occlusion model, undetected objects are not rendered: the mean of two possible occluded
    positions need not be occluded.
    """
    occluded = _infer_occluded(scene, found, expected)
    total, means = torch.zeros(len(scene.present), device=scene.present.device), []
    if occluded is not None:
        total += occluded.log_occluded.sum((1, 2))
    for time, q in _blocks(scene, found, expected):
        part = scene.during(time)
        means.append(q.means)
        drawn = means[-1]
        if occluded is not None:
            drawn = torch.where(q.detected[..., None], drawn, OFF_FRAME)
        nats = scene.renderer.log_likelihood(drawn, scene.present, part.frames)
        total += torch.where(part.observed, nats, 0.0).sum(1)
        total += torch.where(scene.present, q.entropy().sum(-1), 0.0).sum(1)
    prior = scene.dynamics.track_log_density(torch.cat(means, 2), found.detected).float()
    return total + torch.where(scene.present, prior, 0.0).sum(1)
