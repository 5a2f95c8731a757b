"""Find walls in tracks and fit the law with events to them.

Without labels: (1) a law with unexplained kicks separates free flight from everything else; (2) the
kicks of all tracks are clustered into walls, each a direction and an offset with at least a tenth
of the hits of the commonest; (3) walls are added one by one, each time maximising the sum over
tracks of log sum_s Z_s P_s over all parameters, and kept if tracks that were not fitted become
more likely; (4) error bars come from the curvature of that sum, by the outer product of scores.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics, require_linear
from motes.kalman.event_dynamics import EventDynamics
from motes.kalman.event_filter import best_hypotheses, propose
from motes.kalman.events import (
    EventLaw,
    Hypotheses,
    Kicks,
    Walls,
    critical_direction,
    run_sequences,
    smooth_pass,
    weigh,
)
from motes.models.protocols import InferredBatch
from motes.training import distributed
from motes.training.inputs import TrainingData
from motes.training.step import Trainer, held_out_bound, tracks_of
from motes.training.turns import SHORT, SIGNIFICANT, find_turns

FIT_CLIPS = 288
FIT_TRACKS = 400
TEST_SHARE = 0.25  # of tracks, which decide whether a wall is kept
KICK_RATE = 0.02  # prior probability of a kick per frame
KICK_TRACKS = 120
ITERATIONS = 20
MAX_WALLS = 8
MIN_HITS = 4
MIN_FRAMES = 4
MIN_SHARE = 0.1  # hits of a wall relative to the commonest
MAX_RESTITUTION = 1.1
MIN_GAIN = 5.0  # nats by which all unseen tracks together must become more likely
ANGLE = 0.35  # radians between kicks of one wall
MIN_CALM = 0.25  # share of calm stretches without which turns are not counted
CLEAR = 4.0  # times a significant turn that a typical kick is, if walls must have sharp turns
OFFSET_SDS = 3.0  # tolerance of the offset in standard deviations of a position


class Tracks(NamedTuple):
    """Positions of single objects in latent units."""

    positions: Float[Tensor, "M T 2"]
    observed: Bool[Tensor, "M T"]

    @property
    def known(self) -> Bool[Tensor, "M T 2"]:
        """Which coordinates were observed."""
        return self.observed[..., None].expand(*self.observed.shape, 2)

    def select(self, index: slice | Tensor) -> "Tracks":
        """Return some of the tracks."""
        return Tracks(self.positions[index], self.observed[index])


class WallParameters(NamedTuple):
    """Free parameters of walls."""

    angle: Float[Tensor, " W"]  # of the normal
    offset: Float[Tensor, " W"]
    restitution: Float[Tensor, " W"]

    def walls(self) -> Walls:
        """Return the walls."""
        normals = torch.stack([self.angle.cos(), self.angle.sin()], -1)
        return Walls(normals, self.offset, self.restitution)


def law_of(flight: LinearDynamics, walls: Walls, kicks: Kicks | None = None) -> EventLaw:
    """Return the law of free flight with walls.

    The force acts as a constant acceleration during a step, so that the velocity of a state is
    that of the object: a wall reverses it.
    """
    model, change = flight.components(), flight.force[2:]
    force = torch.cat([0.5 * flight.log_delta.exp() * change, change])
    return EventLaw(model._replace(force=force), flight.log_weights(), walls, None, kicks)


@torch.no_grad()
def make_velocities_true(flight: LinearDynamics) -> None:
    """Replace a constant drift of positions by velocities, which leaves free flight the same."""
    delta = flight.log_delta.exp()
    shift = flight.force[:2] / delta - 0.5 * flight.force[2:]
    if flight.force_field is not None:
        flight.force[2:] -= flight.force_field[:, 2:] @ shift
    flight.initial_mean[:, 2:] += shift
    flight.force[:2] = 0.5 * delta * flight.force[2:]


def no_walls(like: Tensor) -> Walls:
    """Return no walls."""
    return Walls(like.new_zeros(0, 2), like.new_zeros(0), like.new_zeros(0))


def maximise(
    law: Callable[[], EventLaw],
    parameters: list[Tensor],
    tracks: Tracks,
    *,
    draws: tuple[int, ...] = (0, 0, 16),
    iterations: int = ITERATIONS,
) -> float:
    """Maximise the mean log p(a) of tracks over the parameters of a law; return it.

    Sequences are proposed anew in every round; a round that is no improvement is undone.

    Args:
        law: Returns the law, a function of the parameters.
        parameters: Changed in place.
        tracks: To fit to.
        draws: For P_s, in each round; 0 leaves it out, which is fast and biases walls slightly.
        iterations: Of a round.
    """
    positions, known = tracks.positions, tracks.known
    best, kept = -math.inf, [part.detach().clone() for part in parameters]
    for number in range(len(draws) + 1):
        with torch.no_grad():
            now = law()
            rows, value = _likely(now, tracks)
            if not value > best:  # false for NaN too
                break
            best, kept = value, [part.detach().clone() for part in parameters]
        if number == len(draws):
            break
        directions = _directions(now, rows, tracks) if draws[number] else None
        optimizer = torch.optim.LBFGS(
            parameters, max_iter=iterations, line_search_fn="strong_wolfe", history_size=20
        )

        inputs = (rows, positions, known)
        options = {"num_draws": draws[number], "directions": directions}
        optimizer.step(lambda: _loss(law, optimizer, inputs, options))  # noqa: B023
    with torch.no_grad():
        for part, value_kept in zip(parameters, kept, strict=True):
            part.copy_(value_kept)
    return best


@torch.no_grad()
def _likely(law: EventLaw, tracks: Tracks) -> tuple[Hypotheses, float]:
    """Return the hypotheses that matter, and the mean log density of tracks."""
    rows = propose(law, tracks.positions, tracks.known)
    evidence = weigh(law, rows, tracks.positions, tracks.known, num_draws=32)
    density = evidence.log_density(len(tracks.positions))
    keep = evidence.log_weight > density[rows.track] - 7.0
    return Hypotheses(*(part[keep] for part in rows)), float(density.mean())


def _loss(
    law: Callable[[], EventLaw], optimizer: torch.optim.Optimizer, inputs: Any, options: Any
) -> Float[Tensor, ""]:
    """Return minus the mean log density of tracks, after computing its gradient."""
    optimizer.zero_grad()
    value = -weigh(law(), *inputs, **options).log_density(len(inputs[1])).mean()
    value.backward()
    return value.detach()


@torch.no_grad()
def _directions(law: EventLaw, rows: Hypotheses, tracks: Tracks) -> Tensor | None:
    """Return the critical direction of each hypothesis; None without guards."""
    if len(law.walls.offsets) == 0:
        return None
    run = run_sequences(law, rows, tracks.positions, tracks.known)
    mean, covariance = smooth_pass(run)
    gA = run.guards.normal @ law.model.transition[:2]
    variance = torch.einsum("...ed,...dc,...ec->...e", gA, covariance[:, :-1], gA)
    return critical_direction(law, run, rows, mean, variance.clamp(min=1e-18).sqrt())


@torch.no_grad()
def mean_log_density(law: EventLaw, tracks: Tracks) -> Float[Tensor, " M"]:
    """Return log p(a) of each track."""
    rows = propose(law, tracks.positions, tracks.known)
    evidence = weigh(law, rows, tracks.positions, tracks.known)
    return evidence.log_density(len(tracks.positions))


class KickTable(NamedTuple):
    """The kicks of all tracks: where, and the velocities before and after, per frame."""

    position: Float[Tensor, "kicks 2"]
    expected: Float[Tensor, "kicks 2"]  # position by free flight
    before: Float[Tensor, "kicks 2"]
    after: Float[Tensor, "kicks 2"]
    track: Int[Tensor, " kicks"]
    step: Int[Tensor, " kicks"]


@torch.no_grad()
def find_kicks(law: EventLaw, delta: float, tracks: Tracks) -> KickTable:
    """Return the kicks of each track's likeliest sequence."""
    rows = propose(law, tracks.positions, tracks.known)
    rows = best_hypotheses(rows, len(tracks.positions))
    mean, _ = smooth_pass(run_sequences(law, rows, tracks.positions, tracks.known))
    free = mean[:, :-1] @ law.model.transition.mT + law.model.force
    track, step = rows.hits[..., -1].nonzero().unbind(1)
    state, guess = mean[track, step + 1], free[track, step]
    velocity = (delta * guess[:, 2:], delta * state[:, 2:])
    return KickTable(state[:, :2], guess[:, :2], *velocity, track, step)


