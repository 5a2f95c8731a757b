"""Inject faults into training: kills, full disk, closed folder, wrong clock, non-finite values.

After every fault the run must resume and end with exactly the weights of an undisturbed run.

Usage: python -m tests.stress.faults --out experiments/reliability/faults.json
"""

import argparse
import contextlib
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401  imported here, not once in every fork
import safetensors.torch
import torch
import torch._dynamo

from motes import cli
from motes.core.environment import environment
from motes.core.files import leftover_files, write_json
from motes.models import checkpoint
from motes.models.checkpoint import load, read_tensors
from motes.training import step
from motes.training.step import Trainer
from motes.training.train import lock_run_folder
from tests.stress.forked import KILL_SIGNAL, Ended, run_forked

FAMILIES = {"paper": 40, "structured": 16}  # iterations; checkpoints every 10 and every 4 of them
PRESETS = {"paper": "paper-smoke", "structured": "sprites-smoke"}
CLONE_NEWNS, NO_RIGHTS, CODES_DIFFER = 0x20000, 77, 3
READ_ONLY, REMOUNT, BIND, WHOLE_TREE, PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
WRITE_MOMENTS = ("file half written", "before the sync", "before the rename", "after the rename")
Work = Callable[[], int]


def command(family: str, folder: Path, *more: str) -> list[str]:
    """Return the command line of a new run of a family."""
    size = ("--preset", PRESETS[family], "--iterations", str(FAMILIES[family]))
    return ["train", *size, "--out", str(folder), "--json", *more]


def go_on(folder: Path, *more: str) -> list[str]:
    """The command line that resumes a run."""
    return ["train", "--resume", str(folder), "--json", *more]


def motes(arguments: list[str], prepare: Callable[[], object] = lambda: None) -> Work:
    """The work of a fork: a command line, after something was done to the process."""

    def work() -> int:
        prepare()
        return cli.main(arguments)

    return work


def expect(condition: bool, message: str, ended: Ended | None = None) -> None:
    """Raises unless the condition holds."""
    if not condition:
        raise AssertionError(message + (f"\n{ended.code}\n{ended.text}" if ended else ""))


def one_line(ended: Ended) -> str:
    """The last line of an output without tracebacks."""
    expect("Traceback" not in ended.text, "a traceback", ended)
    return ended.text.strip().splitlines()[-1]


def same_end(folder: Path, straight: Path) -> None:
    """Checks that a run ended with the tensors of the undisturbed one, and tidily."""
    for name in ("model.safetensors", "checkpoint.safetensors"):
        ours, theirs = read_tensors(folder / name)[0], read_tensors(straight / name)[0]
        expect(ours.keys() == theirs.keys(), f"{name}: other tensors")
        expect(all(torch.equal(ours[k], theirs[k]) for k in ours), f"{name}: other values")
    expect(leftover_files(folder) == [], "files half written are left")
    steps = Counter(
        (line["step"], "held_out_bound" in line)
        for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    )
    expect(set(steps.values()) == {1}, "a line of the log stands there twice")


def whole(folder: Path) -> int:
    """The step of the checkpoint of a folder, -1 without one; every file must be whole."""
    if (folder / "model.safetensors").exists():
        load(folder)
    if not (folder / "checkpoint.safetensors").exists():
        return -1
    return int(read_tensors(folder / "checkpoint.safetensors")[1]["step"])


def restart(family: str, folder: Path) -> list[str]:
    """The command that a person would type after a kill."""
    begun = (folder / "config.json").exists()
    return go_on(folder) if begun else command(family, folder)


