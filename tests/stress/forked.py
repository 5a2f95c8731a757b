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
KILL_SIGNAL = signal.SIGPROF  # of `kill_after`


class Ended(NamedTuple):
    """How a forked process ended."""

    code: int  # exit code; negative: the signal that killed it
    text: str  # what it wrote to standard output and standard error
    seconds: float
    cpu_seconds: float
    peak_mib: float  # most memory held, that of the parent at the fork included
    timed_out: bool = False


def run_forked(
    work: Callable[[], int],
    *,
    kill_after: float | None = None,
    timeout: float = 600.0,
    memory_gib: float | None = None,
) -> Ended:
    """Does work in a fork of this process, which has imported everything already.

    Args:
        work: returns the exit code.
        kill_after: seconds of CPU time after which it is killed, as by a power cut. On a loaded
            machine it gets as far as on an idle one.
        timeout: seconds after which the work counts as hanging, and is killed.
        memory_gib: limit of the fork's address space.
    """
    with tempfile.TemporaryFile("w+b") as output:
        started = time.monotonic()
        process = os.fork()
        if process == 0:
            _child(work, output.fileno(), memory_gib, kill_after)
        done, status, usage = os.wait4(process, os.WNOHANG)
        while not done and time.monotonic() < started + timeout:
            time.sleep(0.001)
            done, status, usage = os.wait4(process, os.WNOHANG)
        late = not done
        if late:
            os.kill(process, signal.SIGKILL)
            _, status, usage = os.wait4(process, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
        code, cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        return Ended(code, text, time.monotonic() - started, cpu, usage.ru_maxrss / 1024, late)


def _child(
    work: Callable[[], int], output: int, memory_gib: float | None, kill_after: float | None
) -> None:
    code = CRASHED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if memory_gib is not None:
            most = int(memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if kill_after is not None:  # the signal's default action ends the process at once
            signal.signal(KILL_SIGNAL, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, max(kill_after, 1e-3))
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
