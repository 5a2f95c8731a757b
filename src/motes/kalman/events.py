"""Laws with events: walls, contacts and unexplained kicks between stretches of free flight.

A scene of N objects has the state h = (x, v), all positions first: P = 2 N coordinates each. Free
flight is f = A h + u. An event e has a guard g'x - d, whose sign at f says whether it happens, and
then x -> x - (1 + r) m (g'x - d) and v -> v - (1 + r) m g'v, with g'm = 1 and the restitution r.
For a wall of normal n and offset d, g = m = n. For a contact of i and j at distance d along the
unit vector w from j to i, g = (w, -w) and m = (s_j w, -s_i w), where s are shares of the mass of
both; it also needs closing objects. w is taken from the predicted mean of each hypothesis.

Given the events of every step the law is linear and varies with time, so for a sequence s
    Z_s = p(a | s), the Kalman evidence;  P_s = share of p(h | a, s) whose guards say s;
    log p(a) = log sum_s Z_s P_s,
exactly for walls, and any subset of sequences is a lower bound. Sequences are proposed by a
Gaussian-sum filter, which splits each hypothesis by its guards. The guards of one sequence are
half-spaces of the noise, so P_s is estimated along one direction in closed form and averaged over
draws of all others: unbiased, and smooth in the parameters of the law.

A kick is an event without a guard: additional process noise, at a given rate. It stands for what
no wall or contact explains, and is used to find them (`motes.training.event_fit`).
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.linalg import cholesky, identity, map_vector, square_root
from motes.kalman.model import LGSSM
from motes.kalman.track_evidence import inverse_2x2

CERTAIN = 5.0  # standard deviations from every guard beyond which P_s is 1
MIN_PROBABILITY = 1e-12  # of P_s, whose logarithm must stay finite
LOG_2PI = math.log(2 * math.pi)


class Walls(NamedTuple):
    """Lines that objects bounce off; objects are where normal'x >= offset."""

    normals: Float[Tensor, "W 2"]  # unit vectors
    offsets: Float[Tensor, " W"]
    restitution: Float[Tensor, " W"]  # share of the normal velocity that is kept


class Contacts(NamedTuple):
    """Objects that bounce off one another."""

    distance: Float[Tensor, ""]
    restitution: Float[Tensor, ""]
    mass: Float[Tensor, " N"]  # of each object, relative


class Kicks(NamedTuple):
    """Unexplained changes of state."""

    log_rate: Float[Tensor, ""]  # per object and frame
    covariance: Float[Tensor, "D D"]


class EventLaw(NamedTuple):
    """A linear law of free flight with events."""

    model: LGSSM  # initial moments have a leading axis K
    log_weights: Float[Tensor, " K"]
    walls: Walls
    contacts: Contacts | None = None
    kicks: Kicks | None = None
    in_time: bool = False  # the force does not turn at a wall: exact within a step, see `since_hit`

    @property
    def num_events(self) -> int:
        """The number of events that a step may have: each wall and object, each pair, a kick."""
        N = self.model.transition.shape[-1] // 4
        pairs = N * (N - 1) // 2 if self.contacts is not None else 0
        return N * len(self.walls.offsets) + pairs + (self.kicks is not None)


class Guards(NamedTuple):
    """What decides about and follows from each event with a guard."""

    normal: Float[Tensor, "*batch E P"]  # g
    response: Float[Tensor, "*batch E P"]  # m
    offset: Float[Tensor, "*#batch E"]  # d
    restitution: Float[Tensor, " E"]
    closing: Bool[Tensor, " E"]  # needs objects that approach one another


class Hypotheses(NamedTuple):
    """M pairs of an initial-state component and a sequence of events, of several tracks."""

    track: Int[Tensor, " M"]
    component: Int[Tensor, " M"]
    hits: Bool[Tensor, "M steps E"]
    directions: Float[Tensor, "M steps pairs 2"]  # w of the contacts
    log_weight: Float[Tensor, " M"]  # the filter's estimate of log pi Z_s P_s


