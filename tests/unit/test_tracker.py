"""The tracker with parts that are known: a disk, and the physics of the cannonballs."""

import itertools
import math

import numpy as np
import pytest
import torch

from motes.data import World, draw_clips
from motes.lgssm import Dynamics
from motes.networks.inference import Encoding
from motes.structured.glyph import CELLS, GlyphRenderer
from motes.structured.tracker import Tracker
from oracles import diagonal_blocks, one_model, posterior

SIZE, PIXELS_PER_UNIT = 48, 3.0


def disk_renderer() -> GlyphRenderer:
    """Draws the 13 pixels within a distance of 2 of the pixel that an object is in."""
    renderer = GlyphRenderer(
        (SIZE, SIZE), reach=5, initial_width=3.0, pixels_per_unit=PIXELS_PER_UNIT
    )
    axis = (torch.arange(renderer.log_depth.shape[0]) - renderer.log_depth.shape[0] // 2) / CELLS
    inside = axis[:, None].square() + axis.square() <= 2.3**2
    with torch.no_grad():
        renderer.log_depth.copy_(torch.where(inside, math.log(4.0), math.log(1e-4)))
        renderer.log_background.fill_(math.log(1e-4))
    return renderer


def true_dynamics(world: World) -> Dynamics:
    """The world's physics in latent units: a step is a frame, a start is left or right."""
    scale = world.pixels_per_unit / PIXELS_PER_UNIT
    dynamics = Dynamics(
        sampling_period=1.0,
        state_noise=1e-6,
        position_noise=float(world.position_covariance[0, 0] * np.prod(np.abs(scale))),
        generator=torch.Generator().manual_seed(0),
    )
    force = np.concatenate([scale, scale]) * world.step_force
    force[2:] *= world.sampling_period
    angle, speed = np.radians(np.mean(world.angles)), np.mean(world.speeds)
    centre, means, factors = (SIZE - 1) / 2, [], []
    for span, side in ((world.left, 1), (world.right, -1)):
        place = world.to_pixels(np.array([np.mean(span), np.mean(world.heights)]))
        velocity = speed * np.array([side * np.cos(angle), np.sin(angle)]) * world.sampling_period
        means.append(np.concatenate([(place - centre) / PIXELS_PER_UNIT, scale * velocity]))
        widths = [span[1] - span[0], world.heights[1] - world.heights[0]]
        spread = np.concatenate([np.abs(scale) * widths / np.sqrt(12), 0.3 * np.abs(means[-1][2:])])
        factors.append(np.diag(np.log(spread)))
    with torch.no_grad():
        dynamics.force.copy_(torch.from_numpy(force))
        dynamics.initial_mean.copy_(torch.from_numpy(np.stack(means)))
        dynamics.initial_factor.copy_(torch.from_numpy(np.stack(factors)))
    return dynamics


def one_kind(seed: int = 0) -> Dynamics:
    """Dynamics with a single start in the middle of the frame."""
    generator = torch.Generator().manual_seed(seed)
    dynamics = Dynamics(
        num_components=1, sampling_period=1.0, state_noise=1e-3, position_noise=0.02,
        initial_spread=1.0, generator=generator,
    )  # fmt: skip
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.0, 0.0, 0.02, -0.03]))
    return dynamics


@pytest.mark.parametrize("num_objects", [1, 2])
def test_with_the_true_parts_objects_are_tracked_to_the_pixel(num_objects: int) -> None:
    world = World(num_frames=30, size=SIZE)
    clips = draw_clips(world, num_clips=6, num_objects=num_objects, seed=3)
    counts = torch.full((6,), num_objects)
    tracker, renderer = Tracker(max_objects=3, window=7), disk_renderer()
    found = tracker.track(clips.frames.float(), counts, true_dynamics(world), renderer)
    assert found.means.shape == (6, 3, 30, 2)
    pixels = renderer.to_pixels(found.means)[:, :num_objects]
    truth = clips.positions[:, :num_objects]
    errors = []
    for b in range(6):
        orders = itertools.permutations(range(num_objects))
        distances = [(pixels[b] - truth[b, list(order)]).norm(dim=-1) for order in orders]
        errors.append(min(distances, key=lambda distance: float(distance.max())))
    error = torch.stack(errors)
    # A disk tells the pixel that it is in, which leaves 1 / sqrt(6) = 0.41 px; where two overlap,
    # less is told.
    assert error.square().mean().sqrt() < 0.5
    assert error.max() < num_objects


def moving_disk(num_frames: int) -> torch.Tensor:
    frames = torch.zeros(1, num_frames, SIZE, SIZE)
    grid = torch.arange(SIZE)
    for t in range(num_frames):
        x, y = 20 + t, 25 - t
        frames[0, t] = ((grid - x) ** 2 + (grid[:, None] - y) ** 2 <= 4).float()
    return frames


GAP = torch.tensor([[True, True, True, False, False, False, False, True]])


def track(frames: torch.Tensor, observed: torch.Tensor) -> Encoding:
    tracker = Tracker(max_objects=1, window=7)
    return tracker.track(frames, torch.tensor([1]), one_kind(), disk_renderer(), observed)


def test_pixels_of_hidden_frames_cannot_matter(generator: torch.Generator) -> None:
    frames = moving_disk(8)
    noise = torch.rand(frames.shape, generator=generator)
    for observed in (GAP, ~GAP):
        filled = torch.where(observed[..., None, None], frames, noise)
        ours, theirs = track(frames, observed), track(filled, observed)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_hidden_object_coasts_on_the_kalman_prediction_with_growing_variance() -> None:
    found = track(moving_disk(8), GAP)
    model, dynamics = one_model(one_kind().components(), (1,), (0,)), one_kind().components()
    means, scales = (part[0, 0].double().numpy() for part in found)
    for t in range(3, 7):
        seen_before = GAP[0].numpy() & (np.arange(8) < t)
        mean, covariance = posterior(model, means, seen_before)
        # The tracker's places are float32 pixels, up to 48: an error of 4e-6.
        np.testing.assert_allclose(means[t], mean[t, :2], atol=1e-5)
        noise = dynamics.position_noise.detach().numpy()
        variance = np.diag(diagonal_blocks(covariance)[t, :2, :2] + noise)
        np.testing.assert_allclose(scales[t], np.sqrt(variance), rtol=1e-5)
    assert (np.diff(scales[2:7], axis=0) > 0).all()
    assert (scales[7] < scales[3]).all()


def test_q_is_what_was_found_with_its_width_scaled() -> None:
    tracker, found = Tracker(max_objects=1, window=7), track(moving_disk(8), GAP)
    with torch.no_grad():
        tracker.log_gain.fill_(math.log(0.5))
    q = tracker(found)
    assert torch.equal(q.means, found.means)
    torch.testing.assert_close(q.scales, 0.5 * found.scales)
    q.scales.sum().backward()
    assert tracker.log_gain.grad is not None
    assert tracker.log_gain.grad > 0
