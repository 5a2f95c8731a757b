"""The paper's two networks for R replicas at once, each with its own weights, for GPUs.

Small steps on a GPU are bound by launches, not by arithmetic. So replicas are batched, elementwise
operations are fused kernels (`motes.training.gpu.kernels`; on a CPU the same in PyTorch,
`motes.training.gpu.reference_ops`), and gradients are written by hand. On a GPU, products read 16
bits and accumulate in 32 [Choice 21].
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from motes.core.axes import Bool, Float, Int, Tensor
from motes.training.gpu import reference_ops

# The matrices that products read, and the weights whose rows they stack.
FACTORS = {
    "inference.from_image": ("inference.from_image",),
    "inference.recurrent": ("inference.from_past", "inference.from_below"),
    "renderer.to_image": ("renderer.to_image",),
}


class Precision(NamedTuple):
    """Types of the matrices that products on a GPU read."""

    forward: torch.dtype
    backward: torch.dtype  # of gradients and of what is read where they are passed on


# By `RunConfig.precision`: float16 keeps as many bits of small values as TF32, bfloat16 has the
# range of float32.
PRECISIONS = {
    "mixed": Precision(torch.float16, torch.bfloat16),
    "float32": Precision(torch.float32, torch.float32),
}


class Factor(NamedTuple):
    """A matrix of weights as products read it; its gradient is that of `backward`, in its type."""

    forward: Float[Tensor, "R inner outer"]
    backward: Float[Tensor, "R inner outer"]  # read where gradients are passed on


def factor(*parts: Float[Tensor, "R _ outer"], precision: str = "mixed") -> Factor:
    """Return stacked weights as a factor, through which gradients reach them."""
    joined = torch.cat(parts, 1)
    forward, backward = types_of(joined, precision)
    return Factor(joined.detach().to(forward), joined.to(backward))


def parts_of_factors() -> set[str]:
    """Return the names of all weights that are part of a factor."""
    return {part for parts in FACTORS.values() for part in parts}


def factors(weights: Mapping[str, Tensor], precision: str = "mixed") -> dict[str, Factor]:
    """Return the factors of `FACTORS` by name, from stacked weights by name."""
    return {
        name: factor(*(weights[part] for part in parts), precision=precision)
        for name, parts in FACTORS.items()
    }


def encode(
    weights: Mapping[str, Tensor],
    from_image: Factor,
    recurrent: Factor,
    frames: Float[Tensor, "R B T height width"],
    num_objects: Int[Tensor, "R B"],
    scale_floor: float,
) -> tuple[Float[Tensor, "R B N T 2"], Float[Tensor, "R B N T 2"]]:
    """Return the means and scales of q(a | v), as each replica's `InferenceNetwork` would.

    `weights` are the stacked parameters by their names; `recurrent` is from `from_past` and
    `from_below`.

    Law: equals the single networks, values and gradients
    (test_stacked_networks_are_the_single_ones).
    """
    (R, B), N = num_objects.shape, weights["initial"].shape[1]
    choice = num_objects - 1 + N * torch.arange(R, device=num_objects.device)[:, None]
    initial = weights["initial"].flatten(0, 1).index_select(0, choice.flatten()).tanh()
    initial = initial.unflatten(0, (R, B)).transpose(1, 2)
    states = read(initial, frames.flatten(3), from_image, weights["gate_bias"], recurrent)
    outputs = torch.baddbmm(
        weights["position_bias"][:, None], states.flatten(1, 3), weights["to_position"]
    )
    mean, raw = outputs.view(*states.shape[:-1], 4).permute(0, 3, 1, 2, 4).chunk(2, dim=-1)
    return mean, scale_floor + softplus(raw)


def log_likelihood(
    weights: Mapping[str, Tensor],
    to_image: Factor,
    positions: Float[Tensor, "R B N T 2"],
    present: Bool[Tensor, "R B N"],
    frames: Float[Tensor, "R B T height width"],
) -> Float[Tensor, "R B"]:
    """Return log p(v | a), as the `PaperRenderer` of each replica and `reconstruction` would.

    `weights` are the stacked parameters by their names; positions of absent objects may hold
    anything.

    Law: equals the single networks, values and gradients
    (test_stacked_networks_are_the_single_ones).
    """
    own = (weights[name] for name in ("from_position", "state_bias", "empty_canvas"))
    x = _Rendering.apply(positions, present, *own)
    pixels = frames.flatten(3).flatten(1, 2)
    nats = _Bernoulli.apply(x.flatten(1, 2), *to_image, weights["image_bias"], pixels)
    total: Tensor = nats.unflatten(1, frames.shape[1:3]).sum(-1)
    return total


def read(
    initial: Float[Tensor, "R N B state"],
    pixels: Float[Tensor, "R B T pixels"],
    from_image: Factor,
    bias: Float[Tensor, "R 2*state"],
    recurrent: Factor,
) -> Float[Tensor, "R N T B state"]:
    """Return the states of all replicas, as `motes.models.paper.recur` of each would.

    Pixels get no gradient.

    Law: equals it, values and gradients (test_stacked_recurrence_is_the_single_one); on a GPU up
    to the rounding of 16-bit factors (test_gpu_networks_are_the_cpus_up_to_short_factors).
    """
    states: Tensor = _Recurrence.apply(initial, pixels, *from_image, bias, *recurrent)
    return states


class _Recurrence(torch.autograd.Function):
    """Row d of a skewed buffer holds diagonal d: cell (n, t) of all replicas is in row t + n.

    A diagonal is two launches: one product of what all its cells read, and one kernel. `joined`
    holds what a cell reads: the first half of its columns is the object's own past state, the
    second half the state of the object below it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        initial: Tensor,
        pixels: Tensor,
        from_image: Tensor,
        _: Tensor,
        bias: Tensor,
        weights: Tensor,
        weights_back: Tensor,
    ) -> Tensor:
        (R, N, B, S), T = initial.shape, pixels.shape[2]
        rows = pixels.to(from_image.dtype).flatten(1, 2)
        image_part = _product(rows, from_image, initial.dtype).unflatten(1, (B, T))
        D, kernels = T + N - 1, backend(initial)
        joined, kept = (w.new_empty(R, D, N, B, 2 * S) for w in (weights, weights_back))
        kernels.zero_unused_cells(joined, kept, T)
        for n in range(N):
            joined[:, n, n, :, :S] = kept[:, n, n, :, :S] = initial[:, n]
        states, gates = initial.new_empty(R, N, T, B, S), torch.empty_like(joined)
        for d in range(D):
            sums = _product(joined[:, d].flatten(1, 2), weights, initial.dtype)
            sums = sums.view(R, N, B, 2 * S)
            kernels.recurrence_forward(d, sums, image_part, bias, states, gates, joined, kept)
        ctx.save_for_backward(rows, states, gates, kept, weights_back)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        rows, states, gates, kept, weights = ctx.saved_tensors
        (R, N, T, B, S), D = states.shape, gates.shape[1]
        kernels, grad_states = backend(states), grad_states.contiguous()
        grad_gates = torch.empty_like(kept)
        through, grad_initial = states.new_zeros(2, R, N, B, S), states.new_empty(R, N, B, S)
        grad_joined = states.new_zeros(R, N, B, 2 * S)
        for d in reversed(range(D)):
            kernels.recurrence_backward(
                d, grad_states, grad_joined, states, gates, grad_gates, through
            )
            product = _product(grad_gates[:, d].flatten(1, 2), weights.mT, states.dtype)
            grad_joined = product.view(R, N, B, 2 * S)
            if d < N:
                grad_initial[:, d] = grad_joined[:, d, :, :S]
        by_recurrent = torch.bmm(kept.flatten(1, 3).mT, grad_gates.flatten(1, 3))
        by_sums = kernels.sum_over_objects(grad_gates, T).flatten(1, 2)
        by_image = torch.bmm(kernels.cast(rows, by_sums.dtype).mT, by_sums)
        ones = by_sums.new_ones(R, 1, by_sums.shape[1])
        by_bias = _product(ones, by_sums, states.dtype).squeeze(1)
        return grad_initial, None, None, by_image, by_bias, None, by_recurrent


