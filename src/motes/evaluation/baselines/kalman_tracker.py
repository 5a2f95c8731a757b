"""Trackers without learning: detect disks, associate them, and fit a law of motion."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.evaluation.baselines.association import Tracks, associate, nearest_neighbours
from motes.evaluation.baselines.disks import explain_frames
from motes.evaluation.baselines.true_physics import ROUNDING, TruePhysics
from motes.evaluation.predictor import Prediction
from motes.kalman.mixture import SmoothedTracks

Link = Callable[[list[np.ndarray]], Tracks]


def find_tracks(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, " T"],
    num_objects: int,
    radius: int,
    link: Link,
) -> Float[Tensor, "B N T 2"]:
    """Return the centres of all objects in observed frames, associated; NaN in hidden frames."""
    tracks = torch.full((len(frames), num_objects, len(observed), 2), torch.nan).double()
    for clip, track in zip(frames, tracks, strict=True):
        found = link(explain_frames(clip[observed], num_objects, radius))
        track[:, observed] = torch.from_numpy(found.swapaxes(0, 1))
    return tracks


@dataclass(frozen=True)
class StraightLine:
    """Nearest neighbours from frame to frame, and a straight line through the detections.

    Attributes:
        radius: Of the disks in pixels.
        gravity: Known acceleration (x, y) in pixels per frame squared; zero: constant velocity.
    """

    radius: int
    gravity: tuple[float, float]
    interpolates: bool = True

    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return observed centres and the line everywhere, without error bars or frames."""
        times = observed.nonzero()[:, 0].numpy()

        def link(explanations: list[np.ndarray]) -> Tracks:
            return nearest_neighbours(explanations, times, self._predict_position)

        tracks = find_tracks(frames, observed, num_objects, self.radius, link)
        centres = tracks[:, :, observed].permute(2, 0, 1, 3).reshape(len(times), -1)
        fall = self._fall(np.arange(len(observed)))
        straight = centres.numpy() - np.tile(fall[times], centres.shape[1] // 2)
        line = _line(straight, times, np.arange(len(observed)))
        path = torch.from_numpy(line + np.tile(fall, centres.shape[1] // 2))
        path = path.reshape(len(observed), *tracks.shape[:2], 2).permute(1, 2, 0, 3)
        pixels = torch.where(observed[:, None], tracks, path)
        return Prediction(pixels=pixels.float(), path_pixels=path.float())

    def _fall(self, times: np.ndarray) -> Float[np.ndarray, "times 2"]:
        fall: Float[np.ndarray, "times 2"] = 0.5 * times[:, None] ** 2 * np.array(self.gravity)
        return fall

    def _predict_position(self, past: np.ndarray, times: np.ndarray, time: int) -> np.ndarray:
        """Return the last positions or, after a gap, those on the line through the past."""
        if time == times[-1] + 1 or len(times) < 2:
            last: np.ndarray = past[-1]
            return last
        fall = self._fall(times)[:, None]
        there = _line((past - fall).reshape(len(times), -1), times, np.array([time]))
        predicted: np.ndarray = there.reshape(past.shape[1:]) + self._fall(np.array([time]))
        return predicted


def _line(
    values: Float[np.ndarray, "past M"], times: np.ndarray, at: np.ndarray
) -> Float[np.ndarray, "at M"]:
    """Fit a straight line to values at some times by least squares and evaluate it at others."""
    if len(times) < 2:
        return np.repeat(values, len(at), 0)
    coefficients = np.polyfit(times, values, 1)
    read: Float[np.ndarray, "at M"] = at[:, None] * coefficients[0] + coefficients[1]
    return read


@dataclass(frozen=True)
class KalmanTracker:
    """Disks associated by the Kalman filter of the true physics and prior.

    Attributes:
        radius: Of the disks in pixels.
        physics: The true physics.
        beam: Histories that the search keeps; one: decided frame by frame.
    """

    radius: int
    physics: TruePhysics
    beam: int = 1
    interpolates: bool = True

    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return centres, the smoothed path and the covariances of both, without frames."""
        centres = self.find(frames, observed, num_objects)
        tracks = self.smooth(centres, observed)
        means, covariances = tracks.select(tracks.log_weights.argmax(-1))
        path, spread = means[..., :2], covariances[..., :2, :2]
        return make_prediction(centres, observed, path, spread, self.physics)

    def find(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Float[Tensor, "B N T 2"]:
        """Return the associated centres of observed frames; NaN in hidden frames."""

        def link(explanations: list[np.ndarray]) -> Tracks:
            return associate(explanations, observed.numpy(), self.physics, self.beam)

        return find_tracks(frames, observed, num_objects, self.radius, link)

    def smooth(
        self, centres: Float[Tensor, "B N T 2"], observed: Bool[Tensor, " T"]
    ) -> SmoothedTracks:
        """Return the smoothed states given each side, and its log posterior."""
        model, log_weights, _ = self.physics
        evidence = kalman.log_likelihood(model, centres[:, :, None], observed)
        states = kalman.smooth(model, centres[:, :, None], observed)
        return SmoothedTracks((log_weights + evidence).log_softmax(-1), *states)


def make_prediction(
    centres: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, " T"],
    path: Float[Tensor, "B N T 2"],
    spread: Float[Tensor, "B N T 2 2"],
    physics: TruePhysics,
) -> Prediction:
    """Return positions and paths; an observed centre is exact up to its pixel."""
    noise = physics.observation_scale.square().diag_embed()
    rounding = ROUNDING * torch.eye(2, dtype=path.dtype)
    shown = observed[:, None]
    return Prediction(
        pixels=torch.where(shown, centres, path).float(),
        pixel_covariances=torch.where(shown[..., None], rounding, spread + noise).float(),
        path_pixels=path.float(),
        path_pixel_covariances=spread.float(),
    )
