"""The law of motion with walls as a `Dynamics`: linear free flight between bounces.

Every answer is a mixture over hypotheses (initial-state component, sequence of bounces) that the
Gaussian-sum filter of `motes.kalman.events` proposes and that are weighed exactly. Moments of paths
that come near a wall, and of all frames after the last observation, are those of draws that obey
the guards; other tracks are smoothed as without walls. Without walls this is `LinearDynamics`.
"""

import math
from typing import Any, NamedTuple

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.event_filter import (
    SLOTS,
    Filter,
    best_hypotheses,
    initial_filter,
    predict_filter,
    propose,
    update_filter,
)
from motes.kalman.events import (
    EventLaw,
    Hypotheses,
    Pass,
    deviations,
    run_sequences,
    simulate,
    smooth_pass,
    weigh,
)
from motes.kalman.linalg import identity, map_vector, square_root
from motes.kalman.model import (
    POSITION_DIM,
    STATE_DIM,
    Gaussian,
    GaussianMixture,
    SampledTracks,
    SmoothedTracks,
)
from motes.kalman.track_evidence import inverse_2x2, overlap, pair_gains
from motes.kalman.walled_dynamics import WalledDynamics

NUM_DRAWS = 256  # per hypothesis, for moments
EVIDENCE_DRAWS = 16  # per hypothesis, for P_s
MIN_LOG_SHARE = -6.0  # of a hypothesis in moments, relative to all of its track
CHUNK_NUMBERS = 2**24  # numbers of draws that are held together, which bounds memory


class EventBelief(NamedTuple):
    """The states of all objects given the frames so far."""

    law: EventLaw  # evaluated once for all frames
    hypotheses: Filter


