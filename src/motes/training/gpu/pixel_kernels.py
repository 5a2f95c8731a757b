"""GPU kernels of the renderer and of pixels, and the unpacking of clips."""

import torch
import triton
import triton.language as tl

from motes.core.axes import Tensor

LAYER_COLUMNS, LAYER_ROWS = 128, 8  # of the renderer's state
PIXELS = 1024
SCALED_ROWS, SCALED_COLUMNS = 16, 256


def render_forward(
    positions: Tensor, present: Tensor, from_position: Tensor, bias: Tensor, empty: Tensor
) -> Tensor:
    """See `motes.training.gpu.reference_ops.render_forward`."""
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
    """See `motes.training.gpu.reference_ops.render_backward`."""
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
    """See `motes.training.gpu.reference_ops.bernoulli`."""
    R, rows, pixels = logits.shape
    nats = logits.new_empty(R, rows)
    _bernoulli[R * rows,](logits, bias, frames, residual, nats, rows, pixels, PIXELS)
    return nats


def unpack(bits: Tensor, indices: Tensor, num_pixels: int) -> Tensor:
    """Return `motes.data.clips.PackedFrames.unpack` in 16 bits, pixels in one row."""
    (b,), (_, T, num_bytes) = indices.shape, bits.shape
    frames = torch.empty(b, T, num_pixels, dtype=torch.float16, device=bits.device)
    _unpack[b * T, triton.cdiv(num_pixels, PIXELS)](
        bits, indices, frames, T, num_bytes, num_pixels, PIXELS
    )
    return frames


def scale_rows(residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """See `motes.training.gpu.reference_ops.scale_rows`."""
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
