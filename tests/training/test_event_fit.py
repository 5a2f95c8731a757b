"""Walls found in tracks without labels."""

import math

import pytest
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.kalman.events import EventLaw, Walls, simulate
from motes.training.event_fit import event_dynamics, fit_events, make_calm, refit_events
from motes.training.step import fit_dynamics
from motes.training.wall_guesses import (
    Estimate,
    KickTable,
    Tracks,
    WallFit,
    cluster_walls,
    enclosing_walls,
    sharp_walls,
)

NOISE = 0.1


def fitted_linear(tracks: Tracks) -> LinearDynamics:
    dynamics = LinearDynamics(
        position_noise=0.1, initial_spread=3.0, generator=torch.Generator().manual_seed(0)
    )
    dynamics.fit_initial_state(tracks.positions, tracks.observed)
    fit_dynamics(dynamics, tracks.positions, tracks.observed)
    return dynamics


def bouncing(number: int, floor: float, restitution: float, speed: float = 0.3) -> Tracks:
    """Return noisy tracks of balls that fall with 0.02 a frame squared onto a floor."""
    generator = torch.Generator().manual_seed(1)
    start = torch.rand(number, 4, generator=generator, dtype=torch.float64) - 0.5
    start[:, 1] += 2.0
    start[:, 2:] *= 2 * speed
    model = LinearDynamics(sampling_period=1.0, generator=generator).components()
    model = model._replace(
        force=torch.tensor([0.0, -0.01, 0.0, -0.02], dtype=torch.float64),
        state_noise=torch.zeros(4, 4, dtype=torch.float64),
        **{name: getattr(model, name).detach() for name in ("transition", "emission")},
    )
    up = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    height, kept = (torch.tensor([value], dtype=torch.float64) for value in (floor, restitution))
    law = EventLaw(model, torch.zeros(2, dtype=torch.float64), Walls(up, height, kept))
    with torch.no_grad():
        later = simulate(law, start, torch.zeros(number, 19, 4, dtype=torch.float64))
    paths = torch.cat([start[:, None], later], 1)[..., :2]
    noise = NOISE * torch.randn(paths.shape, generator=generator, dtype=torch.float64)
    return Tracks(paths + noise, torch.ones(number, 20, dtype=torch.bool))


@pytest.mark.slow
def test_a_floor_is_found_with_its_restitution_and_gravity() -> None:
    tracks = bouncing(40, floor=0.5, restitution=0.7)
    fit = fit_events(fitted_linear(tracks), tracks)
    assert fit is not None
    fit = refit_events(fit, tracks)
    assert len(fit.walls.angle) == 1
    # Gravity changes the velocity by a fifth of the noise: tracks do not tell when in a frame the
    # floor was hit, and the error bars hold what that changes.
    assert not fit.walls.in_time
    assert bool((fit.errors["restitution"] >= fit.doubt["restitution"]).all())
    assert float(fit.doubt["restitution"]) > 0
    delta = float(fit.flight.log_delta.detach().exp())
    found = {
        "angle": (float(fit.walls.angle.detach()) - math.pi / 2, float(fit.errors["angle"])),
        "offset": (float(fit.walls.offset.detach()) - 0.5, float(fit.errors["offset"])),
        "restitution": (
            float(fit.walls.restitution.detach()) - 0.7,
            float(fit.errors["restitution"]),
        ),
        "gravity": (
            delta * float(fit.flight.force[3].detach()) + 0.02,
            delta * float(fit.errors["force"][1]),
        ),
    }
    for name, (error, spread) in found.items():
        assert abs(error) < 4 * spread, name  # one false alarm in 16,000 each
        assert spread < 0.05, name
    made = event_dynamics(fit)
    forecast = torch.arange(20).expand(8, 1, 20) < 6
    some = tracks.positions[:8, None]
    states = made.smooth(some, forecast, torch.zeros_like(some))
    heights = states.select(states.log_weights.argmax(-1)).mean[..., 1]
    assert bool((heights > 0.5 - 3 * NOISE).all())


def test_starts_have_initial_states_as_wide_as_the_tracks() -> None:
    # A linear law with much process noise needs no spread of initial states.
    tracks = bouncing(40, floor=-99.0, restitution=0.7)
    flight = fitted_linear(tracks)
    with torch.no_grad():
        flight.initial_factor.diagonal(dim1=-2, dim2=-1).sub_(8.0)
    make_calm(flight, tracks, NOISE**2)
    model, weights = flight.components(), flight.log_weights().exp()
    mean = weights @ model.initial_mean
    away = model.initial_mean - mean
    spread = model.initial_covariance + away[:, :, None] * away[:, None]
    total = torch.einsum("k,kij->ij", weights, spread)
    speeds = (tracks.positions[:, 3] - tracks.positions[:, 0]) / (3 * flight.log_delta.exp())
    first = torch.cat([tracks.positions[:, 0], speeds], -1).var(0).detach()
    ratio = (total.diagonal() / first).detach()
    assert bool(((ratio > 0.5) & (ratio < 2.0)).all())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["nobody hits the wall", "at rest", "gains speed", "one track"])
