"""Laws with events against integration over a grid, enumeration and the linear law."""

import dataclasses
import itertools
import math

import pytest
import torch

from motes import kalman
from motes.data.worlds.walled import box
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.event_dynamics import EventDynamics, draw_paths
from motes.kalman.event_filter import propose
from motes.kalman.events import (
    Contacts,
    EventLaw,
    Hypotheses,
    Walls,
    deviations,
    run_sequences,
    scene_law,
    simulate,
    smooth_pass,
    weigh,
)
from motes.kalman.model import LGSSM

FLOOR, BOUNCE = -0.2, 0.7
DELTA, PULL = 0.7, -0.2


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def law_with_floor(process_noise: float = 0.0, floor: float = FLOOR) -> EventLaw:
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    model = LGSSM(
        transition=torch.cat([torch.cat([eye, DELTA * eye], 1), torch.cat([zero, eye], 1)]),
        force=numbers(0.0, DELTA * PULL / 2, 0.0, PULL),
        emission=torch.cat([eye, zero], 1),
        state_noise=process_noise * torch.eye(4, dtype=torch.float64),
        position_noise=0.15 * eye,
        initial_mean=torch.stack([numbers(0.0, 1.0, 0.3, -0.8), numbers(0.0, 0.7, 0.3, -0.3)]),
        initial_covariance=torch.diag(numbers(0.2, 0.3, 0.1, 0.4)).expand(2, 4, 4),
    )
    walls = Walls(numbers(0.0, 1.0)[None], numbers(floor), numbers(BOUNCE))
    return EventLaw(model, numbers(0.4, 0.6).log(), walls)


def grid_density(law: EventLaw, heights: torch.Tensor) -> float:
    """Integrate over height and velocity of the first frame; without process noise."""
    total = 0.0
    for k in range(2):
        mean, variance = law.model.initial_mean[k], law.model.initial_covariance[k].diagonal()
        axes = [
            mean[i] + variance[i].sqrt() * torch.linspace(-6, 6, 1500, dtype=torch.float64)
            for i in (1, 3)
        ]
        y, v = torch.meshgrid(*axes, indexing="ij")
        log_p = sum(
            -0.5 * (value - mean[i]) ** 2 / variance[i] - 0.5 * torch.log(2 * math.pi * variance[i])
            for value, i in ((y, 1), (v, 3))
        )
        for t, height in enumerate(heights):
            if t:
                y, v = y + DELTA * v + DELTA * PULL / 2, v + PULL
                below = y < FLOOR
                y = torch.where(below, FLOOR - BOUNCE * (y - FLOOR), y)
                v = torch.where(below, -BOUNCE * v, v)
            log_p = log_p - 0.5 * (height - y) ** 2 / 0.15 - 0.5 * math.log(2 * math.pi * 0.15)
        cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
        total += float(law.log_weights[k].exp() * log_p.exp().sum() * cell)
    return total


def sideways_density(law: EventLaw, positions: torch.Tensor) -> float:
    """Return log p of x alone, which no floor touches: the same under both components."""
    free = law.model._replace(
        initial_mean=law.model.initial_mean[0], initial_covariance=law.model.initial_covariance[0]
    )
    plain = LGSSM(*(part for part in free))
    both = kalman.log_likelihood(plain, positions)
    only_y = plain._replace(emission=plain.emission.clone())
    only_y.emission[0] = 0.0
    still = positions.clone()
    still[:, 0] = 0.0
    rest = kalman.log_likelihood(only_y, still)
    noise_alone = -0.5 * math.log(2 * math.pi * 0.15) * len(positions)
    return float(both - (rest - noise_alone))


