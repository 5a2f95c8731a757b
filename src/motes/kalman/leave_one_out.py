"""Leave-one-out (cavity) predictions: each position given the observations of all other frames."""

from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.blocks import diagonal_blocks
from motes.kalman.dense import joint_prior
from motes.kalman.linalg import (
    identity,
    inverse_cholesky,
    log_det_triangular,
    map_vector,
    mask_covariance,
    unique_masks,
)
from motes.kalman.mixture import Gaussian, SmoothedTracks
from motes.kalman.model import LGSSM, POSITION_DIM, aligned


def by_regression(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return cavity predictions from the joint Gaussian N(m, C) of all positions of a track.

    With L the inverse of C over the observed positions, zero elsewhere, and x = L (a - m), the
    prediction of an observed position is N(a_t - L_tt^-1 x_t, L_tt^-1), that of an unobserved one
    N(m_t + C_t x, C_tt - C_t L C_t'). Matrices are formed once for each mask and component. The
    most likely component is used.
    """
    masks, which, m, C, L, scale, residual = track_joint(model, positions, observed)
    x = map_vector(L[which], residual)
    evidence = log_weights + scale[which] - 0.5 * (residual * x).sum(-1)
    component = evidence.argmax(-1, keepdim=True)

    def selected(values: Float[Tensor, "B N K TP"]) -> Float[Tensor, "B N T 2"]:
        picked: Tensor = values.take_along_dim(component[..., None], 2)[:, :, 0]
        return picked.view(positions.shape)

    rows = (-1, POSITION_DIM)
    explained = (C @ L).unflatten(-2, rows) @ C.unflatten(-2, rows).mT
    if_unobserved = diagonal_blocks(C, POSITION_DIM).movedim(-1, -3) - explained
    if_observed = inverse_2x2(diagonal_blocks(L, POSITION_DIM).movedim(-1, -3))
    covariances = torch.where(masks[:, None, :, None, None], if_observed, if_unobserved)
    covariance = covariances[which, component[..., 0]]
    correction = map_vector(covariance, selected(x))
    predicted = selected(m + map_vector(C, x))
    return Gaussian(torch.where(observed[..., None], positions - correction, predicted), covariance)


class TrackJoint(NamedTuple):
    """The joint Gaussian of a track's positions under each component, for each distinct mask."""

    masks: Bool[Tensor, "U T"]  # the distinct ones
    which: Int[Tensor, "*tracks"]  # the mask of each track
    mean: Float[Tensor, "K TP"]
    covariance: Float[Tensor, "K TP TP"]
    precision: Float[Tensor, "U K TP TP"]  # of the observed positions; zero elsewhere
    log_scale: Float[Tensor, "U K"]
    residual: Float[Tensor, "*tracks K TP"]  # of the observed positions; zero elsewhere


def track_joint(
    model: LGSSM, positions: Float[Tensor, "*tracks T 2"], observed: Bool[Tensor, "*tracks T"]
) -> TrackJoint:
    """Return the joint Gaussians that densities of tracks of a short clip are made of."""
    prior = joint_prior(aligned(model), positions.shape[-2])
    masks, which = unique_masks(observed)
    known = masks.repeat_interleave(POSITION_DIM, -1)[:, None]  # the same for all components
    W = inverse_cholesky(mask_covariance(prior.covariance, known.to(prior.covariance)))
    offsets = positions.flatten(-2)[..., None, :] - prior.mean
    return TrackJoint(
        masks=masks,
        which=which,
        mean=prior.mean,
        covariance=prior.covariance,
        precision=W.mT @ W * known[..., None],
        log_scale=log_det_triangular(W),
        residual=torch.where(known[which], offsets, 0.0),
    )


def by_smoothing(
    model: LGSSM,
    smoothed: SmoothedTracks,
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return cavity predictions by removing each frame's own observation from the smoother."""
    states = smoothed.select(smoothed.log_weights.argmax(-1))
    mean, P = states.mean[..., :POSITION_DIM], states.covariance[..., :POSITION_DIM, :POSITION_DIM]
    own = torch.where(observed[..., None, None], inverse_2x2(model.position_noise), 0.0)
    precision = inverse_2x2(P)
    covariance = inverse_2x2(precision - own)
    shift = map_vector(precision, mean) - map_vector(own, positions)
    return Gaussian(map_vector(covariance, shift), covariance + model.position_noise)


def inverse_2x2(matrix: Float[Tensor, "*batch 2 2"]) -> Float[Tensor, "*batch 2 2"]:
    """Return the inverse in closed form; batches of small matrices are slow in LAPACK."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    adjugate = trace * identity(2, matrix) - matrix
    determinant = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    return adjugate / determinant[..., None, None]


def leave_one_out(
    model: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
) -> Gaussian:
    """Return each position's prediction from the observations of all other frames.

    Law: equals smoothing with that frame unobserved
    (test_leave_one_out_is_smoothing_without_the_frame).
    """
    positions = positions.double()
    if positions.shape[2] <= kalman.DENSE_FRAMES:
        return by_regression(model, log_weights, positions, observed)
    likelihood = kalman.log_likelihood(model, positions[:, :, None], observed[:, :, None])
    states = kalman.smooth(model, positions[:, :, None], observed[:, :, None])
    smoothed = SmoothedTracks((log_weights + likelihood).log_softmax(-1), *states)
    return by_smoothing(model, smoothed, positions, observed)
