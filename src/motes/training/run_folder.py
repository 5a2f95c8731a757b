"""The folder of a run and its process: lock, environment, log, signals."""

import contextlib
import dataclasses
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from motes.config import RunConfig, to_json
from motes.core.errors import InputError
from motes.core.files import leftovers
from motes.models.model import read_config, write_json, write_text


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise `InputError` if another process has it.

    The lock is the operating system's, so a killed process leaves none. Partly written files of
    such a process are deleted.
    """
    from filelock import FileLock, Timeout  # a requirement of torch, too

    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder} is in use by another process; wait for it") from None
    except OSError as error:
        raise InputError(f"cannot write to {folder} ({error.strerror}); choose another") from None
    try:
        for path in leftovers(folder):
            path.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def begin(out: Path, config: RunConfig, replicas: int) -> None:
    """Write what a new run needs to be resumed; `config.json` last, which makes it a run.

    With several replicas, `replicas.json` holds their number, from which their folders follow.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in (out / "replicas.json", *leftovers(out)):  # of a process that was killed here
        path.unlink(missing_ok=True)
    if replicas > 1:
        write_json(out / "replicas.json", {"seed": config.seed, "replicas": replicas})
    write_text(out / "config.json", to_json(config))


def is_new(out: Path) -> bool:
    """Return whether a folder is empty, or holds only what a killed `begin` left."""
    if not out.exists():
        return True
    entries = {path.name for path in out.iterdir()} - {path.name for path in leftovers(out)}
    return entries <= {"replicas.json"}


def run_folders(out: Path, *, writes: bool) -> list[Path]:
    """Return the folders of a run's replicas, created if missing; or the run's own folder."""
    try:
        noted = json.loads((out / "replicas.json").read_text(encoding="utf-8"))
        first, count = int(noted["seed"]), int(noted["replicas"])
    except FileNotFoundError:
        return [out]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{out / 'replicas.json'} is damaged ({error}); start again") from None
    folders = [out / f"seed-{first + offset}" for offset in range(count)]
    for offset, folder in enumerate(folders if writes else []):
        if not (folder / "config.json").is_file():
            folder.mkdir(exist_ok=True)
            own = dataclasses.replace(read_config(out), seed=first + offset)
            write_text(folder / "config.json", to_json(own))
    return folders


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM requested a stop.

    A second Ctrl-C interrupts at once. Each call installs the handlers again: compilers of GPU
    kernels replace them, after which a second signal would kill the process.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in numbers]

    def requested() -> bool:
        for number in numbers:
            signal.signal(number, note)
        return bool(received)

    try:
        yield requested
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def fast_arithmetic() -> Iterator[None]:
    """Use TensorFloat-32 products on GPUs and flush denormals on CPUs.

    Blurred frames contain many denormals, on which a CPU is a hundred times slower.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)


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
    git = ["git", "-C", str(Path(__file__).parent)]
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


def drop_lines_after(log: Path, step: int) -> None:
    """Remove log lines beyond the checkpoint that training continues from."""
    if not log.is_file():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a line cut off by the kill
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    write_text(log, "".join(kept))
