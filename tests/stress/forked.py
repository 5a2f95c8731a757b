"""Run work in a forked process with limits on memory and time."""

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

CRASHED = 99  # exit code of work that raised


class Ended(NamedTuple):
    """How a forked process ended."""

    code: int  # exit code; negative: the signal that killed it
    text: str  # what it wrote to standard output and standard error
    seconds: float
    peak_mib: float  # most memory held, that of the parent at the fork included
    timed_out: bool = False


def run_forked(
    work: Callable[[], int],
    *,
    kill_after: float | None = None,
    timeout: float = 120.0,
    memory_gib: float | None = None,
) -> Ended:
    """Does work in a fork of this process, which has imported everything already.

    Args:
        work: returns the exit code.
        kill_after: seconds after which SIGKILL is sent, as a power cut would.
        timeout: seconds after which the work counts as hanging, and is killed.
        memory_gib: limit of the fork's address space.
    """
    with tempfile.TemporaryFile("w+b") as output:
        started = time.monotonic()
        process = os.fork()
        if process == 0:
            _child(work, output.fileno(), memory_gib)
        limit = timeout if kill_after is None else min(kill_after, timeout)
        code, peak = _wait(process, started + limit)
        killed = code is None
        if code is None:
            os.kill(process, signal.SIGKILL)
            _, status, usage = os.wait4(process, 0)
            code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss
        output.seek(0)
        text = output.read().decode(errors="replace")
        late = killed and limit == timeout
        return Ended(code, text, time.monotonic() - started, peak / 1024, late)


def _wait(process: int, deadline: float) -> tuple[int | None, int]:
    """The exit code and the peak memory of a process; no code if it was not there in time."""
    while True:
        done, status, usage = os.wait4(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss
        if time.monotonic() >= deadline:
            return None, 0
        time.sleep(0.001)


def _child(work: Callable[[], int], output: int, memory_gib: float | None) -> None:
    code = CRASHED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if memory_gib is not None:
            most = int(memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