def scene_law(law: EventLaw, num_objects: int, component: Int[Tensor, "K N"]) -> EventLaw:
    """Return the law of a scene of several objects, given their initial-state components."""
    A, u, B, Q, R, mu, Sigma = law.model
    eye = identity(num_objects, A)

    def joint(matrix: Tensor) -> Tensor:
        """Return the matrix of a scene from that of an object, position and velocity blocks."""
        half = matrix.shape[-1] // 2
        rows = matrix.unflatten(-1, (2, half)).unflatten(-3, (2, half))
        out = torch.einsum("...aibj,nm->...anibmj", rows, eye)
        square: Tensor = out.flatten(-3).flatten(-4, -2)
        return square

    def together(vectors: Tensor) -> Tensor:
        joined: Tensor = vectors.unflatten(-1, (2, -1)).movedim(-2, -3).flatten(-3)
        return joined

    P = B.shape[-2] * num_objects
    noise = torch.einsum("ij,nm->nimj", R, eye).reshape(P, P)
    parts = Sigma[component].unflatten(-1, (2, 2)).unflatten(-3, (2, 2))  # K N a i b j
    spread = torch.einsum("knaibj,nm->kanibmj", parts, eye).flatten(4, 6).flatten(1, 3)
    model = LGSSM(
        transition=joint(A),
        force=together(u.expand(num_objects, -1)),
        emission=identity(2 * P, A)[:P],
        state_noise=joint(Q),
        position_noise=noise,
        initial_mean=together(mu[component]),
        initial_covariance=spread,
    )
    weights = law.log_weights[component].sum(-1)
    kicks = law.kicks and Kicks(law.kicks.log_rate, joint(law.kicks.covariance))
    return EventLaw(model, weights, law.walls, law.contacts, kicks, law.in_time)


def guards_at(law: EventLaw, positions: Float[Tensor, "*batch P"]) -> Guards:
    """Return all guards, those of contacts along the directions between objects at `positions`."""
    walls, N = law.walls, law.model.transition.shape[-1] // 4
    W, eye = len(walls.offsets), identity(N, positions)
    normal = torch.einsum("nm,wi->nwmi", eye, walls.normals).reshape(N * W, 2 * N)
    offset, restitution = walls.offsets.repeat(N), walls.restitution.repeat(N)
    closing = torch.zeros(N * W, dtype=torch.bool, device=positions.device)
    if law.contacts is None or N == 1:
        return Guards(normal, normal, offset, restitution, closing)
    return with_contacts(law, Guards(normal, normal, offset, restitution, closing),
                         pair_directions(positions))  # fmt: skip


def pair_directions(positions: Float[Tensor, "*batch P"]) -> Float[Tensor, "*batch pairs 2"]:
    """Return unit vectors from the second to the first object of every pair."""
    x = positions.unflatten(-1, (-1, 2))
    i, j = torch.triu_indices(x.shape[-2], x.shape[-2], 1, device=x.device)
    apart = x[..., i, :] - x[..., j, :]
    unit: Tensor = apart / apart.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    return unit


def with_contacts(
    law: EventLaw, walls: Guards, directions: Float[Tensor, "*batch pairs 2"]
) -> Guards:
    """Return the guards of walls and of contacts along given directions."""
    contacts, N = law.contacts, law.model.transition.shape[-1] // 4
    assert contacts is not None
    i, j = torch.triu_indices(N, N, 1, device=directions.device)
    eye, mass = identity(N, directions), contacts.mass
    share = mass[i] / (mass[i] + mass[j])  # of the first object
    at = eye[i] - eye[j]  # pairs N
    moved = (1 - share)[:, None] * eye[i] - share[:, None] * eye[j]
    normal = (at[..., None] * directions[..., None, :]).flatten(-2)
    response = (moved[..., None] * directions[..., None, :]).flatten(-2)
    lead, pairs = directions.shape[:-2], len(i)

    def joined(first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first.expand(*lead, *first.shape), second], -2)

    true = torch.ones(pairs, dtype=torch.bool, device=at.device)
    return Guards(
        joined(walls.normal, normal),
        joined(walls.response, response),
        torch.cat([walls.offset, contacts.distance.expand(pairs)]),
        torch.cat([walls.restitution, contacts.restitution.expand(pairs)]),
        torch.cat([walls.closing, true]),
    )


