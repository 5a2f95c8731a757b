"""The oracle of a world: given its law, initial states and detections, without identities.

In every frame it receives the positions of visible objects, in no order. It searches for
the likeliest history of the whole clip, keeping several, exchanges later parts of two tracks where
that is likelier still, and smooths each track by the true law.
No tracker that has to find objects in pixels and learn the law can expect to do better.
"""

from typing import NamedTuple

import numpy as np
import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.data import OpticalTrap, World
from motes.evaluation.baselines.disk_trackers import ROUNDING, TruePhysics, true_physics
from motes.evaluation.predictor import Prediction
from motes.kalman.model import LGSSM, SmoothedTracks
from motes.kalman.track_evidence import joined_by_filter, pair_gains
from motes.models.sprites.search import best_swaps

BEAM = 16
EXCHANGES = 20  # rounds, at most


class Floor(NamedTuple):
    """Where objects bounce: a row of pixels, and the share of upright speed that they keep."""

    row: float
    bounce: float


class Law(NamedTuple):
    """The true law of a world in pixels and frames."""

    physics: TruePhysics
    floor: Floor | None

    @classmethod
    def of(cls, world: World | OpticalTrap) -> "Law":
        """The law of a world."""
        if isinstance(world, OpticalTrap):
            return cls(trap_physics(world), None)
        if world.floor is None:
            return cls(true_physics(world), None)
        row = float(world.to_pixels(np.array((0.0, world.floor)))[1])
        return cls(true_physics(world), Floor(row, world.bounce))

    def predict(self, states: kalman.StateEstimate) -> kalman.StateEstimate:
        """States a frame later; what would be below the floor, by its mean, has bounced.

        Law: follows a ball of the world without noise (test_the_oracle_s_law_is_the_world_s).
        """
        mean, covariance = kalman.predict(self.physics.model, *states)
        if self.floor is None:
            return kalman.StateEstimate(mean, covariance)
        turn = torch.tensor((1.0, -self.floor.bounce, 1.0, -self.floor.bounce)).to(mean)
        turn = torch.where(mean[..., 1:2] > self.floor.row, turn, 1.0)
        origin = torch.tensor((0.0, self.floor.row, 0.0, 0.0)).to(mean)
        turned = turn[..., :, None] * covariance * turn[..., None, :]
        return kalman.StateEstimate(origin + turn * (mean - origin), turned)


def trap_physics(trap: OpticalTrap) -> TruePhysics:
    """Return the physics of a trap, whose states are relative to the centre of the frame."""
    centre = np.array([*trap.to_pixels(np.zeros(2)), 0.0, 0.0])
    model = LGSSM(
        transition=torch.from_numpy(trap.transition),
        force=torch.from_numpy(centre - trap.transition @ centre),
        emission=torch.eye(4, dtype=torch.float64)[:2],
        state_noise=torch.from_numpy(trap.state_covariance),
        position_noise=torch.from_numpy(trap.position_covariance + ROUNDING * np.eye(2)),
        initial_mean=torch.from_numpy(centre)[None],
        initial_covariance=torch.from_numpy(trap.stationary_covariance)[None],
    )
    noise = torch.from_numpy(np.sqrt(trap.position_covariance.diagonal()))
    return TruePhysics(model, torch.zeros(1, dtype=torch.float64), noise)


class Histories(NamedTuple):
    """What each of the W histories under consideration believes of the N objects."""

    states: kalman.StateEstimate  # W N K D
    log_weights: Float[Tensor, "W N K"]
    scores: Float[Tensor, " W"]
    observed: Bool[Tensor, "W N"]  # whether an object was ever observed
    choices: Int[Tensor, "W t N"]  # point of each object in each frame, -1: none


