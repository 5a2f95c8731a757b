"""Find the code that a command runs, and hash it.

Every process of the command, children included, notes the functions of this repository that it
calls. The hash of a record covers these functions, and the constants and classes whose names they
use, but no other function and no file names: the record stays current when code is added beside
what it depends on, and when that moves to another module.
"""

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

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
_PARSING = Lock()
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


def called_functions(folder: Path) -> Functions:
    """Return the functions that the processes noted, by file."""
    found: dict[str, set[str]] = {}
    for notes in folder.iterdir():
        if notes.name.isdigit():
            for line in notes.read_text("utf-8").splitlines():
                path, function = line.split("\t")
                path = Path(path).as_posix()
                name = function.partition(".<locals>")[0]
                if path.startswith(FOLDERS) and not path.startswith(SERVICES) and name[0] != "<":
                    found.setdefault(path, set()).add(name)
    return {path: " ".join(sorted(found[path])) for path in sorted(found)}


class Definition(NamedTuple):
    """A function, a constant, or a class without its functions."""

    text: str  # without comments, docstrings, imports and types of arguments
    names: frozenset[str]  # that it uses, dotted where they are attributes of a name


class Module(NamedTuple):
    """What a file defines, and where its other names are from."""

    functions: dict[str, Definition]  # by qualified name
    values: dict[str, Definition]  # constants and classes
    imported: dict[str, tuple[str, str]]  # a module, and the name there or ""


Place = tuple[str, str]  # a file, and the qualified name of a definition in it


def functions_hash(functions: Mapping[str, str], root: Path) -> str:
    """Return a hash of functions, and of the constants and classes that they use.

    Law: unchanged by comments, docstrings, imports, other functions, and moves to other files
    (test_a_traced_record_depends_on_what_was_called,
    test_a_traced_record_survives_that_code_moves).
    """
    modules = _modules(root)
    called = [
        place
        for path, names in functions.items()
        for name in names.split()
        if (place := _find_function(modules, path, name)) is not None
    ]
    missing = sum(len(names.split()) for names in functions.values()) - len(called)
    parts = [f"{missing} are gone"]
    waiting, seen, known = list(called), set(called), set(called)
    while waiting:
        path, name = waiting.pop()
        module = modules[path]
        definition = module.functions.get(name) or module.values[name]
        owner = name.rpartition(".")[0]
        used = [(path, owner)] if owner in module.values else []
        used += filter(None, (_resolve(modules, path, word) for word in sorted(definition.names)))
        calls = sorted({inner for file, inner in used if (file, inner) in known})
        parts.append(f"{name}\n{definition.text}\n{calls}")
        for place in used:
            if place not in seen and place[1] in modules[place[0]].values:
                seen.add(place)
                waiting.append(place)
    return hashlib.sha256("\0".join(sorted(parts)).encode()).hexdigest()[:16]


def _modules(root: Path) -> dict[str, Module]:
    """Return what the files of the repository define."""
    files = (file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py")))
    paths = ((file.relative_to(root).as_posix(), file) for file in files)
    return {
        path: _read_module(file.read_text("utf-8"))
        for path, file in paths
        if not path.startswith(SERVICES)
    }


def _find_function(modules: Mapping[str, Module], path: str, name: str) -> Place | None:
    """Return where a function is now.

    It is in its file, or where that imports it from, or in the only other file that has its name.
    """
    if path in modules:
        place = (path, name) if "." in name else _resolve(modules, path, name) or (path, name)
        if place[1] in modules[place[0]].functions:
            return place
    found = [(other, name) for other, module in modules.items() if name in module.functions]
    return found[0] if len(found) == 1 else None


def _resolve(modules: Mapping[str, Module], path: str, word: str) -> Place | None:
    """Return the definition that a name of a file leads to, through imports."""
    for _ in range(8):  # of imports from one file to the next
        name, *rest = word.split(".")
        if name in modules[path].functions or name in modules[path].values:
            return path, name
        source, original = modules[path].imported.get(name, ("", ""))
        words = [*filter(None, source.split(".")), *filter(None, [original]), *rest]
        for length in range(len(words) - 1, 0, -1):  # the longest one that is a module
            file = _file_of(modules, words[:length])
            if file is not None:
                path, word = file, ".".join(words[length:])
                break
        else:
            return None
    return None


def _file_of(modules: Mapping[str, Module], words: Sequence[str]) -> str | None:
    path = "/".join(words)
    files = (f"{place}{path}{end}" for place in ("src/", "") for end in (".py", "/__init__.py"))
    return next((file for file in files if file in modules), None)


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a text; one thread at a time, as Python 3.11 requires."""
    with _PARSING:
        return ast.parse(text)


@lru_cache(maxsize=4096)
def _read_module(text: str) -> Module:
    """Return what the text of a file defines."""
    tree = parse(text)
    module = Module({}, {}, {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                module.imported[local] = (alias.name if alias.asname else local, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module.imported[alias.asname or alias.name] = (node.module or "", alias.name)
    _read_body(_WithoutTypes().visit(tree).body, "", module)
    return module


def _read_body(body: Sequence[ast.stmt], place: str, module: Module) -> list[ast.stmt]:
    """Note the definitions of a module or class, and return its other statements."""
    others: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[f"{place}{node.name}"] = _definition(node)
        elif isinstance(node, ast.ClassDef):
            name = f"{place}{node.name}"
            node.body = _read_body(node.body, f"{name}.", module) or [ast.Pass()]
            module.values[name] = _definition(node)
        elif isinstance(node, ast.If | ast.Try):
            for part in (node.body, node.orelse):
                others += _read_body(part, place, module)
        else:
            others.append(node)
            for target in _targets(node) if not place else ():
                value, before = _definition(node), module.values.get(target)
                if before is not None:
                    value = Definition(before.text + value.text, before.names | value.names)
                module.values[target] = value
    return others


def _definition(node: ast.stmt) -> Definition:
    return Definition(statements(node).decode(), frozenset(_names(node)))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement uses, with their attributes."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            dotted = ast.unparse(part)
            if dotted.replace(".", "").isidentifier():
                yield dotted


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


class _WithoutTypes(ast.NodeTransformer):
    """Removes imports and the types of arguments and results."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


def statements(tree: ast.AST) -> bytes:
    """Return code without comments, docstrings and layout."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            text = body[0].value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree).encode()
