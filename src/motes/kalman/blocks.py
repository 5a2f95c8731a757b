"""Frames in a row as one linear map of the first state and of the kicks that follow it.

The states of T frames, stacked, obey M h = k with k = (h_1, u + kick_2, ..., u + kick_T), where M
has I in the blocks of its diagonal and -A below each: that is h_t - A h_{t-1} = u + kick_t. A
linear function S h of the states is then (S M^-1) k, and all moments of a stretch are products
with the rows S M^-1. There is no loop over frames. `TD` runs over frames and, within each, over D.
"""

from typing import NamedTuple

import torch
from torch.linalg import solve_triangular

from motes.core.axes import Float, Tensor
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM


def differences(
    transition: Float[Tensor, "... D D"], num_frames: int
) -> Float[Tensor, "... TD TD"]:
    """M, unit lower-triangular."""
    A, T = transition, num_frames
    size = T * A.shape[-1]
    M = torch.zeros(*A.shape[:-2], size, size, dtype=A.dtype, device=A.device)
    M.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    if T > 1:
        diagonal_blocks(M, A.shape[-1], offset=-1).sub_(A.unsqueeze(-1))
    return M


def emissions(emission: Float[Tensor, "... P D"], num_frames: int) -> Float[Tensor, "... TP TD"]:
    """S with B for every frame, so that S h are the positions without their noise."""
    B, T = emission, num_frames
    P, D = B.shape[-2:]
    S = torch.zeros(*B.shape[:-2], T * P, T * D, dtype=B.dtype, device=B.device)
    diagonal_blocks(S, P, D).copy_(B.unsqueeze(-1).expand(*B.shape, T))
    return S


def noise_response(
    function: Float[Tensor, "... n TD"], differences: Float[Tensor, "... TD TD"]
) -> Float[Tensor, "... n TD"]:
    """S M^-1."""
    # Solved from the left, which is three times faster than from the right.
    return solve(differences.mT, function.mT, upper=True).mT.contiguous()


def solve(
    matrix: Float[Tensor, "... n n"], columns: Float[Tensor, "... n m"], *, upper: bool
) -> Float[Tensor, "... n m"]:
    """The solution of a unit triangular system; on a GPU by products alone.

    There a solver takes matrix after matrix, and products all of them at once. With N = I - M,
    whose powers vanish, M^-1 = (I + N) (I + N^2) (I + N^4) ...

    Law: both ways agree (test_doublings_solve_a_triangular_system).
    """
    if matrix.is_cuda:
        return solve_by_doubling(matrix, columns)
    solution: Tensor = solve_triangular(matrix, columns, upper=upper, unitriangular=True)
    return solution


def solve_by_doubling(
    matrix: Float[Tensor, "... n n"], columns: Float[Tensor, "... n m"]
) -> Float[Tensor, "... n m"]:
    """What `solve` gives, by products."""
    lead, n = torch.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2]), matrix.shape[-1]
    N = (identity(n, matrix) - matrix).expand(*lead, n, n).reshape(-1, n, n)
    solution = columns.expand(*lead, n, -1).reshape(len(N), n, -1)
    solution = torch.baddbmm(solution, N, solution)
    for _ in range(1, (n - 1).bit_length()):
        N = N @ N
        solution = torch.baddbmm(solution, N, solution)
    return solution.view(*lead, n, -1)


def noise_gain(model: LGSSM, rows: Float[Tensor, "... n TD"]) -> Float[Tensor, "... n LD"]:
    """The covariance of R k with the kicks of the later frames: R Sigma_H, frame by frame."""
    D = model.transition.shape[-1]
    product: Tensor = (_columns(rows, D) @ model.state_noise).reshape(rows.shape)
    return product[..., D:]


def input_response(model: LGSSM, rows: Float[Tensor, "... n TD"]) -> Float[Tensor, "... n"]:
    """What the force, the same in all later frames, adds to the mean of R k."""
    return map_vector(_sum_of_later(rows, model.force.shape[-1]), model.force)


