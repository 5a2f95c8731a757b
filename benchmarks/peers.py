"""The benchmark's tasks in other Kalman libraries, each called as its documentation recommends.

The libraries are optional and imported where they are used. All functions return a call without
arguments that computes the answer from scratch and waits for it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.model import LGSSM

Answer = list[NDArray[np.float64]]

# in_axes of `jax.vmap`: only the initial state has an axis for the components.
INITIAL_STATE_AXES = (None, None, None, None, None, 0, 0)

# Observation noise of hidden frames in libraries without masks; leaves a weight of 1e-8.
HIDDEN_VARIANCE = 1e8


def answer(
    value: NDArray[np.float64], by_positions: NDArray[np.float64], *by_fields: NDArray[np.float64]
) -> Answer:
    """Return a value and its gradients; of covariance gradients only the symmetric part.

    Covariances are symmetric, so the rest of their gradients is arbitrary and libraries differ.
    """
    by_A, by_u, by_B, by_Sigma_H, by_Sigma_A, by_mu, by_Sigma = by_fields
    symmetric = [m + np.swapaxes(m, -1, -2) for m in (by_Sigma_H, by_Sigma_A, by_Sigma)]
    return [value, by_positions, by_A, by_u, by_B, by_mu, *symmetric]


def dynamax_likelihood(model: LGSSM, positions: Float[Tensor, "B T P"]) -> Callable[[], Answer]:
    """Return value and gradient by dynamax's filter, compiled as one program."""
    import jax
    from dynamax.linear_gaussian_ssm.inference import lgssm_filter

    def value(fields: tuple[Any, ...], positions: Any) -> Any:
        def one(component: tuple[Any, ...], clip: Any) -> Any:
            params = _dynamax_params(component, component[4])
            return lgssm_filter(params, clip).marginal_loglik

        over_components = jax.vmap(one, in_axes=(INITIAL_STATE_AXES, None))
        evidence = jax.vmap(over_components, in_axes=(None, 0))(fields, positions)
        return jax.scipy.special.logsumexp(evidence, axis=1).sum()

    program = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
    fields, a = _to_jax(model, positions)

    def call() -> Answer:
        result, (by_fields, by_positions) = jax.block_until_ready(program(fields, a))
        return answer(*(np.asarray(part) for part in (result, by_positions, *by_fields)))

    return call


def dynamax_smoother(
    model: LGSSM, positions: Float[Tensor, "B T P"], observed: Bool[Tensor, " T"]
) -> Callable[[], Answer]:
    """Return smoothed means and covariances; hidden frames have an emission variance of 1e8."""
    import jax
    from dynamax.linear_gaussian_ssm.inference import lgssm_smoother

    visible = observed.numpy()[:, None, None]

    def one(component: tuple[Any, ...], clip: Any) -> Any:
        Sigma_A = component[4]
        hidden = HIDDEN_VARIANCE * np.eye(Sigma_A.shape[-1])
        params = _dynamax_params(component, jax.numpy.where(visible, Sigma_A, hidden))
        track = lgssm_smoother(params, clip)
        return track.smoothed_means, track.smoothed_covariances

    over_components = jax.vmap(one, in_axes=(INITIAL_STATE_AXES, None))
    program = jax.jit(jax.vmap(over_components, in_axes=(None, 0)))
    fields, a = _to_jax(model, positions)
    return lambda: [np.asarray(part) for part in jax.block_until_ready(program(fields, a))]


def pyro_likelihood(model: LGSSM, positions: Float[Tensor, "B T P"]) -> Callable[[], Answer]:
    """Return value and gradient by pyro's GaussianHMM."""
    fields = [field.clone().requires_grad_() for field in model]
    a = positions.clone().requires_grad_()

    def call() -> Answer:
        chain = _pyro_chain(LGSSM(*fields), fields[4].unsqueeze(-3), a.shape[-2])
        value = chain.log_prob(a.unsqueeze(1)).logsumexp(-1).sum()
        gradients = torch.autograd.grad(value, [a, *fields])
        return answer(*(part.detach().numpy() for part in (value, *gradients)))

    return call


def pyro_smoother(
    model: LGSSM, positions: Float[Tensor, "B T P"], observed: Bool[Tensor, " T"]
) -> Callable[[], Answer]:
    """Return smoothed means only, by pyro's posterior sampler with zero noise.

    Hidden frames have an observation covariance of 1e8.
    """
    from pyro.ops.gaussian import sequential_gaussian_filter_sample

    eye = torch.eye(positions.shape[-1], dtype=positions.dtype)
    Sigma_A = torch.where(
        observed[:, None, None], model.position_noise.unsqueeze(-3), HIDDEN_VARIANCE * eye
    )
    B, T, K, D = *positions.shape[:2], *model.initial_mean.shape
    noise = torch.zeros(B, K, T + 1, D, dtype=positions.dtype)

    @torch.inference_mode()
    def call() -> Answer:
        chain = _pyro_chain(model, Sigma_A, T)
        evidence = chain._obs.condition(positions.unsqueeze(1)).event_pad(left=D)
        joined = chain._trans + evidence
        joined = joined.expand(joined.batch_shape)
        # State 0 precedes the first frame; pyro adds it.
        means = sequential_gaussian_filter_sample(chain._init.expand((B, K)), joined, (), noise)
        return [means[..., 1:, :].numpy()]

    return call


def _to_jax(model: LGSSM, positions: Float[Tensor, "B T P"]) -> tuple[tuple[Any, ...], Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return tuple(jax.numpy.asarray(field.numpy()) for field in model), jax.numpy.asarray(
        positions.numpy()
    )


def _dynamax_params(component: tuple[Any, ...], position_noise: Any) -> Any:
    from dynamax.linear_gaussian_ssm.inference import make_lgssm_params

    A, u, B, Sigma_H, _, mu, Sigma = component
    return make_lgssm_params(mu, Sigma, A, Sigma_H, B, position_noise, dynamics_bias=u)


def _pyro_chain(model: LGSSM, position_noise: Float[Tensor, "frames P P"], num_frames: int) -> Any:
    """Return a GaussianHMM, which uses row vectors and steps once before its first emission.

    Its initial state is therefore ours moved one frame back, which needs Sigma - Sigma_H > 0.
    """
    from pyro.distributions import GaussianHMM, MultivariateNormal

    A, u, B, Sigma_H, _, mu, Sigma = model
    back = torch.linalg.inv(A)
    start = (back @ (mu - u).unsqueeze(-1)).squeeze(-1)
    return GaussianHMM(
        MultivariateNormal(start, back @ (Sigma - Sigma_H) @ back.mT),
        A.mT.unsqueeze(-3),
        MultivariateNormal(u.unsqueeze(-2), Sigma_H.unsqueeze(-3)),
        B.mT.unsqueeze(-3),
        MultivariateNormal(torch.zeros_like(B[..., 0]).unsqueeze(-2), position_noise),
        duration=num_frames,
    )