def die_in_write(number: int, moment: str) -> None:
    """Lets this process be killed at a moment of its number-th atomic write."""
    left = number
    replace, fsync, save = os.replace, os.fsync, safetensors.torch.save_file

    def now() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted_fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left == 0 and moment == "before the sync":
            now()
        fsync(handle)

    def counted_replace(source: Path, target: Path) -> None:
        if left == 0 and moment == "before the rename":
            now()
        replace(source, target)
        if left == 0 and moment == "after the rename":
            now()

    def half_saved(tensors: Any, path: Path, metadata: dict[str, str]) -> None:
        nonlocal left
        save(tensors, path, metadata)
        if left <= 1 and moment == "file half written":
            os.truncate(path, path.stat().st_size // 2)
            now()

    for module, name, function in (
        (os, "fsync", counted_fsync),
        (os, "replace", counted_replace),
        (checkpoint, "save_file", half_saved),
    ):
        setattr(module, name, function)


def kills(family: str, straight: Path, seconds: float, count: int, seed: int) -> dict[str, Any]:
    """Kills runs at random moments and inside writes, twice some of them, until all have ended."""
    chance, moments, resumed = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory() as place:
        number = 0
        while moments.total() < count:
            folder, number = Path(place) / str(number), number + 1
            for _ in range(chance.choice((1, 1, 2))):
                if chance.random() < 0.6:
                    moment = "any"
                    ended = run_forked(
                        motes(restart(family, folder)), kill_after=chance.uniform(0.0, seconds)
                    )
                else:
                    moment, write = chance.choice(WRITE_MOMENTS), chance.randint(1, 12)
                    ended = run_forked(
                        motes(restart(family, folder), lambda: die_in_write(write, moment))  # noqa: B023
                    )
                if ended.code in (-signal.SIGKILL, -KILL_SIGNAL):
                    moments[moment] += 1
                    resumed.append(whole(folder))
            ended = run_forked(motes(restart(family, folder)))
            expect(ended.code == 0, "did not go on", ended)
            same_end(folder, straight)
            shutil.rmtree(folder)
            show(f"{family}: {moments.total()} of {count} kills survived")
    return {
        "kills": moments.total(),
        "moments": dict(moments),
        "resumed_from_step": dict(sorted(Counter(map(str, resumed)).items())),
        "bit_for_bit": True,
    }


def full_disk(family: str, straight: Path, place: Path) -> dict[str, Any]:
    """Lets every file be at most so long, for several lengths, then lifts the limit."""
    longest = (straight / "checkpoint.safetensors").stat().st_size
    messages = {}
    for part in (0.02, 0.9):
        folder, limit = place / f"limit-{part}", int(part * longest)

        def prepare(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        ended = run_forked(motes(command(family, folder), prepare))
        expect(ended.code == 1 and "arge" in one_line(ended), "no clear message", ended)
        whole(folder)
        messages[f"no file over {part:.1%} of a checkpoint"] = generic(one_line(ended), place)
        expect(run_forked(motes(restart(family, folder))).code == 0, "did not go on")
        same_end(folder, straight)
    return messages


def mount(kind: str | None, source: str | None, place: Path, flags: int, options: str = "") -> None:
    """Mounts as the system does, in a name space that this process has alone."""
    parts = [part and part.encode() for part in (source, str(place), kind)]
    if ctypes.CDLL(None).mount(*parts, flags, options.encode()):
        raise PermissionError("no right to mount")


def alone(prepare: Callable[[], object], work: Work) -> Work:
    """Work after changes to the mounts that no other process sees."""

    def inside() -> int:
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWNS):
                return NO_RIGHTS
            mount(None, None, Path("/"), WHOLE_TREE | PRIVATE)
            prepare()
        except PermissionError:
            return NO_RIGHTS
        return work()

    return inside


def small_disk(family: str, straight: Path, place: Path) -> dict[str, Any]:
    """Trains on disks of several sizes, each too small; then the disk grows and training ends."""
    messages, page = {}, 4096
    needed = sum(-(-path.stat().st_size // page) * page for path in straight.iterdir())
    for part in (0.4, 1.0):
        disk, size = place / f"disk-{part}", int(part * needed)
        disk.mkdir()

        def prepare(disk: Path = disk, size: int = size) -> None:
            mount("tmpfs", "none", disk, 0, f"size={size}")

        def work(disk: Path = disk) -> int:
            first = cli.main(command(family, disk / "run"))
            whole(disk / "run")
            mount("tmpfs", "none", disk, REMOUNT, "size=1g")
            second = cli.main(restart(family, disk / "run"))
            same_end(disk / "run", straight)
            return 0 if (first, second) == (1, 0) else CODES_DIFFER

        ended = run_forked(alone(prepare, work))
        if ended.code == NO_RIGHTS:
            return {"skipped": "no right to mount a small disk here"}
        expect(ended.code == 0 and "No space left" in ended.text, "no clear message", ended)
        (line,) = (line for line in ended.text.splitlines() if "No space left" in line)
        messages[f"disk of {part:.0%} of a finished run"] = generic(line, place)
    return messages


def generic(line: str, place: Path) -> str:
    """A message without the names of this machine's folders."""
    return line.replace(str(place.resolve()), "PLACE").replace(str(place), "PLACE")


def closed_folder(family: str, straight: Path, place: Path) -> dict[str, str]:
    """Resumes in a folder that cannot be written, and in one that another process holds."""
    folder = place / "closed"
    shutil.copytree(straight, folder)
    (folder / "checkpoint.safetensors").unlink()
    (folder / ".lock").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def close() -> None:
        mount(None, str(folder), folder, BIND)
        mount(None, None, folder, REMOUNT | BIND | READ_ONLY)

    folder.chmod(0o555)  # which closes it to all but root
    as_root = os.geteuid() == 0
    work = motes(go_on(folder))
    read_only = run_forked(alone(close, work) if as_root else work)
    expect(read_only.code == 2 and "write" in one_line(read_only), "no clear message", read_only)
    expect({path.name: path.read_bytes() for path in folder.iterdir()} == before, "changed")
    folder.chmod(0o755)
    with lock_run_folder(folder):
        in_use = run_forked(motes(go_on(folder)))
    expect(in_use.code == 2 and "in use" in one_line(in_use), "no clear message", in_use)
    (folder / ".lock").unlink()
    expect({path.name: path.read_bytes() for path in folder.iterdir()} == before, "changed")
    return {
        "read-only folder": generic(one_line(read_only), place),
        "folder in use": generic(one_line(in_use), place),
    }


def wild_clock(family: str, straight: Path, place: Path) -> str:
    """Trains while the wall clock jumps by years and files seem to come from other times."""
    folder, chance = place / "clock", random.Random(7)
    real = time.time

    def prepare() -> None:
        time.time = lambda: real() + chance.uniform(-3e9, 3e9)
        time.time_ns = lambda: int(time.time() * 1e9)

    def prepare_and_die() -> None:
        prepare()
        die_in_write(7, "after the rename")

    run_forked(motes(command(family, folder), prepare_and_die))
    expect(whole(folder) > 0, "no checkpoint")
    for path, when in zip(folder.iterdir(), (0, 4e9, 1e9) * 9, strict=False):
        os.utime(path, (when, when))
    ended = run_forked(motes(restart(family, folder), prepare))
    expect(ended.code == 0, "did not go on", ended)
    same_end(folder, straight)
    return "killed and resumed under a clock that jumps by up to 95 years: same weights"


def corrupt(at_call: int, times: int) -> None:
    """Makes a parameter infinite before these calls of `Trainer.advance`, as a bad chip would."""
    advance, calls = Trainer.advance, 0

    def corrupted(self: Trainer) -> None:
        nonlocal calls
        calls += 1
        if at_call <= calls < at_call + times:
            with torch.no_grad():
                next(self.model.renderer.parameters()).fill_(torch.inf)
        advance(self)

    Trainer.advance = corrupted  # type: ignore[method-assign]


def not_finite(family: str, straight: Path, place: Path) -> dict[str, str]:
    """Inject non-finite values: the run stops with a message, or rolls back with --roll-backs."""
    # Steps before the run's own:
    steps = (len(step.RESTARTS) + step.RESTARTS_KEPT) * step.RESTART_STEPS // 2
    rough = steps if family == "structured" else 0
    folder, at = place / "spoiled", rough + FAMILIES[family] // 2 - 2
    stopped = run_forked(motes(command(family, folder), lambda: corrupt(at, 1)))
    expect(stopped.code == 1 and "not finite" in one_line(stopped), "no clear message", stopped)
    expect(whole(folder) >= 0, "no checkpoint is kept")
    expect(run_forked(motes(restart(family, folder))).code == 0, "did not go on")
    same_end(folder, straight)
    back = run_forked(
        motes(command(family, place / "back", "--roll-backs", "2"), lambda: corrupt(at, 1))
    )
    expect(back.code == 0 and json.loads(one_line(back))["rolled_back"] == 1, "no message", back)
    lines = [json.loads(line) for line in (place / "back/log.jsonl").read_text().splitlines()]
    (noted,) = (line for line in lines if "rolled_back" in line)
    never = run_forked(
        motes(command(family, place / "never", "--roll-backs", "2"), lambda: corrupt(at, 10**6))
    )
    expect(never.code == 1 and "not finite" in one_line(never), "no clear message", never)
    return {
        "spoiled once": generic(one_line(stopped), place),
        "spoiled once, --roll-backs 2": f"step {noted['step']}: {noted['why']}; went back",
        "spoiled for ever, --roll-backs 2": generic(one_line(never), place),
    }


FAULTS = (full_disk, small_disk, closed_folder, wild_clock, not_finite)


def show(text: str) -> None:
    """Print progress on one line of a terminal."""
    print(text, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


@contextlib.contextmanager
def undisturbed(family: str) -> Iterator[tuple[Path, float]]:
    """The folder of a run that nothing happened to, and the seconds of CPU time that it took."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "straight"
        ended = run_forked(motes(command(family, folder)))
        expect(ended.code == 0, "the undisturbed run failed", ended)
        yield folder, ended.cpu_seconds


def try_family(family: str, faults: list[Any], num_kills: int, seed: int) -> dict[str, Any]:
    """Every fault once, kills often; raises at the first that did harm."""
    with undisturbed(family) as (straight, seconds), tempfile.TemporaryDirectory() as name:
        place = Path(name)
        record: dict[str, Any] = {"iterations": FAMILIES[family], "seconds": round(seconds, 2)}
        for fault in faults:
            record[fault.__name__] = fault(family, straight, place)
            show(f"{family}: {fault.__name__} survived")
        return record | kills(family, straight, seconds, num_kills, seed)


def main() -> None:
    """Tries every fault on both families and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--kills", type=int, default=50, help="for each family")
    parser.add_argument("--family", choices=[*FAMILIES, "both"], default="both")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--kills-only", action="store_true", help="try no other fault")
    parser.add_argument("--short", action="store_true", help="find initial sprites in few steps")
    given = parser.parse_args()
    if given.short:
        vars(step).update(RESTARTS=step.RESTARTS[:1], RESTART_STEPS=4)
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads that did not follow it
    families = list(FAMILIES) if given.family == "both" else [given.family]
    faults = [] if given.kills_only else [*FAULTS]
    record = {
        "what": "faults in training; after each, the run ended with the same weights bit for bit",
        "seed": given.seed,
        "environment": environment(torch.device("cpu")),
        "families": {name: try_family(name, faults, given.kills, given.seed) for name in families},
    }
    if given.out is not None:
        write_json(given.out, record)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
