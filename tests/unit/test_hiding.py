"""Objects that something hides: where they are supposed, and what an answer says of them."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

import motes
from glyphs import disk_renderer, frame_with, odd_renderer, straight
from motes.models.model import Model, build
from motes.models.pixel_map import align
from motes.models.sprites.forward_pass import Sightings, revisit, scene_of
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.occlusion import (
    NUM_SAMPLES,
    OccludedObjects,
    infer_occluded,
    systematic_samples,
)
from motes.models.sprites.renderer import CELLS_PER_PIXEL, MIN_OCCLUSION, SpriteRenderer
from motes.models.sprites.tracker import Tracker, _bound, begun_later
from motes.training.presets import preset

HEIGHT, WIDTH, REACH = 9, 11, 2
SIZE, FRAMES = 24, 12
COVER = slice(10, 18)  # columns


def naive(
    template: SpriteTemplate,
    frame: np.ndarray,
    other: np.ndarray,
    mean: np.ndarray,
    covariance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Mean, covariance, log probability and divergence of an unseen object beside a seen one."""
    depth, gain = template.depth.mean(0).numpy(), template.lit_llr.mean(0).numpy()
    shows, background = template.visibility.numpy(), template.background.numpy()
    lit_by_other = np.zeros((HEIGHT, WIDTH))
    for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
        y, x = int(other[1]) + i - REACH, int(other[0]) + j - REACH
        if 0 <= y < HEIGHT and 0 <= x < WIDTH:
            lit_by_other[y, x] = shows[y, x] * (1 - np.exp(-depth[i, j]))
    white_background = 1 - np.exp(-np.median(background))
    scores, before, places = [], [], []
    for row, column in np.ndindex(HEIGHT, WIDTH):
        score = 0.0
        for i, j in itertools.product(range(2 * REACH + 1), repeat=2):
            y, x = row + i - REACH, column + j - REACH
            if not (0 <= y < HEIGHT and 0 <= x < WIDTH):
                continue
            white = 1 - (1 - lit_by_other[y, x]) * np.exp(-background[y, x])
            left = np.log(max(white, white_background)) / np.log(white_background)
            lit = frame[y, x]
            score += shows[y, x] * (lit * left * gain[i, j] - (1 - lit) * depth[i, j])
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


def test_supposing_equals_the_naive_loop(generator: torch.Generator) -> None:
    renderer = odd_renderer((HEIGHT, WIDTH), REACH)
    frames = (torch.rand(2, 1, HEIGHT, WIDTH, generator=generator) < 0.2).double()
    means = torch.tensor([[[[3.0, 4.0]], [[7.2, 2.1]]], [[[12.5, 8.0]], [[6.0, 6.0]]]]).double()
    factor = torch.randn(2, 2, 1, 2, 2, generator=generator, dtype=torch.float64)
    expected = PixelGaussian(means, factor @ factor.mT + 2 * torch.eye(2).double())
    seen = torch.tensor([[[True], [False]], [[False], [True]]])
    with torch.no_grad():
        template = SpriteTemplate.coarse(renderer, 0)
        scene = scene_of(frames, torch.full((len(frames),), 2), straight(), renderer)
        ours = infer_occluded(scene, template, Sightings(expected, seen), expected)
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
        # What was seen stays as it was.
        assert torch.equal(ours.place.mean[b, 1 - n], expected.mean[b, 1 - n])
        assert ours.log_occluded[b, 1 - n] == ours.divergence[b, 1 - n] == 0


def test_even_draws_are_as_many_as_the_weights_say(generator: torch.Generator) -> None:
    weights = torch.rand(3, 7, generator=generator, dtype=torch.float64).softmax(-1)
    for drawn, weight in zip(systematic_samples(weights), weights, strict=True):
        # At the middles of equal parts: of each pixel as many as parts fit in, give or take one.
        counts = torch.bincount(drawn, minlength=7)
        assert ((counts - NUM_SAMPLES * weight).abs() <= 1).all()


def behind_a_cover() -> tuple[torch.Tensor, SpriteRenderer]:
    """A disk that runs to the right, below a cover from column 10 to 17, and stops there."""
    renderer = disk_renderer(SIZE)
    renderer.models_occlusion = True
    with torch.no_grad():
        renderer.visibility_logit[:, COVER] = -20.0
    columns = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 12]
    frames = torch.cat([frame_with([(x, 12)], SIZE) for x in columns])[None]
    frames[..., COVER] = 0
    return frames, renderer


