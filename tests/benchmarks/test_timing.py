import time

import pytest

from benchmarks.timing import in_turns


@pytest.mark.parametrize(("block", "fewest", "most"), [(0.0, 1, 1), (10.0, 2, 5)])
def test_quick_calls_are_timed_in_blocks_and_told_by_the_call(
    block: float, fewest: int, most: int
) -> None:
    order: list[str] = []

    def quick() -> None:
        order.append("quick")
        time.sleep(0.002)

    def slow() -> None:
        order.append("slow")
        time.sleep(0.012)

    times = in_turns({"quick": quick, "slow": slow}, 3, block_milliseconds=block)
    # A sleep is never shorter than asked for; 5 blocks of 2 ms fill 10 ms, fewer if it overslept.
    assert 2 <= times["quick"]["min"] <= times["quick"]["median"]
    assert times["slow"]["min"] >= 12
    rounds = "".join(name[0] for name in order[6:]).split("s")[:-1]
    assert len(rounds) == 3 == order[6:].count("slow")
    assert all(fewest <= len(calls) <= most for calls in rounds)
