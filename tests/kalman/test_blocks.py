import pytest
import torch

from motes.kalman import blocks


@pytest.mark.parametrize("num_frames", [1, 2, 5, 30])
def test_doubling_solves_a_triangular_system(num_frames: int, generator: torch.Generator) -> None:
    # Float64, and powers of a transition of norm about one, thirty of them at most.
    transition = torch.eye(4, dtype=torch.float64) + 0.1 * torch.randn(
        3, 4, 4, dtype=torch.float64, generator=generator
    )
    M = blocks.difference_matrix(transition, num_frames)
    columns = torch.randn(3, 4 * num_frames, 5, dtype=torch.float64, generator=generator)
    for matrix, upper in ((M, False), (M.mT, True)):
        torch.testing.assert_close(
            blocks.solve_by_doubling(matrix, columns),
            blocks.solve(matrix, columns, upper=upper),
            rtol=1e-9,
            atol=1e-9,
        )