def track(frames: torch.Tensor, count: int, renderer: SpriteRenderer) -> GridPosterior:
    scene = scene_of(frames, torch.tensor([count]), straight(), renderer)
    return GridPosterior.joined(Tracker(7).search(scene))


def followed(frames: torch.Tensor, renderer: SpriteRenderer, speed: float) -> OccludedObjects:
    """What is supposed of a disk that would be beyond the cover at the end, had it not stopped."""
    time = torch.arange(FRAMES)
    mean = torch.stack([3 + speed * time, torch.full((FRAMES,), 12.0)], -1)[None, None]
    spread = (1.0 + 0.2 * time)[:, None, None] * torch.eye(2)
    expected = PixelGaussian(mean, spread[None, None].square())
    scene = scene_of(frames, torch.tensor([1]), straight(), renderer)
    found = Sightings(expected, (time < 7)[None, None])
    with torch.no_grad():
        return infer_occluded(scene, SpriteTemplate.coarse(renderer, 0), found, expected)


def test_what_does_not_show_is_below_the_cover() -> None:
    frames, renderer = behind_a_cover()
    occluded = followed(frames, renderer, speed=1.6)  # 20.6 in the last frame
    # A disk has a radius of 2: wholly covered it is at 12 to 15. From the ninth frame on it is.
    for x in (occluded.place.mean[0, 0, 9:, 0], occluded.samples[0, 0, 9:, :, 0]):
        assert (x >= 12).all()
        assert (x <= 15).all()


def test_a_tracker_supposes_only_if_objects_may_hide() -> None:
    frames, renderer = behind_a_cover()
    ours = track(frames, 1, renderer)
    renderer.models_occlusion = False
    usual = track(frames, 1, renderer)
    assert torch.equal(ours.seen, usual.seen)
    assert usual.occlusion is None
    assert torch.equal(usual.known, usual.seen)
    assert ours.occlusion is not None
    assert ours.known.all()
    unseen = ~ours.seen[0, 0]
    assert 2 <= unseen.sum() <= 6
    last = renderer.to_pixels(torch.stack([q.means[0, 0, -1] for q in (ours, usual)]))[:, 0]
    assert last[0] < last[1]  # by its speed it would be at 14, and some of that shows
    draws = ours.draw(torch.randn(1, 1, FRAMES, 2, generator=torch.Generator().manual_seed(0)))
    x = renderer.to_pixels(draws)[0, 0, unseen, 0]
    # At most two pixels of 13 show of a disk at 11 or at 16.
    assert ((x > 10.5) & (x < 16.5)).all()
    torch.testing.assert_close(x, x.round())  # a spot is the middle of a pixel
    assert (ours.entropy()[0, 0, unseen] <= 1e-6).all()


def hiding_model() -> tuple[torch.Tensor, Model]:
    frames, renderer = behind_a_cover()
    config = preset("structured", "smoke")
    data = dataclasses.replace(config.data, height=SIZE, width=SIZE, num_objects=(1,))
    shape = dataclasses.replace(
        config.model, num_components=1, glyph_reach=3, hidden_teach="hiding"
    )
    model = build(dataclasses.replace(config, data=data, model=shape))
    model.renderer.load_state_dict(renderer.state_dict())
    model.dynamics.load_state_dict(straight().state_dict())
    align(model, FRAMES)
    return frames, model


def test_what_is_hidden_of_an_object_does_not_shift_the_map_to_pixels() -> None:
    _, model = hiding_model()
    assert isinstance(model.renderer, SpriteRenderer)
    assert torch.equal(model.pixel_matrix, model.renderer.pixels_per_unit * torch.eye(2))
    # The disk is symmetric up to the rounding of its cells.
    torch.testing.assert_close(model.pixel_offset, torch.full((2,), (SIZE - 1) / 2))
    with torch.no_grad():  # one pixel to the right
        model.renderer.root_depth.copy_(model.renderer.root_depth.roll(CELLS_PER_PIXEL, 1))
    align(model, FRAMES)
    # Its faint border, 36 pixels with a depth of 1e-4, wraps around: 3e-4 of the ink stays.
    shifted = torch.tensor([SIZE + 1, SIZE - 1]) / 2
    torch.testing.assert_close(model.pixel_offset, shifted, rtol=0, atol=1e-3)


