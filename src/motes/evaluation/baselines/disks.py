"""Detection of disks of known shape and number: all sets that reproduce a frame exactly."""

from itertools import combinations_with_replacement, permutations

import numpy as np
import torch
from torch.nn.functional import conv2d

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError

Centres = Int[np.ndarray, "E N 2"]  # E explanations of a frame, each N centres (x, y)


def explain_frames(
    frames: Float[Tensor, "T height width"], num_objects: int, radius: int
) -> list[Centres]:
    """Return, for each frame, all sets of centres whose disks cover exactly its white pixels.

    Mostly there is one; where disks overlap there are several, or centres repeat.

    Law: the true centres are among them (test_true_centres_are_among_the_explanations).
    """
    disk = disk_mask(radius)
    whole = conv2d(frames[:, None], disk[None, None].to(frames), padding=radius)[:, 0]
    fits = (whole > disk.sum() - 0.5).cpu().numpy()
    lit = (frames > 0.5).cpu().numpy()
    return [_explain(*pair, num_objects, disk.numpy()) for pair in zip(lit, fits, strict=True)]


def disk_mask(radius: int) -> Bool[Tensor, "side side"]:
    """Return the pixels of a disk around its centre."""
    steps = torch.arange(-radius, radius + 1)
    return steps.square() + steps.square()[:, None] <= radius**2


def _explain(
    lit: Bool[np.ndarray, "height width"],
    fits: Bool[np.ndarray, "height width"],
    num_objects: int,
    disk: Bool[np.ndarray, "side side"],
) -> Centres:
    y, x = np.nonzero(fits)
    centres = np.stack([x, y], -1)
    if len(centres) == num_objects:
        return centres[None]
    radius = len(disk) // 2
    masks = np.zeros((len(centres), *lit.shape), dtype=bool)
    for mask, (column, row) in zip(masks, centres, strict=True):
        mask[row - radius : row + radius + 1, column - radius : column + radius + 1] = disk
    needed = masks[:, lit]
    chosen = [
        combination
        for combination in combinations_with_replacement(range(len(centres)), num_objects)
        if needed[list(combination)].any(0).all()
    ]
    if not chosen:
        raise InputError(
            f"a frame is no union of {num_objects} disks of radius {radius}; this baseline is for "
            "clips of cannonballs"
        )
    explanations: Centres = centres[np.array(chosen)]
    return explanations


def ordered(explanations: Centres) -> Float[np.ndarray, "P N 2"]:
    """Return every explanation in every order of the objects, each once."""
    orders = list(permutations(range(explanations.shape[1])))
    everything = np.concatenate([explanations[:, order] for order in orders])
    found: Float[np.ndarray, "P N 2"] = np.unique(everything, axis=0).astype(np.float64)
    return found
