"""How much memory is free, so that what cannot fit is refused before the machine stands still."""

import contextlib
import os
import resource
from pathlib import Path

from motes.core.axes import Tensor
from motes.core.errors import InputError

GIB = 2**30
ON_A_GPU = 64  # times as much as on a CPU


def free_bytes() -> int:
    """Bytes that this process may still take: what the system has left, within its own limit."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration):  # Linux knows more than the total
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left = next(line for line in lines if line.startswith("MemAvailable:"))
        free = int(left.split()[1]) * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            free = min(free, max(limit - held * os.sysconf("SC_PAGE_SIZE"), 0))
    return free


def require_memory(needed: int, what: str) -> None:
    """Raises `InputError` if something would need more memory than is free."""
    free = free_bytes()
    if needed > free:
        raise InputError(
            f"{what} would take {needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} GiB are "
            "free; give fewer, shorter or smaller ones"
        )


def side_by_side(number: int, like: Tensor) -> int:
    """How many things are held side by side where a tensor lives, if `number` suits a CPU.

    A GPU has memory for more, and waits for every launch.
    """
    return number * ON_A_GPU if like.is_cuda else number
