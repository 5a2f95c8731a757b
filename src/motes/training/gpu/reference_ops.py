"""Elementwise operations of the stacked networks in plain PyTorch.

Each function does for all replicas what `motes.training.gpu.kernels` does in one GPU kernel, and is
what that kernel is tested against. `forward` and `backward` are of the recurrence: they write into
the buffers of `motes.training.gpu.networks`, for all replicas, objects and clips of diagonal d;
object n is at frame t = d - n there, if that is a frame.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import softplus

from motes.core.axes import Bool, Float, Int, Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


def recurrence_forward(
    d: int,
    sums: Float[Tensor, "R N B gates"],
    image_part: Float[Tensor, "R B T gates"],
    bias: Float[Tensor, "R gates"],
    states: Float[Tensor, "R N T B state"],
    gates: Float[Tensor, "R D N B gates"],
    joined: Float[Tensor, "R D N B gates"],
    kept: Float[Tensor, "R D N B gates"],
) -> None:
    """Write the gates and states of a diagonal, and the input of the next one.

    `kept` receives what `joined` does, in the type that gradients are computed in.
    """
    N, T, S = states.shape[1], states.shape[2], states.shape[-1]
    for n, t in _active(d, N, T):
        both = sums[:, n] + image_part[:, :, t] + bias[:, None]
        beta, shat = both[..., :S].sigmoid(), both[..., S:].tanh()
        below = states[:, n - 1, t] if n > 0 else beta.new_zeros(())
        s = below + beta * (shat - below)
        states[:, n, t] = s
        gates[:, d, n, :, :S], gates[:, d, n, :, S:] = beta, shat
        for buffer in (joined, kept):
            if t + 1 < T:
                buffer[:, d + 1, n, :, :S] = s
            if n + 1 < N:
                buffer[:, d + 1, n + 1, :, S:] = s


def zero_unused_cells(
    joined: Float[Tensor, "R D N B gates"], kept: Float[Tensor, "R D N B gates"], num_frames: int
) -> None:
    """Write zeros where `forward` writes nothing: no such cell, or no object below."""
    S = joined.shape[-1] // 2
    for d, n in ((d, n) for d in range(joined.shape[1]) for n in range(joined.shape[2])):
        start = 0 if not 0 <= d - n < num_frames else S if n == 0 else 2 * S
        joined[:, d, n, :, start:] = kept[:, d, n, :, start:] = 0


def recurrence_backward(
    d: int,
    grad_states: Float[Tensor, "R N T B state"],
    grad_joined: Float[Tensor, "R N B gates"],
    states: Float[Tensor, "R N T B state"],
    gates: Float[Tensor, "R D N B gates"],
    grad_gates: Float[Tensor, "R D N B gates"],
    through: Float[Tensor, "2 R N B state"],
) -> None:
    """Write the gradients of the gates of a diagonal, from those of the diagonal after it.

    `grad_joined` is of what the diagonal after this one read. Row d of `grad_gates` is written, 0
    where there is no cell. `through` passes through the blend to the object below: half d % 2 is
    written, the other read.
    """
    N, T, S = states.shape[1], states.shape[2], states.shape[-1]
    grad_gates[:, d] = 0
    through[d % 2] = 0
    for n, t in _active(d, N, T):
        g = grad_states[:, n, t] + grad_joined[:, n, :, :S]
        if n + 1 < N:
            g = g + grad_joined[:, n + 1, :, S:] + through[(d + 1) % 2, :, n + 1]
        beta, shat = gates[:, d, n].chunk(2, dim=-1)
        below = states[:, n - 1, t] if n > 0 else beta.new_zeros(())
        through[d % 2, :, n] = (1 - beta) * g
        grad_gates[:, d, n, :, :S] = (shat - below) * beta * (1 - beta) * g
        grad_gates[:, d, n, :, S:] = beta * (1 - shat * shat) * g


def sum_over_objects(
    skewed: Float[Tensor, "R D N B gates"], num_frames: int
) -> Float[Tensor, "R B T gates"]:
    """Return the sum over objects of the cells of a skewed buffer."""
    R, _, N, B, size = skewed.shape
    replica, row, column, clip, element = skewed.stride()
    shape = (R, B, num_frames, N, size)
    return skewed.as_strided(shape, (replica, clip, row, row + column, element)).sum(3)


def cast(values: Float[Tensor, "..."], kind: torch.dtype) -> Float[Tensor, "..."]:
    """Return the values in another type."""
    return values.to(kind)


def _active(d: int, num_objects: int, num_frames: int) -> list[tuple[int, int]]:
    """Return the objects and frames (n, t) of a diagonal."""
    return [(n, d - n) for n in range(num_objects) if 0 <= d - n < num_frames]


def render_forward(
    positions: Float[Tensor, "R B N T 2"],
    present: Bool[Tensor, "R B N"],
    from_position: Float[Tensor, "R 2 gates"],
    bias: Float[Tensor, "R gates"],
    empty: Float[Tensor, "R state"],
) -> Float[Tensor, "R B T state"]:
    """Return the renderer's state x^N of every frame; see `motes.models.paper`."""
    alpha, xhat = _layers(positions, present, from_position, bias)
    x = empty.tanh()[:, None, None].expand_as(xhat[:, :, 0])
    for alpha_n, xhat_n in zip(alpha.unbind(2), xhat.unbind(2), strict=True):
        x = x + alpha_n * (xhat_n - x)
    return x


