"""Data-parallel helpers for torchrun; no-ops in a single process.

Rank 0 writes the folder and reports. All processes take the same steps, so whatever decides what
happens next is shared before it is acted on.
"""

import contextlib
import os
from datetime import timedelta

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from motes.core.axes import Tensor
from motes.models.protocols import Module

EXIT_TIMEOUT = timedelta(seconds=60)  # for processes that are about to leave


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Return whether this process writes and reports."""
    return rank() == 0


def join(backend: str) -> Store:
    """Join the process group that torchrun has started; return its store, for `leave`."""
    store: Store
    store, own_rank, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # Restarted processes on one host would find the addresses of dead ones in the store. Across
        # hosts restart counts differ, but there the store is new each time.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=own_rank, world_size=size)
    return store


def leave(store: Store) -> None:
    """Leave the process group once no process waits for another.

    Leaving closes connections, which a process that has not yet read them takes for a failure. So
    all announce in the store that they are done, and rank 0, which may host it, leaves last.
    """
    others = range(1, world_size())
    with contextlib.suppress(dist.DistError):  # a missing process is not waited for long
        store.set(f"done {rank()}", "")
        store.wait([f"done {number}" for number in (0, *others)], EXIT_TIMEOUT)
        if is_main():
            store.wait([f"gone {number}" for number in others], EXIT_TIMEOUT)
        else:
            store.set(f"gone {rank()}", "")
    dist.destroy_process_group()


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether an error of a collective means that another process has ended."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def barrier() -> None:
    """Return when all processes have reached this call."""
    if world_size() > 1:
        dist.barrier()


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set in any process.

    A signal may reach a single process; if only that one stopped, the others would wait forever.
    """
    if world_size() == 1:
        return flag
    shared = torch.tensor(int(flag), device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared)


@torch.no_grad()
def broadcast(module: Module) -> None:
    """Replace the parameters of a module by those of rank 0."""
    if world_size() > 1:
        for parameter in module.parameters():
            dist.broadcast(parameter, src=0)


def all_reduce_sum(values: Tensor) -> None:
    """Replace the values by their sums over all processes."""
    if world_size() > 1:
        dist.all_reduce(values)


def all_reduce_min(values: Tensor) -> None:
    """Replace the values by their minima over all processes."""
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MIN)


def sum_gradients(model: nn.Module) -> None:
    """Sum the gradients over all processes, so that each holds that of the global batch.

    One reduction after the backward pass instead of the DDP wrapper. [Choice 11]
    """
    if world_size() == 1:
        return
    for dtype in (torch.float32, torch.float64):
        gradients = [p.grad for p in model.parameters() if p.grad is not None and p.dtype == dtype]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        all_reduce_sum(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