def reflections(
    guards: Guards, hits: Bool[Tensor, "*batch E"]
) -> tuple[Float[Tensor, "*batch P P"], Float[Tensor, "*batch P"]]:
    """Return R and c of x -> R x + c, v -> R v, for the events that happen, in their order."""
    P = guards.normal.shape[-1]
    eye = identity(P, guards.normal)
    R, c = eye.expand(*hits.shape[:-1], P, P), guards.normal.new_zeros(*hits.shape[:-1], P)
    for e in range(hits.shape[-1]):
        if not bool(hits[..., e].any()):
            continue
        g, m = guards.normal[..., e, :], (1 + guards.restitution[e]) * guards.response[..., e, :]
        turn, here = eye - m[..., :, None] * g[..., None, :], hits[..., e, None]
        c = torch.where(here, map_vector(turn, c) + guards.offset[..., e, None] * m, c)
        R = torch.where(here[..., None], turn @ R, R)
    return R, c


def since_hit(
    law: EventLaw, guards: Guards, free: Float[Tensor, "*batch D"], hits: Bool[Tensor, "*batch E"]
) -> Float[Tensor, "*batch D"]:
    """Return what is added to the state after hits, because the force does not turn with it.

    For a force with the change of velocity f per step and a hit at a wall of normal n that was s
    steps ago, this is (1 + r) n n'f (dt s^2 / 2, s), where dt is the way of a unit of velocity. s
    is that of a parabola with the depth and speed at the end of free flight. It is taken at the
    mean, so that the law of a sequence stays affine.

    Law: without noise it is the motion that hits walls at their exact times
        (test_hits_within_a_step_are_exact).
    """
    P = free.shape[-1] // 2
    dt, n = law.model.transition[0, P], guards.normal
    depth = torch.einsum("...p,...ep->...e", free[..., :P], n) - guards.offset
    speed = dt * torch.einsum("...p,...ep->...e", free[..., P:], n)
    force = torch.einsum("p,...ep->...e", law.model.force[P:], n)
    at_hit = (speed.square() - 2 * dt * force * depth).clamp(min=0.0).sqrt()
    s = (2 * depth / (speed - at_hit).clamp(max=-1e-9)).clamp(0.0, 1.0).detach()
    push = torch.where(hits & ~guards.closing, (1 + guards.restitution) * force, 0.0)
    x = torch.einsum("...e,...ep->...p", 0.5 * dt * s.square() * push, guards.response)
    v = torch.einsum("...e,...ep->...p", s * push, guards.response)
    return torch.cat([x, v], -1)


def both(R: Float[Tensor, "*batch P P"]) -> Float[Tensor, "*batch D D"]:
    """Return the matrix that maps positions and velocities by R."""
    P = R.shape[-1]
    top, bottom = pad(R, (0, P)), pad(R, (P, 0))
    return torch.cat([top, bottom], -2)