def cluster_walls(kicks: KickTable, tolerance: float) -> list[tuple[float, float, float, int]]:
    """Return walls (angle, offset, restitution, hits) that explain kicks, the commonest first."""
    change = kicks.after - kicks.before
    normal = change / change.norm(dim=1, keepdim=True).clamp(min=1e-12)
    speed = -(kicks.before * normal).sum(1)
    bounce = (kicks.after * normal).sum(1) / speed.clamp(min=1e-9)
    usable = (speed > 0) & (bounce > -0.2) & (bounce < 1.5)
    normal, bounce = normal[usable], bounce[usable].clamp(0.0, 1.0)
    place = (kicks.position[usable] + bounce[:, None] * kicks.expected[usable]) / (
        1 + bounce[:, None]
    )
    found: list[tuple[float, float, float, int]] = []
    left = torch.ones(len(normal), dtype=torch.bool)
    while len(found) < MAX_WALLS and bool(left.any()):
        offsets = normal @ place.T  # of each kick's own wall, at the place of every other
        own = offsets.diagonal()
        near = (normal @ normal.T > math.cos(ANGLE)) & ((offsets - own[:, None]).abs() < tolerance)
        near &= left[None] & left[:, None]
        hits = near.sum(1)
        centre = int(hits.argmax())
        members = near[centre]
        for _ in range(5):
            mean = normal[members].mean(0)
            mean = mean / mean.norm()
            along = place @ mean
            offset = along[members].median()
            fresh = left & (normal @ mean > math.cos(ANGLE)) & ((along - offset).abs() < tolerance)
            if not bool(fresh.any()):
                break
            members = fresh
        count = int(members.sum())
        if count < max(MIN_HITS, MIN_SHARE * (found[0][3] if found else 0)):
            break
        angle = math.atan2(float(mean[1]), float(mean[0]))
        found.append((angle, float(offset), float(bounce[members].median()), count))
        left &= ~members
    return found


