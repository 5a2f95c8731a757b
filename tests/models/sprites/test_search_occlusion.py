"""Occluded objects: their inferred positions, and the answers that hold them."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

import motes
from motes.models.model import Model, build
from motes.models.pixel_map import align_pixel_map
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.occlusion import (
    NUM_SAMPLES,
    OccludedObjects,
    infer_occluded,
    systematic_samples,
)
from motes.models.sprites.renderer import CELLS_PER_PIXEL, MIN_OCCLUSION, SpriteRenderer
from motes.models.sprites.search import (
    Detections,
    Tracker,
    _bound,
    delayed_starts,
    refine,
    revisit,
    scene_of,
)
from motes.training.presets import PRESETS
from sprite_scenes import (
    HEIGHT,
    RADIUS,
    WIDTH,
    disk_renderer,
    frame_with,
    odd_renderer,
    straight,
)

SIZE, FRAMES = 24, 12
OCCLUDER = slice(10, 18)  # columns


def naive(
    template: SpriteTemplate,
    frame: np.ndarray,
    other: np.ndarray,
    mean: np.ndarray,
    covariance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return moments, log probability and divergence of an occluded object by a detected one."""
    depth, gain = template.depth.mean(0).numpy(), template.lit_llr.mean(0).numpy()
    visible, background = template.visibility.numpy(), template.background.numpy()
    lit_by_other = np.zeros((HEIGHT, WIDTH))
    for i, j in itertools.product(range(2 * RADIUS + 1), repeat=2):
        y, x = int(other[1]) + i - RADIUS, int(other[0]) + j - RADIUS
        if 0 <= y < HEIGHT and 0 <= x < WIDTH:
            lit_by_other[y, x] = visible[y, x] * (1 - np.exp(-depth[i, j]))
    white_background = 1 - np.exp(-np.median(background))
    scores, before, places = [], [], []
    for row, column in np.ndindex(HEIGHT, WIDTH):
        score = 0.0
        for i, j in itertools.product(range(2 * RADIUS + 1), repeat=2):
            y, x = row + i - RADIUS, column + j - RADIUS
            if not (0 <= y < HEIGHT and 0 <= x < WIDTH):
                continue
            white = 1 - (1 - lit_by_other[y, x]) * np.exp(-background[y, x])
            left = np.log(max(white, white_background)) / np.log(white_background)
            lit = frame[y, x]
            score += visible[y, x] * (lit * left * gain[i, j] - (1 - lit) * depth[i, j])
        scores.append(np.logaddexp(min(score, 0.0), template.log_miss.item()))
        away = np.array([column, row]) - mean
        before.append(np.exp(-0.5 * away @ np.linalg.solve(covariance, away)))
        places.append([column, row])
    likelihood, prior = np.exp(scores), np.array(before) / np.sum(before)
    total = (likelihood * prior).sum()
    weights = likelihood * prior / total
    centre = weights @ np.array(places)
    off = np.array(places) - centre
    spread = np.einsum("m,mi,mj->ij", weights, off, off) + np.eye(2) / 12
    return centre, spread, float(np.log(total)), float((weights * np.log(weights / prior)).sum())


def test_occluded_posterior_equals_the_naive_loop(generator: torch.Generator) -> None:
    renderer = odd_renderer((HEIGHT, WIDTH), RADIUS)
    frames = (torch.rand(2, 1, HEIGHT, WIDTH, generator=generator) < 0.2).double()
    means = torch.tensor([[[[3.0, 4.0]], [[7.2, 2.1]]], [[[12.5, 8.0]], [[6.0, 6.0]]]]).double()
    factor = torch.randn(2, 2, 1, 2, 2, generator=generator, dtype=torch.float64)
    expected = PixelGaussian(means, factor @ factor.mT + 2 * torch.eye(2).double())
    seen = torch.tensor([[[True], [False]], [[False], [True]]])
    with torch.no_grad():
        template = SpriteTemplate.coarse(renderer, 0)
        scene = scene_of(frames, torch.full((len(frames),), 2), straight(), renderer)
        ours = infer_occluded(scene, template, Detections(expected, seen), expected)
    assert torch.equal(ours.occluded, ~seen)
    for b, n in ((0, 1), (1, 0)):
        place = (expected.mean[b, n, 0].numpy(), expected.covariance[b, n, 0].numpy())
        other = expected.mean[b, 1 - n, 0].numpy()
        centre, spread, log_occluded, divergence = naive(
            template, frames[b, 0].numpy(), other, *place
        )
        np.testing.assert_allclose(ours.place.mean[b, n, 0], centre, rtol=1e-9)
        np.testing.assert_allclose(ours.place.covariance[b, n, 0], spread, rtol=1e-8)
        np.testing.assert_allclose(ours.log_occluded[b, n, 0], log_occluded, rtol=1e-9)
        np.testing.assert_allclose(ours.divergence[b, n, 0], divergence, rtol=1e-8)
        # Detected objects are unchanged.
        assert torch.equal(ours.place.mean[b, 1 - n], expected.mean[b, 1 - n])
        assert ours.log_occluded[b, 1 - n] == ours.divergence[b, 1 - n] == 0


