"""Scenes with contacts against small steps, differences, enumeration of labels and particles."""

import itertools
import math

import pytest
import torch

from motes.kalman.events import Contacts, Walls
from motes.kalman.model import LGSSM
from motes.kalman.scene_paths import (
    SceneRows,
    Sightings,
    propose_scenes,
    sample_scenes,
    scene_log_density,
    weigh_scenes,
)
from motes.kalman.scenes import SceneLaw, linearise, reversed_law, simulate_scene, step_scene

DISTANCE, BOUNCE, WALL, NOISE = 1.0, 0.9, -0.6, 0.25


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scene(
    num_objects: int = 2,
    process_noise: float = 0.02,
    *,
    spread: float = 0.15,
    noise: float = 0.1,
    mass: tuple[float, ...] = (1.0, 2.0, 1.5),
    speed: tuple[float, float] = (0.3, -0.3),
    event: float = 1e-3,
) -> SceneLaw:
    P = 2 * num_objects
    eye, zero = torch.eye(P, dtype=torch.float64), torch.zeros(P, P, dtype=torch.float64)
    # Side by side and approaching.
    places = torch.stack([1.3 * torch.arange(num_objects).double(), torch.zeros(num_objects)], 1)
    speeds = torch.zeros_like(places)
    speeds[0, 0], speeds[1, 0] = speed
    model = LGSSM(
        transition=torch.cat([torch.cat([eye, eye], 1), torch.cat([zero, eye], 1)]),
        force=torch.zeros(2 * P, dtype=torch.float64),
        emission=torch.cat([eye, zero], 1),
        state_noise=process_noise**2 * torch.eye(2 * P, dtype=torch.float64),
        position_noise=noise**2 * eye,
        initial_mean=torch.cat([places.flatten(), speeds.flatten()])[None].double(),
        initial_covariance=spread**2 * torch.eye(2 * P, dtype=torch.float64)[None],
    )
    walls = Walls(numbers(1.0, 0.0)[None], numbers(WALL), numbers(0.8))
    contacts = Contacts(numbers(DISTANCE)[0], numbers(BOUNCE)[0], numbers(*mass[:num_objects]))
    return SceneLaw(model, walls, contacts, numbers(event, event))


def small_steps(law: SceneLaw, states: torch.Tensor, number: int) -> torch.Tensor:
    """Return states after a frame of many small steps; a loop over pairs and walls."""
    N, mass = law.num_objects, law.contacts.mass
    x, v = (part.unflatten(-1, (N, 2)).clone() for part in states.chunk(2, -1))
    for _ in range(number):
        x = x + v / number
        for normal, offset, kept in zip(*law.walls, strict=True):
            speed = v @ normal
            hit = (x @ normal < offset) & (speed < 0)
            v = torch.where(hit[..., None], v - (1 + kept) * speed[..., None] * normal, v)
        for i, j in itertools.combinations(range(N), 2):
            line = x[:, i] - x[:, j]
            distance = line.norm(dim=-1, keepdim=True)
            line = line / distance
            speed = ((v[:, i] - v[:, j]) * line).sum(-1, keepdim=True)
            push = (1 + BOUNCE) * speed / (mass[i] + mass[j]) * line
            push = torch.where((distance < DISTANCE) & (speed < 0), push, 0.0)
            v[:, i] -= mass[j] * push
            v[:, j] += mass[i] * push
    return torch.cat([x.flatten(1), v.flatten(1)], 1)


def test_a_frame_equals_many_small_steps() -> None:
    law = scene(3)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(60, 12, generator=generator, dtype=torch.float64)
    states[:, :6] += law.model.initial_mean[0, :6] + numbers(0.0, 0.0, 0.4, 0.0, 0.8, 0.5)
    apart = states[:, :6].view(-1, 3, 2)
    distances = torch.cdist(apart, apart) + 9 * torch.eye(3, dtype=torch.float64)
    states = states[(distances.flatten(1).amin(1) > DISTANCE) & (apart[..., 0].amin(1) > WALL)]
    step = step_scene(law, states)
    assert int(step.hits.any(1).sum()) >= 10
    assert int((step.hits.sum(1) > 1).sum()) >= 3
    many = small_steps(law, states, 1000)
    # A small step is late by 1/1000 of a way of about one; a grazing contact turns it further.
    errors = (step.state - many).abs().amax(1)
    assert float(errors.median()) < 5e-3
    assert float((errors < 0.03).double().mean()) > 0.9


