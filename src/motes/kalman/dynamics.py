"""The learnable dynamics: a mixture of linear Gaussian models that differ in the initial state."""

import torch
from torch import nn

from motes.core.axes import Float, Int, Tensor
from motes.core.errors import InputError
from motes.kalman.linalg import identity
from motes.kalman.model import LGSSM, POSITION_DIM, STATE_DIM


class LinearDynamics(nn.Module):
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
