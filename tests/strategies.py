"""Random linear-Gaussian problems: model, positions, mask, whose leading axes broadcast."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from motes.kalman.model import LGSSM

Shape = tuple[int, ...]


class Problem(NamedTuple):
    model: LGSSM
    positions: torch.Tensor
    observed: torch.Tensor
    lead: Shape


def random_covariance(rng: np.random.Generator, shape: Shape, n: int) -> np.ndarray:
    """Eigenvalues between 0.1 and about 3: well conditioned in float64."""
    root = rng.normal(size=(*shape, n, n)) / np.sqrt(n)
    return 0.1 * np.eye(n) + root @ np.swapaxes(root, -1, -2)


def random_model(
    rng: np.random.Generator,
    shapes: Sequence[Shape],
    state_dim: int,
    position_dim: int,
    *,
    singular: bool = False,
) -> LGSSM:
    """A model with ||A|| <= 1; a singular one lacks process noise and knows part of h_1.

    Each field has its own leading axes.
    """
    D, P = state_dim, position_dim
    A = rng.normal(size=(*shapes[0], D, D))
    A /= np.linalg.norm(A, ord=2, axis=(-2, -1))[..., None, None]
    u, B = rng.normal(size=(*shapes[1], D)), rng.normal(size=(*shapes[2], P, D))
    Sigma_H, Sigma_A = random_covariance(rng, shapes[3], D), random_covariance(rng, shapes[4], P)
    mu, Sigma = rng.normal(size=(*shapes[5], D)), random_covariance(rng, shapes[6], D)
    if singular:
        Sigma_H[...] = 0.0
        Sigma[..., -1, :] = Sigma[..., :, -1] = 0.0
    fields = (A, u, B, Sigma_H, Sigma_A, mu, Sigma)
    return LGSSM(*(torch.from_numpy(np.asarray(field)) for field in fields))


@st.composite
def problems(draw: st.DrawFn, max_frames: int = 7) -> Problem:
    shapes = draw(mutually_broadcastable_shapes(num_shapes=9, max_dims=2, max_side=3))
    state_dim, position_dim = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    T = draw(st.integers(1, max_frames))
    share_observed = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    *model_shapes, positions_shape, mask_shape = shapes.input_shapes
    model = random_model(rng, model_shapes, state_dim, position_dim, singular=draw(st.booleans()))
    positions = 3 * rng.normal(size=(*positions_shape, T, position_dim))
    observed = rng.random((*mask_shape, T)) < share_observed
    return Problem(
        model, torch.from_numpy(positions), torch.from_numpy(observed), shapes.result_shape
    )
