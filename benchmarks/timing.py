"""Interleaved timing of several implementations of one computation."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 3  # calls that are not timed


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, *, block_milliseconds: float = 0.0
) -> dict[str, dict[str, float]]:
    """Return the least and the median milliseconds per call, over blocks of calls.

    A call must return only when its work is done. Calls take turns, one block each per round, so
    that varying load affects all alike; blocks keep a short call from being timed with the caches
    that another call left.

    Args:
        calls: Implementations by name.
        rounds: Number of blocks of each.
        block_milliseconds: Approximate duration of a block; a slower call is one block.
    """
    blocks = {name: _block_size(call, block_milliseconds) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_mean_milliseconds(call, blocks[name]))
    return {
        name: {"min": min(taken), "median": statistics.median(taken)}
        for name, taken in times.items()
    }


def _block_size(call: Callable[[], object], milliseconds: float) -> int:
    """Return the number of warm calls that fill a time, at least one."""
    return max(1, round(milliseconds / min(_mean_milliseconds(call, 1) for _ in range(WARM_UP))))


def _mean_milliseconds(call: Callable[[], object], num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return 1e3 * (time.perf_counter() - start) / num_calls
