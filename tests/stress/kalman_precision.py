"""Measure the accuracy of the Kalman code on long videos against the same equations in 60 digits.

One axis of the paper's model, position and velocity, written in scalars with mpmath: 3,000 frames,
noise from ordinary to almost none, up to 1,000 consecutive hidden frames.
With --sweep also the largest errors of random models of the whole domain against the exact route,
which `tests/laws/test_kalman_precision.py` compares with sixty digits.

Usage: python -m tests.stress.kalman_precision --out experiments/reliability/kalman_long.json
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mpmath import log, mp, mpf, pi
from torch import Tensor

from motes import kalman
from motes.core.environment import environment
from motes.core.files import write_json
from motes.kalman.exact import filter_exact, smooth_exact
from motes.kalman.model import LGSSM, draw_path

DIGITS = 60


class Case(NamedTuple):
    """A law of motion and the observed frames."""

    delta: float = 0.1
    force: tuple[float, float] = (-0.0005, -0.01)  # on position and velocity
    state_noise: float = 1e-4
    position_noise: float = 1e-2
    spread: float = 4.0  # variance of the first state
    frames: int = 3000
    hidden: tuple[int, int] = (0, 0)


CASES = {
    "ordinary noise": Case(),
    "ordinary noise, 1,000 frames hidden": Case(hidden=(1000, 2000)),
    "last 1,000 frames hidden": Case(hidden=(2000, 3000)),
    "almost no noise": Case(state_noise=1e-12, position_noise=1e-10),
    "almost no noise, 1,000 frames hidden": Case(
        state_noise=1e-12, position_noise=1e-10, hidden=(1000, 2000)
    ),
    "exact law, noisy positions": Case(state_noise=1e-18, position_noise=1e-2),
}


class Truth(NamedTuple):
    """The exact answer for one axis, rounded to float64 at the end."""

    means: list[tuple[float, float]]
    variances: list[tuple[float, float]]
    log_likelihood: float


def path(case: Case) -> list[float]:
    """Return positions of the law with observation noise; the same every time."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(case.frames, 3, generator=generator, dtype=torch.float64).tolist()
    x, v, observations = 1.0, 0.5, []
    for noise_x, noise_v, observation_noise in noise:
        observations.append(x + case.position_noise**0.5 * observation_noise)
        x = x + case.delta * v + case.force[0] + case.state_noise**0.5 * noise_x
        v = v + case.force[1] + case.state_noise**0.5 * noise_v
    return observations


def is_seen(case: Case, t: int) -> bool:
    """Return whether a frame is observed."""
    return not case.hidden[0] <= t < case.hidden[1]


def exact(case: Case, positions: list[float]) -> Truth:
    """Filter and smoother of one axis in scalars of sixty digits."""
    mp.dps = DIGITS
    d, q, r = mpf(case.delta), mpf(case.state_noise), mpf(case.position_noise)
    fx, fv = (mpf(part) for part in case.force)
    m, P = (mpf(0), mpf(0)), (mpf(case.spread), mpf(0), mpf(case.spread))
    total, predicted, filtered = mpf(0), [], []
    for t, position in enumerate(positions):
        if t > 0:
            m = (m[0] + d * m[1] + fx, m[1] + fv)
            P = (P[0] + 2 * d * P[1] + d * d * P[2] + q, P[1] + d * P[2], P[2] + q)
        predicted.append((m, P))
        if is_seen(case, t):
            S, miss = P[0] + r, mpf(position) - m[0]
            total -= (log(2 * pi * S) + miss * miss / S) / 2
            m = (m[0] + P[0] / S * miss, m[1] + P[1] / S * miss)
            P = (P[0] * r / S, P[1] * r / S, P[2] - P[1] * P[1] / S)
        filtered.append((m, P))
    means, variances = [filtered[-1][0]], [filtered[-1][1]]
    for (m, P), (ahead, V) in zip(reversed(filtered[:-1]), reversed(predicted[1:]), strict=True):
        # G = P A' V^-1, written out for symmetric two by two matrices
        b = ((P[0] + d * P[1], P[1]), (P[1] + d * P[2], P[2]))
        size = V[0] * V[2] - V[1] * V[1]
        W = (V[2] / size, -V[1] / size, V[0] / size)
        G = [(row[0] * W[0] + row[1] * W[1], row[0] * W[1] + row[1] * W[2]) for row in b]
        step = (means[-1][0] - ahead[0], means[-1][1] - ahead[1])
        D = tuple(later - now for later, now in zip(variances[-1], V, strict=True))
        means.append(tuple(m[i] + G[i][0] * step[0] + G[i][1] * step[1] for i in (0, 1)))
        added = [
            sum(G[i][k] * D[k + l] * G[j][l] for k in (0, 1) for l in (0, 1))  # noqa: E741
            for i, j in ((0, 0), (0, 1), (1, 1))
        ]
        variances.append(tuple(old + more for old, more in zip(P, added, strict=True)))
    return Truth(
        [(float(x), float(v)) for x, v in reversed(means)],
        [(float(V[0]), float(V[2])) for V in reversed(variances)],
        float(total),
    )


