"""Find contacts between objects, and the walls around them, in the tracks of whole scenes.

Turns (`motes.training.turns`) that come in pairs at one time, in opposite directions along the line
between two objects, are contacts: where the two relative paths before and after meet, the objects
are at the contact's distance. The other turns are clustered into walls. Distances, offsets and
restitutions are medians over all turns of a kind, error bars their scatter. What the law leaves
out (the steps of a simulator, spin, softness) is noise of the objects that take part, from the
scatter of states after a turn around those that the law says. An event is kept if windows of clips
that were not used become less likely without it.
"""

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.contact_dynamics import ContactDynamics
from motes.kalman.dynamics import LinearDynamics, require_linear
from motes.kalman.scene_paths import sample_scenes, scene_log_density
from motes.kalman.scenes import SceneLaw, forced_step
from motes.models.protocols import InferredBatch
from motes.training.event_fit import (
    MAX_RESTITUTION,
    inferred_batches,
    keep_if_better,
    may_have_events,
)
from motes.training.inputs import TrainingData
from motes.training.step import Trainer
from motes.training.turns import ROBUST, Motion, Turns, find_turns
from motes.training.wall_guesses import Estimate, WallFit, enclosing_walls, find_walls, robust

MIN_CONTACTS = 8
OPPOSITE = -0.8  # largest cosine between the turns of a contact
ALONG = 0.8  # smallest cosine between a turn and the line between the objects
OUTLIER = 4.0  # robust standard deviations
MIN_SEEN = 4  # frames of every object in a window
WINDOW = 12  # frames, of the test on clips that were not used
TEST_WINDOWS = 48
SEEN, AHEAD = 8, 10  # frames of the forecasts that calibrate noise
FORECASTS = 240
# Of noise: errors that the seen and the forecast frames of a clip share do not show in forecasts of
# positions that were themselves inferred. Measured on billiards.
MARGIN = 1.15
REGION = 4.605170185988092  # of chi squared with two degrees of freedom, 90 %
TEST_SHARE = 4  # every fourth clip is not used
MIN_GAIN = 5.0  # nats by which all windows together must become more likely
LOOSE = 0.2  # observation noise of the search, in distances of a contact
NOISE_FLOOR = 0.02  # of process noise, in units of the noise of positions


class Scenes(NamedTuple):
    """Positions of clips with one number of objects, in latent units."""

    positions: Float[Tensor, "B N T 2"]
    observed: Bool[Tensor, "B N T"]
    variance: float  # of q, averaged

    def select(self, index: Tensor | slice) -> "Scenes":
        """Return some of the clips."""
        return Scenes(self.positions[index], self.observed[index], self.variance)

    def windows(self, length: int, min_seen: int | None = None) -> "Scenes":
        """Return all windows of a length; frames that are left over are dropped.

        Args:
            length: In frames.
            min_seen: Frames in which every object must be seen; None: all.
        """
        length = min(length, self.positions.shape[2])
        number = self.positions.shape[2] // length

        def cut(part: Tensor) -> Tensor:
            pieces = part[:, :, : number * length].unflatten(2, (number, length))
            made: Tensor = pieces.movedim(2, 1).flatten(0, 1)
            return made

        positions, observed = cut(self.positions), cut(self.observed)
        enough = (observed.sum(-1) >= (length if min_seen is None else min_seen)).all(-1)
        return Scenes(positions[enough], observed[enough], self.variance)


class ContactPairs(NamedTuple):
    """Contacts among turns."""

    first: Int[Tensor, " pairs"]  # index into the turns
    second: Int[Tensor, " pairs"]
    distance: Estimate
    restitution: Estimate
    mass_ratio: Estimate  # of the heavier-looking kind: 1 where all are equal


