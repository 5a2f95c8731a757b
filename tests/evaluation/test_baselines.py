"""Baselines: against brute force, against draws, and on clips whose answer is known."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch

import motes
from motes import kalman
from motes.core.errors import InputError
from motes.data import World, draw_clips, worlds
from motes.data.worlds.registry import draw_disks
from motes.evaluation import metrics
from motes.evaluation.baselines import BASELINES, baseline, find_world
from motes.evaluation.baselines.bayes_limit import BayesLimit, InitialStates
from motes.evaluation.baselines.disk_trackers import (
    KalmanTracker,
    StraightLine,
    associate,
    disk_mask,
    explain_frames,
    ordered,
    true_physics,
)

T = 12
WORLD = World(num_frames=T, size=32)
EVERYTHING = torch.ones(T, dtype=torch.bool)


@pytest.fixture(scope="module")
def clips() -> motes.Clips:
    return draw_clips(WORLD, 12, 3, seed=3)


def test_true_centres_are_among_the_explanations(clips: motes.Clips):
    assert clips.positions is not None
    for frames, positions in zip(clips.frames, clips.positions, strict=True):
        centres = positions.round().long().permute(1, 0, 2).tolist()
        for explanations, true in zip(explain_frames(frames.float(), 3, 2), centres, strict=True):
            found = {tuple(map(tuple, sorted(one))) for one in explanations.tolist()}
            assert tuple(map(tuple, sorted(true))) in found


def test_every_explanation_draws_the_frame(clips: motes.Clips):
    frames = clips.frames[0].float()
    for frame, explanations in zip(frames, explain_frames(frames, 3, 2), strict=True):
        for centres in explanations:
            positions = centres[None, :, None].astype(np.float64)
            assert (draw_disks(positions, 32, 32, 2)[0, 0] == frame.numpy()).all()


def test_disks_on_top_of_each_other_are_found():
    positions = np.array([[[[9.0, 9.0]], [[9.0, 9.0]]]])
    frames = torch.from_numpy(draw_disks(positions, 24, 24, 2)[0]).float()
    assert explain_frames(frames, 2, 2)[0].tolist() == [[[9, 9], [9, 9]]]


def test_what_is_no_union_of_disks_is_refused():
    with pytest.raises(InputError, match="2 disks"):
        explain_frames(torch.eye(24)[None], 2, 2)


def test_a_disk_of_radius_two_has_thirteen_pixels():
    assert disk_mask(2).sum() == 13


def test_a_wide_beam_is_the_exhaustive_search(clips: motes.Clips):
    physics = true_physics(WORLD)
    observed = torch.tensor([True, True, False, True])
    for frames in clips.frames[:4].float():
        explanations = explain_frames(frames[:4][observed], 3, 2)
        found = associate(observed.numpy(), physics, 10_000, explanations)
        options = [explanations[0].astype(float), *(ordered(e) for e in explanations[1:])]
        best = max(likelihood(np.stack(h), observed, physics) for h in product(*options))
        assert likelihood(found, observed, physics) == pytest.approx(best, abs=1e-9)


def likelihood(history: np.ndarray, observed: torch.Tensor, physics) -> float:
    """The log density of an order of centres, by the library's Kalman code."""
    positions = torch.zeros(history.shape[1], 1, len(observed), 2, dtype=torch.float64)
    positions[:, 0, observed] = torch.from_numpy(history.swapaxes(0, 1))
    evidence = kalman.log_likelihood(physics.model, positions, observed)
    return float((physics.log_weights + evidence).logsumexp(-1).sum())


def test_a_straight_line_is_continued():
    steps = torch.arange(T)
    path = torch.stack([4 + 2 * steps, 27 - 2 * steps], -1)[None, None].double()
    frames = torch.from_numpy(draw_disks(path.numpy(), 32, 32, 2)).float()
    told = StraightLine(2, np.zeros(2)).predict(frames, steps < 4, 1)
    torch.testing.assert_close(told.path_pixels, path.float(), rtol=0, atol=1e-4)


def test_known_gravity_bends_the_line():
    steps = torch.arange(T).double()
    path = torch.stack([4 + 2 * steps, 4 + 0.5 * 0.4 * steps**2], -1)[None, None]
    frames = torch.from_numpy(draw_disks(path.numpy(), 48, 48, 2)).float()
    told = StraightLine(2, np.array([0.0, 0.4])).predict(frames, steps < 6, 1)
    assert told.path_pixels is not None
    # Six positions rounded by up to half a pixel, six frames ahead: slope off by up to 0.26.
    assert (told.path_pixels - path).abs().max() < 0.5 + 8.5 * 0.26


