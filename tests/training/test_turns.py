"""Turns of broken lines."""

import math

import torch

from motes.training.turns import find_turns, fit_lines


def broken_lines(noise: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tracks that bend once under a common acceleration, and when and where they do."""
    generator = torch.Generator().manual_seed(0)
    M, T = 200, 24
    time = torch.arange(T, dtype=torch.float64)
    when = 8 + 8 * torch.rand(M, generator=generator, dtype=torch.float64)
    place = 10 * torch.randn(M, 2, generator=generator, dtype=torch.float64)
    angle = 2 * math.pi * torch.rand(M, generator=generator, dtype=torch.float64)
    speed = torch.stack([angle.cos(), angle.sin()], -1)
    since = (time - when[:, None])[..., None]
    after = -0.8 * speed
    x = place[:, None] + torch.where(since < 0, speed[:, None], after[:, None]) * since
    x = x + 0.5 * torch.tensor([0.0, 0.02]) * (time**2)[:, None]
    x = x + noise * torch.randn(M, T, 2, generator=generator, dtype=torch.float64)
    return x, when, place


def test_turns_of_broken_lines_are_where_they_bend() -> None:
    noise = 0.03
    x, when, _ = broken_lines(noise)
    found = find_turns(x, torch.ones(x.shape[:2], dtype=torch.bool))
    assert found is not None
    # A standard deviation of 4,000 numbers and of 200 tracks.
    assert abs(found.noise / noise - 1) < 0.05
    assert bool(((found.acceleration - torch.tensor([0.0, 0.02])).abs() < 1e-3).all())
    turns = found.turns
    assert len(turns.step) > 190
    first = torch.ones_like(turns.track, dtype=torch.bool)
    first[1:] = turns.track[1:] != turns.track[:-1]
    turns = turns.select(first)
    error = turns.step + 0.5 + turns.times() - when[turns.track]
    # Places of two lines of eight frames, extrapolated, over a change of velocity of 1.8.
    assert float(error.abs().median()) < noise
    assert float((error.abs() < 6 * noise).double().mean()) > 0.95


def test_turns_in_gaps_are_where_the_lines_meet() -> None:
    noise = 0.03
    x, when, _ = broken_lines(noise)
    frame = torch.arange(x.shape[1])
    observed = (frame - when[:, None]).abs() > 2.5  # the bend itself is not seen
    observed[:50] = True
    found = find_turns(x, observed)
    assert found is not None
    turns = found.hidden
    assert set(turns.track.tolist()) <= set(range(50, 200))
    assert len(turns.step) > 120  # a few bend too near an end
    error = turns.step + 0.5 + turns.times() - when[turns.track]
    # Two lines of four frames, three frames on, over a change of velocity of 1.8.
    assert float(error.abs().median()) < 2 * noise
    assert float((error.abs() < 10 * noise).double().mean()) > 0.95


def test_lines_are_those_of_least_squares() -> None:
    generator = torch.Generator().manual_seed(1)
    times = torch.arange(5, dtype=torch.float64) - 1.5
    points = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    used = torch.tensor([True, True, False, True, True])
    found = fit_lines(times, points, used)
    design = torch.stack([torch.ones(5).double(), times], 1)[used]
    expected = torch.linalg.lstsq(design, points[used]).solution
    assert torch.allclose(torch.stack([found.place, found.velocity]), expected)
    assert torch.allclose(found.spread, (design.T @ design).inverse())
    rest = points[used] - design @ expected
    assert torch.allclose(found.misfit, rest.square().sum() / 4)


def test_tracks_that_rest_or_are_not_seen_have_no_turns() -> None:
    still = torch.zeros(40, 20, 2, dtype=torch.float64)
    everywhere = torch.ones(40, 20, dtype=torch.bool)
    assert find_turns(still, everywhere) is None
    moving, *_ = broken_lines(0.03)
    assert find_turns(moving, torch.zeros(moving.shape[:2], dtype=torch.bool)) is None
    assert find_turns(moving[:, :6], torch.ones(200, 6, dtype=torch.bool)) is None
