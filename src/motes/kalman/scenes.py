"""Laws with contacts: one state for all objects of a scene, and the events of a frame in order.

The state is that of `motes.kalman.events`. In a frame, objects go from where they are to where free
flight takes them along straight lines. Events happen in the order of time along these lines: each
mirrors the rest of the way and the velocity (its restitution and, for contacts, masses included),
which may cause or prevent later events. The direction of a contact is that of the moment at which
two objects are at its distance, so that the map from state to state is not linear. Its label is the
set of events of the frame; `linearise` expands the map of a label around a state.

Objects that took part in an event have additional process noise, which stands for what the law
leaves out: spin, softness, the steps of a simulator.
"""

import math
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.events import Contacts, Walls
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import LGSSM

MAX_EVENTS = 6  # of a frame
NUDGE = 1e-6  # of a state, for derivatives by central differences
FARTHEST = 3.0  # frames to a contact that a label asks for and the path does not have
MIN_RESTITUTION = 0.1  # of events that run backwards
GRAZING = 1e-6  # smallest square of the sine of a contact's angle, which keeps derivatives finite


class SceneLaw(NamedTuple):
    """Free flight of N objects with walls and contacts."""

    model: LGSSM  # of the joint state, positions first
    walls: Walls
    contacts: Contacts
    event_variance: Float[Tensor, " 2"]  # of position and velocity, of objects that take part
    # Log of the probability that a position is that of something else, times its density then.
    log_outlier: float = -math.inf

    @property
    def num_objects(self) -> int:
        """N."""
        return self.model.transition.shape[-1] // 4

    @property
    def num_events(self) -> int:
        """The number of events that a frame may have: each object and wall, then each pair."""
        N = self.num_objects
        return N * len(self.walls.offsets) + N * (N - 1) // 2

    def involved(self) -> Bool[Tensor, "E N"]:
        """Return which objects take part in each event."""
        N, device = self.num_objects, self.walls.offsets.device
        eye = torch.eye(N, dtype=torch.bool, device=device)
        i, j = torch.triu_indices(N, N, 1, device=device)
        return torch.cat([eye.repeat_interleave(len(self.walls.offsets), 0), eye[i] | eye[j]])

    def noise(self, hits: Bool[Tensor, "*batch E"]) -> Float[Tensor, "*batch D D"]:
        """Return the process noise of a frame with these events."""
        taking_part = (hits.to(self.event_variance) @ self.involved().to(self.event_variance)) > 0
        each = taking_part.repeat_interleave(2, -1).to(self.event_variance)
        return (
            self.model.state_noise
            + torch.cat(
                [each * self.event_variance[0], each * self.event_variance[1]], -1
            ).diag_embed()
        )


class Motion(NamedTuple):
    """Ways of all objects through the rest of a frame."""

    start: Float[Tensor, "M P"]
    end: Float[Tensor, "M P"]
    velocity: Float[Tensor, "M P"]


def _contact_times(
    apart: Float[Tensor, "... 2"], change: Float[Tensor, "... 2"], distance: Float[Tensor, ""]
) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."]]:
    """Return when two objects are at a distance, as a share of their way, and whether they are."""
    a = change.square().sum(-1).clamp(min=1e-300)
    b, c = (apart * change).sum(-1), apart.square().sum(-1) - distance**2
    square = b.square() - a * c
    root = square.clamp(min=GRAZING * float(distance.detach() ** 2) * a).sqrt()
    time = torch.where(c > 0, (-b - root) / a, 0.0)
    return time, (b < 0) & ((c <= 0) | ((square > 0) & (time <= 1.0)))


def event_times(law: SceneLaw, way: Motion) -> Float[Tensor, "M E"]:
    """Return when each event would happen next, as a share of the way; inf: it does not."""
    N = law.num_objects
    x, y = way.start.unflatten(-1, (N, 2)), way.end.unflatten(-1, (N, 2))
    before = (x @ law.walls.normals.mT - law.walls.offsets).flatten(1)  # M N W
    after = (y @ law.walls.normals.mT - law.walls.offsets).flatten(1)
    share = before / (before - after).clamp(min=1e-300)
    time = torch.where((after < 0) & (after < before), share.clamp(min=0.0), torch.inf)
    if N == 1:
        return time
    i, j = torch.triu_indices(N, N, 1, device=x.device)
    move = y - x
    met, happens = _contact_times(x[:, i] - x[:, j], move[:, i] - move[:, j], law.contacts.distance)
    return torch.cat([time, torch.where(happens, met, torch.inf)], 1)