def test_an_answer_tells_where_an_object_hides_but_foretells_as_ever() -> None:
    frames, model = hiding_model()
    answer = motes.forecast(model, frames, 1, horizon=4)
    q = model.track(frames, torch.tensor([1]), torch.ones(1, FRAMES, dtype=torch.bool))
    assert q is not None
    assert q.occlusion is not None
    torch.testing.assert_close(answer.positions[:, :, :FRAMES], q.means)
    assert not answer.found[0, 0, FRAMES - 1]
    # After the last frame nobody looks: the law alone goes on, from the path.
    steps = answer.pixels[0, 0, FRAMES:, 0].diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-3, atol=1e-3)


def test_one_that_is_covered_all_the_time_does_not_take_the_place_of_one_that_shows() -> None:
    _, renderer = behind_a_cover()
    columns = [3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7]
    frames = torch.cat([frame_with([(x, 6), (14, 12)], SIZE) for x in columns])[None]
    frames[..., COVER] = 0
    q = track(frames, 2, renderer)
    assert sorted(q.seen.sum(-1)[0].tolist()) == [0, FRAMES]
    shown = int(q.seen[0].sum(-1).argmax())
    x = renderer.to_pixels(q.means)[0, :, :, 0]
    assert (x[shown] - torch.tensor(columns)).abs().max() < 0.5
    assert ((x[1 - shown] > 12) & (x[1 - shown] < 15)).all()


def test_to_hide_in_the_open_costs_a_search_what_it_costs_a_pixel_to_be_covered() -> None:
    frames, renderer = behind_a_cover()
    scene = scene_of(frames, torch.tensor([1]), straight(), renderer)
    time = torch.arange(FRAMES)
    seen = (time < 7)[None, None, :, None]
    path = torch.stack([3.0 + time, 12.0 + 0 * time], -1)
    bounds = []
    for x in (13.5, 21.0):  # below the cover, and beyond it, where nothing shows
        place = PixelGaussian(
            torch.where(seen, path, torch.tensor([x, 12.0])),
            0.3 * torch.eye(2).expand(1, 1, FRAMES, 2, 2),
        )
        with torch.no_grad():
            bounds.append(float(_bound(scene, Sightings(place, seen[..., 0]), place)))
    below, beyond = bounds
    # In five frames; what is wholly covered costs 2e-4 at most, by the disk's faint border.
    assert abs((below - beyond) + 5 * math.log(MIN_OCCLUSION)) < 0.01


def test_an_unseen_object_does_not_explain_what_another_lights() -> None:
    _, renderer = behind_a_cover()
    frames = frame_with([(5, 6)], SIZE)[None]
    place = PixelGaussian(
        torch.tensor([5.0, 6.0]).expand(1, 2, 1, 2), torch.eye(2).expand(1, 2, 1, 2, 2)
    )
    scene = scene_of(frames, torch.full((len(frames),), 2), straight(), renderer)
    with torch.no_grad():
        _, found = revisit(scene, SpriteTemplate.coarse(renderer, 3), place, place)
    # The first is looked for while the second explains the disk, then the second without it.
    assert found.seen[0, :, 0].tolist() == [False, True]


def test_twice_as_many_searches_are_made_where_something_may_hide_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames, renderer = behind_a_cover()
    asked = []

    def noted(observed: torch.Tensor, hypotheses: int) -> torch.Tensor:
        asked.append(hypotheses)
        return begun_later(observed, hypotheses)

    monkeypatch.setattr("motes.models.sprites.tracker.begun_later", noted)
    for renderer.models_occlusion in (True, False):
        Tracker(7).search(scene_of(frames, torch.tensor([2]), straight(), renderer), 3)
    assert asked == [6, 3]


def test_one_that_hides_does_not_take_the_sightings_of_one_that_stands_where_it_is_expected() -> (
    None
):
    renderer = disk_renderer(SIZE)
    renderer.models_occlusion = True
    with torch.no_grad():
        renderer.visibility_logit[16:] = -20.0
    # By its sightings, of which there are none, the second is in the middle as well.
    middle = torch.tensor([12.0, 12.0])
    frames = frame_with([(12, 12)], SIZE).expand(1, FRAMES, SIZE, SIZE)
    place = PixelGaussian(middle.expand(1, 2, FRAMES, 2), torch.eye(2).expand(1, 2, FRAMES, 2, 2))
    seen = torch.tensor([True, False])[None, :, None].expand(1, 2, FRAMES)
    scene = scene_of(frames, torch.tensor([2]), straight(), renderer)
    with torch.no_grad():
        coarse = SpriteTemplate.coarse(renderer, 7)
        found, _ = Tracker(7)._settle(scene, coarse, Sightings(place, seen), scene.observed)
    assert torch.equal(found.seen, seen)
