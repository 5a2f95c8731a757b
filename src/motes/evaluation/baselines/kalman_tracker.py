"""Trackers without learning: disks are found, put in order, and a law of motion is fitted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.evaluation.baselines.association import Seen, associate, follow
from motes.evaluation.baselines.disks import explain_frames
from motes.evaluation.baselines.true_physics import ROUNDING, TruePhysics
from motes.evaluation.predictor import Prediction
from motes.kalman.mixture import select_component

Link = Callable[[list[np.ndarray]], Seen]


def find_tracks(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, " T"],
    num_objects: int,
    radius: int,
    link: Link,
) -> Float[Tensor, "B N T 2"]:
    """The centres of all objects in the seen frames, in order; NaN where nothing was seen."""
    tracks = torch.full((len(frames), num_objects, len(observed), 2), torch.nan).double()
    for clip, track in zip(frames, tracks, strict=True):
        found = link(explain_frames(clip[observed], num_objects, radius))
        track[:, observed] = torch.from_numpy(found.swapaxes(0, 1))
    return tracks


@dataclass(frozen=True)
class StraightLine:
    """Nearest neighbours from frame to frame; a straight line through what was seen.

    Attributes:
        radius: of the disks in pixels.
        gravity: known acceleration (x, y) in pixels a frame squared; zero: constant velocity.
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
        """Centres where frames were seen, and the line everywhere; no error bars, no pictures."""
        times = observed.nonzero()[:, 0].numpy()

        def link(explanations: list[np.ndarray]) -> Seen:
            return follow(explanations, times, self._expect)

        tracks = find_tracks(frames, observed, num_objects, self.radius, link)
        seen = tracks[:, :, observed].permute(2, 0, 1, 3).reshape(len(times), -1)
        fall = self._fall(np.arange(len(observed)))
        straight = seen.numpy() - np.tile(fall[times], seen.shape[1] // 2)
        line = _line(straight, times, np.arange(len(observed)))
        path = torch.from_numpy(line + np.tile(fall, seen.shape[1] // 2))
        path = path.reshape(len(observed), *tracks.shape[:2], 2).permute(1, 2, 0, 3)
        pixels = torch.where(observed[:, None], tracks, path)
        return Prediction(pixels=pixels.float(), path_pixels=path.float())

    def _fall(self, times: np.ndarray) -> Float[np.ndarray, "times 2"]:
        fall: Float[np.ndarray, "times 2"] = 0.5 * times[:, None] ** 2 * np.array(self.gravity)
        return fall

    def _expect(self, past: np.ndarray, times: np.ndarray, time: int) -> np.ndarray:
        """Where objects were last; after a gap, where the line through the past leads."""
        if time == times[-1] + 1 or len(times) < 2:
            last: np.ndarray = past[-1]
            return last
        fall = self._fall(times)[:, None]
        there = _line((past - fall).reshape(len(times), -1), times, np.array([time]))
        expected: np.ndarray = there.reshape(past.shape[1:]) + self._fall(np.array([time]))
        return expected


def _line(
    values: Float[np.ndarray, "past M"], times: np.ndarray, at: np.ndarray
) -> Float[np.ndarray, "at M"]:
    """The least-squares straight line through values at some times, read off at others."""
    if len(times) < 2:
        return np.repeat(values, len(at), 0)
    coefficients = np.polyfit(times, values, 1)
    read: Float[np.ndarray, "at M"] = at[:, None] * coefficients[0] + coefficients[1]
    return read


@dataclass(frozen=True)
class KalmanTracker:
    """Disks put in order by the Kalman filter of the true physics and prior, frame by frame.

    Attributes:
        radius: of the disks in pixels.
        physics: the true law and starts.
        beam: histories that the search keeps; one: decided at once.
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
        """Centres, the smoothed path, and covariances of both; no pictures."""
        centres = self.find(frames, observed, num_objects)
        log_weights, states = self.smooth(centres, observed)
        means, covariances = select_component(states, log_weights.argmax(-1))
        path, spread = means[..., :2], covariances[..., :2, :2]
        return told_of(centres, observed, path, spread, self.physics)

    def find(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Float[Tensor, "B N T 2"]:
        """The centres of all objects in the seen frames, in order; NaN where nothing was seen."""

        def link(explanations: list[np.ndarray]) -> Seen:
            return associate(explanations, observed.numpy(), self.physics, self.beam)

        return find_tracks(frames, observed, num_objects, self.radius, link)

    def smooth(
        self, centres: Float[Tensor, "B N T 2"], observed: Bool[Tensor, " T"]
    ) -> tuple[Float[Tensor, "B N 2"], kalman.Smoothed]:
        """The log posterior of each side, and the smoothed states under it."""
        model, log_weights, _ = self.physics
        evidence = kalman.log_likelihood(model, centres[:, :, None], observed)
        states = kalman.smooth(model, centres[:, :, None], observed)
        return (log_weights + evidence).log_softmax(-1), states


def told_of(
    centres: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, " T"],
    path: Float[Tensor, "B N T 2"],
    spread: Float[Tensor, "B N T 2 2"],
    physics: TruePhysics,
) -> Prediction:
    """Drawn positions and paths: a seen centre is known up to its pixel, others by the path."""
    jitter = physics.jitter.square().diag_embed()
    rounding = ROUNDING * torch.eye(2, dtype=path.dtype)
    seen = observed[:, None]
    return Prediction(
        pixels=torch.where(seen, centres, path).float(),
        pixel_covariances=torch.where(seen[..., None], rounding, spread + jitter).float(),
        path_pixels=path.float(),
        path_pixel_covariances=spread.float(),
    )
