"""Forces between objects: the step, the smoother and the evidence against independent ones."""

import math

import pytest
import torch

from motes.core.axes import Tensor
from motes.kalman.pair_forces import (
    Joint,
    PairLaw,
    acceleration,
    draw_paths,
    linearise,
    smoothed_path,
    step,
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def make_law(k: float = 0.1, rest: float = 4.0, G: float = 0.0) -> PairLaw:
    one = torch.ones((), dtype=torch.float64)
    field = torch.tensor([[-0.01, 0.002, -0.02, 0.0], [0.0, -0.03, 0.0, -0.01]]).double()
    return PairLaw(
        force=numbers(0.01, 0.02),
        field=field,
        curvature=numbers(*[0.001 * n for n in range(-7, 7)]).view(2, 7),
        stiffness=k * one,
        rest_length=rest * one,
        attraction=G * one,
        softening=0.5 * one,
        state_sds=numbers(0.05, 0.1),
        position_variance=0.04 * one,
        initial_mean=numbers(0.5, 1.0, 0.0, 0.1),
        initial_covariance=numbers(9.0, 4.0, 0.3, 0.2).diag(),
        initial_coupling=numbers(1.0, -1.0, 0.1, 0.0).diag(),
    )


def simulate(law: PairLaw, shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Joint]:
    B, T, N = shape
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(B, T, 6 * N, dtype=torch.float64, generator=generator)
    mean, covariance = law.initial(N)
    h = mean + noise[:, 0, : 4 * N] @ torch.linalg.cholesky(covariance).T
    path = [h]
    for t in range(1, T):
        h = step(law, h) + law.state_noise(N) * noise[:, t, : 4 * N]
        path.append(h)
    states = torch.stack(path, 1)
    a = states[..., : 2 * N] + law.position_variance.sqrt() * noise[..., 4 * N :]
    return states, Joint(a, torch.ones_like(a, dtype=torch.bool))


@pytest.mark.parametrize("N", [1, 2, 3])
@pytest.mark.parametrize("law", [make_law(), make_law(k=0.0, G=2.0)], ids=["spring", "gravity"])
def test_linearisation_is_the_derivative_of_a_step(law: PairLaw, N: int) -> None:
    generator = torch.Generator().manual_seed(N)
    for h in 3 * torch.randn(3, 4 * N, dtype=torch.float64, generator=generator):
        F, c = linearise(law, h)
        derivative = torch.func.jacrev(lambda state: step(law, state))(h)
        torch.testing.assert_close(F, derivative, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(F @ h + c, step(law, h))


@pytest.mark.parametrize("time", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("drag", [0.0, 0.3])
def test_a_step_of_a_linear_law_is_the_matrix_exponential(drag: float, time: float) -> None:
    """A law in other units of time is that with shorter frames: the error is of fifth order."""
    k, one = 0.36 * time**2, torch.eye(2).double()
    law = make_law(k=k, rest=0.0)._replace(curvature=torch.zeros(2, 7).double())
    pull = time**2 * torch.tensor([[-0.05, 0.01], [0.0, -0.02]]).double()
    slow = time * torch.tensor([[-drag, 0.02], [0.0, -drag]]).double()
    law = law._replace(field=torch.cat([pull, slow], 1), force=time**2 * numbers(0.01, 0.02))
    pair = torch.tensor([[-1.0, 1.0], [1.0, -1.0]]).double()
    rate = torch.zeros(9, 9).double()  # of (x_1, x_2, v_1, v_2, 1)
    rate[:4, 4:8] = torch.eye(4)
    rate[4:8, :4] = k * torch.kron(pair, one) + torch.kron(one, pull)
    rate[4:8, 4:8] = torch.kron(one, slow)
    rate[4:8, 8] = law.force.repeat(2)
    h = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h[4:] *= time
    exact = torch.matrix_exp(rate)[:8] @ torch.cat([h, numbers(1)])
    off = (step(law, h) - exact) / numbers(*[1.0] * 4, *[time] * 4)
    # Of frames of length 1, at a frequency of 0.85, it is 1.2e-3.
    assert float(off.abs().max()) < 2e-3 * time**5


def test_forces_between_two_objects_are_opposite_and_along_their_line() -> None:
    law = make_law(k=0.3, rest=2.0)._replace(force=numbers(0, 0), field=torch.zeros(2, 4).double())
    law = law._replace(curvature=torch.zeros(2, 7).double())
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    a = acceleration(law, x)
    # Five apart, three beyond the rest length: 0.3 * 3 towards the other, direction (3, 4) / 5.
    expected = 0.3 * 3.0 * torch.tensor([[0.6, 0.8], [-0.6, -0.8]], dtype=torch.float64)
    torch.testing.assert_close(a, expected)
    pulled = acceleration(law._replace(stiffness=0 * law.stiffness, attraction=numbers(2)[0]), x)
    torch.testing.assert_close(pulled.norm(dim=1), numbers(1, 1) * 2 * 5 / 25.25**1.5)


def test_evidence_of_linear_springs_is_the_dense_gaussian() -> None:
    law, N, T = make_law(rest=0.0), 3, 6
    law = law._replace(curvature=torch.zeros(2, 7).double())
    _, seen = simulate(law, (2, T, N), 0)
    known = seen.known.clone()
    known[0, 2] = False
    known[1, 4:, 2:4] = False
    mean, covariance = law.initial(N)
    F, c = linearise(law, mean)
    Q = law.state_noise(N).square().diag()
    means, blocks = [mean], [[covariance]]
    for t in range(1, T):  # the covariance of all states, block by block
        means.append(F @ means[-1] + c)
        row = [F @ blocks[t - 1][s] for s in range(t)]
        blocks.append([*row, F @ blocks[t - 1][t - 1] @ F.T + Q])
    P, D = 2 * N, 4 * N
    dense = torch.zeros(T, P, T, P, dtype=torch.float64)
    for t in range(T):
        for s in range(t + 1):
            dense[t, :, s] = blocks[t][s][:P, :P]
            dense[s, :, t] = blocks[t][s][:P, :P].T
    full = dense.reshape(T * P, T * P) + law.position_variance * torch.eye(T * P).double()
    assert D == len(mean)
    middle = torch.stack([m[:P] for m in means]).flatten()
    found = draw_paths(law, Joint(seen.positions, known), 4)
    for b in range(2):
        at = known[b].flatten().nonzero()[:, 0]
        normal = torch.distributions.MultivariateNormal(middle[at], full[at][:, at])
        expected = normal.log_prob(seen.positions[b].flatten()[at])
        torch.testing.assert_close(found.log_density[b], expected, rtol=1e-9, atol=1e-8)
    # Smoothed positions are conditional means of the same Gaussian.
    path = smoothed_path(law, Joint(seen.positions, known))[0, :, :P].flatten()
    at = known[0].flatten().nonzero()[:, 0]
    gain = torch.linalg.solve(full[at][:, at], (seen.positions[0].flatten() - middle)[at])
    prior = full - law.position_variance * torch.eye(T * P).double()
    torch.testing.assert_close(path, middle + prior[:, at] @ gain, rtol=1e-8, atol=1e-8)


def particle_evidence(law: PairLaw, seen: Joint, number: int, seed: int) -> float:
    """Return log p(a) of one clip by a bootstrap particle filter."""
    generator = torch.Generator().manual_seed(seed)
    T, P = seen.positions.shape[1:]
    N, total = P // 2, 0.0
    mean, covariance = law.initial(N)

    def normal(size: int) -> Tensor:
        return torch.randn(number, size, dtype=torch.float64, generator=generator)

    h = mean + normal(2 * P) @ torch.linalg.cholesky(covariance).T
    for t in range(T):
        if t:
            h = step(law, h) + law.state_noise(N) * normal(2 * P)
        off = (h[:, :P] - seen.positions[0, t]).square().sum(1) / law.position_variance
        weight = -0.5 * (off + P * torch.log(2 * math.pi * law.position_variance))
        total += float(weight.logsumexp(0)) - math.log(number)
        h = h[torch.multinomial(weight.softmax(0), number, True, generator=generator)]
    return total


def test_evidence_of_springs_is_that_of_particles() -> None:
    law = make_law(k=0.5, rest=3.0)._replace(
        curvature=torch.zeros(2, 7).double(),
        state_sds=numbers(0.3, 0.3),
        position_variance=numbers(2.0)[0],
        initial_covariance=numbers(2.0, 2.0, 0.2, 0.2).diag(),
        initial_coupling=numbers(-1.5, -1.5, 0.0, 0.0).diag(),
    )
    _, seen = simulate(law, (8, 3, 2), 1)
    found = draw_paths(law, seen, 2000).log_density
    by_particles = torch.tensor(
        [
            particle_evidence(law, Joint(*(part[b : b + 1] for part in seen)), 20_000, 0)
            for b in range(8)
        ]
    )
    # Objects are as near as they are uncertain, so that the linearised evidence is off by 1.1 on
    # average; two runs of particles differ by 0.03.
    assert float((found - by_particles).abs().mean()) < 0.35
    assert float((found - by_particles).max()) < 0.2  # a lower bound


def test_few_draws_give_a_lower_bound() -> None:
    law = make_law(k=0.3, rest=6.0)._replace(
        curvature=torch.zeros(2, 7).double(), position_variance=numbers(0.5)[0]
    )
    _, seen = simulate(law, (40, 5, 2), 2)
    exact = draw_paths(law, seen, 1000, 0).log_density
    few = torch.stack([draw_paths(law, seen, 2, seed).log_density for seed in range(8)])
    error = few.mean(0).std() / math.sqrt(40)
    assert float((few.mean(0) - exact).mean()) < 3 * float(error)
    # The mean of p(a) itself is unbiased.
    ratio = (few - exact).exp().mean(0)
    assert float(ratio.mean() - 1) == pytest.approx(0.0, abs=4 * float(ratio.std()) / math.sqrt(40))


def test_weights_move_draws_to_the_exact_posterior() -> None:
    """Draws follow the law: noise between frames has the standard deviation that it says."""
    law = make_law(k=0.2, rest=5.0)
    _, seen = simulate(law, (150, 4, 2), 3)
    paths = draw_paths(law, seen, 64)
    states = paths.resampled(torch.full((150,), 0.5, dtype=torch.float64))
    noise = states[:, :, 1:] - step(law, states[:, :, :-1])
    ratio = noise.square().mean((0, 1, 2)) / law.state_noise(2).square()
    # 450 steps: a relative standard error of 7 % for the mean square.
    torch.testing.assert_close(ratio, torch.ones(8, dtype=torch.float64), rtol=0.25, atol=0.0)


def test_a_clip_that_breaks_the_linearisation_is_impossible_and_spares_others() -> None:
    law = make_law(k=0.0, G=3.0)._replace(softening=1e-6 * torch.ones((), dtype=torch.float64))
    _, seen = simulate(law, (3, 6, 2), 5)
    alone = draw_paths(law, Joint(seen.positions[1:], seen.known[1:]), 8)
    wild = seen.positions.clone()
    wild[0] = torch.nan
    found = draw_paths(law, Joint(wild, seen.known), 8)
    assert float(found.log_density[0]) == -math.inf
    assert bool(
        torch.isfinite(found.log_density[1:]).all() == torch.isfinite(alone.log_density).all()
    )
    uniform = torch.full((3,), 0.5, dtype=torch.float64)
    assert found.resampled(uniform).shape == (8, 3, 6, 8)
