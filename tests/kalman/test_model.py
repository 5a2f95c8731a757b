import numpy as np
import pytest
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.kalman.linalg import map_vector, solve_covariance, square_root
from motes.kalman.model import (
    GaussianMixture,
    SmoothedTracks,
    difference_matrix,
    draw_path,
    select,
    solve,
    solve_by_doubling,
)
from strategies import random_covariance


def test_paths_obey_the_equations_of_motion(generator: torch.Generator) -> None:
    """Each row of noise moves exactly what it should: checked against a plain loop."""
    model = LinearDynamics(num_components=2, generator=generator).components()
    force = torch.tensor([0.1, -0.2, 0.3, 0.4], dtype=torch.float64)
    model = type(model)(*(field.detach() for field in model))._replace(force=force)
    noise = torch.randn(3, 2, 7, 6, dtype=torch.float64, generator=generator)
    path = draw_path(model, noise)
    for clip in range(3):
        for k in range(2):
            A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
            h = mu[k] + torch.linalg.cholesky(Sigma[k]) @ noise[clip, k, 0, :4]
            for t in range(7):
                if t > 0:
                    h = A @ h + u + torch.linalg.cholesky(Sigma_H) @ noise[clip, k, t, :4]
                a = B @ h + torch.linalg.cholesky(Sigma_A) @ noise[clip, k, t, 4:]
                torch.testing.assert_close(path.states[clip, k, t], h, rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(path.positions[clip, k, t], a, rtol=1e-12, atol=1e-12)


def test_select_gives_each_object_its_component(generator: torch.Generator) -> None:
    model = LinearDynamics(num_components=3, generator=generator).components()
    component = torch.tensor([[2, 0], [1, 1]])
    chosen = select(model, component)
    assert chosen.transition is model.transition
    assert torch.equal(chosen.initial_covariance[0, 0], model.initial_covariance[2])
    assert torch.equal(chosen.initial_mean[0, 0], model.initial_mean[2])
    assert torch.equal(chosen.initial_mean[1], model.initial_mean[[1, 1]])


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_square_root_of_singular_covariance(rank: int) -> None:
    rng = np.random.default_rng(rank)
    root = rng.normal(size=(5, 4, rank))
    covariance = torch.from_numpy(root @ np.swapaxes(root, -1, -2)).requires_grad_()
    factor = square_root(covariance)
    # A dropped pivot is at most 4 eps times a diagonal entry of size 10.
    torch.testing.assert_close(factor @ factor.mT, covariance, rtol=0, atol=1e-13)
    assert torch.equal(factor, factor.tril())
    (gradient,) = torch.autograd.grad(factor.sum(), covariance)
    assert gradient.isfinite().all()


def test_square_root_of_regular_covariance_is_choleskys() -> None:
    covariance = torch.from_numpy(random_covariance(np.random.default_rng(0), (3,), 4))
    expected = torch.linalg.cholesky(covariance)
    torch.testing.assert_close(square_root(covariance), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_solve_with_singular_covariance(rank: int, generator: torch.Generator) -> None:
    factor = torch.randn(5, 4, rank, dtype=torch.float64, generator=generator)
    covariance = factor @ factor.mT
    right = covariance @ torch.randn(5, 4, 3, dtype=torch.float64, generator=generator)
    found = solve_covariance(covariance, right)
    assert found.isfinite().all()
    # Rounding of 1e-16, times condition numbers of up to 1e5 among so few random matrices.
    torch.testing.assert_close(covariance @ found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("matrices", "vectors"),
    [((), (5, 2)), ((2,), (2,)), ((2,), (5, 2)), ((3, 2), (5, 3, 2)), ((2,), (5, 3, 2)),
     ((2,), (5, 1)), ((1, 2), (3, 1)), ((5, 2), (2,))],
)  # fmt: skip
def test_map_vector_equals_a_loop_over_pairs(
    matrices: tuple[int, ...], vectors: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randint(-9, 9, (*matrices, 4, 3), generator=generator).double()
    vector = torch.randint(-9, 9, (*vectors, 3), generator=generator).double()
    lead = torch.broadcast_shapes(matrices, vectors)
    pairs = zip(
        matrix.expand(*lead, 4, 3).reshape(-1, 4, 3),
        vector.expand(*lead, 3).reshape(-1, 3),
        strict=True,
    )
    expected = torch.stack([(M * v).sum(-1) for M, v in pairs]).view(*lead, 4)
    torch.testing.assert_close(map_vector(matrix, vector), expected, rtol=0, atol=0)


def test_states_under_a_component_are_its_own(generator: torch.Generator) -> None:
    means, roots = torch.randn(2, 3, 4, 5, 6, generator=generator).split([4, 2], -1)
    covariances = roots[..., :1, None] * torch.eye(4)
    tracks = SmoothedTracks(torch.zeros(2, 3, 4), means, covariances)
    component = torch.randint(4, (2, 3), generator=generator)
    chosen = tracks.select(component)
    for b, n in np.ndindex(2, 3):
        k = component[b, n]
        assert torch.equal(chosen.mean[b, n], means[b, n, k])
        assert torch.equal(chosen.covariance[b, n], covariances[b, n, k])


def random_mixture(generator: torch.Generator) -> GaussianMixture:
    mean = torch.randn(2, 3, 4, 2, generator=generator, dtype=torch.float64)
    root = torch.randn(2, 3, 4, 2, 2, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    return GaussianMixture(log_weights, mean, root @ root.mT)


def test_moments_are_those_of_the_mixture(generator: torch.Generator) -> None:
    mixture = random_mixture(generator)
    found = mixture.moments()
    for b, n in np.ndindex(2, 3):
        weights = mixture.log_weights[b, n].exp().numpy()
        weights /= weights.sum()
        first, second = np.zeros(2), np.zeros((2, 2))
        for k in range(4):
            m, P = mixture.means[b, n, k].numpy(), mixture.covariances[b, n, k].numpy()
            first += weights[k] * m
            second += weights[k] * (P + np.outer(m, m))
        np.testing.assert_allclose(found.mean[b, n], first, rtol=1e-12, atol=1e-12)
        spread = second - np.outer(first, first)
        np.testing.assert_allclose(found.covariance[b, n], spread, rtol=1e-11, atol=1e-11)


def test_the_mode_is_the_mean_of_the_component_with_the_largest_weight(
    generator: torch.Generator,
) -> None:
    mixture = random_mixture(generator)
    shared = mixture._replace(means=mixture.means[0, 0])  # the same components for all objects
    for b, n in np.ndindex(2, 3):
        k = int(np.argmax(mixture.log_weights[b, n].numpy()))
        assert torch.equal(mixture.mode()[b, n], mixture.means[b, n, k])
        assert torch.equal(shared.mode()[b, n], mixture.means[0, 0, k])


@pytest.mark.parametrize("num_frames", [1, 2, 5, 30])
def test_doubling_solves_a_triangular_system(num_frames: int, generator: torch.Generator) -> None:
    # Float64, and powers of a transition of norm about one, thirty of them at most.
    transition = torch.eye(4, dtype=torch.float64) + 0.1 * torch.randn(
        3, 4, 4, dtype=torch.float64, generator=generator
    )
    M = difference_matrix(transition, num_frames)
    columns = torch.randn(3, 4 * num_frames, 5, dtype=torch.float64, generator=generator)
    for matrix, upper in ((M, False), (M.mT, True)):
        torch.testing.assert_close(
            solve_by_doubling(matrix, columns),
            solve(matrix, columns, upper=upper),
            rtol=1e-9,
            atol=1e-9,
        )