@pytest.mark.parametrize(
    "heights", [(0.8, 0.2, 0.1, 0.4), (0.5, -0.1, 0.3, -0.1), (1.5, 1.2, 1, 1)]
)
def test_evidence_matches_integration_over_a_grid(heights: tuple[float, ...]) -> None:
    law = law_with_floor()
    positions = torch.stack([numbers(0.1, 0.2, 0.5, 0.6), numbers(*heights)], 1)[None]
    known = torch.ones_like(positions, dtype=torch.bool)
    rows = propose(law, positions, known, slots=16)
    evidence = weigh(law, rows, positions, known, num_draws=4096)
    expected = math.log(grid_density(law, positions[0, :, 1])) + sideways_density(law, positions[0])
    # 4,096 draws of a share of at least 0.1 err by at most 5 % of it in three deviations; the grid
    # by the share of cells on a border, 1 %.
    assert float(evidence.log_density(1)) == pytest.approx(expected, abs=0.06)


def test_sequences_of_the_filter_are_a_lower_bound_near_the_sum_over_all() -> None:
    law = law_with_floor(process_noise=0.03)
    positions = torch.stack([numbers(0.1, 0.2, 0.5, 0.6), numbers(0.8, 0.2, 0.1, 0.4)], 1)[None]
    known = torch.ones_like(positions, dtype=torch.bool)
    known[0, 2] = False
    sequences = torch.tensor(list(itertools.product([False, True], repeat=3)))
    every = Hypotheses(
        torch.zeros(16, dtype=torch.int64),
        torch.arange(2).repeat_interleave(8),
        sequences.repeat(2, 1)[..., None],
        torch.zeros(16, 3, 0, 2, dtype=torch.float64),
        torch.zeros(16, dtype=torch.float64),
    )
    total = weigh(law, every, positions, known, num_draws=4096).log_density(1)
    few = weigh(law, propose(law, positions, known, slots=16), positions, known, num_draws=4096)
    # Draws of the same sequence differ between the two calls: three deviations of 4,096 draws.
    assert float(few.log_density(1)) <= float(total) + 0.05
    assert float(few.log_density(1)) == pytest.approx(float(total), abs=0.06)


def test_draws_have_the_moments_of_the_smoother() -> None:
    law = law_with_floor(process_noise=0.03)
    positions = torch.stack([numbers(0.1, 0.2, 0.5), numbers(0.8, 0.2, 0.1)], 1)[None]
    known = torch.ones_like(positions, dtype=torch.bool)
    hits = torch.tensor([[[False], [True]]])
    none = torch.zeros(1, 2, 0, 2, dtype=torch.float64)
    rows = Hypotheses(torch.tensor([0]), torch.tensor([1]), hits, none, numbers(0.0))
    run = run_sequences(law, rows, positions, known)
    _, covariance = smooth_pass(run)
    noise = torch.randn(40_000, 1, 3, 6, generator=torch.Generator().manual_seed(0)).double()
    draws = deviations(law, run, rows.component, noise)[:, 0]
    error = 5 * covariance[0].diagonal(dim1=-2, dim2=-1).amax() / 40_000**0.5  # five deviations
    assert float(draws.mean(0).abs().max()) < float(error.sqrt() * 0.1 + error)
    found = torch.einsum("sti,stj->tij", draws, draws) / len(draws)
    assert float((found - covariance[0]).abs().max()) < 2 * float(error)


def dynamics(num_walls: int = 1, offset: float = FLOOR, noise: float = 0.05) -> EventDynamics:
    made = EventDynamics(
        num_walls=num_walls,
        sampling_period=0.5,
        position_noise=noise,
        state_noise=1e-3,
        generator=torch.Generator().manual_seed(0),
    )
    made.wall_offsets.fill_(offset)
    made.wall_restitution.fill_(BOUNCE)
    return made


def linear_twin(made: EventDynamics) -> LinearDynamics:
    twin = LinearDynamics(generator=torch.Generator())
    own = twin.state_dict()
    twin.load_state_dict({name: made.state_dict()[name] for name in own})
    return twin


