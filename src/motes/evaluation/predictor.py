"""The interface of everything that can be scored: models and baselines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from motes.core.axes import Bool, Float, Tensor

FrameSource = Callable[[], Float[Tensor, "B T height width *channels"]]


@dataclass(frozen=True)
class Prediction:
    """Tracks of clips with the same number of objects; None where a predictor gives no such value.

    The fields mean the same as those of `motes.queries.answer.Answer`; frames are drawn on demand.
    """

    pixels: Float[Tensor, "B N T 2"] | None = None
    pixel_covariances: Float[Tensor, "B N T 2 2"] | None = None
    path_pixels: Float[Tensor, "B N T 2"] | None = None
    path_pixel_covariances: Float[Tensor, "B N T 2 2"] | None = None
    draw_frames: FrameSource | None = None
    draw_mean_frames: FrameSource | None = None


class Predictor(Protocol):
    """A model or a baseline."""

    @property
    def interpolates(self) -> bool:
        """Whether it uses frames after a gap."""
        ...

    def predict(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return a prediction for all frames given the observed ones; the others are zero."""
        ...
