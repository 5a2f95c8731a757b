"""What is scored: predictors, their predictions and the truth they are compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from motes.core.axes import Bool, Float, Tensor
from motes.data import Clips
from motes.evaluation.metrics import Tracks
from motes.models.model import Model
from motes.queries import interpolate

Frames = Float[Tensor, "B T height width *channels"]


Covariances = Float[Tensor, "B N T 2 2"]


Mask = Bool[Tensor, " T"]  # which frames are shown


@dataclass(frozen=True)
class Prediction:
    """Tracks of clips with the same number of objects; None where a predictor gives no such value.

    The fields mean the same as those of `motes.queries.answer.Answer`; frames are drawn on demand.
    """

    pixels: Tracks | None = None
    pixel_covariances: Covariances | None = None
    path_pixels: Tracks | None = None
    path_pixel_covariances: Covariances | None = None
    draw_frames: Callable[[], Frames] | None = None
    draw_mean_frames: Callable[[], Frames] | None = None


class Predictor(Protocol):
    """A model or a baseline."""

    @property
    def interpolates(self) -> bool:
        """Whether it uses frames after a gap."""
        ...

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return a prediction for all frames given the observed ones; the others are zero."""
        ...


@dataclass(frozen=True)
class ModelPredictor:
    """A model as a predictor."""

    model: Model
    interpolates: bool = True

    def predict(
        self, frames: Frames, observed: Bool[Tensor, "*B T"], num_objects: int
    ) -> Prediction:
        """Return the model's answer; the mask may differ from clip to clip.

        A model that reduces colour to one grey level draws no frames that could be compared.
        """
        answer = interpolate(self.model, frames, observed, num_objects)
        draws = self.model.colour_axis is None
        return Prediction(
            pixels=answer.pixels.cpu(),
            pixel_covariances=answer.pixel_covariances.cpu(),
            path_pixels=answer.path_pixels.cpu(),
            path_pixel_covariances=answer.path_pixel_covariances.cpu(),
            draw_frames=(lambda: answer.frames.cpu()) if draws else None,
            draw_mean_frames=(lambda: answer.mean_frames.cpu()) if draws else None,
        )


class Truth(NamedTuple):
    """The truth of clips with the same number of objects."""

    frames: Frames
    noisy: Tracks  # positions at which objects are drawn
    clean: Tracks  # positions on the noise-free path
    visible: Bool[Tensor, "B N T"]  # whether an object shows in a frame that was recorded
    recorded: Bool[Tensor, "B T"] | None  # which frames exist; None: all

    @classmethod
    def of(cls, clips: Clips, count: int) -> "Truth":
        """Return the truth of clips that all have `count` objects."""
        assert clips.positions is not None
        assert clips.clean is not None
        noisy, recorded = clips.positions[:, :count], clips.observed
        visible = ~noisy.isnan().any(-1)
        if clips.visible is not None:
            visible = visible & clips.visible[:, :count]
        if recorded is not None:
            visible = visible & recorded[:, None]
        return cls(clips.frames.float(), noisy, clips.clean[:, :count], visible, recorded)


# The truth and a mask of shown frames (one for all clips, or one per clip) to a prediction.
Ask = Callable[[Truth, Bool[Tensor, "*B T"]], Prediction]


def ask_predictor(predictor: Predictor) -> Ask:
    """Return the function that shows a predictor the observed frames and returns its prediction."""

    def ask(truth: Truth, observed: Bool[Tensor, "*B T"]) -> Prediction:
        shape = (*observed.shape, *[1] * (truth.frames.ndim - 2))
        return predictor.predict(truth.frames * observed.view(shape), observed, len(truth.noisy[0]))

    return ask