def test_smoothing_far_from_walls_is_linear() -> None:
    made = dynamics(offset=-1e3)
    positions = torch.randn(2, 2, 6, 2, generator=torch.Generator().manual_seed(1)).double()
    observed = torch.ones(2, 2, 6, dtype=torch.bool)
    observed[0, 1, 3] = observed[1, 0, 5] = False
    spread = torch.full_like(positions, 0.01)
    twin = linear_twin(made)
    for ours, theirs in zip(
        made.smooth(positions, observed, spread),
        twin.smooth(positions, observed, spread),
        strict=True,
    ):
        assert torch.allclose(ours, theirs.expand(ours.shape), atol=1e-9)
    assert torch.allclose(
        made.track_log_density(positions, observed), twin.track_log_density(positions, observed)
    )
    ours, theirs = made.swap_gains(positions, observed), twin.swap_gains(positions, observed)
    assert torch.allclose(ours, theirs, atol=0.3)  # of two components the likelier one is taken
    found = made.leave_one_out(positions, observed)
    assert found.mean.shape == positions.shape


@pytest.mark.parametrize("usual", [True, False])
def test_paths_do_not_count_the_variance_of_q_twice(usual: bool) -> None:
    made = dynamics(offset=-1e3)
    positions = torch.randn(2, 1, 6, 2, generator=torch.Generator().manual_seed(1)).double()
    observed = torch.ones(2, 1, 6, dtype=torch.bool)
    noise = made.components().position_noise.detach().diagonal().mean()
    made.mean_variance.copy_(0.25 * noise)
    spread = (0.75 if usual else 2.0) * noise  # of q; 0.75 of the noise is in the law already
    twin = linear_twin(made)
    with torch.no_grad():
        twin.position_factor.diagonal().sub_(math.log(2.0))
    expected = twin.smooth(positions, observed, torch.full_like(positions, spread - 0.75 * noise))
    found = made.smooth(positions, observed, torch.full_like(positions, spread))
    assert torch.allclose(found.means, expected.means)
    assert torch.allclose(found.covariances, expected.covariances.expand_as(found.covariances))


def test_hits_within_a_step_are_exact() -> None:
    room = dataclasses.replace(box(gravity=0.12), restitution=0.9)
    dt = 0.5  # of a unit of velocity
    states = torch.from_numpy(room.simulate(60, 1, 15, seed=3)[:, 0]) / numbers(1, 1, dt, dt)
    A = torch.eye(4, dtype=torch.float64)
    A[0, 2] = A[1, 3] = dt
    g = numbers(*room.gravity)
    noise = 1e-8 * torch.eye(4, dtype=torch.float64)
    model = LGSSM(
        transition=A,
        force=torch.cat([0.5 * g, g / dt]),
        emission=A[:2] * (torch.arange(4) < 2),
        state_noise=noise,
        position_noise=1e-4 * torch.eye(2, dtype=torch.float64),
        initial_mean=states[:1, 0],
        initial_covariance=100 * torch.eye(4, dtype=torch.float64)[None],
    )
    normals, offsets = (torch.tensor(part).double() for part in (room.normals, room.offsets))
    walls = Walls(normals, offsets, torch.full_like(offsets, room.restitution))
    law = EventLaw(model, torch.zeros(1, dtype=torch.float64), walls, in_time=True)
    # Two walls within a step, or one twice, are not exact: states of the true path start anew.
    still = torch.zeros(60, 14, 1, 4, dtype=torch.float64)
    error = (simulate(law, states[:, :-1], still)[:, :, 0] - states[:, 1:]).abs().amax(-1)
    turned = ((states[:, 1:] - states[:, :-1])[..., 2:] * dt - g).abs().amax(-1) > 0.5
    assert int(turned.sum()) > 100
    assert float((error < 1e-9).double().mean()) > 0.98
    assert float((error[turned] < 1e-9).double().mean()) > 0.95
    seen = torch.ones(60, 15, 2, dtype=torch.bool)
    late, early = (
        weigh(one, propose(one, states[..., :2], seen), states[..., :2], seen).log_density(60)
        for one in (law, law._replace(in_time=False))
    )
    assert float((late - early).median()) > 100.0


