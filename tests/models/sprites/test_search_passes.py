"""The steps of the search against dense Gaussians and against looking frame by frame."""

import dataclasses

import numpy as np
import pytest
import torch

from motes import kalman
from motes.kalman.dynamics import LinearBelief, LinearDynamics
from motes.models.sprites.forward_pass import forward_pass, predict_place
from motes.models.sprites.likelihood_maps import (
    CropView,
    PixelGaussian,
    SpriteTemplate,
    Window,
    coverage,
    evaluate_window,
    sliding_crops,
    unexplained_fraction,
)
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.search import (
    Detections,
    Scene,
    predict_from_other_frames,
    revisit,
    scene_of,
)
from oracles import diagonal_blocks, log_density, one_model, posterior
from sprite_scenes import disk_renderer, frame_with, odd_renderer

SIZE, UNIT = 48, 3.0


def dynamics_of(num_components: int, seed: int = 0) -> LinearDynamics:
    dynamics = LinearDynamics(
        num_components=num_components,
        sampling_period=1.0,
        state_noise=1e-3,
        position_noise=0.02,
        initial_spread=1.0,
        generator=torch.Generator().manual_seed(seed),
    )
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.0, 0.0, 0.02, -0.03]))
        dynamics.initial_factor[:, 2, 0] = 0.3
    return dynamics


def scene_with(
    frames: torch.Tensor, num_objects: int, dynamics: LinearDynamics
) -> Scene[SpriteRenderer]:
    counts = torch.full((len(frames),), num_objects)
    return scene_of(frames, counts, dynamics, disk_renderer(SIZE, UNIT))