def render_backward(
    grad: Float[Tensor, "R B T state"],
    positions: Float[Tensor, "R B N T 2"],
    present: Bool[Tensor, "R B N"],
    from_position: Float[Tensor, "R 2 gates"],
    bias: Float[Tensor, "R gates"],
    empty: Float[Tensor, "R state"],
) -> tuple[
    Float[Tensor, "R B N T 2"],
    Float[Tensor, "R 2 gates"],
    Float[Tensor, "R gates"],
    Float[Tensor, "R state"],
]:
    """The gradients of `render_forward` by positions, weights, bias and the empty canvas."""
    inputs = (positions, from_position, bias, empty)
    with torch.enable_grad():
        leaves = [part.detach().requires_grad_() for part in inputs]
        x = render_forward(leaves[0], present, *leaves[1:])
    by_positions, by_weights, by_bias, by_empty = torch.autograd.grad(x, leaves, grad)
    return by_positions, by_weights, by_bias, by_empty


def _layers(
    positions: Tensor, present: Tensor, from_position: Tensor, bias: Tensor
) -> tuple[Float[Tensor, "R B N T state"], Float[Tensor, "R B N T state"]]:
    """Return alpha and xhat of every object."""
    seen = present[..., None, None]
    a = torch.where(seen, positions, 0)
    both = torch.einsum("rbnti,rig->rbntg", a, from_position) + bias[:, None, None, None]
    mask, contribution = both.chunk(2, dim=-1)
    return mask.sigmoid() * seen, contribution.tanh()


def bernoulli(
    logits: Float[Tensor, "R rows pixels"],
    bias: Float[Tensor, "R pixels"],
    frames: Float[Tensor, "R rows pixels"],
    residual: Float[Tensor, "R rows pixels"],
) -> Float[Tensor, "R rows"]:
    """Return the log density of each row of pixels; write its gradient by logits to `residual`."""
    both = logits + bias[:, None]
    residual.copy_(frames - both.sigmoid())
    return (frames * both - softplus(both)).sum(-1)


def weigh_residuals(
    residual: Float[Tensor, "R rows pixels"], weight: Float[Tensor, "R rows"]
) -> tuple[Float[Tensor, "R rows pixels"], Float[Tensor, "R pixels"]]:
    """Return the rows times their weights, and the sum of these."""
    scaled = residual * weight[..., None].to(residual.dtype)
    return scaled, scaled.sum(1, dtype=weight.dtype)


def adam_step(
    values: Float[Tensor, "R ..."],
    gradient: Float[Tensor, "R ..."],
    mean: Float[Tensor, "R ..."],
    square: Float[Tensor, "R ..."],
    pace: Float[Tensor, " R"],
    correction: Float[Tensor, " R"],
    bad: Int[Tensor, " R"],
    copies: Sequence[Float[Tensor, "R ..."]] = (),
) -> None:
    """Take a step of Adam for each replica in place; set `bad` to 1 where a gradient is not finite.

    `mean` and `square` are running means of gradients and their squares; `pace` is the learning
    rate over what `mean` lacks of its full weight, 1 - BETA_1^step, `correction` one over what
    `square` lacks. Copies of the parameters in other types, at most two, are brought up to date.
    """
    shape, kind = (-1, *(1,) * (values.ndim - 1)), values.dtype
    gradient = gradient.to(kind)
    m = mean.to(kind).lerp(gradient, 1 - BETA_1)
    mean.copy_(m)
    square.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    spread = (square * correction.to(kind).view(shape)).sqrt() + EPSILON
    values.sub_(pace.to(kind).view(shape) * m / spread)
    bad.logical_or_(~gradient.reshape(len(bad), -1).isfinite().all(1))
    for copy in copies:
        copy.copy_(values)
