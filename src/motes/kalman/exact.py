"""Filter, smoother and likelihood in decimal arithmetic of many digits.

The route for models whose variances lie too far apart for float64: a wide initial state and little
noise, say, where a variance of 1e8 is reduced to 1e-10. It takes about a millisecond a frame.
States are smoothed by the adjoint recursion (Bryson and Frazier; de Jong), which inverts only
covariances of positions, so that singular noises need no special case. Gradients are computed in
the same arithmetic, by reverse differentiation.

Unobserved positions must already be finite; `motes.kalman` replaces them.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.kalman.model import LGSSM, Filtered, Smoothed

# Initial variances of 1e8, noises of 1e-10 and 3,000 frames cost about thirty of sixty digits. If
# fewer than twenty are left (noise-free positions, an unstable law) the second precision is used.
DIGITS = (60, 240)
SPARE_DIGITS = 20
LARGEST_VARIANCE = 1e100
SMALLEST = 1e-120  # smaller results are the rounding of zero

Array = NDArray[Any]
Pull = tuple["Matrix", Callable[[Array], Array]]


class Matrix:
    """Matrices of decimals [..., rows, columns], and how they were computed if that is recorded."""

    def __init__(self, value: Array, tape: "list[Matrix] | None", *pulls: Pull) -> None:
        self.value, self.tape, self.pulls = value, tape, pulls if tape is not None else ()
        self.gradient: Array | None = None
        if tape is not None:
            tape.append(self)

    def __add__(self, other: "Matrix") -> "Matrix":
        pulls = (self, lambda g: g), (other, lambda g: g)
        return Matrix(self.value + other.value, self.tape, *pulls)

    def __sub__(self, other: "Matrix") -> "Matrix":
        pulls = (self, lambda g: g), (other, lambda g: -g)
        return Matrix(self.value - other.value, self.tape, *pulls)

    def __matmul__(self, other: "Matrix") -> "Matrix":
        a, b = self.value, other.value
        pulls = (self, lambda g: g @ transposed(b)), (other, lambda g: transposed(a) @ g)
        return Matrix(a @ b, self.tape, *pulls)

    def times(self, factor: Array) -> "Matrix":
        """Return the product with constants."""
        return Matrix(self.value * factor, self.tape, (self, lambda g: g * factor))

    @property
    def mT(self) -> "Matrix":
        """The transposed matrices."""
        return Matrix(transposed(self.value), self.tape, (self, transposed))

    def inverse(self, rounding: Decimal) -> "tuple[Matrix, Matrix]":
        """Return inverses and log determinants of covariances; NaN where they are not positive.

        By elimination. Pivots are variances given the coordinates before; they are zero if less
        than `rounding` of the variance itself is left.
        """
        left, size = self.value, self.value.shape[-1]
        inverse, log_det = left * ZERO + identity(size), decimals(np.zeros((1, 1)))
        for j in range(size):
            pivot = left[..., j, j, None, None]
            positive = pivot > rounding * self.value[..., j, j, None, None]
            pivot = np.where(positive, pivot, np.array(Decimal("NaN"), object))
            log_det = log_det + decimals(np.log(pivot.astype(float)))
            factors = left[..., j, None] - pivot * identity(size)[:, j, None]  # 0 in its own row
            row, of_inverse = left[..., j, None, :] / pivot, inverse[..., j, None, :] / pivot
            own = np.arange(size)[:, None] == j
            left = np.where(own, row, left - factors * row)
            inverse = np.where(own, of_inverse, inverse - factors * of_inverse)
        back = transposed(inverse)
        return (
            Matrix(inverse, self.tape, (self, lambda g: -(back @ g @ back))),
            Matrix(log_det, self.tape, (self, lambda g: g * back)),
        )

    def add_gradient(self, gradient: Array) -> None:
        """Add to the gradient, summed over the axes that the matrices themselves lack."""
        own = self.value.shape
        gradient = gradient.sum(tuple(range(gradient.ndim - len(own))))
        short = tuple(i for i, size in enumerate(own) if size == 1 != gradient.shape[i])
        gradient = gradient.sum(short, keepdims=True)
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def total(self) -> Array:
        """Return the gradient, zero if no result depends on the matrices."""
        return self.value * ZERO if self.gradient is None else self.gradient


ZERO = Decimal(0)


def transposed(matrix: Array) -> Array:
    """Return the transposed matrices."""
    return matrix.swapaxes(-1, -2)


def decimals(values: Array | np.generic) -> Array:
    """Return floats as decimals, rounded to the precision in use."""
    result = np.empty(np.size(values), object)
    result[:] = [+Decimal(value) for value in np.ravel(values).astype(float).tolist()]
    return result.reshape(np.shape(values))


def identity(size: int) -> Array:
    """Return the identity matrix."""
    return decimals(np.eye(size))


class Frame(NamedTuple):
    """The predicted state of a frame, and the effect of its observation, if there is one."""

    mean: Matrix
    covariance: Matrix
    transition: Matrix
    """L = A (I - K B), from this predicted mean to the next"""
    score: Matrix | None
    """B' S^-1 (a - B m)"""
    weight: Matrix | None
    """B' S^-1"""
    gain: Matrix | None
    """A K, from the position to the next predicted mean"""


