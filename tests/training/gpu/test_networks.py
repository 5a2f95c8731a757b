"""The stacked networks against the single ones, and their GPU kernels against PyTorch."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from motes.models.paper import InferenceNetwork, PaperRenderer, recur
from motes.training.gpu import networks, reference_ops

# Float64: sums of at most some hundred products of order one, through at most eight cells.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
SIZES = [(2, 3, 4, 2, 3), (3, 1, 3, 2, 5), (1, 3, 1, 2, 4), (2, 2, 5, 3, 4)]


@pytest.mark.parametrize(("R", "N", "T", "B", "S"), SIZES)
def test_stacked_recurrence_is_the_single_one(R, N, T, B, S, generator):
    V = 7
    shapes = [(R, N, B, S), (R, V, 2 * S), (R, 2 * S), (R, S, 2 * S), (R, S, 2 * S)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs = [part.requires_grad_() for part in inputs]
    initial, from_image, bias, past, below = inputs
    pixels = torch.randn(R, B, T, V, generator=generator, dtype=torch.float64)
    factors = networks.factor(from_image), bias, networks.factor(past, below)
    ours = networks.read(initial, pixels, *factors)
    image = torch.einsum("rbtv,rvg->rbtg", pixels, from_image) + bias[:, None, None]
    single = [recur(initial[r], image[r].transpose(0, 1), past[r], below[r]) for r in range(R)]
    expected = torch.stack(single)
    torch.testing.assert_close(ours, expected, **TOLERANCE)
    cotangent = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        **TOLERANCE,
    )


def networks_of(num_replicas, generator):
    size, N = (3, 4), 3
    pairs = [
        (PaperRenderer(size, 5, generator), InferenceNetwork(size, N, 4, 0.01, 0.3, generator))
        for _ in range(num_replicas)
    ]
    for network in (part for pair in pairs for part in pair):
        network.double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return pairs


def stacks_of(networks):
    names = dict(networks[0].named_parameters())
    return {
        name: torch.stack([network.get_parameter(name).detach() for network in networks])
        for name in names
    }


def losses(weights, frames, num_objects, noise, floor, precision="mixed"):
    """Every output of the stacked networks once, as R numbers."""
    renderers, inferences = weights
    from_image = networks.factor(inferences["from_image"], precision=precision)
    recurrent = networks.factor(
        inferences["from_past"], inferences["from_below"], precision=precision
    )
    mean, scale = networks.encode(inferences, from_image, recurrent, frames, num_objects, floor)
    positions = mean + scale * noise
    present = torch.arange(3, device=frames.device) < num_objects[..., None]
    to_image = networks.factor(renderers["to_image"], precision=precision)
    nats = networks.log_likelihood(renderers, to_image, positions, present, frames)
    return nats.sum(1) + mean.square().sum((1, 2, 3, 4)) + scale.log().sum((1, 2, 3, 4))


def test_stacked_networks_are_the_single_ones(generator):
    R, B, T = 2, 4, 3
    pairs = networks_of(R, generator)
    frames = torch.rand(R, B, T, 3, 4, generator=generator, dtype=torch.float64)
    num_objects = torch.randint(1, 4, (R, B), generator=generator)
    noise = torch.randn(R, B, 3, T, 2, generator=generator, dtype=torch.float64)
    weights = [stacks_of([pair[i] for pair in pairs]) for i in range(2)]
    leaves = [part.requires_grad_() for half in weights for part in half.values()]
    ours = losses(weights, frames, num_objects, noise, 0.01)
    gradients = torch.autograd.grad(ours.sum(), leaves)
    for r, (renderer, inference) in enumerate(pairs):
        mean, scale, _ = inference(frames[r], num_objects[r])
        present = torch.arange(3) < num_objects[r][:, None]
        logits = renderer(mean + scale * noise[r], present)
        nats = -binary_cross_entropy_with_logits(logits, frames[r], reduction="none")
        single = nats.sum() + mean.square().sum() + scale.log().sum()
        torch.testing.assert_close(ours[r], single, **TOLERANCE)
        parameters = [*renderer.parameters(), *inference.parameters()]
        expected = torch.autograd.grad(single, parameters)
        mine = tuple(gradient[r] for gradient in gradients)
        torch.testing.assert_close(mine, expected, **TOLERANCE)


def test_what_absent_objects_hold_cannot_matter_to_a_painting(generator):
    shapes = [(1, 2, 3, 2, 2), (1, 2, 10), (1, 10), (1, 5)]
    positions, *weights = (torch.randn(shape, generator=generator) for shape in shapes)
    present = torch.tensor([[[True, False, False], [True, True, False]]])
    expected = reference_ops.render_forward(positions, present, *weights)
    positions[~present] = torch.nan
    assert torch.equal(reference_ops.render_forward(positions, present, *weights), expected)
    by_positions, *rest = reference_ops.render_backward(expected, positions, present, *weights)
    assert (by_positions[~present] == 0).all()
    assert all(part.isfinite().all() for part in rest)


def test_adam_is_that_of_pytorch(generator):
    start = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    rates = torch.tensor([1e-3, 1e-2], dtype=torch.float64)
    singles = [start[r].clone().requires_grad_() for r in range(2)]
    optimizers = [torch.optim.Adam([s], lr=float(rates[r])) for r, s in enumerate(singles)]
    values, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    bad, copy = torch.zeros(2, dtype=torch.int32), torch.zeros_like(start, dtype=torch.float32)
    for step in range(1, 6):
        gradient = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        pace = rates / (1 - reference_ops.BETA_1**step)
        correction = torch.full((2,), 1 / (1 - reference_ops.BETA_2**step), dtype=torch.float64)
        reference_ops.adam_step(values, gradient, mean, square, pace, correction, bad, [copy])
        for single, optimizer, own in zip(singles, optimizers, gradient, strict=True):
            single.grad = own.clone()
            optimizer.step()
    torch.testing.assert_close(values, torch.stack(singles).detach(), rtol=1e-12, atol=1e-12)
    assert bad.tolist() == [0, 0]
    assert torch.equal(copy, values.float())


def test_adam_moves_by_the_mean_and_keeps_it_in_its_own_type(generator):
    """A step from a mean of 16 bits is that from the same numbers; only what is kept is rounded."""
    values, gradient, mean = torch.randn(3, 2, 7, generator=generator)
    mean, square = mean.bfloat16(), torch.ones(2, 7)
    results = []
    for own in (mean.clone(), mean.float()):
        moved, bad = values.clone(), torch.zeros(2, dtype=torch.int32)
        one = torch.ones(2, dtype=torch.float64)
        reference_ops.adam_step(moved, gradient.bfloat16(), own, square.clone(), one, one, bad)
        results.append((moved, own))
    (ours, short), (expected, long) = results
    assert torch.equal(ours, expected)
    assert short.dtype == torch.bfloat16
    assert torch.equal(short, long.bfloat16())
    assert not torch.equal(short, mean)


def test_adam_says_whose_gradient_is_not_finite():
    zero, gradient = torch.zeros(3, 4), torch.zeros(3, 4)
    gradient[1, 2], gradient[2, 0] = torch.inf, torch.nan
    bad = torch.zeros(3, dtype=torch.int32)
    reference_ops.adam_step(
        zero, gradient, zero.clone(), zero.clone(), torch.ones(3), torch.ones(3), bad
    )
    assert bad.tolist() == [0, 1, 1]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_do_what_pytorch_does():
    """On Triton's interpreter, in a process of its own: it is chosen when Triton is imported."""
    script = Path(__file__).parent / "kernels_against_reference_ops.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("precision", "tolerance"), [("mixed", 1e-2), ("float32", 1e-5)])