def pair_turns(turns: Turns, clip: Int[Tensor, " turns"]) -> ContactPairs | None:
    """Return the turns that come in opposite pairs; None without enough of them.

    Law: distance, restitution and masses of simulated contacts are found within their error bars
        (test_contacts_of_simulated_scenes_are_found, test_masses_are_the_ratios_of_turns).
    """
    i, j = torch.triu_indices(len(clip), len(clip), 1)
    near = (clip[i] == clip[j]) & (turns.track[i] != turns.track[j])
    near &= (turns.step[i] - turns.step[j]).abs() <= 1
    i, j = i[near], j[near]
    if len(i) < MIN_CONTACTS:
        return None
    one, two, lag = turns.select(i), turns.select(j), (turns.step[j] - turns.step[i]).double()
    # Both on the clock of the first.
    paths = []
    for a, b in ((one.before, two.before), (one.after, two.after)):
        paths.append((a.place - b.at(-lag), a.velocity - b.velocity))
    (p, u), (q, w) = paths
    jump = w - u
    time = ((p - q) * jump).sum(-1) / jump.square().sum(-1).clamp(min=1e-30)
    meet = 0.5 * (p + time[:, None] * u + q + time[:, None] * w)
    distance = meet.norm(dim=-1)
    line = meet / distance.clamp(min=1e-12)[:, None]
    closing, leaving = (u * line).sum(-1), (w * line).sum(-1)
    push, pull = (one.change * line).sum(-1), -(two.change * line).sum(-1)
    straight = push / one.change.norm(dim=-1).clamp(min=1e-12)
    cosine = (one.change * two.change).sum(-1) / (
        one.change.norm(dim=-1) * two.change.norm(dim=-1)
    ).clamp(min=1e-24)
    good = (cosine < OPPOSITE) & (straight > ALONG) & (closing < 0) & (pull > 0)
    good &= (time > -1.0) & (time < 1.0 + lag.clamp(min=0))
    if int(good.sum()) < MIN_CONTACTS:
        return None
    middle = distance[good].median()
    sd = ROBUST * (distance[good] - middle).abs().median()
    good &= (distance - middle).abs() < OUTLIER * sd
    if int(good.sum()) < MIN_CONTACTS:
        return None
    bounce = robust((-leaving / closing)[good])
    ratio = robust((pull / push)[good].log())
    masses = Estimate(math.exp(ratio.value), ratio.error * math.exp(ratio.value))
    return ContactPairs(i[good], j[good], robust(distance[good]), bounce, masses)


@dataclasses.dataclass(frozen=True)
class ContactFit:
    """A law with contacts that was found in scenes, in latent units and frames."""

    motion: Motion
    walls: tuple[WallFit, ...]
    distance: Estimate
    restitution: Estimate
    variance: float  # of q
    event_noise: tuple[float, float] = (0.0, 0.0)  # standard deviations of position, velocity
    gain: float = 0.0  # nats per unused window over the law without contacts

    def widened(self, factor: float) -> "ContactFit":
        """Return the law with all noise multiplied."""
        motion = self.motion
        wider = motion._replace(noise=factor * motion.noise, jitter=factor * motion.jitter)
        x, v = self.event_noise
        return dataclasses.replace(self, motion=wider, event_noise=(factor * x, factor * v))

    def dynamics(self, trained: LinearDynamics) -> ContactDynamics:
        """Return the law as a `Dynamics` whose search is by the trained law."""
        made = ContactDynamics(
            num_walls=len(self.walls),
            num_components=trained.num_components,
            linear=trained.force_field is not None,
            generator=torch.Generator(),
        )
        searched = loosened(trained, self.motion, self.distance.value)
        made.load_state_dict(made.state_dict() | searched.state_dict())
        delta, motion = trained.log_delta.detach().exp().cpu(), self.motion
        units = torch.cat([delta.new_ones(2), (1 / delta).expand(2)])
        floor = NOISE_FLOOR * motion.noise
        sds = delta.new_tensor([floor, floor, *[max(motion.jitter, 0.1 * floor)] * 2])
        noise = motion.noise**2 + self.variance
        angles = delta.new_tensor([wall.angle.value for wall in self.walls])
        bars = [
            (wall.angle.error, wall.offset.error, wall.restitution.error) for wall in self.walls
        ]
        made.set_law(
            {
                "wall_normals": torch.stack([angles.cos(), angles.sin()], -1),
                "wall_offsets": delta.new_tensor([wall.offset.value for wall in self.walls]),
                "wall_restitution": delta.new_tensor(
                    [wall.restitution.value for wall in self.walls]
                ),
                "wall_errors": delta.new_tensor(bars).view(-1, 3),
                "force_error": motion.acceleration_error / delta,
                "contact_distance": delta.new_tensor(self.distance.value),
                "contact_restitution": delta.new_tensor(self.restitution.value),
                "contact_errors": delta.new_tensor([self.distance.error, self.restitution.error]),
                "event_variance": delta.new_tensor(self.event_noise).square()
                / torch.stack([delta.new_ones(()), delta**2]),
                "mean_variance": delta.new_tensor(motion.noise**2),
            },
            delta=delta,
            acceleration=motion.acceleration / delta,
            state_sds=sds * units,
            position_variance=noise,
            first_state=(
                motion.state_mean * units,
                units * motion.state_covariance * units[:, None],
            ),
        )
        return made


