"""Where each object should be in each frame by its sightings in all the other frames."""

from typing import NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman import mixture
from motes.kalman.blocks import diagonal_blocks
from motes.kalman.dense import joint_prior
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.linalg import (
    identity,
    inverse_cholesky,
    log_det_triangular,
    map_vector,
    mask_covariance,
    unique_masks,
)
from motes.kalman.model import POSITION_DIM, aligned
from motes.models.sprites.forward_pass import AnyRenderer, Scene, Sightings
from motes.models.sprites.likelihood_maps import PixelGaussian, determinant


def expect(scene: Scene[AnyRenderer], found: Sightings) -> PixelGaussian:
    """Where each object should be in each frame by its sightings in all the other frames.

    Under the likeliest kind of start.

    Law: equals smoothing with that frame hidden (test_expecting_is_smoothing_without_the_frame).
    """
    renderer = scene.renderer
    positions = renderer.from_pixels(found.place.mean).double()
    short = positions.shape[2] <= kalman.DENSE_FRAMES
    expected = (by_regression if short else by_smoothing)(scene.dynamics, positions, found.seen)
    return PixelGaussian(
        renderer.to_pixels(expected.mean).float(),
        (expected.covariance * renderer.pixels_per_unit**2).float(),
    )


def by_regression(
    dynamics: LinearDynamics, positions: Float[Tensor, "B N T 2"], seen: Bool[Tensor, "B N T"]
) -> PixelGaussian:
    """From the joint Gaussian N(m, C) of all positions of an object. Latent units.

    With L the inverse of C over the seen ones, zero elsewhere, and x = L (a - m), the others say
    N(a_t - L_tt^-1 x_t, L_tt^-1) of a seen position, N(m_t + C_t x, C_tt - C_t L C_t') of a hidden
    one. Matrices are formed once for each mask and kind of start.
    """
    masks, which, m, C, L, scale, residual = joint(dynamics, positions, seen)
    x = map_vector(L[which], residual)
    evidence = dynamics.log_weights() + scale[which] - 0.5 * (residual * x).sum(-1)
    kind = evidence.argmax(-1, keepdim=True)

    def under_kind(values: Float[Tensor, "B N K TP"]) -> Float[Tensor, "B N T 2"]:
        picked: Tensor = values.take_along_dim(kind[..., None], 2)[:, :, 0].view(positions.shape)
        return picked

    rows = (-1, POSITION_DIM)
    taken = (C @ L).unflatten(-2, rows) @ C.unflatten(-2, rows).mT
    if_hidden = diagonal_blocks(C, POSITION_DIM).movedim(-1, -3) - taken
    if_seen = inverse(diagonal_blocks(L, POSITION_DIM).movedim(-1, -3))
    covariances = torch.where(masks[:, None, :, None, None], if_seen, if_hidden)
    covariance = covariances[which, kind[..., 0]]
    away = map_vector(covariance, under_kind(x))
    told = under_kind(m + map_vector(C, x))
    return PixelGaussian(torch.where(seen[..., None], positions - away, told), covariance)


class Joint(NamedTuple):
    """The joint Gaussian of a track's positions under each kind of start, for each mask."""

    masks: Bool[Tensor, "U T"]  # that occur
    which: Int[Tensor, "*tracks"]  # of them each track has
    mean: Float[Tensor, "K TP"]
    covariance: Float[Tensor, "K TP TP"]
    precision: Float[Tensor, "U K TP TP"]  # of the seen positions; zero for others
    log_scale: Float[Tensor, "U K"]
    residual: Float[Tensor, "*tracks K TP"]  # of seen positions; zero of others


def joint(
    dynamics: LinearDynamics,
    positions: Float[Tensor, "*tracks T 2"],
    seen: Bool[Tensor, "*tracks T"],
) -> Joint:
    """What densities of tracks of a short clip are made of."""
    prior = joint_prior(aligned(dynamics.components()), positions.shape[-2])
    masks, which = unique_masks(seen)
    known = masks.repeat_interleave(POSITION_DIM, -1)[:, None]  # of each mask, for any start
    W = inverse_cholesky(mask_covariance(prior.covariance, known.to(prior.covariance)))
    away = positions.flatten(-2)[..., None, :] - prior.mean
    return Joint(
        masks=masks,
        which=which,
        mean=prior.mean,
        covariance=prior.covariance,
        precision=W.mT @ W * known[..., None],
        log_scale=log_det_triangular(W),
        residual=torch.where(known[which], away, 0.0),
    )


def by_smoothing(
    dynamics: LinearDynamics, positions: Float[Tensor, "B N T 2"], seen: Bool[Tensor, "B N T"]
) -> PixelGaussian:
    """The smoother's belief less what the sighting of the frame itself told it. Latent units."""
    components = dynamics.components()
    likely = mixture.component_log_posterior(dynamics, positions, seen).argmax(-1)
    states = kalman.smooth(components, positions[:, :, None], seen[:, :, None])
    m, P = mixture.select_component(states, likely)
    smoothed, P = m[..., :POSITION_DIM], P[..., :POSITION_DIM, :POSITION_DIM]
    own = torch.where(seen[..., None, None], inverse(components.position_noise), 0.0)
    precision = inverse(P)
    covariance = inverse(precision - own)
    told_by_others = map_vector(precision, smoothed) - map_vector(own, positions)
    mean = map_vector(covariance, told_by_others)
    return PixelGaussian(mean, covariance + components.position_noise)


def inverse(matrix: Float[Tensor, "*batch 2 2"]) -> Float[Tensor, "*batch 2 2"]:
    """Written out: batches of small matrices are slow in LAPACK."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    adjugate = trace * identity(2, matrix) - matrix
    return adjugate / determinant(matrix)[..., None, None]
