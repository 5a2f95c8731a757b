"""Trackers of disks without learning: detect disks, associate them, and fit a law of motion.

Detection gives all sets of disks of known shape and number that reproduce a frame exactly;
association chooses one for each frame of a whole clip, and the order of its objects.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import conv2d

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.data import World
from motes.evaluation.metrics import Tracks
from motes.evaluation.predictor import Covariances, Frames, Mask, Prediction
from motes.kalman.model import LGSSM, SmoothedTracks

ROUNDING = 1 / 12  # variance of a position that is rounded to a pixel

Centres = Int[np.ndarray, "E N 2"]  # E explanations of a frame, each N centres (x, y)
Linked = Float[np.ndarray, "observed N 2"]
Link = Callable[[Sequence[Centres]], Linked]


class TruePhysics(NamedTuple):
    """Newton's law in pixels and frames, and one Gaussian for the initial states on each side."""

    model: LGSSM  # initial moments have a leading axis of two: from the left, from the right
    log_weights: Float[Tensor, " K"]
    observation_scale: Float[Tensor, "2"]  # standard deviation (x, y) of positions around paths


def true_physics(world: World) -> TruePhysics:
    """Return the physics of a world; initial states have the true moments of each side.

    Positions are rounded to pixels, so the observation noise includes the variance of rounding.

    Law: means and covariances are those of many drawn paths
    (test_true_physics_has_the_moments_of_the_clips).
    """
    scale = world.pixels_per_unit
    to_pixels = np.diag([*scale, *(scale * world.sampling_period)])
    place = np.diag([np.ptp(world.left) ** 2 / 12, np.ptp(world.heights) ** 2 / 12])
    velocity, velocity_spread = _shot_moments(world)
    means, covariances = [], []
    for x, sign in ((world.left, 1.0), (world.right, -1.0)):
        mirror = np.diag([sign, 1.0])
        corner = world.to_pixels(np.array([np.mean(x), np.mean(world.heights)]))
        mean = np.concatenate([corner, to_pixels[2:, 2:] @ mirror @ velocity])
        spread = np.zeros((4, 4))
        spread[:2, :2] = place
        spread[2:, 2:] = mirror @ velocity_spread @ mirror
        means.append(mean)
        covariances.append(to_pixels @ spread @ to_pixels)
    noise = scale[:, None] * world.position_covariance * scale
    model = LGSSM(
        transition=torch.from_numpy(to_pixels @ world.transition @ np.linalg.inv(to_pixels)),
        force=torch.from_numpy(to_pixels @ np.array(world.step_force)),
        emission=torch.eye(4, dtype=torch.float64)[:2],
        state_noise=torch.from_numpy(to_pixels @ world.state_covariance @ to_pixels),
        position_noise=torch.from_numpy(noise + ROUNDING * np.eye(2)),
        initial_mean=torch.from_numpy(np.stack(means)),
        initial_covariance=torch.from_numpy(np.stack(covariances)),
    )
    halves = torch.full((2,), math.log(0.5), dtype=torch.float64)
    return TruePhysics(model, halves, torch.from_numpy(np.sqrt(noise.diagonal())))


def _shot_moments(world: World) -> tuple[Float[np.ndarray, " 2"], Float[np.ndarray, "2 2"]]:
    """Return mean and covariance of the velocities of shots from the left."""
    # Midpoints of a fine grid: the moments of uniform angles and speeds to 1e-6.
    shares = (np.arange(400) + 0.5) / 400
    angle = np.radians(world.angles[0] + shares * np.ptp(world.angles))
    speed = world.speeds[0] + shares * np.ptp(world.speeds)
    shots = np.stack(
        [np.multiply.outer(speed, np.cos(angle)), np.multiply.outer(speed, np.sin(angle))], -1
    ).reshape(-1, 2)
    return shots.mean(0), np.cov(shots.T, bias=True)


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
    return np.asarray(centres[np.array(chosen)])


def ordered(explanations: Centres) -> Float[np.ndarray, "P N 2"]:
    """Return every explanation in every order of the objects, each once."""
    orders = list(permutations(range(explanations.shape[1])))
    everything = np.concatenate([explanations[:, order] for order in orders])
    return np.unique(everything, axis=0).astype(np.float64)


class Gain(NamedTuple):
    """Kalman gain of an observation at one frame, for each initial-state component."""

    gain: Float[np.ndarray, "K 4 2"]
    precision: Float[np.ndarray, "K 2 2"]  # of the predicted position
    log_scale: Float[np.ndarray, " K"]  # log density at the predicted position


def kalman_gains(physics: TruePhysics, observed: Bool[np.ndarray, " T"]) -> list[Gain]:
    """Return the gains at every frame; they depend on the mask of observed frames alone."""
    A, _, B, Q, R, _, P = (part.numpy() for part in physics.model)
    found = []
    for is_observed in observed:
        S = B @ P @ B.T + R
        G = P @ B.T @ np.linalg.inv(S)
        found.append(Gain(G, np.linalg.inv(S), -0.5 * np.linalg.slogdet(2 * np.pi * S)[1]))
        P = A @ (P - G @ B @ P if is_observed else P) @ A.T + Q
    return found


