"""What is scored: anything that answers the three questions about clips, as far as it can."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from motes.core.axes import Bool, Float, Tensor

Pictures = Callable[[], Float[Tensor, "B T height width *channels"]]


@dataclass(frozen=True)
class Prediction:
    """What a contender says about clips with the same number of objects; None: it cannot say.

    The fields mean what those of `motes.queries.answer.Answer` mean; pictures are drawn when asked for.
    """

    pixels: Float[Tensor, "B N T 2"] | None = None
    pixel_covariances: Float[Tensor, "B N T 2 2"] | None = None
    path_pixels: Float[Tensor, "B N T 2"] | None = None
    path_pixel_covariances: Float[Tensor, "B N T 2 2"] | None = None
    draw_frames: Pictures | None = None
    draw_mean_frames: Pictures | None = None


class Predictor(Protocol):
    """A model or a baseline."""

    @property
    def interpolates(self) -> bool:
        """Whether it can use frames after a gap."""
        ...

    def ask(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """What it says about all frames, having seen the observed ones; the others are zero."""
        ...
