"""Evidence and draws of scenes with contacts: a mixture over the labels of all frames.

A label s says which events every frame has. With the map of each frame expanded around a smoothed
path, the law of a label is linear: q_s, with evidence Z_s. For any such expansion
    p(a) = sum_s Z_s E_{q_s}[ [s(h) = s] prod_t p(h_t+1 | h_t) / q_s(h_t+1 | h_t) ],
because q_s(h) is its linear law times p(a | h) / Z_s. The mean over draws is an unbiased estimate,
any subset of labels a lower bound. Labels are proposed by a Gaussian-sum filter that simulates a
few points of every hypothesis and splits it by the labels that they meet.
"""

import math
from typing import Any, NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.events import (
    EventLaw,
    Guards,
    Pass,
    deviations,
    innovation,
    scatter_logsumexp,
    smooth_pass,
)
from motes.kalman.linalg import identity, map_vector
from motes.kalman.scenes import SceneLaw, linearise, reversed_law, simulate_scene, step_scene
from motes.kalman.track_evidence import inverse_2x2

SLOTS = 8  # hypotheses of a scene
POINTS = 32  # of each hypothesis, which are simulated to find labels
BRANCHES = 4  # labels of a hypothesis in a frame
EXPANSIONS = 2  # around smoothed paths
NEGLIGIBLE = -9.0  # log weight of hypotheses that are dropped, relative to the best
NUM_DRAWS = 256
MIN_LOG_SHARE = -6.0
LOWEST = -60.0  # log of the smallest probability of a label, which keeps weights finite


class Sightings(NamedTuple):
    """Observed positions of scenes."""

    positions: Float[Tensor, "*batch P"]
    known: Bool[Tensor, "*batch P"]

    def select(self, index: Any) -> "Sightings":
        """Return some of them."""
        return Sightings(*(part[index] for part in self))

    def taken(self, source: Int[Tensor, "*batch N"]) -> "Sightings":
        """Return each object's position from its source; N: it has none."""
        N = source.shape[-1]
        index = source.clamp(max=N - 1)[..., None]

        def gather(part: Tensor) -> Tensor:
            part = part.expand(*source.shape[:-1], 2 * N).unflatten(-1, (N, 2))
            found: Tensor = part.take_along_dim(index, -2).flatten(-2)
            return found

        a, seen = (gather(part) for part in self)
        return Sightings(a, seen & (source < N).repeat_interleave(2, -1))