WallGuess = tuple[float, float, float, int]  # angle, offset, restitution, hits


def sharp_walls(found: list[WallGuess], kicks: KickTable, tracks: Tracks) -> list[WallGuess]:
    """Return the walls at which paths turn within a frame, where the noise lets that be seen.

    A hand that catches and throws kicks objects too, but over many frames: a law of bounces there
    would be wrong and slow.

    Law: balls that a hand carries between two flights have no wall (test_hands_are_no_walls).
    """
    motion = find_turns(tracks.positions, tracks.observed)
    if motion is None or motion.calm < MIN_CALM:
        return found  # flights are too short to tell
    turns, change = motion.turns, (kicks.after - kicks.before).norm(dim=1).median()
    # Velocities of two lines of `SHORT` frames, whose squares sum to `spread`.
    spread = 2 * 12 / (SHORT * (SHORT**2 - 1))
    if float(change) ** 2 < CLEAR * SIGNIFICANT * spread * motion.noise**2:
        return found
    time = turns.times()
    place = 0.5 * (turns.before.at(time) + turns.after.at(time))
    kept = []
    for wall in found:
        normal = place.new_tensor([math.cos(wall[0]), math.sin(wall[0])])
        near = (place @ normal - wall[1]).abs() < 3 * motion.noise + 0.5 * float(change)
        towards = turns.change @ normal > math.cos(ANGLE) * turns.change.norm(dim=1)
        towards &= turns.before.velocity @ normal < 0
        if int((near & towards).sum()) >= max(MIN_HITS, MIN_SHARE * wall[3]):
            kept.append(wall)
    return kept


