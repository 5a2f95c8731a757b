"""Times of several ways to the same answer, taken so that they can be compared."""

import statistics
import time
from collections.abc import Callable, Mapping


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Least and median milliseconds of each call, timed once a round, after a round to warm up.

    A call must return only when its work is done. In turns, so that all see the same weather.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {"min": min(taken[1:]), "median": statistics.median(taken[1:])}
        for name, taken in times.items()
    }
