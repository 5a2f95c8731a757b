"""Gaussian vectors of which some coordinates were not seen."""

import math
from string import ascii_lowercase

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.lgssm import identity


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
