"""The tracker with parts that are known: a disk, and the physics of the cannonballs."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.scale import peak_memory
from motes.data import World, draw_clips
from motes.kalman.dynamics import LinearDynamics
from motes.models.model import Model
from motes.models.protocols import Search
from motes.models.sprites import long_clips
from motes.models.sprites.forward_pass import forward_pass
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian, SpriteTemplate
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.search import (
    REVISITS,
    Detections,
    Tracker,
    delayed_starts,
    predict_from_other_frames,
    revisit,
    scene_of,
)
from oracles import diagonal_blocks, one_model, posterior
from sprite_scenes import disk_renderer, frame_with, straight

SIZE, PIXELS_PER_UNIT, WINDOW = 48, 3.0, 7


def true_dynamics(world: World) -> LinearDynamics:
    """The world's physics in latent units: a step is a frame, a start is left or right."""
    scale = world.pixels_per_unit / PIXELS_PER_UNIT
    dynamics = LinearDynamics(
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


@torch.no_grad()
def track(
    frames: torch.Tensor,
    count: int = 1,
    observed: torch.Tensor | None = None,
    renderer: SpriteRenderer | None = None,
    hypotheses: int = 1,
    max_objects: int = 1,
    dynamics: LinearDynamics | None = None,
    explore: float = 0.0,
) -> GridPosterior:
    renderer = disk_renderer(SIZE) if renderer is None else renderer
    dynamics = straight() if dynamics is None else dynamics
    parts, size = (dynamics, renderer, Tracker(WINDOW)), (SIZE, SIZE)
    model = Model(*parts, image_size=size, max_objects=max_objects)
    counts = torch.full((len(frames),), count)
    q = model.infer(frames, counts, observed, Search(hypotheses, explore))
    assert isinstance(q, GridPosterior)
    return q


def pixels(q: GridPosterior) -> torch.Tensor:
    return disk_renderer(SIZE).to_pixels(q.means)


def errors_of(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Distances in the order of objects that fits the whole clip best."""
    orders = itertools.permutations(range(len(truth)))
    distances = [(found[list(order)] - truth).norm(dim=-1) for order in orders]
    return min(distances, key=lambda distance: float(distance.max()))


@pytest.mark.parametrize("num_objects", [1, 2])
def test_with_the_true_model_objects_are_tracked_to_the_pixel(num_objects: int) -> None:
    world = World(num_frames=30, size=SIZE)
    clips = draw_clips(world, num_clips=6, num_objects=num_objects, seed=3)
    frames, dynamics = clips.frames.float(), true_dynamics(world)
    found = track(frames, num_objects, max_objects=3, dynamics=dynamics)
    assert found.means.shape == (6, 3, 30, 2)
    places = pixels(found)[:, :num_objects]
    truth = clips.positions[:, :num_objects].float()
    error = torch.stack([errors_of(places[b], truth[b]) for b in range(6)])
    # A disk shows which pixel it is in, which leaves 1 / sqrt(6) = 0.41 px; where two overlap,
    # it shows less.
    assert error.square().mean().sqrt() < 0.5
    assert error.max() < num_objects


def moving_disk(num_frames: int) -> torch.Tensor:
    """A disk that goes a pixel a frame to the right and up."""
    return torch.cat([frame_with([(20 + t, 25 - t)], SIZE) for t in range(num_frames)])[None]


GAP = torch.tensor([[True, True, True, False, False, False, False, True]])


@pytest.mark.parametrize("count", [1, 2])
def test_pixels_of_unobserved_frames_cannot_matter(count: int, generator: torch.Generator) -> None:
    frames = moving_disk(8)
    noise = torch.rand(frames.shape, generator=generator)
    draw = torch.randn(1, count, 8, 2, generator=generator)
    for observed, filling in ((GAP, torch.tensor(torch.nan)), (~GAP, noise)):
        filled = torch.where(observed[..., None, None], frames, filling)
        ours, theirs = (track(given, count, observed, hypotheses=3) for given in (frames, filled))
        assert torch.equal(ours.detected, theirs.detected)
        assert torch.equal(ours.draw(draw), theirs.draw(draw))
        assert torch.equal(ours.covariances(), theirs.covariances())
        assert torch.equal(ours.entropy(), theirs.entropy())


@torch.no_grad()
def test_in_an_unobserved_frame_q_is_the_prediction_from_observed_frames() -> None:
    """q there is the dense Gaussian of the path, given the coarse places in the seen frames."""
    dynamics, renderer, frames = straight(), disk_renderer(SIZE), moving_disk(8)
    q = track(frames, observed=GAP)
    scene = scene_of(frames, torch.tensor([1]), dynamics, renderer, GAP)
    coarse = SpriteTemplate.coarse(renderer, WINDOW)
    found = forward_pass(scene, coarse, GAP)
    expected = predict_from_other_frames(scene, found)
    place = PixelGaussian.where(GAP[:, None], found.place, expected)
    for _ in range(REVISITS):
        _, found = revisit(scene, coarse, place, expected)
        place, expected = found.place, predict_from_other_frames(scene, found)
    positions = renderer.from_pixels(found.place.mean[0, 0]).double().numpy()
    model = one_model(dynamics.components(), (1,), (0,))
    mean, cov = posterior(model, positions, GAP[0].numpy())
    spread = diagonal_blocks(cov)[:, :2, :2] + model.position_noise
    hidden = ~GAP[0]
    assert torch.equal(q.detected[0, 0], GAP[0])
    # Places are float32 pixels, up to 48: an error of 4e-6.
    np.testing.assert_allclose(q.means[0, 0, hidden], mean[hidden, :2], atol=1e-5)
    np.testing.assert_allclose(q.covariances()[0, 0, hidden], spread[hidden], rtol=1e-4, atol=1e-6)
    truth = torch.tensor([[20.0 + t, 25.0 - t] for t in range(8)])
    assert (pixels(q)[0, 0] - truth).abs().max() < 0.5


def test_an_occluded_object_follows_its_dynamics_undetected() -> None:
    """A disk of width 5 goes two pixels a frame behind an occluder of 12 columns."""
    T, renderer = 16, disk_renderer(SIZE)
    x = [8 + 2 * t for t in range(T)]
    frames = torch.cat([frame_with([(place, 20)], SIZE) for place in x])[None]
    frames[..., 18:30] = 0
    with torch.no_grad():
        renderer.visibility_logit[:, 18:30] = -20.0
    q = track(frames, renderer=renderer)
    whole = torch.tensor([place + 2 < 18 or place - 2 > 29 for place in x])
    behind = torch.tensor([place - 2 >= 18 and place + 2 <= 29 for place in x])
    assert behind.sum() == 4
    assert q.detected[0, 0, whole].all()
    assert not q.detected[0, 0, behind].any()
    assert (q.entropy()[0, 0, behind] == 0).all()
    found = pixels(q)[0, 0]
    truth = torch.tensor([[float(place), 20.0] for place in x])
    covariances = q.covariances()[0, 0] * PIXELS_PER_UNIT**2
    area = torch.linalg.det(covariances.double()).sqrt()
    assert area[behind].min() > 2 * area[whole].max()
    # Uncertainty grows from both sides to the middle of the occluder.
    first, last = behind.nonzero()[0].item(), behind.nonzero()[-1].item()
    assert area[first] < area[first + 1]
    assert area[last] < area[last - 1]
    assert (found - truth)[whole].norm(dim=-1).max() < 0.75
    gap = (found - truth)[behind].double()
    distance = (gap * torch.linalg.solve(covariances[behind].double(), gap)).sum(-1)
    assert (distance < -2 * math.log(1e-3)).all()  # all four within the ellipse of 99.9 %


def test_an_occluded_object_is_not_detected_in_the_residue_of_a_dim_sprite() -> None:
    """A sprite of depth 2 leaves a pixel dark once in seven times: two explain a disk better."""
    renderer = disk_renderer(SIZE)
    frames = torch.cat([frame_with([(10 + t, 36)], SIZE) for t in range(12)])[None]
    with torch.no_grad():
        renderer.root_depth *= math.sqrt(2 / renderer.root_depth.square().max())
        renderer.visibility_logit[4:24, 4:24] = -20.0
    q = track(frames, 2, renderer=renderer, max_objects=2)
    assert q.detected[0].sum(0).tolist() == [1] * 12


def parting_disks(num_frames: int = 18) -> tuple[torch.Tensor, torch.Tensor]:
    """Two disks that coincide in the first frame and go apart, and their places."""
    places = [[(24 - t, 14 + t), (24 + t, 14 + t)] for t in range(num_frames)]
    frames = torch.cat([frame_with(pair, SIZE) for pair in places])[None]
    return frames, torch.tensor(places).float().transpose(0, 1)


@torch.no_grad()
def bound_at_means(q: GridPosterior, frames: torch.Tensor) -> float:
    """The bound with the means of q for a draw."""
    everyone = torch.ones(q.detected.shape[:2], dtype=torch.bool)
    nats = disk_renderer(SIZE).log_likelihood(q.means, everyone, frames).sum()
    prior = straight().track_log_density(q.means, q.detected).sum()
    return float(nats + q.entropy().sum() + prior)


def flash_at_first(num_frames: int = 18) -> tuple[torch.Tensor, torch.Tensor]:
    """Two disks, of which the first frame shows one and a flash elsewhere, and their places."""
    places = [[(8 + t, 10 + t), (40 - t, 40 - t)] for t in range(num_frames)]
    shown = [[places[0][0], (30, 8)], *places[1:]]
    frames = torch.cat([frame_with(pair, SIZE) for pair in shown])[None]
    return frames, torch.tensor(places).float().transpose(0, 1)


def test_objects_that_overlap_at_first_are_separated() -> None:
    frames, truth = parting_disks()
    assert errors_of(pixels(track(frames, 2, max_objects=2))[0], truth).max() < 0.5


def test_a_later_start_ignores_a_flash_in_the_first_frame() -> None:
    frames, truth = flash_at_first()
    one, three = (track(frames, 2, hypotheses=number, max_objects=2) for number in (1, 3))
    assert errors_of(pixels(one)[0], truth).max() > 10  # a path through the flash leads astray
    assert errors_of(pixels(three)[0], truth).max() < 0.5
    assert bound_at_means(three, frames) > bound_at_means(one, frames)


@torch.no_grad()
def test_swapped_tracks_are_swapped_back() -> None:
    """In the second clip nothing is wrong, and nothing is changed."""
    frames, truth = parting_disks()
    renderer = disk_renderer(SIZE)
    scene = scene_of(frames, torch.tensor([2]), straight(), renderer).repeated(2)
    wrong = torch.cat([truth[:, :9], truth.flip(0)[:, 9:]], 1)
    place = PixelGaussian(torch.stack([wrong, truth]), torch.eye(2).expand(2, 2, 18, 2, 2))
    found = Detections(place, torch.ones(2, 2, 18, dtype=torch.bool))
    expected = predict_from_other_frames(scene, found)
    coarse, unknown = SpriteTemplate.coarse(renderer, WINDOW), torch.full((2,), torch.nan)
    after, there, _ = Tracker(WINDOW)._undo_swaps(scene, coarse, found, expected, unknown)
    assert (after.place.mean[0] - truth).abs().max() < 0.5
    torch.testing.assert_close(there.mean, predict_from_other_frames(scene, after).mean)
    assert torch.equal(after.place.mean[1], truth)


@torch.no_grad()
def test_a_swap_that_lowers_the_bound_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior alone would swap two tracks that the frames show to be right."""
    places = [[(8 + t, 10), (40 - t, 40)] for t in range(18)]
    frames = torch.cat([frame_with(pair, SIZE) for pair in places])[None]
    truth = torch.tensor(places).float().transpose(0, 1)[None]
    renderer, dynamics = disk_renderer(SIZE), straight()
    scene = scene_of(frames, torch.tensor([2]), dynamics, renderer)
    place = PixelGaussian(truth, torch.eye(2).expand(1, 2, 18, 2, 2))
    found = Detections(place, torch.ones(1, 2, 18, dtype=torch.bool))
    expected = predict_from_other_frames(scene, found)
    gain = torch.zeros(1, 2, 2, 18)
    gain[0, 0, 1, 9] = 5.0
    gains = iter([gain])  # offered once: a second swap would undo the first
    monkeypatch.setattr(
        dynamics, "swap_gains", lambda *given: next(gains, 0 * gain)[: len(given[0])]
    )
    after, *_ = Tracker(WINDOW)._undo_swaps(
        scene, SpriteTemplate.coarse(renderer, WINDOW), found, expected, torch.full((1,), torch.nan)
    )
    assert torch.equal(after.place.mean, truth)


def test_each_clip_has_its_own_best_hypothesis() -> None:
    flash, truth = flash_at_first()
    # From the sides to the middle: here the first frame is the best to begin with.
    parting, apart = parting_disks()
    frames = torch.cat([flash, parting.flip(1)])
    places = torch.stack([truth, apart.flip(1)])
    q = track(frames, 2, hypotheses=3, max_objects=2)
    for b in range(2):
        alone = track(frames[b : b + 1], 2, hypotheses=3, max_objects=2)
        torch.testing.assert_close(q.means[b : b + 1], alone.means)
        assert errors_of(pixels(q)[b], places[b]).max() < 0.5


def test_settled_clips_need_one_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the search that follows all hypotheses of all clips, to rounding."""
    world = World(num_frames=20, size=SIZE)
    drawn = draw_clips(world, num_clips=5, num_objects=2, seed=3).frames.float()
    flash = torch.nn.functional.pad(flash_at_first()[0], (0, 0, 0, 0, 0, 2))
    observed = torch.ones(6, 20, dtype=torch.bool)
    observed[5, 18:] = False
    given = (torch.cat([drawn, flash]), 2, observed)
    options = {"hypotheses": 3, "max_objects": 2, "dynamics": true_dynamics(world)}
    settled: list[list[bool]] = []
    settle = long_clips.is_settled

    def noted(*scene: Any) -> torch.Tensor:
        flags = settle(*scene)
        settled.append(flags.tolist())
        return flags

    monkeypatch.setattr(long_clips, "is_settled", noted)
    once = track(*given, **options)
    # At least one clip is decided at once, and the one with a flash is not.
    ((*others, last),) = settled
    assert sum(others) >= 3
    assert not last
    monkeypatch.setattr(long_clips, "is_settled", lambda *scene: torch.zeros(6, dtype=torch.bool))
    every = track(*given, **options)

    def together(self: Tracker, scene: Any, hypotheses: int) -> Any:
        return self._search_together(scene, delayed_starts(scene.observed, hypotheses), hypotheses)

    monkeypatch.setattr(Tracker, "_best_search", together)  # as on a GPU
    joined = track(*given, **options)
    for one, three, same in zip(pixels(once), pixels(every), pixels(joined), strict=True):
        assert errors_of(one, three).max() < 1e-3
        assert errors_of(same, three).max() < 1e-3


@pytest.mark.parametrize("chunk_frames", [1, 5])
def test_revisiting_in_blocks_equals_revisiting_at_once(
    chunk_frames: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    parting, _ = parting_disks()
    frames = torch.cat([parting, parting.flip(1)])
    observed = torch.rand(2, 18, generator=generator) < 0.8
    whole = track(frames, 2, observed, hypotheses=3, max_objects=2)
    pixels_of_a_frame = 3 * 2 * 2 * SIZE**2  # in three searches of two clips of two objects
    monkeypatch.setattr(
        "motes.models.sprites.search.CHUNK_PIXELS", chunk_frames * pixels_of_a_frame
    )
    pieces = track(frames, 2, observed, hypotheses=3, max_objects=2)
    assert torch.equal(pieces.detected, whole.detected)
    # The same numbers; a convolution of fewer frames may add them in another order.
    torch.testing.assert_close(pieces.means, whole.means)
    torch.testing.assert_close(pieces.log_weights.exp(), whole.log_weights.exp())
    torch.testing.assert_close(pieces.covariances(), whole.covariances())


@pytest.mark.slow
def test_memory_for_pixels_does_not_grow_with_the_clip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parting, _ = parting_disks(10)
    there_and_back = torch.cat([parting, parting.flip(1)], 1)
    track(there_and_back, 2, max_objects=2)  # what the first call keeps is not counted
    monkeypatch.setattr("motes.models.sprites.search.CHUNK_PIXELS", 20 * 2 * SIZE**2)  # 20 frames
    frames = there_and_back.repeat(1, 35, 1, 1)
    with peak_memory() as grown:
        track(frames, 2, max_objects=2)
    # q holds 400 numbers for each object and frame, twice while its parts are joined, and the
    # smoother some 10 kB: 18 MiB of 700 frames. Six pictures of each at once would be 100.
    assert grown.peak < 45


def test_more_objects_than_in_training_can_be_searched_for() -> None:
    starts = torch.tensor([[8, 10], [24, 30], [38, 12]])
    places = [(starts + torch.tensor([[1, 1], [0, -1], [-1, 1]]) * t) for t in range(6)]
    frames = torch.cat([frame_with([tuple(xy) for xy in now.tolist()], SIZE) for now in places])
    q = track(frames[None], 3, max_objects=1)
    assert q.means.shape == (1, 3, 6, 2)
    truth = torch.stack(places, 1).float()
    assert (pixels(q)[0] - truth).abs().max() < 0.5  # from left to right


def test_absent_objects_do_not_affect_present_ones() -> None:
    frames = moving_disk(6)
    alone = track(frames, max_objects=1)
    with_slots = track(frames, max_objects=3)
    for name in ("means", "detected"):
        ours, theirs = getattr(with_slots, name), getattr(alone, name)
        torch.testing.assert_close(ours[:, :1], theirs)


def test_exploration_spreads_a_share_of_q_over_the_cells_of_a_pixel() -> None:
    frames, renderer = moving_disk(4), disk_renderer(SIZE)
    with torch.no_grad():
        renderer.root_depth[:, ::4] = 0.5  # some cells look bad
    plain, bold = (track(frames, renderer=renderer, explore=share) for share in (0.0, 0.2))
    by_cell = plain.log_weights.exp().unflatten(-1, (16, -1))  # cells of a pixel, pixels
    expected = 0.8 * by_cell + 0.2 * by_cell.mean(-2, keepdim=True)
    torch.testing.assert_close(bold.log_weights.exp(), expected.flatten(-2))
    assert (bold.log_weights > plain.log_weights + 1).any()
