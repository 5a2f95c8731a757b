"""The linear Gaussian state-space model, its results, and the algebra that all routes share.

Leading axes broadcast with one another, so that one shared model and one model for each object
are the same code. A mask is 1 for each observed coordinate and 0 for each unobserved one.
"""

import math
from string import ascii_lowercase
from typing import NamedTuple

import torch
from torch.linalg import solve_triangular

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError

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


def map_vector(
    matrix: Float[Tensor, "... rows columns"], vector: Float[Tensor, "... columns"]
) -> Float[Tensor, "... rows"]:
    """Return matrix-vector products whose leading axes broadcast.

    A matrix shared by a batch of vectors is not copied, as by `einsum`, which is slower.
    """
    if matrix.ndim == 2:
        return vector @ matrix.mT
    lead, more = matrix.shape[:-2], vector.ndim + 1 - matrix.ndim
    if lead == vector.shape[:-1]:
        product: Tensor = (matrix @ vector.unsqueeze(-1)).squeeze(-1)
        return product
    if more == 1 and lead == vector.shape[1:-1]:
        batched: Tensor = (vector.movedim(0, -2) @ matrix.mT).movedim(-2, 0)
        return batched
    return torch.einsum("...ij,...j->...i", matrix, vector)


def identity(size: int, like: Tensor) -> Float[Tensor, "size size"]:
    """Return the identity matrix with the dtype and device of another tensor."""
    return torch.eye(size, dtype=like.dtype, device=like.device)


def cholesky(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """Return the Cholesky factor, NaN where the matrix is not positive definite.

    Raising an error would synchronise with the device and forbid capture in a CUDA graph.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    return torch.where((failed > 0)[..., None, None], math.nan, factor)


def inverse_cholesky(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """Return W = L^-1, where L is the Cholesky factor: W r is whitened, and W' W the precision."""
    eye = identity(covariance.shape[-1], covariance)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(covariance), eye, upper=False)
    return inverse


