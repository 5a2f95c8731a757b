"""Report modules over 700 lines and functions over 60 lines.

Usage: python tools/check_sizes.py
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "benchmarks", "experiments", "tools", "examples", "tests/stress")
MODULE_LINES = 700
FUNCTION_LINES = 60


def too_long(source: str, name: str) -> Iterator[str]:
    """Yield one line for each thing in a module that is too long; docstrings do not count."""
    length = len(source.splitlines())
    if length > MODULE_LINES:
        yield f"{name}: {length} lines; split it by idea ({MODULE_LINES} at most)"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _lines(node) - _docstring_lines(node)
            if length > FUNCTION_LINES:
                place = f"{name}:{node.lineno}"
                yield f"{place}: {node.name} has {length} lines ({FUNCTION_LINES} at most)"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return 0 if ast.get_docstring(function) is None else _lines(function.body[0])


def problems() -> list[str]:
    """Return all modules and functions that are too long."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [
        line
        for path in paths
        for line in too_long(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or "sizes: every module and function is short enough")
    sys.exit(bool(found))
