"""The paper's law of motion: a mixture of linear-Gaussian models that differ in initial state."""

from typing import NamedTuple

import torch
from torch import nn

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.kalman.linalg import identity, map_vector
from motes.kalman.model import (
    LGSSM,
    POSITION_DIM,
    STATE_DIM,
    Gaussian,
    GaussianMixture,
    SampledTracks,
    SmoothedTracks,
    draw_path,
    select,
)
from motes.kalman.track_evidence import leave_one_out, swap_gains

RESTARTS = 8
ITERATIONS = 50
MIN_VARIANCE = 1e-6  # latent units: a few thousandths of a pixel, squared


class LinearBelief(NamedTuple):
    """The states of all objects given the frames so far: one estimate for each component."""

    model: LGSSM  # evaluated once for all frames
    states: kalman.StateEstimate  # [B N K D]; [K D] before the first observation
    log_weights: Float[Tensor, "B N K"]


class LinearDynamics(nn.Module):
    """Newton's law with a constant force and K initial-state components.

    Paper: [Eq. mixture]
        h_1 ~ sum_k pi_k N(mu_k, Sigma_k),  A = [I, delta I; 0, I],  B = [I, 0]

    delta > 0, u, Sigma_H, Sigma_A, pi, mu_k and Sigma_k are learned. With `linear` the rows of A
    that change the velocity are learned too: forces linear in position and velocity, such as
    springs and drag [Choice 23]. Covariances are L L' with free entries below the diagonal of L and
    exponentials on it, so they are valid for any parameter value. Initial values are those of the
    paper's section on initialisation. Parameters are float64.

    Implements `motes.models.protocols.Dynamics`.

    Args:
        num_components: K.
        sampling_period: initial delta.
        state_noise: initial Sigma_H = state_noise * I; a variance.
        position_noise: initial Sigma_A = position_noise * I; a variance.
        initial_spread: initial Sigma_k = initial_spread^2 * I; the position part of mu_k is drawn
            with the same spread, the velocity part is 0.
        linear: whether forces may depend on position and velocity.
        generator: Draws the positions of mu_k.
    """

    independent_objects = True

    def __init__(
        self,
        *,
        num_components: int = 2,
        sampling_period: float = 0.1,
        state_noise: float = 0.001,
        position_noise: float = 1.0,
        initial_spread: float = 1.0,
        linear: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        given = dict(num_components=num_components, sampling_period=sampling_period)
        given |= dict(state_noise=state_noise, position_noise=position_noise)
        for name, value in (given | dict(initial_spread=initial_spread)).items():
            if not value > 0:
                raise InputError(f"got {name}={value}; expected a positive number; give one")
        mean = torch.zeros(num_components, STATE_DIM, dtype=torch.float64)
        mean[:, :POSITION_DIM] = initial_spread * torch.randn(
            num_components, POSITION_DIM, dtype=torch.float64, generator=generator
        )
        delta = torch.tensor(sampling_period, dtype=torch.float64)
        spread = _free_factor(initial_spread**2, STATE_DIM)
        self.log_delta = nn.Parameter(delta.log())
        self.force = nn.Parameter(torch.zeros(STATE_DIM, dtype=torch.float64))
        field = torch.zeros(STATE_DIM - POSITION_DIM, STATE_DIM, dtype=torch.float64)
        self.force_field = nn.Parameter(field) if linear else None
        self.state_factor = nn.Parameter(_free_factor(state_noise, STATE_DIM))
        self.position_factor = nn.Parameter(_free_factor(position_noise, POSITION_DIM))
        self.logits = nn.Parameter(torch.zeros(num_components, dtype=torch.float64))
        self.initial_mean = nn.Parameter(mean)
        self.initial_factor = nn.Parameter(spread.repeat(num_components, 1, 1))

    def components(self) -> LGSSM:
        """Return the K models; mu and Sigma have a leading axis K, shared parts have none."""
        eye = identity(POSITION_DIM, self.logits)
        zero = torch.zeros_like(eye)
        top = torch.cat([eye, self.log_delta.exp() * eye], -1)
        bottom = torch.cat([zero, eye], -1)
        if self.force_field is not None:
            bottom = bottom + self.force_field
        return LGSSM(
            transition=torch.cat([top, bottom]),
            force=self.force,
            emission=torch.cat([eye, zero], -1),
            state_noise=_covariance(self.state_factor),
            position_noise=_covariance(self.position_factor),
            initial_mean=self.initial_mean,
            initial_covariance=_covariance(self.initial_factor),
        )

    def log_weights(self) -> Float[Tensor, " K"]:
        """Return log pi_k."""
        return self.logits.log_softmax(-1)

    @property
    def num_components(self) -> int:
        """The number of initial-state components, K."""
        return len(self.logits)

    def initial(self, batch: tuple[int, int]) -> LinearBelief:
        """Return the belief about the first frame of `batch` (clips, objects)."""
        model = self.components()
        states = kalman.StateEstimate(*model[5:])
        return LinearBelief(model, states, self.log_weights().expand(*batch, -1))

    def predict(self, belief: LinearBelief) -> LinearBelief:
        """Return the belief about the next frame."""
        return belief._replace(states=kalman.predict(belief.model, *belief.states))

    def update(
        self,
        belief: LinearBelief,
        positions: Float[Tensor, "B N 2"],
        observed: Bool[Tensor, "B _"],
    ) -> LinearBelief:
        """Return the belief after observing positions; where unobserved it does not change."""
        model, a = belief.model, positions[:, :, None]
        states, log_density = kalman.update(model, *belief.states, a, observed[..., None])
        return LinearBelief(model, states, belief.log_weights + log_density)

    def observe(self, belief: LinearBelief) -> GaussianMixture:
        """Return the predictive distribution of the positions a_t of a belief."""
        means, covariances = self.path(Gaussian(*belief.states))
        return GaussianMixture(belief.log_weights, means, covariances + belief.model.position_noise)

    def emit(self, states: Gaussian) -> Gaussian:
        """Return the distribution of a_t = B h_t + noise, given that of the states h_t."""
        mean, covariance = self.path(states)
        return Gaussian(mean, covariance + self.components().position_noise)

    def path(self, states: Gaussian) -> Gaussian:
        """Return the noise-free positions B h_t."""
        position = slice(POSITION_DIM)  # B = [I, 0]
        return Gaussian(states.mean[..., position], states.covariance[..., position, position])

    def velocities(self, states: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch 2"]:
        """Return the velocities of states, in latent units per frame."""
        return self.log_delta.exp() * states[..., POSITION_DIM:]

    def log_density(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        observed: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(a) of the observed positions of the present objects of each clip."""
        evidence = self.track_log_density(positions, observed)
        return torch.where(present, evidence, 0.0).sum(1)

    def track_log_density(
        self,
        positions: Float[Tensor, "... T P"],
        observed: Bool[Tensor, "... T"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the log density of each track, its component marginalised, in float64.

        Paper: [Eq. kalman-filter]
            log sum_k pi_k p(a_{1:T} | z = k)

        Law: equals the log of the weighted sum of dense Gaussian densities
            (test_track_log_density_is_the_mixture_of_dense_gaussians).
        """
        return self._log_joint(positions, observed).logsumexp(-1)

    def component_log_posterior(
        self,
        positions: Float[Tensor, "... T P"],
        observed: Bool[Tensor, "... T"] | None = None,
    ) -> Float[Tensor, "... K"]:
        """Return log p(z = k | observed positions) of each track.

        Law: with nothing observed it is log pi (test_component_posterior_of_nothing_is_the_prior).
        """
        return self._log_joint(positions, observed).log_softmax(-1)

    def _log_joint(
        self, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
    ) -> Float[Tensor, "... K"]:
        """Return log pi_k p(a_{1:T} | z = k)."""
        mask = None if observed is None else observed.unsqueeze(-2)
        model = self.components()
        evidence = kalman.log_likelihood(
            model, positions.unsqueeze(-3), mask, checked=not model.transition.requires_grad
        )
        return self.log_weights() + evidence

    def smooth(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
    ) -> SmoothedTracks:
        """Return the states under each component, given the observed positions of all frames.

        The observations are means with given variances: the means enter as in the paper, the
        variances widen the states. [Choice 9]
        """
        shared = bool((observed == observed[0, 0]).all())
        mask = observed[0, 0] if shared else observed  # a shared mask shares its covariances
        log_weights = self.component_log_posterior(positions, mask)
        mask = mask if shared else mask[:, :, None]
        states = kalman.smooth(
            self.components(), positions[:, :, None], mask, variances[:, :, None]
        )
        return SmoothedTracks(log_weights, *states)

    def leave_one_out(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Gaussian:
        """Return each position's prediction from the observations of all other frames."""
        return leave_one_out(self.components(), self.log_weights(), positions, observed)

    def swap_gains(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Float[Tensor, "B N N T"]:
        """Return the gain in log p(a) if two objects swap identities from frame t on."""
        return swap_gains(self.components(), self.log_weights(), positions, observed)

    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        """Return draws from the prior.

        Law: moments are those of the mixture (test_sampled_tracks_follow_the_mixture).
        """
        shape = (*batch, num_frames, STATE_DIM + POSITION_DIM)
        uniform = torch.rand(batch, dtype=torch.float64, generator=generator)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        component = self.draw_components(uniform.to(self.logits.device))
        path = draw_path(select(self.components(), component), noise.to(self.logits.device))
        return SampledTracks(component, path.states, path.positions)

    @torch.no_grad()
    def draw_tracks(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
        num_draws: int,
        seed: int = 0,
    ) -> Float[Tensor, "S B N T D"]:
        """Return equally likely draws of the states given observations with these variances.

        Law: moments are those of `smooth` (test_drawn_tracks_have_the_moments_of_the_smoother).
        """
        generator = torch.Generator().manual_seed(seed)
        shape, device = (num_draws, *observed.shape), self.logits.device
        uniform = torch.rand(shape[:-1], dtype=torch.float64, generator=generator).to(device)
        borders = self.component_log_posterior(positions, observed).exp().cumsum(-1)[..., :-1]
        component = (uniform[..., None] >= borders).sum(-1)
        sizes = (STATE_DIM + POSITION_DIM, POSITION_DIM)
        noise, blur = (
            torch.randn(*shape, size, dtype=torch.float64, generator=generator).to(device)
            for size in sizes
        )
        a, model = positions + variances.sqrt() * blur, self.components()
        states = noise.new_empty(*shape, STATE_DIM)
        for k in range(self.num_components):  # so that all draws of a component share its matrices
            its = select(model, torch.tensor(k, device=device))
            drawn = kalman.draw_states(its, a, observed, noise=noise)
            states = torch.where((component == k)[..., None, None], drawn, states)
        return states

    def draw_components(self, noise: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return a component z ~ pi for each element of `noise`, uniform on [0, 1)."""
        borders = self.log_weights().exp().cumsum(-1)[:-1]
        return (noise.unsqueeze(-1) >= borders).sum(-1)

    @torch.no_grad()
    def fit_initial_state(
        self, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
    ) -> None:
        """Replace pi, mu and Sigma by the mixture that makes these tracks most likely, by EM.

        Nothing changes if no position is observed. [Choice 17]

        Law: tracks do not become less likely (test_em_makes_tracks_no_less_likely).
        """
        if not bool(observed.any()):
            return
        model = self.components()
        start = InitialMixture(self.log_weights().exp(), *model[5:])
        information = initial_state_information(model, positions, observed)
        weights, means, covariances = fit_mixture(information, start)
        factor = torch.linalg.cholesky(covariances)
        self.logits.copy_(weights.log())
        self.initial_mean.copy_(means)
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        self.initial_factor.copy_(factor.tril(-1) + diagonal.log().diag_embed())

    def is_bounded(self, limit: float) -> bool:
        """Return whether all matrices of the law are finite and at most `limit` in magnitude."""
        return all(bool((part.abs() <= limit).all()) for part in self.components())


def require_linear(dynamics: object) -> LinearDynamics:
    """Return the dynamics if they are linear-Gaussian; raise an InputError otherwise."""
    if isinstance(dynamics, LinearDynamics):
        return dynamics
    law = type(dynamics).__name__
    raise InputError(f"the law of motion is {law}; this needs a linear one (newton or linear)")


def _free_factor(variance: float, size: int) -> Float[Tensor, "size size"]:
    """Return the free parameter whose covariance is `variance` times the identity."""
    factor = torch.zeros(size, size, dtype=torch.float64)
    factor.diagonal().fill_(0.5 * torch.tensor(variance, dtype=torch.float64).log().item())
    return factor


def _covariance(factor: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """Return L L', L being the lower triangle of `factor` with exponentials on the diagonal."""
    L = factor.tril(-1) + factor.diagonal(dim1=-2, dim2=-1).exp().diag_embed()
    return L @ L.mT


class InitialMixture(NamedTuple):
    """A mixture of Gaussians over initial states, or several."""

    weights: Float[Tensor, "*S K"]
    means: Float[Tensor, "*S K D"]
    covariances: Float[Tensor, "*S K D D"]


class StateInformation(NamedTuple):
    """The likelihood of M tracks given the first state h: c exp(-h' precision h / 2 + shift' h)."""

    precision: Float[Tensor, "M D D"]
    shift: Float[Tensor, "M D"]


def initial_state_information(
    model: LGSSM, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
) -> StateInformation:
    """Return the likelihood of each track as a function of its initial state.

    The smoothed initial state minus the prior that the smoother started from, which cancels.

    Law: with any mixture over initial states the evidence is that of the Kalman filter, up to a
    constant (test_evidence_differs_from_the_filters_by_a_constant).
    """
    one = select(model, torch.tensor(0))
    prior = one.initial_covariance.inverse()
    states = kalman.smooth(one, positions.double(), observed)
    P = states.covariances[..., 0, :, :].expand(len(positions), *prior.shape)
    precision = P.inverse()
    shift = map_vector(precision, states.means[:, 0]) - map_vector(prior, one.initial_mean)
    return StateInformation(precision - prior, shift)


def fit_mixture(information: StateInformation, start: InitialMixture) -> InitialMixture:
    """Return the mixture by EM: the best of the given start and RESTARTS random ones.

    Law: recovers well-separated clusters (test_fit_mixture_recovers_clusters).
    """
    K, D = start.means.shape
    # The ridge keeps tracks without information (hardly observed objects) near all others.
    ridge = 1e-3 * information.precision.mean(0).diagonal().diag()
    points = torch.linalg.solve(information.precision + ridge, information.shift)
    variances = points.var(0, correction=min(1, len(points) - 1)).clamp(min=MIN_VARIANCE)
    weights, spread = torch.full((K,), 1 / K).to(points), variances.diag().expand(K, D, D)
    generator = torch.Generator().manual_seed(0)
    starts = [start]
    for _ in range(RESTARTS):
        chosen = torch.randint(len(points), (K,), generator=generator)
        starts.append(InitialMixture(weights, points[chosen.to(points.device)], spread))
    # The floor keeps a cluster of few or equal points from collapsing.
    floor = (1e-4 * variances).clamp(min=MIN_VARIANCE).diag() + 1e-12 * identity(D, points)
    every = InitialMixture(*(torch.stack(parts) for parts in zip(*starts, strict=True)))
    evidence, mixtures = _em(information, every, floor)
    best = max(range(len(starts)), key=lambda number: evidence[number])
    return InitialMixture(*(part[best] for part in mixtures))


def _em(
    information: StateInformation, mixtures: InitialMixture, floor: Float[Tensor, "D D"]
) -> tuple[list[float], InitialMixture]:
    """Return the mean log evidence of the tracks and the mixtures that EM reaches.

    From several starts at once, with a leading axis: the steps of one are many small operations.
    """
    for _ in range(ITERATIONS):
        log_evidence, m, P = e_step(information, mixtures)
        responsibility = log_evidence.softmax(-1)
        mass = responsibility.sum(1) + 1e-9
        mu = torch.einsum("smk,smki->ski", responsibility, m) / mass[..., None]
        offsets = m - mu[:, None]
        scatter = P + offsets[..., :, None] * offsets[..., None, :]
        Sigma = torch.einsum("smk,smkij->skij", responsibility, scatter) / mass[..., None, None]
        mixtures = InitialMixture(mass / mass.sum(1, keepdim=True), mu, Sigma + floor)
    return [float(each.logsumexp(1).mean()) for each in log_evidence], mixtures


def e_step(
    information: StateInformation, mixture: InitialMixture
) -> tuple[Float[Tensor, "*S M K"], Float[Tensor, "*S M K D"], Float[Tensor, "*S M K D D"]]:
    """Return log pi_k p(track | k) and the posterior of the initial state, per track and component.

    p(track | k) is up to a factor that is the same for all mixtures.
    """
    pi, mu, Sigma = mixture
    prior = Sigma.inverse()
    shift = map_vector(prior, mu)
    P = (prior.unsqueeze(-4) + information.precision[:, None]).inverse()
    total = shift.unsqueeze(-3) + information.shift[:, None]
    m = map_vector(P, total)
    quadratic = (m * total).sum(-1) - (shift * mu).sum(-1).unsqueeze(-2)
    log_volume = torch.logdet(P) - torch.logdet(Sigma).unsqueeze(-2)
    return pi.log().unsqueeze(-2) + 0.5 * (quadratic + log_volume), m, P
