"""The median over frames, for integer levels and for floats."""

import numpy as np
import torch

from motes.data.background import median_background


def test_integer_levels_take_the_mean_of_the_middle_two_rounded_down() -> None:
    frames = np.array([9, 0, 4, 7], dtype=np.uint8).reshape(4, 1, 1, 1) * np.ones(
        (1, 2, 3, 1), dtype=np.uint8
    )
    found = median_background(frames)
    assert found.dtype == np.uint8
    assert found.shape == (2, 3, 1)
    assert (found == 5).all()


def test_floats_take_the_lower_median_of_the_observed_frames() -> None:
    levels = torch.tensor([0.9, 0.0, 0.4, 0.7])
    frames = levels.view(4, 1, 1).expand(4, 2, 3)
    assert (median_background(frames) == levels[2]).all()
    observed = torch.tensor([True, False, True, True])
    assert (median_background(frames, observed) == levels[3]).all()


def test_a_moving_object_leaves_no_trace() -> None:
    scene = torch.rand(8, 9, 3, generator=torch.Generator().manual_seed(0))
    frames = scene.repeat(5, 1, 1, 1)
    for t in range(5):
        frames[t, :, t] = 1.0
    assert torch.equal(median_background(frames), scene)
