"""The linear Gaussian state-space model, the results of inference in it, and prior draws.

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
    mu, Sigma = model.initial_mean[component], model.initial_covariance[component]
    return model._replace(initial_mean=mu, initial_covariance=Sigma)


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
