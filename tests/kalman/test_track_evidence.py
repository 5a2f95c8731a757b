"""Evidence of swapped tracks, against the evidence of the tracks that swaps make."""

import itertools

import pytest
import torch

from motes.kalman.track_evidence import by_smoothing, overlap
from track_scenes import linear_dynamics, swapped_from


@torch.no_grad()
@pytest.mark.parametrize("state_noise", [1e-3, 1e-12])
@pytest.mark.parametrize("chunk_frames", [6, 4, 1])
def test_swap_gains_are_the_evidence_of_the_swapped_tracks(
    chunk_frames: int,
    state_noise: float,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    monkeypatch.setattr("motes.kalman.track_evidence.CHUNK_FRAMES", chunk_frames)
    B, N, T = 2, 3, 6
    dynamics = linear_dynamics(state_noise)
    positions = torch.randn(B, N, T, 2, generator=generator, dtype=torch.float64)
    seen = torch.rand(B, N, T, generator=generator) < 0.7
    seen[1] = seen[1, 0]  # in the same frames
    positions[~seen] = torch.nan  # cannot matter
    gains = dynamics.swap_gains(positions, seen)
    assert (gains[..., 0] == 0).all()  # a mere renaming: rounding must not make it a gain
    for b, one, other, t in itertools.product(range(B), range(N), range(N), range(T)):
        path = swapped_from(positions[b], one, other, t)
        after = dynamics.track_log_density(path, swapped_from(seen[b], one, other, t)).sum()
        before = dynamics.track_log_density(positions[b], seen[b]).sum()
        # Sums of a hundred terms of up to a thousand nats.
        torch.testing.assert_close(gains[b, one, other, t], after - before, rtol=1e-9, atol=1e-7)


def test_overlap_is_an_average_over_draws(generator: torch.Generator) -> None:
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


@torch.no_grad()
def test_cavities_of_the_smoother_are_predictions_without_the_frame(
    generator: torch.Generator,
) -> None:
    """Remove each observation from the mask and smooth again: the same prediction of a_t."""
    dynamics = linear_dynamics(1e-2)
    positions = torch.randn(2, 2, 6, 2, generator=generator, dtype=torch.float64)
    observed = torch.rand(2, 2, 6, generator=generator) < 0.7
    variances = torch.zeros_like(positions)
    smoothed = dynamics.smooth(positions, observed, variances)
    component = smoothed.log_weights.argmax(-1)
    found = by_smoothing(dynamics.components(), smoothed, positions, observed)
    for t in range(6):
        others = observed.clone()
        others[..., t] = False
        states = dynamics.smooth(positions, others, variances).select(component)
        mean, covariance = dynamics.emit(states)
        # Precisions of up to 1 / .02 are subtracted: a few hundred times the rounding of float64.
        torch.testing.assert_close(found.mean[:, :, t], mean[:, :, t], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            found.covariance[:, :, t], covariance[:, :, t], rtol=1e-9, atol=1e-9
        )
