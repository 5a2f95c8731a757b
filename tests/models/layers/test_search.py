"""The search in pictures: looks against naive loops, objects that pass before one another."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from layer_scenes import hollow_pictures, naive_log_density, naive_mean, odd_pictures
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers import search as picture_search
from motes.models.layers.likelihood_maps import (
    FrameObjects,
    SpriteClasses,
    detect,
    evaluate_window,
    render_context,
)
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.search import MAX_MAHALANOBIS, refine_positions, revisit, select_likelier
from motes.models.layers.tracker import search_layers
from motes.models.sprites.forward_pass import Detections, Scene, scene_of
from motes.models.sprites.grid_posterior import GridPosterior, StreamedPosterior
from motes.models.sprites.likelihood_maps import MIN_LLR, PixelGaussian
from motes.models.sprites.patches import FrameBatch, Window

SIZE = (9, 11)


def without_gradient(classes: SpriteClasses) -> SpriteClasses:
    return SpriteClasses(*(part.detach() for part in classes[:-2]), classes.phases, classes.window)


def seen_through(near: Window, frames: torch.Tensor) -> torch.Tensor:
    """What the first frame of each clip shows."""
    everything = torch.ones(frames.shape[:2], dtype=torch.bool)
    shown = FrameBatch.during(frames, torch.arange(len(frames)), everything, slice(1))
    return shown.crop(near)[:, 0]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], None])
def test_layered_evaluate_window_equals_the_naive_loop(order, generator):
    renderer, n, window = odd_pictures(SIZE), 1, 1
    classes = without_gradient(SpriteClasses.fine(renderer, window))
    frame = torch.rand(1, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    centres = torch.tensor([[[4.3, 4.1], [5.2, 3.4], [10.4, 5.6]]], dtype=torch.float64)
    sprite_class, present = torch.tensor([[0, 2, 1]]), torch.ones(1, 3, dtype=torch.bool)
    prior = PixelGaussian(centres[:, n] + 0.7, torch.tensor([[[1.5, 0.4], [0.4, 0.8]]]).double())
    near = classes.window_around(centres[:, n])
    held = None if order is None else torch.tensor([order])
    rest = render_context(classes, near, FrameObjects(centres, sprite_class, present), n, held)
    seen = seen_through(near, frame)
    found = evaluate_window(classes, seen, near, rest, prior)
    joint = found.windows.log_weights + found.evidence[..., None]
    # Nobody knows the order: the object is behind all others.
    painted = [1, 0, 2] if order is None else order
    others = [m for m in painted if m != n]
    picture = frame[0, 0].numpy()
    empty = naive_log_density(
        renderer, picture, naive_mean(renderer, centres[0].numpy(), [0, 2, 1], others)
    )
    places = (near.centre[0] + found.windows.offsets).numpy()
    away = places - prior.mean[0].numpy()
    distance = np.einsum("pi,ij,pj->p", away, np.linalg.inv(prior.covariance[0].numpy()), away)
    before = np.exp(-0.5 * distance) / np.exp(-0.5 * distance).sum()
    for k, p in itertools.product(range(3), range(0, len(places), 7)):
        moved = centres[0].numpy().copy()
        moved[n] = places[p]
        mean = naive_mean(renderer, moved, [0, k, 1], painted, exact=n)
        gain = naive_log_density(renderer, picture, mean) - empty
        np.testing.assert_allclose(joint[0, k, p], gain + np.log(before[p]), rtol=1e-8)


def test_a_known_class_is_the_only_one_evaluated(generator):
    renderer, count = odd_pictures(SIZE), 7
    classes = without_gradient(SpriteClasses.fine(renderer, 1))
    frames = torch.rand(count, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    centres = 2 + 5 * torch.rand(count, 2, 2, generator=generator, dtype=torch.float64)
    sprite_class = torch.randint(3, (count, 2), generator=generator)
    near = classes.window_around(centres[:, 0])
    everyone = FrameObjects(centres, sprite_class, torch.ones(count, 2, dtype=torch.bool))
    rest = render_context(classes, near, everyone, 0, None)
    prior = PixelGaussian(centres[:, 0], torch.eye(2).double().expand(count, 2, 2))
    arguments = (classes, seen_through(near, frames), near, rest, prior)
    alone, among_all = evaluate_window(*arguments, sprite_class[:, 0]), evaluate_window(*arguments)
    theirs = among_all.select_class(sprite_class[:, 0])
    # The same sums, in another order.
    torch.testing.assert_close(alone.windows.log_weights[:, 0], theirs.log_weights)
    torch.testing.assert_close(
        alone.windows.log_likelihood_ratio[:, 0], theirs.log_likelihood_ratio
    )
    torch.testing.assert_close(alone.evidence, among_all.evidence.gather(1, sprite_class[:, :1]))


def test_coarse_scores_are_the_mean_over_the_cells_of_a_pixel(generator):
    renderer = odd_pictures(SIZE)
    fine, coarse = (
        without_gradient(make(renderer, 1)) for make in (SpriteClasses.fine, SpriteClasses.coarse)
    )
    frame = torch.rand(1, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    prior = PixelGaussian(torch.full((1, 2), 5.0).double(), 1e9 * torch.eye(2)[None].double())
    near = fine.window_around(prior.mean)
    nobody = FrameObjects(
        prior.mean[:, None], torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0
    )
    one, many = (
        evaluate_window(
            classes,
            seen_through(near, frame),
            near,
            render_context(classes, near, nobody, 0, None),
            prior,
        )
        for classes in (coarse, fine)
    )
    # All places are equally likely before.
    one, many = (
        found.windows.log_weights + found.evidence[..., None] + math.log(len(found.windows.offsets))
        for found in (one, many)
    )
    scores = many.unflatten(-1, (fine.phases**2, 9)).mean(-2)
    torch.testing.assert_close(one, scores, rtol=1e-9, atol=1e-9)


def test_objects_are_detected_with_their_classes_from_left_to_right(generator):
    renderer = hollow_pictures(32)
    positions = renderer.from_pixels(torch.tensor([[[[22.0, 9.0]], [[7.0, 20.0]]]]))
    appearance = Appearance(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), appearance).sigmoid().detach()
    noisy = drawn + 0.03 * torch.randn(drawn.shape, generator=generator)
    classes = without_gradient(SpriteClasses.coarse(renderer, 7))
    places, sprite_class = detect(classes, noisy[0, ..., None], torch.tensor([2]), 3)
    assert places[0, :2].tolist() == [[7.0, 20.0], [22.0, 9.0]]
    assert sprite_class[0, :2].tolist() == [1, 0]


def crossing(order: list[int], generator: torch.Generator):
    """A disk and a ring that cross: renderer, frames, positions and looks."""
    renderer, time = hollow_pictures(32), torch.arange(15)
    left = torch.stack([4 + 1.7 * time, 12.3 + 0.3 * time], -1)
    right = torch.stack([28 - 1.6 * time, 17.1 - 0.2 * time], -1)
    positions = renderer.from_pixels(torch.stack([left, right])[None])
    appearance = Appearance(torch.tensor([[0, 1]]), torch.tensor([order]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), appearance).sigmoid().detach()
    return (
        renderer,
        drawn + 0.03 * torch.randn(drawn.shape, generator=generator),
        positions,
        appearance,
    )


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
    elsewhere[0, 0, 3] += 3.0  # six standard deviations from where it is seen
    guess, expected = PixelGaussian(truth, sharp), PixelGaussian(elsewhere, sharp)
    found, _ = revisit(scene, classes, guess, appearance, expected)
    assert not found.seen[0, 0, 3]
    assert torch.equal(found.place.mean[0, 0, 3], elsewhere[0, 0, 3])
    others = torch.arange(15) != 3
    assert found.seen[0, 0, others].float().mean() > 0.9


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
    q = GridPosterior.joined(search_layers(scene, window=7))
    assert q.appearance is not None
    assert q.appearance.sprite_class.tolist() == [[0, 1]]
    assert q.appearance.order.tolist() == [order]
    seen = renderer.to_pixels(q.means)[q.seen]
    gap = (seen - renderer.to_pixels(positions)[q.seen]).norm(dim=-1)
    assert q.seen.float().mean() > 0.9
    # A cell of an eighth of a pixel, whose centre stands for it, and noise of 0.03 for a contrast
    # of 0.5 over the twenty pixels of an edge: well below half a pixel.
    assert gap.max() < 0.5


@pytest.fixture
def two_clips(generator):
    """Two clips in which a disk and a ring cross, one of them backwards; frames are hidden."""
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
    monkeypatch.setattr(picture_search, "CHUNK_FRAMES", at_once)  # frames of each object: of 15
    scene, truth, appearance = two_clips
    # The last frames alone would speak for other kinds.
    places, other = (
        scene.renderer.from_pixels(truth[:, :, 12:]),
        appearance._replace(sprite_class=1 - appearance.sprite_class),
    )
    scene.frames[:, 12:, ..., 0] = scene.renderer(places, scene.present, other).sigmoid()
    classes = SpriteClasses.coarse(scene.renderer, 3)
    spread = 0.3 * torch.eye(2).expand(*truth.shape, 2)
    guess = PixelGaussian(truth + torch.randn(truth.shape, generator=generator), spread)
    expected = PixelGaussian(truth, spread)
    found, told = revisit(scene, classes, guess, other, expected)
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
                seen = seen_through(near, scene.frames[b : b + 1, t : t + 1])
                every.append((evaluate_window(classes, seen, near, rest, prior), prior))
                if scene.observed[b, t]:
                    evidence += every[-1][0].evidence[0]
            sprite_class[n] = evidence.argmax()
            for t, (its, prior) in enumerate(every):
                its_look = its.select_class(sprite_class[n : n + 1])
                place = its_look.moments()
                away = (place.mean - prior.mean).square().sum() / 0.3
                seen = bool(
                    scene.observed[b, t]
                    and its_look.log_likelihood_ratio > MIN_LLR
                    and away < MAX_MAHALANOBIS
                )
                assert found.seen[b, n, t] == seen
                means[n, t] = place.mean[0] if seen else prior.mean[0]
        # The same sums; a convolution of fewer frames may add them in another order.
        torch.testing.assert_close(found.place.mean[b], means)
        assert torch.equal(told.sprite_class[b], sprite_class)
    assert torch.equal(told.sprite_class, appearance.sprite_class)


@torch.no_grad()
def test_refined_positions_lie_between_the_cells_and_are_closer_to_the_truth(
    two_clips, generator, monkeypatch
):
    monkeypatch.setattr(picture_search, "CHUNK_FRAMES", 2 * 2 * 4)
    scene, truth, appearance = two_clips
    classes = SpriteClasses.fine(scene.renderer, 2)
    spread = 0.3 * torch.eye(2).expand(*truth.shape, 2)
    guess = PixelGaussian(truth + torch.randn(truth.shape, generator=generator), spread)
    arguments = (scene, classes, guess, appearance, PixelGaussian(truth, spread))
    found, told = revisit(*arguments)
    assert torch.equal(told.sprite_class, appearance.sprite_class)
    errors = []
    for time, cells, seen in refine_positions(*arguments):
        assert torch.equal(seen, found.seen[:, :, time])
        close, rough = cells.moments().mean[seen], found.place.mean[:, :, time][seen]
        # Half a cell, and as much again because the other object, too, stands between cells.
        assert bool(((close - rough).abs() < 1 / classes.phases).all())
        errors.append(torch.stack([part - truth[:, :, time][seen] for part in (close, rough)]))
    by_close, by_rough = torch.cat(errors, 1).square().mean((1, 2))
    assert by_close < by_rough


@pytest.mark.parametrize("at_once", [1, 2 * 2 * 3 * 4])
def test_layered_search_in_blocks_equals_the_search_at_once(at_once, two_clips, monkeypatch):
    scene, truth, _ = two_clips
    whole = GridPosterior.joined(search_layers(scene, 3, window=7))
    monkeypatch.setattr(picture_search, "CHUNK_FRAMES", at_once)
    stretches = search_layers(scene, 3, window=7)
    assert len(list(stretches())) > 1
    pieces, long = GridPosterior.joined(stretches), StreamedPosterior.of(stretches)
    for ours in (pieces, long):
        assert torch.equal(ours.seen, whole.seen)
        assert all(map(torch.equal, ours.appearance, whole.appearance))
        # The same numbers; a convolution of fewer frames may add them in another order.
        torch.testing.assert_close(ours.means, whole.means)
        torch.testing.assert_close(ours.covariances(), whole.covariances())
        torch.testing.assert_close(ours.entropy(), whole.entropy())
    # Numbered from left to right, in the second clip the other way round.
    assert whole.appearance.sprite_class.tolist() == [[0, 1], [1, 0]]
    there = torch.stack([truth[0], truth[1].flip(0)])
    gap = (scene.renderer.to_pixels(whole.means) - there).norm(dim=-1)
    assert gap[whole.seen].max() < 0.5