def fit_kicks(flight: LinearDynamics, tracks: Tracks) -> tuple[EventLaw, float]:
    """Fit free flight beside kicks; return the law and the mean log density of tracks."""
    speed = flight.velocities(_rough_states(tracks, flight)).square().mean()
    delta = flight.log_delta.exp().detach()
    noise = flight.components().position_noise.detach().diagonal().mean()
    with torch.no_grad():
        for block, variance in ((0, 1e-4 * noise), (2, 1e-4 * noise / delta**2)):
            for i in (block, block + 1):
                flight.state_factor[i] = 0.0
                flight.state_factor[i, i] = 0.5 * variance.log()
        flight.position_factor.copy_(torch.diag(0.5 * noise.log().expand(2)))
    sizes = torch.stack([speed, speed, 4 * speed / delta**2, 4 * speed / delta**2])
    kicks = Kicks(torch.tensor(KICK_RATE, dtype=torch.float64).log(), torch.diag(sizes).detach())

    def law() -> EventLaw:
        return law_of(flight, no_walls(noise), kicks)

    value = maximise(law, free_parameters(flight), tracks, draws=(0, 0), iterations=12)
    return law(), value


def _rough_states(tracks: Tracks, flight: LinearDynamics) -> Float[Tensor, "M D"]:
    """Return states with velocities of three frames, for a scale of speeds."""
    gap = min(3, tracks.positions.shape[1] - 1)
    moved = (tracks.positions[:, gap:] - tracks.positions[:, :-gap]) / gap
    seen = tracks.observed[:, gap:] & tracks.observed[:, :-gap]
    moved = moved[seen] / flight.log_delta.exp().detach()
    return torch.cat([torch.zeros_like(moved), moved], -1)


def free_parameters(flight: LinearDynamics) -> list[Tensor]:
    """Return the parameters of free flight; a force field only where it has one already."""
    field = flight.force_field
    still = field is not None and not bool(field.any())
    return [part for part in flight.parameters() if not (still and part is field)]


class EventFit(NamedTuple):
    """A law with events that was found in tracks."""

    flight: LinearDynamics
    walls: WallParameters
    gain: float  # nats per unseen track over the law without events
    errors: dict[
        str, Tensor
    ]  # empty before `refit_events`: standard deviations of force, angle, offset and restitution


def fit_events(dynamics: LinearDynamics, tracks: Tracks) -> EventFit | None:
    """Return the law with walls that makes tracks more likely than the given one; None without.

    Args:
        dynamics: The law without events, fitted to the tracks; not changed.
        tracks: Positions in latent units.

    Law: tracks without events, at rest or beside a wall that nobody hits keep their law
        (test_tracks_without_events_keep_their_law).
    """
    tracks = _usable(tracks)
    test = torch.arange(len(tracks.positions)) % round(1 / TEST_SHARE) == 0
    seen, unseen = tracks.select((~test).nonzero()[:FIT_TRACKS, 0]), tracks.select(test)
    if len(seen.positions) < MIN_HITS:
        return None
    with torch.no_grad():
        before = dynamics.track_log_density(unseen.positions, unseen.observed)
    flight = copy.deepcopy(dynamics)
    if flight.force_field is not None:
        torch.nn.init.zeros_(flight.force_field)
    make_velocities_true(flight)
    kicked, _ = fit_kicks(flight, seen.select(slice(KICK_TRACKS)))
    tolerance = OFFSET_SDS * float(kicked.model.position_noise.detach().diagonal().mean().sqrt())
    kicks = find_kicks(kicked, float(flight.log_delta.detach().exp()), seen)
    found = sharp_walls(cluster_walls(kicks, tolerance), kicks, seen)
    if not found:
        return None
    columns = torch.tensor([wall[:3] for wall in found], dtype=torch.float64).T
    walls = WallParameters(*(part.clone().requires_grad_() for part in columns))
    fitted = fit_walls(flight, walls, seen, unseen)
    if fitted is None:
        return None
    walls, after = fitted
    gain = after - before
    if not float(gain.sum()) > MIN_GAIN:  # false for NaN too
        return None
    make_velocities_true(flight)
    return EventFit(flight, walls, float(gain.mean()), {})


