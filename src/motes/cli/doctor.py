"""What this installation is and which known traps it would step into, each with how to mend it."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from motes.cli.options import Json, tell
from motes.core.errors import InputError
from motes.core.memory import GIB, free_bytes
from motes.models.checkpoint import load, shipped_names
from motes.queries import infer
from motes.training.run_folder import exclusive, processor_name

EXTRAS = {  # what each extra of the package brings, and one module that shows that it is there
    "video": ("mp4, mov, avi, mkv and webm files", "av"),
    "serve": ("the playground, motes serve", "fastapi"),
    "table": ("answer.to_dataframe()", "pandas"),
    "tensorboard": ("motes train --tensorboard", "tensorboard"),
    "rivals": ("motes evaluate trackpy; scores of more than five objects", "trackpy"),
    "bench": ("motes bench kalman against dynamax and pyro", "dynamax"),
}
SLOW_DISK = 30.0  # MiB a second, below which saving a checkpoint is felt
PROBE_MIB = 16
LITTLE_MEMORY = 2 * GIB
# In a process of its own: where the processor hides what it can do, this product kills it.
BFLOAT16 = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a).sum()))"


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: Literal["fine", "hint", "trap", "broken"]
    told: str
    mend: str = ""


def examine(folder: Path) -> list[Finding]:
    """All findings; `folder` is where runs would be written."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        *(versions, device, threads, memory, bfloat16, lambda: disk(folder), extras, models),
    )
    return [finding for check in checks for finding in check()]


def versions() -> Iterator[Finding]:
    """Versions of what motes is built on, against the lowest that are tested."""
    yield Finding("python", "fine", sys.version.split()[0])
    try:
        needs = metadata.requires("motes") or []
    except metadata.PackageNotFoundError:
        yield Finding("motes", "hint", "runs from its source tree", "pip install -e .")
        return
    yield Finding("motes", "fine", metadata.version("motes"))
    for need in needs:
        lowest = re.match(r"([\w-]+)>=([\d.]+)$", need)
        if lowest is not None:
            yield _version(lowest[1], lowest[2])


def _version(package: str, lowest: str) -> Finding:
    try:
        there = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(package, "broken", "is not installed", f"pip install '{package}>={lowest}'")
    if _numbers(there) < _numbers(lowest):
        told = f"{there}, older than {lowest}, the lowest that is tested"
        return Finding(package, "trap", told, f"pip install -U '{package}>={lowest}'")
    return Finding(package, "fine", there)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def device() -> Iterator[Finding]:
    """The processor and the GPUs that PyTorch can use."""
    yield Finding("processor", "fine", processor_name())
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            told = f"{torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB"
            yield Finding(f"GPU {index}", "fine", f"{told} free")
    elif torch.version.cuda is not None:
        mend = "nvidia-smi tells whether the driver sees a GPU"
        yield Finding("GPU", "hint", "none; this PyTorch could use one", mend)
    else:
        yield Finding("GPU", "fine", "none; this PyTorch is for processors alone")


def threads() -> Iterator[Finding]:
    """More threads than cores make every step slower."""
    used = torch.get_num_threads()
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if used > cores:
        told = f"{used} on {cores} cores: they wait for each other"
        yield Finding("threads", "trap", told, f"export OMP_NUM_THREADS={cores}")
    else:
        yield Finding("threads", "fine", f"{used} on {cores} cores")
    if not torch.set_flush_denormal(True):
        told = "tiny numbers cannot be taken for zero here: blurred frames train slowly"
        yield Finding("denormals", "trap", told, "train on another processor or on a GPU")
    torch.set_flush_denormal(False)


def memory() -> Iterator[Finding]:
    """Memory that is free."""
    free = free_bytes()
    state: Literal["fine", "trap"] = "trap" if free < LITTLE_MEMORY else "fine"
    mend = "close other programs" if state == "trap" else ""
    yield Finding("memory", state, f"{free / GIB:.1f} GiB free", mend)


def bfloat16() -> Iterator[Finding]:
    """Whether a product of bfloat16 matrices survives; motes itself stays in float32."""
    done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        mend = "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, or stay in float32 as motes does"
        yield Finding("bfloat16", "trap", "products crash on this (virtual) processor", mend)
    elif done.returncode != 0:
        yield Finding("bfloat16", "trap", "products fail here", "stay in float32, as motes does")
    else:
        yield Finding("bfloat16", "fine", "products work; motes uses float32 and float64 alone")


def disk(folder: Path) -> Iterator[Finding]:
    """How fast a file reaches the disk, and whether the folder can be locked."""
    probe = folder / f".{secrets.token_hex(8)}.probe"
    try:
        started = time.perf_counter()
        with probe.open("wb") as file:
            for _ in range(PROBE_MIB):
                file.write(secrets.token_bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
        rate = PROBE_MIB / (time.perf_counter() - started)
    except OSError as error:
        told = f"{folder} cannot be written ({error.strerror})"
        yield Finding("disk", "broken", told, "choose another folder: motes doctor --folder PLACE")
        return
    finally:
        probe.unlink(missing_ok=True)
    slow = rate < SLOW_DISK
    mend = "write runs to a local disk: motes train --out /local/place" if slow else ""
    yield Finding("disk", "trap" if slow else "fine", f"{rate:.0f} MiB/s with sync", mend)
    yield _lock(folder)


def _lock(folder: Path) -> Finding:
    place = folder / f".{secrets.token_hex(8)}"
    place.mkdir()
    try:
        with exclusive(place):
            return Finding("lock", "fine", "run folders can be locked")
    except (InputError, OSError) as error:
        told = f"run folders cannot be locked here ({error})"
        return Finding("lock", "trap", told, "write runs to a local disk, not to a shared one")
    finally:
        (place / ".lock").unlink(missing_ok=True)
        place.rmdir()


def extras() -> Iterator[Finding]:
    """Optional parts that are missing."""
    for name, (brings, module) in EXTRAS.items():
        if util.find_spec(module) is None:
            told = f"missing, and with it {brings}"
            yield Finding(f"extra {name}", "hint", told, f"pip install 'motes[{name}]'")
        else:
            yield Finding(f"extra {name}", "fine", brings)


def models() -> Iterator[Finding]:
    """Whether the shipped models load and answer."""
    for name in shipped_names():
        try:
            model = load(name)
            infer(model, torch.zeros(1, 3, *model.image_size), 1)
        except Exception as error:
            yield Finding(f"model {name}", "broken", str(error), "install motes again")
        else:
            yield Finding(f"model {name}", "fine", "loads and answers")


def doctor(
    folder: Path = Path("."),
    as_json: Json = False,
) -> None:
    """Appearance at this installation: versions, device, threads, known traps and how to mend each.

    Example: motes doctor --folder runs

    Args:
        folder: where runs would be written; its disk is tried with a small file.
        as_json: print one JSON line instead of a table.
    """
    findings = examine(folder)

    def line(finding: Finding) -> str:
        mend = f"\n{'':9s}mend: {finding.mend}" if finding.mend else ""
        return f"{finding.state:7s}  {finding.name}: {finding.told}{mend}"

    states = [finding.state for finding in findings]
    trouble = sum(state in ("trap", "broken") for state in states)
    last = f"{trouble} to mend" if trouble else "nothing to mend"
    record = {"verb": "doctor", "findings": [finding._asdict() for finding in findings]}
    tell(record, as_json, "\n".join([*map(line, findings), last]))
    if "broken" in states:
        raise SystemExit(1)
