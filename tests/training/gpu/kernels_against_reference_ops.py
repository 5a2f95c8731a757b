"""Runs every kernel on Triton's interpreter and compares it with its form in PyTorch."""

from itertools import product

import torch

from motes.data.clips import pack
from motes.training.gpu import kernels, reference_ops

generator = torch.Generator().manual_seed(0)
# Both are float32: sums of some hundred numbers in two orders.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def random(*shape: int) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator)


def recurrence() -> None:
    """Forward and backward over all diagonals, with random gates' inputs at each."""
    R, N, T, B, S = 2, 3, 4, 2, 5
    D, image_part, through = T + N - 1, random(R, B, T, 2 * S), random(2, R, N, B, S)
    bias = random(R, 2 * S)
    grad_states, sums = random(R, N, T, B, S), random(D, R, N, B, 2 * S)
    results = []
    for module in (reference_ops, kernels):
        states, passed = torch.zeros(R, N, T, B, S), through.clone()
        gates, grads = (torch.zeros(R, D, N, B, 2 * S) for _ in range(2))
        joined, kept = (torch.full((R, D, N, B, 2 * S), 7.0) for _ in range(2))
        module.zero_unused_cells(joined, kept, T)
        for d in range(D):
            module.recurrence_forward(d, sums[d], image_part, bias, states, gates, joined, kept)
        for d in reversed(range(D)):
            module.recurrence_backward(d, grad_states, sums[d], states, gates, grads, passed)
        gathered = module.sum_over_objects(grads, T)
        short = module.cast(image_part, torch.float16)
        results.append((states, gates, joined, kept, grads, passed, gathered, short))
    torch.testing.assert_close(*results, **CLOSE)


def rendering() -> None:
    """Positions of absent objects are NaN, and columns do not fill the last block."""
    R, B, N, T, X = 2, 3, 3, 4, 150
    positions, present = random(R, B, N, T, 2), torch.rand(R, B, N, generator=generator) < 0.7
    positions[~present] = torch.nan
    inputs = (positions, present, random(R, 2, 2 * X), random(R, 2 * X), random(R, X))
    torch.testing.assert_close(
        reference_ops.render_forward(*inputs), kernels.render_forward(*inputs), **CLOSE
    )
    gradient = random(R, B, T, X)
    pairs = zip(
        reference_ops.render_backward(gradient, *inputs),
        kernels.render_backward(gradient, *inputs),
        strict=True,
    )
    for expected, ours in pairs:
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def bernoulli() -> None:
    """Pixels do not fill the last block; logits of any size."""
    logits, bias = 20 * random(2, 5, 1500), random(2, 1500)
    frames = (torch.rand(2, 5, 1500, generator=generator) < 0.1).float()
    residuals = torch.empty_like(logits), torch.empty_like(logits)
    expected = reference_ops.bernoulli(logits, bias, frames, residuals[0])
    ours = kernels.bernoulli(logits, bias, frames, residuals[1])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-2)  # sums of 1500 of size 20
    torch.testing.assert_close(residuals[1], residuals[0], **CLOSE)
    weight = random(2, 5)
    expected, ours = (
        module.weigh_residuals(residuals[0], weight) for module in (reference_ops, kernels)
    )
    torch.testing.assert_close(ours, expected, **CLOSE)


def adam() -> None:
    """Of stacks, and of rows of another one, copied to such; one gradient is not finite.

    The running mean is float32 or, as that of large matrices, bfloat16.
    """
    values, both, mean = random(3, 37, 41), random(3, 74, 41), random(3, 37, 41)
    square = random(3, 37, 41).square()
    both[1, 3, 4] = torch.inf
    pace, correction = random(3).double(), 1 + random(3).double().square()
    results, cases = [], [(n, kind) for n in range(3) for kind in (torch.float32, torch.bfloat16)]
    for module, (num_copies, kind) in product((reference_ops, kernels), cases):
        own = [values.clone(), both[:, :37], mean.to(kind, copy=True), square.clone()]
        bad = torch.zeros(3, dtype=torch.int32)
        copies = [torch.zeros(3, 74, 41, dtype=kind) for kind in (torch.float16, torch.float32)]
        rows = [copy[:, 37:] for copy in copies[:num_copies]]
        module.adam_step(*own, pace, correction, bad, rows)
        results.append((*own, bad, *copies))
    for expected, ours in zip(results[: len(cases)], results[len(cases) :], strict=True):
        for number, (value, own) in enumerate(zip(expected, ours, strict=True)):
            # What is kept in 16 bits may be rounded to either neighbour.
            short = {torch.float16: 2**-10, torch.bfloat16: 2**-7}.get(value.dtype, 0.0)
            close = {"rtol": max(short, 1e-5), "atol": 1e-5, "equal_nan": True}
            torch.testing.assert_close(own, value, **close, msg=f"tensor {number}")
    assert ours[4].tolist() == [0, 1, 0]


def unpack() -> None:
    """Clips in any order, one twice; pixels fill neither the last byte nor the last block."""
    frames = torch.rand(4, 3, 33, 35, generator=generator) < 0.3
    packed, indices = pack(frames), torch.tensor([2, 0, 2, 3])
    ours = kernels.unpack_frames(packed.bits, indices, 33 * 35)
    expected = packed.unpack(indices).flatten(2)
    torch.testing.assert_close(ours.float(), expected, rtol=0, atol=0)


if __name__ == "__main__":
    for check in (recurrence, rendering, bernoulli, adam, unpack):
        check()
