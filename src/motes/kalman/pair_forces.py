"""Forces between pairs of objects: the joint law of a clip, its smoother and its evidence.

All objects of a clip have one state h = (x_1 .. x_N, v_1 .. v_N), velocities per frame:

    x_i'' = u + E (x_i, v_i) + C m(x_i) + sum_j g(|x_j - x_i|) (x_j - x_i)
    g(r) = k (1 - L / r) + G (r^2 + s^2)^-1.5

k and L are the stiffness and rest length of a spring, G is the strength of an attraction like
1 / r^2, u and E are the force and the field of the linear law, and m(x) are the products of two and
three coordinates, for fields that are not linear. A frame is one step of a symplectic integrator
of fourth order; noise is added at its end. Masses are equal.

The smoother is an iterated extended Kalman smoother: the step is linearised around the last
smoothed path. What linearisation leaves out is corrected by importance sampling. A draw of the
linearised posterior consists of a first state and of the noise w_t of each frame, whose prior is
that of the exact law, too. Run through the exact steps they give another path, so

    p(a) = Z E[ prod_t N(a_t; x_t, R) / N(a_t; y_t, R) ],

Z being the linearised evidence, y the positions of a draw and x those of the exact path with the
same first state and noise. The mean over draws is unbiased, so its logarithm is a lower bound of
log p(a) in expectation, and exact where the law is linear (L = G = C = 0).
"""

import math
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.linalg import map_vector, square_root

# Position-extended Forest-Ruth-like integrator (Omelyan, Mryglod & Folk 2002): drifts and the kicks
# between them, in frames. A spring's frequency w is off by 6e-5 w^4 of itself.
_XI, _LAMBDA, _CHI = 0.1786178958448091, -0.2123418310626054, -0.06626458266981849
DRIFTS = (_XI, _CHI, 1 - 2 * (_CHI + _XI), _CHI, _XI)
KICKS = (0.5 - _LAMBDA, _LAMBDA, _LAMBDA, 0.5 - _LAMBDA)
ITERATIONS = 6  # of the smoother
SETTLED = 1e-7  # change of a path, in units of the noise of positions, that ends them
CLOSE = 1e-6  # distances below this are taken for it


class PairLaw(NamedTuple):
    """The law of motion of all objects; times are frames."""

    force: Float[Tensor, " 2"]  # u
    field: Float[Tensor, "2 4"]  # E
    curvature: Float[Tensor, "2 7"]  # C, of xx, xy, yy, xxx, xxy, xyy, yyy
    stiffness: Float[Tensor, ""]  # k
    rest_length: Float[Tensor, ""]  # L
    attraction: Float[Tensor, ""]  # G
    softening: Float[Tensor, ""]  # s
    state_sds: Float[Tensor, " 2"]  # of the noise of positions and of velocities
    position_variance: Float[Tensor, ""]  # R, of a coordinate
    initial_mean: Float[Tensor, " 4"]  # of (x, v) of an object
    initial_covariance: Float[Tensor, "4 4"]
    initial_coupling: Float[Tensor, "4 4"]  # covariance of two objects

    def initial(self, num_objects: int) -> tuple[Float[Tensor, " D"], Float[Tensor, "D D"]]:
        """Return mean and covariance of the joint first state."""
        S, C = self.initial_covariance, self.initial_coupling
        N, eye = num_objects, torch.eye(num_objects, dtype=S.dtype, device=S.device)
        blocks = torch.einsum("nm,ij->injm", eye, S - C) + C[:, None, :, None]
        # From (x or v, axis), object to (x or v), object, axis.
        full = blocks.expand(4, N, 4, N).reshape(2, 2, N, 2, 2, N).permute(0, 2, 1, 3, 5, 4)
        mean = self.initial_mean.view(2, 1, 2).expand(2, N, 2).reshape(-1)
        return mean, full.reshape(4 * N, 4 * N)

    def state_noise(self, num_objects: int) -> Float[Tensor, " D"]:
        """Return the standard deviations of the noise of the joint state."""
        return self.state_sds.repeat_interleave(2 * num_objects)


class Joint(NamedTuple):
    """Positions of clips with the same number of objects, coordinates side by side."""

    positions: Float[Tensor, "B T P"]
    known: Bool[Tensor, "B T P"]


class Linearised(NamedTuple):
    """h_t = F_t h_{t-1} + c_t + noise, around a path."""

    transition: Float[Tensor, "B S D D"]
    offset: Float[Tensor, "B S D"]