def test_gpu_networks_are_the_cpus_up_to_short_factors(precision, tolerance, generator):
    # Factors lose at most 2^-11 (float16, forward) or 2^-9 (bfloat16, gradients) of their size,
    # at random; a gradient has passed a dozen products: 1e-2. A wrong term is of order one.
    # In float32 (2^-24, sums of some hundred terms, a dozen products) 1e-5 is left.
    R, B, T = 2, 4, 6
    pairs = networks_of(R, generator)
    frames = (torch.rand(R, B, T, 3, 4, generator=generator) < 0.2).float()
    num_objects = torch.randint(1, 4, (R, B), generator=generator)
    noise = torch.randn(R, B, 3, T, 2, generator=generator)
    results = []
    for device, kind in (("cpu", torch.float64), ("cuda", torch.float32)):
        weights = [stacks_of([pair[i] for pair in pairs]) for i in range(2)]
        weights = [{n: w.to(device, kind) for n, w in half.items()} for half in weights]
        leaves = [part.requires_grad_() for half in weights for part in half.values()]
        inputs = (frames.to(device, kind), num_objects.to(device), noise.to(device, kind))
        value = losses(weights, *inputs, 0.01, precision)
        results.append([value, *torch.autograd.grad(value.sum(), leaves)])
    for here, there in zip(*results, strict=True):
        assert (there.cpu().double() - here).norm() < tolerance * here.norm()
