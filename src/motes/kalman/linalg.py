"""Linear algebra of Gaussians: factors, solves, masks; any leading axes, float64."""

import math
from string import ascii_lowercase

import torch

from motes.core.axes import Bool, Float, Int, Tensor


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
