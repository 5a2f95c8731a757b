"""The Bayes limit: the exact posterior given the true physics, the true prior and the clip.

Without process noise a path is determined by its initial state. Initial states are drawn from the
Kalman posterior and importance-weighted to the exact one: uniform positions, angles and speeds, and
the probability of exactly these pixels. Positions and predictive frames need no further sampling:
given an initial state, a position in a known pixel is a truncated Gaussian, and an unknown pixel
has the probability of a product of two Gaussian cells.
"""

import math
from dataclasses import dataclass
from itertools import permutations
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
    true_physics,
)
from motes.evaluation.metrics import Tracks
from motes.evaluation.predictor import Covariances, Frames, Mask, Prediction
from motes.kalman.model import SmoothedTracks

NUM_DRAWS = 1024
WIDENING = 1.5  # of the proposal's covariance against the Kalman posterior, to cover its tails
BEAM = 64


def _moments(
    weights: Float[Tensor, "B N S t"], values: Float[Tensor, "B N S t 2"]
) -> tuple[Tracks, Covariances]:
    """Return mean and covariance over weighted draws."""
    mean = torch.einsum("bnst,bnsti->bnti", weights, values)
    offset = values - mean[:, :, None]
    return mean, torch.einsum("bnst,bnsti,bnstj->bntij", weights, offset, offset)


class InitialStates(NamedTuple):
    """Weighted draws of each object's initial state, in pixels and pixels per frame."""

    states: Float[Tensor, "B N S 4"]
    weights: Float[Tensor, "B N S"]