def test_systematic_samples_follow_the_weights(generator: torch.Generator) -> None:
    weights = torch.rand(3, 7, generator=generator, dtype=torch.float64).softmax(-1)
    for drawn, weight in zip(systematic_samples(weights), weights, strict=True):
        # The count of each pixel is its expectation up to one.
        counts = torch.bincount(drawn, minlength=7)
        assert ((counts - NUM_SAMPLES * weight).abs() <= 1).all()


def behind_an_occluder() -> tuple[torch.Tensor, SpriteRenderer]:
    """Return a disk that moves right, behind an occluder of columns 10 to 17, and stops there."""
    renderer = disk_renderer(SIZE)
    renderer.models_occlusion = True
    with torch.no_grad():
        renderer.visibility_logit[:, OCCLUDER] = -20.0
    columns = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 12]
    frames = torch.cat([frame_with([(x, 12)], SIZE) for x in columns])[None]
    frames[..., OCCLUDER] = 0
    return frames, renderer


def track(frames: torch.Tensor, count: int, renderer: SpriteRenderer) -> GridPosterior:
    scene = scene_of(frames, torch.tensor([count]), straight(), renderer)
    return GridPosterior.joined([q for _, q in Tracker(7).search(scene)()])


def inferred(frames: torch.Tensor, renderer: SpriteRenderer, speed: float) -> OccludedObjects:
    """Return the inferred positions of a disk predicted beyond the occluder at the end."""
    time = torch.arange(FRAMES)
    mean = torch.stack([3 + speed * time, torch.full((FRAMES,), 12.0)], -1)[None, None]
    spread = (1.0 + 0.2 * time)[:, None, None] * torch.eye(2)
    expected = PixelGaussian(mean, spread[None, None].square())
    scene = scene_of(frames, torch.tensor([1]), straight(), renderer)
    found = Detections(expected, (time < 7)[None, None])
    with torch.no_grad():
        return infer_occluded(scene, SpriteTemplate.coarse(renderer, 0), found, expected)


def test_undetected_objects_are_placed_behind_the_occluder() -> None:
    frames, renderer = behind_an_occluder()
    occluded = inferred(frames, renderer, speed=1.6)  # 20.6 in the last frame
    # A disk of radius 2 is fully occluded at 12 to 15, which it is from the ninth frame on.
    for x in (occluded.place.mean[0, 0, 9:, 0], occluded.samples[0, 0, 9:, :, 0]):
        assert (x >= 12).all()
        assert (x <= 15).all()


def test_tracker_infers_occluded_positions_only_if_the_renderer_models_occlusion() -> None:
    frames, renderer = behind_an_occluder()
    ours = track(frames, 1, renderer)
    renderer.models_occlusion = False
    usual = track(frames, 1, renderer)
    assert torch.equal(ours.detected, usual.detected)
    assert usual.occlusion is None
    assert torch.equal(usual.localized, usual.detected)
    assert ours.occlusion is not None
    assert ours.localized.all()
    undetected = ~ours.detected[0, 0]
    assert 2 <= undetected.sum() <= 6
    last = renderer.to_pixels(torch.stack([q.means[0, 0, -1] for q in (ours, usual)]))[:, 0]
    assert last[0] < last[1]  # by its speed it would be at 14, where part of it is visible
    draws = ours.draw(torch.randn(1, 1, FRAMES, 2, generator=torch.Generator().manual_seed(0)))
    x = renderer.to_pixels(draws)[0, 0, undetected, 0]
    # At most two of the 13 pixels are visible of a disk at 11 or 16.
    assert ((x > 10.5) & (x < 16.5)).all()
    torch.testing.assert_close(x, x.round())  # a sample is the centre of a pixel
    assert (ours.entropy()[0, 0, undetected] <= 1e-6).all()


def occlusion_model() -> tuple[torch.Tensor, Model]:
    frames, renderer = behind_an_occluder()
    config = PRESETS["sprites-smoke"]
    data = dataclasses.replace(config.data, height=SIZE, width=SIZE, num_objects=(1,))
    settings = dataclasses.replace(config.model, sprite_radius=3, models_occlusion=True)
    dynamics = dataclasses.replace(config.dynamics, num_components=1)
    model = build(dataclasses.replace(config, data=data, model=settings, dynamics=dynamics))
    model.renderer.load_state_dict(renderer.state_dict())
    model.dynamics.load_state_dict(straight().state_dict())
    align_pixel_map(model, FRAMES)
    return frames, model


def test_occlusion_does_not_shift_the_map_to_pixels() -> None:
    _, model = occlusion_model()
    assert isinstance(model.renderer, SpriteRenderer)
    assert torch.equal(model.pixel_matrix, model.renderer.pixels_per_unit * torch.eye(2))
    # The disk is symmetric up to the rounding of its cells.
    torch.testing.assert_close(model.pixel_offset, torch.full((2,), (SIZE - 1) / 2))
    with torch.no_grad():  # one pixel to the right
        model.renderer.root_depth.copy_(model.renderer.root_depth.roll(CELLS_PER_PIXEL, 1))
    align_pixel_map(model, FRAMES)
    # Its faint border, 36 pixels with a depth of 1e-4, wraps around: 3e-4 of the mass stays.
    shifted = torch.tensor([SIZE + 1, SIZE - 1]) / 2
    torch.testing.assert_close(model.pixel_offset, shifted, rtol=0, atol=1e-3)


