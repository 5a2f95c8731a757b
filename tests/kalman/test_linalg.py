import numpy as np
import pytest
import torch

from motes.kalman.linalg import map_vector, solve_covariance, square_root
from strategies import random_covariance


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
