"""Exact inference against a plain loop and other libraries, in one process."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.peers import Answer
from benchmarks.timing import in_turns
from motes import kalman
from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM, draw_path, select
from tests.reference import naive

NUM_CLIPS = 60
NUM_COMPONENTS = 2
NUM_HIDDEN = 20
THREADS = 2
REPEATS = 100  # rounds of the short tasks; the long one gets a third of them
BLOCK_MILLISECONDS = 20.0
# dynamax adds 1e-9 to its matrices, and a hidden frame is one of variance 1e8 to both peers.
TOLERANCE = 1e-6
HINT = "not installed; pip install 'motes[bench]'"

Contenders = dict[str, Callable[[], Answer]]


def bench_kalman(smoke: bool = False) -> dict[str, Any]:
    """Time every contender on three tasks, after checking that all agree.

    Args:
        smoke: Few frames and rounds, to check that it runs.

    Returns:
        For each task: milliseconds (least and median), the ratio to ours, and the relative
        difference of the answers; a contender with a wrong answer gets no time.
    """
    short, long, hidden = (6, 70, 3) if smoke else (30, 1000, NUM_HIDDEN)
    repeats, long_repeats = (2, 1) if smoke else (REPEATS, REPEATS // 3)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        questions = {
            f"likelihood and gradient, T={short}": _judge(_likelihoods(short), repeats),
            f"likelihood and gradient, T={long}": _judge(_likelihoods(long), long_repeats),
            f"smoothing, {hidden} of {short} frames hidden": _judge(
                _smoothers(short, hidden), repeats
            ),
        }
    finally:
        torch.set_num_threads(threads)
    return {
        "task": "exact inference: log-likelihood with gradients, smoothing with hidden frames",
        "sizes": {"num_clips": NUM_CLIPS, "num_components": NUM_COMPONENTS, "dtype": "float64"},
        "threads": THREADS,
        "versions": {name: _version(name) for name in ("torch", "dynamax", "jax", "pyro-ppl")},
        "notes": {
            "milliseconds": "of a call, the mean of a block of calls; least and median of blocks",
            "blocks": "about 20 ms of calls, or one slower call; in turns, one a round",
            "model": "the paper's: all components share A, u, B, Sigma_H and Sigma_A",
            "naive": "a plain loop; over 1,000 frames rounding errors ruin its gradient",
            "gradient": "of the sum over clips of log sum_k p(a | k), by positions and 7 fields",
            "dynamax": "jit; hidden frames by an emission covariance of 1e8 in those frames",
            "pyro": "GaussianHMM; hidden frames likewise; smoothing gives means alone",
            "smoothing": "motes and pyro in torch.inference_mode()",
        },
        "skipped": {name: HINT for name in ("dynamax", "pyro") if find_spec(name) is None},
        "questions": questions,
    }


def _problem(num_frames: int) -> tuple[LGSSM, Float[Tensor, "B T P"]]:
    """Return the paper's mixture at its initial values, and clips of its first component."""
    generator = torch.Generator().manual_seed(0)
    dynamics = LinearDynamics(num_components=NUM_COMPONENTS, generator=generator)
    model = LGSSM(*(field.detach() for field in dynamics.components()))
    noise = torch.randn(NUM_CLIPS, num_frames, 6, dtype=torch.float64, generator=generator)
    return model, draw_path(select(model, torch.tensor(0)), noise).positions


def _likelihoods(num_frames: int) -> Contenders:
    model, positions = _problem(num_frames)
    contenders = {"motes": _ours(model, positions), "naive": _naive(model, positions)}
    if find_spec("dynamax"):
        contenders["dynamax"] = peers.dynamax_likelihood(model, positions)
    if find_spec("pyro"):
        contenders["pyro"] = peers.pyro_likelihood(model, positions)
    return contenders


def _smoothers(num_frames: int, num_hidden: int) -> Contenders:
    """Return smoothers with hidden frames in the middle, as in the paper's interpolation."""
    model, positions = _problem(num_frames)
    observed = torch.ones(num_frames, dtype=torch.bool)
    start = (num_frames - num_hidden) // 2
    observed[start : start + num_hidden] = False
    contenders: Contenders = {"motes": _our_smoother(model, positions, observed)}
    if find_spec("dynamax"):
        contenders["dynamax"] = peers.dynamax_smoother(model, positions, observed)
    if find_spec("pyro"):
        contenders["pyro"] = peers.pyro_smoother(model, positions, observed)
    return contenders


def _ours(model: LGSSM, positions: Float[Tensor, "B T P"]) -> Callable[[], Answer]:
    return _value_and_gradient(
        lambda fields, a: kalman.log_likelihood(fields, a.unsqueeze(1)).logsumexp(-1).sum(),
        model,
        positions,
    )


def _naive(model: LGSSM, positions: Float[Tensor, "B T P"]) -> Callable[[], Answer]:
    """Return the textbook filter, a loop over components and frames."""
    even = torch.zeros(NUM_COMPONENTS, dtype=torch.float64)
    return _value_and_gradient(
        lambda fields, a: naive.log_prior(fields, even, a).sum(), model, positions
    )


def _value_and_gradient(
    value: Callable[[LGSSM, Tensor], Tensor], model: LGSSM, positions: Float[Tensor, "B T P"]
) -> Callable[[], Answer]:
    a = positions.clone().requires_grad_()
    fields = LGSSM(*(field.clone().requires_grad_() for field in model))

    def call() -> Answer:
        result = value(fields, a)
        gradients = torch.autograd.grad(result, [a, *fields])
        return peers.answer(*(part.detach().numpy() for part in (result, *gradients)))

    return call


def _our_smoother(
    model: LGSSM, positions: Float[Tensor, "B T P"], observed: Bool[Tensor, " T"]
) -> Callable[[], Answer]:
    @torch.inference_mode()
    def call() -> Answer:
        return [part.numpy() for part in kalman.smooth(model, positions.unsqueeze(1), observed)]

    return call


def _judge(contenders: Contenders, rounds: int) -> dict[str, Any]:
    """Return times, and ratios to ours, of all contenders that give our answer."""
    ours = contenders["motes"]()
    differences = {name: _difference(call(), ours) for name, call in contenders.items()}
    agreeing = {name: contenders[name] for name in contenders if differences[name] < TOLERANCE}
    if len(agreeing) == 1 < len(contenders):
        raise RuntimeError(f"no contender agrees with motes: {differences}")
    times = in_turns(agreeing, rounds, block_milliseconds=BLOCK_MILLISECONDS)
    return {
        "milliseconds": times,
        "ratio": {
            name: {key: taken[key] / times["motes"][key] for key in ("min", "median")}
            for name, taken in times.items()
        },
        "disagreement": differences,
        "wrong": [name for name in contenders if name not in agreeing],
    }


def _difference(theirs: Answer, ours: Answer) -> float:
    """Return the largest relative difference of the parts that both answers have."""
    pairs = zip(theirs, ours, strict=False)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