def predict_with_oracle(points: Float[Tensor, "B N T 2"], law: Law) -> Prediction:
    """Tracks and their error bars, from the points at which objects show.

    Where there is a floor the law is not linear, and the path is told by the past alone.

    Args:
        points: where objects show, NaN where they do not; their order is forgotten.
        law: the true one.
    """
    tracks = oracle_tracks(points, law)
    observed = ~tracks.isnan().any(-1)
    log_weights, states = (
        _smooth(tracks, observed, law) if law.floor is None else _filter(tracks, law)
    )
    means, covariances = SmoothedTracks(log_weights, *states).select(log_weights.argmax(-1))
    path, spread = means[..., :2], covariances[..., :2, :2]
    drawn = spread + law.physics.observation_scale.square().diag_embed()
    rounding = ROUNDING * torch.eye(2, dtype=path.dtype)
    return Prediction(
        pixels=torch.where(observed[..., None], tracks, path).float(),
        pixel_covariances=torch.where(observed[..., None, None], rounding, drawn).float(),
        path_pixels=path.float(),
        path_pixel_covariances=spread.float(),
    )


def _smooth(
    tracks: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"], law: Law
) -> tuple[Float[Tensor, "B N K"], kalman.Smoothed]:
    """Return the log weight of each initial-state component, and the smoothed states."""
    states = kalman.smooth(law.physics.model, tracks[:, :, None], observed[:, :, None])
    return _evidence(tracks, observed, law), states


def _evidence(
    tracks: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"], law: Law
) -> Float[Tensor, "B N K"]:
    """The log density of each track together with each kind of start."""
    model, log_weights, _ = law.physics
    return log_weights + kalman.log_likelihood(model, tracks[:, :, None], observed[:, :, None])


def _filter(
    tracks: Float[Tensor, "B N T 2"], law: Law
) -> tuple[Float[Tensor, "B N K"], kalman.Smoothed]:
    """Return the log weight of each initial-state component, and the filtered states."""
    model, log_weights, _ = law.physics
    shape = (*tracks.shape[:2], len(log_weights))
    before = kalman.StateEstimate(
        model.initial_mean.expand(*shape, -1), model.initial_covariance.expand(*shape, -1, -1)
    )
    log_weights, beliefs = log_weights.expand(shape), []
    for position in tracks.unbind(2):
        observed = ~position.isnan().any(-1)[..., None]
        after = kalman.update(model, *before, position[:, :, None], observed)
        log_weights = log_weights + after.log_density
        beliefs.append(after.estimate)
        before = law.predict(after.estimate)
    means, covariances = (torch.stack(part, 3) for part in zip(*beliefs, strict=True))
    return log_weights, kalman.Smoothed(means, covariances)


def oracle_tracks(points: Float[Tensor, "B N T 2"], law: Law) -> Float[Tensor, "B N T 2"]:
    """Return the points of each clip as tracks; NaN where an object was not observed.

    Args:
        points: where objects show, NaN where they do not. Their order is forgotten: it is shuffled
            anew in every frame.
        law: the true one.
    """
    order = torch.rand(points.shape[:3], generator=torch.Generator().manual_seed(0)).argsort(1)
    shuffled = points.double().take_along_dim(order[..., None], 1)
    tracks = torch.stack([_link(clip, law) for clip in shuffled])
    return tracks if law.floor is not None else _exchange(tracks, law)


def _exchange(tracks: Float[Tensor, "B N T 2"], law: Law) -> Float[Tensor, "B N T 2"]:
    """The tracks with later parts of two exchanged, as long as that makes a clip likelier.

    A search that keeps BEAM histories forgets how two objects met once a few more have met.

    Law: never less likely than before (test_exchanges_make_the_oracle_s_tracks_likelier).
    """
    present = torch.ones(tracks.shape[:2], dtype=torch.bool)
    likely = log_evidence(tracks, law)
    for _ in range(EXCHANGES):
        observed = ~tracks.isnan().any(-1)
        joined = joined_by_filter(*law.physics[:2], tracks.nan_to_num(), observed)
        _, source = best_swaps(pair_gains(joined), present, persistent=True)
        tried = tracks.take_along_dim(source[..., None], 1)
        gained = log_evidence(tried, law)
        better = gained > likely
        if not bool(better.any()):
            break
        tracks = torch.where(better[:, None, None, None], tried, tracks)
        likely = likely.maximum(gained)
    return tracks


def log_evidence(tracks: Float[Tensor, "B N T 2"], law: Law) -> Float[Tensor, " B"]:
    """The log density of all tracks of each clip by a linear law; NaN is an unseen position."""
    observed = ~tracks.isnan().any(-1)
    return _evidence(tracks, observed, law).logsumexp(-1).sum(1)