@torch.no_grad()
def loosened(trained: LinearDynamics, motion: Motion, distance: float) -> LinearDynamics:
    """Return the law for the search: free flight with the noise that events need, and more.

    A linear law that was fitted to bounces has drag and springs, which pull inferred positions
    by a tenth of a pixel; the frames alone locate objects better.
    """
    law = copy.deepcopy(trained).cpu()
    delta = law.log_delta.exp()
    law.force.copy_(torch.cat([0.5 * motion.acceleration, motion.acceleration / delta]))
    if law.force_field is not None:
        torch.nn.init.zeros_(law.force_field)
    noise = float(law.components().position_noise.diagonal().mean().sqrt())
    loose = max(LOOSE * distance / noise, 1.0)
    law.position_factor.diagonal().add_(math.log(loose))
    return law


def measure_event_noise(
    fit: ContactFit, turns: Turns, pairs: ContactPairs, trained: LinearDynamics
) -> tuple[float, float]:
    """Return the scatter of states after a turn around those of the law, beyond that of lines."""
    made, g = fit.dynamics(trained), fit.motion.acceleration
    delta = float(trained.log_delta.detach().exp())
    misses: list[tuple[Tensor, Tensor, Turns]] = []

    def compare(law: SceneLaw, chosen: list[Turns], event: Int[Tensor, " n"]) -> None:
        places, speeds, after = [], [], []
        for some in chosen:
            places.append(
                some.before.at(some.before.place.new_full((len(some.step),), -0.5)) + g / 8
            )
            speeds.append((some.before.velocity - 0.5 * g) / delta)
            end = some.after.at(some.after.place.new_full((len(some.step),), 0.5)) + g / 8
            after.append((end, some.after.velocity + 0.5 * g))
        said = forced_step(law, torch.cat([*places, *speeds], -1), event[:, None])
        P = said.shape[-1] // 2
        for n, (end, velocity) in enumerate(after):
            x, v = said[:, 2 * n : 2 * n + 2], delta * said[:, P + 2 * n : P + 2 * n + 2]
            misses.append((end - x, velocity - v, chosen[n]))

    for number, wall in enumerate(fit.walls):
        some = turns.select(wall.turns)
        compare(made.scene(1), [some], torch.full_like(some.step, number))
    same = turns.step[pairs.first] == turns.step[pairs.second]
    if bool(same.any()):
        one, two = turns.select(pairs.first[same]), turns.select(pairs.second[same])
        compare(made.scene(2), [one, two], torch.full_like(one.step, 2 * len(fit.walls)))
    found = []
    for number, at in ((0, (1.0, 0.5)), (1, (0.0, 1.0))):
        row = turns.before.place.new_tensor(at)
        excess = []
        for place, velocity, turn in misses:
            both = turn.after.spread + turn.before.spread
            own = fit.motion.noise**2 * torch.einsum("i,nij,j->n", row, both, row)
            off = place if number == 0 else velocity
            excess.append((off.square().mean(-1), own))
        squares, own = (torch.cat(part) for part in zip(*excess, strict=True))
        kept = squares <= squares.quantile(0.975)
        extra = float((squares - own)[kept].mean())
        floor = NOISE_FLOOR * fit.motion.noise * (1.0 if number == 0 else 0.1)
        found.append(max(math.sqrt(max(extra, 0.0)), floor))
    return found[0], found[1]