def test_the_kalman_tracker_answers_with_the_smoother(clips: motes.Clips):
    tracker = KalmanTracker(2, true_physics(WORLD))
    gap = (torch.arange(T) < 4) | (torch.arange(T) >= 9)
    told = tracker.predict(clips.frames[:3].float() * gap[:, None, None], gap, 3)
    assert told.pixels is not None
    assert told.path_pixels is not None
    assert told.path_pixel_covariances is not None
    model, log_weights, _ = tracker.physics
    seen = told.pixels.double()
    evidence = log_weights + kalman.log_likelihood(model, seen[:, :, None], gap)
    for b, n in np.ndindex(3, 3):
        side = int(evidence[b, n].argmax())
        one = model._replace(
            initial_mean=model.initial_mean[side], initial_covariance=model.initial_covariance[side]
        )
        smoothed = kalman.smooth(one, seen[b, n], gap)
        path, spread = told.path_pixels[b, n], told.path_pixel_covariances[b, n]
        # float32 of numbers up to 32: one part in 1e7, and room for a chain of sums
        torch.testing.assert_close(path, smoothed.means[:, :2].float(), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(
            spread, smoothed.covariances[:, :2, :2].float(), rtol=1e-5, atol=1e-5
        )


def test_the_prior_of_starts_holds_the_drawn_ones(clips: motes.Clips):
    limit = BayesLimit.of(WORLD)
    assert clips.clean is not None
    first, second = clips.clean[:, :, 0].double(), clips.clean[:, :, 1].double()
    states = torch.cat([first, second - first - limit.physics.model.force[:2]], -1)
    # Truth is stored in float32, so a start within 1e-4 of a border may fall beyond it.
    assert limit.log_prior(states).isfinite().double().mean() > 0.9
    fast, high = states.clone(), states.clone()
    fast[..., 2:] *= 1.6  # speeds lie between 2 and 3
    high[..., 1] -= 1.2 * abs(WORLD.pixels_per_unit[1])  # heights in an interval of length 1
    assert limit.log_prior(fast).isneginf().all()
    assert limit.log_prior(high).isneginf().all()


@pytest.mark.statistical
def test_the_predicted_picture_is_the_share_of_drawn_ones(generator: torch.Generator):
    limit, draws = BayesLimit.of(WORLD), 4_000
    physics = limit.physics
    states = physics.model.initial_mean[[0, 1, 0]][None, :2, None].repeat(1, 1, 3, 1)
    states[..., :2] += torch.tensor([[0.0, 0.0], [3.0, 1.0], [-2.0, 2.0]])
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 2, 3)
    predicted = limit.draw_frames(InitialStates(states, weights), T)[0]
    which = torch.multinomial(weights[0, 0], 2 * draws, True, generator=generator).view(2, draws)
    paths = limit.paths(states[0], T)  # N S T 2
    chosen = torch.stack([paths[n, which[n]] for n in range(2)], 1)
    noise = (
        torch.randn(chosen.shape, dtype=torch.float64, generator=generator)
        * physics.observation_scale
    )
    positions = (chosen + noise).clamp(2, 29).numpy()
    share = torch.from_numpy(draw_disks(positions, 32, 32, 2)).float().mean(0)
    # Each of 12 x 1024 pixels within five standard errors of a share: one false alarm in 140 seeds
    # would be a Gaussian bound on all; the seed is fixed.
    error = 5 * (predicted * (1 - predicted) / draws).sqrt() + 5 / draws
    assert ((share - predicted).abs() < error).all()


def test_the_limit_is_near_the_smoother_and_its_weights_are_even(clips: motes.Clips):
    """All frames seen, the data outweigh the prior: the exact posterior is nearly Gaussian."""
    limit, tracker = BayesLimit.of(WORLD), KalmanTracker(2, true_physics(WORLD), 64)
    frames = clips.frames[:6].float()
    exact, gaussian = limit.predict(frames, EVERYTHING, 3), tracker.predict(frames, EVERYTHING, 3)
    assert exact.path_pixels is not None
    assert gaussian.path_pixels is not None
    assert exact.pixels is not None
    assert gaussian.pixels is not None
    # A frame's centres may belong to the objects in another order; the mean stays among them.
    assert (exact.pixels - gaussian.pixels).norm(dim=-1).median() < 0.5
    # The path is known to 0.4 px; a truncated prior moves its mean by less than one deviation.
    assert (exact.path_pixels - gaussian.path_pixels).norm(dim=-1).median() < 0.3


@pytest.mark.statistical
def test_the_limit_has_the_moments_of_positions_drawn_in_the_same_pixels(
    generator: torch.Generator,
):
    limit, draws = BayesLimit.of(WORLD), 400_000
    lowest, highest = WORLD.radius, 31 - WORLD.radius
    # Inside, beyond the border on the left, and a path outside the frame at the bottom.
    cases = [((10.3, 12.9), (10, 12)), ((2.2, 20.0), (2, 20)), ((15.0, 29.6), (16, 29))]
    for path, pixel in cases:
        where = torch.tensor(path, dtype=torch.float64)
        noise = torch.randn(draws, 2, dtype=torch.float64, generator=generator)
        drawn = (where + limit.physics.observation_scale * noise).clamp(lowest, highest)
        kept = drawn[(drawn.round() == torch.tensor(pixel)).all(-1)]
        shape = (1, 1, 1, 1, 2)
        mean, variance = limit.cell_moments(
            where.view(shape), torch.tensor(pixel, dtype=torch.float64).view(shape)
        )
        # Five standard errors of a mean and of a variance of values within half a pixel.
        error = 5 * 0.5 / len(kept) ** 0.5
        assert (kept.mean(0) - mean.view(2)).abs().max() < error
        assert (kept.var(0) - variance.view(2)).abs().max() < error


