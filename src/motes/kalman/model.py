"""The linear Gaussian state-space model, its results, and the algebra that all routes share.

Leading axes broadcast with one another, so that one shared model and one model for each object
are the same code. A mask is 1 for each observed coordinate and 0 for each unobserved one.
"""

from typing import NamedTuple

import torch
from torch.linalg import solve_triangular

from motes.core.axes import Float, Int, Tensor
from motes.core.errors import InputError
from motes.kalman.linalg import identity, map_vector, square_root

EPSILON = torch.finfo(torch.float64).eps
POSITION_DIM = 2
STATE_DIM = 2 * POSITION_DIM


class LGSSM(NamedTuple):
    """A linear Gaussian state-space model; the leading axes of all fields broadcast.

    Paper: [Eq. lgssm]
        h_1 ~ N(mu, Sigma),  h_t = A h_{t-1} + u + N(0, Sigma_H),  a_t = B h_t + N(0, Sigma_A)

    Pass shared fields without the axes of the others: K models that differ only in mu and Sigma
    have an axis K there and nowhere else, and inference then does the shared work once.
    Use float64: at low noise, float32 gradients of the likelihood are wrong by per cents.
    """

    transition: Float[Tensor, "... D D"]
    """A"""
    force: Float[Tensor, "... D"]
    """u, the constant input"""
    emission: Float[Tensor, "... P D"]
    """B"""
    state_noise: Float[Tensor, "... D D"]
    """Sigma_H, the covariance of the process noise"""
    position_noise: Float[Tensor, "... P P"]
    """Sigma_A, the covariance of the observation noise"""
    initial_mean: Float[Tensor, "... D"]
    """mu"""
    initial_covariance: Float[Tensor, "... D D"]
    """Sigma"""


class Path(NamedTuple):
    """A joint draw of states and emitted positions."""

    states: Float[Tensor, "... T D"]
    positions: Float[Tensor, "... T P"]


class StateEstimate(NamedTuple):
    """The Gaussian distribution of one state."""

    mean: Float[Tensor, "... D"]
    covariance: Float[Tensor, "... D D"]


class Updated(NamedTuple):
    """The state estimate after an observation, and the predictive log density of that one."""

    estimate: StateEstimate
    log_density: Float[Tensor, "..."]

    @property
    def belief(self) -> StateEstimate:
        """The name of `estimate` in version 0.1."""
        return self.estimate


class Filtered(NamedTuple):
    """States given the observations up to each frame, and up to the frame before (predicted)."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]
    predicted_means: Float[Tensor, "... T D"]
    predicted_covariances: Float[Tensor, "... T D D"]
    log_likelihood: Float[Tensor, "..."]


class Smoothed(NamedTuple):
    """States given all observations."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]


def aligned(model: LGSSM) -> LGSSM:
    """Expand the fields to two common sets of leading axes: of the dynamics, of the initial state.

    The axes of mu and Sigma include those of the dynamics, so that gradients of the dynamics are
    sums over the axes that only the initial states have.
    """
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    leads = {A.shape[:-2], u.shape[:-1], B.shape[:-2], Sigma_H.shape[:-2], Sigma_A.shape[:-2]}
    if len(leads) == 1 and mu.shape[:-1] == Sigma.shape[:-2] and mu.ndim >= u.ndim:
        return model
    lead = torch.broadcast_shapes(*leads)
    initial = torch.broadcast_shapes(lead, mu.shape[:-1], Sigma.shape[:-2])
    A, B, Sigma_H, Sigma_A = (part.expand(*lead, -1, -1) for part in (A, B, Sigma_H, Sigma_A))
    u, mu, Sigma = u.expand(*lead, -1), mu.expand(*initial, -1), Sigma.expand(*initial, -1, -1)
    return LGSSM(A, u, B, Sigma_H, Sigma_A, mu, Sigma)


def select(model: LGSSM, component: Int[Tensor, "..."]) -> LGSSM:
    """Return the model of one initial-state component for each index."""
    return model._replace(
        initial_mean=model.initial_mean[component],
        initial_covariance=model.initial_covariance[component],
    )