def test_answers_hold_occluded_positions_and_forecasts_follow_the_dynamics() -> None:
    frames, model = occlusion_model()
    answer = motes.forecast(model, frames, 1, horizon=4)
    q = model.infer(frames, torch.tensor([1]))
    assert isinstance(q, GridPosterior)
    assert q.occlusion is not None
    torch.testing.assert_close(answer.positions[:, :, :FRAMES], q.means)
    assert not answer.found[0, 0, FRAMES - 1]
    # After the last frame the path follows the dynamics alone.
    steps = answer.pixels[0, 0, FRAMES:, 0].diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-3, atol=1e-3)


def test_an_object_occluded_throughout_does_not_take_over_a_visible_track() -> None:
    _, renderer = behind_an_occluder()
    columns = [3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7]
    frames = torch.cat([frame_with([(x, 6), (14, 12)], SIZE) for x in columns])[None]
    frames[..., OCCLUDER] = 0
    q = track(frames, 2, renderer)
    assert sorted(q.detected.sum(-1)[0].tolist()) == [0, FRAMES]
    shown = int(q.detected[0].sum(-1).argmax())
    x = renderer.to_pixels(q.means)[0, :, :, 0]
    assert (x[shown] - torch.tensor(columns)).abs().max() < 0.5
    assert ((x[1 - shown] > 12) & (x[1 - shown] < 15)).all()


def test_an_undetected_object_in_the_open_costs_the_log_of_the_minimal_occlusion() -> None:
    frames, renderer = behind_an_occluder()
    scene = scene_of(frames, torch.tensor([1]), straight(), renderer)
    time = torch.arange(FRAMES)
    seen = (time < 7)[None, None, :, None]
    path = torch.stack([3.0 + time, 12.0 + 0 * time], -1)
    bounds = []
    for x in (13.5, 21.0):  # behind the occluder, and in the open
        place = PixelGaussian(
            torch.where(seen, path, torch.tensor([x, 12.0])),
            0.3 * torch.eye(2).expand(1, 1, FRAMES, 2, 2),
        )
        with torch.no_grad():
            bounds.append(float(_bound(scene, Detections(place, seen[..., 0]), place)))
    behind, beyond = bounds
    # In five frames; full occlusion costs at most 2e-4, by the disk's faint border.
    assert abs((behind - beyond) + 5 * math.log(MIN_OCCLUSION)) < 0.01


def test_an_undetected_object_does_not_explain_lit_pixels() -> None:
    _, renderer = behind_an_occluder()
    frames = frame_with([(5, 6)], SIZE)[None]
    place = PixelGaussian(
        torch.tensor([5.0, 6.0]).expand(1, 2, 1, 2), torch.eye(2).expand(1, 2, 1, 2, 2)
    )
    scene = scene_of(frames, torch.full((len(frames),), 2), straight(), renderer)
    with torch.no_grad():
        _, found = revisit(scene, SpriteTemplate.coarse(renderer, 3), place, place)
    # The first is evaluated while the second explains the disk, then the second without it.
    assert found.detected[0, :, 0].tolist() == [False, True]


def test_occlusion_doubles_the_number_of_hypotheses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames, renderer = behind_an_occluder()
    numbers = []

    def recorded(observed: torch.Tensor, hypotheses: int) -> torch.Tensor:
        numbers.append(hypotheses)
        return delayed_starts(observed, hypotheses)

    monkeypatch.setattr("motes.models.sprites.search.delayed_starts", recorded)
    for renderer.models_occlusion in (True, False):
        Tracker(7).search(scene_of(frames, torch.tensor([2]), straight(), renderer), 3)
    assert numbers == [6, 3]


def test_an_occluded_object_does_not_take_the_detections_of_another() -> None:
    renderer = disk_renderer(SIZE)
    renderer.models_occlusion = True
    with torch.no_grad():
        renderer.visibility_logit[16:] = -20.0
    # The second has no detections and is predicted at the centre as well.
    middle = torch.tensor([12.0, 12.0])
    frames = frame_with([(12, 12)], SIZE).expand(1, FRAMES, SIZE, SIZE)
    place = PixelGaussian(middle.expand(1, 2, FRAMES, 2), torch.eye(2).expand(1, 2, FRAMES, 2, 2))
    seen = torch.tensor([True, False])[None, :, None].expand(1, 2, FRAMES)
    scene = scene_of(frames, torch.tensor([2]), straight(), renderer)
    with torch.no_grad():
        coarse = SpriteTemplate.coarse(renderer, 7)
        found, _ = refine(scene, coarse, Detections(place, seen), scene.observed)
    assert torch.equal(found.detected, seen)
