"""Trace a command and report how often its calls cross module boundaries.

An edge is a pair of modules of which one calls a function of the other. A return is a call into a
module that is already on the call stack with another module in between (a calls b, b calls a).
Services (errors, files, memory, configuration, progress bars) are reported apart.

Usage: python tools/trace_calls.py [--list] infer clips.npz --model cannonballs-48 --out tracks.csv
       python tools/trace_calls.py [--list] train --preset smoke --out runs/smoke
"""

import contextlib
import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

SERVICES = ("core", "config", "cli.terminal")
Edge = tuple[str, str]


class Trace(NamedTuple):
    """Calls between the modules of a package, in the order in which they first occurred."""

    edges: dict[Edge, None]
    returns: dict[Edge, None]
    functions: set[tuple[str, str]]

    @property
    def modules(self) -> set[str]:
        """The modules of which a function was called."""
        return {module for module, _ in self.functions}


def is_service(module: str) -> bool:
    """Return whether a module is a service that all packages use."""
    return any(module == name or module.startswith(f"{name}.") for name in SERVICES)


def trace(call: Callable[[], object], source: Path) -> Trace:
    """Run a function and return the calls between the modules below a folder."""
    found, prefix = Trace({}, {}, set()), f"{source}/"
    names: dict[str, str | None] = {}

    def module_of(frame: FrameType) -> str | None:
        file = frame.f_code.co_filename
        if file not in names:
            inside = file.startswith(prefix) and frame.f_code.co_name != "<module>"
            dotted = file.removeprefix(prefix).removesuffix(".py").replace("/", ".")
            names[file] = dotted.removesuffix(".__init__") if inside else None
        return names[file] if frame.f_code.co_name != "<module>" else None

    def callers(frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            if (name := module_of(frame)) is not None:
                yield name
            frame = frame.f_back

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (module := module_of(frame)) is None:
            return
        found.functions.add((module, frame.f_code.co_qualname))
        stack = callers(frame.f_back)
        caller = next(stack, None)
        if caller is None or caller == module:
            return
        edge = (caller, module)
        found.edges.setdefault(edge)
        if edge not in found.returns and module in stack:
            found.returns[edge] = None

    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def report(found: Trace, listed: bool) -> str:
    """Return the counts, and the edges themselves if wanted."""
    own = [edge for edge in found.edges if not any(map(is_service, edge))]
    packages = {(a.split(".")[0], b.split(".")[0]) for a, b in own}
    returns = [edge for edge in found.returns if edge in own]
    lines = [
        f"{len(found.edges)} edges between {len(found.modules)} modules, "
        f"{len(found.functions)} functions",
        f"{len(own)} edges without services, "
        f"{sum(a != b for a, b in packages)} edges between packages",
        f"{len(returns)} returns to a module that was left",
        *(f"  {a} -> {b}" for a, b in returns),
    ]
    if listed:
        lines += ["edges:", *(f"  {a} -> {b}" for a, b in found.edges)]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Trace one command line."""
    import motes
    from motes import cli

    # Commands import what they need; imports of libraries would end the trace.
    for module in pkgutil.walk_packages(motes.__path__, "motes."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    listed = arguments[:1] == ["--list"]
    source = Path(motes.__file__).parent
    print(report(trace(lambda: cli.main(arguments[listed:]), source), listed))


if __name__ == "__main__":
    main(sys.argv[1:])