class SceneRows(NamedTuple):
    """M hypotheses about the events of several scenes."""

    scene: Int[Tensor, " M"]
    hits: Bool[Tensor, "M steps E"]
    log_weight: Float[Tensor, " M"]  # the filter's estimate
    # States with these events, to expand the law around at first; None: the filter's estimates,
    # which may be far from any event in first frames, where velocities are unknown.
    typical: Float[Tensor, "M steps D"] | None = None
    # Whose position each object has in each frame: N: none; None: each its own.
    source: Int[Tensor, "M T N"] | None = None

    def observations(self, given: "Sightings") -> "Sightings":
        """Return what each hypothesis takes for the positions of its objects."""
        own = given.select(self.scene)
        return own if self.source is None else own.taken(self.source)

    def log_outliers(self, law: SceneLaw, known: Bool[Tensor, "B T P"]) -> Float[Tensor, " M"]:
        """Return the log density of the positions that no object has."""
        seen = known[self.scene][..., ::2].sum((1, 2))
        if self.source is None or law.log_outlier == -math.inf:
            return torch.zeros(len(seen), dtype=torch.float64, device=known.device)
        used = (self.source < known.shape[-1] // 2).sum((1, 2))
        return law.log_outlier * (seen - used)

    def select(self, index: Int[Tensor, " m"]) -> "SceneRows":
        """Return some of the hypotheses."""
        return SceneRows(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]


class Belief(NamedTuple):
    """Gaussian-sum filter: H hypotheses for each scene; dead ones have weight -inf."""

    mean: Float[Tensor, "B H D"]
    covariance: Float[Tensor, "B H D D"]
    log_weights: Float[Tensor, "B H"]
    hits: Bool[Tensor, "B H steps E"]
    typical: Float[Tensor, "B H steps D"]
    source: Int[Tensor, "B H frames N"]

    def best(self, number: int) -> "Belief":
        """Return the likeliest hypotheses of each scene."""
        index = self.log_weights.topk(min(number, self.log_weights.shape[1])).indices
        return Belief(
            *(
                part.take_along_dim(index.view(*index.shape, *[1] * (part.ndim - 2)), 1)
                for part in self
            )
        )


def _points(
    law: SceneLaw,
    belief: Belief,
    noise: Float[Tensor, "points D"],
    following: Float[Tensor, "B P"],
    known: Bool[Tensor, "B P"],
) -> Float[Tensor, "B H G D"]:
    """Return states to simulate: of every hypothesis, and of it given the next observation.

    For the latter, observations are taken for twice as noisy, because they may follow an event.
    """
    D, P, A = belief.mean.shape[-1], following.shape[-1], law.model.transition

    def around(mean: Tensor, covariance: Tensor, own: Tensor) -> Tensor:
        root = torch.linalg.cholesky_ex(covariance + 1e-12 * identity(D, mean)).L
        points = mean[:, :, None] + torch.einsum("bhij,gj->bhgi", root, own)
        return torch.cat([mean[:, :, None], points], 2)

    half = len(noise) // 2
    free, spread = map_vector(A, belief.mean) + law.model.force, A @ belief.covariance @ A.mT
    residual, _, precision, _ = innovation(
        free, spread, following[:, None], known[:, None], 4 * law.model.position_noise
    )
    K = belief.covariance @ A.mT[:, :P] @ precision
    ahead = belief.mean + map_vector(K, residual)
    narrow = belief.covariance - K @ (A[:P] @ belief.covariance)
    first = around(belief.mean, belief.covariance, noise[:half])
    return torch.cat([first, around(ahead, 0.5 * (narrow + narrow.mT), noise[half:])], 2)


def _branch(
    law: SceneLaw, belief: Belief, points: Float[Tensor, "B H G D"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels of a frame, a typical state and log share of each, with an axis for branches.

    The first half of the points are of the hypothesis itself and count for the share; labels of
    others alone count for half a point.
    """
    B, H = belief.mean.shape[:2]
    alive = belief.log_weights.isfinite()
    G = points.shape[2]
    labels = torch.zeros(B, H, G, law.num_events, dtype=torch.bool, device=points.device)
    labels[alive] = step_scene(law, points[alive].flatten(0, 1)).hits.unflatten(0, (-1, G))
    equal = (labels[:, :, :, None] == labels[:, :, None]).all(-1)
    left = torch.ones(B, H, G, dtype=torch.bool, device=points.device)
    parts = []
    for _ in range(BRANCHES):
        counts = torch.where(left, (equal & left[:, :, None]).sum(-1), 0)
        number, chosen = counts.max(-1)
        same = equal.gather(2, chosen[..., None, None].expand(B, H, 1, G))[:, :, 0] & left
        weight = same.to(points)
        own = same[:, :, : G // 2].sum(-1).clamp(min=0.5)
        own = torch.where(number > 0, own, 0.0)
        typical = (weight[..., None] * points).sum(2) / number.clamp(min=1)[..., None]
        label = labels.gather(2, chosen[..., None, None].expand(B, H, 1, labels.shape[-1]))[:, :, 0]
        parts.append((label, typical, (own / (G // 2)).log().to(points)))
        left &= ~same
        if not bool(left.any()):
            break
    label, typical, share = (torch.stack(part, 2) for part in zip(*parts, strict=True))
    return label, typical, share


def _sources(law: SceneLaw, belief: Belief, given: Sightings) -> Int[Tensor, "B H N"]:
    """Return whose position each object of a hypothesis has; N: none.

    A position that is less likely than an outlier belongs to another object that was not seen, or
    to none.
    """
    positions, known = given.positions, given.known
    B, H, P = len(positions), belief.mean.shape[1], positions.shape[-1]
    N = P // 2
    seen = known[:, None, ::2].expand(B, H, N)
    everyone = torch.arange(N, device=positions.device)
    source = torch.where(seen, everyone, N)
    if law.log_outlier == -math.inf:
        return source
    spread = belief.covariance[..., :P, :P] + law.model.position_noise
    blocks = spread.unflatten(-1, (N, 2)).unflatten(-3, (N, 2))  # N 2 N 2
    own = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., None, :, :]
    away = positions.view(B, 1, 1, N, 2) - belief.mean[..., :P].unflatten(-1, (N, 1, 2))
    determinant = own[..., 0, 0] * own[..., 1, 1] - own[..., 0, 1] * own[..., 1, 0]
    distance = (map_vector(inverse_2x2(own), away) * away).sum(-1)
    fit = -0.5 * (distance + determinant.log()) - math.log(2 * math.pi)  # object, position
    good = fit.diagonal(dim1=-2, dim2=-1) >= law.log_outlier
    source = torch.where(seen & good, source, N)
    left = seen & ~good  # positions that their own object does not have
    if not bool(left.any()):
        return source
    fit = torch.where(left[..., None, :] & (source == N)[..., None], fit, -torch.inf)
    for _ in range(N):
        best, pair = fit.flatten(-2).max(-1)
        some = (best > law.log_outlier).nonzero()
        if not len(some):
            break
        at = tuple(some.unbind(1))
        n, m = pair[at] // N, pair[at] % N
        source[(*at, n)] = m
        fit[(*at, n)] = -torch.inf
        fit[at[0], at[1], :, m] = -torch.inf
    return source


def _updated(law: SceneLaw, belief: Belief, given: Sightings) -> Belief:
    """Return the hypotheses given the positions of a frame."""
    source, P = _sources(law, belief, given), given.positions.shape[-1]
    own = given.select((slice(None), None)).taken(source)
    residual, K, _, log_density = innovation(
        belief.mean, belief.covariance, own.positions, own.known, law.model.position_noise
    )
    if law.log_outlier > -math.inf:
        strange = given.known[:, None, ::2].sum(-1) - own.known[..., ::2].sum(-1)
        log_density = log_density + law.log_outlier * strange
    spread = belief.covariance - K @ belief.covariance[..., :P, :]
    log_density = torch.where(log_density.isnan(), -torch.inf, log_density)
    return Belief(
        belief.mean + map_vector(K, residual),
        0.5 * (spread + spread.mT),
        belief.log_weights + log_density,
        belief.hits,
        belief.typical,
        torch.cat([belief.source, source[:, :, None]], 2),
    )


@torch.no_grad()
def propose_scenes(law: SceneLaw, given: Sightings, slots: int = SLOTS, seed: int = 0) -> SceneRows:
    """Return the likely labels of each scene, by the Gaussian-sum filter."""
    positions, known = given.positions, given.known
    B, T, P = positions.shape
    D = 2 * P
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(POINTS, D, generator=generator, dtype=torch.float64).to(positions)
    none = torch.zeros(B, 1, 0, law.num_events, dtype=torch.bool, device=positions.device)
    belief = Belief(
        law.model.initial_mean.expand(B, 1, D),
        law.model.initial_covariance.expand(B, 1, D, D),
        positions.new_zeros(B, 1),
        none,
        positions.new_zeros(B, 1, 0, D),
        torch.zeros(B, 1, 0, P // 2, dtype=torch.int64, device=positions.device),
    )
    for t in range(T):
        if t:
            points = _points(law, belief, noise, positions[:, t], known[:, t])
            label, typical, share = _branch(law, belief, points)
            H, C, E = label.shape[1:]
            some = (share + belief.log_weights[..., None]).isfinite().flatten()
            F = law.model.transition.expand(B * H * C, D, D).clone()
            b = law.model.force.expand(B * H * C, D).clone()
            F[some], b[some] = linearise(
                law, typical.flatten(0, 2)[some], label.flatten(0, 2)[some]
            )
            F, b = F.view(B, H, C, D, D), b.view(B, H, C, D)
            mean = map_vector(F, belief.mean[:, :, None].expand(B, H, C, D)) + b
            spread = F @ belief.covariance[:, :, None] @ F.mT + law.noise(label)
            past = belief.hits[:, :, None].expand(B, H, C, t - 1, E)
            path = belief.typical[:, :, None].expand(B, H, C, t - 1, D)
            source = belief.source[:, :, None].expand(B, H, C, t, P // 2)
            belief = Belief(
                mean.flatten(1, 2),
                spread.flatten(1, 2),
                (belief.log_weights[..., None] + share).flatten(1, 2),
                torch.cat([past, label[:, :, :, None]], 3).flatten(1, 2),
                torch.cat([path, typical[:, :, :, None]], 3).flatten(1, 2),
                source.flatten(1, 2),
            ).best(4 * slots)
        belief = _updated(law, belief, given.select((slice(None), t))).best(slots)
    weights = belief.log_weights
    enough = weights > weights.amax(1, keepdim=True) + NEGLIGIBLE
    scene, slot = enough.nonzero().unbind(1)
    parts = (belief.hits, weights, belief.typical, belief.source)
    return SceneRows(scene, *(part[scene, slot] for part in parts))


@torch.no_grad()
def propose_both_ways(law: SceneLaw, given: Sightings, slots: int = SLOTS) -> SceneRows:
    """Return the likely labels of each scene by filters that run forwards and backwards.

    A filter that runs forwards knows nothing of an object before it is first seen, and of one that
    is hidden for a while only where it went. Scenes without such objects are filtered forwards.
    """
    rows, known = propose_scenes(law, given, slots), given.known
    later = known.flip(1).cumsum(1).flip(1) > 0
    gaps = (later & ~known).any(-1).any(-1).nonzero()[:, 0]
    if not len(gaps):
        return rows
    turned = Sightings(*(part[gaps].flip(1) for part in given))
    back = reversed_law(law)
    others = propose_scenes(back, turned, slots)
    mean, _ = smooth_pass(run_scenes(back, others, turned, others.typical))
    P = mean.shape[-1] // 2
    path = torch.cat([mean[..., :P], -mean[..., P:]], -1).flip(1)[:, :-1]
    assert others.source is not None
    others = SceneRows(
        gaps[others.scene], others.hits.flip(1), others.log_weight, path, others.source.flip(1)
    )
    every = SceneRows(*(torch.cat(part) for part in zip(rows, others, strict=True)))  # type: ignore[arg-type]
    assert every.source is not None
    label = (every.scene[:, None], every.hits.flatten(1), every.source.flatten(1))
    return every.select(first_of_each(torch.cat(label, 1)))


def first_of_each(rows: Int[Tensor, "M L"]) -> Int[Tensor, " m"]:
    """Return the index of the first of all equal rows, in order."""
    _, which = rows.unique(dim=0, return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(index, len(rows)).scatter_reduce(0, which, index, "amin")
    return first[first < len(rows)].sort().values


@torch.no_grad()
def run_scenes(
    law: SceneLaw,
    rows: SceneRows,
    given: Sightings,
    around: Float[Tensor, "M _ D"] | None = None,
) -> Pass:
    """Filter each scene by the linear law of each hypothesis.

    Args:
        law: The law.
        rows: The hypotheses.
        given: Positions of all scenes.
        around: Paths to expand the law around; None: the filter's own estimate.
    """
    own = rows.observations(given)
    a, seen = own
    M, T, P = a.shape
    D = 2 * P
    m = law.model.initial_mean.expand(M, D)
    C = law.model.initial_covariance.expand(M, D, D)
    noise = law.noise(rows.hits)
    if around is not None:
        path = around[:, : T - 1].flatten(0, 1)
        F, b = linearise(law, path, rows.hits.flatten(0, 1))
        F, b = F.unflatten(0, (M, T - 1)), b.unflatten(0, (M, T - 1))
    out, maps = [], []
    for t in range(T):
        residual, K, precision, log_density = innovation(
            m, C, a[:, t], seen[:, t], law.model.position_noise
        )
        out.append((m, C, K, precision, residual, log_density))
        if t + 1 < T:
            m = m + map_vector(K, residual)
            if around is None:
                F_t, b_t = linearise(law, m, rows.hits[:, t])
            else:
                F_t, b_t = F[:, t], b[:, t]
            maps.append((F_t, b_t))
            m = map_vector(F_t, m) + b_t
            C = F_t @ (C - K @ C[:, :P]) @ F_t.mT + noise[:, t]
            C = 0.5 * (C + C.mT)
    parts = [torch.stack(part, 1) for part in zip(*out, strict=True)]
    if maps:
        forward = [torch.stack(part, 1) for part in zip(*maps, strict=True)]
    else:
        forward = [C.new_zeros(M, 0, D, D), C.new_zeros(M, 0, D)]
        noise = law.model.state_noise.expand(M, 1, D, D)
    unused = Guards(*[C.new_zeros(0)] * 4, rows.hits.new_zeros(0))  # type: ignore[call-arg]
    return Pass(*forward, noise, *parts, unused)  # type: ignore[call-arg, arg-type]


class SceneEvidence(NamedTuple):
    """Hypotheses with their weights, and draws of their states."""

    rows: SceneRows
    log_weight: Float[Tensor, " M"]  # of Z_s times the mean of `share`
    states: Float[Tensor, "S M T D"]
    log_share: Float[Tensor, "S M"]  # of each draw: [s(h) = s] prod p / q_s

    def log_density(self, num_scenes: int) -> Float[Tensor, " B"]:
        """Return log p(a) of each scene."""
        return scatter_logsumexp(self.log_weight, self.rows.scene, num_scenes)


@torch.no_grad()
def weigh_scenes(
    law: SceneLaw,
    rows: SceneRows,
    given: Sightings,
    *,
    num_draws: int = 64,
    seed: int = 0,
) -> SceneEvidence:
    """Return the weight of each hypothesis, an unbiased estimate, and draws of its states.

    Args:
        law: The law.
        rows: The hypotheses.
        given: Positions of all scenes.
        num_draws: An even number; with 0 the weights are Z_s alone, smooth in the law's numbers.
        seed: Of the draws.

    Law: equals the mean density of many simulated scenes
        (test_evidence_of_a_scene_is_that_of_many_particles).
    """
    run = run_scenes(law, rows, given, rows.typical)
    mean, _ = smooth_pass(run)
    for _ in range(EXPANSIONS):
        run = run_scenes(law, rows, given, mean)
        mean, _ = smooth_pass(run)
    M, T, D = mean.shape
    log_Z = run.log_density.sum(1) + rows.log_outliers(law, given.known)
    log_Z = torch.where(log_Z.isnan(), -torch.inf, log_Z)
    if num_draws == 0:
        return SceneEvidence(rows, log_Z, mean[None], mean.new_zeros(1, M))
    generator = torch.Generator().manual_seed(seed)
    P = D // 2
    noise = torch.randn(num_draws // 2, M, T, D + P, generator=generator, dtype=torch.float64)
    noise = torch.cat([noise, -noise]).to(mean)
    component = torch.zeros(M, dtype=torch.int64, device=mean.device)
    plain = EventLaw(law.model, mean.new_zeros(1), law.walls)
    states = mean + deviations(plain, run, component, noise)
    if T == 1:
        return SceneEvidence(rows, log_Z, states, states.new_zeros(num_draws, M))
    share = _log_shares(law, rows, run, states)
    top = share.amax(0).clamp(min=LOWEST)
    log_mean = ((share - top).exp().mean(0)).clamp(min=1e-300).log() + top
    return SceneEvidence(rows, log_Z + log_mean.clamp(min=LOWEST), states, share)


def _log_shares(
    law: SceneLaw, rows: SceneRows, run: Pass, states: Float[Tensor, "S M T D"]
) -> Float[Tensor, "S M"]:
    """Return the log of [s(h) = s] prod_t p(h_t+1 | h_t) / q_s(h_t+1 | h_t)."""
    S, M, T = states.shape[:3]
    before = states[:, :, :-1]
    step = step_scene(law, before.flatten(0, 2))
    meant = rows.hits.expand(S, *rows.hits.shape).flatten(0, 2)
    right = (step.hits == meant).all(1).view(S, M, T - 1)
    index = meant.any(1).nonzero()[:, 0]
    ratio = states.new_zeros(S * M * (T - 1))
    if len(index):
        after = states[:, :, 1:].flatten(0, 2)[index]
        flat = index % (M * (T - 1))
        F, b = run.transition.flatten(0, 1)[flat], run.force.flatten(0, 1)[flat]
        guess = map_vector(F, before.flatten(0, 2)[index]) + b
        precision = run.noise.flatten(0, 1).inverse()[flat]

        def distance(from_: Tensor) -> Tensor:
            away = after - from_
            return (map_vector(precision, away) * away).sum(-1)

        ratio[index] = 0.5 * (distance(guess) - distance(step.state[index]))
    total: Tensor = torch.where(right, ratio.view(S, M, T - 1), -torch.inf).sum(2)
    return total


@torch.no_grad()
def scene_log_density(
    law: SceneLaw, positions: Float[Tensor, "B T P"], known: Bool[Tensor, "B T P"]
) -> Float[Tensor, " B"]:
    """Return a lower bound of log p(a) of each scene, by the labels that the filter proposes."""
    given = Sightings(positions, known)
    return weigh_scenes(law, propose_scenes(law, given), given).log_density(len(positions))


class SceneDraws(NamedTuple):
    """Equally likely draws of the states of scenes, and the evidence of what was observed."""

    states: Float[Tensor, "S B T D"]
    log_density: Float[Tensor, " B"]


@torch.no_grad()
def sample_scenes(
    law: SceneLaw,
    positions: Float[Tensor, "B T P"],
    known: Bool[Tensor, "B T P"],
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> SceneDraws:
    """Return equally likely draws of the states of all frames given the observed coordinates.

    Frames after the last observation of any scene are simulated.
    """
    B, T = positions.shape[:2]
    some = known.any(-1).any(0).nonzero()
    last = int(some.max()) + 1 if len(some) else 1
    given = Sightings(torch.where(known, positions, 0.0), known).select((slice(None), slice(last)))
    rows = propose_both_ways(law, given, 2 * SLOTS)
    share = rows.log_weight - scatter_logsumexp(rows.log_weight, rows.scene, B)[rows.scene]
    rows = rows.select((share > MIN_LOG_SHARE).nonzero()[:, 0])
    found = weigh_scenes(law, rows, given, num_draws=num_draws, seed=seed)
    weight = found.log_share - found.log_share.logsumexp(0)
    weight = torch.where(weight.isnan(), -found.log_share.new_tensor(num_draws).log(), weight)
    weight = weight + found.log_weight
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = []
    for scene in range(B):
        own = (rows.scene == scene).nonzero()[:, 0]
        total = weight[:, own].flatten().softmax(0).cumsum(0)
        start = torch.rand(1, generator=generator, dtype=torch.float64).to(total)
        at = (torch.arange(num_draws, device=total.device) + start) / num_draws
        index = torch.searchsorted(total, at * total[-1]).clamp(max=len(total) - 1)
        drawn.append(found.states[:, own].flatten(0, 1)[index])
    states = torch.stack(drawn, 1)
    density = found.log_density(B)
    if last == T:
        return SceneDraws(states, density)
    shape = (num_draws, B, T - last, states.shape[-1])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(states)
    states = torch.cat([states, simulate_scene(law, states[:, :, -1], noise)], 2)
    return SceneDraws(states, density)
