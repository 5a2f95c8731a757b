"""The layered search: against naive loops, and with objects that cross."""

import dataclasses

import pytest
import torch

from layer_scenes import crop_first_frames, disk_and_ring
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import Gaussian
from motes.models.layers import search
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.search import (
    MAX_MAHALANOBIS,
    FrameObjects,
    LayeredTracker,
    SpriteClasses,
    evaluate_window,
    refine_positions,
    render_context,
    revisit,
    select_likelier,
)
from motes.models.protocols import Pins, Search
from motes.models.sprites.grid_posterior import GridPosterior, StreamedPosterior
from motes.models.sprites.likelihood_maps import MIN_LLR, PixelGaussian
from motes.models.sprites.search import Detections, Scene, scene_of


def crossing(order: list[int], generator: torch.Generator):
    """Return a disk and a ring that cross: renderer, frames, positions and appearance."""
    renderer, time = disk_and_ring(32), torch.arange(15)
    left = torch.stack([4 + 1.7 * time, 12.3 + 0.3 * time], -1)
    right = torch.stack([28 - 1.6 * time, 17.1 - 0.2 * time], -1)
    positions = renderer.from_pixels(torch.stack([left, right])[None])
    appearance = Appearance(torch.tensor([[0, 1]]), torch.tensor([order]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), appearance).sigmoid().detach()
    noisy = drawn + 0.03 * torch.randn(drawn.shape, generator=generator)
    return renderer, noisy, positions, appearance


def scene_with(renderer, frames, generator: torch.Generator) -> Scene[LayeredRenderer]:
    dynamics = LinearDynamics(
        position_noise=0.05, initial_spread=8.0, state_noise=1e-2, generator=generator
    )
    return scene_of(frames[..., None], torch.full((len(frames),), 2), dynamics, renderer)


@torch.no_grad()
def test_a_detection_excluded_by_the_other_frames_is_rejected(generator):
    renderer, frames, positions, appearance = crossing([0, 1], generator)
    scene, classes = scene_with(renderer, frames, generator), SpriteClasses.coarse(renderer, 7)
    truth = renderer.to_pixels(positions)
    sharp = 0.25 * torch.eye(2).expand(*truth.shape, 2)
    elsewhere = truth.clone()
    elsewhere[0, 0, 3] += 3.0  # six standard deviations from its detection
    guess, expected = PixelGaussian(truth, sharp), PixelGaussian(elsewhere, sharp)
    found, _ = revisit(scene, classes, guess, appearance, expected)
    assert not found.detected[0, 0, 3]
    assert torch.equal(found.place.mean[0, 0, 3], elsewhere[0, 0, 3])
    others = torch.arange(15) != 3
    assert found.detected[0, 0, others].float().mean() > 0.9


@torch.no_grad()
def test_the_likelier_detections_of_each_frame_are_kept(generator):
    renderer, frames, positions, appearance = crossing([0, 1], generator)
    scene, truth = scene_with(renderer, frames, generator), renderer.to_pixels(positions)
    expected = PixelGaussian(truth, torch.eye(2).expand(*truth.shape, 2))
    seen = torch.ones(1, 2, 15, dtype=torch.bool)
    exchanged = truth.clone()
    exchanged[:, :, :5] = truth.flip(1)[:, :, :5]
    moved = truth.clone()
    moved[:, :, 5:] += 1.0
    one, other = (
        Detections(PixelGaussian(mean, expected.covariance), seen) for mean in (exchanged, moved)
    )
    assert torch.equal(select_likelier(scene, one, other, appearance, expected).place.mean, truth)
    assert torch.equal(select_likelier(scene, other, one, appearance, expected).place.mean, truth)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_crossing_objects_keep_their_class_and_the_depth_order_is_found(order, generator):
    renderer, frames, positions, _ = crossing(order, generator)
    scene = scene_with(renderer, frames, generator)
    q = GridPosterior.joined([q for _, q in LayeredTracker(7).search(scene)()])
    assert q.appearance is not None
    assert q.appearance.sprite_class.tolist() == [[0, 1]]
    assert q.appearance.order.tolist() == [order]
    seen = renderer.to_pixels(q.means)[q.detected]
    gap = (seen - renderer.to_pixels(positions)[q.detected]).norm(dim=-1)
    assert q.detected.float().mean() > 0.9
    # Cells of an eighth of a pixel, and noise of 0.03 for a contrast of 0.5 over the twenty pixels
    # of an edge: well below half a pixel.
    assert gap.max() < 0.5


