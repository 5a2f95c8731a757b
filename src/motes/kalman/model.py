"""The linear Gaussian state-space model: its matrices and draws from its prior.

Leading axes broadcast with one another, so that one shared model and one model for each object
are the same code.
"""

from typing import NamedTuple

import torch

from motes.core.axes import Float, Int, Tensor
from motes.core.errors import InputError
from motes.kalman.linalg import map_vector, square_root

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
