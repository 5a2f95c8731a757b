"""Block matrices of T stacked frames, which replace the loop over frames.

The stacked states obey M h = k with inputs k = (h_1, u + noise_2, ..., u + noise_T), where M has I
on its block diagonal and -A below: h_t - A h_{t-1} = u + noise_t. A linear function S h of the
states is (S M^-1) k, so that all its moments are products with the rows R = S M^-1.
`TD` runs over frames and, within each frame, over D; `LD` over all frames but the first.
"""

import torch
from torch.linalg import solve_triangular

from motes.core.axes import Float, Tensor
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM


def difference_matrix(
    transition: Float[Tensor, "... D D"], num_frames: int
) -> Float[Tensor, "... TD TD"]:
    """Return M, which is unit lower-triangular."""
    A, T = transition, num_frames
    size = T * A.shape[-1]
    M = torch.zeros(*A.shape[:-2], size, size, dtype=A.dtype, device=A.device)
    M.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    if T > 1:
        diagonal_blocks(M, A.shape[-1], offset=-1).sub_(A.unsqueeze(-1))
    return M


def emission_matrix(
    emission: Float[Tensor, "... P D"], num_frames: int
) -> Float[Tensor, "... TP TD"]:
    """Return S with B in every diagonal block, so that S h are the noise-free positions."""
    B, T = emission, num_frames
    P, D = B.shape[-2:]
    S = torch.zeros(*B.shape[:-2], T * P, T * D, dtype=B.dtype, device=B.device)
    diagonal_blocks(S, P, D).copy_(B.unsqueeze(-1).expand(*B.shape, T))
    return S


def response(
    function: Float[Tensor, "... n TD"], differences: Float[Tensor, "... TD TD"]
) -> Float[Tensor, "... n TD"]:
    """Return R = S M^-1, the response of S h to the inputs k."""
    # Solving from the left is three times faster than from the right.
    return solve(differences.mT, function.mT, upper=True).mT.contiguous()


def noise_gain(model: LGSSM, rows: Float[Tensor, "... n TD"]) -> Float[Tensor, "... n LD"]:
    """Return Cov(R k, process noise): R Sigma_H, frame by frame."""
    D = model.transition.shape[-1]
    product: Tensor = (stack_columns(rows, D) @ model.state_noise).reshape(rows.shape)
    return product[..., D:]


def input_response(model: LGSSM, rows: Float[Tensor, "... n TD"]) -> Float[Tensor, "... n"]:
    """Return the contribution of the constant force u to the mean of R k."""
    return map_vector(sum_of_later_columns(rows, model.force.shape[-1]), model.force)


def solve(
    matrix: Float[Tensor, "... n n"], columns: Float[Tensor, "... n m"], *, upper: bool
) -> Float[Tensor, "... n m"]:
    """Solve a unit triangular system.

    On a GPU a triangular solver takes the matrices of a batch in turn, products take all at once.

    Law: both ways agree (test_doubling_solves_a_triangular_system).
    """
    if matrix.is_cuda:
        return solve_by_doubling(matrix, columns)
    solution: Tensor = solve_triangular(matrix, columns, upper=upper, unitriangular=True)
    return solution


def solve_by_doubling(
    matrix: Float[Tensor, "... n n"], columns: Float[Tensor, "... n m"]
) -> Float[Tensor, "... n m"]:
    """Solve a unit triangular system by products: M^-1 = (I + N) (I + N^2) (I + N^4) ...

    N = I - M is nilpotent, so that the product is finite.
    """
    lead, n = torch.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2]), matrix.shape[-1]
    N = (identity(n, matrix) - matrix).expand(*lead, n, n).reshape(-1, n, n)
    solution = columns.expand(*lead, n, -1).reshape(len(N), n, -1)
    solution = torch.baddbmm(solution, N, solution)
    for _ in range(1, (n - 1).bit_length()):
        N = N @ N
        solution = torch.baddbmm(solution, N, solution)
    return solution.view(*lead, n, -1)


def diagonal_blocks(
    matrix: Float[Tensor, "... TP TQ"],
    num_rows: int,
    num_columns: int | None = None,
    *,
    offset: int = 0,
) -> Float[Tensor, "... P Q blocks"]:
    """Return a view of the blocks on a block diagonal."""
    columns: Tensor = matrix.unflatten(-1, (-1, num_columns or num_rows))
    blocks: Tensor = columns.unflatten(-3, (-1, num_rows))
    return blocks.diagonal(offset, dim1=-4, dim2=-2)


def add_to_diagonal_blocks(
    matrix: Float[Tensor, "... TP TP"], block: Float[Tensor, "... P P"]
) -> Float[Tensor, "... TP TP"]:
    """Add a block to every diagonal block, in place."""
    diagonal_blocks(matrix, block.shape[-1]).add_(block.unsqueeze(-1))
    return matrix


def sum_of_later_columns(
    matrix: Float[Tensor, "... n TD"], state_dim: int
) -> Float[Tensor, "... n D"]:
    """Sum the D columns of each frame over all frames but the first."""
    frames: Tensor = matrix.unflatten(-1, (-1, state_dim))
    return frames[..., 1:, :].sum(-2)


def stack_columns(matrix: Float[Tensor, "... n TD"], state_dim: int) -> Float[Tensor, "... nT D"]:
    """Stack the D columns of all frames below one another."""
    num_frames = matrix.shape[-1] // state_dim
    return matrix.reshape(*matrix.shape[:-2], matrix.shape[-2] * num_frames, state_dim)
