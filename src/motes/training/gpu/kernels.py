"""GPU kernels, one for each function of `motes.training.gpu.reference_ops`.

Those of the renderer and of pixels are in `motes.training.gpu.pixel_kernels`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from motes.core.axes import Tensor
from motes.training.gpu.pixel_kernels import (
    bernoulli,
    render_backward,
    render_forward,
    scale_rows,
    unpack,
)
from motes.training.gpu.reference_ops import BETA_1, BETA_2, EPSILON

__all__ = [
    "adam",
    "backward",
    "bernoulli",
    "cast",
    "clear",
    "forward",
    "gather",
    "render_backward",
    "render_forward",
    "scale_rows",
    "unpack",
]  # fmt: skip

ELEMENTS = 1024  # of a long vector that one program works on


def forward(
    d: int,
    sums: Tensor,
    image_part: Tensor,
    bias: Tensor,
    states: Tensor,
    gates: Tensor,
    joined: Tensor,
    kept: Tensor,
) -> None:
    """See `motes.training.gpu.reference_ops.forward`."""
    R, N, T, B, S = states.shape
    columns = _columns(R * N * B)
    grid = (R * N * B, triton.cdiv(S, columns))
    _forward[grid](d, sums, image_part, bias, states, gates, joined, kept, N, T, B, S, columns)


def clear(joined: Tensor, kept: Tensor, num_frames: int) -> None:
    """See `reference_ops.clear`; writes zeros only where nothing else will be written."""
    R, D, N, B, size = joined.shape
    _clear[R * D * N * B,](joined, kept, D, N, B, num_frames, size // 2, ELEMENTS)


def backward(
    d: int,
    grad_states: Tensor,
    grad_joined: Tensor,
    states: Tensor,
    gates: Tensor,
    grad_gates: Tensor,
    through: Tensor,
) -> None:
    """See `motes.training.gpu.reference_ops.backward`."""
    R, N, T, B, S = states.shape
    columns = _columns(R * N * B)
    grid = (R * N * B, triton.cdiv(S, columns))
    _backward[grid](
        d, grad_states, grad_joined, states, gates, grad_gates, through[d % 2],
        through[(d + 1) % 2], N, T, B, S, columns,
    )  # fmt: skip


def gather(skewed: Tensor, num_frames: int) -> Tensor:
    """See `motes.training.gpu.reference_ops.gather`."""
    R, _, N, B, size = skewed.shape
    total = skewed.new_empty(R, B, num_frames, size)
    _gather[R * B * num_frames, triton.cdiv(size, ELEMENTS)](
        skewed, total, num_frames, B, size, N, ELEMENTS
    )
    return total


def cast(values: Tensor, kind: torch.dtype) -> Tensor:
    """See `motes.training.gpu.reference_ops.cast`."""
    short = torch.empty_like(values, dtype=kind)
    _cast[triton.cdiv(values.numel(), ELEMENTS),](values, short, values.numel(), ELEMENTS)
    return short


def adam(
    values: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    pace: Tensor,
    correction: Tensor,
    bad: Tensor,
    copies: Sequence[Tensor] = (),
) -> None:
    """See `motes.training.gpu.reference_ops.adam`; copies are rows of larger stacks."""
    R, size = len(values), values[0].numel()
    if not gradient[0].is_contiguous():
        gradient = gradient.contiguous()
    first, second, *_ = *copies, values, values  # what is not there is not written
    _adam[triton.cdiv(size, ELEMENTS), R](
        values, gradient, mean, square, pace, correction, bad, first, second,
        size, gradient.stride(0), first.stride(0), len(copies),
        BETA_1, BETA_2, EPSILON, ELEMENTS,
    )  # fmt: skip


def _columns(num_cells: int) -> int:
    """Return the columns of a cell per program, so that few cells fill the GPU."""
    return 256 if num_cells < 256 else 1024


@triton.jit
def _cell(d, N, T, B, S, BLOCK: tl.constexpr):
    """Return the cell of a program and its offsets in the buffers."""
    cell = tl.program_id(0).to(tl.int64)
    b, n, r = cell % B, (cell // B) % N, cell // (B * N)
    t, D = d - n, T + N - 1
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = (((r * N + n) * T + t) * B + b) * S + s  # of [R, N, T, B, S]
    skewed = (((r * D + d) * N + n) * B + b) * 2 * S + s  # of [R, D, N, B, 2 S]
    return cell, r, n, b, t, s, own, skewed, s < S


@triton.jit(do_not_specialize=["d", "N", "T", "B"])
def _forward(
    d, sums, image_part, bias, states, gates, joined, kept, N, T, B, S, BLOCK: tl.constexpr
):
    cell, r, n, b, t, s, own, skewed, mask = _cell(d, N, T, B, S, BLOCK)
    if (t >= 0) & (t < T):
        image = ((r * B + b) * T + t) * 2 * S + s
        total = cell * 2 * S + s
        shift = r * 2 * S + s
        raw = tl.load(sums + total, mask) + tl.load(image_part + image, mask)
        beta = tl.sigmoid(raw + tl.load(bias + shift, mask))
        raw = tl.load(sums + total + S, mask) + tl.load(image_part + image + S, mask)
        shat = 2 * tl.sigmoid(2 * (raw + tl.load(bias + shift + S, mask))) - 1
        below = tl.load(states + own - T * B * S, mask & (n > 0), other=0.0)
        state = below + beta * (shat - below)
        tl.store(states + own, state, mask)
        tl.store(gates + skewed, beta.to(gates.dtype.element_ty), mask)
        tl.store(gates + skewed + S, shat.to(gates.dtype.element_ty), mask)
        past, above = skewed + N * B * 2 * S, skewed + N * B * 2 * S + B * 2 * S + S
        tl.store(joined + past, state.to(joined.dtype.element_ty), mask & (t + 1 < T))
        tl.store(joined + above, state.to(joined.dtype.element_ty), mask & (n + 1 < N))
        tl.store(kept + past, state.to(kept.dtype.element_ty), mask & (t + 1 < T))
        tl.store(kept + above, state.to(kept.dtype.element_ty), mask & (n + 1 < N))


@triton.jit(do_not_specialize=["d", "N", "T", "B"])
def _backward(
    d, grad_states, grad_joined, states, gates, grad_gates, through, through_after,
    N, T, B, S, BLOCK: tl.constexpr,
):  # fmt: skip
    cell, _, n, _, t, s, own, skewed, mask = _cell(d, N, T, B, S, BLOCK)
    seen = mask & (t >= 0) & (t < T)
    above = seen & (n + 1 < N)
    joined, flat = cell * 2 * S + s, cell * S + s
    g = tl.load(grad_states + own, seen, other=0.0) + tl.load(grad_joined + joined, seen, other=0.0)
    g += tl.load(grad_joined + joined + B * 2 * S + S, above, other=0.0)
    g += tl.load(through_after + flat + B * S, above, other=0.0)
    beta = tl.load(gates + skewed, seen, other=0.0).to(g.dtype)
    shat = tl.load(gates + skewed + S, seen, other=0.0).to(g.dtype)
    below = tl.load(states + own - T * B * S, seen & (n > 0), other=0.0)
    by_beta = (shat - below) * beta * (1 - beta) * g
    by_shat = beta * (1 - shat * shat) * g
    kind = grad_gates.dtype.element_ty
    tl.store(through + flat, (1 - beta) * g, mask)
    tl.store(grad_gates + skewed, by_beta.to(kind), mask)
    tl.store(grad_gates + skewed + S, by_shat.to(kind), mask)


@triton.jit
def _clear(joined, kept, D, N, B, T, S: tl.constexpr, BLOCK: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64)
    n, d = (cell // B) % N, (cell // (B * N)) % D
    unused = (d < n) | (d - n >= T)
    if unused | (n == 0):
        for start in range(0, 2 * S, BLOCK):
            i = start + tl.arange(0, BLOCK)
            where = (i < 2 * S) & (unused | (i >= S))
            tl.store(joined + cell * 2 * S + i, 0.0, where)
            tl.store(kept + cell * 2 * S + i, 0.0, where)


@triton.jit
def _gather(skewed, total, T, B, size, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t, b, r = row % T, (row // T) % B, row // (T * B)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, found = i < size, tl.zeros([BLOCK], tl.float32)
    for n in tl.static_range(N):
        cell = ((r * (T + N - 1) + t + n) * N + n) * B + b
        found += tl.load(skewed + cell * size + i, inside, other=0.0).to(tl.float32)
    tl.store(total + row * size + i, found.to(total.dtype.element_ty), inside)


@triton.jit
def _cast(values, short, size, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i, i < size).to(tl.float32)
    tl.store(short + i, value.to(short.dtype.element_ty), i < size)


@triton.jit
def _adam(
    values, gradient, mean, square, pace, correction, bad, first, second,
    size, stride, copy_stride, COPIES: tl.constexpr,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, at = i < size, r * size + i
    v = tl.load(square + at, inside, other=0.0)
    m = tl.load(mean + at, inside, other=0.0).to(v.dtype)
    g = tl.load(gradient + r * stride + i, inside, other=0.0).to(v.dtype)
    m += (1 - BETA_1) * (g - m)
    v = BETA_2 * v + (1 - BETA_2) * g * g
    spread = tl.sqrt(v * tl.load(correction + r).to(v.dtype)) + EPSILON
    value = tl.load(values + at, inside, other=0.0)
    value -= tl.load(pace + r).to(v.dtype) * m / spread
    tl.store(mean + at, m.to(mean.dtype.element_ty), inside)
    tl.store(square + at, v, inside)
    tl.store(values + at, value, inside)
    if COPIES > 0:
        tl.store(first + r * copy_stride + i, value.to(first.dtype.element_ty), inside)
    if COPIES > 1:
        tl.store(second + r * copy_stride + i, value.to(second.dtype.element_ty), inside)
    # A number that is not finite is not equal to itself less itself.
    if tl.sum(tl.where(g - g == 0, 0, 1)) > 0:
        tl.store(bad + r, 1)