def apply_event(law: SceneLaw, way: Motion, event: Int[Tensor, " M"]) -> Motion:
    """Return the way that is left after one event of each scene, whether it happens or not.

    The event mirrors g'x at the offset d, g'm = 1 being its response.
    """
    N, W = law.num_objects, len(law.walls.offsets)
    rows = torch.arange(len(event), device=event.device)
    x, y = way.start.unflatten(-1, (N, 2)), way.end.unflatten(-1, (N, 2))
    g, m, wall = torch.zeros_like(x), torch.zeros_like(x), event < N * W
    d, time, kept = (x.new_zeros(len(event)) for _ in range(3))
    if bool(wall.any()):
        at, who, which = rows[wall], event[wall] // W, event[wall] % W
        g[at, who] = m[at, who] = law.walls.normals[which]
        d[at], kept[at] = law.walls.offsets[which], law.walls.restitution[which]
        before = (x[at, who] * g[at, who]).sum(-1) - d[at]
        after = (y[at, who] * g[at, who]).sum(-1) - d[at]
        time[at] = (before / (before - after).clamp(min=1e-300)).clamp(0.0, 1.0)
    if not bool(wall.all()):
        at = rows[~wall]
        i, j = torch.triu_indices(N, N, 1, device=x.device)[:, event[~wall] - N * W]
        apart, move = x[at, i] - x[at, j], y[at] - x[at]
        change = move[rows[: len(at)], i] - move[rows[: len(at)], j]
        met = _contact_times(apart, change, law.contacts.distance)[0].clamp(-FARTHEST, FARTHEST)
        place = apart + met[:, None] * change
        d[at] = place.norm(dim=-1).clamp(min=1e-9)
        w, mass = place / d[at, None], law.contacts.mass
        share = (mass[i] / (mass[i] + mass[j]))[:, None]
        g[at, i], g[at, j] = w, -w
        m[at, i], m[at, j] = (1 - share) * w, -share * w
        kept[at], time[at] = law.contacts.restitution, met.clamp(0.0, 1.0)
    g, m = g.flatten(1), (1 + kept)[:, None] * m.flatten(1)
    beyond = (way.end * g).sum(-1) - d
    return Motion(
        way.start + time[:, None] * (way.end - way.start),
        way.end - beyond[:, None] * m,
        way.velocity - (way.velocity * g).sum(-1, keepdim=True) * m,
    )


class Step(NamedTuple):
    """The states after a frame without noise."""

    state: Float[Tensor, "M D"]
    hits: Bool[Tensor, "M E"]
    order: Int[Tensor, "M events"]  # of events; -1: none


def free_flight(law: SceneLaw, state: Float[Tensor, "M D"]) -> Motion:
    """Return the ways of all objects without events."""
    free = map_vector(law.model.transition, state) + law.model.force
    P = state.shape[-1] // 2
    return Motion(state[:, :P], free[:, :P], free[:, P:])


def step_scene(law: SceneLaw, state: Float[Tensor, "M D"]) -> Step:
    """Return the states one frame later, and the events of the frame.

    Law: equals many small steps of free flight and bounces
        (test_a_frame_equals_many_small_steps).
    """
    way = free_flight(law, state)
    hits = torch.zeros(len(state), law.num_events, dtype=torch.bool, device=state.device)
    order = torch.full((len(state), MAX_EVENTS), -1, dtype=torch.int64, device=state.device)
    rows = torch.arange(len(state), device=state.device)
    start, end, velocity = (part.clone() for part in way)
    for number in range(MAX_EVENTS if law.num_events else 0):
        time, event = event_times(law, Motion(start[rows], end[rows], velocity[rows])).min(1)
        some = time.isfinite().nonzero()[:, 0]
        if not len(some):
            break
        rows, event = rows[some], event[some]
        way = apply_event(law, Motion(start[rows], end[rows], velocity[rows]), event)
        start[rows], end[rows], velocity[rows] = way
        hits[rows, event] = True
        order[rows, number] = event
    return Step(torch.cat([end, velocity], 1), hits, order)


def forced_step(
    law: SceneLaw, state: Float[Tensor, "M D"], order: Int[Tensor, "M events"]
) -> Float[Tensor, "M D"]:
    """Return the states one frame later if exactly the given events happened in this order."""
    way = free_flight(law, state)
    for event in order.unbind(1):
        happens = event >= 0
        if not bool(happens.any()):
            break
        after = apply_event(law, way, event.clamp(min=0))
        way = Motion(
            *(torch.where(happens[:, None], b, a) for a, b in zip(way, after, strict=True))
        )
    return torch.cat([way.end, way.velocity], 1)


