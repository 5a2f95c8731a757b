"""The best frame that uses no input."""

from dataclasses import dataclass

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.evaluation.predictor import Prediction


@dataclass(frozen=True, eq=False)
class ConstantImage:
    """For each number of objects, the share of training frames in which a pixel is white."""

    images: dict[int, Float[Tensor, "height width"]]
    interpolates: bool = True

    @classmethod
    def of(cls, training: Clips) -> "ConstantImage":
        """Return the mean images of training clips."""
        assert training.num_objects is not None
        counts = sorted(set(training.num_objects.tolist()))
        return cls(
            {
                count: training[(training.num_objects == count).nonzero()[:, 0]]
                .frames.float()
                .mean((0, 1))
                for count in counts
            }
        )

    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return the same image for every hidden frame."""
        if num_objects not in self.images:
            raise InputError(f"no training clip has {num_objects} objects; give some that have")
        image = self.images[num_objects]
        return Prediction(draw_frames=lambda: torch.where(observed[:, None, None], frames, image))
