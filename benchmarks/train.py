"""Training step on a CPU at the paper's size: the package against plain loops."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.timing import in_turns
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.models import elbo as objective
from motes.models.model import Model
from motes.models.paper import InferenceNetwork, PaperRenderer, recur
from tests.reference import naive

# Float32 sums in two orders differ by about 1e-6; a wrong term is an error of order one.
TOLERANCE = 1e-4
THREADS = 2
TARGET = 2.5


class Sizes(NamedTuple):
    """Sizes of a training step; the defaults are the paper's."""

    num_clips: int = 20
    num_frames: int = 30
    max_objects: int = 3
    state_size: int = 1024
    image_size: tuple[int, int] = (48, 48)


class Parts(NamedTuple):
    """The paper's three parts, in the order of `Model.parameters`."""

    dynamics: LinearDynamics
    renderer: PaperRenderer
    inference: InferenceNetwork


class Batch(NamedTuple):
    """The inputs of a step."""

    frames: Float[Tensor, "B T height width"]
    num_objects: Int[Tensor, " B"]
    noise: Float[Tensor, "B N T 2"]


class Contender(NamedTuple):
    """An implementation of the loss, with its parameters and optimizer."""

    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Take one training step: value, gradient, Adam."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.loss())
        self.optimizer.step()


def bench_train(smoke: bool = False) -> dict[str, Any]:
    """Time both steps in turns, after checking that value and all gradients agree.

    Args:
        smoke: Small sizes and few rounds, to check that it runs.

    Returns:
        Milliseconds (least and median), their ratios, and where the time of our step goes.
    """
    sizes, rounds = (Sizes(3, 4, 3, 16, (8, 8)), 2) if smoke else (Sizes(), 12)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        generator = torch.Generator().manual_seed(0)
        parts = _parts(sizes, generator)
        model = Model(*parts, image_size=sizes.image_size, max_objects=sizes.max_objects)
        batch = _batch(sizes, generator)
        present = model.present(batch.num_objects)
        ours, plain = _ours(model, batch), plain_step(parts, present, batch)
        gap = max(disagreement(parts, ours, plain).values())
        if not gap < TOLERANCE:
            raise RuntimeError(f"the two steps differ by {gap:.1e}, over {TOLERANCE:.0e}")
        steps = {"naive": plain.step, "motes": ours.step}
        times = in_turns(steps, rounds)
        split = in_turns(_pieces(parts, present, batch, ours), rounds)
    finally:
        torch.set_num_threads(threads)
    return {
        "task": "training step: bound, gradient, Adam",
        "sizes": sizes._asdict(),
        "device": "cpu",
        "threads": THREADS,
        "torch": torch.__version__,
        "disagreement": gap,
        "milliseconds": times,
        "ratio": {key: times["naive"][key] / times["motes"][key] for key in ("min", "median")},
        "target": TARGET,
        "split_milliseconds": split,
    }


def _parts(sizes: Sizes, generator: torch.Generator) -> Parts:
    return Parts(
        dynamics=LinearDynamics(generator=generator),
        renderer=PaperRenderer(sizes.image_size, sizes.state_size, generator),
        inference=InferenceNetwork(
            sizes.image_size, sizes.max_objects, sizes.state_size, 0.01, 0.5, generator
        ),
    )


def _batch(sizes: Sizes, generator: torch.Generator) -> Batch:
    """Return frames as sparse as the paper's, in clips of 1, 2, 3, 1, 2, ... objects."""
    B, T, N = sizes.num_clips, sizes.num_frames, sizes.max_objects
    frames = torch.rand(B, T, *sizes.image_size, generator=generator) < 0.01
    noise = torch.randn(B, N, T, 2, generator=generator)
    return Batch(frames.float(), torch.arange(B) % N + 1, noise)


def _ours(model: Model, batch: Batch) -> Contender:
    parameters: list[Tensor] = list(model.parameters())

    def loss() -> Tensor:
        return -objective.bound_terms(model, *batch).weighted(1.0).mean()

    return Contender(loss, parameters, torch.optim.Adam(parameters, lr=1e-3, fused=True))


def plain_step(parts: Parts, present: Bool[Tensor, "B N"], batch: Batch) -> Contender:
    """Return the same step as a direct port of the paper with PyTorch's defaults."""
    dynamics = copy.deepcopy(parts.dynamics)
    inference = naive.InferenceWeights(*_leaves(naive.inference_weights(parts.inference)))
    renderer = naive.RendererWeights(*_leaves(naive.renderer_weights(parts.renderer)))
    floor = parts.inference.scale_floor

    def loss() -> Tensor:
        frames, num_objects, noise = batch
        encoding = naive.encode(inference, frames, num_objects, floor)
        positions = encoding.draw(noise)
        logits = naive.render(renderer, positions, present).view_as(frames)
        evidence = naive.log_prior(dynamics.components(), dynamics.log_weights(), positions)
        prior = torch.where(present, evidence, 0.0).sum(1)
        nats = -binary_cross_entropy_with_logits(logits, frames, reduction="none").sum((2, 3))
        bound = objective.reconstruction(nats)
        return -(bound + objective.entropy(encoding.entropy(), present) + prior).mean()

    parameters: list[Tensor] = [*inference, *renderer, *dynamics.parameters()]
    return Contender(loss, parameters, torch.optim.Adam(parameters, lr=1e-3))


def _leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return independent copies that require gradients."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def disagreement(parts: Parts, ours: Contender, plain: Contender) -> dict[str, float]:
    """Return relative differences of values and gradients, by part and by parameter."""
    values = [ours.loss(), plain.loss()]
    gradients = torch.autograd.grad(values[0], ours.parameters)
    # The paper's matrices are a rearrangement of ours, and so are their gradients.
    shadow = copy.deepcopy(parts)
    learned = [parameter for part in shadow for parameter in part.parameters()]
    with torch.no_grad():
        for parameter, gradient in zip(learned, gradients, strict=True):
            parameter.copy_(gradient.view_as(parameter))
    rearranged = [
        *naive.inference_weights(shadow.inference),
        *naive.renderer_weights(shadow.renderer),
        *shadow.dynamics.parameters(),
    ]
    expected = torch.autograd.grad(values[1], plain.parameters)
    names = [
        *(f"inference {name}" for name in naive.InferenceWeights._fields),
        *(f"renderer {name}" for name in naive.RendererWeights._fields),
        *(f"dynamics {name}" for name, _ in shadow.dynamics.named_parameters()),
    ]
    pairs = {"value": [(values[0], values[1])]}
    for name, pair in zip(names, zip(rearranged, expected, strict=True), strict=True):
        pairs[name] = [pair]
        pairs.setdefault(name.split()[0], []).append(pair)
    return {name: _gap(several) for name, several in pairs.items()}


def _gap(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Return the norm of all differences over the norm of all expected values."""
    missed = sum(float((a - b).detach().square().sum()) for a, b in pairs)
    return math.sqrt(missed / sum(float(b.detach().square().sum()) for _, b in pairs))


def _pieces(
    parts: Parts, present: Bool[Tensor, "B N"], batch: Batch, ours: Contender
) -> dict[str, Callable[[], object]]:
    """Return the parts of our step, each with its inputs precomputed."""
    dynamics, renderer, network = parts
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
            lambda: renderer(positions, present), [positions, *renderer.parameters()]
        ),
        "Kalman": value_and_gradient(
            lambda: dynamics.track_log_density(positions), [positions, *dynamics.parameters()]
        ),
        "Adam": ours.optimizer.step,
    }