def order_of(
    law: SceneLaw, state: Float[Tensor, "M D"], hits: Bool[Tensor, "M E"]
) -> Int[Tensor, "M events"]:
    """Return the order in which given events happen: that of the law, others afterwards."""
    natural = step_scene(law, state)
    rank = torch.full(hits.shape, float(MAX_EVENTS), device=state.device)
    for number in reversed(range(MAX_EVENTS)):
        event = natural.order[:, number]
        rows = (event >= 0).nonzero()[:, 0]
        rank[rows, event[rows]] = number
    rank = torch.where(hits, rank, torch.inf)
    first, event = rank.sort(dim=1, stable=True)
    events: Tensor = torch.where(first.isfinite(), event, -1)[:, :MAX_EVENTS]
    return events


def linearise(
    law: SceneLaw, state: Float[Tensor, "M D"], hits: Bool[Tensor, "M E"]
) -> tuple[Float[Tensor, "M D D"], Float[Tensor, "M D"]]:
    """Return F and b of h -> F h + b, the map of the given events around a state.

    Law: F is the derivative by differences of the map itself
        (test_linearised_frames_agree_with_differences_of_the_law).
    """
    M, D = state.shape
    F, b = law.model.transition.expand(M, D, D), law.model.force.expand(M, D)
    rows = hits.any(1).nonzero()[:, 0]
    if not len(rows):
        return F, b
    x, order = state[rows], order_of(law, state[rows], hits[rows])
    order = order[:, : max(int((order >= 0).sum(1).max()), 1)]
    nudge = NUDGE * identity(D, x)
    points = torch.cat([x[None], x + nudge[:, None], x - nudge[:, None]])  # 1 + 2 D, rows, D
    values = forced_step(law, points.flatten(0, 1), order.repeat(1 + 2 * D, 1))
    values = values.unflatten(0, (1 + 2 * D, len(rows)))
    slope = ((values[1 : D + 1] - values[D + 1 :]) / (2 * NUDGE)).movedim(0, -1)
    F, b = F.clone(), b.clone()
    F[rows] = slope
    b[rows] = values[0] - map_vector(slope, x)
    return F, b


def simulate_scene(
    law: SceneLaw, state: Float[Tensor, "*batch D"], noise: Float[Tensor, "*batch steps D"]
) -> Float[Tensor, "*batch steps D"]:
    """Return the states after a state, by the law, as a function of standard normal noise."""
    batch, states = state.shape[:-1], []
    h, D = state.flatten(0, -2), state.shape[-1]
    base = torch.linalg.cholesky_ex(law.model.state_noise + 1e-18 * identity(D, h)).L
    for noise_t in noise.flatten(0, -3).unbind(-2):
        step = step_scene(law, h)
        extra = map_vector(base, noise_t)
        rows = step.hits.any(1).nonzero()[:, 0]
        if len(rows):
            root = torch.linalg.cholesky_ex(law.noise(step.hits[rows]) + 1e-18 * identity(D, h)).L
            extra = extra.index_copy(0, rows, map_vector(root, noise_t[rows]))
        h = step.state + extra
        states.append(h)
    path: Tensor = torch.stack(states, -2).unflatten(0, batch)
    return path


def reversed_law(law: SceneLaw) -> SceneLaw:
    """Return the law of scenes that run backwards, whose velocities have the other sign.

    Exact but for the noise and for objects that are at the same time under a force and at an event;
    it proposes labels, which the law itself weighs.

    Law: a step back from where a step led returns to its start
        (test_the_reversed_law_undoes_a_step).
    """
    model, D = law.model, law.model.transition.shape[-1]
    sign = torch.cat([model.force.new_ones(D // 2), -model.force.new_ones(D // 2)])
    back = torch.linalg.inv(model.transition)
    flipped = model._replace(
        transition=sign[:, None] * back * sign,
        force=-sign * map_vector(back, model.force),
        state_noise=sign[:, None] * (back @ model.state_noise @ back.mT) * sign,
        initial_mean=sign * model.initial_mean,
        initial_covariance=sign[:, None] * model.initial_covariance * sign,
    )
    walls = law.walls._replace(restitution=1 / law.walls.restitution.clamp(min=MIN_RESTITUTION))
    bounce = 1 / law.contacts.restitution.clamp(min=MIN_RESTITUTION)
    return law._replace(
        model=flipped, walls=walls, contacts=law.contacts._replace(restitution=bounce)
    )
