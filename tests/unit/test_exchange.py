"""Exchanges of tracks against the evidence of the tracks that they make."""

import itertools

import pytest
import torch

from motes import mixture
from motes.lgssm import Dynamics
from motes.structured.exchange import best_exchange, exchange_gains, overlap


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


@torch.no_grad()
def test_the_best_exchange_undoes_one_and_leaves_absent_objects_alone() -> None:
    """Straight paths of three objects, the last two exchanged from frame 5 on."""
    dynamics = dynamics_of(1e-4)
    with torch.no_grad():
        dynamics.force.zero_()
        dynamics.force_field.zero_()
        dynamics.initial_factor.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    time = torch.arange(9.0)[:, None]
    starts = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [2.0, 1.0]])
    speeds = torch.tensor([[0.1, 0.0], [0.4, 0.1], [-0.4, 0.1]])
    truth = starts[:, None] + time * speeds[:, None]
    positions = torch.stack([exchanged(truth, 1, 2, 5)] * 2)
    seen, present = torch.ones(2, 3, 9, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
    present[1, 2] = False
    gain, source = best_exchange(dynamics, positions, seen, present)
    assert gain[0] > 10
    torch.testing.assert_close(positions[0].take_along_dim(source[0, ..., None], 0), truth)
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