@pytest.fixture
def two_clips(generator):
    """Two clips in which a disk and a ring cross, one in reverse; some frames are unobserved."""
    renderer, frames, positions, appearance = crossing([1, 0], generator)
    scene = scene_with(renderer, torch.cat([frames, frames.flip(1)]), generator)
    scene = dataclasses.replace(scene, observed=torch.rand(2, 15, generator=generator) < 0.8)
    truth = renderer.to_pixels(torch.cat([positions, positions.flip(2)]))
    return scene, truth, Appearance(*(part.expand(2, 2) for part in appearance))


@torch.no_grad()
@pytest.mark.parametrize("at_once", [1, 2 * 2 * 4, 10_000])
def test_layered_revisit_equals_a_loop_over_objects_and_frames(
    at_once, two_clips, generator, monkeypatch
):
    monkeypatch.setattr(search, "CHUNK_FRAMES", at_once)  # frames of each object: of 15
    scene, truth, appearance = two_clips
    # The last frames alone are evidence for the other classes.
    places, other = (
        scene.renderer.from_pixels(truth[:, :, 12:]),
        appearance._replace(sprite_class=1 - appearance.sprite_class),
    )
    scene.frames[:, 12:, ..., 0] = scene.renderer(places, scene.present, other).sigmoid()
    classes = SpriteClasses.coarse(scene.renderer, 3)
    spread = 0.3 * torch.eye(2).expand(*truth.shape, 2)
    guess = PixelGaussian(truth + torch.randn(truth.shape, generator=generator), spread)
    expected = PixelGaussian(truth, spread)
    found, result = revisit(scene, classes, guess, other, expected)
    for b in range(2):
        means, sprite_class = guess.mean[b].clone(), other.sprite_class[b].clone()
        for n in range(2):
            every, evidence = [], classes.log_class_prior.clone()
            for t in range(15):
                prior = PixelGaussian(
                    expected.mean[b : b + 1, n, t], expected.covariance[b : b + 1, n, t]
                )
                near = classes.window_around(means[None, n, t])
                there = FrameObjects(
                    means[None, :, t], sprite_class[None], torch.ones(1, 2, dtype=torch.bool)
                )
                rest = render_context(classes, near, there, n, appearance.order[b : b + 1])
                seen = crop_first_frames(near, scene.frames[b : b + 1, t : t + 1])
                every.append((evaluate_window(classes, seen, near, rest, prior), prior))
                if scene.observed[b, t]:
                    evidence += every[-1][0].evidence[0]
            sprite_class[n] = evidence.argmax()
            for t, (its, prior) in enumerate(every):
                window = its.select_class(sprite_class[n : n + 1])
                place = window.moments()
                away = (place.mean - prior.mean).square().sum() / 0.3
                seen = bool(
                    scene.observed[b, t]
                    and window.log_likelihood_ratio > MIN_LLR
                    and away < MAX_MAHALANOBIS
                )
                assert found.detected[b, n, t] == seen
                means[n, t] = place.mean[0] if seen else prior.mean[0]
        # The same sums; a convolution of fewer frames may add them in another order.
        torch.testing.assert_close(found.place.mean[b], means)
        assert torch.equal(result.sprite_class[b], sprite_class)
    assert torch.equal(result.sprite_class, appearance.sprite_class)


@torch.no_grad()
def test_refined_positions_lie_between_the_cells_and_are_closer_to_the_truth(
    two_clips, generator, monkeypatch
):
    monkeypatch.setattr(search, "CHUNK_FRAMES", 2 * 2 * 4)
    scene, truth, appearance = two_clips
    classes = SpriteClasses.fine(scene.renderer, 2)
    spread = 0.3 * torch.eye(2).expand(*truth.shape, 2)
    guess = PixelGaussian(truth + torch.randn(truth.shape, generator=generator), spread)
    arguments = (scene, classes, guess, appearance, PixelGaussian(truth, spread))
    found, result = revisit(*arguments)
    assert torch.equal(result.sprite_class, appearance.sprite_class)
    errors = []
    for time, cells, seen in refine_positions(*arguments):
        assert torch.equal(seen, found.detected[:, :, time])
        close, rough = cells.moments().mean[seen], found.place.mean[:, :, time][seen]
        # Half a cell, and as much again because the other object is between cells as well.
        assert bool(((close - rough).abs() < 1 / classes.phases).all())
        errors.append(torch.stack([part - truth[:, :, time][seen] for part in (close, rough)]))
    by_close, by_rough = torch.cat(errors, 1).square().mean((1, 2))
    assert by_close < by_rough


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2 * 2 * 3 * 4])
def test_layered_search_in_blocks_equals_the_search_at_once(at_once, two_clips, monkeypatch):
    scene, truth, _ = two_clips
    whole = GridPosterior.joined([q for _, q in LayeredTracker(7).search(scene, 3)()])
    monkeypatch.setattr(search, "CHUNK_FRAMES", at_once)
    blocks = LayeredTracker(7).search(scene, 3)
    assert len(list(blocks())) > 1
    pieces, long = GridPosterior.joined([q for _, q in blocks()]), StreamedPosterior.of(blocks)
    for ours in (pieces, long):
        assert torch.equal(ours.detected, whole.detected)
        assert all(map(torch.equal, ours.appearance, whole.appearance))
        # The same numbers; a convolution of fewer frames may add them in another order.
        torch.testing.assert_close(ours.means, whole.means)
        torch.testing.assert_close(ours.covariances(), whole.covariances())
        torch.testing.assert_close(ours.entropy(), whole.entropy())
    # Numbered from left to right, in the second clip the other way round.
    assert whole.appearance.sprite_class.tolist() == [[0, 1], [1, 0]]
    there = torch.stack([truth[0], truth[1].flip(0)])
    gap = (scene.renderer.to_pixels(whole.means) - there).norm(dim=-1)
    assert gap[whole.detected].max() < 0.5


