"""Exact inference in linear Gaussian state-space models: filter, smoother, likelihood, draws.

Every function takes positions [..., T, P] and a mask `observed` [..., T] (None: all observed).
Leading axes of model, positions and mask broadcast with one another. The values of unobserved
positions, NaN included, affect neither results nor gradients. All functions are differentiable and
compute in the dtype of the model, which should be float64.

    past = kalman.filter(model, positions[:, :5])
    track = kalman.smooth(model, positions, observed)
    value = kalman.log_likelihood(model, positions, observed)
    paths = kalman.draw_states(model, positions, observed, noise=noise)

Several implementations give the same results: `dense`, one joint Gaussian for short videos, and a
chain of blocks of frames for the likelihood of long ones; `sequential`, the textbook recursions;
`dense_arrays` and `arrays`, both in NumPy for few tracks; `exact`, in decimals of many digits. This
module chooses by length and by each one's own estimate of its rounding error, so that variances and
log densities are within 1e-6, relative, for initial variances from 1e-8 to 1e8, noises from 1e-10
to 1e4 or singular, and up to 3,000 frames.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.kalman.arrays import few_tracks
from motes.kalman.chunked import log_likelihood_chunked
from motes.kalman.dense import log_likelihood_dense, smooth_dense
from motes.kalman.dense_arrays import covers, smooth_shared
from motes.kalman.exact import filter_exact, smooth_exact
from motes.kalman.model import LGSSM, Filtered, Smoothed, StateEstimate, Updated, draw_path
from motes.kalman.sequential import predict, rounding, run_filter, smooth_sequential, update

__all__ = [
    "Belief",
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

# Up to this many frames the dense forms are faster than the others (`bench kalman`).
DENSE_FRAMES = 64
# Frames in a block of the chunked form: enough to batch, few enough to factorise.
BLOCK_FRAMES = 32
# The largest estimate of a rounding error, relative to variances, with which a result is returned.
# Errors are at most about ten times the estimate (tests/stress/kalman_precision.py --sweep).
MAX_ROUNDING = 1e-8

Result = TypeVar("Result", Tensor, Filtered, Smoothed)


def filter(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
) -> Filtered:
    """Return the states given the observations up to each frame.

    Law: equals conditioning the joint Gaussian (test_filter_matches_dense_conditioning).
    """
    a = _zero_unobserved(_validated(model, positions, observed), observed)

    def sequential() -> tuple[Filtered, Tensor]:
        result, innovation = run_filter(model, a, observed)
        shape = (*result.means.shape, result.means.shape[-1])
        covariances, predicted = result.covariances, result.predicted_covariances
        expanded = dict(
            covariances=covariances.expand(shape), predicted_covariances=predicted.expand(shape)
        )
        return result._replace(**expanded), rounding(model, result, innovation)

    return _accurate([sequential], lambda: filter_exact(model, a, observed), model, a, observed)


def smooth(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """Return the states given all observations, earlier and later.

    Args:
        model: The dynamics.
        positions: The observations.
        observed: Their mask; None for all.
        position_variances: If given, positions are independent Gaussians N(position, variance),
            and the result is p(h | a) averaged over them: the mean is the same, the covariance
            gains that of the smoothed mean.

    Law: equals conditioning the joint Gaussian (test_smoother_matches_dense_posterior);
        masking a position is deleting it (test_masking_a_frame_is_deleting_its_rows).
    """
    a, V = _validated(model, positions, observed), None
    if position_variances is not None:
        V = _validated(model, position_variances, observed)

    def zeroed() -> tuple[LGSSM, Tensor, Tensor | None, Tensor | None]:
        variances = None if V is None else _zero_unobserved(V, observed)
        return model, _zero_unobserved(a, observed), observed, variances

    def sequential() -> tuple[Smoothed, Tensor]:
        few = few_tracks(*zeroed())
        return smooth_sequential(*zeroed()) if few is None else (few.smoothed, few.rounding)

    def dense() -> tuple[Smoothed, Tensor]:
        shared = V is None and covers(model, a, observed)
        result = smooth_shared(model, a, observed) if shared else None
        return smooth_dense(model, a, observed, V) if result is None else result

    routes = [sequential]
    if a.shape[-2] <= DENSE_FRAMES:
        routes.insert(0, dense)
    return _accurate(routes, lambda: smooth_exact(*zeroed()), model, a, observed)


def log_likelihood(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
    *,
    checked: bool = True,
) -> Float[Tensor, "..."]:
    """Return the log density of the observed positions.

    Args:
        model: The dynamics.
        positions: The observations.
        observed: Their mask; None for all.
        checked: Whether a result with too few digits is computed again by slower routes. Fits,
            which evaluate many laws, do without.

    Law: equals the filter's on every route (test_all_routes_to_the_log_likelihood_agree).
    """
    a = _zero_unobserved(_validated(model, positions, observed), observed)

    def fast() -> tuple[Tensor, Tensor]:
        if a.shape[-2] <= DENSE_FRAMES:
            return log_likelihood_dense(model, a, observed)
        return log_likelihood_chunked(model, a, observed, BLOCK_FRAMES)

    def sequential() -> tuple[Tensor, Tensor]:
        result, innovation = run_filter(model, a, observed)
        return result.log_likelihood, rounding(model, result, innovation)

    def few_or_fast() -> tuple[Tensor, Tensor]:
        few = few_tracks(model, a, observed) if a.shape[-2] > DENSE_FRAMES else None
        return fast() if few is None else (few.log_likelihood, few.rounding)

    def exact() -> Tensor:
        return filter_exact(model, a, observed).log_likelihood

    if not checked:
        return fast()[0]
    return _accurate([few_or_fast, sequential], exact, model, a, observed)


def _accurate(
    routes: list[Callable[[], tuple[Result, Tensor]]],
    exact: Callable[[], Result],
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
) -> Result:
    """Return the result of the first route with enough digits, else of the exact one.

    Where a decision would synchronise with a GPU during training, there is only the first route:
    its result is NaN if it has too few digits. So is that of a model that is not finite.
    """
    for number, route in enumerate(routes):
        result, error = route()
        if error.dtype != torch.float64:
            return result
        parts = (result,) if isinstance(result, Tensor) else tuple(result)
        if error.is_cuda and (
            any(part.requires_grad for part in parts) or torch.cuda.is_current_stream_capturing()
        ):
            enough = (error >= 0) & (error <= MAX_ROUNDING)
            known = [torch.where(enough, part, math.nan) for part in parts]
            return known[0] if isinstance(result, Tensor) else type(result)(*known)
        if 0 <= float(error.detach()) <= MAX_ROUNDING:
            return result
        used = _zero_unobserved(positions, observed)
        if number == 0 and not all(bool(part.isfinite().all()) for part in (*model, used)):
            return result
    return exact()


def draw_states(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None = None,
    *,
    noise: Float[Tensor, "... T D_plus_P"],
) -> Float[Tensor, "... T D"]:
    """Return exact draws of all states given the observations, as a function of standard noise.

    By Matheron's rule, a prior draw (h*, a*) is corrected by the smoothed states of a - a*. No
    state covariance is inverted, so that models without process noise are valid.

    Args:
        model: The dynamics.
        positions: The observations.
        observed: Their mask; None for all.
        noise: As for `motes.kalman.model.draw_path`; more leading axes give more draws.

    Law: zero noise gives the smoothed means (test_zero_noise_gives_the_smoothed_mean); moments are
        those of the posterior (test_posterior_draws_have_the_moments_of_the_posterior).
    """
    a = _validated(model, positions, observed)
    prior = draw_path(model, noise.to(model.transition.dtype))
    u, mu = torch.zeros_like(model.force), torch.zeros_like(model.initial_mean)
    centred = model._replace(force=u, initial_mean=mu)
    return prior.states + smooth(centred, a - prior.positions, observed).means


def _validated(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
) -> Float[Tensor, "... T P"]:
    """Check shapes, and return the positions in the dtype of the model."""
    P = model.emission.shape[-2]
    if positions.ndim < 2 or positions.shape[-1] != P or positions.shape[-2] < 1:
        raise InputError(
            f"got positions of shape {tuple(positions.shape)}; expected (..., T, {P}) with T >= 1; "
            "put time second to last and coordinates last"
        )
    T = positions.shape[-2]
    if observed is not None and (observed.dtype != torch.bool or observed.shape[-1:] != (T,)):
        raise InputError(
            f"got observed of type {observed.dtype} and shape {tuple(observed.shape)}; "
            f"expected torch.bool and (..., {T}); give one flag for each frame of positions"
        )
    return positions.to(model.transition.dtype)


def _zero_unobserved(
    positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> Float[Tensor, "... T P"]:
    """Return the positions with zeros where they are unobserved.

    NaN must be replaced before any arithmetic: 0 * NaN is NaN, in gradients too.
    """
    return positions if observed is None else torch.where(observed.unsqueeze(-1), positions, 0.0)
