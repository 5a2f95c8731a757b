"""One thread that asks the model, and a short queue in front of it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MAX_WAITING = 24
PATIENCE = 20.0  # seconds that a job waits for its turn
Result = TypeVar("Result")


class BusyError(Exception):
    """The queue is full."""


class Worker:
    """Runs one job after the other, so that questions do not fight for the processor.

    One thread inside PyTorch too: on clips this small, more threads wait for each other.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting, self.waiting = max_waiting, 0
        self.thread = ThreadPoolExecutor(
            1, "model", initializer=torch.set_num_threads, initargs=(1,)
        )

    async def run(self, job: Callable[[], Result]) -> Result:
        """The job's result, when its turn has come.

        Raises:
            BusyError: at once, if too many jobs wait already; later, if its turn does not come.
        """
        if self.waiting >= self.max_waiting:
            raise BusyError(f"{self.waiting} questions are waiting already; try again in a moment")
        self.waiting += 1
        turn = self.thread.submit(job)
        try:
            answer = asyncio.wrap_future(turn)
            await asyncio.wait([answer], timeout=PATIENCE)
            if turn.cancel():  # which fails once the job runs
                raise BusyError(f"no turn came in {PATIENCE:.0f} s; try again in a moment")
            return await answer
        finally:
            self.waiting -= 1