def draw_path(model: LGSSM, noise: Float[Tensor, "... T D_plus_P"]) -> Path:
    """Return states and positions of the prior as a function of standard normal noise.

    Paper: [Eq. lds], given the component z.

    Args:
        model: Its leading axes broadcast with those of the noise.
        noise: Standard normal; in each frame D numbers for the state, then P for the position.

    Law: zero noise gives the prior means; moments agree with the joint Gaussian
        (test_prior_draws_have_the_moments_of_the_joint).
    """
    A, u, B, _, _, mu, Sigma = model
    D, P = A.shape[-1], B.shape[-2]
    if noise.shape[-1] != D + P or noise.shape[-2] < 1:
        raise InputError(
            f"got noise of shape {tuple(noise.shape)}; expected (..., T, {D + P}) with T >= 1; "
            f"give {D} numbers for the state and {P} for the position in each frame"
        )
    process_noise = map_vector(square_root(model.state_noise).unsqueeze(-3), noise[..., 1:, :D])
    h = mu + map_vector(square_root(Sigma), noise[..., 0, :D])
    lead = torch.broadcast_shapes(h.shape, (*process_noise.shape[:-2], D), u.shape, A.shape[:-1])
    states = [h.expand(lead)]
    for noise_t in process_noise.unbind(-2):
        states.append(map_vector(A, states[-1]) + u + noise_t)
    h = torch.stack(states, -2)
    observation_noise = map_vector(square_root(model.position_noise).unsqueeze(-3), noise[..., D:])
    return Path(h, map_vector(B.unsqueeze(-3), h) + observation_noise)


class Gaussian(NamedTuple):
    """Means and covariances of independent Gaussians."""

    mean: Float[Tensor, "*batch D"]
    covariance: Float[Tensor, "*batch D D"]


class GaussianMixture(NamedTuple):
    """A mixture of K Gaussians for each object; parts shared by objects may lack their axes."""

    log_weights: Float[Tensor, "*batch K"]
    means: Float[Tensor, "*#batch K D"]
    covariances: Float[Tensor, "*#batch K D D"]

    def moments(self) -> Gaussian:
        """Return the mean and covariance of the mixture.

        Law: those of the mixture by its definition (test_moments_are_those_of_the_mixture).
        """
        weights = self.log_weights.softmax(-1)[..., None]
        mean = (weights * self.means).sum(-2)
        offsets = self.means - mean[..., None, :]
        scatter = self.covariances + offsets[..., :, None] * offsets[..., None, :]
        return Gaussian(mean, (weights[..., None] * scatter).sum(-3))

    def mode(self) -> Float[Tensor, "*batch D"]:
        """Return the mean of the component with the largest weight."""
        likely = self.log_weights.argmax(-1, keepdim=True)
        means = self.means.expand(*self.log_weights.shape, self.means.shape[-1])
        return means.take_along_dim(likely[..., None], -2)[..., 0, :]


class SmoothedTracks(NamedTuple):
    """States of every object and frame given all observations, under each of K components."""

    log_weights: Float[Tensor, "B N K"]
    means: Float[Tensor, "B N K T D"]
    covariances: Float[Tensor, "#B #N K T D D"]

    def select(self, component: Int[Tensor, "B N"]) -> Gaussian:
        """Return the states of each object under one component, [B N T ...].

        Law: they are those of that component (test_states_under_a_component_are_its_own).
        """
        pick = component[..., None, None, None]
        mean = self.means.take_along_dim(pick, 2)[:, :, 0]
        return Gaussian(mean, self.covariances.take_along_dim(pick[..., None], 2)[:, :, 0])


class SampledTracks(NamedTuple):
    """Draws from the prior of a law of motion."""

    component: Int[Tensor, "*batch"]
    states: Float[Tensor, "*batch T D"]
    positions: Float[Tensor, "*batch T 2"]


# Block matrices of T stacked frames, which replace the loop over frames. The stacked states obey
# M h = k with inputs k = (h_1, u + noise_2, ..., u + noise_T), where M has I on its block diagonal
# and -A below: h_t - A h_{t-1} = u + noise_t. A linear function S h of the states is (S M^-1) k, so
# that all its moments are products with the rows R = S M^-1. `TD` runs over frames and, within each
# frame, over D; `LD` over all frames but the first.


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
    return (stack_columns(rows, D) @ model.state_noise).reshape(rows.shape)[..., D:]


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
    return solve_triangular(matrix, columns, upper=upper, unitriangular=True)  # type: ignore[no-any-return]


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