class EventDynamics(WalledDynamics):
    """Free flight as in `LinearDynamics`, and walls that objects bounce off.

    `motes.training.event_fit` fits the walls after training.
    """

    @property
    def forks(self) -> bool:
        """Whether futures can branch, so that draws show more than mean and covariance."""
        return len(self.wall_offsets) > 0

    def law(self) -> EventLaw:
        """Return the law in the form of `motes.kalman.events`, without gradients."""
        model = self.components()
        detached = type(model)(*(part.detach() for part in model))
        law = EventLaw(detached, self.log_weights().detach(), self.walls)
        return law._replace(in_time=bool(self.in_time))

    def path_law(
        self, variances: Float[Tensor, "*batch 2"]
    ) -> tuple[EventLaw, Float[Tensor, "*batch 2"]]:
        """Return the law of the means of q, and the variances that widen their paths.

        The noise of positions in `law` is that of draws of q and has the usual variance of q in it.
        Around paths only the means scatter, and only a variance above the usual one widens them.
        """
        law, variances = self.law(), variances.double().clamp(min=0)
        if self.mean_variance < 0:
            return law, variances
        noise = law.model.position_noise
        own = noise * (self.mean_variance / noise.diagonal().mean())
        usual = (noise - own).diagonal().clamp(min=0)
        law = law._replace(model=law.model._replace(position_noise=own))
        return law, (variances - usual).clamp(min=0)

    def initial(self, batch: tuple[int, int]) -> Any:
        """Return the belief about the first frame of `batch` (clips, objects)."""
        law = self.law()
        return EventBelief(law, initial_filter(law, batch))

    def predict(self, belief: Any) -> Any:
        """Return the belief about the next frame."""
        after = predict_filter(belief.law, belief.hypotheses)
        # The history of events is not needed here.
        hits, along = after.hits[..., :0, :], after.directions[..., :0, :, :]
        return belief._replace(hypotheses=after._replace(hits=hits, directions=along))

    def update(
        self, belief: Any, positions: Float[Tensor, "B N 2"], observed: Bool[Tensor, "B _"]
    ) -> Any:
        """Return the belief after observing positions; where unobserved it does not change."""
        known = observed[..., None].expand(positions.shape)
        after = update_filter(belief.law, belief.hypotheses, positions.double(), known)
        return belief._replace(hypotheses=after)

    def observe(self, belief: Any) -> GaussianMixture:
        """Return the predictive distribution of the positions a_t of a belief."""
        found, position = belief.hypotheses, slice(POSITION_DIM)
        covariance = found.covariance[..., position, position] + belief.law.model.position_noise
        return GaussianMixture(found.log_weights, found.mean[..., position], covariance)

    @torch.no_grad()
    def track_log_density(
        self,
        positions: Float[Tensor, "... T P"],
        observed: Bool[Tensor, "... T"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return log sum_s Z_s P_s of each track, a lower bound of its log density."""
        tracks, seen = _flat(positions, observed)
        law, known = self.law(), seen[..., None].expand(tracks.shape)
        rows = propose(law, tracks, known, negligible=MIN_LOG_SHARE)
        evidence = weigh(law, rows, tracks, known, num_draws=EVIDENCE_DRAWS)
        return evidence.log_density(len(tracks)).view(positions.shape[:-2])

    @torch.no_grad()
    def smooth(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
    ) -> SmoothedTracks:
        """Return the moments of the states under each component, given the observed positions.

        Law: equals the linear law's where no wall is near
            (test_smoothing_far_from_walls_is_linear).
        """
        law, extra = self.path_law(variances)
        states = kalman.smooth(
            law.model, positions[:, :, None], observed[:, :, None], extra[:, :, None]
        )
        plain = SmoothedTracks(self.component_log_posterior(positions, observed), *states)
        K, T = plain.means.shape[2:4]
        weights, means = plain.log_weights.flatten(0, 1).clone(), plain.means.flatten(0, 1).clone()
        shape = (*plain.means.shape[:2], *plain.covariances.shape[2:])
        covariances = plain.covariances.expand(shape).flatten(0, 1).clone()
        tracks, seen = _flat(positions, observed)
        for some in self._chunks(len(tracks), T):
            found = draw_paths(law, tracks[some], seen[some], extra.flatten(0, 1)[some])
            share, mean, covariance = found.moments(K)
            bent = found.bent.nonzero()[:, 0]
            weights[some.start + bent] = share[bent].clamp(min=1e-30).log()
            means[some.start + bent] = mean[bent]
            covariances[some.start + bent] = covariance[bent]
        batch = positions.shape[:2]
        parts = (weights, means, covariances)
        return SmoothedTracks(*(part.unflatten(0, batch) for part in parts))

    @torch.no_grad()
    def draw_tracks(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
        num_draws: int,
        seed: int = 0,
    ) -> Float[Tensor, "S B N T D"]:
        """Return equally likely draws of the states given the observed positions."""
        tracks, seen = _flat(positions, observed)
        law, extra = self.path_law(variances)
        parts = []
        for some in self._chunks(len(tracks), positions.shape[2]):
            blur = extra.flatten(0, 1)[some]
            found = draw_paths(law, tracks[some], seen[some], blur, seed=seed)
            parts.append(found.resampled(num_draws, seed))
        drawn: Tensor = torch.cat(parts, 1).unflatten(1, positions.shape[:2])
        return drawn

    @staticmethod
    def _chunks(num_tracks: int, num_frames: int) -> list[slice]:
        step = max(CHUNK_NUMBERS // (3 * NUM_DRAWS * num_frames * STATE_DIM), 1)
        return [slice(t, min(t + step, num_tracks)) for t in range(0, max(num_tracks, 1), step)]

    @torch.no_grad()
    def leave_one_out(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Gaussian:
        """Return each position's prediction from the observations of all other frames.

        A mixture over hypotheses, which are weighed without the frame too, by its moments. Their
        weights are the filter's, which suffice to say where to look.
        """
        tracks, seen = _flat(positions, observed)
        law, known = self.law(), seen[..., None].expand(tracks.shape)
        rows = propose(law, tracks, known, negligible=MIN_LOG_SHARE)
        states, covariance = smooth_pass(run_sequences(law, rows, tracks, known))
        R, at = law.model.position_noise, slice(POSITION_DIM)
        m, V = states[..., at], covariance[..., at, at]
        a, there = tracks[rows.track], seen[rows.track]
        # Remove the frame's own observation: V + V (R - V)^-1 V is the covariance without it.
        gain = torch.linalg.solve(R - V, V).mT
        mean = torch.where(there[..., None], m + map_vector(gain, m - a), m)
        C = torch.where(there[..., None, None], V + gain @ V, V) + R
        away, determinant = a - mean, C[..., 0, 0] * C[..., 1, 1] - C[..., 0, 1] * C[..., 1, 0]
        distance = (map_vector(inverse_2x2(C), away) * away).sum(-1)
        own = -0.5 * (distance + determinant.log()) - math.log(2 * math.pi)
        weights = rows.log_weight[:, None] - torch.where(there, own, 0.0)
        T = tracks.shape[1]
        index = rows.track[:, None].expand(-1, T)
        top = weights.new_full((len(tracks), T), -torch.inf)
        top = top.scatter_reduce(0, index, weights, "amax")
        share = (weights - top.gather(0, index)).exp()
        return _merged(share, mean, C, rows.track, len(tracks), positions.shape)

    @torch.no_grad()
    def swap_gains(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Float[Tensor, "B N N T"]:
        """Return the gain in log p(a) if two objects swap identities from frame t on.

        The filter's hypotheses about the one object up to t meet the backward message of the other
        object's likeliest hypothesis: approximate, as a proposal may be.
        """
        batch, (tracks, seen) = observed.shape[:2], _flat(positions, observed)
        law, known = self.law(), seen[..., None].expand(tracks.shape)
        belief, predicted = initial_filter(law, (len(tracks),)), []
        for t in range(tracks.shape[1]):
            belief = predict_filter(law, belief) if t else belief
            top = belief.select(belief.log_weights.topk(2).indices)
            predicted.append((top.mean, top.covariance, top.log_weights))
            belief = update_filter(law, belief, tracks[:, t], known[:, t])
        mean, covariance, before = (
            torch.stack(part, 1).unflatten(0, batch)[:, :, None]
            for part in zip(*predicted, strict=True)
        )
        rows = best_hypotheses(propose(law, tracks, known), len(tracks))
        run = run_sequences(law, rows, tracks, known)
        curvature, slope, level = (
            part.unflatten(0, batch)[:, None] for part in _messages(law, run, tracks, seen)
        )
        met = overlap(mean, covariance, curvature[..., None, :, :], slope[..., None, :])
        fit = (met + before + level[..., None]).logsumexp(-1)
        gains = pair_gains(fit)
        gains[..., 0] = 0.0  # a swap from the first frame on only renames
        return gains

    @torch.no_grad()
    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        """Return draws from the prior."""
        law, device = self.law(), self.logits.device
        uniform = torch.rand(batch, dtype=torch.float64, generator=generator)
        shape = (*batch, num_frames, STATE_DIM + POSITION_DIM)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator).to(device)
        component = self.draw_components(uniform.to(device))
        root = square_root(law.model.initial_covariance)[component]
        first = law.model.initial_mean[component] + map_vector(root, noise[..., 0, :STATE_DIM])
        later = simulate(law, first, noise[..., 1:, :STATE_DIM])
        states = torch.cat([first[..., None, :], later], -2)
        seen = map_vector(square_root(law.model.position_noise), noise[..., STATE_DIM:])
        return SampledTracks(component, states, states[..., :POSITION_DIM] + seen)

    def fit_initial_state(
        self, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
    ) -> None:
        """Keep the initial states: EM needs free flight, and `event_fit` fitted them."""


class Paths(NamedTuple):
    """Weighted draws of the states of several tracks."""

    track: Int[Tensor, " M"]
    component: Int[Tensor, " M"]
    weight: Float[Tensor, "S M"]  # sums to 1 over the hypotheses and draws of a track
    states: Float[Tensor, "S M T D"]
    bent: Bool[Tensor, " tracks"]  # some draw meets a wall, or nearly does

    def moments(self, num_components: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return probability, mean and covariance for each track and component."""
        size = len(self.bent) * num_components
        index = self.track * num_components + self.component
        total = self.weight.new_zeros(size).index_add(0, index, self.weight.sum(0))
        safe = total.clamp(min=1e-300)

        def averaged(values: Tensor) -> Tensor:
            weighted = torch.einsum("sm,sm...->m...", self.weight, values)
            summed = weighted.new_zeros(size, *weighted.shape[1:]).index_add(0, index, weighted)
            return summed / safe.view(-1, *[1] * (summed.ndim - 1))

        mean = averaged(self.states)
        away = self.states - mean[index]
        product = torch.einsum("sm,smti,smtj->mtij", self.weight, away, away)
        scatter = product.new_zeros(size, *product.shape[1:]).index_add(0, index, product)
        covariance = scatter / safe[:, None, None, None]
        shape = (len(self.bent), num_components)
        parts = (total, mean, covariance)
        share, centre, spread = (part.unflatten(0, shape) for part in parts)
        return share, centre, spread

    def resampled(self, num_draws: int, seed: int) -> Float[Tensor, "S tracks T D"]:
        """Return equally likely draws of each track, by systematic resampling."""
        out = []
        generator = torch.Generator().manual_seed(seed)
        for track in range(len(self.bent)):
            rows = (self.track == track).nonzero()[:, 0]
            weight = self.weight[:, rows].flatten()
            start = torch.rand(1, generator=generator, dtype=weight.dtype).to(weight.device)
            at = (torch.arange(num_draws, device=weight.device) + start) / num_draws
            total = weight.cumsum(0)
            index = torch.searchsorted(total, at * total[-1]).clamp(max=len(weight) - 1)
            out.append(self.states[:, rows].flatten(0, 1)[index])
        if not out:
            return self.states.new_zeros(num_draws, 0, *self.states.shape[2:])
        return torch.stack(out, 1)


@torch.no_grad()
def draw_paths(
    law: EventLaw,
    positions: Float[Tensor, "tracks T 2"],
    observed: Bool[Tensor, "tracks T"],
    variances: Float[Tensor, "tracks T 2"],
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> Paths:
    """Return draws of p(h | a): of the mixture over sequences, then by the law.

    Frames after the last observation of any track are simulated.
    """
    T, some = positions.shape[1], observed.any(0).nonzero()
    last = int(some.max()) + 1 if len(some) else 1
    seen, a = observed[:, :last], torch.where(observed[..., None], positions, 0.0)[:, :last]
    known, blur = seen[..., None].expand(a.shape), variances[:, :last].clamp(min=0).sqrt()
    blur = torch.where(known, blur, 0.0)
    rows = propose(law, a, known, slots=2 * SLOTS)
    rough = weigh(law, rows, a, known, num_draws=EVIDENCE_DRAWS)
    share = rough.log_weight - rough.log_density(len(a))[rows.track]
    kept = (share > MIN_LOG_SHARE).nonzero()[:, 0]
    rows = Hypotheses(*(part[kept] for part in rows))
    found = weigh(law, rows, a, known, num_draws=num_draws, blur=blur, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)

    def normal(*shape: int) -> Tensor:
        half = torch.randn(num_draws // 2, *shape, generator=generator, dtype=torch.float64)
        return torch.cat([half, -half]).to(a.device)

    M = len(rows.track)
    noise = normal(M, last, STATE_DIM + POSITION_DIM)
    spread = normal(M, last, POSITION_DIM) * blur[rows.track]
    states = found.mean + deviations(law, found.run, rows.component, noise, spread)
    inside = torch.ones(num_draws, M, dtype=states.dtype, device=a.device)
    if found.along is not None:
        uniform = torch.rand(inside[:, found.near].shape, generator=generator, dtype=states.dtype)
        states[:, found.near] = found.along.draw(uniform.to(a.device))
        inside[:, found.near] = found.along.probability()
        empty = inside.sum(0) == 0  # guards of a hypothesis that no draw obeys
        inside[:, empty] = 1.0
    log_share = found.log_weight - found.log_density(len(a))[rows.track]
    weight = log_share.exp() * inside / inside.sum(0)
    if last < T:
        later = simulate(law, states[:, :, -1], normal(M, T - last, STATE_DIM))
        states = torch.cat([states, later], 2)
    bent = torch.zeros(len(a), dtype=torch.bool, device=a.device)
    bent[rows.track[found.near]] = True
    bent[rows.track[rows.hits.flatten(1).any(1)]] = True
    if last < T:
        free = map_vector(law.model.transition, states[:, :, last - 1 : -1]) + law.model.force
        y = free[..., :POSITION_DIM] @ law.walls.normals.mT - law.walls.offsets
        bent[rows.track[(y < 0).any(-1).any(-1).any(0)]] = True
    return Paths(rows.track, rows.component, weight, states, bent)


def _flat(
    positions: Float[Tensor, "*batch T 2"], observed: Bool[Tensor, "*batch T"] | None
) -> tuple[Float[Tensor, "tracks T 2"], Bool[Tensor, "tracks T"]]:
    """Return all tracks along one axis, in float64."""
    if observed is None:
        observed = torch.ones(positions.shape[:-1], dtype=torch.bool, device=positions.device)
    a = positions.double().reshape(-1, *positions.shape[-2:])
    seen = observed.expand(positions.shape[:-1]).reshape(-1, positions.shape[-2])
    return torch.where(seen[..., None], a, 0.0), seen


def _merged(
    share: Float[Tensor, "M T"],
    mean: Float[Tensor, "M T 2"],
    covariance: Float[Tensor, "M T 2 2"],
    track: Int[Tensor, " M"],
    num_tracks: int,
    shape: torch.Size,
) -> Gaussian:
    """Return the moments of the mixture of each track's hypotheses in every frame."""

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(num_tracks, *values.shape[1:]).index_add(0, track, values)

    total = summed(share)[..., None]
    middle = summed(share[..., None] * mean) / total
    away = mean - middle[track]
    scatter = covariance + away[..., :, None] * away[..., None, :]
    spread = summed(share[..., None, None] * scatter) / total[..., None]
    return Gaussian(middle.view(shape), spread.view(*shape, 2))


def _messages(
    law: EventLaw, run: Pass, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
) -> tuple[Float[Tensor, "M T D D"], Float[Tensor, "M T D"], Float[Tensor, "M T"]]:
    """Return the log density of positions from t on given the state h at t, along each sequence.

    It is level + slope' h - h' curvature h / 2.
    """
    B, R = law.model.emission, law.model.position_noise
    weight = B.mT @ R.inverse()
    own_level = -0.5 * (map_vector(R.inverse(), positions) * positions).sum(-1)
    own_level = torch.where(observed, own_level - 0.5 * torch.logdet(2 * math.pi * R), 0.0)
    own_slope = torch.where(observed[..., None], map_vector(weight, positions), 0.0)
    own_curvature = torch.where(observed[..., None, None], weight @ B, 0.0)
    Lam, eta, level = own_curvature[:, -1], own_slope[:, -1], own_level[:, -1]
    out = [(Lam, eta, level)]
    for t in reversed(range(positions.shape[1] - 1)):
        F, b, Q = run.transition[:, t], run.force[:, t], law.model.state_noise
        level = level + overlap(b, Q, Lam, eta) + own_level[:, t]
        widened = identity(len(Q), Q) + Lam @ Q
        Lam = torch.linalg.solve(widened, Lam)
        eta = torch.linalg.solve(widened, eta) - map_vector(Lam, b)
        Lam = F.mT @ Lam @ F + own_curvature[:, t]
        eta = map_vector(F.mT, eta) + own_slope[:, t]
        out.append((Lam, eta, level))
    curvature, slope, levels = (torch.stack(part[::-1], 1) for part in zip(*out, strict=True))
    return curvature, slope, levels
