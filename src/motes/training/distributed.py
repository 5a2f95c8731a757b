"""Several processes that train one model, as `torchrun` starts them; alone, all of it is nothing.

The first process leads: it writes the folder and tells. All take the same steps, so whatever
decides what happens next is shared before it is acted on.
"""

import contextlib
import os
from datetime import timedelta

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from motes.core.axes import Int, Tensor

PATIENCE = timedelta(seconds=60)  # with processes that are about to leave


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the process that writes and tells."""
    return rank() == 0


def join(backend: str) -> Store:
    """Meets the other processes that torchrun has started, and becomes one of them.

    What comes out is where they left word for one another, for `leave`.
    """
    store: Store
    store, own_rank, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # Processes that are started again on one host find the addresses of the dead ones in the
        # store; hosts do not agree on how often they were started, and get a new store each time.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=own_rank, world_size=size)
    return store


def leave(store: Store) -> None:
    """Parts from the other processes as soon as none waits for another one any more.

    Who leaves closes its connections, and who has not yet looked at what came by them takes that
    for a loss. So all say in the store that they are done; the first, who may keep it, goes last.
    """
    others = range(1, world_size())
    with contextlib.suppress(dist.DistError):  # one that never comes is not waited for long
        store.set(f"done {rank()}", "")
        store.wait([f"done {number}" for number in (0, *others)], PATIENCE)
        if is_main():
            store.wait([f"gone {number}" for number in others], PATIENCE)
        else:
            store.set(f"gone {rank()}", "")
    dist.destroy_process_group()


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an error of a collective means that another process is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def barrier() -> None:
    """Returns when all processes have come here."""
    if world_size() > 1:
        dist.barrier()


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process.

    A signal may reach one process alone; if it alone stopped, the others would wait for ever.
    """
    if world_size() == 1:
        return flag
    shared = torch.tensor(int(flag), device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared)


@torch.no_grad()
def broadcast(module: nn.Module) -> None:
    """Gives the module the leader's parameters, where each process would have found its own."""
    if world_size() > 1:
        for parameter in module.parameters():
            dist.broadcast(parameter, src=0)


def all_reduce_sum(values: Tensor) -> None:
    """Replaces the values by their sums over all processes."""
    if world_size() > 1:
        dist.all_reduce(values)


def all_reduce_min(steps: Int[Tensor, "..."]) -> None:
    """Replaces steps by the earliest of all processes."""
    if world_size() > 1:
        dist.all_reduce(steps, dist.ReduceOp.MIN)


def sum_gradients(model: nn.Module) -> None:
    """Adds the gradients of all processes, so that each holds that of the global batch.

    One sum after the backward pass instead of the DDP wrapper. [Choice 11]
    """
    if world_size() == 1:
        return
    for kind in (torch.float32, torch.float64):
        gradients = [p.grad for p in model.parameters() if p.grad is not None and p.dtype == kind]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        all_reduce_sum(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
