"""Run pytest in forks of a process that has imported the libraries, but not the package.

Usage: python -m tests.stress.warm_pytest REQUEST, from the root of a tree, with one word on each
line of standard input; after each, the request is read from its file and the answer written there.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.stress.forked import run_forked

LIBRARIES = (
    *("torch", "numpy", "scipy.ndimage", "scipy.optimize", "scipy.signal", "scipy.stats"),
    *("beartype.vale", "safetensors.torch", "PIL.Image", "rich", "tyro"),
)


class Plan:
    """Pytest plug-in that chooses and orders tests, and notes how each one went.

    Attributes:
        tests: By the name of a test, its seconds, whether it failed, and the functions of
            `traced` files that it called, each as "file function".
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.order = {name: index for index, name in enumerate(request["order"])}
        self.skipped, self.traced = set(request["skipped"]), set(request["traced"])
        self.annotated: bool = request["annotated"]
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Where annotations are not checked, replace the import hook, which takes two seconds."""
        if not self.annotated:
            jaxtyping: Any = importlib.import_module("jaxtyping")
            jaxtyping.install_import_hook = lambda *names: nullcontext()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.skipped]
        items.sort(key=lambda item: self.order.get(item.nodeid, len(self.order)))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note the calls and the time of one test, its fixtures included."""
        seen: set[tuple[str, str]] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

        entry = self.tests.setdefault(item.nodeid, {"failed": False})
        started = time.process_time()
        if self.traced:
            sys.settrace(note)
        yield
        sys.settrace(None)
        entry["seconds"] = round(time.process_time() - started, 3)
        called = ((os.path.relpath(path), name) for path, name in seen if "/src/motes/" in path)
        entry["reached"] = sorted(f"{file} {n}" for file, n in called if file in self.traced)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests.setdefault(report.nodeid, {"failed": False})["failed"] |= report.failed


def run(request: dict[str, Any], answer: Path) -> int:
    """Run the tests of a request and write how each one went; return the exit code of pytest."""
    plan = Plan(request)
    options = ["-q", "-p", "no:cacheprovider", *(["-x"] if request["stop"] else [])]
    code = int(pytest.main([*options, *request["tests"]], plugins=[plan]))
    answer.write_text(json.dumps(plan.tests), encoding="utf-8")
    return code


def main() -> None:
    """Answer requests until standard input ends."""
    file = Path(sys.argv[1])
    for library in LIBRARIES:
        importlib.import_module(library)
    for _ in sys.stdin:
        request = json.loads(file.read_text("utf-8"))
        answer = file.with_suffix(".answer")
        answer.unlink(missing_ok=True)
        ended = run_forked(lambda: run(request, answer), timeout=request["timeout"])  # noqa: B023
        tests = json.loads(answer.read_text("utf-8")) if answer.is_file() else {}
        code = None if ended.timed_out else ended.code
        reply = {"code": code, "seconds": round(ended.cpu_seconds, 1), "tests": tests}
        file.write_text(json.dumps(reply | {"text": ended.text[-2000:]}), encoding="utf-8")
        print("done", flush=True)


if __name__ == "__main__":
    main()