def nan_unless_semidefinite(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """Return the covariance, NaN where it has a negative eigenvalue; singular ones are valid."""
    size = covariance.diagonal(dim1=-2, dim2=-1).abs().sum(-1)[..., None, None]
    limits = torch.finfo(covariance.dtype)
    margin = (limits.eps * size + limits.tiny) * identity(covariance.shape[-1], covariance)
    _, failed = torch.linalg.cholesky_ex((covariance + margin).detach())
    return torch.where((failed > 0)[..., None, None], math.nan, covariance)


def square_root(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """Return the lower-triangular L with L L' = covariance, also of singular covariances.

    Zero noise (Sigma_H = 0, a known initial velocity) is a valid model that
    `torch.linalg.cholesky` rejects. Columns whose pivot is zero up to rounding are left zero.

    Law: L L' = covariance also when it is singular (test_square_root_of_singular_covariance).
    """
    size = covariance.shape[-1]
    scale = torch.finfo(covariance.dtype).eps * size * covariance.diagonal(dim1=-2, dim2=-1)
    remainder, columns = covariance, []
    for j in range(size):
        pivot = remainder[..., j, j]
        regular = (pivot > scale[..., j]).unsqueeze(-1)
        # The pivot is replaced before the root, so that no gradient of sqrt(0) is ever formed.
        root = torch.where(regular.squeeze(-1), pivot, 1.0).sqrt().unsqueeze(-1)
        below = remainder[..., j] * (torch.arange(size, device=covariance.device) >= j)
        column = torch.where(regular, below / root, 0.0)
        columns.append(column)
        remainder = remainder - column.unsqueeze(-1) * column.unsqueeze(-2)
    return torch.stack(columns, -1)


def solve_covariance(
    covariance: Float[Tensor, "... n n"], right: Float[Tensor, "... n m"]
) -> Float[Tensor, "... n m"]:
    """Return a solution X of covariance X = right.

    The covariance may be singular if its range contains the right side.

    Law: the product gives the right side back (test_solve_with_singular_covariance).
    """
    L, size = square_root(covariance), covariance.shape[-1]
    pivots = L.diagonal(dim1=-2, dim2=-1)
    regular = pivots > 0
    inverse = torch.where(regular, 1 / torch.where(regular, pivots, 1.0), 0.0)
    y: list[Tensor] = []
    for i in range(size):
        known = sum(L[..., i, j, None] * y[j] for j in range(i))
        y.append((right[..., i, :] - known) * inverse[..., i, None])
    x: dict[int, Tensor] = {}
    for i in reversed(range(size)):
        known = sum(L[..., j, i, None] * x[j] for j in range(i + 1, size))
        x[i] = (y[i] - known) * inverse[..., i, None]
    return torch.stack([x[i] for i in range(size)], -2)


def diagonal(matrix: Float[Tensor, "... n n"]) -> Float[Tensor, "... n"]:
    """Return the diagonals, detached."""
    return matrix.detach().diagonal(dim1=-2, dim2=-1)


def reduction(
    before: Float[Tensor, "... n n"], after: Float[Tensor, "... n n"]
) -> Float[Tensor, ""]:
    """Return the largest ratio of variances before and after conditioning; infinite if negative.

    Variances that were zero before do not count.
    """
    kept = diagonal(after) / diagonal(before)
    return kept.nan_to_num(1.0).amin().clamp(min=0).reciprocal() if kept.numel() else largest(kept)


def largest(values: Float[Tensor, "..."]) -> Float[Tensor, ""]:
    """Return the largest value, NaN if there is one; 1 if there are none."""
    return values.amax() if values.numel() else values.new_ones(())


def unique_masks(
    observed: Bool[Tensor, "*batch T"],
) -> tuple[Bool[Tensor, "masks T"], Int[Tensor, "*batch"]]:
    """Return the distinct masks of a batch, which are usually few, and the index of each."""
    masks, index = observed.flatten(0, -2).unique(dim=0, return_inverse=True)
    return masks, index.view(observed.shape[:-1])


def coordinate_mask(
    observed: Bool[Tensor, "... T"], num_axes: int, dtype: torch.dtype
) -> Float[Tensor, "... TP"]:
    """Return the mask of all coordinates, `num_axes` for each frame."""
    return observed.to(dtype).unsqueeze(-1).expand(*observed.shape, num_axes).flatten(-2)


def mask_covariance(
    covariance: Float[Tensor, "... n n"], mask: Float[Tensor, "... n"]
) -> Float[Tensor, "... n n"]:
    """Replace rows and columns of unobserved coordinates by those of the identity."""
    return covariance * (mask.unsqueeze(-1) * mask.unsqueeze(-2)) + (1 - mask).diag_embed()


def log_det_triangular(factor: Float[Tensor, "... n n"]) -> Float[Tensor, "..."]:
    """Return the log determinant of a triangular matrix with a positive diagonal."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_density(
    log_det: Float[Tensor, "..."],
    residual: Float[Tensor, "... n"],
    weighted: Float[Tensor, "... n"],
    num_observed: Float[Tensor, "..."] | int,
) -> Float[Tensor, "..."]:
    """Return the Gaussian log density from log |C|^(-1/2), r and C^-1 r.

    The residual r is zero where unobserved. Twice the whitened residual replaces r and C^-1 r.
    """
    constant = 0.5 * math.log(2 * math.pi) * num_observed
    return log_det - constant - 0.5 * (residual * weighted).sum(-1)


def log_density_gradients(
    precision: Float[Tensor, "... n n"],
    weighted: Float[Tensor, "... n"],
    cotangent: Float[Tensor, "..."],
    mask: Float[Tensor, "... n"] | None,
    lead: tuple[int, ...],
) -> tuple[Float[Tensor, "... n"], Float[Tensor, "... n n"]]:
    """Return the gradients of log densities with respect to mean and covariance.

    With x = C^-1 r (`weighted`) they are x and (x x' - C^-1) / 2, much cheaper than through the
    Cholesky factor. That of the covariance is summed over all axes but its own, `lead`.
    """
    by_mean = cotangent.unsqueeze(-1) * weighted
    total = cotangent.sum_to_size(precision.shape[:-2])[..., None, None]
    if mask is not None:
        precision = precision * (mask.unsqueeze(-1) * mask.unsqueeze(-2))
    shape = (*lead, *precision.shape[-2:])
    # Sum the outer products over the axes that the covariance lacks, without forming them all.
    axes = ascii_lowercase[: by_mean.ndim - 1]
    own = (1,) * (by_mean.ndim + 1 - len(shape)) + tuple(lead)
    kept = "".join(axis for axis, size in zip(axes, own, strict=True) if size > 1)
    squares = torch.einsum(f"{axes}Y,{axes}Z->{kept}YZ", by_mean, weighted).reshape(shape)
    return by_mean, 0.5 * (squares - (total * precision).sum_to_size(shape))


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