def add_to_diagonal_blocks(
    matrix: Float[Tensor, "... TP TP"], block: Float[Tensor, "... P P"]
) -> Float[Tensor, "... TP TP"]:
    """The matrix, which is overwritten, with the block added in every frame."""
    diagonal_blocks(matrix, block.shape[-1]).add_(block.unsqueeze(-1))
    return matrix


def diagonal_blocks(
    matrix: Float[Tensor, "... TP TQ"],
    num_rows: int,
    num_columns: int | None = None,
    *,
    offset: int = 0,
) -> Float[Tensor, "... P Q blocks"]:
    """A view of the blocks on a diagonal."""
    columns: Tensor = matrix.unflatten(-1, (-1, num_columns or num_rows))
    blocks: Tensor = columns.unflatten(-3, (-1, num_rows))
    return blocks.diagonal(offset, dim1=-4, dim2=-2)


class Prior(NamedTuple):
    """The prior of all positions of a stretch, a = R k + noise, where R is S M^-1.

    The first D columns of R, which h_1 meets, are E. Only the last three fields know mu and
    Sigma: components that differ in their start alone share all the rest.
    """

    differences: Float[Tensor, "... TD TD"]
    """M"""
    rows: Float[Tensor, "... TP TD"]
    """R"""
    noise_gain: Float[Tensor, "... TP LD"]
    started: Float[Tensor, "... TP D"]
    """E Sigma"""
    mean: Float[Tensor, "... TP"]
    covariance: Float[Tensor, "... TP TP"]


def prior_positions(model: LGSSM, num_frames: int) -> Prior:
    """The prior of the positions of an aligned model, to be differentiated by `prior_gradients`."""
    D = model.transition.shape[-1]
    M = differences(model.transition, num_frames)
    R = noise_response(emissions(model.emission, num_frames), M)
    E, R_kicked = R[..., :D], noise_gain(model, R)
    started = E @ model.initial_covariance
    noise = add_to_diagonal_blocks(R_kicked @ R[..., D:].mT, model.position_noise)
    mean = map_vector(E, model.initial_mean) + input_response(model, R)
    return Prior(M, R, R_kicked, started, mean, started @ E.mT + noise)


def prior_gradients(
    model: LGSSM,
    prior: Prior,
    by_mean: Float[Tensor, "... TP"],
    by_covariance: Float[Tensor, "... TP TP"],
) -> LGSSM:
    """The gradient by each field of the model, from those by the positions' mean and covariance.

    With g and Z = Z' the latter two, of each start, the gradients by mu and Sigma are E' g and
    E' Z E. For what the starts share, g and Z are summed over them. The gradient by R is
    g E k' + 2 Z R Cov k; B stands in S and A in M, so theirs are sums of blocks of
    G = (the one by R) M^-1' and of R' G.

    Law: they are those of the values (test_gradients_are_those_of_the_values).
    """
    (P, D), lead = model.emission.shape[-2:], model.emission.shape[:-2]
    M, R, R_kicked, started, _, _ = prior
    E, g, Z = R[..., :D], by_mean.unsqueeze(-1), by_covariance
    by_E = torch.add(g * model.initial_mean.unsqueeze(-2), Z @ started, alpha=2)
    by_mu, by_Sigma = (E.mT @ g).squeeze(-1), E.mT @ (Z @ E)

    g, Z = g.sum_to_size(*lead, *g.shape[-2:]), Z.sum_to_size(*lead, *Z.shape[-2:])
    later = R.shape[-1] // D - 1
    by_force = (g * model.force.unsqueeze(-2)).repeat(*(1,) * len(lead), 1, later)
    by_kicks = torch.add(by_force, Z @ R_kicked, alpha=2)
    by_R = torch.cat([by_E.sum_to_size(E.shape), by_kicks], -1)
    G = solve(M, by_R.mT, upper=False)  # transposed
    W = _columns(R[..., D:], D).mT
    return LGSSM(
        transition=W @ _columns(G[..., :-D, :].mT, D),
        force=(_sum_of_later(R, D).mT @ g).squeeze(-1),
        emission=diagonal_blocks(G, D, P).sum(-1).mT,
        state_noise=W @ _columns(Z @ R[..., D:], D),
        position_noise=diagonal_blocks(Z, P).sum(-1),
        initial_mean=by_mu,
        initial_covariance=by_Sigma,
    )


