"""Apply deliberate faults to the package one at a time and report which ones the tests notice.

A fault replaces one text of a source file by another; the nearest tests must fail. Every worker has
a copy of the tree. Each file of tests is run once without a fault: tests that fail then are left
out, and the others are put in order for each fault, those first that call the function with the
fault, quick ones before slow ones. Annotations are checked only if nothing else notices a fault,
because that doubles the time. The first failure ends a run. The record is written after each
fault; with the same --out, faults whose source and tests are as they were are not tried again.

Usage: python -m tests.stress.mutations --jobs 2 --out experiments/reliability/mutations.json
"""

import argparse
import ast
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from motes.core.environment import commit, environment
from motes.core.files import write_json
from tests.stress.mutation_list import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "benchmarks", "experiments", "tools", "examples", "pyproject.toml")
LARGE = shutil.ignore_patterns("__pycache__", "*.pyc", "*.json", "*.mp4", "*.gif", "*.pdf")
PASSED, FAILED, STOPPED, UNUSABLE, NO_TESTS = 0, 1, 2, 4, 5  # exit codes of pytest
CAUGHT, SURVIVED, STALE = "caught", "survived", "does not apply"
BROKEN, LATE = "tests fail without it", "took too long"  # neither caught nor survived; tried again
NOT_TRIED = "not tried"
Outcome = dict[str, Any]
Tests = dict[str, dict[str, Any]]  # by the name of a test: seconds, failed, reached


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


def function_of(fault: Fault) -> str:
    """Return the qualified name of the innermost function around a fault, "" outside functions."""
    text = (ROOT / source_of(fault)).read_text(encoding="utf-8")
    line = text[: text.index(fault.old)].count("\n") + 1

    def inside(node: ast.AST, name: str) -> str:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if child.lineno <= line <= (child.end_lineno or child.lineno):
                    joint = ".<locals>." if isinstance(node, ast.FunctionDef) else "."
                    return inside(child, f"{name}{joint}{child.name}" if name else child.name)
        return name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""

    return inside(ast.parse(text), "")


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            keep_json = name in ("src", "tests")
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc") if keep_json else LARGE
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target / name)


class Runner:
    """Runs tests in a tree, in forks of one process that has imported the libraries."""

    def __init__(self, tree: Path, process: "subprocess.Popen[str]", exchange: Path) -> None:
        self.tree, self.process, self.exchange = tree, process, exchange

    def run(
        self,
        tests: Sequence[str],
        timeout: float,
        *,
        order: Sequence[str] = (),
        skipped: Sequence[str] = (),
        traced: Sequence[str] = (),
        annotated: bool = False,
    ) -> dict[str, Any]:
        """Return the exit code of pytest (None: too late), its CPU seconds and how each test went.

        Without `traced` files, the first failure ends the run. Annotations are checked on demand.
        """
        request: dict[str, Any] = {"tests": tests, "order": order, "skipped": skipped}
        request |= {"traced": traced, "stop": not traced, "timeout": timeout}
        request |= {"annotated": annotated}
        self.exchange.write_text(json.dumps(request), encoding="utf-8")
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", "the process that runs tests ended"
        answer: dict[str, Any] = json.loads(self.exchange.read_text(encoding="utf-8"))
        return answer


