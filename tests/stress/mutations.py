"""Apply deliberate faults to the package one at a time and report which ones the tests notice.

A fault replaces one text of a source file by another; the nearest tests must fail. Every worker has
a copy of the tree. The tests are run without faults first: where they fail, faults say nothing.
The record is written after each fault; with the same --out, faults whose source and tests have not
changed since are not tried again.

Usage: python -m tests.stress.mutations --jobs 16 --out experiments/reliability/mutations.json
"""

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from motes.core.environment import environment
from motes.models.model import write_json
from tests.stress.mutation_list import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "benchmarks", "experiments", "tools", "examples", "pyproject.toml")
LARGE = shutil.ignore_patterns("__pycache__", "*.pyc", "*.json", "*.mp4", "*.gif", "*.pdf")
PASSED, FAILED, STOPPED, NO_TESTS = 0, 1, 2, 5  # exit codes of pytest; stopped: no import
CAUGHT, SURVIVED, STALE = "caught", "survived", "does not apply"
BROKEN, LATE = "tests fail without it", "took too long"  # neither caught nor survived; tried again
Outcome = dict[str, Any]


def source_of(fault: Fault) -> Path:
    """Return the path of the file that a fault changes, relative to the root."""
    return Path("src/motes") / fault.file


def applies(fault: Fault) -> bool:
    """Return whether the text to replace occurs exactly once in its file."""
    path = ROOT / source_of(fault)
    return path.is_file() and path.read_text(encoding="utf-8").count(fault.old) == 1


def key_of(fault: Fault) -> str:
    """Return a hash of a fault, its source file and its tests."""
    content = hashlib.sha256(repr(fault).encode())
    for path in (source_of(fault), *map(Path, fault.tests)):
        content.update((ROOT / path).read_bytes())
    return content.hexdigest()[:16]


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            keep_json = name in ("src", "tests")
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc") if keep_json else LARGE
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target / name)


PYTEST = """import sys, pytest
class SlowLast:
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
sys.exit(pytest.main(sys.argv[1:], plugins=[SlowLast()]))"""


def run_tests(tree: Path, tests: Sequence[str], timeout: float) -> int | None:
    """Return the exit code of pytest in a tree, None if it took too long; slow tests run last."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in given if Path(path).resolve() not in (ROOT, ROOT / "src")]
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), *others]),
        "PYTHONPYCACHEPREFIX": str(tree / "pycache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PYTEST, "-q", "-x", "-p", "no:cacheprovider"]
    try:
        return subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def write_source(path: Path, text: str) -> None:
    """Write a file whose time is later than before by seconds: compiled files are told by it."""
    time_before = path.stat().st_mtime
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time_before + 2, time_before + 2))


def try_fault(tree: Path, fault: Fault, timeout: float) -> str:
    """Return whether the tests notice a fault; the tree is as before afterwards."""
    path = tree / source_of(fault)
    text = path.read_text(encoding="utf-8")
    write_source(path, text.replace(fault.old, fault.new))
    try:
        code = run_tests(tree, fault.tests, timeout)
        return {
            PASSED: SURVIVED,
            NO_TESTS: SURVIVED,
            FAILED: CAUGHT,
            STOPPED: CAUGHT,
            None: LATE,
        }.get(code, BROKEN)
    finally:
        write_source(path, text)


def in_parallel(
    jobs: int, work: Sequence[Any], task: Callable[[Path, Any], None], place: Path
) -> None:
    """Call a task with a tree of its own for each piece of work."""
    trees: queue.Queue[Path] = queue.Queue()
    for number in range(jobs):
        tree = place / str(number)
        if not tree.exists():
            copy_tree(tree)
        trees.put(tree)

    def one(piece: Any) -> None:
        tree = trees.get()
        try:
            task(tree, piece)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, work))


def summary(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return the numbers of faults by outcome, the share that was caught, and both by package."""

    def count(chosen: Sequence[Outcome]) -> dict[str, Any]:
        counts = Counter(outcome["outcome"] for outcome in chosen)
        tried = counts[CAUGHT] + counts[SURVIVED]
        return {"faults": len(chosen), **counts, "share_caught": counts[CAUGHT] / max(tried, 1)}

    packages: dict[str, list[Outcome]] = {}
    for outcome in outcomes.values():
        packages.setdefault(outcome["file"].split("/")[0], []).append(outcome)
    by_package = {name: count(chosen) for name, chosen in sorted(packages.items())}
    return {**count(list(outcomes.values())), "packages": by_package}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write, and to continue")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at the same time")
    parser.add_argument("--only", default="", help="faults whose file contains this text")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one test run")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no fault after these")
    parser.add_argument("--trusted", action="store_true", help="skip the tests without faults")
    return parser.parse_args()


def main() -> None:
    """Try all faults and write the record."""
    given = parse_arguments()
    earlier: dict[str, Outcome] = {}
    if given.out is not None and given.out.is_file():
        earlier = json.loads(given.out.read_text(encoding="utf-8"))["outcomes"]
    outcomes: dict[str, Outcome] = {}
    waiting: list[Fault] = []
    for fault in FAULTS:
        if given.only not in fault.file:
            continue
        entry = fault._asdict() | {"tests": list(fault.tests)}
        if not applies(fault):
            outcomes[f"stale {fault}"] = entry | {"outcome": STALE}
        elif key_of(fault) in earlier:
            outcomes[key_of(fault)] = earlier[key_of(fault)]
        else:
            waiting.append(fault)
    started, sound = time.monotonic(), dict[tuple[str, ...], bool]()

    def check(tree: Path, tests: tuple[str, ...]) -> None:
        sound[tests] = run_tests(tree, tests, given.timeout) == PASSED

    def attempt(tree: Path, fault: Fault) -> None:
        began = time.monotonic()
        if began - started > given.seconds:
            return
        outcome = try_fault(tree, fault, given.timeout) if sound[fault.tests] else BROKEN
        seconds = round(time.monotonic() - began, 1)
        entry = fault._asdict() | {"tests": list(fault.tests)}
        outcomes[key_of(fault)] = entry | {"outcome": outcome, "seconds": seconds}
        print(f"{outcome:>22} {seconds:6.1f} s  {fault.file}: {fault.new.strip()[:70]}", flush=True)
        write()

    def write() -> None:
        if given.out is not None:
            kept = {k: v for k, v in outcomes.items() if v["outcome"] not in (BROKEN, LATE)}
            what = "deliberate faults, one at a time, and the nearest tests"
            record = {"what": what, "summary": summary(dict(outcomes)), "outcomes": kept}
            write_json(given.out, record | {"environment": environment(torch.device("cpu"))})

    with tempfile.TemporaryDirectory() as name:
        distinct = sorted({fault.tests for fault in waiting})
        if given.trusted:
            sound.update(dict.fromkeys(distinct, True))
        else:
            in_parallel(given.jobs, distinct, check, Path(name))
        for tests, passed in sound.items():
            if not passed:
                print(f"without a fault these fail: {' '.join(tests)}", flush=True)
        in_parallel(given.jobs, waiting, attempt, Path(name))
    write()
    for outcome in outcomes.values():
        if outcome["outcome"] in (SURVIVED, STALE):
            print(f"{outcome['outcome']}: {outcome['file']}: {outcome['old']} -> {outcome['new']}")
    print(json.dumps(summary(outcomes)))


if __name__ == "__main__":
    main()
