"""A bounded queue of jobs with one thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MAX_WAITING = 24
WAIT_SECONDS = 20.0  # that a job may wait for its turn
Result = TypeVar("Result")


class BusyError(Exception):
    """The queue is full, or a job waited too long."""


class JobQueue:
    """Runs one job at a time, so that requests do not compete for the processor.

    PyTorch uses one thread too: for small clips, more threads only wait for each other.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting, self.waiting = max_waiting, 0
        self.thread = ThreadPoolExecutor(
            1, "model", initializer=torch.set_num_threads, initargs=(1,)
        )

    async def run(self, job: Callable[[], Result]) -> Result:
        """Return the result of the job.

        Raises:
            BusyError: At once if too many jobs are waiting, later if the job waited too long.
        """
        if self.waiting >= self.max_waiting:
            raise BusyError(f"{self.waiting} requests are waiting; try again in a moment")
        self.waiting += 1
        future = self.thread.submit(job)
        try:
            answer = asyncio.wrap_future(future)
            await asyncio.wait([answer], timeout=WAIT_SECONDS)
            if future.cancel():  # fails once the job runs
                raise BusyError(f"waited more than {WAIT_SECONDS:.0f} s; try again in a moment")
            return await answer
        finally:
            self.waiting -= 1
