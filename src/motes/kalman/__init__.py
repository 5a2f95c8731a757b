"""Exact inference in a linear-Gaussian model: filter, smoother, evidence, posterior draws.

Every function takes positions [..., T, P] and a mask `observed` [..., T] that says which of them
were seen (None: all). Leading axes of the model, the positions and the mask broadcast with one
another. What a hidden position holds cannot matter, NaN included, not even to a gradient.
All is differentiable, and computed in the type of the model's matrices, which should be float64.

    past = kalman.filter(model, positions[:, :5])                one pass, O(T), for use as it comes
    track = kalman.smooth(model, positions, observed)            where it was, and how sure that is
    value = kalman.log_likelihood(model, positions, observed)    to learn the model by
    paths = kalman.draw_states(model, positions, observed, noise=noise)
"""

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.kalman.chunked import log_likelihood_chunked
from motes.kalman.dense import Smoothed, log_likelihood_dense, smooth_dense
from motes.kalman.model import LGSSM, draw_path
from motes.kalman.sequential import (
    Filtered,
    StateEstimate,
    Updated,
    predict,
    run_filter,
    smooth_sequential,
    update,
)

__all__ = [
    "Filtered",
    "Smoothed",
    "StateEstimate",
    "Updated",
    "draw_states",
    "filter",
    "log_likelihood",
    "predict",
    "smooth",
    "update",
]

Belief = StateEstimate  # the name in version 0.1

# Up to so many frames one dense Gaussian is quicker than going through time (`bench kalman`).
DENSE_FRAMES = 64
# The length of a stretch of the chunked form: long enough to batch, short enough to factorise.
CHUNK_FRAMES = 32


def filter(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
) -> Filtered:
    """The state in every frame given the positions seen up to that frame.

    Law: equals conditioning the joint Gaussian (test_filter_matches_dense_conditioning).
    """
    a = _without_hidden(_admit(model, positions, observed), observed)
    result, _ = run_filter(model, a, observed)
    shape = (*result.means.shape, result.means.shape[-1])
    return result._replace(
        covariances=result.covariances.expand(shape),
        predicted_covariances=result.predicted_covariances.expand(shape),
    )


def smooth(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The state in every frame given all positions seen, earlier and later.

    Args:
        model: The dynamics.
        positions: What was seen.
        observed: Where; everywhere, if None.
        position_variances: If given, positions are not numbers but independent beliefs
            N(position, variance), and the answer is the average of p(h | a) over them: the mean
            is the same, the covariance gains that of the smoothed mean.

    Law: equals conditioning the joint Gaussian (test_smoother_matches_dense_posterior);
        hiding a position is deleting it (test_hiding_a_frame_is_deleting_its_rows).
    """
    a, variances = _admit(model, positions, observed), position_variances
    if variances is not None:
        variances = _admit(model, variances, observed)
    if a.shape[-2] <= DENSE_FRAMES:
        return smooth_dense(model, a, observed, variances)
    if variances is not None:
        variances = _without_hidden(variances, observed)
    return smooth_sequential(model, _without_hidden(a, observed), observed, variances)


def log_likelihood(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
) -> Float[Tensor, "..."]:
    """The log density of the seen positions: in one piece if short, in stretches if long.

    Law: equals the filter's, either way (test_all_routes_to_the_log_likelihood_agree).
    """
    a = _without_hidden(_admit(model, positions, observed), observed)
    if a.shape[-2] <= DENSE_FRAMES:
        return log_likelihood_dense(model, a, observed)
    return log_likelihood_chunked(model, a, observed, CHUNK_FRAMES)


def draw_states(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
    *,
    noise: Float[Tensor, "... T D_plus_P"],
) -> Float[Tensor, "... T D"]:
    """Exact draws of all states given the seen positions, as a function of standard normal noise.

    A draw (h*, a*) of the prior is moved by what the smoother makes of a - a* (Matheron's rule):
    no covariance of a state is inverted, so noise that is switched off does no harm.

    Args:
        model: The dynamics.
        positions: What was seen.
        observed: Where; everywhere, if None.
        noise: As for `motes.kalman.model.draw_path`; more leading axes give more draws.

    Law: zero noise gives the smoothed means (test_zero_noise_gives_the_smoothed_mean); moments are
        those of the posterior (test_posterior_draws_have_the_moments_of_the_posterior).
    """
    a = _admit(model, positions, observed)
    prior = draw_path(model, noise.to(model.transition.dtype))
    u, mu = torch.zeros_like(model.force), torch.zeros_like(model.initial_mean)
    centred = model._replace(force=u, initial_mean=mu)
    return prior.states + smooth(centred, a - prior.positions, observed).means


def _admit(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
) -> Float[Tensor, "... T P"]:
    """The positions, checked, in the model's type."""
    P = model.emission.shape[-2]
    if positions.ndim < 2 or positions.shape[-1] != P or positions.shape[-2] < 1:
        raise InputError(
            f"got positions of shape {tuple(positions.shape)}; expected (..., T, {P}) with T >= 1; "
            "put time second to last and coordinates last"
        )
    T = positions.shape[-2]
    a = positions.to(model.transition.dtype)
    if observed is None:
        return a
    if observed.dtype != torch.bool or observed.shape[-1:] != (T,):
        raise InputError(
            f"got observed of type {observed.dtype} and shape {tuple(observed.shape)}; "
            f"expected torch.bool and (..., {T}); give one flag for each frame of positions"
        )
    return a


def _without_hidden(
    positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> Float[Tensor, "... T P"]:
    """The positions with zeros where they are hidden.

    Replaced before any arithmetic: 0 * NaN would poison values, and gradients even later.
    """
    return positions if observed is None else torch.where(observed.unsqueeze(-1), positions, 0.0)