@pytest.mark.parametrize("frame", [2, 12])
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_pin_decides_which_object_is_followed_and_its_class(wanted, frame, generator):
    """Of a disk and a ring one is looked for; a pin far from the track sends it to the other."""
    renderer, frames, positions, _ = crossing([0, 1], generator)
    both = scene_with(renderer, frames, generator)
    tracker, one = LayeredTracker(7), torch.tensor([1])
    other = 1 - wanted
    known = {"dynamics": both.dynamics, "renderer": renderer, "slots": 2, "search": Search()}
    seen = torch.zeros(1, 2, 15, dtype=torch.bool)
    seen[:, 0] = True
    place = torch.stack([positions[:, other], positions[:, other]], 1).double()
    sharp = 1e-3 * torch.eye(2, dtype=torch.float64).expand(1, 2, 15, 2, 2)
    start = Appearance(torch.tensor([[other, 0]]), torch.tensor([[1, 0]]))
    pinned = torch.zeros_like(seen)
    pinned[0, 0, frame] = True
    at = torch.stack([positions[:, wanted], positions[:, other]], 1).double()
    q = tracker.search_again(
        frames[..., None],
        one,
        torch.ones(1, 15, dtype=torch.bool),
        start=Pins(Gaussian(place, sharp), seen),
        pins=Pins(Gaussian(at, sharp), pinned),
        released=torch.tensor([[True, False]]),
        appearance=start,
        **known,
    )
    assert isinstance(q, GridPosterior)
    assert q.appearance is not None
    assert int(q.appearance.sprite_class[0, 0]) == wanted
    away = renderer.to_pixels(q.means[0, 0]) - renderer.to_pixels(positions[0, wanted])
    # The other object is not explained where they cross; elsewhere errors are those of a search.
    assert q.detected[0, 0].float().mean() > 0.7
    assert away.norm(dim=-1)[q.detected[0, 0]].median() < 0.25


def test_a_pin_where_nothing_is_keeps_track_class_and_order(generator):
    renderer, frames, positions, appearance = crossing([1, 0], generator)
    scene, tracker = scene_with(renderer, frames, generator), LayeredTracker(7)
    observed = torch.ones(1, 15, dtype=torch.bool)
    given = torch.zeros(1, 2, 15, dtype=torch.bool)
    given[0, 0, 7] = True
    sharp = 1e-3 * torch.eye(2, dtype=torch.float64).expand(1, 2, 15, 2, 2)
    nowhere = renderer.from_pixels(torch.tensor([3.0, 29.0])).double().expand(1, 2, 15, 2)
    q = tracker.search_again(
        frames[..., None],
        torch.tensor([2]),
        observed,
        dynamics=scene.dynamics,
        renderer=renderer,
        slots=2,
        search=Search(),
        start=Pins(Gaussian(positions.double(), sharp), ~given | given),
        pins=Pins(Gaussian(nowhere, sharp), given),
        released=torch.tensor([[True, False]]),
        appearance=appearance,
    )
    assert isinstance(q, GridPosterior)
    assert q.appearance is not None
    assert q.appearance.sprite_class.tolist() == [[0, 1]]
    assert q.appearance.order.tolist() == [[1, 0]]
    seen = q.detected[0]
    away = (renderer.to_pixels(q.means[0]) - renderer.to_pixels(positions[0])).norm(dim=-1)
    assert seen.float().mean() > 0.9
    assert away[seen].max() < 0.5
