"""A training step at the paper's size, ours against the equations as plain loops."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from motes import mixture, objective
from motes.bench import naive
from motes.lgssm import Dynamics
from motes.model import Model
from motes.networks.inference import InferenceNetwork
from motes.networks.recurrence import recur
from motes.networks.renderer import Renderer
from motes.shapes import Float, Int, Tensor

# Float32 sums in two orders differ by about 1e-6; a wrong term is an error of order one.
TOLERANCE = 1e-4
THREADS = 2
TARGET = 2.5


class Sizes(NamedTuple):
    """What a step is made of; the defaults are the paper's."""

    num_clips: int = 20
    num_frames: int = 30
    max_objects: int = 3
    state_size: int = 1024
    image_size: tuple[int, int] = (48, 48)


class Batch(NamedTuple):
    """The inputs of a step."""

    frames: Float[Tensor, "B T height width"]
    num_objects: Int[Tensor, " B"]
    noise: Float[Tensor, "B N T 2"]


class Contender(NamedTuple):
    """One way to compute the loss, with what it learns."""

    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Take one training step: value, gradient, Adam."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.loss())
        self.optimizer.step()


def bench_train(device: str = "cpu", smoke: bool = False) -> dict[str, Any]:
    """Time both steps in turns, after they agreed on the value and on every gradient.

    Args:
        device: where to compute; on a CPU two threads are used.
        smoke: small sizes and few rounds, to see that it runs.

    Returns:
        Milliseconds (least and median), their ratios, and where the time of our step goes.
    """
    sizes, rounds = (Sizes(3, 4, 3, 16, (8, 8)), 2) if smoke else (Sizes(), 12)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        generator = torch.Generator().manual_seed(0)
        model = _model(sizes, generator).to(device)
        batch = Batch(*(part.to(device) for part in _batch(sizes, generator)))
        ours, plain = _ours(model, batch), _plain(model, batch)
        disagreement = _disagreement(model, ours, plain)
        if not disagreement < TOLERANCE:
            raise RuntimeError(f"the two steps differ by {disagreement:.1e}, over {TOLERANCE:.0e}")
        steps = {"naive": plain.step, "motes": ours.step}
        times = _in_turns(steps, rounds, device)
        split = _in_turns(_pieces(model, batch, ours), rounds, device)
    finally:
        torch.set_num_threads(threads)
    return {
        "task": "training step: bound, gradient, Adam",
        "sizes": sizes._asdict(),
        "device": device,
        "threads": THREADS,
        "torch": torch.__version__,
        "disagreement": disagreement,
        "milliseconds": times,
        "ratio": {key: times["naive"][key] / times["motes"][key] for key in ("min", "median")},
        "target": TARGET,
        "split_milliseconds": split,
    }


def _model(sizes: Sizes, generator: torch.Generator) -> Model:
    return Model(
        dynamics=Dynamics(generator=generator),
        renderer=Renderer(sizes.image_size, sizes.state_size, generator),
        inference=InferenceNetwork(
            sizes.image_size, sizes.max_objects, sizes.state_size, 0.01, 0.5, generator
        ),
        image_size=sizes.image_size,
        max_objects=sizes.max_objects,
    )


def _batch(sizes: Sizes, generator: torch.Generator) -> Batch:
    """Frames as sparse as the paper's, in clips of 1, 2, 3, 1, 2, ... objects."""
    B, T, N = sizes.num_clips, sizes.num_frames, sizes.max_objects
    frames = torch.rand(B, T, *sizes.image_size, generator=generator) < 0.01
    noise = torch.randn(B, N, T, 2, generator=generator)
    return Batch(frames.float(), torch.arange(B) % N + 1, noise)


def _ours(model: Model, batch: Batch) -> Contender:
    parameters: list[Tensor] = list(model.parameters())

    def loss() -> Tensor:
        return -objective.bound_terms(model, *batch).weighted(1.0).mean()

    return Contender(loss, parameters, torch.optim.Adam(parameters, lr=1e-3, fused=True))


