"""Exchanges of tracks against the evidence of the tracks that they make."""

import itertools

import pytest
import torch

from glyphs import disk_renderer
from motes import mixture
from motes.lgssm import Dynamics
from motes.structured.exchange import (
    best_exchange,
    best_exchange_in_frames,
    exchange_gains,
    overlap,
)
from motes.structured.places import Place
from motes.structured.search import Scene, Sightings


def dynamics_of(state_noise: float = 1e-3) -> Dynamics:
    dynamics = Dynamics(
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
def test_what_two_tracks_gain_is_the_evidence_of_the_exchanged_ones(
    state_noise: float, generator: torch.Generator
) -> None:
    B, N, T = 2, 3, 6
    dynamics = dynamics_of(state_noise)
    positions = torch.randn(B, N, T, 2, generator=generator, dtype=torch.float64)
    seen = torch.rand(B, N, T, generator=generator) < 0.7
    positions[~seen] = torch.nan  # cannot matter
    gains = exchange_gains(dynamics, positions, seen)
    for b, one, other, t in itertools.product(range(B), range(N), range(N), range(T)):
        path = exchanged(positions[b], one, other, t)
        after = mixture.log_prior(dynamics, path, exchanged(seen[b], one, other, t)).sum()
        before = mixture.log_prior(dynamics, positions[b], seen[b]).sum()
        # Sums of a hundred terms of up to a thousand nats.
        torch.testing.assert_close(gains[b, one, other, t], after - before, rtol=1e-9, atol=1e-7)


def straight_paths() -> tuple[Scene, torch.Tensor]:
    """Three objects of two clips, the last one absent from the second, and their places."""
    dynamics, renderer = dynamics_of(1e-4), disk_renderer(48)
    with torch.no_grad():
        dynamics.force.zero_()
        assert dynamics.force_field is not None
        dynamics.force_field.zero_()
        dynamics.initial_factor.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    time = torch.arange(9.0)[:, None]
    starts = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [2.0, 1.0]])
    speeds = torch.tensor([[0.1, 0.0], [0.4, 0.1], [-0.4, 0.1]])
    present = torch.tensor([[True, True, True], [True, True, False]])
    frames, observed = torch.zeros(2, 9, 48, 48), torch.ones(2, 9, dtype=torch.bool)
    scene = Scene(frames, observed, present.sum(1), present, dynamics, renderer)
    return scene, renderer.to_pixels(starts[:, None] + time * speeds[:, None])


def sighted(places: torch.Tensor, seen: torch.Tensor) -> Sightings:
    """The same in both clips."""
    spread = 0.1 * torch.eye(2).expand(2, *places.shape, 2)
    return Sightings(Place(torch.stack([places] * 2), spread), torch.stack([seen] * 2))


@torch.no_grad()
def test_the_best_exchange_undoes_one_and_leaves_absent_objects_alone() -> None:
    """The last two objects are exchanged from frame 5 on."""
    scene, truth = straight_paths()
    found = sighted(exchanged(truth, 1, 2, 5), torch.ones(3, 9, dtype=torch.bool))
    gain, source = best_exchange(scene, torch.arange(2), found, found.place)
    assert gain[0] > 10
    torch.testing.assert_close(found.reordered(source).place.mean[0], truth)
    assert (source[1, 2] == 2).all()


@torch.no_grad()
def test_exchanges_in_single_frames_are_undone_where_only_one_was_seen_too() -> None:
    """Objects 1 and 2 in frame 2, 0 and 1 in frame 6; there the true object 1 was not seen."""
    scene, truth = straight_paths()
    wrong, seen = truth.clone(), torch.ones(3, 9, dtype=torch.bool)
    seen[1, 6] = False
    shown = seen.clone()
    for one, other, frame in ((1, 2, 2), (0, 1, 6)):
        pair, turned = torch.tensor([one, other]), torch.tensor([other, one])
        wrong[pair, frame], shown[pair, frame] = truth[turned, frame], seen[turned, frame]
    expected = sighted(truth, seen).place
    found = sighted(wrong, shown)
    gain, source = best_exchange_in_frames(scene, torch.arange(2), found, expected)
    right = found.reordered(source)
    assert torch.equal(right.seen[0], seen)
    assert torch.equal(right.place.mean[0], truth)
    # In nats of the Gaussians where they are expected: both places, or the one that was seen.
    far = [(truth[one] - truth[other]).square().sum(-1) / 0.1 for one, other in ((1, 2), (0, 1))]
    torch.testing.assert_close(gain[0], far[0][2] + 0.5 * far[1][6])
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