@torch.no_grad()
def gains_of_events(
    fit: ContactFit, trained: LinearDynamics, unused: Scenes
) -> tuple[float, list[float]]:
    """Return by how many nats unused windows are more likely with contacts, and with each wall."""
    a, known = joint(unused)

    def value(law: SceneLaw) -> float:
        found = scene_log_density(law, a, known)
        # Single windows, whose tracks may be wrong, count for a limited number of nats.
        return float(found.clamp(min=float(found.median()) - 80.0).sum())

    law = fit.dynamics(trained).scene(unused.positions.shape[1])
    law = law._replace(
        model=law.model._replace(
            position_noise=fit.motion.noise**2 * torch.eye(a.shape[-1], dtype=torch.float64)
        )
    )
    full = value(law)
    apart = law.contacts._replace(distance=torch.full_like(law.contacts.distance, 1e-6))
    gain = full - value(law._replace(contacts=apart))
    walls = []
    for number in range(len(fit.walls)):
        kept = torch.arange(len(fit.walls)) != number
        fewer = type(law.walls)(*(part[kept] for part in law.walls))
        walls.append(full - value(law._replace(walls=fewer)))
    return gain, walls


@torch.no_grad()
def calibrate(fit: ContactFit, trained: LinearDynamics, scenes: Scenes) -> ContactFit:
    """Return the law with its noise scaled so that regions of forecasts hold what they say.

    The errors of inferred positions depend on where in a pixel an object is, so they last for some
    frames: a law that takes them for independent is too sure of velocities. Forecasts of the clips
    themselves tell by how much.
    """
    length = min(SEEN + AHEAD, scenes.positions.shape[2])
    windows = scenes.windows(length, MIN_SEEN)
    windows = windows.select(
        torch.linspace(0, len(windows.positions) - 1, FORECASTS).long().unique()
    )
    a, known = joint(windows)
    seen = min(SEEN, length // 2)
    shown = known & (torch.arange(length) < seen)[None, :, None]
    for _ in range(2):
        made = fit.dynamics(trained)
        law = made.scene(scenes.positions.shape[1], made.mean_variance)
        states = sample_scenes(law, a, shown, num_draws=64).states
        x = states[:, :, seen:, : a.shape[-1]].unflatten(-1, (-1, 2))
        away = x - x.mean(0)
        spread = torch.einsum("sbtni,sbtnj->btnij", away, away) / len(away)
        spread = spread + fit.motion.noise**2 * torch.eye(2, dtype=torch.float64)
        off = a[:, seen:].unflatten(-1, (-1, 2)) - x.mean(0)
        squares = torch.einsum("btni,btnij,btnj->btn", off, spread.inverse(), off)
        located = shown[..., ::2].sum(1, keepdim=True) >= MIN_SEEN
        shows = known[:, seen:, ::2] & located
        if not bool(shows.any()):
            break
        factor = math.sqrt(float(squares[shows].quantile(0.9)) / REGION)
        if not math.isfinite(factor):
            break
        fit = fit.widened(min(max(factor, 0.5), 3.0))
    return fit.widened(MARGIN)


def joint(scenes: Scenes) -> tuple[Float[Tensor, "B T P"], Bool[Tensor, "B T P"]]:
    """Return joint positions, objects side by side, and which coordinates are known."""
    known = scenes.observed.movedim(1, 2).repeat_interleave(2, -1)
    return torch.where(known, scenes.positions.movedim(1, 2).flatten(2).double(), 0.0), known


def fit_contacts(trained: LinearDynamics, scenes: Scenes) -> ContactFit | None:
    """Return the law with contacts that makes scenes more likely than without; None without.

    Args:
        trained: The law without events.
        scenes: Clips with the same number of objects, at least two.

    Law: objects that pass through one another, that rest, that stick together or that gain speed
        have no contacts (test_scenes_without_contacts_have_none).
    """
    B, N = scenes.positions.shape[:2]
    if N < 2 or B < TEST_SHARE:
        return None
    test = torch.arange(B) % TEST_SHARE == 0
    used, unused = scenes.select(~test), scenes.select(test).windows(WINDOW, MIN_SEEN)
    if len(unused.positions) < TEST_WINDOWS:  # too few to meet every wall; medians hardly overfit
        unused = scenes.windows(WINDOW, MIN_SEEN)
    motion = find_turns(used.positions.flatten(0, 1).double(), used.observed.flatten(0, 1))
    if motion is None or len(motion.turns.step) < 2 * MIN_CONTACTS:
        return None
    turns = motion.turns
    pairs = pair_turns(turns, turns.track // N)
    if pairs is None or len(unused.positions) < MIN_CONTACTS:
        return None
    if not -0.1 <= pairs.restitution.value <= MAX_RESTITUTION:
        return None
    lone = torch.ones(len(turns.step), dtype=torch.bool)
    lone[pairs.first] = lone[pairs.second] = False
    walls = [
        wall
        for wall in find_walls(motion, lone)
        if -0.1 <= wall.restitution.value <= MAX_RESTITUTION
    ]
    walls += enclosing_walls(walls, used.positions[used.observed].double())
    fit = ContactFit(motion, tuple(walls), pairs.distance, pairs.restitution, scenes.variance)
    fit = dataclasses.replace(fit, event_noise=measure_event_noise(fit, turns, pairs, trained))
    chosen = torch.linspace(0, len(unused.positions) - 1, TEST_WINDOWS).long().unique()
    gain, by_wall = gains_of_events(fit, trained, unused.select(chosen))
    if not gain > MIN_GAIN:  # false for NaN too
        return None
    kept = tuple(wall for wall, own in zip(fit.walls, by_wall, strict=True) if own > MIN_GAIN)
    return dataclasses.replace(fit, walls=kept, gain=gain / len(chosen))


@torch.no_grad()
def scenes_of(batches: Iterable[InferredBatch]) -> Scenes | None:
    """Return the positions of clips with the commonest count of several objects."""
    parts: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for batch in batches:
        variances = batch.q.covariances().diagonal(dim1=-2, dim2=-1)
        seen = torch.ones(batch.q.means.shape[:3], dtype=torch.bool, device=variances.device)
        seen = seen if batch.q.detected is None else seen & batch.q.detected
        for count in batch.present.sum(1).unique().tolist():
            clips = (batch.present.sum(1) == count).nonzero()[:, 0]
            some = (batch.q.means, variances, seen)
            kept = tuple(part[clips][:, :count].cpu() for part in some)
            parts.setdefault(count, []).append(kept)  # type: ignore[arg-type]
    several = {count: found for count, found in parts.items() if count > 1}
    if not several:
        return None
    found = max(several.values(), key=lambda batches: sum(len(part[0]) for part in batches))
    means, variances, seen = (torch.cat(part) for part in zip(*found, strict=True))
    return Scenes(means.double(), seen, float(variances[seen].mean()))


def find_contacts(
    trainer: Trainer,
    held_out: TrainingData,
    config: RunConfig,
    batches: Iterable[InferredBatch],
) -> RunConfig | None:
    """Give a trained model the contacts that its tracks show, if that raises the held-out bound.

    Args:
        trainer: Of the model.
        held_out: Clips that decide.
        config: Of the model.
        batches: Training clips with their posteriors.

    Returns:
        The configuration of the model with contacts; None: it has none.
    """
    if not may_have_events(trainer, config):
        return None
    model, scenes = trainer.model, scenes_of(batches)
    trained = require_linear(model.dynamics)
    own = copy.deepcopy(trained).cpu()
    fit = None if scenes is None else fit_contacts(own, scenes)
    if fit is None:
        return None

    def refitted() -> ContactDynamics:
        # Once more with positions that the linear law does not pull.
        model.dynamics = fit.dynamics(trained).to(trainer.device)
        scenes = scenes_of(inferred_batches(trainer))
        assert scenes is not None
        better = calibrate(fit_contacts(own, scenes) or fit, own, scenes)
        return better.dynamics(trained)

    kept = keep_if_better(trainer, held_out, refitted)
    if kept is None:
        return None
    number = len(kept.wall_offsets)
    dynamics = dataclasses.replace(config.dynamics, num_walls=number, contact_kinds=1)
    return dataclasses.replace(config, dynamics=dynamics)