def test_tracks_without_events_keep_their_law(case: str) -> None:
    tracks = {
        "nobody hits the wall": lambda: bouncing(16, floor=-99.0, restitution=0.7),
        "at rest": lambda: bouncing(16, floor=-99.0, restitution=0.7)._replace(
            positions=torch.zeros(16, 20, 2, dtype=torch.float64)
        ),
        "gains speed": lambda: bouncing(24, floor=0.5, restitution=1.6),
        "one track": lambda: bouncing(1, floor=0.5, restitution=0.7),
    }[case]()
    dynamics = fitted_linear(tracks)
    before = {name: value.clone() for name, value in dynamics.state_dict().items()}
    assert fit_events(dynamics, tracks) is None
    assert all(torch.equal(before[name], value) for name, value in dynamics.state_dict().items())


def test_kicks_of_two_walls_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(30, 2, generator=generator, dtype=torch.float64) * 4
    place[:20, 1], place[20:, 0] = 1.0, 3.0
    before = torch.tensor([0.3, -0.4], dtype=torch.float64).expand(30, 2)
    after = before.clone()
    after[:20, 1], after[20:, 0] = 0.2, -0.15
    place[14:20, 1] = 1.6  # no third wall: it would face the same way as the first
    none = torch.zeros(30, dtype=torch.int64)
    walls = cluster_walls(KickTable(place, place, before, after, none, none), 0.3)
    assert [wall[3] for wall in walls] == [14, 10]
    for wall, angle, offset in zip(walls, (math.pi / 2, math.pi), (1.0, -3.0), strict=True):
        assert math.cos(wall[0] - angle) > 0.999
        assert wall[1:3] == pytest.approx((offset, 0.5), abs=0.01)


def test_walls_are_guessed_where_nobody_was_seen_beyond() -> None:
    sure, none = Estimate(1.0, 0.01), torch.zeros(0, dtype=torch.int64)
    right = WallFit(Estimate(math.pi, 0.01), Estimate(-3.0, 0.01), sure, none)
    top = WallFit(Estimate(-math.pi / 2 + 0.1, 0.01), Estimate(-4.0, 0.01), sure, none)
    generator = torch.Generator().manual_seed(3)
    places = torch.rand(2000, 2, generator=generator, dtype=torch.float64) * 5 - 2
    found = enclosing_walls([right, top], places)
    assert len(found) == 2
    angles = sorted(wall.angle.value % (2 * math.pi) for wall in found)
    assert angles == pytest.approx([0.0, math.pi / 2], abs=1e-9)
    assert [wall.offset.value for wall in found] == pytest.approx([-2.0, -2.0], abs=0.02)
    assert enclosing_walls([], places) == []


@pytest.mark.parametrize("case", ["bounce", "hand", "hand in noise"])
def test_hands_are_no_walls(case: str) -> None:
    # Up and down with 0.1 a frame squared from a floor at 0, or from a hand that swings below it.
    period, rest = 20, 0 if case == "bounce" else 10
    phase = torch.arange(60).double()[:, None] + torch.arange(40).double()
    since = (phase.remainder(period + rest) - rest).clamp(min=0.0)
    height = 0.05 * since * (period - since)
    if rest:
        held = phase.remainder(period + rest).clamp(max=rest)
        height -= rest / math.pi * (math.pi * held / rest).sin()
    generator = torch.Generator().manual_seed(2)
    noise = 0.5 if case == "hand in noise" else 0.005
    tracks = torch.stack([0.3 * phase, height], -1)
    tracks += noise * torch.randn(tracks.shape, generator=generator, dtype=torch.float64)
    up = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(30, 2)
    kicks = KickTable(0 * up, 0 * up, -up, up, torch.arange(30), torch.arange(30))
    guess = [(math.pi / 2, 0.0, 1.0, 30)]
    given = Tracks(tracks, torch.ones(60, 40, dtype=torch.bool))
    # Where noise hides how sharp a turn is, the likelihood decides.
    assert sharp_walls(guess, kicks, given) == ([] if case == "hand" else guess)