@torch.no_grad()
@pytest.mark.parametrize("share_detected", [1.0, 0.6])
@pytest.mark.parametrize("short", [6, 5], ids=["in one piece", "frame by frame"])
def test_leave_one_out_is_smoothing_without_the_frame(
    share_detected: float, short: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motes.kalman.DENSE_FRAMES", short)
    B, N, T, K = 2, 2, 6, 2
    dynamics = dynamics_of(K)
    scene = scene_with(torch.zeros(B, T, SIZE, SIZE), N, dynamics)
    pixels = 24 + 6 * torch.randn(B, N, T, 2, generator=generator)
    seen = torch.rand(B, N, T, generator=generator) < share_detected
    covariances = torch.full((B, N, T, 2, 2), torch.nan)  # of detections: not used
    expected = predict_from_other_frames(
        scene, Detections(PixelGaussian(pixels, covariances), seen)
    )
    positions = scene.renderer.from_pixels(pixels).double().numpy()
    parts = [one_model(dynamics.components(), (K,), (k,)) for k in range(K)]
    likely = []
    for b, n in np.ndindex(B, N):
        path, mask = positions[b, n], seen[b, n].numpy()
        likely.append(int(np.argmax([log_density(part, path, mask) for part in parts])))
        part = parts[likely[-1]]
        for t in range(T):
            others = mask & (np.arange(T) != t)
            mean, cov = posterior(part, path, others)
            spread = diagonal_blocks(cov)[t, :2, :2] + part.position_noise
            # Pixels up to 100 in float32: an error of 1e-5.
            centre = UNIT * mean[t, :2] + (SIZE - 1) / 2
            np.testing.assert_allclose(expected.mean[b, n, t], centre, rtol=1e-5, atol=2e-5)
            np.testing.assert_allclose(
                expected.covariance[b, n, t], UNIT**2 * spread, rtol=1e-5, atol=1e-6
            )
    assert set(likely) == {0, 1}, "both components should be chosen"


@torch.no_grad()
def test_a_prediction_has_the_moments_of_the_mixture(generator: torch.Generator) -> None:
    B, N, K = 2, 2, 2
    dynamics = dynamics_of(K)
    components = dynamics.components()
    mean = torch.randn(B, N, K, 4, generator=generator, dtype=torch.float64)
    root = torch.randn(B, N, K, 4, 4, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(B, N, K, generator=generator, dtype=torch.float64)
    scene = scene_with(torch.zeros(B, 2, SIZE, SIZE), N, dynamics)
    belief = LinearBelief(components, kalman.StateEstimate(mean, root @ root.mT), log_weights)
    place = predict_place(scene, belief)
    weights = log_weights.exp().numpy()
    weights /= weights.sum(-1, keepdims=True)
    noise = components.position_noise.numpy()
    for b, n in np.ndindex(B, N):
        first = sum(weights[b, n, k] * mean[b, n, k, :2].numpy() for k in range(K))
        second = np.zeros((2, 2))
        for k in range(K):
            m, P = mean[b, n, k, :2].numpy(), (root @ root.mT)[b, n, k, :2, :2].numpy()
            second += weights[b, n, k] * (P + noise + np.outer(m, m))
        second -= np.outer(first, first)
        centre = UNIT * first + (SIZE - 1) / 2
        np.testing.assert_allclose(place.mean[b, n], centre, rtol=1e-6)  # float32
        np.testing.assert_allclose(place.covariance[b, n], UNIT**2 * second, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_revisiting_equals_a_loop_over_frames_and_objects(
    generator: torch.Generator,
) -> None:
    B, N, T, size = 2, 3, 3, (9, 11)
    frames = (torch.rand(B, T, *size, generator=generator) < 0.3).float()
    renderer = odd_renderer(size).float()
    observed = torch.tensor([[True, False, True], [True, True, True]])
    present = torch.tensor([[True, True, True], [True, True, False]])
    scene = scene_of(frames, torch.tensor([3, 2]), dynamics_of(1), renderer, observed)
    template = SpriteTemplate.fine(renderer, window=2)

    def random_place() -> PixelGaussian:
        mean = 2 + 6 * torch.rand(B, N, T, 2, generator=generator)
        root = torch.randn(B, N, T, 2, 2, generator=generator)
        return PixelGaussian(mean, root @ root.mT + torch.eye(2))

    guess, expected = random_place(), random_place()
    cells, found = revisit(scene, template, guess, expected)
    for b, t in np.ndindex(B, T):
        clip, mean = slice(b, b + 1), guess.mean[b, :, t].clone()
        for n in range(N):
            dark = torch.ones(1, *size)
            for other in range(N):
                if other != n and present[b, other]:
                    lit = coverage(template, mean[None, other, None], torch.tensor([[True]]))
                    dark *= 1 - lit.view(1, *size)
            near = Window.around(mean[None, n, None], template.crop_radius, size)
            only = torch.tensor([0])
            view = CropView.through(
                near, template, sliding_crops(frames[clip, t], template.crop_radius), only
            )
            prior = PixelGaussian(
                expected.mean[clip, n, t, None], expected.covariance[clip, n, t, None]
            )
            share = unexplained_fraction(
                template,
                view.background_dark * near.crop(sliding_crops(dark, template.crop_radius), only),
            )
            alone = evaluate_window(template, view, share, prior)
            looked_for = bool(observed[b, t] & present[b, n])
            seen = looked_for and alone.log_likelihood_ratio.item() > template.min_llr
            place = alone.moments() if seen else prior
            mean[n] = place.mean[0, 0]  # the objects after it see it there
            assert found.detected[b, n, t].item() == seen
            pairs = [
                (found.place.mean, place.mean),
                (found.place.covariance, place.covariance),
            ]
            if looked_for:
                pairs += [
                    (cells.centre, alone.centre),
                    (cells.log_weights, alone.log_weights),
                    (cells.log_likelihood_ratio, alone.log_likelihood_ratio),
                ]
            for ours, theirs in pairs:
                # Sums of float32 in another order.
                torch.testing.assert_close(ours[b, n, t], theirs[0, 0], rtol=1e-4, atol=1e-4)
    assert found.detected.any()
    # In a hidden frame nothing is looked at, and nowhere is an object that is not there looked for:
    # all cells are equally likely, and the log-likelihood ratio is 0.
    for b, n, t in [(0, 0, 1), (0, 2, 1), (1, 2, 0), (1, 2, 2)]:
        torch.testing.assert_close(cells.log_weights[b, n, t].exp().sum(), torch.tensor(1.0))
        assert cells.log_likelihood_ratio[b, n, t] == 0


def moving_disk(num_frames: int) -> torch.Tensor:
    """A disk that goes a pixel a frame to the right and up."""
    return torch.cat([frame_with([(20 + t, 25 - t)], SIZE) for t in range(num_frames)])[None]


GAP = torch.tensor([[True, True, True, False, False, False, False, True]])


@torch.no_grad()
def test_in_an_unobserved_frame_an_object_is_at_the_kalman_prediction() -> None:
    dynamics = dynamics_of(1)
    scene = scene_with(moving_disk(8), 1, dynamics)
    found = forward_pass(scene, SpriteTemplate.coarse(scene.renderer, window=7), GAP)
    assert torch.equal(found.detected[:, 0], GAP)
    model = one_model(dynamics.components(), (1,), (0,))
    positions = scene.renderer.from_pixels(found.place.mean[0, 0]).double().numpy()
    covariances = (found.place.covariance[0, 0] / UNIT**2).numpy()
    for t in range(3, 7):
        mean, cov = posterior(model, positions, GAP[0].numpy() & (np.arange(8) < t))
        # The places are float32 pixels, up to 48: an error of 4e-6.
        np.testing.assert_allclose(positions[t], mean[t, :2], atol=1e-5)
        spread = diagonal_blocks(cov)[t, :2, :2] + model.position_noise
        np.testing.assert_allclose(covariances[t], spread, rtol=1e-4, atol=1e-6)
    area = np.linalg.det(covariances)
    assert (np.diff(area[2:7]) > 0).all()
    assert area[7] < area[3]
    truth = torch.tensor([[20.0 + t, 25.0 - t] for t in range(8)])
    assert (found.place.mean[0, 0] - truth)[GAP[0]].abs().max() < 0.5


@torch.no_grad()
def test_an_object_is_detected_in_the_first_trusted_frame() -> None:
    scene = scene_with(moving_disk(8), 1, dynamics_of(1))
    late = torch.arange(8)[None] >= 5
    found = forward_pass(scene, SpriteTemplate.coarse(scene.renderer, window=7), late)
    assert torch.equal(found.detected[:, 0], late)
    truth = torch.tensor([[20.0 + t, 25.0 - t] for t in range(8)])
    assert (found.place.mean[0, 0] - truth)[5:].abs().max() < 0.5


@torch.no_grad()
def test_an_occluded_object_is_tracked_without_detection() -> None:
    scene = scene_with(moving_disk(8), 1, dynamics_of(1))
    scene.renderer.visibility_logit[:, 21:] = -20.0  # from the fourth frame on all is behind it
    scene.frames[..., 21:] = 0
    everything = torch.ones(1, 8, dtype=torch.bool)
    found = forward_pass(scene, SpriteTemplate.coarse(scene.renderer, window=7), everything)
    assert found.detected[0, 0, :3].all()
    assert not found.detected[0, 0, 3:].any()
    assert (torch.linalg.det(found.place.covariance[0, 0, 3:]).diff() > 0).all()


def disks(places: list[list[tuple[int, int]]]) -> torch.Tensor:
    """A clip with disks at these pixels (x, y), frame by frame."""
    return torch.cat([frame_with(those, SIZE) for those in places])[None]


@torch.no_grad()
@pytest.mark.parametrize(("state_noise", "redetected"), [(0.1, True), (1e-4, False)])
def test_a_lost_object_is_redetected_where_its_dynamics_allow_it(
    state_noise: float, redetected: bool
) -> None:
    """Two frames without it, then it shows 25 pixels from where it should be."""
    places = [[(8 + t, 25)] for t in range(4)] + [[], []] + [[(39, 25)], [(40, 25)]]
    dynamics = dynamics_of(1)
    with torch.no_grad():
        dynamics.force.zero_()
        dynamics.state_factor.copy_(torch.eye(4) * 0.5 * np.log(state_noise))
    scene = scene_with(disks(places), 1, dynamics)
    everything = torch.ones(1, 8, dtype=torch.bool)
    found = forward_pass(scene, SpriteTemplate.coarse(scene.renderer, window=3), everything)
    assert found.detected[0, 0].tolist() == [True] * 4 + [False] * 2 + [redetected] * 2
    if redetected:
        torch.testing.assert_close(found.place.mean[0, 0, 6], torch.tensor([39.0, 25.0]))


@torch.no_grad()
def test_an_object_that_appears_later_is_detected_when_it_does() -> None:
    static_crops, late = (10, 10), (38, 30)
    scene = scene_with(disks([[static_crops]] * 3 + [[static_crops, late]] * 3), 2, dynamics_of(1))
    with torch.no_grad():
        scene.dynamics.force.zero_()
        scene.dynamics.initial_factor[:, range(4), range(4)] = np.log(4.0)
    everything = torch.ones(1, 6, dtype=torch.bool)
    found = forward_pass(scene, SpriteTemplate.coarse(scene.renderer, window=5), everything)
    seen = found.detected[0]
    order = [0, 1] if seen[0, 0] else [1, 0]
    assert seen[order].tolist() == [[True] * 6, [False] * 3 + [True] * 3]
    ends = found.place.mean[0, order, 5]
    torch.testing.assert_close(ends, torch.tensor([static_crops, late]).float())


def test_unobserved_frames_are_not_shown_to_the_search(generator: torch.Generator) -> None:
    frames = torch.rand(2, 4, SIZE, SIZE, generator=generator)
    observed = torch.tensor([[True, False, True, True], [True, True, True, False]])
    blank = torch.where(observed[:, :, None, None], frames, 0.0)
    spoiled = torch.where(observed[:, :, None, None], frames, torch.nan)
    counts = torch.tensor([1, 1])
    one = scene_of(spoiled, counts, dynamics_of(1), disk_renderer(SIZE, UNIT), observed)
    scene, clips = one.select(torch.tensor([1, 0, 1])), torch.tensor([1, 0, 1])
    assert torch.equal(scene.during(slice(1, 4)).frames, blank[clips, 1:4])
    for t in range(4):
        assert torch.equal(scene.frame(t), blank[clips, t])
    last = torch.tensor([3, 1, 0])
    assert torch.equal(scene.frame(last), blank[clips, last])
    window = Window.at(torch.tensor([[[5, 7]]]).expand(9, 1, 2), 3, (SIZE, SIZE))
    shown = dataclasses.replace(scene, frames=spoiled[..., None]).frame_batch(slice(1, 4))
    seen = blank[clips, 1:4, 4:11, 2:9].flatten(0, 1)
    assert torch.equal(shown.crop(window)[:, 0, ..., 0], seen)
    assert spoiled.isnan().any()  # they are still as they were


@torch.no_grad()
def test_absent_objects_need_no_windows() -> None:
    """Clips of one, two and three objects, in a batch and each by itself, to rounding."""
    spots = [(10, 12), (30, 20), (22, 38)]
    frames = torch.stack([
        torch.cat([frame_with([(x + t, y) for x, y in spots[:count]], SIZE) for t in range(6)])
        for count in (1, 2, 3)
    ])  # fmt: skip
    dynamics, renderer = dynamics_of(2), disk_renderer(SIZE, UNIT)
    scene = scene_of(frames, torch.tensor([1, 2, 3]), dynamics, renderer)
    template = SpriteTemplate.coarse(renderer, 7)
    found = forward_pass(scene, template, scene.observed)
    assert not found.detected[~scene.present].any()
    for clip, count in enumerate((1, 2, 3)):
        alone = scene_with(frames[clip : clip + 1], count, dynamics)
        own = forward_pass(alone, template, alone.observed)
        assert torch.equal(found.detected[clip, :count], own.detected[0])
        torch.testing.assert_close(
            found.place.mean[clip, :count], own.place.mean[0], rtol=0, atol=1e-4
        )
        torch.testing.assert_close(
            found.place.covariance[clip, :count], own.place.covariance[0], rtol=0, atol=1e-4
        )
