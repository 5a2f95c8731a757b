"""Linear algebra of batched Gaussians: products, factors and densities with missing coordinates."""

import math
from string import ascii_lowercase

import torch

from motes.core.axes import Bool, Float, Int, Tensor


def map_vector(
    matrix: Float[Tensor, "... rows columns"], vector: Float[Tensor, "... columns"]
) -> Float[Tensor, "... rows"]:
    """The product of matrices and vectors whose leading axes broadcast.

    A matrix that is shared by a batch of vectors is not copied for each of them: the axes that only
    the vectors have become the rows of one product. `einsum` does that too, and takes longer.
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
    """The identity matrix, in the type and on the device of another tensor."""
    return torch.eye(size, dtype=like.dtype, device=like.device)


def square_root(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The lower-triangular L with L L' = covariance, for singular covariances too.

    A noise that is switched off (Sigma_H = 0, a velocity that is known) is a legal model, and
    `torch.linalg.cholesky` refuses it. Columns whose pivot is zero up to rounding are left zero.

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
    """A solution X of covariance X = right, for singular covariances too, whose range holds right.

    Law: the product gives the right side back (test_a_singular_covariance_is_solved_for).
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


def distinct(
    observed: Bool[Tensor, "*batch T"],
) -> tuple[Bool[Tensor, "masks T"], Int[Tensor, "*batch"]]:
    """The masks that occur, and which of them each one is: few of many, as a rule."""
    masks, which = observed.flatten(0, -2).unique(dim=0, return_inverse=True)
    return masks, which.view(observed.shape[:-1])


def per_axis(
    observed: Bool[Tensor, "... T"], num_axes: int, dtype: torch.dtype
) -> Float[Tensor, "... TP"]:
    """1 for each coordinate that was seen and 0 for each that was not."""
    return observed.to(dtype).unsqueeze(-1).expand(*observed.shape, num_axes).flatten(-2)


def hide(
    covariance: Float[Tensor, "... n n"], seen: Float[Tensor, "... n"]
) -> Float[Tensor, "... n n"]:
    """The covariance with rows and columns of unseen coordinates taken from the identity."""
    return covariance * _both(seen) + (1 - seen).diag_embed()


def _both(seen: Float[Tensor, "... n"]) -> Float[Tensor, "... n n"]:
    """1 for each pair of coordinates that were seen both."""
    return seen.unsqueeze(-1) * seen.unsqueeze(-2)


def cholesky(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The Cholesky factor; NaN, not a wrong number, where there is none.

    No error is raised: that would wait for the device, and forbid capture in a CUDA graph.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    return torch.where((failed > 0)[..., None, None], math.nan, factor)


def whitener(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The inverse of the Cholesky factor."""
    eye = identity(covariance.shape[-1], covariance)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(covariance), eye, upper=False)
    return inverse


def valid(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The covariance, which may be singular; NaN where it has a negative eigenvalue."""
    size = covariance.diagonal(dim1=-2, dim2=-1).abs().sum(-1)[..., None, None]
    limits = torch.finfo(covariance.dtype)
    margin = (limits.eps * size + limits.tiny) * identity(covariance.shape[-1], covariance)
    _, failed = torch.linalg.cholesky_ex((covariance + margin).detach())
    return torch.where((failed > 0)[..., None, None], math.nan, covariance)


def log_scale(whitener: Float[Tensor, "... n n"]) -> Float[Tensor, "..."]:
    """The log of the determinant, that of the density's scale."""
    return whitener.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_density(
    scale: Float[Tensor, "..."],
    residual: Float[Tensor, "... n"],
    pull: Float[Tensor, "... n"],
    num_seen: Float[Tensor, "..."] | int,
) -> Float[Tensor, "..."]:
    """The log density of `num_seen` coordinates: log scale, residual r, and its pull C^-1 r.

    A residual that is whitened already is its own pull.
    """
    constant = 0.5 * math.log(2 * math.pi) * num_seen
    return scale - constant - 0.5 * (residual * pull).sum(-1)


def log_density_gradients(
    precision: Float[Tensor, "... n n"],
    pull: Float[Tensor, "... n"],
    weights: Float[Tensor, "..."],
    seen: Float[Tensor, "... n"] | None,
    lead: tuple[int, ...],
) -> tuple[Float[Tensor, "... n"], Float[Tensor, "... n n"]]:
    """Gradients of weighted densities by mean and covariance, the latter of axes `lead`.

    With x = C^-1 r, they are x and (x x' - C^-1) / 2. Written out, because the gradient of a
    Cholesky factor costs far more than the factor.
    """
    weighted = weights.unsqueeze(-1) * pull
    mass = weights.sum_to_size(precision.shape[:-2])[..., None, None]
    if seen is not None:
        precision = precision * _both(seen)
    shape = (*lead, *precision.shape[-2:])
    squares = _sum_of_outer_products(weighted, pull, shape)
    return weighted, 0.5 * (squares - (mass * precision).sum_to_size(shape))


def _sum_of_outer_products(
    left: Float[Tensor, "... n"], right: Float[Tensor, "... n"], shape: tuple[int, ...]
) -> Tensor:
    """The sum of left right' over the leading axes that `shape` lacks, without forming them all."""
    axes = ascii_lowercase[: left.ndim - 1]
    own = (1,) * (left.ndim + 1 - len(shape)) + tuple(shape[:-2])
    kept = "".join(axis for axis, size in zip(axes, own, strict=True) if size > 1)
    return torch.einsum(f"{axes}Y,{axes}Z->{kept}YZ", left, right).reshape(shape)