class _Rendering(torch.autograd.Function):
    """The renderer's states; its layers are recomputed for the gradient instead of stored."""

    @staticmethod
    def forward(ctx: Any, positions: Tensor, present: Tensor, *weights: Tensor) -> Tensor:
        positions = positions.contiguous()
        ctx.save_for_backward(positions, present, *weights)
        x: Tensor = backend(positions).render_forward(positions, present, *weights)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_positions, *by_weights = backend(grad).render_backward(
            grad.contiguous(), *ctx.saved_tensors
        )
        return by_positions, None, *by_weights


class _Bernoulli(torch.autograd.Function):
    """The log density of rows of pixels whose logits are x times weights plus bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, weights_back: Tensor, bias: Tensor, pixels: Tensor
    ) -> Tensor:
        short = x.to(weights.dtype)
        logits = _product(short, weights, x.dtype)
        residual = torch.empty_like(logits, dtype=weights_back.dtype)
        nats: Tensor = backend(x).bernoulli(logits, bias, pixels, residual)
        ctx.save_for_backward(short, weights_back, residual)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        x, weights, residual = ctx.saved_tensors
        by_logits, by_bias = backend(x).weigh_residuals(residual, grad)
        return (
            _product(by_logits, weights.mT, grad.dtype),
            None,
            torch.bmm(backend(x).cast(x, residual.dtype).mT, by_logits),
            by_bias,
            None,
        )


def backend(like: Tensor) -> ModuleType:
    """Return the implementation of `reference_ops` for the device of a tensor."""
    if not like.is_cuda:
        return reference_ops
    from motes.training.gpu import kernels

    return kernels


def types_of(like: Tensor, precision: str) -> Precision:
    """Return the types that products read: on a CPU always those of the weights [Choice 21]."""
    return PRECISIONS[precision] if like.is_cuda else Precision(like.dtype, like.dtype)


def _product(
    left: Float[Tensor, "R rows inner"], right: Float[Tensor, "R inner columns"], kind: torch.dtype
) -> Float[Tensor, "R rows columns"]:
    """Return one product for each replica, accumulated and returned in `kind`."""
    if left.dtype == kind:
        return torch.bmm(left, right)
    product: Tensor = torch.bmm(left, right, out_dtype=kind)
    return product
