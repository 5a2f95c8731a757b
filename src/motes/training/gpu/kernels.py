"""GPU kernels, one for each function of `motes.training.gpu.reference_ops`, and `unpack_frames`."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from motes.core.axes import Tensor
from motes.training.gpu.reference_ops import BETA_1, BETA_2, EPSILON

ELEMENTS = 1024  # of a long vector that one program works on
LAYER_COLUMNS, LAYER_ROWS = 128, 8  # of the renderer's state
SCALED_ROWS, SCALED_COLUMNS = 16, 256


def recurrence_forward(
    d: int,
    sums: Tensor,
    image_part: Tensor,
    bias: Tensor,
    states: Tensor,
    gates: Tensor,
    joined: Tensor,
    kept: Tensor,
) -> None:
    """As in `reference_ops`."""
    R, N, T, B, S = states.shape
    columns = _columns(R * N * B)
    grid = (R * N * B, triton.cdiv(S, columns))
    _forward[grid](d, sums, image_part, bias, states, gates, joined, kept, N, T, B, S, columns)


def zero_unused_cells(joined: Tensor, kept: Tensor, num_frames: int) -> None:
    """As in `reference_ops`; writes zeros only where nothing else will be written."""
    R, D, N, B, size = joined.shape
    _clear[R * D * N * B,](joined, kept, D, N, B, num_frames, size // 2, ELEMENTS)


def recurrence_backward(
    d: int,
    grad_states: Tensor,
    grad_joined: Tensor,
    states: Tensor,
    gates: Tensor,
    grad_gates: Tensor,
    through: Tensor,
) -> None:
    """As in `reference_ops`."""
    R, N, T, B, S = states.shape
    columns = _columns(R * N * B)
    grid = (R * N * B, triton.cdiv(S, columns))
    _backward[grid](
        d, grad_states, grad_joined, states, gates, grad_gates, through[d % 2],
        through[(d + 1) % 2], N, T, B, S, columns,
    )  # fmt: skip


def sum_over_objects(skewed: Tensor, num_frames: int) -> Tensor:
    """As in `reference_ops`."""
    R, _, N, B, size = skewed.shape
    total = skewed.new_empty(R, B, num_frames, size)
    _gather[R * B * num_frames, triton.cdiv(size, ELEMENTS)](
        skewed, total, num_frames, B, size, N, ELEMENTS
    )
    return total


def cast(values: Tensor, kind: torch.dtype) -> Tensor:
    """As in `reference_ops`."""
    short = torch.empty_like(values, dtype=kind)
    _cast[triton.cdiv(values.numel(), ELEMENTS),](values, short, values.numel(), ELEMENTS)
    return short


def adam_step(
    values: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    pace: Tensor,
    correction: Tensor,
    bad: Tensor,
    copies: Sequence[Tensor] = (),
) -> None:
    """As in `reference_ops`; copies are rows of larger stacks."""
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


def render_forward(
    positions: Tensor, present: Tensor, from_position: Tensor, bias: Tensor, empty: Tensor
) -> Tensor:
    """As in `reference_ops`."""
    (R, B, N, T, _), X = positions.shape, empty.shape[-1]
    x = positions.new_empty(R, B, T, X)
    grid = (R, triton.cdiv(B * T, LAYER_ROWS), triton.cdiv(X, LAYER_COLUMNS))
    _render_forward[grid](
        positions, present, from_position, bias, empty, x,
        B, T, X, N, LAYER_ROWS, LAYER_COLUMNS, num_warps=1,
    )  # fmt: skip
    return x


def render_backward(
    grad: Tensor,
    positions: Tensor,
    present: Tensor,
    from_position: Tensor,
    bias: Tensor,
    empty: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As in `reference_ops`."""
    (R, B, N, T, _), X = positions.shape, empty.shape[-1]
    rows, columns = triton.cdiv(B * T, LAYER_ROWS), triton.cdiv(X, LAYER_COLUMNS)
    # Each program leaves its share of the sums, over columns and over rows.
    by_positions = positions.new_empty(columns, R, B, N, T, 2)
    by_rest = positions.new_empty(R, rows, 7, X)
    _render_backward[R, rows, columns](
        grad, positions, present, from_position, bias, empty, by_positions, by_rest,
        R, B, T, X, N, LAYER_ROWS, LAYER_COLUMNS, num_warps=1,
    )  # fmt: skip
    total = by_rest.sum(1)
    by_weights, by_bias = total[:, :4].view(R, 2, 2 * X), total[:, 4:6].view(R, 2 * X)
    return by_positions.sum(0), by_weights, by_bias, total[:, 6]


