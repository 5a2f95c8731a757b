"""The inference network's recurrence over frames and objects, in the order with the fewest steps.

The state of object n at frame t needs that of the same object one frame earlier (its past) and
that of object n-1 at the same frame (the one below). Both lie on the diagonal t + n - 1, so all
states with the same t + n are found together: T + N - 1 dependent steps instead of T * N.

Buffers are kept skewed: row d holds diagonal d, so that each step reads and writes solid blocks.
`_cells` looks at a skewed buffer as the grid of objects and frames.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from motes.core.axes import Float, Tensor


def recur(
    initial: Float[Tensor, "N B state"],
    image_part: Float[Tensor, "T B 2*state"],
    from_past: Float[Tensor, "state 2*state"],
    from_below: Float[Tensor, "state 2*state"],
) -> Float[Tensor, "N T B state"]:
    """Return the states of all objects at all frames, as repeated `InferenceNetwork.step`s would.

    Args:
        initial: states before the first frame.
        image_part: what the frames alone add to the two gates, bias included.
        from_past: weights from an object's state one frame earlier to the two gates.
        from_below: weights from the state of the object before it to the two gates.

    Law: equals the plain loop, values and gradients (test_fast_order_equals_the_naive_loop,
    test_recurrence_passes_gradcheck).
    """
    states: Tensor = _Recurrence.apply(initial, image_part, from_past, from_below)
    return states


def _cells(skewed: Tensor, num_frames: int) -> Tensor:
    """View a skewed buffer [T+N-1, N, B, size] as [N, T, B, size]: cell (n, t) is in row t + n."""
    _, num_objects, num_clips, size = skewed.shape
    row, column, clip, element = skewed.stride()
    return skewed.as_strided(
        (num_objects, num_frames, num_clips, size), (row + column, row, clip, element)
    )


def _diagonals(num_frames: int, num_objects: int) -> Iterator[tuple[int, slice, slice, slice]]:
    """Give each diagonal d and its objects n = first..last (counted from 1) as three slices.

    Returns:
        own: columns n of the states, which begin with the column of s^0 = 0.
        below: columns n - 1 of the states, and those of object n in the gates, which have no s^0.
        fed: as `below`, without object 1: below it is s^0 = 0, whose product is not worth taking.
    """
    for d in range(num_frames + num_objects - 1):
        first, last = max(1, d - num_frames + 2), min(num_objects, d + 1)
        yield d, slice(first, last + 1), slice(first - 1, last), slice(max(first, 2) - 1, last)


def _rows(block: Tensor) -> Tensor:
    """View a solid block [n, B, size] as the rows of one matrix."""
    return block.flatten(0, 1)


class _Recurrence(torch.autograd.Function):
    """The diagonal order with its backward pass written out.

    Autograd would add to the weights' gradients at every step; here the gates' gradients are kept
    and each weight matrix has its gradient from one product over all cells.
    """

    @staticmethod
    def forward(
        ctx: Any, initial: Tensor, image_part: Tensor, from_past: Tensor, from_below: Tensor
    ) -> Tensor:
        (N, B, S), T = initial.shape, len(image_part)
        states = initial.new_empty(T + N, N + 1, B, S)
        states[:, 0] = 0  # s^0
        grid = _cells(states[:, 1:], T + 1)  # frame 0 is the initial state
        grid[:, 0] = initial
        gates = initial.new_empty(T + N - 1, N, B, 2 * S)
        _cells(gates, T).copy_(image_part.expand(N, -1, -1, -1))
        for d, own, below, fed in _diagonals(T, N):
            both = _rows(gates[d, below])
            both.addmm_(_rows(states[d, own]), from_past)
            _rows(gates[d, fed]).addmm_(_rows(states[d, fed]), from_below)
            beta, shat = both[:, :S].sigmoid_(), both[:, S:].tanh_()
            torch.lerp(_rows(states[d, below]), shat, beta, out=_rows(states[d + 1, own]))
        ctx.save_for_backward(states, gates, from_past, from_below)
        return grid[:, 1:].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, gates, from_past, from_below = ctx.saved_tensors
        N, T, _, S = grad_output.shape
        grad_states = torch.zeros_like(states)
        grad_grid = _cells(grad_states[:, 1:], T + 1)
        grad_grid[:, 1:] = grad_output
        grad_gates = torch.empty_like(gates)
        for d, own, below, fed in reversed(list(_diagonals(T, N))):
            grad_state, grad_both = _rows(grad_states[d + 1, own]), _rows(grad_gates[d, below])
            beta, shat = _rows(gates[d, below]).split(S, dim=1)
            # s = (1 - beta) s_below + beta shat, with beta and shat taken before sigm and tanh.
            torch.mul(grad_state, beta, out=grad_both[:, S:])
            grad_through = grad_state - grad_both[:, S:]
            _rows(grad_states[d, below]).add_(grad_through)
            torch.sub(shat, _rows(states[d, below]), out=grad_both[:, :S])
            grad_both[:, :S].mul_(beta).mul_(grad_through)
            grad_both[:, S:].addcmul_(grad_both[:, S:] * shat, shat, value=-1)
            _rows(grad_states[d, own]).addmm_(grad_both, from_past.t())
            _rows(grad_states[d, fed]).addmm_(_rows(grad_gates[d, fed]), from_below.t())
        grid, grad_cells = _cells(states[:, 1:], T + 1), _cells(grad_gates, T).contiguous()
        past, under = grid[:, :-1].reshape(-1, S), grid[:-1, 1:].reshape(-1, S)
        grad_from_past = past.t() @ grad_cells.view(-1, 2 * S)
        grad_from_below = under.t() @ grad_cells[1:].view(-1, 2 * S)
        return grad_grid[:, 0].contiguous(), grad_cells.sum(0), grad_from_past, grad_from_below