def test_linearised_frames_agree_with_differences_of_the_law() -> None:
    law = scene(2)
    state = law.model.initial_mean + 0.05 * torch.randn(
        8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    step = step_scene(law, state)
    hit = step.hits[:, -1].nonzero()[:, 0]
    assert len(hit) >= 4
    F, b = linearise(law, state[hit], step.hits[hit])
    assert torch.allclose((F @ state[hit, :, None])[..., 0] + b, step.state[hit])
    nudge = 1e-5 * torch.randn(len(hit), 8, generator=torch.Generator().manual_seed(2)).double()
    moved = step_scene(law, state[hit] + nudge).state - step.state[hit]
    # Second derivatives are of the order of one: 1e-10.
    assert torch.allclose((F @ nudge[..., None])[..., 0], moved, atol=1e-8)


def every_label(law: SceneLaw, steps: int) -> SceneRows:
    """Return all sets of events of every frame, of one scene."""
    single = list(itertools.product([False, True], repeat=law.num_events))
    hits = torch.tensor(list(itertools.product(single, repeat=steps)))
    return SceneRows(
        torch.zeros(len(hits), dtype=torch.int64), hits, torch.zeros(len(hits)).double()
    )


@pytest.mark.parametrize("case", ["contact", "wall", "passing", "gap", "leaves", "comes"])
def test_evidence_of_a_scene_is_that_of_many_particles(case: str) -> None:
    # Noise is wide, so that many of the particles are near the data; so is that of events, because
    # contacts of such uncertain places are far from linear.
    law = scene(
        process_noise=0.05,
        event=0.04,
        noise=NOISE,
        speed=(-0.5, 0.1) if case == "wall" else (0.3, -0.3),
    )
    path = {
        "contact": [(0.0, 0.0, 1.3, 0.0), (0.1, 0.0, 1.15, 0.0), (-0.2, 0.0, 1.3, 0.0)],
        "wall": [(-0.1, 0.0, 1.3, 0.1), (-0.5, 0.0, 1.4, 0.1), (-0.3, 0.0, 1.5, 0.1)],
        "passing": [(0.0, -0.3, 1.3, 0.3), (0.3, -0.4, 1.1, 0.3), (0.5, -0.4, 0.8, 0.4)],
        "leaves": [(0.0, 0.0, 1.3, 0.0), (0.1, 0.0, 0.0, 0.0), (-0.2, 0.0, 0.0, 0.0)],
        "comes": [(0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0), (-0.2, 0.0, 1.3, 0.0)],
        "gap": [(0.0, 0.0, 1.3, 0.0), (0.0, 0.0, 0.0, 0.0), (-0.2, 0.0, 1.3, 0.0)],
    }[case]
    positions = torch.tensor(path, dtype=torch.float64)[None]
    known = torch.ones_like(positions, dtype=torch.bool)
    known[0, 1] = case != "gap"
    known[0, 1:, 2:] &= case != "leaves"
    known[0, :2, 2:] &= case != "comes"
    generator = torch.Generator().manual_seed(3)
    shape, particles = (2, 8), 60_000
    first = law.model.initial_mean + 0.15 * torch.randn(
        particles, 8, generator=generator, dtype=torch.float64
    )
    noise = torch.randn(particles, *shape, generator=generator, dtype=torch.float64)
    states = torch.cat([first[:, None], simulate_scene(law, first, noise)], 1)
    away = torch.where(known, positions - states[..., :4], 0.0)
    seen = known.sum() * math.log(2 * math.pi * NOISE**2) / 2
    weights = (-0.5 * (away / NOISE).square().sum((1, 2)) - seen).exp()
    expected = float(weights.mean())
    error = float(weights.std()) / particles**0.5
    given = Sightings(positions, known)
    found = weigh_scenes(law, every_label(law, 2), given, num_draws=1024)
    total = float(found.log_density(1).exp())
    assert error < 0.05 * expected
    # Weights of draws scatter by about 1: 1,024 of them err by 3 %.
    assert abs(total - expected) < 4 * error + 0.1 * expected
    few = propose_scenes(law, given, slots=16)
    bound = float(weigh_scenes(law, few, given, num_draws=1024).log_density(1).exp())
    assert bound < expected + 4 * error + 0.1 * expected
    assert bound > 0.8 * expected
    share = weights / weights.sum()
    mean = (share[:, None, None] * states).sum(0)
    spread = (share[:, None, None] * (states - mean).square()).sum(0).sqrt()
    number = 16_384 if case == "leaves" else 1024  # weights of what is not seen scatter more
    draws = sample_scenes(law, positions, known, num_draws=number).states[:, 0]
    # Five deviations of 1,024 draws with a spread of at most 0.3, and labels that are left out.
    assert torch.allclose(draws.mean(0), mean, atol=0.05)
    assert torch.allclose(draws.std(0), spread, atol=0.05)


def test_forecasts_through_contacts_cover_simulated_futures() -> None:
    law = scene(2, process_noise=2e-3, spread=0.2, noise=0.03)
    generator = torch.Generator().manual_seed(4)
    first = law.model.initial_mean + 0.2 * torch.randn(
        120, 8, generator=generator, dtype=torch.float64
    )
    noise = torch.randn(120, 7, 8, generator=generator, dtype=torch.float64)
    states = torch.cat([first[:, None], simulate_scene(law, first, noise)], 1)
    positions = states[..., :4] + 0.03 * torch.randn(
        120, 8, 4, generator=generator, dtype=torch.float64
    )
    known = (torch.arange(8) < 4)[None, :, None].expand(120, 8, 4)
    draws = sample_scenes(law, positions, known).states[:, :, 4:, :4]
    truth = states[:, 4:, :4]
    low, high = draws.quantile(0.05, dim=0), draws.quantile(0.95, dim=0)
    inside = float(((truth > low) & (truth < high)).double().mean())
    # 120 scenes, frames and coordinates being alike: a deviation of 0.02.
    assert 0.84 < inside < 0.96


def test_scenes_without_observations_or_events_are_finite() -> None:
    law = scene()
    none = torch.zeros(2, 5, 4, dtype=torch.float64)
    assert bool(
        scene_log_density(law, none, torch.zeros_like(none, dtype=torch.bool)).isfinite().all()
    )
    at_rest = law._replace(
        model=law.model._replace(initial_mean=torch.zeros(1, 8, dtype=torch.float64))
    )
    seen = torch.ones_like(none, dtype=torch.bool)
    draws = sample_scenes(at_rest, none, seen, num_draws=16).states
    assert bool(draws.isfinite().all())


def test_the_reversed_law_undoes_a_step() -> None:
    law = scene(3)
    force = numbers(0.02, -0.01).repeat(3)
    free = law._replace(model=law.model._replace(force=torch.cat([0.5 * force, force])))
    sign = torch.cat([torch.ones(6), -torch.ones(6)]).double()
    state = law.model.initial_mean + 0.3 * torch.randn(
        400, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    x = state[:, :6].unflatten(-1, (3, 2))
    i, j = torch.triu_indices(3, 3, 1)
    legal = ((x[:, i] - x[:, j]).norm(dim=-1) > DISTANCE).all(1) & (x[..., 0] > WALL).all(1)
    for one, events in ((law, True), (free, False)):
        step = step_scene(one, state)
        # A force acts for the whole frame, so that only free flight is undone exactly beside it.
        some = legal & (step.hits.any(1) if events else ~step.hits.any(1))
        some &= step.hits.sum(1) <= 2
        assert int(some.sum()) > 20
        back = step_scene(reversed_law(one), sign * step.state[some]).state
        assert torch.allclose(sign * back, state[some], atol=1e-9)


def test_positions_of_others_and_of_nobody_are_not_taken() -> None:
    law = scene(2, process_noise=1e-3, spread=0.2, noise=0.03, speed=(-0.05, 0.05))
    times = torch.arange(6, dtype=torch.float64)
    path = torch.stack([-0.05 * times, 0 * times, 1.3 + 0.05 * times, 0 * times], -1)[None]
    known = torch.ones_like(path, dtype=torch.bool)
    known[0, 3:5, :2] = False
    right = sample_scenes(law, path, known).states.mean(0)
    strange, exchanged, also = path.clone(), path.clone(), known.clone()
    strange[0, 2, :2] += 5.0  # nobody's
    exchanged[0, 4, 2:] = path[0, 4, :2]  # that of the first object, said to be the second's
    also[0, 2, :2] = False
    tolerant = law._replace(log_outlier=-10.0)
    without = sample_scenes(law, path, also).states.mean(0)
    # Means of 256 draws with deviations below 0.03: five deviations are 0.01.
    assert torch.allclose(
        sample_scenes(tolerant, strange, known).states.mean(0), without, atol=0.01
    )
    assert torch.allclose(sample_scenes(tolerant, path, known).states.mean(0), right, atol=0.01)
    also[0, 2, :2], also[0, 4, :2], also[0, 4, 2:] = True, True, False
    swapped = sample_scenes(law, path, also).states.mean(0)
    assert torch.allclose(
        sample_scenes(tolerant, exchanged, known).states.mean(0), swapped, atol=0.01
    )
