"""Find walls in tracks and fit the law with events to them.

Without labels: (1) a law with unexplained kicks separates free flight from everything else; (2) the
kicks of all tracks are clustered into walls (`motes.training.wall_guesses`), and so are the turns
of straight paths, which is a second start; (3) from each start the sum over tracks of
log sum_s Z_s P_s is maximised over all parameters, walls that tracks which were not fitted do not
need are dropped, and the better law is kept; (4) error bars come from the curvature of that sum, by
the outer product of scores.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Tensor
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
from motes.kalman.linalg import identity
from motes.models.protocols import InferredBatch
from motes.training import distributed
from motes.training.inputs import TrainingData
from motes.training.step import Trainer, held_out_bound, tracks_of
from motes.training.turns import SHORT, find_turns
from motes.training.wall_guesses import (
    MIN_HITS,
    KickTable,
    Tracks,
    cluster_walls,
    find_walls,
    sharp_walls,
)

FIT_CLIPS = 288
FIT_TRACKS = 400
TEST_SHARE = 0.25  # of tracks, which decide whether a wall is kept
KICK_RATE = 0.02  # prior probability of a kick per frame
KICK_TRACKS = 120  # of the fits from each start
LOOSE = 16.0  # times the variance of q that is added to the noise of positions for a fit
MAX_PULL = 0.5  # of means of q to the path, that is undone
CLEAR = 2.0  # standard errors of a difference in evidence that decides
CALM = 0.01  # process noise at the start, in units of the noise of positions
ITERATIONS = 20
MIN_FRAMES = 4
MAX_RESTITUTION = 1.1
MIN_GAIN = 5.0  # nats by which all unseen tracks together must become more likely
OFFSET_SDS = 3.0  # tolerance of the offset in standard deviations of a position


LawType = TypeVar("LawType", bound=LinearDynamics)


class WallParameters(NamedTuple):
    """Free parameters of walls, and whether they are hit within steps."""

    angle: Float[Tensor, " W"]  # of the normal
    offset: Float[Tensor, " W"]
    restitution: Float[Tensor, " W"]
    in_time: bool = False

    @property
    def free(self) -> list[Tensor]:
        """The parameters."""
        return [self.angle, self.offset, self.restitution]

    def select(self, kept: Bool[Tensor, " W"]) -> "WallParameters":
        """Return some of the walls as new parameters."""
        angle, offset, bounce = (part.detach()[kept].clone().requires_grad_() for part in self.free)
        return WallParameters(angle, offset, bounce, self.in_time)

    def walls(self) -> Walls:
        """Return the walls."""
        normals = torch.stack([self.angle.cos(), self.angle.sin()], -1)
        return Walls(normals, self.offset, self.restitution)

    def law(self, flight: LinearDynamics) -> EventLaw:
        """Return the law of free flight with these walls."""
        return law_of(flight, self.walls())._replace(in_time=self.in_time)


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


@torch.no_grad()
def make_calm(flight: LinearDynamics, tracks: Tracks, variance: float) -> None:
    """Give free flight hardly any process noise, and initial states that suit that.

    States that a linear law gave to bouncing objects can be far too narrow.

    Args:
        flight: Changed in place.
        tracks: Whose first frames tell the initial states.
        variance: Of observed positions.
    """
    log_sd, delta = 0.5 * math.log(variance), flight.log_delta
    sds = torch.cat([delta.new_zeros(2), -delta.expand(2)]) + log_sd + math.log(CALM)
    flight.state_factor.copy_(sds.diag())
    flight.position_factor.copy_(delta.new_full((2,), log_sd).diag())
    places = tracks.positions[tracks.observed].std(0)
    speeds = _rough_states(tracks, flight)[:, 2:].square().mean(0).sqrt()
    wide = torch.cat([places, speeds]).clamp(min=math.exp(log_sd))  # from where EM starts
    flight.initial_factor.copy_(wide.log().diag().expand_as(flight.initial_factor))
    flight.fit_initial_state(tracks.positions[:, :SHORT], tracks.observed[:, :SHORT])


def fit_kicks(flight: LinearDynamics, tracks: Tracks) -> tuple[EventLaw, float]:
    """Fit free flight beside kicks; return the law and the mean log density of tracks."""
    speed = flight.velocities(_rough_states(tracks, flight)).square().mean()
    delta = flight.log_delta.exp().detach()
    noise = flight.components().position_noise.detach().diagonal().mean()
    make_calm(flight, tracks, float(noise))
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
    errors: dict[str, Tensor]  # standard deviations, by name; empty before `refit_events`
    spread: float | None = None  # variance of q, if fitted to the means of q; None: to draws
    doubt: dict[str, Tensor] = {}  # noqa: RUF012  # of hits within steps or at their ends


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
    best: tuple[LinearDynamics, WallParameters, Tensor] | None = None
    for flight, guess in starts(dynamics, seen):
        found = prune_walls(flight, guess, seen.select(slice(KICK_TRACKS)), unseen)
        if found is not None and (best is None or float((found[1] - best[2]).sum()) > 0):
            best = (flight, *found)
    if best is None:
        return None
    flight, guess, doubt = within_steps(*best, seen.select(slice(KICK_TRACKS)), unseen)
    final = prune_walls(flight, guess, seen, unseen, draws=(0,))
    if final is None:
        return None
    walls, after = final
    if len(walls.angle) != len(guess.angle):
        doubt = {}
    gain = after - before
    if not float(gain.sum()) > MIN_GAIN:  # false for NaN too
        return None
    make_velocities_true(flight)
    return EventFit(flight, walls, float(gain.mean()), {}, doubt=doubt)


def within_steps(
    flight: LinearDynamics, walls: WallParameters, after: Tensor, seen: Tracks, unseen: Tracks
) -> tuple[LinearDynamics, WallParameters, dict[str, Tensor]]:
    """Return free flight and walls, hit within steps if unseen tracks say so, and the doubt.

    Restitution is a different number where walls are hit within steps and at their ends, because
    the force acts for a part of the step in between. Walls are hit at the ends of steps unless the
    evidence of unseen tracks for the other law is as clear as for a wall and exceeds its standard
    error `CLEAR` times. Where neither law is that much likelier, half of the difference between
    their parameters is a standard deviation that both share; it is empty where one is.
    """
    everyone = torch.ones(len(walls.angle), dtype=torch.bool)
    other, exact = copy.deepcopy(flight), walls.select(everyone)._replace(in_time=True)
    found = prune_walls(other, exact, seen, unseen)
    if found is None or len(found[0].angle) != len(walls.angle):
        return flight, walls, {}
    gain = found[1] - after
    total, error = float(gain.sum()), float(gain.std()) * math.sqrt(len(gain))
    clear = abs(total) > max(CLEAR * error, MIN_GAIN)  # false for NaN too
    apart = zip(parts_of(other, found[0]), parts_of(flight, walls), strict=True)
    doubt = {name: 0.5 * (one - two).abs() for (name, one), (_, two) in apart}
    if clear:
        return (other, found[0], {}) if total > 0 else (flight, walls, {})
    return flight, walls, doubt


def parts_of(flight: LinearDynamics, walls: WallParameters) -> list[tuple[str, Tensor]]:
    """Return the names and values of what error bars are given for."""
    values = [flight.force[2:], *walls.free]
    names = ("force", "angle", "offset", "restitution")
    return [(name, part.detach().clone()) for name, part in zip(names, values, strict=True)]


def starts(
    dynamics: LinearDynamics, seen: Tracks
) -> Iterator[tuple[LinearDynamics, WallParameters]]:
    """Yield free flight and walls to start from: by kicks, then by turns."""
    flight = copy.deepcopy(dynamics)
    if flight.force_field is not None:
        torch.nn.init.zeros_(flight.force_field)
    make_velocities_true(flight)
    plain = copy.deepcopy(flight)
    kicked, _ = fit_kicks(flight, seen.select(slice(KICK_TRACKS)))
    tolerance = OFFSET_SDS * float(kicked.model.position_noise.detach().diagonal().mean().sqrt())
    kicks = find_kicks(kicked, float(flight.log_delta.detach().exp()), seen)
    found = sharp_walls(cluster_walls(kicks, tolerance), kicks, seen)
    if found:
        yield flight, _parameters([wall[:3] for wall in found])
    motion = find_turns(seen.positions, seen.observed)
    if motion is None:
        return
    everyone = torch.ones(len(motion.turns.step), dtype=torch.bool)
    turned = find_walls(motion, everyone)
    if turned:
        with torch.no_grad():
            change = motion.acceleration / plain.log_delta.exp()
            plain.force.copy_(torch.cat([0.5 * motion.acceleration, change]))
        make_calm(plain, seen, motion.noise**2)
        yield plain, _parameters([tuple(part.value for part in wall[:3]) for wall in turned])


def _parameters(walls: Sequence[Sequence[float]]) -> WallParameters:
    """Return angles, offsets and restitutions as parameters."""
    columns = torch.tensor(walls, dtype=torch.float64).T
    return WallParameters(*(part.clone().requires_grad_() for part in columns))


def refit_events(
    fit: EventFit, tracks: Tracks, spread: float = 0.0, prior: float = math.inf
) -> EventFit:
    """Fit a law again to means of q that were inferred with it; return it with error bars.

    Tracks inferred without walls are too smooth where objects bounce.

    Args:
        fit: The law.
        tracks: Means of q.
        spread: Variance of q.
        prior: Variance of positions around the path with which q was inferred. It pulls means to
            the path by the share spread / prior of their distance, which is undone.
    """
    seen = _usable(tracks).select(slice(FIT_TRACKS))
    flight, walls = fit.flight, fit.walls
    parameters = [*free_parameters(flight), *walls.free]
    maximise(lambda: walls.law(flight), parameters, seen, draws=(0, 16))
    make_velocities_true(flight)
    with torch.no_grad():
        kept, factor = 1 - min(spread / prior, MAX_PULL), flight.position_factor
        factor.copy_(factor.tril(-1) / kept + (factor.diagonal() - math.log(kept)).diag())
    errors = standard_errors(flight, walls, seen)
    errors = {name: torch.hypot(bar, fit.doubt.get(name, 0 * bar)) for name, bar in errors.items()}
    return fit._replace(errors=errors, spread=spread)


def _usable(tracks: Tracks) -> Tracks:
    """Return the tracks that were observed often enough, in float64."""
    enough = tracks.observed.sum(1) >= MIN_FRAMES
    return Tracks(tracks.positions.double(), tracks.observed).select(enough)


def prune_walls(
    flight: LinearDynamics,
    walls: WallParameters,
    seen: Tracks,
    unseen: Tracks,
    draws: tuple[int, ...] = (0, 0),
) -> tuple[WallParameters, Float[Tensor, " M"]] | None:
    """Fit walls and free flight; drop walls that unseen tracks do not need, and fit again.

    Returns the walls that are left and the log density of unseen tracks; None without a wall.
    """
    while True:
        parameters = [*free_parameters(flight), *walls.free]
        maximise(lambda: walls.law(flight), parameters, seen, draws=draws)  # noqa: B023
        kept, after = useful_walls(flight, walls, unseen)
        if not bool(kept.any()):
            return None
        if bool(kept.all()):
            return walls, after
        walls = walls.select(kept)


@torch.no_grad()
def useful_walls(
    flight: LinearDynamics, walls: WallParameters, unseen: Tracks
) -> tuple[Bool[Tensor, " W"], Float[Tensor, " M"]]:
    """Return the walls without which unseen tracks are less likely, and their log density."""
    after = mean_log_density(walls.law(flight), unseen)
    kept = torch.ones(len(walls.angle), dtype=torch.bool)
    for w in range(len(kept)):
        without = kept.clone()
        without[w] = False
        fewer = walls.select(without)
        gain = after - mean_log_density(fewer.law(flight), unseen)
        valid = -0.1 <= float(walls.restitution[w].detach()) <= MAX_RESTITUTION
        valid = valid and float(gain.sum()) > MIN_GAIN
        kept[w] = valid
        if not valid:  # later walls are judged without it
            after = mean_log_density(fewer.law(flight), unseen)
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
    law = walls.law(flight)
    rows = _likely(law, tracks)[0]
    directions = _directions(law, rows, tracks)

    def densities() -> Float[Tensor, " M"]:
        now = walls.law(flight)
        found = weigh(now, rows, positions, known, num_draws=32, directions=directions)
        return found.log_density(len(positions))

    parameters = [flight.force[2:], *walls.free]
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
        "in_time": torch.tensor(float(fit.walls.in_time), dtype=torch.float64),
    }
    if errors:
        bars = [errors[name] for name in ("angle", "offset", "restitution")]
        state |= {"wall_errors": torch.stack(bars, 1), "force_error": errors["force"]}
    made.load_state_dict(state)
    if fit.spread is not None:
        made.mean_variance.copy_(made.components().position_noise.detach().diagonal().mean())
        widen_noise(made, fit.spread)
    return made


@torch.no_grad()
def widen_noise(flight: LinearDynamics, variance: float) -> None:
    """Add a variance to the noise of positions."""
    noise = flight.components().position_noise
    root = torch.linalg.cholesky(noise + variance * identity(len(noise), noise))
    flight.position_factor.copy_(root.tril(-1) + root.diagonal().log().diag())


def inferred_batches(trainer: Trainer) -> Iterator[InferredBatch]:
    """Yield training clips with their posteriors under the present model."""
    return trainer.inferred(-(-FIT_CLIPS // trainer.config.batch_size))


def drawn_tracks(batches: Iterable[InferredBatch]) -> Tracks:
    """Return draws of the tracks of clips."""
    parts = [tracks_of(batch.q, batch.q.draw(batch.noise), batch.present) for batch in batches]
    positions, observed = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return Tracks(positions, observed)


@torch.no_grad()
def mean_tracks(batches: Iterable[InferredBatch]) -> tuple[Tracks, float]:
    """Return the means of q of all tracks, and the average variance of q."""
    parts, variances = [], []
    for batch in batches:
        spread = batch.q.covariances().diagonal(dim1=-2, dim2=-1)
        tracks = tracks_of(batch.q, batch.q.means, batch.present)
        parts.append(tracks)
        variances.append(spread[batch.present][tracks[1]].mean(-1).cpu())
    positions, observed = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return Tracks(positions, observed), float(torch.cat(variances).double().mean())


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
    if not may_have_events(trainer, config):
        return config
    batches = list(batches)
    before = copy.deepcopy(require_linear(trainer.model.dynamics)).cpu()
    fit = fit_events(before, drawn_tracks(batches))
    if fit is None:
        return config
    spread = mean_tracks(batches)[1]

    def refitted() -> EventDynamics:
        # Positions by the frames alone: a prior that is as sharp as q pulls them to its own path.
        loose = event_dynamics(fit)
        widen_noise(loose, LOOSE * spread)
        prior = float(loose.components().position_noise.detach().diagonal().mean())
        trainer.model.dynamics = loose.to(trainer.device)
        return event_dynamics(refit_events(fit, *mean_tracks(inferred_batches(trainer)), prior))

    kept = keep_if_better(trainer, held_out, refitted)
    if kept is None:
        return config
    number = len(kept.wall_offsets)
    return dataclasses.replace(
        config, dynamics=dataclasses.replace(config.dynamics, num_walls=number)
    )


def keep_if_better(
    trainer: Trainer, held_out: TrainingData, make: Callable[[], LawType]
) -> LawType | None:
    """Give a model the law that `make` returns; undo that unless it raises the held-out bound.

    Returns the law; None: undone.
    """
    before, bound = trainer.model.dynamics, held_out_bound(trainer, held_out)
    made = make().to(trainer.device)
    trainer.model.dynamics = made
    if held_out_bound(trainer, held_out) > bound:  # false for NaN too
        return made
    trainer.model.dynamics = before
    return None