class Filtered(NamedTuple):
    """What a Kalman filter leaves for the smoother."""

    gains: Float[Tensor, "B T D P"]  # zero for unknown coordinates
    back: Float[Tensor, "B S D D"]  # gains of the smoother
    means: Float[Tensor, "B T D"]
    innovations: Float[Tensor, "B T P"]  # 0 for unknown coordinates
    roots: Float[Tensor, "B T P P"]  # Cholesky factors of their covariances
    log_likelihood: Float[Tensor, " B"]


class PairPaths(NamedTuple):
    """Draws of joint states with importance weights, and the evidence that they give."""

    states: Float[Tensor, "S B T D"]
    log_weights: Float[Tensor, "S B"]
    log_density: Float[Tensor, " B"]

    def resampled(self, uniform: Float[Tensor, " B"]) -> Float[Tensor, "S B T D"]:
        """Return equally likely draws by systematic resampling."""
        number = len(self.states)
        borders = self.log_weights.softmax(0).cumsum(0)
        steps = torch.arange(number, dtype=borders.dtype, device=borders.device)
        at = (steps[:, None] + uniform) / number
        chosen = torch.searchsorted(borders.T.contiguous(), at.T.contiguous()).T
        pick = chosen.clamp(max=number - 1)[..., None, None]
        return self.states.take_along_dim(pick, 0)


def acceleration(law: PairLaw, x: Float[Tensor, "*b N 2"]) -> Float[Tensor, "*b N 2"]:
    """Return the acceleration of every object without drag."""
    pull = law.force + x @ law.field[:, :2].mT
    pull = pull + products(x) @ law.curvature.mT
    if x.shape[-2] < 2:
        return pull
    apart = x.unsqueeze(-3) - x.unsqueeze(-2)  # [i, j] = x_j - x_i
    return pull + (_pull(law, apart)[0][..., None] * apart).sum(-2)