class Block(NamedTuple):
    """L frames as one map of the state h at the first of them; `LP` runs over frame and axis.

    a = E h + d + v,  h_next = F h + c + w,  Cov(v) = C,  Cov(w) = G,  Cov(w, v) = X,
    where h_next is the state at the first frame after the stretch.
    """

    emission: Float[Tensor, "... LP D"]
    """E"""
    offset: Float[Tensor, "... LP"]
    """d"""
    noise: Float[Tensor, "... LP LP"]
    """C"""
    transition: Float[Tensor, "... D D"]
    """F"""
    force: Float[Tensor, "... D"]
    """c"""
    next_noise: Float[Tensor, "... D D"]
    """G"""
    cross: Float[Tensor, "... D LP"]
    """X"""


def unroll(model: LGSSM, num_frames: int) -> Block:
    """The stretch of `num_frames` frames of an aligned model: what follows a start that is known.

    Law: chained stretches are the model (test_all_routes_to_the_log_likelihood_agree).
    """
    P, D = model.emission.shape[-2:]
    now, T = slice(0, num_frames * P), num_frames + 1
    S = emissions(model.emission, T)[..., now, :]
    last = torch.eye(T * D, dtype=S.dtype, device=S.device)[-D:].expand(*S.shape[:-2], D, T * D)
    R = noise_response(torch.cat([S, last], -2), differences(model.transition, T))
    start, covariance = R[..., :D], noise_gain(model, R) @ R[..., D:].mT
    drift = input_response(model, R)
    return Block(
        emission=start[..., now, :],
        offset=drift[..., now],
        noise=add_to_diagonal_blocks(covariance[..., now, now], model.position_noise),
        transition=start[..., -D:, :],
        force=drift[..., -D:],
        next_noise=covariance[..., -D:, -D:],
        cross=covariance[..., -D:, now],
    )


def free_motion(
    model: LGSSM, powers: Float[Tensor, "... TD D"]
) -> tuple[Float[Tensor, "... T D"], Float[Tensor, "... T D D"]]:
    """Mean and covariance of every state before anything is seen, from I, A, ..., A^(T-1).

    A^t mu + sum_s A^s u and A^t Sigma A^t' + sum_s A^s Sigma_H A^s', over s < t.
    """
    D = powers.shape[-1]
    frames, back = (-1, D), powers.unflatten(-2, (-1, D)).mT
    mean = map_vector(powers, model.initial_mean).unflatten(-1, frames)
    covariance = (powers @ model.initial_covariance).unflatten(-2, frames) @ back
    pushes = map_vector(powers, model.force).unflatten(-1, frames)
    kicks = (powers @ model.state_noise).unflatten(-2, frames) @ back
    # Sums over s < t: up to t, less t itself.
    return mean + (pushes.cumsum(-2) - pushes), covariance + (kicks.cumsum(-3) - kicks)


def _sum_of_later(matrix: Float[Tensor, "... n TD"], state_dim: int) -> Float[Tensor, "... n D"]:
    """The D columns of all frames but the first, added up."""
    frames: Tensor = matrix.unflatten(-1, (-1, state_dim))
    return frames[..., 1:, :].sum(-2)


def _columns(matrix: Float[Tensor, "... n TD"], state_dim: int) -> Float[Tensor, "... nT D"]:
    """The D columns of all frames put below one another."""
    num_frames = matrix.shape[-1] // state_dim
    return matrix.reshape(*matrix.shape[:-2], matrix.shape[-2] * num_frames, state_dim)