def bernoulli(logits: Tensor, bias: Tensor, frames: Tensor, residual: Tensor) -> Tensor:
    """As in `reference_ops`."""
    R, rows, pixels = logits.shape
    nats = logits.new_empty(R, rows)
    _bernoulli[R * rows,](logits, bias, frames, residual, nats, rows, pixels, ELEMENTS)
    return nats


def unpack_frames(bits: Tensor, indices: Tensor, num_pixels: int) -> Tensor:
    """Return `motes.data.clips.PackedFrames.unpack` in 16 bits, pixels in one row."""
    (b,), (_, T, num_bytes) = indices.shape, bits.shape
    frames = torch.empty(b, T, num_pixels, dtype=torch.float16, device=bits.device)
    _unpack[b * T, triton.cdiv(num_pixels, ELEMENTS)](
        bits, indices, frames, T, num_bytes, num_pixels, ELEMENTS
    )
    return frames


def weigh_residuals(residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """As in `reference_ops`."""
    R, rows, pixels = residual.shape
    scaled, parts = torch.empty_like(residual), triton.cdiv(rows, SCALED_ROWS)
    sums = weight.new_empty(R, parts, pixels)
    _scale_rows[R, parts, triton.cdiv(pixels, SCALED_COLUMNS)](
        residual, weight.contiguous(), scaled, sums, rows, pixels, SCALED_ROWS, SCALED_COLUMNS
    )
    return scaled, sums.sum(1)


@triton.jit
def _layer_weights(from_position, bias, r, X, x, inside):
    """Return the four weights and two biases of some columns."""
    base, at = from_position + r * 4 * X + x, bias + r * 2 * X + x
    return (
        tl.load(base, inside, other=0.0), tl.load(base + 2 * X, inside, other=0.0),
        tl.load(base + X, inside, other=0.0), tl.load(base + 3 * X, inside, other=0.0),
        tl.load(at, inside, other=0.0), tl.load(at + X, inside, other=0.0),
    )  # fmt: skip


@triton.jit
def _layer(positions, present, cell, T, t, m0, m1, c0, c1, mb, cb):
    """Return position, presence, alpha and xhat of one object; cell is [R, B, N]."""
    seen = tl.load(present + cell).to(tl.float32)
    at = positions + (cell * T + t) * 2
    a0 = tl.where(seen > 0, tl.load(at), 0.0)
    a1 = tl.where(seen > 0, tl.load(at + 1), 0.0)
    alpha = tl.sigmoid(a0 * m0 + a1 * m1 + mb) * seen
    xhat = 2 * tl.sigmoid(2 * (a0 * c0 + a1 * c1 + cb)) - 1
    return a0, a1, seen, alpha, xhat


@triton.jit
def _render_forward(
    positions, present, from_position, bias, empty, out,
    B, T, X, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = x < X
    m0, m1, c0, c1, mb, cb = _layer_weights(from_position, bias, r, X, x, inside)
    canvas = 2 * tl.sigmoid(2 * tl.load(empty + r * X + x, inside, other=0.0)) - 1
    for i in range(ROWS):
        row = tl.program_id(1) * ROWS + i
        if row < B * T:
            b, t = row // T, row % T
            drawn = canvas
            for n in tl.static_range(N):
                cell = (r * B + b) * N + n
                _, _, _, alpha, xhat = _layer(
                    positions, present, cell, T, t, m0, m1, c0, c1, mb, cb
                )
                drawn += alpha * (xhat - drawn)
            tl.store(out + (r * B * T + row) * X + x, drawn, inside)


@triton.jit
def _render_backward(
    grad, positions, present, from_position, bias, empty, by_positions, by_rest,
    R, B, T, X, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = x < X
    m0, m1, c0, c1, mb, cb = _layer_weights(from_position, bias, r, X, x, inside)
    canvas = 2 * tl.sigmoid(2 * tl.load(empty + r * X + x, inside, other=0.0)) - 1
    g_m0, g_m1, g_mb = tl.zeros_like(m0), tl.zeros_like(m0), tl.zeros_like(m0)
    g_c0, g_c1, g_cb = tl.zeros_like(m0), tl.zeros_like(m0), tl.zeros_like(m0)
    g_empty = tl.zeros_like(m0)
    for i in range(ROWS):
        row = tl.program_id(1) * ROWS + i
        if row < B * T:
            b, t = row // T, row % T
            g = tl.load(grad + (r * B * T + row) * X + x, inside, other=0.0)
            for back in tl.static_range(N):
                n = N - 1 - back
                below = canvas
                for k in tl.static_range(
                    N - 1 - back
                ):  # painted again, instead of kept for each object
                    cell = (r * B + b) * N + k
                    _, _, _, alpha, xhat = _layer(
                        positions, present, cell, T, t, m0, m1, c0, c1, mb, cb
                    )
                    below += alpha * (xhat - below)
                cell = (r * B + b) * N + n
                a0, a1, seen, alpha, xhat = _layer(
                    positions, present, cell, T, t, m0, m1, c0, c1, mb, cb
                )
                by_mask = g * (xhat - below) * alpha * (1 - alpha)
                by_contribution = g * alpha * (1 - xhat * xhat)
                g_m0 += by_mask * a0
                g_m1 += by_mask * a1
                g_mb += by_mask
                g_c0 += by_contribution * a0
                g_c1 += by_contribution * a1
                g_cb += by_contribution
                at = by_positions + ((tl.program_id(2) * R * B * N + cell) * T + t) * 2
                tl.store(at, seen * tl.sum(by_mask * m0 + by_contribution * c0))
                tl.store(at + 1, seen * tl.sum(by_mask * m1 + by_contribution * c1))
                g = g * (1 - alpha)
            g_empty += g
    at = by_rest + (r * tl.num_programs(1) + tl.program_id(1)) * 7 * X + x
    tl.store(at, g_m0, inside)
    tl.store(at + X, g_c0, inside)
    tl.store(at + 2 * X, g_m1, inside)
    tl.store(at + 3 * X, g_c1, inside)
    tl.store(at + 4 * X, g_mb, inside)
    tl.store(at + 5 * X, g_cb, inside)
    tl.store(at + 6 * X, g_empty * (1 - canvas * canvas), inside)


@triton.jit
def _bernoulli(
    logits, bias, frames, residual, nats, rows, pixels: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    r, total = row // rows, tl.zeros([BLOCK], tl.float32)
    for start in range(0, pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        inside, at = pixel < pixels, row * pixels + pixel
        logit = tl.load(logits + at, inside, other=0.0)
        logit += tl.load(bias + r * pixels + pixel, inside, other=0.0)
        frame = tl.load(frames + at, inside, other=0.0).to(tl.float32)
        # The logarithm of 1 + exp(logit), from the smaller exponential.
        rest = tl.exp(-tl.abs(logit))
        soft = tl.maximum(logit, 0.0) + tl.log(1 + rest)
        total += tl.where(inside, frame * logit - soft, 0.0)
        kind = residual.dtype.element_ty
        tl.store(residual + at, (frame - tl.sigmoid(logit)).to(kind), inside)
    tl.store(nats + row, tl.sum(total))


@triton.jit
def _unpack(bits, indices, frames, T, num_bytes, num_pixels, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num_pixels
    source = tl.load(indices + row // T) * T + row % T
    byte = tl.load(bits + source * num_bytes + i // 8, inside, other=0).to(tl.int32)
    lit = (byte >> (7 - i % 8)) & 1
    tl.store(frames + row * num_pixels + i, lit.to(frames.dtype.element_ty), inside)


@triton.jit
def _scale_rows(
    residual, weight, scaled, sums, rows, pixels, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    r, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, i = part * ROWS + tl.arange(0, ROWS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (i < pixels)[None]
    at = (r * rows + row)[:, None] * pixels + i[None]
    factor = tl.load(weight + r * rows + row, row < rows, other=0.0)
    value = tl.load(residual + at, inside, other=0.0).to(tl.float32) * factor[:, None]
    tl.store(scaled + at, value.to(scaled.dtype.element_ty), inside)
    place = (r * tl.num_programs(1) + part) * pixels + i
    tl.store(sums + place, tl.sum(value, 0), i < pixels)
