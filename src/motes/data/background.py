"""The static background of frames from a camera at rest."""

from typing import Any, overload

import numpy as np

from motes.core.axes import Bool, Float, Tensor, UInt


@overload
def median_background(
    frames: UInt[np.ndarray, "F height width *channels"],
) -> UInt[np.ndarray, "height width *channels"]: ...
@overload
def median_background(
    frames: Float[Tensor, "F height width *channels"], observed: Bool[Tensor, " F"] | None = None
) -> Float[Tensor, "height width *channels"]: ...
def median_background(frames: Any, observed: Any = None) -> Any:
    """Return the median of each pixel over frames, which moving objects hardly affect.

    Args:
        frames: integer levels (numpy) or floats (tensor). Of an even number of frames, integers
            give the mean of the middle two, rounded down, and floats the lower one.
        observed: which frames count; all, if None.
    """
    if isinstance(frames, np.ndarray):
        # Row by row: the median of the whole array would copy it.
        rows = [np.median(frames[:, row], axis=0) for row in range(frames.shape[1])]
        return np.stack(rows).astype(frames.dtype)
    return (frames if observed is None else frames[observed]).median(0).values
