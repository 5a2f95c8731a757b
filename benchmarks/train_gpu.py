"""Training step on a GPU: the package against plain loops, and the time of its parts."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.train import Batch, Contender, Parts, Sizes, disagreement, plain_step
from motes.config import RunConfig
from motes.core.axes import Tensor
from motes.models.paper import InferenceNetwork, PaperRenderer
from motes.training.gpu import networks
from motes.training.gpu.replicas import Groups, Replicas, log_evidence
from motes.training.inputs import StepInputs, make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer
from motes.training.train import fast_arithmetic

# Gradients use bfloat16: every factor has a relative error of up to 2^-9, and those of the first
# states pass through thirty products. A wrong term is an error of order one. The tolerance applies
# to the value and to the gradient of each part; the gradient of a single bias is a sum in which
# much cancels, and its relative error, which is reported too, may be larger.
TOLERANCE = 1e-2
CHECKED = ("value", "inference", "renderer", "dynamics")
TARGET_MILLISECONDS, TARGET_RATIO = 1.5, 20.0
NUM_REPLICAS = 8
STEPS = 50  # in a row, for one time


def bench_train_gpu(smoke: bool = False) -> dict[str, Any]:
    """Time both steps, and report how far value and gradients agree.

    Args:
        smoke: Small sizes and few rounds, to check that it runs.

    Returns:
        Milliseconds (least and median), their ratio, those of eight replicas, and the time of
        the parts of our step. Our step includes drawing clips and noise; the naive one receives
        them precomputed.
    """
    config, rounds = _config(smoke), 2 if smoke else 10
    device = torch.device("cuda")
    with fast_arithmetic():
        data = make_dataset(config, device).training
        one = Replicas([Trainer(config, data, device)])
        inputs = _inputs(one)
        gaps, plain = _compared(one, inputs)
        seeds = [dataclasses.replace(config, seed=seed) for seed in range(NUM_REPLICAS)]
        many = Groups([Trainer(seed, data, device) for seed in seeds])
        times = {
            "naive": timed(plain.step, rounds, steps=1),
            "motes": timed(one.advance, rounds),
            f"motes, {NUM_REPLICAS} replicas": timed(many.advance, rounds),
        }
        split = {name: timed(captured(call), rounds) for name, call in pieces(one, inputs).items()}
    whole, all_replicas = times["motes"], times[f"motes, {NUM_REPLICAS} replicas"]
    return {
        "task": "training step: clips, noise, bound, gradient, Adam",
        "sizes": _sizes(config)._asdict(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "disagreement": gaps,
        "agrees": all(gaps[name] < TOLERANCE for name in CHECKED),
        "milliseconds": times,
        "ratio": {key: times["naive"][key] / whole[key] for key in ("min", "median")},
        "replicas_ratio": {key: all_replicas[key] / whole[key] for key in ("min", "median")},
        "target": {"milliseconds": TARGET_MILLISECONDS, "ratio": TARGET_RATIO},
        "minutes_for_200000": whole["median"] * 200_000 / 60_000,
        "split_milliseconds": split,
        "note": "parts are timed one by one; in a step the Kalman term runs on a second stream",
    }


def timed(call: Callable[[], object], rounds: int, steps: int = STEPS) -> dict[str, float]:
    """Return the least and the median milliseconds of a call, over runs of many calls."""
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return {"min": min(times[1:]), "median": statistics.median(times[1:])}  # the first warms up


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Return the call as a CUDA graph, so that only the GPU's work is timed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def pieces(replicas: Replicas, inputs: StepInputs) -> Mapping[str, Callable[[], object]]:
    """Return the parts of a step, each with its inputs precomputed."""
    frames = replicas.frames(inputs)
    present = torch.ones(*inputs.noise.shape[:3], dtype=torch.bool, device=frames.device)
    leaves = {name: stack.detach().requires_grad_() for name, stack in replicas.stacks.items()}
    reader = {n.removeprefix("inference."): w for n, w in leaves.items() if n[:5] == "infer"}
    painter = {n.removeprefix("renderer."): w for n, w in leaves.items() if n[:5] == "rende"}
    del painter["to_image"]
    positions = inputs.noise.clone().requires_grad_()
    pixels, bias = frames.flatten(3), reader["gate_bias"]
    factors, to_image = replicas.factors(), replicas.factors()["renderer.to_image"]
    image, recurrent = factors["inference.from_image"], factors["inference.recurrent"]
    initial = torch.zeros(1, present.shape[2], frames.shape[1], reader["from_past"].shape[1])
    initial = initial.to(bias).requires_grad_()
    read = lambda: networks.read(initial, pixels, image, bias, recurrent)  # noqa: E731
    gradients = {name: torch.zeros_like(leaf) for name, leaf in replicas.leaves().items()}
    rates = inputs.settings[:, :2].unbind(-1)

    def with_gradient(call: Callable[[], Tensor], of: list[Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call().sum(), of)

    return {
        "clips and noise": lambda: replicas.frames(_taken(replicas)),
        "image product and recurrence, forward": read,
        "both, with gradients": with_gradient(
            read, [initial, image.backward, bias, recurrent.backward]
        ),
        "renderer and pixels": with_gradient(
            lambda: networks.log_likelihood(painter, to_image, positions, present, frames),
            [positions, to_image.backward, *painter.values()],
        ),
        "Kalman": with_gradient(
            lambda: log_evidence(*replicas.motion(), positions, present),
            [positions, *(s for n, s in replicas.stacks.items() if n.startswith("dynamics."))],
        ),
        "Adam": lambda: replicas.apply_adam(rates, gradients),
    }


def _config(smoke: bool) -> RunConfig:
    preset = PRESETS["paper-smoke" if smoke else "paper"]
    if smoke:
        return preset
    return dataclasses.replace(preset, data=dataclasses.replace(preset.data, num_clips=4_000))


def _sizes(config: RunConfig) -> Sizes:
    data, model = config.data, config.model
    return Sizes(
        config.batch_size,
        data.num_frames,
        data.max_objects,
        model.inference_state_size,
        (data.height, data.width),
    )


def _inputs(replicas: Replicas) -> StepInputs:
    """Return the inputs of the first step."""
    assert replicas.blocks is not None
    replicas.blocks.load(0)
    inputs = replicas.blocks.take()
    replicas.blocks.load(0)
    return inputs


def _taken(replicas: Replicas) -> StepInputs:
    assert replicas.blocks is not None
    replicas.blocks.cursor.zero_()  # every replay takes the same inputs
    return replicas.blocks.take()


def _compared(replicas: Replicas, inputs: StepInputs) -> tuple[dict[str, float], Contender]:
    """Return the differences of the two steps on one batch, and the naive step."""
    model = replicas.trainers[0].model
    assert isinstance(model.renderer, PaperRenderer)
    assert isinstance(model.inference, InferenceNetwork)
    parts = Parts(model.dynamics, model.renderer, model.inference)
    frames = replicas.frames(inputs)
    batch = Batch(frames[0].float(), replicas.data.num_objects[inputs.indices[0]], inputs.noise[0])
    plain = plain_step(parts, model.present(batch.num_objects), batch)
    stacks = list(replicas.stacks.values())
    factors, replicas.kept_factors = (
        replicas.kept_factors,
        None,
    )  # so that gradients reach the stacks

    def loss() -> Tensor:
        terms = replicas.terms(frames, inputs)
        torch.cuda.synchronize()  # a term may come from another stream
        return -terms.weighted(1.0).mean()

    ours = Contender(loss, stacks, torch.optim.Adam(stacks))
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # full float32 for the naive step
    try:
        return disagreement(parts, ours, plain), plain
    finally:
        torch.set_float32_matmul_precision(precision)
        replicas.kept_factors = factors
