"""Cannonballs that grow, blur or deform while they fly, as foreground masks with exact truth."""

from typing import Literal

import numpy as np
import torch

from motes.core.axes import Bool, Float
from motes.core.errors import InputError
from motes.data.clips import Clips, pack
from motes.data.worlds.physics import Array
from motes.data.worlds.registry import cannonballs

Change = Literal["growth", "blur", "deformation"]
CHANGES = ("growth", "blur", "deformation")
RADIUS = 2.5  # pixels at first
GROWN = 2.0  # times the first radius in the last frame
BLURRED = 2.5  # pixels, standard deviation of the blur in the last frame
STRETCHED = 2.0  # ratio of the axes in the last frame; the ellipse turns by half a circle
NOISE = 0.08  # standard deviation of the sensor, where an object has contrast 1
THRESHOLD = 0.35  # foreground


def changing_cannonballs(
    change: Change, num_clips: int = 100, num_frames: int = 30, size: int = 64, seed: int = 0
) -> Clips:
    """Return clips of one ball whose looks change from the first to the last frame.

    Frames are masks of pixels above a threshold, as a recording's preparation gives them. The same
    seed gives the same clips.

    Law: the mask of a ball has its true centre (test_masks_are_centred_on_the_truth).
    """
    if change not in CHANGES:
        raise InputError(f"got change {change!r}; expected one of {', '.join(CHANGES)}; choose one")
    clips = cannonballs(num_clips, 1, num_frames, size, seed, position_noise=1e-5, radius=4)
    assert clips.positions is not None
    noise = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed).spawn(9)[8]))
    truth = clips.positions[:, 0].double().numpy()
    masks = np.stack([draw_masks(change, path, size, noise) for path in truth])
    return Clips(pack(torch.from_numpy(masks)), clips.num_objects, clips.positions, clips.clean)


def draw_masks(
    change: Change, path: Float[np.ndarray, "T 2"], size: int, noise: np.random.Generator
) -> Bool[np.ndarray, "T size size"]:
    """Return the masks of one ball along a path."""
    share = np.linspace(0, 1, len(path))[:, None, None]
    y, x = np.mgrid[:size, :size].astype(float)
    dx, dy = x - path[:, 0, None, None], y - path[:, 1, None, None]
    image: Array
    if change == "growth":
        image = (RADIUS * GROWN**share + 0.5 - np.hypot(dx, dy)).clip(0, 1)
    elif change == "blur":
        width = 0.5 + BLURRED * share
        image = 1 / (1 + np.exp(((np.hypot(dx, dy) - 1.6 * RADIUS) / (0.6 * width)).clip(-50, 50)))
    else:
        angle, ratio = np.pi * share, STRETCHED ** (share / 2)
        along = (np.cos(angle) * dx + np.sin(angle) * dy) / ratio
        across = (np.cos(angle) * dy - np.sin(angle) * dx) * ratio
        image = (1.4 * RADIUS + 0.5 - np.hypot(along, across)).clip(0, 1)
    noisy: Bool[np.ndarray, "T size size"] = (
        image + NOISE * noise.standard_normal(image.shape) > THRESHOLD
    )
    return noisy
