"""Gaussian vectors of which some coordinates were not seen."""

import math
from string import ascii_lowercase
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from motes.lgssm import identity, map_vector
from motes.shapes import Float, Tensor


def log_density(
    residual: Float[Tensor, "... n"],
    covariance: Float[Tensor, "... n n"],
    seen: Float[Tensor, "... n"],
) -> Float[Tensor, "..."]:
    """The log density of the seen coordinates (`seen` 1, else 0) of a residual; once differentiable.

    Leading axes broadcast; covariances that many residuals share are factorised once.

    Law: the gradient is that of the values (test_log_density_has_its_gradient).
    """
    density: Tensor = _LogDensity.apply(residual, covariance, seen)
    return density


def hide(
    covariance: Float[Tensor, "... n n"], seen: Float[Tensor, "... n"]
) -> Float[Tensor, "... n n"]:
    """The covariance with rows and columns of unseen coordinates taken from the identity."""
    return covariance * both(seen) + (1 - seen).diag_embed()


def both(seen: Float[Tensor, "... n"]) -> Float[Tensor, "... n n"]:
    """1 for each pair of coordinates that were seen both."""
    return seen.unsqueeze(-1) * seen.unsqueeze(-2)


def whitener(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The inverse of the Cholesky factor; NaN, not a wrong number, where there is none.

    No error is raised: that would wait for the device, and forbid capture in a CUDA graph.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    factor = torch.where((failed > 0)[..., None, None], math.nan, factor)
    eye = identity(covariance.shape[-1], covariance)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return inverse


def valid(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The covariance, which may be singular; NaN where it has a negative eigenvalue."""
    size = covariance.diagonal(dim1=-2, dim2=-1).abs().sum(-1)[..., None, None]
    limits = torch.finfo(covariance.dtype)
    margin = (limits.eps * size + limits.tiny) * identity(covariance.shape[-1], covariance)
    _, failed = torch.linalg.cholesky_ex((covariance + margin).detach())
    return torch.where((failed > 0)[..., None, None], math.nan, covariance)


def whitened_log_density(
    factor: Float[Tensor, "... n n"],
    whitened: Float[Tensor, "... n"],
    seen: Float[Tensor, "... n"],
) -> Float[Tensor, "..."]:
    """The log density of the seen coordinates, from a residual times its whitener `factor`."""
    log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log_scale - 0.5 * (whitened.square().sum(-1) + math.log(2 * math.pi) * seen.sum(-1))


class _LogDensity(torch.autograd.Function):
    """With x = C^-1 r, the gradient by r is -x and that by C is (x x' - C^-1) / 2.

    Written out, because the gradient of a Cholesky factor costs far more than the factor.
    """

    @staticmethod
    def forward(ctx: Any, residual: Tensor, covariance: Tensor, seen: Tensor) -> Tensor:
        W = whitener(hide(covariance, seen))
        whitened = map_vector(W, residual * seen)
        ctx.save_for_backward(W, whitened, seen)
        ctx.shapes = residual.shape, covariance.shape
        return whitened_log_density(W, whitened, seen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        W, whitened, seen = ctx.saved_tensors
        of_residual, of_covariance = ctx.shapes
        x = map_vector(W.mT, whitened)
        weighted = gradient.unsqueeze(-1) * x
        total = gradient.sum_to_size(torch.broadcast_shapes(W.shape[:-2], seen.shape[:-1]))
        precision = total[..., None, None] * (W.mT @ W) * both(seen)
        squares = _sum_of_outer_products(weighted, x, of_covariance)
        by_covariance = 0.5 * (squares - precision.sum_to_size(of_covariance))
        return -weighted.sum_to_size(of_residual), by_covariance, None


def _sum_of_outer_products(
    left: Float[Tensor, "... n"], right: Float[Tensor, "... n"], shape: torch.Size
) -> Tensor:
    """Left right', summed over the leading axes that `shape` lacks, without forming them all."""
    lead = ascii_lowercase[: left.ndim - 1]
    own = (1,) * (left.ndim + 1 - len(shape)) + tuple(shape[:-2])
    kept = "".join(axis for axis, size in zip(lead, own, strict=True) if size > 1)
    return torch.einsum(f"{lead}Y,{lead}Z->{kept}YZ", left, right).reshape(shape)
