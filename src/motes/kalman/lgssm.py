"""The linear-Gaussian model of one moving object: its matrices, their constraints, prior draws.

Nothing here knows of clips or objects: leading axes are whatever the caller batches over, and
they broadcast, so that one shared model and one model for each object are the same code.
"""

from typing import NamedTuple

import torch
from torch import nn

from motes.core.axes import Float, Int, Tensor
from motes.core.errors import InputError

POSITION_DIM = 2
STATE_DIM = 2 * POSITION_DIM


class LGSSM(NamedTuple):
    """A linear Gaussian state-space model; all its leading axes broadcast with one another.

    Paper: [Eq. lgssm]
        h_1 ~ N(mu, Sigma),  h_t = A h_{t-1} + u + N(0, Sigma_H),  a_t = B h_t + N(0, Sigma_A)

    Give what many models share without their axes: K models that differ in mu and Sigma alone
    have an axis K there and nowhere else, and inference then does the shared work once.
    Use float64: with little noise, float32 gradients of a likelihood are wrong by per cents.
    """

    transition: Float[Tensor, "... D D"]
    """A"""
    force: Float[Tensor, "... D"]
    """u"""
    emission: Float[Tensor, "... P D"]
    """B"""
    state_noise: Float[Tensor, "... D D"]
    """Sigma_H"""
    position_noise: Float[Tensor, "... P P"]
    """Sigma_A"""
    initial_mean: Float[Tensor, "... D"]
    """mu"""
    initial_covariance: Float[Tensor, "... D D"]
    """Sigma"""


class Path(NamedTuple):
    """One joint draw of the states and the positions that they emit."""

    states: Float[Tensor, "... T D"]
    positions: Float[Tensor, "... T P"]


def aligned(model: LGSSM) -> LGSSM:
    """The model with the same leading axes for all that starts share, and for all starts.

    The axes of mu and Sigma hold those of the dynamics, so that a sum over starts is one over the
    axes that the dynamics lack.
    """
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    leads = {A.shape[:-2], u.shape[:-1], B.shape[:-2], Sigma_H.shape[:-2], Sigma_A.shape[:-2]}
    if len(leads) == 1 and mu.shape[:-1] == Sigma.shape[:-2] and mu.ndim >= u.ndim:
        return model
    lead = torch.broadcast_shapes(*leads)
    starts = torch.broadcast_shapes(lead, mu.shape[:-1], Sigma.shape[:-2])
    A, B, Sigma_H, Sigma_A = (part.expand(*lead, -1, -1) for part in (A, B, Sigma_H, Sigma_A))
    u, mu, Sigma = u.expand(*lead, -1), mu.expand(*starts, -1), Sigma.expand(*starts, -1, -1)
    return LGSSM(A, u, B, Sigma_H, Sigma_A, mu, Sigma)


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


