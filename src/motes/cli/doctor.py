"""`motes doctor`: check the installation and report known problems with their fixes."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Literal, NamedTuple

from motes.cli.options import Json
from motes.cli.terminal import print_result
from motes.core.errors import InputError

EXTRAS = {  # what each extra of the package provides, and a module that it installs
    "video": ("mp4, mov, avi, mkv and webm files", "av"),
    "serve": ("the playground, motes serve", "fastapi"),
    "table": ("answer.to_dataframe()", "pandas"),
    "cluster": ("many recordings on a Dask cluster, --cluster", "distributed"),
    "tensorboard": ("motes train --tensorboard", "tensorboard"),
    "rivals": ("motes evaluate trackpy; scores of more than five objects", "trackpy"),
    "bench": ("motes bench kalman against dynamax and pyro", "dynamax"),
}
SLOW_DISK = 30.0  # MiB per second, below which checkpoints delay training
PROBE_MIB = 16
GIB = 2**30
MIN_MEMORY = 2 * GIB
# Run in its own process: if the processor misreports its instruction set, this product crashes.
BFLOAT16 = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a).sum()))"


State = Literal["ok", "hint", "warning", "error"]


class Finding(NamedTuple):
    """Result of one check."""

    name: str
    state: State
    detail: str
    fix: str = ""


def examine(folder: Path) -> list[Finding]:
    """Return the findings of all checks; `folder` is where runs would be written."""
    first, last = (versions, device, threads, memory, bfloat16), (extras, models)
    found = [*(check() for check in first), disk(folder), *(check() for check in last)]
    return [finding for findings in found for finding in findings]


def versions() -> Iterator[Finding]:
    """Compare the versions of required packages with the lowest tested ones."""
    yield Finding("python", "ok", sys.version.split()[0])
    try:
        needs = metadata.requires("motes") or []
    except metadata.PackageNotFoundError:
        yield Finding("motes", "hint", "runs from the source tree", "pip install -e .")
        return
    yield Finding("motes", "ok", metadata.version("motes"))
    for need in needs:
        lowest = re.match(r"([\w-]+)>=([\d.]+)$", need)
        if lowest is not None:
            yield _version(lowest[1], lowest[2])


def _version(package: str, lowest: str) -> Finding:
    try:
        there = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(package, "error", "is not installed", f"pip install '{package}>={lowest}'")
    if _numbers(there) < _numbers(lowest):
        detail = f"{there}, older than {lowest}, the lowest that is tested"
        return Finding(package, "warning", detail, f"pip install -U '{package}>={lowest}'")
    return Finding(package, "ok", there)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def device() -> Iterator[Finding]:
    """Report the processor and the GPUs that PyTorch can use."""
    import torch

    from motes.core.environment import processor_name

    yield Finding("processor", "ok", processor_name())
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            detail = f"{torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f}"
            yield Finding(f"GPU {index}", "ok", f"{detail} GiB free")
    elif torch.version.cuda is not None:
        fix = "nvidia-smi shows whether the driver finds a GPU"
        yield Finding("GPU", "hint", "none found; this PyTorch supports CUDA", fix)
    else:
        yield Finding("GPU", "ok", "none; this PyTorch is built for CPUs only")


def threads() -> Iterator[Finding]:
    """Report the chosen numbers of threads; more threads than cores would slow every step."""
    import torch

    from motes.core.device import THREADS, num_threads
    from motes.models.sprites.search import GridInference

    used = torch.get_num_threads()
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if used > cores:
        detail = f"{used} on {cores} cores: threads wait for each other"
        yield Finding("threads", "warning", detail, f"export OMP_NUM_THREADS={cores}")
    else:
        one, many = (num_threads(clips, GridInference.clips_per_thread) for clips in (1, 10**6))
        detail = f"{used} on {cores} cores; sprite models: {one} for a recording, {many} for many"
        given = os.environ.get(THREADS)
        yield Finding("threads", "ok", detail + (f" ({THREADS}={given})" if given else ""))
    if not torch.set_flush_denormal(True):
        detail = "subnormal numbers cannot be flushed to zero: blurred frames train slowly"
        yield Finding("denormals", "warning", detail, "train on another processor or on a GPU")
    torch.set_flush_denormal(False)


def memory() -> Iterator[Finding]:
    """Report the free memory."""
    from motes.core.memory import free_bytes

    free = free_bytes()
    state: State = "warning" if free < MIN_MEMORY else "ok"
    fix = "close other programs" if state == "warning" else ""
    yield Finding("memory", state, f"{free / GIB:.1f} GiB free", fix)


def bfloat16() -> Iterator[Finding]:
    """Check products of bfloat16 matrices; motes itself does not use them."""
    done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        fix = "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, or stay in float32 as motes does"
        yield Finding("bfloat16", "warning", "products crash on this (virtual) processor", fix)
    elif done.returncode != 0:
        yield Finding("bfloat16", "warning", "products fail here", "stay in float32, as motes does")
    else:
        yield Finding("bfloat16", "ok", "products work; motes uses only float32 and float64")


def disk(folder: Path) -> Iterator[Finding]:
    """Measure the write speed of the folder, and check that it can be locked."""
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
        detail = f"{folder} cannot be written ({error.strerror})"
        yield Finding("disk", "error", detail, "choose another one with --folder")
        return
    finally:
        probe.unlink(missing_ok=True)
    slow = rate < SLOW_DISK
    fix = "write runs to a local disk: motes train --out /local/folder" if slow else ""
    yield Finding("disk", "warning" if slow else "ok", f"{rate:.0f} MiB/s with sync", fix)
    yield _lock(folder)


def _lock(folder: Path) -> Finding:
    from motes.training.train import lock_run_folder

    place = folder / f".{secrets.token_hex(8)}"
    place.mkdir()
    try:
        with lock_run_folder(place):
            return Finding("lock", "ok", "run folders can be locked")
    except (InputError, OSError) as error:
        detail = f"run folders cannot be locked here ({error})"
        return Finding("lock", "warning", detail, "write runs to a local disk")
    finally:
        (place / ".lock").unlink(missing_ok=True)
        place.rmdir()


def extras() -> Iterator[Finding]:
    """Report which optional dependencies are missing."""
    for name, (provides, module) in EXTRAS.items():
        if util.find_spec(module) is None:
            detail = f"not installed; needed for {provides}"
            yield Finding(f"extra {name}", "hint", detail, f"pip install 'motes[{name}]'")
        else:
            yield Finding(f"extra {name}", "ok", provides)


def models() -> Iterator[Finding]:
    """Check that the shipped models load and answer."""
    import torch

    from motes import infer, load
    from motes.models.checkpoint import shipped_names

    for name in shipped_names():
        try:
            model = load(name)
            infer(model, torch.zeros(1, 3, *model.image_size), 1)
        except Exception as error:
            yield Finding(f"model {name}", "error", str(error), "reinstall motes")
        else:
            yield Finding(f"model {name}", "ok", "loads and answers")


def doctor(folder: Path = Path("."), as_json: Json = False) -> None:
    """Check the installation; report known problems and their fixes.

    Example: motes doctor --folder runs

    Args:
        folder: folder where runs would be written; its disk is tested with a small file.
        as_json: print one JSON line instead of text.
    """
    findings = examine(folder)

    def line(finding: Finding) -> str:
        fix = f"\n{'':9s}fix: {finding.fix}" if finding.fix else ""
        return f"{finding.state:7s}  {finding.name}: {finding.detail}{fix}"

    states = [finding.state for finding in findings]
    problems = sum(state in ("warning", "error") for state in states)
    last = f"problems found: {problems}" if problems else "no problems found"
    record = {"verb": "doctor", "findings": [finding._asdict() for finding in findings]}
    print_result(record, as_json, "\n".join([*map(line, findings), last]))
    if "error" in states:
        raise SystemExit(1)
