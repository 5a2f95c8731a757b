"""Times of several ways to the same answer, taken so that they can be compared."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 3  # calls, before any that counts


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, *, block_milliseconds: float = 0.0
) -> dict[str, dict[str, float]]:
    """Least and median milliseconds that a call took, over blocks of calls, one block a round.

    A call must return only when its work is done. In turns, so that all see the same weather; in
    blocks, so that a quick call is not timed with the caches that the one before it left.

    Args:
        calls: The contenders by name.
        rounds: How many blocks of each.
        block_milliseconds: About how long each block takes; a slower call is a block of its own.
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
    """How many calls, warm, fill that time; one at least."""
    return max(1, round(milliseconds / min(_mean_milliseconds(call, 1) for _ in range(WARM_UP))))


def _mean_milliseconds(call: Callable[[], object], num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return 1e3 * (time.perf_counter() - start) / num_calls