def draw_path(model: LGSSM, noise: Float[Tensor, "... T D_plus_P"]) -> Path:
    """States and positions of the model's prior, as a function of standard normal noise.

    Paper: [Eq. lds], given the component z.

    Args:
        model: Its leading axes broadcast with those of the noise.
        noise: Standard normal; the first D of each frame move the state, the last P the position.

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
    state_kicks = map_vector(square_root(model.state_noise).unsqueeze(-3), noise[..., 1:, :D])
    h = mu + map_vector(square_root(Sigma), noise[..., 0, :D])
    lead = torch.broadcast_shapes(h.shape, (*state_kicks.shape[:-2], D), u.shape, A.shape[:-1])
    states = [h.expand(lead)]
    for kick in state_kicks.unbind(-2):
        states.append(map_vector(A, states[-1]) + u + kick)
    h = torch.stack(states, -2)
    jitter = map_vector(square_root(model.position_noise).unsqueeze(-3), noise[..., D:])
    return Path(h, map_vector(B.unsqueeze(-3), h) + jitter)


def select(model: LGSSM, component: Int[Tensor, "..."]) -> LGSSM:
    """The model of one component for each index, from K that differ in their start alone."""
    mu, Sigma = model.initial_mean[component], model.initial_covariance[component]
    return model._replace(initial_mean=mu, initial_covariance=Sigma)


class Dynamics(nn.Module):
    """The learnable dynamics: Newton's law with a constant force and K kinds of start.

    Paper: [Eq. mixture]
        h_1 ~ sum_k pi_k N(mu_k, Sigma_k),  A = [I, delta I; 0, I],  B = [I, 0]

    A and B keep that form, unless the law is linear: then what A adds to the velocity, a force that
    grows with the position and the velocity (springs, drag), is learned too [Choice 23]. delta > 0,
    u, Sigma_H, Sigma_A, pi, mu_k and Sigma_k are learned. Covariances are full and valid for any
    parameter value: each is L L' with the free entries below the diagonal of L and the
    exponential of those on it. The starting values are those
    of the paper's section on initialisation; the parameters are float64.

    Args:
        num_components: K.
        sampling_period: delta at the start.
        state_noise: Sigma_H = state_noise * I at the start; a variance.
        position_noise: Sigma_A = position_noise * I at the start; a variance.
        initial_spread: Sigma_k = initial_spread^2 * I at the start; the position part of mu_k is
            drawn with the same spread, the velocity part is 0.
        linear: whether the law is linear.
        generator: Draws the positions of mu_k.
    """

    def __init__(
        self,
        *,
        num_components: int = 2,
        sampling_period: float = 0.1,
        state_noise: float = 0.001,
        position_noise: float = 1.0,
        initial_spread: float = 1.0,
        linear: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        given = dict(
            num_components=num_components,
            sampling_period=sampling_period,
            state_noise=state_noise,
            position_noise=position_noise,
            initial_spread=initial_spread,
        )
        for name, value in given.items():
            if not value > 0:
                raise InputError(f"got {name}={value}; expected a positive number; give one")
        mean = torch.zeros(num_components, STATE_DIM, dtype=torch.float64)
        mean[:, :POSITION_DIM] = initial_spread * torch.randn(
            num_components, POSITION_DIM, dtype=torch.float64, generator=generator
        )
        delta = torch.tensor(sampling_period, dtype=torch.float64)
        spread = _free_factor(initial_spread**2, STATE_DIM)
        self.log_delta = nn.Parameter(delta.log())
        self.force = nn.Parameter(torch.zeros(STATE_DIM, dtype=torch.float64))
        field = torch.zeros(STATE_DIM - POSITION_DIM, STATE_DIM, dtype=torch.float64)
        self.force_field = nn.Parameter(field) if linear else None
        self.state_factor = nn.Parameter(_free_factor(state_noise, STATE_DIM))
        self.position_factor = nn.Parameter(_free_factor(position_noise, POSITION_DIM))
        self.logits = nn.Parameter(torch.zeros(num_components, dtype=torch.float64))
        self.initial_mean = nn.Parameter(mean)
        self.initial_factor = nn.Parameter(spread.repeat(num_components, 1, 1))

    def components(self) -> LGSSM:
        """The K models: mu and Sigma have a leading axis K, what they share has none."""
        eye = identity(POSITION_DIM, self.logits)
        zero = torch.zeros_like(eye)
        top = torch.cat([eye, self.log_delta.exp() * eye], -1)
        bottom = torch.cat([zero, eye], -1)
        if self.force_field is not None:
            bottom = bottom + self.force_field
        A = torch.cat([top, bottom])
        B = torch.cat([eye, zero], -1)
        return LGSSM(
            transition=A,
            force=self.force,
            emission=B,
            state_noise=_covariance(self.state_factor),
            position_noise=_covariance(self.position_factor),
            initial_mean=self.initial_mean,
            initial_covariance=_covariance(self.initial_factor),
        )

    def log_weights(self) -> Float[Tensor, " K"]:
        """The logarithms of pi_k."""
        return self.logits.log_softmax(-1)

    def draw_components(self, noise: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """A component z ~ pi for each number of `noise`, which is uniform on [0, 1)."""
        borders = self.log_weights().exp().cumsum(-1)[:-1]
        return (noise.unsqueeze(-1) >= borders).sum(-1)


def _free_factor(variance: float, size: int) -> Float[Tensor, "size size"]:
    """The free parameter whose covariance is `variance` times the identity."""
    factor = torch.zeros(size, size, dtype=torch.float64)
    factor.diagonal().fill_(0.5 * torch.tensor(variance, dtype=torch.float64).log().item())
    return factor


def _covariance(factor: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """L L', where L is the lower triangle of `factor` with the exponential of its diagonal."""
    L = factor.tril(-1) + factor.diagonal(dim1=-2, dim2=-1).exp().diag_embed()
    return L @ L.mT
