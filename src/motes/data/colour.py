"""Convert colour clips to grey along the direction in which moving objects differ most.

Objects may be as bright as their background and differ in hue alone, so the channel average is not
enough. The direction is estimated from the clips, without labels.
"""

import dataclasses

import torch

from motes.core.axes import Float, Tensor
from motes.data.background import median_background
from motes.data.clips import Clips

MAX_CLIPS = 64  # from which the direction is estimated
TAILS = 1e-3  # fraction of pixels at either end that may saturate


ColourAxis = tuple[float, float, float, float]
"""Weights of red, green and blue and an offset: grey = clip(weights . colour + offset)."""


def find_axis(frames: Float[Tensor, "B T height width 3"]) -> ColourAxis:
    """Return the principal direction of colours around the median of each pixel, scaled to [0, 1].

    Objects are rare, so they are the long tail of the distribution, which becomes bright.

    Law: objects that differ from the background in hue alone become bright
    (test_objects_of_another_hue_become_bright).
    """
    colours = frames[:MAX_CLIPS].flatten(0, 1).double()
    deviations = (colours - median_background(colours)).flatten(0, 2)
    _, directions = torch.linalg.eigh(deviations.T @ deviations)
    direction = directions[:, -1]
    if float((deviations @ direction).pow(3).sum()) < 0:
        direction = -direction
    levels = (colours @ direction).flatten().sort().values
    low, high = (float(levels[int(share * (len(levels) - 1))]) for share in (TAILS, 1 - TAILS))
    scale = 1 / max(high - low, 1e-6)
    red, green, blue = (scale * direction).tolist()
    return red, green, blue, -scale * low


def to_grey(
    frames: Float[Tensor, "B T height width 3"], axis: ColourAxis
) -> Float[Tensor, "B T height width"]:
    """Return colour frames as grey ones in [0, 1]."""
    *weights, offset = axis
    return (frames @ torch.tensor(weights).to(frames) + offset).clamp(0, 1)


def in_grey(clips: Clips, axis: ColourAxis | None) -> Clips:
    """Return clips converted to grey; unchanged if they are not in colour or axis is None."""
    if axis is None or not clips.in_colour:
        return clips
    return dataclasses.replace(clips, video=to_grey(clips.frames, axis))