def _plain(model: Model, batch: Batch) -> Contender:
    """The same step, a straight port of the paper with PyTorch's defaults."""
    dynamics = copy.deepcopy(model.dynamics)
    inference = naive.InferenceWeights(*_leaves(naive.inference_weights(model.inference)))
    renderer = naive.RendererWeights(*_leaves(naive.renderer_weights(model.renderer)))
    present = model.present(batch.num_objects)
    floor = model.inference.scale_floor

    def loss() -> Tensor:
        frames, num_objects, noise = batch
        encoding = naive.encode(inference, frames, num_objects, floor)
        positions = objective.draw_positions(encoding, noise)
        logits = naive.render(renderer, positions, present).view_as(frames)
        evidence = naive.log_prior(dynamics.components(), dynamics.log_weights(), positions)
        prior = torch.where(present, evidence, 0.0).sum(1)
        bound = objective.reconstruction(logits, frames)
        return -(bound + objective.entropy(encoding.scales, present) + prior).mean()

    parameters: list[Tensor] = [*inference, *renderer, *dynamics.parameters()]
    return Contender(loss, parameters, torch.optim.Adam(parameters, lr=1e-3))


def _leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that learn on their own."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _disagreement(model: Model, ours: Contender, plain: Contender) -> float:
    """The largest relative difference of the values and of any parameter's gradient."""
    values = [ours.loss(), plain.loss()]
    gradients = torch.autograd.grad(values[0], ours.parameters)
    # The paper's matrices are a rearrangement of ours, and so are their gradients.
    shadow = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, gradient in zip(shadow.parameters(), gradients, strict=True):
            parameter.copy_(gradient)
    rearranged = [
        *naive.inference_weights(shadow.inference),
        *naive.renderer_weights(shadow.renderer),
        *shadow.dynamics.parameters(),
    ]
    expected = torch.autograd.grad(values[1], plain.parameters)
    pairs = [(values[0], values[1]), *zip(rearranged, expected, strict=True)]
    return max(float(((a - b).norm() / b.norm()).detach()) for a, b in pairs)


def _pieces(model: Model, batch: Batch, ours: Contender) -> dict[str, Callable[[], object]]:
    """The parts of our step, each with what it needs at hand."""
    network, present = model.inference, model.present(batch.num_objects)
    pixels = batch.frames.flatten(2).transpose(0, 1)
    weights = [network.from_past, network.from_below]
    inputs: list[Tensor] = [
        network.initial_states(batch.num_objects).transpose(0, 1).detach().requires_grad_(),
        network.image_part(pixels).detach().requires_grad_(),
        *weights,
    ]
    states, positions = recur(*inputs), batch.noise.clone().requires_grad_()

    def value_and_gradient(call: Callable[[], Tensor], of: list[Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call().sum(), of)

    return {
        "image product": value_and_gradient(
            lambda: network.image_part(pixels), [network.from_image, network.gate_bias]
        ),
        "recurrence forward": lambda: recur(*inputs),
        "recurrence backward": lambda: torch.autograd.grad(
            states, inputs, torch.ones_like(states), retain_graph=True
        ),
        "renderer": value_and_gradient(
            lambda: model.renderer(positions, present), [positions, *model.renderer.parameters()]
        ),
        "Kalman": value_and_gradient(
            lambda: mixture.log_prior(model.dynamics, positions),
            [positions, *model.dynamics.parameters()],
        ),
        "Adam": ours.optimizer.step,
    }


def _in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, dict[str, float]]:
    """Time each call once a round, after one round to warm up, so that all see the same weather."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            _wait(device)
            start = time.perf_counter()
            call()
            _wait(device)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {"min": min(taken[1:]), "median": statistics.median(taken[1:])}
        for name, taken in times.items()
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
