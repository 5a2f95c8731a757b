"""Random linear-Gaussian problems: model, positions, mask, whose leading axes broadcast."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from motes.lgssm import LGSSM

Shape = tuple[int, ...]


class Problem(NamedTuple):
    model: LGSSM
    positions: torch.Tensor
    observed: torch.Tensor
    lead: Shape


def random_covariance(rng: np.random.Generator, shape: Shape, n: int) -> np.ndarray:
    """Eigenvalues between 0.1 and about 3: condition numbers that float64 does not feel."""
    root = rng.normal(size=(*shape, n, n)) / np.sqrt(n)
    return 0.1 * np.eye(n) + root @ np.swapaxes(root, -1, -2)


def random_model(
    rng: np.random.Generator,
    shape: Shape,
    state_dim: int,
    position_dim: int,
    *,
    singular: bool = False,
) -> LGSSM:
    """A model with ||A|| <= 1; a singular one has no state noise and a start known in part."""
    A = rng.normal(size=(*shape, state_dim, state_dim))
    A /= np.linalg.norm(A, ord=2, axis=(-2, -1))[..., None, None]
    Sigma_H = random_covariance(rng, shape, state_dim)
    Sigma = random_covariance(rng, shape, state_dim)
    if singular:
        Sigma_H[...] = 0.0
        Sigma[..., -1, :] = Sigma[..., :, -1] = 0.0
    fields = (
        A,
        rng.normal(size=(*shape, state_dim)),
        rng.normal(size=(*shape, position_dim, state_dim)),
        Sigma_H,
        random_covariance(rng, shape, position_dim),
        rng.normal(size=(*shape, state_dim)),
        Sigma,
    )
    return LGSSM(*(torch.from_numpy(np.asarray(field)) for field in fields))


@st.composite
def problems(draw: st.DrawFn, max_frames: int = 7) -> Problem:
    shapes = draw(mutually_broadcastable_shapes(num_shapes=3, max_dims=2, max_side=3))
    state_dim, position_dim = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    T = draw(st.integers(1, max_frames))
    share_seen = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = random_model(
        rng, shapes.input_shapes[0], state_dim, position_dim, singular=draw(st.booleans())
    )
    positions = 3 * rng.normal(size=(*shapes.input_shapes[1], T, position_dim))
    observed = rng.random((*shapes.input_shapes[2], T)) < share_seen
    return Problem(
        model, torch.from_numpy(positions), torch.from_numpy(observed), shapes.result_shape
    )
