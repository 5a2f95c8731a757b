"""CPU seconds until the command line answers and until the package is imported.

Commands take turns with `import torch`, because a busy machine makes all of them slower.
"""

import resource
import statistics
import subprocess
import sys
from typing import Any

ROUNDS = 5  # the median counts
COMMANDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import motes": ["-c", "import motes"],
    "import motes, all names": ["-c", "from motes import *"],
    "motes --help": ["-m", "motes", "--help"],
    "motes --version": ["-m", "motes", "--version"],
    "motes infer --help": ["-m", "motes", "infer", "--help"],
    "motes bench --help": ["-m", "motes", "bench", "--help"],
    "motes infer, wrong option": ["-m", "motes", "infer", "clips.npz", "--no-such-option"],
    "motes infer, completion": ["-m", "motes", "infer", "--tyro-print-completion", "bash"],
}


def bench_startup(*, smoke: bool = False) -> dict[str, Any]:
    """Return the median user and system seconds of each command."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(1 if smoke else ROUNDS):
        for name, arguments in COMMANDS.items():
            taken[name].append(cpu_seconds([sys.executable, *arguments]))
    medians = {name: round(statistics.median(times), 3) for name, times in taken.items()}
    return {"rounds": len(taken["python"]), "cpu_seconds": medians}


def cpu_seconds(command: list[str]) -> float:
    """Return the user and system seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