def refit_events(fit: EventFit, tracks: Tracks) -> EventFit:
    """Fit a law again to tracks that were inferred with it, and return it with error bars.

    Tracks inferred without walls are too smooth where objects bounce.
    """
    seen = _usable(tracks).select(slice(FIT_TRACKS))
    flight, walls = fit.flight, fit.walls
    parameters = [*free_parameters(flight), *walls]
    maximise(lambda: law_of(flight, walls.walls()), parameters, seen, draws=(0, 16))
    make_velocities_true(flight)
    return fit._replace(errors=standard_errors(flight, walls, seen))


def _usable(tracks: Tracks) -> Tracks:
    """Return the tracks that were observed often enough, in float64."""
    enough = tracks.observed.sum(1) >= MIN_FRAMES
    return Tracks(tracks.positions.double(), tracks.observed).select(enough)


def fit_walls(
    flight: LinearDynamics, walls: WallParameters, seen: Tracks, unseen: Tracks
) -> tuple[WallParameters, Float[Tensor, " M"]] | None:
    """Fit walls and free flight; drop walls that unseen tracks do not need, and fit again.

    Returns the walls that are left and the log density of unseen tracks; None without a wall.
    """
    draws: tuple[int, ...] = (0, 0)
    while True:
        parameters = [*free_parameters(flight), *walls]
        some = seen if draws[-1] else seen.select(slice(KICK_TRACKS))
        maximise(lambda: law_of(flight, walls.walls()), parameters, some, draws=draws)  # noqa: B023
        kept, after = useful_walls(flight, walls, unseen)
        if not bool(kept.any()):
            return None
        if bool(kept.all()) and draws[-1]:
            return walls, after
        if bool(kept.all()):
            draws = (0, 16)
        walls = WallParameters(*(part.detach()[kept].clone().requires_grad_() for part in walls))


@torch.no_grad()
def useful_walls(
    flight: LinearDynamics, walls: WallParameters, unseen: Tracks
) -> tuple[Bool[Tensor, " W"], Float[Tensor, " M"]]:
    """Return the walls without which unseen tracks are less likely, and their log density."""
    after = mean_log_density(law_of(flight, walls.walls()), unseen)
    kept = torch.ones(len(walls.angle), dtype=torch.bool)
    for w in range(len(kept)):
        without = kept.clone()
        without[w] = False
        fewer = WallParameters(*(part[without] for part in walls))
        gain = after - mean_log_density(law_of(flight, fewer.walls()), unseen)
        valid = -0.1 <= float(walls.restitution[w].detach()) <= MAX_RESTITUTION
        valid = valid and float(gain.sum()) > MIN_GAIN
        kept[w] = valid
        if not valid:  # later walls are judged without it
            after = mean_log_density(law_of(flight, fewer.walls()), unseen)
    return kept, after