def innovation(
    mean: Float[Tensor, "*#batch D"],
    covariance: Float[Tensor, "*#batch D D"],
    positions: Float[Tensor, "*#batch P"],
    known: Bool[Tensor, "*#batch P"],
    noise: Float[Tensor, "P P"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return residual, gain, precision of the residual, log density; 0 for unknown coordinates."""
    P = positions.shape[-1]
    mask = known.to(mean)
    residual = torch.where(known, positions, 0.0) - mask * mean[..., :P]
    square = mask[..., :, None] * mask[..., None, :]
    S = square * (covariance[..., :P, :P] + noise) + (1 - mask).diag_embed()
    if P == 2:  # in closed form: batches of small matrices are slow in LAPACK
        determinant = S[..., 0, 0] * S[..., 1, 1] - S[..., 0, 1] * S[..., 1, 0]
        precision, log_det = square * inverse_2x2(S), 0.5 * determinant.log()
    else:
        L = cholesky(S)
        precision = square * torch.cholesky_inverse(L)
        log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    K = covariance[..., :, :P] @ precision
    distance = (map_vector(precision, residual) * residual).sum(-1)
    log_density = -0.5 * distance - log_det - 0.5 * LOG_2PI * mask.sum(-1)
    return residual, K, precision, log_density


class Pass(NamedTuple):
    """A forward pass over the sequences of M hypotheses, and what backward passes need."""

    transition: Float[Tensor, "M steps D D"]
    force: Float[Tensor, "M steps D"]
    noise: Float[Tensor, "M _ D D"]
    mean: Float[Tensor, "M T D"]  # predicted
    covariance: Float[Tensor, "M T D D"]
    gain: Float[Tensor, "M T D P"]
    precision: Float[Tensor, "M T P P"]  # of residuals; 0 where unknown
    residual: Float[Tensor, "M T P"]
    log_density: Float[Tensor, "M T"]
    guards: Guards


def run_sequences(
    law: EventLaw,
    rows: Hypotheses,
    positions: Float[Tensor, "tracks T P"],
    known: Bool[Tensor, "tracks T P"],
) -> Pass:
    """Filter each track by the transition and force of every step of each hypothesis."""
    A, u, _, Q, R_a, mu, Sigma = law.model
    P, E = positions.shape[-1], rows.hits.shape[-1] - (law.kicks is not None)
    guards = guards_at(law._replace(contacts=None), u[:P])
    if law.contacts is not None and P > 2:
        guards = with_contacts(law, guards, rows.directions)
    R, c = reflections(guards, rows.hits[..., :E])
    turn = both(R)
    F = turn @ A
    b = map_vector(turn, u.expand(*turn.shape[:-1])) + pad(c, (0, P))
    noise = Q.expand(len(F), 1, *Q.shape)
    if law.kicks is not None:
        noise = Q + rows.hits[..., E, None, None] * law.kicks.covariance
    a, seen = positions[rows.track], known[rows.track]
    m, C = mu[rows.component], Sigma[rows.component]
    # By `unbind`: the gradient of each single index would be an array of all steps.
    steps = F.shape[1]
    turns = F.unbind(1) if E else [A] * steps  # one matrix for all where nothing reflects
    noises = noise.expand(-1, steps, -1, -1).unbind(1)
    out, later = [], list(b.unbind(1))
    for t in range(a.shape[1]):
        residual, K, precision, log_density = innovation(m, C, a[:, t], seen[:, t], R_a)
        out.append((m, C, K, precision, residual, log_density))
        if t + 1 < a.shape[1]:
            h = m + map_vector(K, residual)
            if law.in_time and E:
                added = since_hit(
                    law, guards_in(guards, t), map_vector(A, h) + u, rows.hits[:, t, :E]
                )
                later[t] = later[t] + added
            m = map_vector(turns[t], h) + later[t]
            C = turns[t] @ (C - K @ C[:, :P]) @ turns[t].mT + noises[t]
    means, covariances, gains, precisions, residuals, densities = (
        torch.stack(part, 1) for part in zip(*out, strict=True)
    )
    b = torch.stack(later, 1) if later else b
    return Pass(F, b, noise, means, covariances, gains, precisions, residuals, densities, guards)


def guards_in(guards: Guards, step: int) -> Guards:
    """Return the guards of a step of hypotheses."""
    if guards.normal.ndim == 2:
        return guards
    parts = {name: getattr(guards, name)[:, step] for name in ("normal", "response")}
    return guards._replace(**parts)


def log_prior_of_kicks(law: EventLaw, rows: Hypotheses) -> Float[Tensor, " M"]:
    """Return the log probability of the kicks of each hypothesis."""
    if law.kicks is None:
        return law.model.force.new_zeros(len(rows.track))
    rate, kicked = law.kicks.log_rate, rows.hits[..., -1]
    return torch.where(kicked, rate, torch.log1p(-rate.exp())).sum(-1)


def smooth_pass(
    run: Pass,
) -> tuple[Float[Tensor, "M T D"], Float[Tensor, "M T D D"]]:
    """Return the states given all observations (modified Bryson-Frazier smoother).

    It inverts no state covariance, so process noise may be zero.
    """
    P = run.residual.shape[-1]
    eye, Lam = identity(2 * P, run.gain), torch.zeros_like(run.covariance[:, 0])
    lam, means, covariances = torch.zeros_like(run.mean[:, 0]), [], []
    for t in reversed(range(run.mean.shape[1])):
        complement = eye - pad(run.gain[:, t], (0, P))
        S = pad(run.precision[:, t], (0, P, 0, P))
        pull = pad(map_vector(run.precision[:, t], run.residual[:, t]), (0, P))
        lam = map_vector(complement.mT, lam) - pull
        Lam = S + complement.mT @ Lam @ complement
        C = run.covariance[:, t]
        means.append(run.mean[:, t] - map_vector(C, lam))
        covariances.append(C - C @ Lam @ C)
        if t:
            F = run.transition[:, t - 1]
            lam, Lam = map_vector(F.mT, lam), F.mT @ Lam @ F
    return torch.stack(means[::-1], 1), torch.stack(covariances[::-1], 1)


def deviations(
    law: EventLaw,
    run: Pass,
    component: Int[Tensor, " M"],
    noise: Float[Tensor, "S M T D_plus_P"],
    blur: Float[Tensor, "S M T P"] | None = None,
) -> Float[Tensor, "S M T D"]:
    """Return draws of the states given the observations, minus their mean, by Matheron's rule.

    Args:
        law: The law.
        run: Of `run_sequences`.
        component: Of each hypothesis.
        noise: Standard normal.
        blur: Added to the observations, for observations that are themselves uncertain.

    Law: moments are those of the smoother (test_draws_have_the_moments_of_the_smoother).
    """
    D, P = run.mean.shape[-1], run.residual.shape[-1]
    T, root_H = run.mean.shape[1], square_root(run.noise)
    h = map_vector(square_root(law.model.initial_covariance)[component], noise[:, :, 0, :D])
    seen = map_vector(square_root(law.model.position_noise), noise[..., D:])
    seen = seen if blur is None else seen - blur
    states, pulls, predicted, m = [], [], [], torch.zeros_like(h)
    for t in range(T):
        residual = -(h + m)[..., :P] - seen[:, :, t]
        states.append(h)
        predicted.append(m)
        pulls.append(map_vector(run.precision[:, t], residual))
        if t + 1 < T:
            F, root = run.transition[:, t], root_H[:, t if root_H.shape[1] > 1 else 0]
            h = map_vector(F, h) + map_vector(root, noise[:, :, t + 1, :D])
            m = map_vector(F, m + map_vector(run.gain[:, t], residual))
    lam, corrections = torch.zeros_like(h), []
    for t in reversed(range(T)):
        complement = identity(D, h) - pad(run.gain[:, t], (0, P))
        lam = map_vector(complement.mT, lam) - pad(pulls[t], (0, P))
        corrections.append(predicted[t] - map_vector(run.covariance[:, t], lam))
        lam = map_vector(run.transition[:, t - 1].mT, lam) if t else lam
    return torch.stack(states, 2) + torch.stack(corrections[::-1], 2)


def margins(
    law: EventLaw, run: Pass, rows: Hypotheses, states: Float[Tensor, "*S M T D"]
) -> Float[Tensor, "*S M steps E"]:
    """Return by how much free flight from each state is on the side that the hypothesis says."""
    g, P = run.guards, run.residual.shape[-1]
    free = map_vector(law.model.transition, states[..., :-1, :]) + law.model.force
    y = torch.einsum("...p,...ep->...e", free[..., :P], g.normal) - g.offset
    y = torch.where(rows.hits[..., : y.shape[-1]], -y, y)
    if bool(g.closing.any()):  # objects that move apart need not be apart
        away = torch.einsum("...p,...ep->...e", free[..., P:], g.normal) > 0
        y = torch.where(g.closing & away & ~rows.hits[..., : y.shape[-1]], torch.inf, y)
    return y


class Along(NamedTuple):
    """Draws that differ from the guards' region in one direction only, and their interval in it."""

    states: Float[Tensor, "S m T D"]  # with coordinate 0 in that direction
    direction: Float[Tensor, "m T D"]  # change of the states per unit of the coordinate
    low: Float[Tensor, "S m"]  # the guards hold from here
    high: Float[Tensor, "S m"]  # to here

    def probability(self) -> Float[Tensor, "S m"]:
        """Return the probability of the interval."""
        inside: Tensor = torch.special.ndtr(self.high) - torch.special.ndtr(self.low)
        return inside.clamp(min=0.0)

    def draw(self, uniform: Float[Tensor, "S m"]) -> Float[Tensor, "S m T D"]:
        """Return states in the interval, as a function of uniform noise."""
        first, last = torch.special.ndtr(self.low), torch.special.ndtr(self.high)
        at = (first + uniform * (last - first)).clamp(1e-12, 1 - 1e-12)
        r: Tensor = torch.special.ndtri(at)[..., None, None]
        return self.states + r * self.direction


def critical_direction(
    law: EventLaw, run: Pass, rows: Hypotheses, mean: Tensor, sd: Float[Tensor, "M steps E"]
) -> Float[Tensor, "M T D_plus_P"]:
    """Return the unit vector of noise that moves the guard nearest to its border."""
    M, T, D = run.mean.shape
    with torch.enable_grad():
        noise = run.mean.new_zeros(1, M, T, D + D // 2, requires_grad=True)
        fixed = Pass(*(part.detach() for part in run[:-1]), run.guards)  # type: ignore[call-arg, arg-type]
        plain = EventLaw(LGSSM(*(part.detach() for part in law.model)), *law[1:])
        path = mean.detach() + deviations(plain, fixed, rows.component, noise)
        y = margins(plain, fixed, rows, path)[0].flatten(1)
        near = (y / sd.flatten(1)).detach().argmin(1, keepdim=True)
        (slope,) = torch.autograd.grad(y.gather(1, near).sum(), noise)
    unit: Tensor = slope[0] / slope[0].flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    return unit


def draws_along(
    law: EventLaw,
    run: Pass,
    rows: Hypotheses,
    mean: Float[Tensor, "M T D"],
    direction: Float[Tensor, "M T D_plus_P"],
    noise: Float[Tensor, "S M T D_plus_P"],
    blur: Float[Tensor, "S M T P"] | None = None,
) -> Along:
    """Return draws of p(h | a, s) with the interval in which all guards hold."""
    inner = (noise * direction).flatten(2).sum(2)[..., None, None]
    states = mean + deviations(law, run, rows.component, noise - inner * direction, blur)
    slope = deviations(law, run, rows.component, direction[None])[0]
    here = margins(law, run, rows, states).flatten(2)
    normal = torch.einsum("...p,...ep->...e", map_vector(law.model.transition, slope[:, :-1])[
        ..., : run.residual.shape[-1]], run.guards.normal)  # fmt: skip
    rate = torch.where(rows.hits[..., : normal.shape[-1]], -normal, normal).flatten(1)
    flat = rate.abs() < 1e-12
    root = -here / torch.where(flat, 1.0, rate)
    never = torch.where(here >= 0, -torch.inf, torch.inf)
    low = torch.where(flat, never, torch.where(rate > 0, root, -torch.inf)).amax(2)
    high = torch.where(~flat & (rate < 0), root, torch.inf).amin(2)
    return Along(states, slope, low, high)


class Evidence(NamedTuple):
    """The exact weights of hypotheses, and the passes that they come from."""

    rows: Hypotheses
    log_weight: Float[Tensor, " M"]  # log pi Z_s P_s
    run: Pass
    mean: Float[Tensor, "M T D"]  # of p(h | a, s), guards not regarded
    covariance: Float[Tensor, "M T D D"]
    near: Int[Tensor, " m"]  # hypotheses near a guard; elsewhere P_s is 1
    along: Along | None  # of those

    def log_density(self, num_tracks: int) -> Float[Tensor, " tracks"]:
        """Return log p(a) of each track."""
        return scatter_logsumexp(self.log_weight, self.rows.track, num_tracks)


def scatter_logsumexp(
    values: Float[Tensor, " M"], index: Int[Tensor, " M"], size: int
) -> Float[Tensor, " size"]:
    """Return log sum exp of the values of each index."""
    top = values.detach().new_full((size,), -torch.inf)
    top = top.scatter_reduce(0, index, values.detach(), "amax")
    top = torch.where(top.isfinite(), top, 0.0)
    total = torch.zeros_like(top).index_add(0, index, (values - top[index]).exp())
    return total.log() + top


def weigh(
    law: EventLaw,
    rows: Hypotheses,
    positions: Float[Tensor, "tracks T P"],
    known: Bool[Tensor, "tracks T P"],
    *,
    num_draws: int = 64,
    directions: Float[Tensor, "M T D_plus_P"] | None = None,
    blur: Float[Tensor, "tracks T P"] | None = None,
    seed: int = 0,
) -> Evidence:
    """Return log pi Z_s P_s of each hypothesis.

    Args:
        law: The law; gradients flow into its parameters.
        rows: The hypotheses.
        positions: Of all tracks.
        known: Which coordinates were observed.
        num_draws: For P_s, an even number; with 0 it is left out, and states are not smoothed.
        directions: Of `critical_direction`; None to compute them.
        blur: Standard deviations of the observations themselves; widens draws only.
        seed: Of the draws, which are the same for the same number of hypotheses.

    Law: equals the sum over all sequences of a short clip by numerical integration
        (test_evidence_matches_integration_over_a_grid).
    """
    run = run_sequences(law, rows, positions, known)
    log_Z = law.log_weights[rows.component] + run.log_density.sum(1) + log_prior_of_kicks(law, rows)
    E = rows.hits.shape[-1] - (law.kicks is not None)
    none = torch.zeros(0, dtype=torch.int64, device=log_Z.device)
    if num_draws == 0:
        return Evidence(rows, log_Z, run, run.mean, run.covariance, none, None)
    mean, covariance = smooth_pass(run)
    if E == 0 or mean.shape[1] < 2:
        return Evidence(rows, log_Z, run, mean, covariance, none, None)
    P, A = positions.shape[-1], law.model.transition
    with torch.no_grad():
        gA = torch.einsum("...ep,pd->...ed", run.guards.normal, A[:P])
        variance = torch.einsum("...ed,...dc,...ec->...e", gA, covariance[:, :-1], gA)
        sd = variance.clamp(min=1e-18).sqrt()
        room = margins(law, run, rows, mean) / sd
        near = (room.flatten(1).amin(1) < CERTAIN).nonzero()[:, 0]
    if not len(near):
        return Evidence(rows, log_Z, run, mean, covariance, near, None)
    part, some = select_rows(run, near), Hypotheses(*(each[near] for each in rows))
    if directions is None:
        towards = critical_direction(law, part, some, mean[near], sd[near])
    else:
        towards = directions[near]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(num_draws // 2, *towards.shape, generator=generator, dtype=mean.dtype)
    noise = torch.cat([noise, -noise]).to(mean.device)
    spread = None
    if blur is not None:
        own = torch.randn(*noise.shape[:-1], P, generator=generator, dtype=mean.dtype)
        spread = own.to(mean.device) * blur[some.track]
    along = draws_along(law, part, some, mean[near], towards, noise, spread)
    share = along.probability().mean(0).clamp(min=MIN_PROBABILITY).log()
    log_weight = log_Z.index_add(0, near, share)
    return Evidence(rows, log_weight, run, mean, covariance, near, along)


def select_rows(run: Pass, index: Int[Tensor, " m"]) -> Pass:
    """Return the pass of some hypotheses."""
    guards = run.guards
    if guards.normal.ndim > 2:
        guards = guards._replace(normal=guards.normal[index], response=guards.response[index])
    return Pass(*(part[index] for part in run[:-1]), guards)  # type: ignore[call-arg, arg-type]


def simulate(
    law: EventLaw, state: Float[Tensor, "*batch D"], noise: Float[Tensor, "*batch steps D"]
) -> Float[Tensor, "*batch steps D"]:
    """Return the states after a state, by the law, as a function of standard normal noise."""
    root, P, states = square_root(law.model.state_noise), state.shape[-1] // 2, []
    for noise_t in noise.unbind(-2):
        free = map_vector(law.model.transition, state) + law.model.force
        guards = guards_at(law, free[..., :P])
        y = torch.einsum("...p,...ep->...e", free[..., :P], guards.normal) - guards.offset
        closing = torch.einsum("...p,...ep->...e", free[..., P:], guards.normal) < 0
        hits = (y < 0) & (closing | ~guards.closing)
        R, c = reflections(guards, hits)
        x, v = map_vector(R, free[..., :P]) + c, map_vector(R, free[..., P:])
        state = torch.cat([x, v], -1) + map_vector(root, noise_t)
        if law.in_time:
            state = state + since_hit(law, guards, free, hits)
        states.append(state)
    return torch.stack(states, -2)
