"""Structured noise: how it is measured, and a wider sprite for objects out of focus."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from motes.tracking.appearance import learn_appearance
from motes.tracking.background import look
from motes.tracking.classes import (
    MIN_CROPS,
    filtered_noise,
    frame_surfaces,
    is_structured,
)
from motes.tracking.detection import Looks
from motes.tracking.sprite import gaussian_sprite

NOISE = 0.02


def looks() -> Looks:
    return Looks((gaussian_sprite(1.5),), NOISE, (np.array((0.4,)), np.array((0.1,))))


def test_the_matched_filter_measures_white_noise():
    residual = NOISE * np.random.default_rng(0).standard_normal((4, 96, 96)).astype(np.float32)
    # About 4 * 96^2 / 28 independent values: the error of a robust scale is 1.17 / sqrt(2 * 1300).
    assert filtered_noise(residual, looks()) == pytest.approx(NOISE, rel=0.1)
    assert not is_structured(residual, 2 * MIN_CROPS, looks())


def test_smooth_noise_is_structured_unless_objects_are_few():
    white = np.random.default_rng(1).standard_normal((4, 96, 96)).astype(np.float32)
    smooth = ndimage.gaussian_filter(white, (0, 2, 2))
    smooth *= NOISE / smooth.std()
    assert is_structured(smooth, 2 * MIN_CROPS, looks())
    assert not is_structured(smooth, 2 * MIN_CROPS - 1, looks())


@pytest.mark.parametrize("size", [(140, 156), (12, 30)])
def test_surfaces_follow_a_slope_and_ignore_spots(size: tuple[int, int]):
    y, x = np.mgrid[: size[0], : size[1]]
    flat = np.full((2, *size), 0.3, np.float32)
    spots = flat.copy()
    spots[:, ::8, ::8] += 0.5  # one pixel of 64
    assert np.allclose(frame_surfaces(spots, 16), flat, atol=1e-6)
    slope = (0.002 * x + 0.001 * y).astype(np.float32)[None]
    inside = np.s_[:, 48:-48, 48:-48]
    # Tiles know the slope at their middles; the weights sum to it within 2 % of a tile's change.
    assert np.abs(frame_surfaces(slope, 16) - slope)[inside].max(initial=0) < 0.02 * 16 * 0.003


def crowd(seed: int, wide_share: float) -> np.ndarray:
    """Return frames of spots, some out of focus, over a background with smooth changing noise."""
    random = np.random.default_rng(seed)
    frames = (
        0.5
        + 0.004 * ndimage.gaussian_filter(random.standard_normal((8, 160, 200)), (0, 2, 2)) / 0.14
    )
    y, x = np.mgrid[:160, :200]
    for frame in frames:
        for column in range(12, 200, 25):
            for row in range(12, 160, 25):
                cx, cy = np.array((column, row)) + random.uniform(-4, 4, 2)
                wide = random.random() < wide_share
                scale, gain = (3.4, 0.06) if wide else (1.7, 0.2)
                frame += gain * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * scale**2))
    frames += 0.001 * random.standard_normal(frames.shape)
    return frames.clip(0, 1).astype(np.float32)


def test_objects_out_of_focus_get_a_wider_sprite():
    appearance = learn_appearance(look(crowd(3, 0.4)))
    assert appearance.looks is not None
    assert appearance.tile > 0
    sprites = appearance.looks.sprites
    assert len(sprites) == 2
    assert sprites[1].radius > 1.3 * sprites[0].radius
    assert appearance.looks.rounds == 1


def test_white_noise_changes_nothing():
    appearance = learn_appearance(
        look(
            (crowd(4, 0.0) + 0.02 * np.random.default_rng(5).standard_normal((8, 160, 200))).astype(
                np.float32
            )
        )
    )
    assert appearance.looks is not None
    assert appearance.tile == 0
    assert len(appearance.looks.sprites) == 1
    default = replace(appearance.looks).rounds
    assert default == Looks((), 1.0, (np.zeros(0), np.zeros(0))).rounds