@pytest.mark.statistical
def test_the_limit_is_the_mean_of_all_clips_with_the_same_frames():
    """One ball, two observed frames: the posterior by rejection, from a million drawn clips."""
    world = World(num_frames=2, size=(16, 24))
    clips = draw_clips(world, 1_000_000, 1, seed=5)
    positions = clips.positions[:, 0].double()
    pixels = positions.round().flatten(1)
    chosen = clips[10:11]
    same = positions[(pixels == pixels[10]).all(1)]
    assert len(same) > 300
    told = BayesLimit.of(world).predict(chosen.frames.float(), torch.ones(2, dtype=torch.bool), 1)
    error = 5 * same.std(0) / len(same) ** 0.5
    assert ((told.pixels[0, 0] - same.mean(0)).abs() < error).all()
    spread = torch.stack([torch.cov(same[:, t].T) for t in range(2)])
    torch.testing.assert_close(
        told.pixel_covariances[0, 0].double(), spread, rtol=0, atol=5 * 0.1 / len(same) ** 0.5
    )


def test_no_pixel_s_centre_is_nearer_than_the_limit():
    clips = draw_clips(WORLD, 60, 1, seed=4)
    told = BayesLimit.of(WORLD).predict(clips.frames.float(), EVERYTHING, 1)
    centres = KalmanTracker(2, true_physics(WORLD)).predict(clips.frames.float(), EVERYTHING, 1)
    # The square root of two variances of rounding is .41, of the posterior .38 (48x48 pixels).
    limit, centre = (metrics.rmse(one.pixels, clips.positions) for one in (told, centres))
    assert limit < 0.97 * centre


def test_hidden_frames_cannot_matter(clips: motes.Clips):
    training = draw_clips(WORLD, 5, 3, seed=9)
    seen = torch.arange(T) < 5
    frames = clips.frames[:2].float()
    other = torch.where(seen[:, None, None], frames, 1 - frames)
    for name in BASELINES:
        contender = baseline(name, WORLD, training)
        first, second = (contender.predict(f, seen, 3) for f in (frames, other))
        for field in ("pixels", "path_pixels", "pixel_covariances", "path_pixel_covariances"):
            mine, theirs = getattr(first, field), getattr(second, field)
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine, theirs)
        if first.draw_frames is not None and second.draw_frames is not None:
            assert torch.equal(first.draw_frames()[:, 5:], second.draw_frames()[:, 5:])


@pytest.mark.parametrize("name", ["cannonballs", "weightless", "wind", "drag"])
def test_the_world_of_clips_is_recognised(name: str):
    clips = worlds.make(name, 12, (1, 2), T, 32, seed=6)
    found, true = find_world("limit", clips), worlds.physics_of(name, T, 32)
    assert found.pixel_force == pytest.approx(true.pixel_force)
    assert found.drag == true.drag


def test_clips_of_an_unknown_world_are_refused_where_physics_is_given():
    strange = [
        worlds.make("bounce", 12, 1, T, 32, seed=6),
        draw_clips(World(T, 32, gravity=5.0), 12, 1, seed=6),
        draw_clips(World(T, 32, position_noise=0.002), 12, 1, seed=6),
        draw_clips(World(T, 32, state_noise=1e-4), 12, 1, seed=6),
        draw_clips(World(T, 32, speeds=(4.0, 5.0)), 12, 1, seed=6),
    ]
    for clips in strange:
        for name in ("limit", "kalman", "known-gravity"):
            with pytest.raises(InputError, match=f"known to {name}"):
                find_world(name, clips)
        assert find_world("constant-velocity", clips).gravity == World().gravity


def test_the_constant_image_is_the_share_of_white(clips: motes.Clips):
    told = baseline("constant-image", WORLD, clips).predict(
        clips.frames[:1].float(), torch.arange(T) < 5, 3
    )
    assert told.draw_frames is not None
    torch.testing.assert_close(told.draw_frames()[0, 7], clips.frames.float().mean((0, 1)))


def test_an_unknown_baseline_and_a_noisy_world_are_refused(clips: motes.Clips):
    with pytest.raises(InputError, match="no-such"):
        baseline("no-such", WORLD, clips)
    with pytest.raises(InputError, match="state_noise"):
        BayesLimit.of(World(state_noise=0.1))


def test_orders_are_all_orders_once():
    assert len(ordered(np.array([[[0, 0], [1, 1], [2, 2]]]))) == math.factorial(3)
    assert len(ordered(np.array([[[0, 0], [0, 0], [2, 2]]]))) == 3
    assert {tuple(map(tuple, o)) for o in ordered(np.array([[[0, 0], [1, 1]]])).tolist()} == set(
        permutations([(0, 0), (1, 1)])
    )
