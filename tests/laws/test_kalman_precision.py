"""Every route against the same equations in sixty digits, over the domain that is promised.

Initial variances from 1e-8 to 1e8, noises from 1e-10 to 1e4 or singular, hidden frames, up to 3,000
frames. Errors are relative: of covariances to the standard deviations, of means to their size and
standard deviation, of log densities to their size.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from mpmath import log, mp, mpf, pi

from motes import kalman
from motes.core.errors import InputError
from motes.kalman.exact import filter_exact, smooth_exact
from motes.kalman.model import LGSSM, draw_path
from strategies import random_covariance
from tests.stress.kalman_precision import sweep

PROMISED = 1e-6


class Exact(NamedTuple):
    """Numbers of sixty digits."""

    means: np.ndarray
    covariances: np.ndarray
    log_likelihood: mpf


def digits(values: np.ndarray) -> np.ndarray:
    return np.vectorize(mpf, otypes=[object])(np.asarray(values, dtype=float))


def inverse(matrix: np.ndarray) -> np.ndarray:
    return np.array((mp.matrix(matrix.tolist()) ** -1).tolist(), dtype=object)


def sixty_digits(model: LGSSM, positions: torch.Tensor, observed: torch.Tensor) -> Exact:
    """The textbook filter and the smoother of Rauch, Tung and Striebel.

    Without process noise the latter inverts covariances whose condition grows with every frame.
    """
    mp.dps = 60 if float(model.state_noise.abs().max()) >= 1e-10 else 400
    A, u, B, Q, R, m, P = (digits(field.detach().numpy()) for field in model)
    total, filtered, predicted = mpf(0), [], []
    for t, (a, seen) in enumerate(zip(positions.numpy(), observed.tolist(), strict=True)):
        if t > 0:
            m, P = A @ m + u, A @ P @ A.T + Q
        predicted.append((m, P))
        if seen:
            S, r = B @ P @ B.T + R, digits(a) - B @ m
            weight = inverse(S)
            log_det = log(mp.det(mp.matrix(S.tolist())))
            total -= (r @ weight @ r + log_det + len(a) * log(2 * pi)) / 2
            gain = P @ B.T @ weight
            m, P = m + gain @ r, P - gain @ B @ P
        filtered.append((m, P))
    means, covariances = [m], [P]
    for (m, P), (m_next, P_next) in zip(filtered[-2::-1], predicted[:0:-1], strict=True):
        G = P @ A.T @ inverse(P_next)
        means.append(m + G @ (means[-1] - m_next))
        covariances.append(P + G @ (covariances[-1] - P_next) @ G.T)
    return Exact(np.array(means[::-1]), np.array(covariances[::-1]), total)


def newton(
    initial: float, state_noise: float, position_noise: float, *, delta: float = 1.0, axes: int = 1
) -> LGSSM:
    eye, zero = np.eye(axes), np.zeros((axes, axes))
    A, D = np.block([[eye, delta * eye], [zero, eye]]), 2 * axes
    fields = (
        *(A, np.full(D, 0.01), np.eye(axes, D), state_noise * np.eye(D), position_noise * eye),
        *(np.zeros(D), initial * np.eye(D)),
    )
    return LGSSM(*(torch.from_numpy(field) for field in fields))


def stable(seed: int, initial: float, state_noise: float, position_noise: float) -> LGSSM:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2, 2))
    A *= 0.9 / abs(np.linalg.eigvals(A)).max()
    Q, R, Sigma = (random_covariance(rng, (), n) for n in (2, 1, 2))
    fields = (
        *(A, np.zeros(2), rng.normal(size=(1, 2)), state_noise * Q, position_noise * R),
        *(np.zeros(2), initial * Sigma),
    )
    return LGSSM(*(torch.from_numpy(field) for field in fields))


def draw(model: LGSSM, num_frames: int) -> torch.Tensor:
    """Positions of the model itself; the same every time."""
    size = sum(model.emission.shape)
    noise = torch.randn(num_frames, size, generator=torch.Generator().manual_seed(1))
    return draw_path(model, noise.double()).positions


def mask(kind: str, num_frames: int) -> torch.Tensor:
    frames = torch.arange(num_frames)
    hidden = {
        "all": frames < 0,
        "gap": (frames > num_frames // 3) & (frames < 2 * num_frames // 3),
        "start hidden": frames < num_frames // 2,
        "every third": frames % 3 != 0,
    }
    return ~hidden[kind]


def errors(found: kalman.Smoothed, evidence: torch.Tensor, truth: Exact) -> dict[str, float]:
    means, covariances = (part.astype(float) for part in truth[:2])
    log_likelihood = float(truth.log_likelihood)
    sds = np.sqrt(np.diagonal(covariances, 0, -2, -1))
    off = np.abs(found.covariances.detach().numpy() - covariances)
    scale = sds[:, :, None] * sds[:, None]
    return {
        "covariances": (off / scale).max(),
        "means": (np.abs(found.means.numpy() - means) / (sds + np.abs(means))).max(),
        "log likelihood": abs(float(evidence) - log_likelihood) / max(1.0, abs(log_likelihood)),
    }


CASES = {
    # those of the report: wide initial states, little noise
    "initial 1e4": newton(1e4, 1e-3, 1.0),
    "initial 1e6": newton(1e6, 1e-3, 1.0),
    "initial 1e8": newton(1e8, 1e-3, 1.0),
    "little noise": newton(1.0, 1e-8, 1e-6),
    "stable 1e-6": stable(0, 1.0, 1.0, 1e-6),
    "stable 1e-8": stable(1, 1.0, 1.0, 1e-8),
    # corners of the domain
    "widest": newton(1e8, 1e-10, 1e-10),
    "narrow": newton(1e-8, 1e4, 1e-10),
    "much observation noise": newton(1e8, 1e-10, 1e4, delta=0.01),
    "no process noise": newton(1.0, 0.0, 1e-2, delta=0.1),
    "no process noise, wide": newton(1e8, 0.0, 1e-10),
    "stable, no process noise": stable(2, 1.0, 0.0, 1e-2),
    "stable, widest": stable(3, 1e8, 1e-10, 1e-10),
}


LONG = kalman.DENSE_FRAMES + 1


def check(model: LGSSM, num_frames: int, kind: str, *, every_route: bool = True) -> None:
    positions, observed = draw(model, num_frames), mask(kind, num_frames)
    problem = model, positions, observed
    truth = sixty_digits(*problem)
    found = {"interface": (kalman.smooth(*problem), kalman.log_likelihood(*problem))}
    if every_route:
        exact = smooth_exact(*problem)
        found["exact"] = exact, filter_exact(*problem).log_likelihood
        found["filter"] = exact, kalman.filter(*problem).log_likelihood
    for route, (states, evidence) in found.items():
        wrong = errors(states, evidence, truth)
        assert all(error < PROMISED for error in wrong.values()), (route, kind, wrong)


@pytest.mark.parametrize("kind", ["all", "gap", "start hidden", "every third"])
@pytest.mark.parametrize("name", CASES)
def test_every_route_has_the_digits_it_promises(name: str, kind: str) -> None:
    check(CASES[name], 12, kind)


@pytest.mark.parametrize("name", CASES)
def test_long_videos_have_the_digits_they_promise(name: str) -> None:
    check(CASES[name], LONG, "gap")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["widest", "stable 1e-8"])
def test_three_thousand_frames_have_the_digits_they_promise(name: str) -> None:
    check(CASES[name], 3000, "gap", every_route=False)


@pytest.mark.slow
def test_random_models_of_the_domain_have_the_digits_they_promise() -> None:
    assert max(sweep(20).values()) < PROMISED


@pytest.mark.parametrize("model", [newton(1.0, 0.0, 1e-2, delta=0.1), stable(2, 1.0, 0.0, 1e-2)])
def test_gradients_without_process_noise_are_those_of_the_values(model: LGSSM) -> None:
    """Of the smoothed covariances by Sigma_H = 0, which would be noise if it were not zero."""
    positions, observed = draw(model, LONG), mask("gap", LONG)
    weights = np.random.default_rng(0).normal(size=(LONG, 2, 2))
    noise = model.state_noise.clone().requires_grad_()
    found = kalman.smooth(model._replace(state_noise=noise), positions, observed).covariances
    (gradient,) = torch.autograd.grad((found * torch.from_numpy(weights)).sum(), noise)
    step = 1e-200  # small compared with variances that shrink in every frame, to about 1e-130
    before = sixty_digits(model, positions, observed).covariances
    for direction in (np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.ones((2, 2))):
        moved = model._replace(state_noise=torch.from_numpy(step * direction))
        change = sixty_digits(moved, positions, observed).covariances - before
        expected = float((digits(weights) * change).sum() / mpf(step))
        assert (gradient.numpy() * direction).sum() == pytest.approx(expected, rel=PROMISED)


@pytest.mark.parametrize("num_frames", [9, LONG])
def test_positions_without_noise_are_known(num_frames: int) -> None:
    model = newton(1e8, 1e-10, 0.0)
    positions, observed = draw(model, num_frames), mask("every third", num_frames)
    found = kalman.smooth(model, positions, observed)
    variances = found.covariances[:, 0, 0]
    # Of a prior variance of at least 1e8, rounding leaves less than 1e-6.
    assert (variances >= 0).all()
    assert (variances[observed] < 1e-6).all()
    torch.testing.assert_close(found.means[observed, 0], positions[observed, 0], rtol=1e-9, atol=0)


def test_an_unstable_law_is_refused() -> None:
    model = newton(1.0, 1e-3, 1e-3)
    model = model._replace(transition=2 * model.transition)
    observed = torch.zeros(200, dtype=torch.bool)
    observed[-3:] = True
    with pytest.raises(InputError, match=r"variances above 1e\+100; expected a law .* stable"):
        kalman.smooth(model, torch.zeros(200, 1), observed)