def products(x: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 7"]:
    """Return the products of two and three coordinates."""
    a, b = x.unbind(-1)
    return torch.stack([a * a, a * b, b * b, a**3, a * a * b, a * b * b, b**3], -1)


def _field_slope(law: PairLaw, x: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2 2"]:
    """Return the derivative of the field by the position."""
    a, b = x.unbind(-1)
    zero = torch.zeros_like(a)
    by_a = torch.stack([2 * a, b, zero, 3 * a * a, 2 * a * b, b * b, zero], -1)
    by_b = torch.stack([zero, a, 2 * b, zero, a * a, 2 * a * b, 3 * b * b], -1)
    return law.field[:, :2] + law.curvature @ torch.stack([by_a, by_b], -1)


def _pull(law: PairLaw, apart: Float[Tensor, "*b 2"]) -> tuple[Tensor, Tensor]:
    """Return g(r), and g'(r) / r."""
    square = apart.square().sum(-1).clamp(min=CLOSE**2)
    r, soft = square.sqrt(), square + law.softening**2
    g = law.stiffness * (1 - law.rest_length / r) + law.attraction * soft**-1.5
    slope = law.stiffness * law.rest_length / (square * r) - 3 * law.attraction * soft**-2.5
    return g, slope


def _kick(law: PairLaw, part: float) -> tuple[Float[Tensor, "2 2"], Float[Tensor, "2 2"]]:
    """Return K and J of the kick v' = K v + J a(x), which is exact with drag, too."""
    rate = law.field.new_zeros(4, 4)
    rate[:2, :2], rate[:2, 2:] = law.field[:, 2:], torch.eye(2).to(law.field)
    K, J = torch.matrix_exp(part * rate)[:2].chunk(2, -1)
    return K, J


def step(law: PairLaw, states: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
    """Return the states one frame later, without noise.

    Law: that of a linear law is the matrix exponential, up to the order of the integrator
        (test_a_step_of_a_linear_law_is_the_matrix_exponential).
    """
    x, v = (part.unflatten(-1, (-1, 2)) for part in states.chunk(2, -1))
    for number, drift in enumerate(DRIFTS):
        if number:
            K, J = _kick(law, KICKS[number - 1])
            v = v @ K.mT + acceleration(law, x) @ J.mT
        x = x + drift * v
    return torch.cat([x.flatten(-2), v.flatten(-2)], -1)


def linearise(law: PairLaw, states: Float[Tensor, "*b D"]) -> Linearised:
    """Return the derivative of a step, and the offset with which it is exact at the states.

    Law: F is the derivative of `step` (test_linearisation_is_the_derivative_of_a_step).
    """
    x, v = (part.unflatten(-1, (-1, 2)) for part in states.chunk(2, -1))
    N, P = x.shape[-2], 2 * x.shape[-2]
    start = torch.eye(2 * P, dtype=states.dtype, device=states.device)
    dx, dv = (part.expand(*x.shape[:-2], P, 2 * P) for part in start.chunk(2))
    for number, drift in enumerate(DRIFTS):
        if number:
            K, J = _kick(law, KICKS[number - 1])
            turned, pushed = torch.block_diag(*[K] * N), torch.block_diag(*[J] * N)
            dv = turned @ dv + pushed @ _slope(law, x) @ dx
            v = v @ K.mT + acceleration(law, x) @ J.mT
        x, dx = x + drift * v, dx + drift * dv
    F = torch.cat([dx, dv], -2)
    moved = torch.cat([x.flatten(-2), v.flatten(-2)], -1)
    return Linearised(F, moved - map_vector(F, states))


def _slope(law: PairLaw, x: Float[Tensor, "*b N 2"]) -> Float[Tensor, "*b P P"]:
    """Return the derivative of all accelerations by all positions."""
    N = x.shape[-2]
    eye = torch.eye(N, dtype=x.dtype, device=x.device)[..., None, None]
    alone = eye * _field_slope(law, x).unsqueeze(-4)  # [i, j]: of the acceleration of i by x_j
    if N > 1:
        apart = x.unsqueeze(-3) - x.unsqueeze(-2)
        g, slope = _pull(law, apart)
        blocks = g[..., None, None] * torch.eye(2, dtype=x.dtype, device=x.device)
        blocks = blocks + slope[..., None, None] * apart[..., :, None] * apart[..., None, :]
        blocks = blocks * (1 - eye)
        alone = alone + blocks - eye * blocks.sum(-3, keepdim=True)
    return alone.movedim(-3, -2).flatten(-4, -3).flatten(-2, -1)


def _root(covariance: Float[Tensor, "B n n"]) -> Float[Tensor, "B n n"]:
    """Return Cholesky factors; NaN for clips whose linearised covariance is not one."""
    root, failed = torch.linalg.cholesky_ex(covariance)
    return torch.where((failed > 0)[:, None, None], torch.nan, root)


def kalman_filter(law: PairLaw, seen: Joint, around: Linearised | None = None) -> Filtered:
    """Return the filter of the linearised law; None: linearised at the filtered means.

    Law: with L = G = 0 the evidence is that of the dense joint Gaussian
        (test_evidence_of_linear_springs_is_the_dense_gaussian).
    """
    B, T, P = seen.positions.shape
    mean, P0 = law.initial(P // 2)
    h, cov, R = mean.expand(B, 2 * P), P0.expand(B, 2 * P, 2 * P), law.position_variance
    Q = law.state_noise(P // 2).square().diag_embed()
    eye = torch.eye(P, dtype=h.dtype, device=h.device)
    m = seen.known.to(h)
    a = torch.where(seen.known, seen.positions, 0.0)
    kept: list[list[Tensor]] = [[] for _ in Filtered._fields[:-1]]
    total = h.new_zeros(B)
    for t in range(T):
        if t:
            if around is None:
                F, c = linearise(law, h)
            else:
                F, c = around.transition[:, t - 1], around.offset[:, t - 1]
            moved = F @ cov
            ahead = moved @ F.mT + Q
            kept[1].append(torch.cholesky_solve(moved, _root(ahead)).mT)
            h, cov = map_vector(F, h) + c, ahead
        mask = m[:, t]
        S = mask[:, :, None] * cov[:, :P, :P] * mask[:, None] + R * eye
        root = _root(S)
        off = mask * (a[:, t] - h[:, :P])
        K = torch.cholesky_solve(mask[:, :, None] * cov[:, :P], root).mT
        white = torch.linalg.solve_triangular(root, off[..., None], upper=False)[..., 0]
        volume = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        volume = volume + mask.sum(-1) * math.log(2 * math.pi) - (1 - mask).sum(-1) * R.log()
        total = total - 0.5 * (white.square().sum(-1) + volume)
        h = h + map_vector(K, off)
        cov = cov - K @ S @ K.mT
        cov = 0.5 * (cov + cov.mT)
        for part, value in zip((0, 2, 3, 4), (K, h, off, root), strict=True):
            kept[part].append(value)
    none = cov.new_zeros(B, 0, 2 * P, 2 * P)
    gains, back, means, off, roots = (torch.stack(part, 1) if part else none for part in kept)
    return Filtered(gains, back, means, off, roots, total)


def smooth_means(
    run: Filtered, around: Linearised, observed: Float[Tensor, "*s B T P"], first: Tensor
) -> Float[Tensor, "*s B T D"]:
    """Return the smoothed means of observations with the gains of a filter, a linear map.

    Args:
        run: Its gains; those of unknown coordinates are 0.
        around: Its transitions and offsets.
        observed: Positions.
        first: Mean of the first state before it is observed.
    """
    P, T = observed.shape[-1], observed.shape[-2]
    h, filtered, ahead = first.expand(*observed.shape[:-2], first.shape[-1]), [], []
    for t in range(T):
        if t:
            h = map_vector(around.transition[:, t - 1], h) + around.offset[:, t - 1]
            ahead.append(h)
        h = h + map_vector(run.gains[:, t], observed[..., t, :] - h[..., :P])
        filtered.append(h)
    smoothed = [h]
    for t in range(T - 2, -1, -1):
        h = filtered[t] + map_vector(run.back[:, t], h - ahead[t])
        smoothed.append(h)
    return torch.stack(smoothed[::-1], -2)


@torch.no_grad()
def smoothed_path(
    law: PairLaw,
    seen: Joint,
    start: Float[Tensor, "B T D"] | None = None,
    iterations: int = ITERATIONS,
) -> Float[Tensor, "B T D"]:
    """Return the path around which the law is linearised: the fixed point of the smoother.

    Args:
        law: Of the path.
        seen: What was observed.
        start: A path near by; None: that of a filter which is linearised at its means.
        iterations: At most.
    """
    first = law.initial(seen.positions.shape[-1] // 2)[0]
    a = torch.where(seen.known, seen.positions, 0.0)
    if start is None:
        run = kalman_filter(law, seen)
        start = smooth_means(run, linearise(law, run.means[:, :-1]), a, first)
    path = start
    for _ in range(iterations):
        around = linearise(law, path[:, :-1])
        better = smooth_means(kalman_filter(law, seen, around), around, a, first)
        change = (better - path).abs().nan_to_num(nan=0.0).amax()
        path = better
        if not bool(change > SETTLED * law.position_variance.sqrt()):
            break
    return path


@torch.no_grad()
def draw_paths(law: PairLaw, seen: Joint, num_draws: int, seed: int = 0) -> PairPaths:
    """Return draws of the states given observed positions, with weights, and log p(a).

    Draws come in pairs that are symmetric about the smoothed path before the exact steps. Where the
    linearised law breaks down, log p(a) is minus infinity.

    Law: log p(a) is that of many particles, and a lower bound with few draws
        (test_evidence_of_springs_is_that_of_particles, test_few_draws_give_a_lower_bound).
    """
    B, T, P = seen.positions.shape
    mean, P0 = law.initial(P // 2)
    around = linearise(law, smoothed_path(law, seen)[:, :-1])
    run = kalman_filter(law, seen, around)
    a = torch.where(seen.known, seen.positions, 0.0)
    centre = smooth_means(run, around, a, mean)
    generator = torch.Generator().manual_seed(seed)
    half = -(-num_draws // 2)
    noise = torch.randn(half, B, T, 3 * P, dtype=torch.float64, generator=generator).to(a.device)
    sds, R = law.state_noise(P // 2), law.position_variance
    # A draw of the prior minus what the smoother makes of it is a draw of the posterior's error.
    h = map_vector(square_root(P0), noise[:, :, 0, : 2 * P])
    prior = [h]
    for t in range(1, T):
        h = map_vector(around.transition[:, t - 1], h) + sds * noise[:, :, t, : 2 * P]
        prior.append(h)
    drawn = torch.stack(prior, -2)
    blurred = drawn[..., :P] + R.sqrt() * noise[..., 2 * P :]
    still = around._replace(offset=torch.zeros_like(around.offset))
    away = drawn - smooth_means(run, still, blurred, torch.zeros_like(mean))
    linear = torch.cat([centre + away, centre - away])[:num_draws]
    h = linear[..., 0, :]
    exact = [h]
    for t in range(1, T):
        F, c = around.transition[:, t - 1], around.offset[:, t - 1]
        w = linear[..., t, :] - map_vector(F, linear[..., t - 1, :]) - c
        h = step(law, h) + w
        exact.append(h)
    states = torch.stack(exact, -2)

    def misfit(path: Tensor) -> Tensor:
        off = torch.where(seen.known, path[..., :P] - a, 0.0)
        return off.square().sum((-2, -1)) / (2 * R)

    log_weights = (misfit(linear) - misfit(states)).nan_to_num(nan=-torch.inf)
    total = run.log_likelihood + log_weights.logsumexp(0) - math.log(num_draws)
    lost = ~(torch.isfinite(log_weights).any(0) & torch.isfinite(total))
    total = torch.where(lost, -torch.inf, total)
    return PairPaths(states, torch.where(lost, 0.0, log_weights), total)
