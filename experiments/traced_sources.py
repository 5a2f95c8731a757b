"""Find the code that a command runs, and hash it.

Every process of the command, children included, notes the functions of this repository that it
calls. The hash of a record covers these functions, the constants that they use and fields of
data classes, but no other function: the record stays current when code is added beside what it
depends on.
"""

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Functions = dict[str, str]  # by file, the names of the functions that were called

FOLDERS = ("src/motes", "experiments", "benchmarks", "tests")
# Code that changes no number: the command line, environment, files and messages.
SERVICES = (
    *(
        "src/motes/__init__.py",
        "src/motes/__main__.py",
        "src/motes/cli/",
        "src/motes/core/files.py",
    ),
    *("src/motes/core/environment.py", "src/motes/core/errors.py"),
    *("experiments/records.py", "experiments/traced_sources.py"),
)
_FIELDS = ("dataclass", "NamedTuple", "Enum")  # classes whose statements matter without a method
_OPTIMIZED = 1  # flag of the code of functions, which that of modules and classes lacks
_NOTE_CALLS = f"""
import os, sys, threading
prefix, folder, seen = os.environ["TRACED_ROOT"] + os.sep, os.environ["TRACED_OUT"], set()
def note(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    key = code.co_filename, code.co_qualname
    if key in seen:
        return
    seen.add(key)
    if not code.co_filename.startswith(prefix):
        return
    if code.co_flags & {_OPTIMIZED} or code.co_name == "<module>":
        with open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
            file.write(code.co_filename[len(prefix):] + "\\t" + code.co_qualname + "\\n")
threading.setprofile(note)
sys.setprofile(note)
"""


def tracing(folder: Path, root: Path) -> dict[str, str]:
    """Return environment variables under which Python processes note their calls in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_NOTE_CALLS, encoding="utf-8")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "TRACED_ROOT": str(root.resolve()),
        "TRACED_OUT": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def called_functions(folder: Path, root: Path) -> Functions:
    """Return the functions that the processes noted, by file.

    Files of which no function was called are listed if one of the others imports a constant.
    """
    found: dict[str, set[str]] = {}
    for notes in folder.iterdir():
        if notes.name.isdigit():
            for line in notes.read_text("utf-8").splitlines():
                path, function = line.split("\t")
                path = Path(path).as_posix()
                if path.startswith(FOLDERS) and not path.startswith(SERVICES):
                    name = function.partition(".<locals>")[0]
                    found.setdefault(path, set()).update({name} if name[0] != "<" else ())
    constants = {
        path for file, called in found.items() if called for path in _imported(root / file)
    }
    kept = [path for path, called in found.items() if called or path in constants]
    return {path: " ".join(sorted(found[path])) for path in sorted(kept)}


def _imported(file: Path) -> Iterator[str]:
    """Yield the files from which a file imports constants, which have upper-case names."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and any(alias.name.isupper() for alias in node.names):
            path = (node.module or "").replace(".", "/")
            yield from (
                f"{place}{path}{end}" for place in ("src/", "") for end in (".py", "/__init__.py")
            )


def functions_hash(functions: Mapping[str, str], root: Path) -> str:
    """Return a hash of the statements of functions, and of the constants that they use.

    Law: unchanged by comments, docstrings, imports and other functions
    (test_a_traced_record_depends_on_what_was_called).
    """
    bodies: dict[str, list[ast.stmt]] = {}
    for path, names in functions.items():
        file = root / path
        tree = ast.parse(file.read_text("utf-8") if file.is_file() else "")
        bodies[path] = list(_kept(tree.body, frozenset(names.split()), ""))
    used = _used_names([node for body in bodies.values() for node in body])
    digest = hashlib.sha256()
    for path, body in bodies.items():
        module = ast.Module([node for node in body if _matters(node, used)], [])
        digest.update(f"{path}\0".encode())
        digest.update(statements(module))
    return digest.hexdigest()[:16]


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns."""
    given = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        name.id
        for target in given
        if target
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def _matters(node: ast.stmt, used: set[str]) -> bool:
    return not isinstance(node, ast.Assign | ast.AnnAssign) or bool(_targets(node) & used)


def _used_names(nodes: Sequence[ast.stmt]) -> set[str]:
    """Return the names in functions and classes, and in constants that these use."""
    used: set[str] = set()
    waiting = list(nodes)
    while True:
        found = [node for node in waiting if _matters(node, used)]
        if not found:
            return used
        waiting = [node for node in waiting if node not in found]
        for part in (part for node in found for part in ast.walk(node)):
            if isinstance(part, ast.Name):
                used.add(part.id)
            elif isinstance(part, ast.Attribute):
                used.add(part.attr)


def _kept(body: Sequence[ast.stmt], called: frozenset[str], place: str) -> Iterator[ast.stmt]:
    """Yield the statements that matter of a module or class."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom) or ast.unparse(node).startswith("__all__"):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if f"{place}{node.name}" in called:
                yield node
        elif isinstance(node, ast.ClassDef):
            inside = f"{place}{node.name}."
            marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
            if any(name.startswith(inside) for name in called) or any(
                mark in marks for mark in _FIELDS
            ):
                node.body = list(_kept(node.body, called, inside)) or [ast.Pass()]
                yield node
        else:
            yield node


def statements(tree: ast.AST) -> bytes:
    """Return code without comments, docstrings and layout."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            text = body[0].value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree).encode()