class Problem(NamedTuple):
    """Model, observations by frame, and precision."""

    model: list[Matrix]
    positions: list[Matrix]
    variances: list[Matrix] | None
    observed: Bool[np.ndarray, "... T"]
    digits: int
    lost: list[bool]
    """Whether too many digits cancelled, for every subtraction."""

    def checked(self, narrow: Matrix, wide: Matrix) -> Matrix:
        """Return a covariance obtained by subtraction from a wider one, and note what is left."""
        before, after = (part.value.diagonal(0, -2, -1) for part in (wide, narrow))
        limit = Decimal(10) ** (SPARE_DIGITS - self.digits)
        # Not "<=": NaN counts as lost.
        self.lost.append(bool((~((after > limit * before) | (before == ZERO))).any()))
        return narrow


def run_filter(problem: Problem) -> tuple[list[list[Matrix]], list[Frame]]:
    """Return what `Filtered` holds, each as a list over frames, and the frames."""
    (A, u, B, Sigma_H, Sigma_A, m, P), tape = problem.model, problem.model[0].tape
    eye, rounding = identity(B.value.shape[-2]), Decimal(10) ** (SPARE_DIGITS // 2 - problem.digits)
    constant, half = len(eye) * Decimal(math.log(2 * math.pi)), decimals(np.array(0.5))
    states, log_densities, frames = [], [Matrix(decimals(np.zeros((1, 1))), tape)], []
    for a, seen in zip(problem.positions, np.moveaxis(problem.observed, -1, 0), strict=True):
        if (P.value.diagonal(0, -2, -1) > Decimal(LARGEST_VARIANCE)).any():
            raise InputError(
                f"the model predicts variances above {LARGEST_VARIANCE:.0e}; expected a law of "
                "motion that is stable; make its transition smaller"
            )
        frame, filtered = Frame(m, P, A, None, None, None), (m, P)
        if seen.any():
            mask = decimals(seen)[..., None, None]
            S = (B @ P @ B.mT + Sigma_A).times(mask) + Matrix(eye * (1 - mask), tape)
            precision, log_det = S.inverse(rounding)
            weight, residual = (B.mT @ precision).times(mask), a - B @ m
            score, gain = weight @ residual, A @ P @ weight
            distance = residual.mT @ (precision.times(mask) @ residual)
            terms = distance + log_det + Matrix(constant * mask, tape)
            log_densities.append(log_densities[-1] - terms.times(half))
            filtered = m + P @ score, problem.checked(P - P @ weight @ B @ P, P)
            frame = Frame(m, P, A - gain @ B, score, weight, gain)
        states.append((*filtered, m, P))
        frames.append(frame)
        m, P = A @ filtered[0] + u, A @ filtered[1] @ A.mT + Sigma_H
    return [*map(list, zip(*states, strict=True)), log_densities[-1:]], frames


def run_smoother(problem: Problem) -> list[list[Matrix]]:
    """Return what `Smoothed` holds, each as a list over frames.

    With r = B' S^-1 (a - B m) + L' r_next and N = B' S^-1 B + L' N_next L, the smoothed state is
    m + P r with covariance P - P N P. In terms of the predicted mean, r = q - N m, where q is a
    function of the positions of this and later frames: with variances of positions, the covariance
    gains (I - P N) Cov(m) (I - P N)' + P Cov(q) P.
    """
    _, frames = run_filter(problem)
    B, V, tape = problem.model[2], problem.variances, problem.model[0].tape
    D = B.value.shape[-1]
    eye, zero = Matrix(identity(D), tape), Matrix(decimals(np.zeros((D, D))), tape)
    spreads = [zero]  # Cov(m)
    for t, (_, _, L, _, _, gain) in enumerate(frames if V is not None else ()):
        added = zero if gain is None or V is None else gain @ V[t] @ gain.mT
        spreads.append(L @ spreads[-1] @ L.mT + added)
    r, N, later = Matrix(decimals(np.zeros((D, 1))), tape), zero, zero
    means, covariances = [], []
    for t, (m, P, L, score, weight, gain) in reversed(list(enumerate(frames))):
        following = N
        r, N, later = L.mT @ r, L.mT @ N @ L, L.mT @ later @ L if V is not None else zero
        if score is not None and weight is not None and gain is not None:
            r, N = r + score, N + weight @ B
            if V is not None:
                by_position = weight - L.mT @ following @ gain
                later = later + by_position @ V[t] @ by_position.mT
        covariance = problem.checked(P - P @ N @ P, P)
        if V is not None:
            rest = eye - P @ N
            covariance = covariance + rest @ spreads[t] @ rest.mT + P @ later @ P
        means.append(m + P @ r)
        covariances.append(covariance)
    return [means[::-1], covariances[::-1]]


class _Exact(torch.autograd.Function):
    """A run in decimals as a function of float64 matrices [..., T, rows, columns]."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Problem], list[list[Matrix]]],
        observed: Tensor,
        positions: Tensor,
        variances: Tensor | None,
        *fields: Tensor,
    ) -> tuple[Tensor, ...]:
        for digits in DIGITS:
            tape: list[Matrix] | None = [] if any(ctx.needs_input_grad) else None
            with localcontext(Context(prec=digits, traps=[])):
                model = [Matrix(decimals(field.cpu().numpy()), tape) for field in fields]
                a = _by_frame(positions, tape)
                V = None if variances is None else _by_frame(variances, tape)
                problem = Problem(model, a, V, observed.cpu().numpy(), digits, [])
                results = run(problem)
            if not any(problem.lost):
                break
        ctx.problem, ctx.results, ctx.tape, ctx.digits = problem, results, tape, digits
        return tuple(_to_tensor([node.value for node in nodes], positions) for nodes in results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _, a, V, *_ = problem = ctx.problem
        for node in ctx.tape:
            node.gradient = None  # of an earlier pass through a retained graph
        with localcontext(Context(prec=ctx.digits, traps=[])):
            for nodes, gradient in zip(ctx.results, gradients, strict=True):
                for node, part in zip(nodes, gradient.unbind(-3), strict=True):
                    node.add_gradient(decimals(part.cpu().numpy()))
            for node in reversed(ctx.tape):
                for parent, pull in node.pulls if node.gradient is not None else ():
                    parent.add_gradient(pull(node.gradient))
                if node.pulls:
                    node.gradient = None  # frees memory
        by_model = (_to_tensor([field.total()], gradients[0])[..., 0, :, :] for field in problem[0])
        by_frames = (
            part and _to_tensor([node.total() for node in part], gradients[0]) for part in (a, V)
        )
        return None, None, *by_frames, *by_model


def _by_frame(
    values: Float[Tensor, "... T rows columns"], tape: list[Matrix] | None
) -> list[Matrix]:
    """Return the matrices of each frame."""
    return [Matrix(decimals(part.cpu().numpy()), tape) for part in values.unbind(-3)]


def _to_tensor(values: list[Array], like: Tensor) -> Float[Tensor, "... T rows columns"]:
    """Return the matrices of all frames as floats."""
    stacked = np.stack(np.broadcast_arrays(*values), -3).astype(float)
    stacked[abs(stacked) < SMALLEST] = 0.0
    return torch.from_numpy(stacked).to(like)


def filter_exact(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None
) -> Filtered:
    """Return the states given the observations up to each frame, and the log-likelihood.

    Law: equals the same equations in sixty digits (test_every_route_has_the_digits_it_promises).
    """
    *states, value = _call(lambda problem: run_filter(problem)[0], model, positions, observed, None)
    means, covariances, predicted_means, predicted_covariances = states
    return Filtered(
        means.squeeze(-1),
        covariances,
        predicted_means.squeeze(-1),
        predicted_covariances,
        value[..., 0, 0, 0],
    )


def smooth_exact(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """Return the states given all observations, as `motes.kalman.smooth` does.

    Law: equals the same equations in sixty digits (test_every_route_has_the_digits_it_promises).
    """
    means, covariances = _call(run_smoother, model, positions, observed, position_variances)
    return Smoothed(means.squeeze(-1), covariances)


def _call(
    run: Callable[[Problem], list[list[Matrix]]],
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    variances: Float[Tensor, "... T P"] | None,
) -> tuple[Tensor, ...]:
    """Return the results with all leading axes, broadcast."""
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    if observed is None:
        observed = torch.ones(positions.shape[-2], dtype=torch.bool)
    fields = (A, u.unsqueeze(-1), B, Sigma_H, Sigma_A, mu.unsqueeze(-1), Sigma)
    lead = torch.broadcast_shapes(
        positions.shape[:-2], observed.shape[:-1], *(field.shape[:-2] for field in fields)
    )
    V = None if variances is None else variances.diag_embed()
    results = _Exact.apply(run, observed, positions.unsqueeze(-1), V, *fields)
    return tuple(part.expand(*lead, *part.shape[-3:]) for part in results)