@torch.no_grad()
def standard_errors(
    flight: LinearDynamics, walls: WallParameters, tracks: Tracks
) -> dict[str, Tensor]:
    """Return standard deviations of force, angles, offsets and restitutions.

    By the outer product of the scores of all tracks, from central differences with the same draws.
    Scales of noise and initial states are taken as known: they hardly depend on the law.
    """
    positions, known = tracks.positions, tracks.known
    law = law_of(flight, walls.walls())
    rows = _likely(law, tracks)[0]
    directions = _directions(law, rows, tracks)

    def densities() -> Float[Tensor, " M"]:
        now = law_of(flight, walls.walls())
        found = weigh(now, rows, positions, known, num_draws=32, directions=directions)
        return found.log_density(len(positions))

    parameters = [flight.force[2:], walls.angle, walls.offset, walls.restitution]
    steps = (1e-3, 1e-3, 3e-3, 3e-3)
    scores = []
    for part, step in zip(parameters, steps, strict=True):
        for i in range(len(part)):
            value = part[i].clone()
            part[i] = value + step
            above = densities()
            part[i] = value - step
            scores.append((above - densities()) / (2 * step))
            part[i] = value
    J = torch.stack(scores, 1)
    covariance = torch.linalg.pinv(J.T @ J)
    sizes = [len(part) for part in parameters]
    names = ("force", "angle", "offset", "restitution")
    return dict(zip(names, covariance.diagonal().clamp(min=0).sqrt().split(sizes), strict=True))


def event_dynamics(fit: EventFit) -> EventDynamics:
    """Return the law that was found as a `Dynamics`."""
    flight, walls = fit.flight, fit.walls.walls()
    made = EventDynamics(
        num_walls=len(walls.offsets),
        num_components=flight.num_components,
        linear=flight.force_field is not None,
        generator=torch.Generator(),
    )
    state = made.state_dict() | flight.state_dict()
    errors = fit.errors
    state |= {
        "wall_normals": walls.normals,
        "wall_offsets": walls.offsets,
        "wall_restitution": walls.restitution,
    }
    if errors:
        bars = [errors[name] for name in ("angle", "offset", "restitution")]
        state |= {"wall_errors": torch.stack(bars, 1), "force_error": errors["force"]}
    made.load_state_dict(state)
    return made


def inferred_batches(trainer: Trainer) -> Iterator[InferredBatch]:
    """Yield training clips with their posteriors under the present model."""
    return trainer.inferred(-(-FIT_CLIPS // trainer.config.batch_size))


def drawn_tracks(batches: Iterable[InferredBatch]) -> Tracks:
    """Return draws of the tracks of clips."""
    parts = [tracks_of(batch.q, batch.q.draw(batch.noise), batch.present) for batch in batches]
    positions, observed = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return Tracks(positions, observed)


def may_have_events(trainer: Trainer, config: RunConfig) -> bool:
    """Return whether events are looked for: in tracks of a search, by a single process."""
    plain = type(trainer.model.dynamics) is LinearDynamics and not config.dynamics.num_walls
    return trainer.searches and distributed.world_size() == 1 and plain


def find_events(
    trainer: Trainer,
    held_out: TrainingData,
    config: RunConfig,
    batches: Iterable[InferredBatch],
) -> RunConfig:
    """Give a trained model the events that its tracks show, if that raises the held-out bound.

    Only families that infer by search, in a single process: networks have no tracks of single
    objects to rely on.

    Args:
        trainer: Of the model.
        held_out: Clips that decide.
        config: Of the model.
        batches: Training clips with their posteriors.

    Returns:
        The configuration, with the number of walls that the model has now.
    """
    model = trainer.model
    if not may_have_events(trainer, config):
        return config
    before = require_linear(model.dynamics)
    fit = fit_events(copy.deepcopy(before).cpu(), drawn_tracks(batches))
    if fit is None:
        return config
    bound = held_out_bound(trainer, held_out)
    model.dynamics = event_dynamics(fit).to(trainer.device)
    fit = refit_events(fit, drawn_tracks(inferred_batches(trainer)))
    model.dynamics = event_dynamics(fit).to(trainer.device)
    if not held_out_bound(trainer, held_out) > bound:
        model.dynamics = before
        return config
    dynamics = dataclasses.replace(config.dynamics, num_walls=len(fit.walls.angle))
    return dataclasses.replace(config, dynamics=dynamics)
