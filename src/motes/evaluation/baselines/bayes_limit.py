"""The Bayes limit: the exact posterior given the true physics, the true prior and the clip.

Without process noise a path is determined by its initial state. Initial states are drawn from the
Kalman posterior and importance-weighted to the exact one: uniform positions, angles and speeds, and
the probability of exactly these pixels. Predictive frames need no further sampling: given an
initial state, the pixel of a centre has the probability of a product of two Gaussian cells.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import conv2d

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.data import World
from motes.evaluation.baselines.disk_trackers import (
    KalmanTracker,
    TruePhysics,
    disk_mask,
    make_prediction,
    true_physics,
)
from motes.evaluation.evaluate import Frames, Mask, Prediction
from motes.evaluation.metrics import Tracks
from motes.kalman import Smoothed

NUM_DRAWS = 400
WIDENING = 1.5  # of the proposal's covariance against the Kalman posterior, to cover its tails
BEAM = 64


class InitialStates(NamedTuple):
    """Weighted draws of each object's initial state, in pixels and pixels per frame."""

    states: Float[Tensor, "B N S 4"]
    weights: Float[Tensor, "B N S"]


@dataclasses.dataclass(frozen=True)
class BayesLimit:
    """Global assignment and the exact posterior, for a world without process noise."""

    world: World
    physics: TruePhysics
    interpolates: bool = True

    @classmethod
    def of(cls, world: World) -> "BayesLimit":
        """Return the limit of a world."""
        if world.state_covariance.any():
            raise InputError("the limit needs a world without process noise; set state_noise to 0")
        return cls(world, true_physics(world))

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return posterior means and covariances, and Bayes-optimal frames."""
        tracker = KalmanTracker(self.world.radius, self.physics, BEAM)
        centres = tracker.find(frames, observed, num_objects)
        smoothed = tracker.smooth(centres, observed)
        states = Smoothed(smoothed.means, smoothed.covariances)
        initial = self.draw_initial_states(centres, observed, smoothed.log_weights, states)
        paths = self.paths(initial.states, len(observed))
        w = initial.weights
        mean = torch.einsum("bns,bnsti->bnti", w, paths)
        offset = paths - mean[:, :, None]
        spread = torch.einsum("bns,bnsti,bnstj->bntij", w, offset, offset)

        def draw() -> Frames:
            drawn = self.draw_frames(initial, len(observed))
            return torch.where(observed[:, None, None], frames, drawn)

        tracks = make_prediction(centres, observed, mean, spread, self.physics)
        return dataclasses.replace(tracks, draw_frames=draw)

    def draw_initial_states(
        self,
        centres: Tracks,
        observed: Mask,
        log_weights: Float[Tensor, "B N K"],
        states: Smoothed,
    ) -> InitialStates:
        """Return weighted draws of initial states from the exact posterior given the centres."""
        generator = torch.Generator().manual_seed(0)
        means = states.means[..., 0, :]
        covariances = WIDENING * states.covariances[..., 0, :, :]
        shape = (*means.shape[:2], NUM_DRAWS)
        uniform = torch.rand(shape, generator=generator, dtype=means.dtype)
        side = (uniform >= log_weights[..., :1].exp()).long()
        factor = torch.linalg.cholesky(covariances)
        noise = torch.randn((*shape, 4), generator=generator, dtype=means.dtype)
        mean = means.take_along_dim(side[..., None], 2)
        draws = mean + (factor.take_along_dim(side[..., None, None], 2) @ noise[..., None])[..., 0]
        proposals = torch.distributions.MultivariateNormal(
            means[:, :, None], scale_tril=factor[:, :, None], validate_args=False
        ).log_prob(draws[:, :, :, None])
        proposal = (log_weights[:, :, None] + proposals).logsumexp(-1)
        paths = self.paths(draws, len(observed))[..., observed, :]
        shown = centres[:, :, None, observed]
        likelihood = sum(self._log_cell(paths, shown, axis).sum(-1) for axis in (0, 1))
        log_ratio = self.log_prior(draws) + likelihood - proposal
        # An association with no prior support: no draw has weight, keep the proposal's.
        lost = log_ratio.isneginf().all(-1, keepdim=True)
        return InitialStates(draws, torch.where(lost, 0.0, log_ratio).softmax(-1))

    def log_prior(self, states: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch"]:
        """Return the log density of initial states up to a constant.

        Law: draws of the world have density, neighbours outside have none
        (test_the_prior_of_starts_holds_the_drawn_ones).
        """
        world = self.world
        scale = torch.from_numpy(world.pixels_per_unit)
        origin = torch.from_numpy(world.to_pixels(np.zeros(2)))
        x, y = ((states[..., :2] - origin) / scale).unbind(-1)
        vx, vy = (states[..., 2:] / (scale * world.sampling_period)).unbind(-1)
        speed = torch.hypot(vx, vy)
        angle = torch.rad2deg(torch.atan2(vy, vx.abs()))

        def within(value: Tensor, interval: tuple[float, float]) -> Tensor:
            return (value >= interval[0]) & (value <= interval[1])

        start = torch.where(vx > 0, within(x, world.left), within(x, world.right))
        allowed = start & within(y, world.heights)
        allowed = allowed & within(speed, world.speeds) & within(angle, world.angles)
        # Uniform in angle and speed is 1 / speed in the plane of velocities.
        return torch.where(allowed, -speed.log(), -torch.inf)

    def paths(
        self, states: Float[Tensor, "*batch 4"], num_frames: int
    ) -> Float[Tensor, "*batch T 2"]:
        """Return the noise-free paths from these states."""
        A, u = self.physics.model.transition, self.physics.model.force
        positions = []
        for _ in range(num_frames):
            positions.append(states[..., :2])
            states = states @ A.T + u
        return torch.stack(positions, -2)

    def draw_frames(self, initial: InitialStates, num_frames: int) -> Frames:
        """Return the probability that a pixel is white in each frame, objects independent.

        Law: agrees with frames drawn from the same states
        (test_the_predicted_picture_is_the_share_of_drawn_ones).
        """
        height, width = self.world.height, self.world.width
        disk = disk_mask(self.world.radius).float()
        paths, dark = self.paths(initial.states, num_frames), []
        columns, rows = torch.arange(width), torch.arange(height)
        for t in range(num_frames):
            x = self._log_cell(paths[..., t, None, :], columns[:, None].expand(-1, 2), 0).exp()
            y = self._log_cell(paths[..., t, None, :], rows[:, None].expand(-1, 2), 1).exp()
            centre = torch.einsum("bns,bnsy,bnsx->bnyx", initial.weights, y, x).float()
            flat = centre.flatten(0, 1)[:, None]
            white = conv2d(flat, disk[None, None], padding=self.world.radius)[:, 0]
            dark.append((1 - white).unflatten(0, centre.shape[:2]).prod(1))
        return 1 - torch.stack(dark, 1)

    def _log_cell(
        self, paths: Float[Tensor, "... 2"], pixels: Tensor, axis: int
    ) -> Float[Tensor, "..."]:
        """Return the log probability that a noisy position is drawn in a row or column of pixels.

        Positions beyond the border are clamped, so the outermost cells are open.
        """
        side = (self.world.width, self.world.height)[axis]
        lowest, highest = self.world.radius, side - 1 - self.world.radius
        place = pixels[..., axis].to(paths)
        low = torch.where(place <= lowest, -torch.inf, place - 0.5)
        high = torch.where(place >= highest, torch.inf, place + 0.5)
        scale = self.physics.observation_scale[axis] * math.sqrt(2)
        centre = paths[..., axis]
        cell = 0.5 * (torch.erf((high - centre) / scale) - torch.erf((low - centre) / scale))
        inside = (place >= lowest) & (place <= highest)
        # erf saturates six deviations away; keep every path possible, if very unlikely.
        return torch.where(inside, cell.clamp(min=1e-12).log(), -torch.inf)