@contextmanager
def runner(tree: Path) -> Iterator[Runner]:
    """Start a process that runs tests in a tree, and end it."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in given if Path(path).resolve() not in (ROOT, ROOT / "src")]
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree), *others]),
        "PYTHONPYCACHEPREFIX": str(tree / "pycache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    exchange = tree / "exchange.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stress.warm_pytest", str(exchange)],
        cwd=tree,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Runner(tree, process, exchange)
        assert process.stdin is not None
        process.stdin.close()


def write_source(path: Path, text: str) -> None:
    """Write a file whose time is later than before by seconds: compiled files are told by it."""
    time_before = path.stat().st_mtime
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time_before + 2, time_before + 2))


def nearest_first(fault: Fault, tests: Tests) -> list[str]:
    """Return the tests that pass without a fault: those that reach it first, quick ones first."""
    function = f"{source_of(fault).as_posix()} {function_of(fault)}"

    def place(name: str) -> tuple[bool, float]:
        return function not in tests[name]["reached"], tests[name]["seconds"]

    return sorted((name for name, test in tests.items() if not test["failed"]), key=place)


def try_fault(worker: Runner, fault: Fault, tests: Tests, timeout: float) -> Outcome:
    """Return whether the tests notice a fault, and which; the tree is as before afterwards."""
    path = worker.tree / source_of(fault)
    text = path.read_text(encoding="utf-8")
    order = nearest_first(fault, tests)
    write_source(path, text.replace(fault.old, fault.new))
    skipped = [name for name in tests if name not in order]
    try:
        answer = worker.run(fault.tests, timeout, order=order, skipped=skipped)
        if answer["code"] == PASSED:
            answer = worker.run(fault.tests, timeout, order=order, skipped=skipped, annotated=True)
    finally:
        write_source(path, text)
    meanings: dict[int | None, str] = {
        **{PASSED: SURVIVED, NO_TESTS: SURVIVED, None: LATE},
        **{FAILED: CAUGHT, STOPPED: CAUGHT, UNUSABLE: CAUGHT},  # the last two: no import
    }
    outcome = meanings.get(answer["code"], BROKEN)
    by = [name for name, test in answer["tests"].items() if test["failed"]]
    found = {"by": by[0] if by else "import"} if outcome == CAUGHT else {}
    return {"outcome": outcome, "seconds": answer["seconds"], **found}


def run_without_fault(
    worker: Runner, file: str, timeout: float, cache: Path | None = None
) -> Tests:
    """Return how each test of a file goes without a fault, from the cache where the tree is known.

    Returns:
        Nothing where the tests cannot be collected or take too long.
    """
    content = hashlib.sha256(file.encode())
    for path in sorted((*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"))):
        content.update(path.read_bytes())
    stored = None if cache is None else cache / f"{content.hexdigest()[:16]}.json"
    if stored is not None and stored.is_file():
        known: Tests = json.loads(stored.read_text(encoding="utf-8"))
        return known
    traced = sorted({source_of(fault).as_posix() for fault in FAULTS if file in fault.tests})
    answer = worker.run([file], timeout, traced=traced)
    tests: Tests = answer["tests"] if answer["code"] in (PASSED, FAILED) else {}
    failing = [name for name, test in tests.items() if test["failed"]]
    print(f"{answer['seconds']:7.1f} s without a fault: {file}, failing: {failing}", flush=True)
    if not tests:
        print(answer["text"], flush=True)
    elif stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(tests), encoding="utf-8")
    return tests


def in_parallel(
    jobs: int, work: Sequence[Any], task: Callable[[Runner, Any], None], place: Path
) -> None:
    """Call a task with a tree of its own for each piece of work."""
    with ExitStack() as stack:
        free: queue.Queue[Runner] = queue.Queue()
        for number in range(jobs):
            tree = place / str(number)
            if not tree.exists():
                copy_tree(tree)
            free.put(stack.enter_context(runner(tree)))

        def one(piece: Any) -> None:
            worker = free.get()
            try:
                task(worker, piece)
            finally:
                free.put(worker)

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


def write_outcomes(out: Path, outcomes: dict[str, Outcome], left_out: dict[str, list[str]]) -> None:
    """Write the record; faults that were not judged are counted, but not kept."""
    kept = {k: v for k, v in outcomes.items() if v["outcome"] in (CAUGHT, SURVIVED, STALE)}
    record = {
        "what": "deliberate faults, one at a time, and the nearest tests",
        "summary": summary(outcomes),
        "fail_without_fault": left_out,
        "outcomes": kept,
    }
    write_json(out, record | {"environment": environment(torch.device("cpu"))})


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write, and to continue")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at the same time")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of files below motes")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one test run")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no fault after these")
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
        entry = fault._asdict() | {"tests": list(fault.tests)}
        if not applies(fault):
            outcomes[f"stale {fault}"] = entry | {"outcome": STALE}
            continue
        key = key_of(fault)
        if "commit" in earlier.get(key, {}):
            outcomes[key] = earlier[key]
        else:
            outcomes[key] = entry | {"outcome": NOT_TRIED}
            waiting += [fault] if fault.file.startswith(tuple(given.only)) else []
    started, revision = time.monotonic(), commit()
    sound: dict[str, Tests] = {}
    left_out: dict[str, list[str]] = {}

    def attempt(worker: Runner, fault: Fault) -> None:
        if time.monotonic() - started > given.seconds:
            return
        for file in fault.tests:
            if file not in sound:
                cache = ROOT / "runs" / "mutations"
                sound[file] = run_without_fault(worker, file, given.timeout, cache)
                failing = [name for name, test in sound[file].items() if test["failed"]]
                left_out.update({file: failing} if failing else {})
        tests = {name: test for file in fault.tests for name, test in sound[file].items()}
        judged = all(sound[file] for file in fault.tests)
        found = try_fault(worker, fault, tests, given.timeout) if judged else {"outcome": BROKEN}
        outcomes[key_of(fault)] |= found | {"commit": revision}
        shown = f"{fault.file}: {fault.new.strip()[:60]} ({found.get('by', '')})"
        print(f"{found['outcome']:>22} {found.get('seconds', 0):6.1f} s  {shown}", flush=True)
        if given.out is not None:
            write_outcomes(given.out, dict(outcomes), left_out)

    with tempfile.TemporaryDirectory() as name:
        in_parallel(given.jobs, waiting, attempt, Path(name))
    for outcome in outcomes.values():
        if outcome["outcome"] in (SURVIVED, STALE):
            print(f"{outcome['outcome']}: {outcome['file']}: {outcome['old']} -> {outcome['new']}")
    print(json.dumps(summary(outcomes)))


if __name__ == "__main__":
    main()