def associate(
    observed: Bool[np.ndarray, " T"],
    physics: TruePhysics,
    beam: int,
    explanations: Sequence[Centres],
) -> Linked:
    """Return the centres in the most likely order under the true physics.

    A beam search over whole clips that keeps the `beam` most likely histories; a beam of one
    decides frame by frame, as an online tracker does.

    Law: a wide beam finds the most likely order of all (test_a_wide_beam_is_the_exhaustive_search).
    """
    A, u, _, _, _, mu, _ = (part.numpy() for part in physics.model)
    num_objects = explanations[0].shape[1]
    means = np.broadcast_to(mu, (1, num_objects, *mu.shape))  # W N K 4
    log_weights = np.broadcast_to(physics.log_weights.numpy(), means.shape[:-1])
    histories = np.zeros((1, 0, num_objects, 2))
    remaining = iter(explanations)
    for is_observed, gain in zip(observed, kalman_gains(physics, observed), strict=True):
        if is_observed:
            first = histories.shape[1] == 0
            here = next(remaining)
            options = here.astype(np.float64) if first else ordered(here)
            innovation = options[:, :, None] - means[:, None, ..., :2]  # W P N K 2
            distance = np.einsum("wpnki,kij,wpnkj->wpnk", innovation, gain.precision, innovation)
            scores = log_weights[:, None] + gain.log_scale - 0.5 * distance
            total = np.logaddexp.reduce(scores, axis=-1).sum(-1)
            best = np.argsort(-total, axis=None, kind="stable")[:beam]
            parent, option = np.unravel_index(best, total.shape)
            log_weights = scores[parent, option]
            means = means[parent] + np.einsum(
                "kij,wnkj->wnki", gain.gain, innovation[parent, option]
            )
            histories = np.concatenate([histories[parent], options[option][:, None]], axis=1)
        means = means @ A.T + u
    return np.asarray(histories[0])


def find_tracks(
    frames: Frames, observed: Mask, num_objects: int, radius: int, link: Link
) -> Tracks:
    """Return the centres of all objects in observed frames, associated; NaN in hidden frames."""
    tracks = torch.full((len(frames), num_objects, len(observed), 2), torch.nan).double()
    for clip, track in zip(frames, tracks, strict=True):
        found = link(explain_frames(clip[observed], num_objects, radius))
        track[:, observed] = torch.from_numpy(found.swapaxes(0, 1))
    return tracks


@dataclass(frozen=True, eq=False)
class StraightLine:
    """Nearest neighbours from frame to frame, and a straight line through the detections.

    Attributes:
        radius: Of the disks in pixels.
        gravity: Known acceleration (x, y) in pixels per frame squared; zero: constant velocity.
    """

    radius: int
    gravity: Float[np.ndarray, " 2"]
    interpolates: bool = True

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return observed centres and the line everywhere, without error bars or frames."""
        times = observed.nonzero()[:, 0].numpy()
        link = functools.partial(self._link, times)
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
        fall: Float[np.ndarray, "times 2"] = 0.5 * times[:, None] ** 2 * self.gravity
        return fall

    def _link(self, times: np.ndarray, explanations: Sequence[Centres]) -> Linked:
        """Return the centres in the order that is nearest to predicted positions.

        Those are the last positions or, after a gap, the ones on the line through the past.
        """
        chosen = [explanations[0][0].astype(np.float64)]
        for step in range(1, len(times)):
            predicted, past, now = chosen[-1], times[:step], times[step : step + 1]
            if now[0] != past[-1] + 1 and step > 1:
                straight = np.stack(chosen) - self._fall(past)[:, None]
                there = _line(straight.reshape(step, -1), past, now)
                predicted = there.reshape(predicted.shape) + self._fall(now)
            options = ordered(explanations[step])
            distance = np.linalg.norm(options - predicted, axis=-1).sum(-1)
            chosen.append(options[distance.argmin()])
        return np.stack(chosen)


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

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return centres, the smoothed path and the covariances of both, without frames."""
        centres = self.find(frames, observed, num_objects)
        tracks = self.smooth(centres, observed)
        means, covariances = tracks.select(tracks.log_weights.argmax(-1))
        path, spread = means[..., :2], covariances[..., :2, :2]
        return make_prediction(centres, observed, path, spread, self.physics)

    def find(self, frames: Frames, observed: Mask, num_objects: int) -> Tracks:
        """Return the associated centres of observed frames; NaN in hidden frames."""
        link = functools.partial(associate, observed.numpy(), self.physics, self.beam)
        return find_tracks(frames, observed, num_objects, self.radius, link)

    def smooth(self, centres: Tracks, observed: Mask) -> SmoothedTracks:
        """Return the smoothed states given each side, and its log posterior."""
        model, log_weights, _ = self.physics
        evidence = kalman.log_likelihood(model, centres[:, :, None], observed)
        states = kalman.smooth(model, centres[:, :, None], observed)
        return SmoothedTracks((log_weights + evidence).log_softmax(-1), *states)


def make_prediction(
    centres: Tracks, observed: Mask, path: Tracks, spread: Covariances, physics: TruePhysics
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
