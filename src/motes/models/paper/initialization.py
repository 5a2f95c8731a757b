"""The paper's two networks: frames to positions (inference) and positions to frames (renderer)."""

import math

import torch

from motes.core.axes import Float, Tensor


def paper_init(shape: tuple[int, int], generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """Draw the starting values of one weight matrix, Normal(0, 1/sqrt(d)) with d its elements.

    Paper: section "Initialization and training". 1/sqrt(d) is read as the *variance*: as a
    standard deviation it would be about 1e-4 at the paper's size, from which nothing is learned.
    [Choice 1]

    Law: the variance is 1/sqrt(d) (test_paper_init_has_variance_one_over_root_d).
    """
    return torch.randn(shape, generator=generator) / math.sqrt(math.sqrt(math.prod(shape)))
