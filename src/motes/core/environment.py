"""The environment of a result: versions, machine, commit."""

import contextlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device) -> dict[str, Any]:
    """Return what a result depends on besides its configuration."""
    on_gpu = device.type == "cuda"
    return {
        "motes_commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        "threads": torch.get_num_threads(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def commit() -> str | None:
    """Return the commit of the source tree, marked if it has changes; None outside of one."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", "."],
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def processor_name() -> str:
    """Return the name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