def model_of(case: Case) -> LGSSM:
    """The law as ours: two equal axes."""
    eye, none = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    top = torch.cat([eye, case.delta * eye], 1)
    return LGSSM(
        transition=torch.cat([top, torch.cat([none, eye], 1)]),
        force=torch.tensor(case.force, dtype=torch.float64).repeat_interleave(2),
        emission=torch.cat([eye, none], 1),
        state_noise=case.state_noise * torch.eye(4, dtype=torch.float64),
        position_noise=case.position_noise * eye,
        initial_mean=torch.zeros(4, dtype=torch.float64),
        initial_covariance=case.spread * torch.eye(4, dtype=torch.float64),
    )


def errors(case: Case) -> dict[str, float]:
    """Largest error of means, in their own standard deviations, of these, and of the evidence."""
    observations = path(case)
    truth, model = exact(case, observations), model_of(case)
    positions = torch.tensor(observations, dtype=torch.float64)[:, None].expand(-1, 2)
    observed = torch.tensor([is_seen(case, t) for t in range(case.frames)])
    ours = kalman.smooth(model, positions, observed)
    sds = torch.tensor(truth.variances, dtype=torch.float64).sqrt()
    miss = (ours.means[:, [0, 2]] - torch.tensor(truth.means, dtype=torch.float64)).abs() / sds
    variances = ours.covariances.diagonal(dim1=-2, dim2=-1)[:, [0, 2]]
    evidence = float(kalman.log_likelihood(model, positions, observed)) / 2  # of two equal axes
    return {
        "means_in_sds": float(miss.max()),
        "sds_relative": float((variances.clamp(min=0).sqrt() / sds - 1).abs().max()),
        "log_likelihood_relative": abs(evidence / truth.log_likelihood - 1),
    }


def random_problem(rng: np.random.Generator) -> tuple[LGSSM, Tensor, Tensor]:
    """A law of the domain, Newton's or any stable one, its own positions, and observed frames."""
    P = int(rng.integers(1, 3))
    D, T = 2 * P, int(rng.choice([5, 20, 60, 100, 200]))
    if rng.random() < 0.6:
        A, B = np.eye(D) + 10 ** rng.uniform(-2, 0) * np.eye(D, k=P), np.eye(P, D)
    else:
        A, B = rng.normal(size=(D, D)), rng.normal(size=(P, D))
        A *= rng.uniform(0.5, 1) / abs(np.linalg.eigvals(A)).max()
    independent = rng.random() < 0.5

    def covariance(size: int, low: float, high: float) -> np.ndarray:
        root = np.eye(size) if independent else rng.normal(size=(size, size)) / size
        if rng.random() < 0.1:
            root[-1] = 0  # singular
        return np.asarray(10 ** rng.uniform(low, high) * (root @ root.T))

    Q, R, Sigma = covariance(D, -10, 4), covariance(P, -10, 4), covariance(D, -8, 8)
    fields = (A, np.zeros(D), B, Q, R, np.zeros(D), Sigma)
    model = LGSSM(*(torch.from_numpy(np.asarray(field, dtype=float)) for field in fields))
    positions = draw_path(model, torch.from_numpy(rng.normal(size=(T, D + P)))).positions
    hidden = np.zeros(T, dtype=bool)
    hidden[slice(*np.sort(rng.integers(0, T, 2)))] = True
    return model, positions, torch.from_numpy(~hidden)


def sweep(number: int, seed: int = 0) -> dict[str, float]:
    """Return the largest relative errors of variances and log densities of random models."""
    rng, worst = np.random.default_rng(seed), {"smooth": 0.0, "filter": 0.0, "log_likelihood": 0.0}
    for _ in range(number):
        problem = random_problem(rng)
        smoothed, filtered = smooth_exact(*problem), filter_exact(*problem)
        evidence = filtered.log_likelihood
        if not bool(evidence.isfinite()):
            continue  # positions without a density
        miss = (kalman.log_likelihood(*problem) - evidence).abs() / evidence.abs().clamp(min=1)
        found = {
            "smooth": difference(kalman.smooth(*problem).covariances, smoothed.covariances),
            "filter": difference(kalman.filter(*problem).covariances, filtered.covariances),
            "log_likelihood": float(miss),
        }
        worst = {name: max(worst[name], found[name]) for name in worst}
    return worst


def difference(found: Tensor, truth: Tensor) -> float:
    """Return the largest error of variances; those that are zero count relative to the largest."""
    true, ours = (part.diagonal(dim1=-2, dim2=-1) for part in (truth, found))
    return float(((ours - true).abs() / (true + 1e-14 * true.max())).max())


def main() -> None:
    """Tries all cases and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--sweep", type=int, default=0, help="number of random models to try")
    given = parser.parse_args()
    record: dict[str, Any] = {
        "what": f"motes.kalman in float64 against the same equations in {DIGITS} digits",
        "environment": environment(torch.device("cpu")),
        "cases": {name: {**case._asdict(), "errors": errors(case)} for name, case in CASES.items()},
    }
    if given.sweep:
        record["sweep"] = {"models": given.sweep, "largest relative errors": sweep(given.sweep)}
        print(json.dumps(record["sweep"], indent=1))
    if given.out is not None:
        write_json(given.out, record)
    print(json.dumps(record["cases"], indent=1))


if __name__ == "__main__":
    main()
