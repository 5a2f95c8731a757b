"""Exchanges of tracks against the evidence of the tracks that they make."""

import itertools

import pytest
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.forward_pass import Detections
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.track_swaps import (
    APART,
    best_exchanges,
    gains_in_frame,
    gains_onwards,
    overlap,
)


def dynamics_of(state_noise: float = 1e-3) -> LinearDynamics:
    dynamics = LinearDynamics(
        num_components=2,
        sampling_period=0.7,
        state_noise=state_noise,
        position_noise=0.02,
        linear=True,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.1, 0.0, 0.02, -0.03]))
        dynamics.logits.copy_(torch.tensor([0.3, -0.4]))
        dynamics.initial_factor[:, 2, 0] = 0.3
        assert dynamics.force_field is not None
        dynamics.force_field.copy_(0.1 * torch.arange(8.0).view(2, 4).cos())
    return dynamics


def exchanged(values: torch.Tensor, one: int, other: int, frame: int) -> torch.Tensor:
    """One clip whose two objects are one another from a frame on."""
    swapped = values.clone()
    swapped[one, frame:], swapped[other, frame:] = values[other, frame:], values[one, frame:]
    return swapped


@torch.no_grad()
@pytest.mark.parametrize("state_noise", [1e-3, 1e-12])
@pytest.mark.parametrize("frames_at_once", [6, 4, 1])
def test_what_two_tracks_gain_is_the_evidence_of_the_exchanged_ones(
    frames_at_once: int,
    state_noise: float,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    monkeypatch.setattr("motes.models.sprites.track_swaps.AT_ONCE", frames_at_once)
    B, N, T = 2, 3, 6
    dynamics = dynamics_of(state_noise)
    positions = torch.randn(B, N, T, 2, generator=generator, dtype=torch.float64)
    seen = torch.rand(B, N, T, generator=generator) < 0.7
    seen[1] = seen[1, 0]  # in the same frames
    positions[~seen] = torch.nan  # cannot matter
    gains = gains_onwards(dynamics, positions, seen)
    assert (gains[..., 0] == 0).all()  # names alone: rounding must not make it look worth while
    for b, one, other, t in itertools.product(range(B), range(N), range(N), range(T)):
        path = exchanged(positions[b], one, other, t)
        after = dynamics.track_log_density(path, exchanged(seen[b], one, other, t)).sum()
        before = dynamics.track_log_density(positions[b], seen[b]).sum()
        # Sums of a hundred terms of up to a thousand nats.
        torch.testing.assert_close(gains[b, one, other, t], after - before, rtol=1e-9, atol=1e-7)


def straight_paths() -> tuple[LinearDynamics, torch.Tensor]:
    """Three objects that go straight on, and their positions."""
    dynamics = dynamics_of(1e-4)
    with torch.no_grad():
        dynamics.force.zero_()
        assert dynamics.force_field is not None
        dynamics.force_field.zero_()
        dynamics.initial_factor.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    starts = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [2.0, 1.0]])
    speeds = torch.tensor([[0.1, 0.0], [0.4, 0.1], [-0.4, 0.1]])
    return dynamics, starts[:, None] + torch.arange(9.0)[:, None] * speeds[:, None]


def sighted(places: torch.Tensor, seen: torch.Tensor) -> Detections:
    """The same in two clips."""
    spread = 0.1 * torch.eye(2).expand(2, *places.shape, 2)
    return Detections(PixelGaussian(torch.stack([places] * 2), spread), torch.stack([seen] * 2))


PRESENT = torch.tensor([[True, True, True], [True, True, False]])


@torch.no_grad()
def test_the_best_exchange_undoes_one_and_leaves_absent_objects_alone() -> None:
    """The last two objects are exchanged from frame 5 on."""
    dynamics, truth = straight_paths()
    found = sighted(exchanged(truth, 1, 2, 5), torch.ones(3, 9, dtype=torch.bool))
    gains = gains_onwards(dynamics, found.place.mean, found.seen)
    gain, source = best_exchanges(gains, PRESENT, onwards=True)
    assert gain[0] > 10
    torch.testing.assert_close(found.reordered(source).place.mean[0], truth)
    assert (source[1, 2] == 2).all()


@torch.no_grad()
def test_exchanges_far_apart_in_a_long_clip_are_undone_at_once() -> None:
    """Of three objects that go round, two are exchanged three times, not always the same two."""
    dynamics, _ = straight_paths()
    time = torch.arange(APART * 4.0)
    angle = time / 10 + torch.tensor([[0.0], [2.1], [4.2]])
    truth = 2 * torch.stack([angle.cos(), angle.sin()], -1)
    wrong = truth
    for one, other, frame in [(0, 1, 30), (1, 2, 30 + APART), (0, 2, 40 + 2 * APART)]:
        wrong = exchanged(wrong, one, other, frame)
    found = sighted(wrong, torch.ones(3, len(time), dtype=torch.bool))
    gains = gains_onwards(dynamics, found.place.mean, found.seen)
    everyone = torch.ones(2, 3, dtype=torch.bool)
    _, source = best_exchanges(gains, everyone, onwards=True)
    assert torch.equal(found.reordered(source).place.mean[0], truth)


@torch.no_grad()
@pytest.mark.parametrize("both", [True, False])
def test_an_exchange_in_one_frame_is_undone_where_only_one_was_seen_too(both: bool) -> None:
    _, truth = straight_paths()
    wrong, seen = truth.clone(), torch.ones(3, 9, dtype=torch.bool)
    seen[2, 7] = both
    shown = seen.clone()
    wrong[[1, 2], 7], shown[[1, 2], 7] = truth[[2, 1], 7], seen[[2, 1], 7]
    found, expected = sighted(wrong, shown), sighted(truth, seen).place
    gain, source = best_exchanges(gains_in_frame(found, expected), PRESENT, onwards=False)
    right = found.reordered(source)
    assert torch.equal(right.seen[0], seen)
    assert torch.equal(right.place.mean[0], truth)
    # In nats of the Gaussians where they are expected: of both places, or of the one seen.
    crop_radius = (truth[1, 7] - truth[2, 7]).square().sum() / 0.1
    torch.testing.assert_close(gain[0], crop_radius if both else crop_radius / 2)
    assert (source[1, 2] == 2).all()


def test_the_overlap_of_a_belief_is_an_average_over_draws(generator: torch.Generator) -> None:
    root, bend = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64).unbind(0)
    mean, slope = 0.3 * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    root[:, 0] = 0  # a direction without noise
    curvature = 0.2 * bend @ bend.T
    draws = torch.randn(400_000, 4, generator=generator, dtype=torch.float64) @ (0.5 * root).T
    draws = mean + draws
    exponent = draws @ slope - 0.5 * ((draws @ curvature) * draws).sum(-1)
    ours = overlap(mean, 0.25 * root @ root.T, curvature, slope).exp()
    # Five standard errors of the average.
    error = exponent.exp().std() / len(draws) ** 0.5
    assert abs(ours - exponent.exp().mean()) < 5 * error