def _link(points: Float[Tensor, "N T 2"], law: Law) -> Float[Tensor, "N T 2"]:
    """The likeliest tracks of one clip, by a search that keeps BEAM histories."""
    (model, log_weights, _), (num_objects, num_frames, _) = law.physics, points.shape
    shape = (1, num_objects, len(log_weights))
    histories = Histories(
        kalman.StateEstimate(
            model.initial_mean.expand(*shape, -1), model.initial_covariance.expand(*shape, -1, -1)
        ),
        log_weights.expand(shape),
        torch.zeros(1, dtype=torch.float64),
        torch.zeros(shape[:2], dtype=torch.bool),
        torch.zeros(1, 0, num_objects, dtype=torch.int64),
    )
    for t in range(num_frames):
        histories = _extend(histories, points[:, t], law)
        histories = histories._replace(states=law.predict(histories.states))
    best = histories.choices[histories.scores.argmax()].T  # N T
    return torch.where(
        best[..., None] < 0, torch.nan, points.take_along_dim(best.clamp(min=0)[..., None], 0)
    )


def _extend(histories: Histories, points: Float[Tensor, "N 2"], law: Law) -> Histories:
    """The likeliest histories after a frame whose points may belong to any object."""
    there = (~points[:, 0].isnan()).nonzero()[:, 0]
    model, states = law.physics.model, histories.states
    if len(there) == 0:
        none = torch.full((len(histories.scores), 1, len(points)), -1)
        return histories._replace(choices=torch.cat([histories.choices, none], 1))
    densities = kalman.update(
        model, states.mean[:, :, None], states.covariance[:, :, None], points[there, None]
    ).log_density  # W N M K
    joint = histories.log_weights[:, :, None] + densities
    gains = joint.logsumexp(-1) - histories.log_weights.logsumexp(-1)[:, :, None]
    parents, assigned, scores = _options(histories, gains)
    best = scores.argsort(descending=True, stable=True)[:BEAM]
    parents, assigned, scores = parents[best], assigned[best], scores[best]

    chosen = torch.where(assigned < 0, -1, there[assigned.clamp(min=0)])
    position = points[chosen.clamp(min=0)][:, :, None]  # W N 1 2
    taken = (chosen >= 0)[:, :, None]
    before = kalman.StateEstimate(states.mean[parents], states.covariance[parents])
    after = kalman.update(model, *before, position, taken)
    return Histories(
        after.estimate,
        histories.log_weights[parents] + after.log_density,
        scores,
        histories.observed[parents] | taken[..., 0],
        torch.cat([histories.choices[parents], chosen[:, None]], 1),
    )


def _options(
    histories: Histories, gains: Float[Tensor, "W N M"]
) -> tuple[Int[Tensor, " P"], Int[Tensor, "P N"], Float[Tensor, " P"]]:
    """Histories, each with the best assignment of points to objects and all its exchanges of two.

    Two objects that were never observed are equal: exchanging them gives the same history.
    """
    from scipy.optimize import linear_sum_assignment

    num_histories, num_objects, num_points = gains.shape
    best = torch.full((num_histories, num_objects), -1)
    for w, costs in enumerate(-gains.numpy()):
        objects, points = linear_sum_assignment(costs)
        best[w, torch.from_numpy(objects)] = torch.from_numpy(points)
    gains = torch.cat([gains, gains.new_zeros(num_histories, num_objects, 1)], 2)  # last: no point
    total = gains.take_along_dim(best[..., None] % (num_points + 1), 2)[..., 0].sum(1)
    parents, assigned = [torch.arange(num_histories)], [best]
    scores = [histories.scores + total]
    for i, j in torch.combinations(torch.arange(num_objects)).tolist():
        order = torch.arange(num_objects)
        order[i], order[j] = j, i
        swapped = best[:, order]
        value = gains.take_along_dim(swapped[..., None] % (num_points + 1), 2)[..., 0].sum(1)
        differs = (histories.observed[:, i] | histories.observed[:, j]) & (best[:, i] != best[:, j])
        parents.append(torch.arange(num_histories)[differs])
        assigned.append(swapped[differs])
        scores.append((histories.scores + value)[differs])
    return torch.cat(parents), torch.cat(assigned), torch.cat(scores)