@dataclass(frozen=True)
class BayesLimit:
    """Global assignment and the exact posterior, for a world without process noise."""

    world: World
    physics: TruePhysics
    interpolates: bool = True

    @classmethod
    def of(cls, world: World) -> "BayesLimit":
        """Return the limit of a world."""
        if world.state_covariance.any() or world.floor is not None:
            raise InputError(
                "got a world with process noise or a floor; the limit needs one without: set "
                "state_noise to 0 and floor to None"
            )
        return cls(world, true_physics(world))

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return posterior means and covariances, and Bayes-optimal frames."""
        tracker = KalmanTracker(self.world.radius, self.physics, BEAM)
        centres = tracker.find(frames, observed, num_objects)
        smoothed = tracker.smooth(centres, observed)
        initial = self.draw_initial_states(centres, observed, smoothed)
        paths = self.paths(initial.states, len(observed))
        path, path_spread = _moments(initial.weights[..., None].expand(paths.shape[:-1]), paths)
        pixels, spread = path.clone(), path_spread + self.physics.observation_scale.square().diag()
        shown = self._shown_positions(initial, paths[..., observed, :], centres[:, :, observed])
        pixels[:, :, observed], spread[:, :, observed] = shown

        def draw() -> Frames:
            drawn = self.draw_frames(initial, len(observed))
            return torch.where(observed[:, None, None], frames, drawn)

        return Prediction(
            pixels.float(), spread.float(), path.float(), path_spread.float(), draw_frames=draw
        )

    def draw_initial_states(
        self, centres: Tracks, observed: Mask, states: SmoothedTracks
    ) -> InitialStates:
        """Return weighted draws of initial states from the exact posterior given the centres."""
        log_weights = states.log_weights
        means = states.means[..., 0, :]
        covariances = WIDENING * states.covariances[..., 0, :, :]
        # Scrambled Sobol points: far less noise than as many independent draws.
        points = torch.quasirandom.SobolEngine(5, scramble=True, seed=0).draw(NUM_DRAWS).to(means)
        side = (points[:, 0] >= log_weights[..., :1].exp()).long()
        factor = torch.linalg.cholesky(covariances)
        noise = torch.special.ndtri(points[:, 1:].clamp(1e-9, 1 - 1e-9))
        mean = means.take_along_dim(side[..., None], 2)
        draws = mean + (factor.take_along_dim(side[..., None, None], 2) @ noise[..., None])[..., 0]
        proposals = torch.distributions.MultivariateNormal(
            means[:, :, None], scale_tril=factor[:, :, None], validate_args=False
        ).log_prob(draws[:, :, :, None])
        proposal = (log_weights[:, :, None] + proposals).logsumexp(-1)
        paths = self.paths(draws, len(observed))[..., observed, :]
        shown = centres[:, :, None, observed]
        log_ratio = self.log_prior(draws) + self._log_cells(paths, shown).sum(-1) - proposal
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

    def _shown_positions(
        self, initial: InitialStates, paths: Float[Tensor, "B N S t 2"], centres: Tracks
    ) -> tuple[Tracks, Covariances]:
        """Return mean and covariance of the positions that are drawn in observed frames.

        The centres of a frame may belong to the objects in any order; orders are weighted by their
        probability given the centres of all other frames.
        """
        own = self._log_cells(paths, centres[:, :, None])
        left_out = (initial.weights.log()[..., None] - own).log_softmax(2)
        evidence, means, spreads = [], [], []
        for order in permutations(range(centres.shape[1])):
            pixels = centres[:, order, None]
            log_weights = left_out + self._log_cells(paths, pixels)
            evidence.append(log_weights.logsumexp(2).sum(1))
            weights = log_weights.softmax(2)
            inside, variances = self.cell_moments(paths, pixels)
            mean, between = _moments(weights, inside)
            within = torch.einsum("bnst,bnsti->bnti", weights, variances).diag_embed()
            means.append(mean)
            spreads.append(between + within)
        share = torch.stack(evidence, 1).softmax(1)[:, None].expand(-1, centres.shape[1], -1, -1)
        mean, between = _moments(share, torch.stack(means, 2))
        return mean, between + torch.einsum("bnpt,bnptij->bntij", share, torch.stack(spreads, 2))

    def cell_moments(
        self, paths: Float[Tensor, "B N S t 2"], pixels: Float[Tensor, "B N 1 t 2"]
    ) -> tuple[Float[Tensor, "B N S t 2"], Float[Tensor, "B N S t 2"]]:
        """Return mean and variance of a position given its path and the pixel that it is drawn in.

        A Gaussian that is truncated to the pixel; positions beyond the border are clamped, so the
        outermost pixels also hold the probability outside as a point mass.

        Law: the moments of draws that are rounded to these pixels
        (test_the_limit_has_the_moments_of_positions_drawn_in_the_same_pixels).
        """
        side = torch.tensor([self.world.width, self.world.height]).to(paths)
        lowest, highest = self.world.radius, side - 1 - self.world.radius
        low, high = (pixels - 0.5).clamp(min=lowest), torch.minimum(pixels + 0.5, highest)
        scale = self.physics.observation_scale
        a, b = (low - paths) / scale, (high - paths) / scale
        unit = torch.distributions.Normal(torch.zeros(()).to(paths), 1.0)
        density_a, density_b = unit.log_prob(a).exp(), unit.log_prob(b).exp()
        inside = unit.cdf(b) - unit.cdf(a)
        below = torch.where(pixels <= lowest, unit.cdf(a), 0.0)
        above = torch.where(pixels >= highest, 1 - unit.cdf(b), 0.0)
        mass = (inside + below + above).clamp(min=1e-12)
        # Moments of the offset from `low`, at most one pixel: no cancellation of large numbers.
        offset, width = paths - low, high - low
        first = offset * inside + scale * (density_a - density_b) + width * above
        second = (
            (offset.square() + scale.square()) * inside
            + scale * (offset * density_a - (offset + width) * density_b)
            + width.square() * above
        )
        # A path many deviations away has no weight; its moments are only kept within the pixel.
        mean = torch.minimum((first / mass).clamp(min=0.0), width)
        variance = (second / mass - mean.square()).clamp(0.0, 0.25)
        return low + mean, variance

    def _log_cells(
        self, paths: Float[Tensor, "... 2"], pixels: Float[Tensor, "... 2"]
    ) -> Float[Tensor, "..."]:
        """Return the log probability that noisy positions are drawn in these pixels."""
        return self._log_cell(paths, pixels, 0) + self._log_cell(paths, pixels, 1)

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