def test_no_tracks_have_empty_answers() -> None:
    made, none = dynamics(), torch.zeros(0, 2, 6, 2, dtype=torch.float64)
    observed = torch.ones(0, 2, 6, dtype=torch.bool)
    assert made.swap_gains(none, observed).shape == (0, 2, 2, 6)
    assert made.track_log_density(none, observed).shape == (0, 2)
    assert made.leave_one_out(none, observed).mean.shape == none.shape
    assert made.draw_tracks(none, observed, none, 8).shape == (8, 0, 2, 6, 4)


def test_leave_one_out_ignores_the_frame_itself() -> None:
    made = dynamics(noise=0.002)
    heights = numbers(1.0, 0.5, 0.0, 0.01, 0.36, 0.71)  # bounces from the third frame to the fourth
    positions = torch.stack([0.1 * torch.arange(6).double(), heights], -1)[None, None]
    observed = torch.ones(1, 1, 6, dtype=torch.bool)
    found = made.leave_one_out(positions, observed)
    observed[0, 0, 4] = False
    without = made.leave_one_out(positions, observed)
    # The probability of the guards is computed with the frame in one case, without it in the other.
    assert torch.allclose(found.mean[0, 0, 4], without.mean[0, 0, 4], atol=1e-3)
    assert torch.allclose(found.covariance[0, 0, 4], without.covariance[0, 0, 4], atol=1e-3)
    assert float((found.mean[0, 0, 4] - positions[0, 0, 4]).norm()) < 0.1


def test_forecast_draws_follow_the_law_of_many_particles() -> None:
    law = law_with_floor(process_noise=0.01)
    first = numbers(0.0, 1.0, 0.3, -0.8)
    law = law._replace(
        model=law.model._replace(
            initial_mean=first.expand(2, 4),
            initial_covariance=1e-6 * torch.eye(4, dtype=torch.float64).expand(2, 4, 4),
        )
    )
    positions = torch.zeros(1, 8, 2, dtype=torch.float64)
    positions[0, 0] = first[:2]
    observed = torch.arange(8)[None] < 1
    found = draw_paths(law, positions, observed, torch.zeros_like(positions), num_draws=4096)
    alike = found._replace(component=torch.zeros_like(found.component))
    _, mean, covariance = alike.moments(1)
    noise = torch.randn(100_000, 7, 4, generator=torch.Generator().manual_seed(3)).double()
    particles = simulate(law, first.expand(100_000, 4), noise)
    assert torch.allclose(mean[0, 0, 1:], particles.mean(0), atol=0.03)
    expected = torch.stack([torch.cov(part.T) for part in particles.unbind(1)])
    assert torch.allclose(covariance[0, 0, 1:], expected, atol=0.03)
    assert float(particles[..., 1].min()) > FLOOR - 0.6  # process noise after the bounce


def test_contacts_conserve_momentum_and_lose_energy_by_restitution() -> None:
    law = law_with_floor(floor=-1e3)._replace(
        contacts=Contacts(numbers(1.0)[0], numbers(0.5)[0], numbers(1.0, 3.0))
    )
    still = law.model._replace(force=torch.zeros(4, dtype=torch.float64))
    scene = scene_law(law._replace(model=still), 2, torch.tensor([[0, 1]]))
    state = numbers(0.0, 0.0, 2.0, 0.0, 1.0, 0.2, -1.0, 0.2)  # positions, then velocities
    after = simulate(scene, state, torch.zeros(1, 8, dtype=torch.float64))[0]
    before, v = state[4:].view(2, 2), after[4:].view(2, 2)
    mass = numbers(1.0, 3.0)[:, None]
    assert torch.allclose((mass * v).sum(0), (mass * before).sum(0))
    apart = state[:4].view(2, 2) + DELTA * before
    w = (apart[0] - apart[1]) / (apart[0] - apart[1]).norm()
    assert float((v[0] - v[1]) @ w) == pytest.approx(-0.5 * float((before[0] - before[1]) @ w))
    assert float((after[:2] - after[2:4]).norm()) >= 1.0 - 1e-9
