"""Memory budgets: refuse work that cannot fit, and choose how much to process in one chunk."""

import os
import sys

from motes.core.axes import Tensor
from motes.core.errors import require

GIB = 2**30
GPU_FACTOR = 64  # chunks on a GPU are this much larger than on a CPU


def free_bytes() -> int:
    """Return the bytes that this process may still allocate, within its own limit if it has one.

    Without psutil (a bare training machine) this is the installed memory.
    """
    try:
        import psutil
    except ImportError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = int(psutil.virtual_memory().available)
    if sys.platform == "linux":  # the only platform where psutil reads limits
        limit, _ = psutil.Process().rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            free = min(free, max(limit - psutil.Process().memory_info().vms, 0))
    return free


def limit_memory(extra_bytes: int) -> None:
    """Limit this process to its present address space and `extra_bytes` more, on Linux only."""
    if sys.platform == "linux":
        import resource

        import psutil

        limit = psutil.Process().memory_info().vms + extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def require_memory(needed: int, what: str) -> None:
    """Raise `InputError` if `what`, e.g. "100 clips of 30 frames", needs more than is free."""
    free = free_bytes()
    require(
        needed <= free,
        f"{what} would take {needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} GiB are free; "
        "give fewer, shorter or smaller ones",
    )


def chunk_size(budget: int, item_size: int = 1, like: Tensor | None = None) -> int:
    """Return how many items to process in one chunk: `budget / item_size`, at least one.

    The budget suits a CPU. Where `like` is on a GPU, which has room for more and a launch overhead
    to amortise, it is GPU_FACTOR times as large.
    """
    factor = GPU_FACTOR if like is not None and like.is_cuda else 1
    return max(budget * factor // item_size, 1)
