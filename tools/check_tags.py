"""Say where the tags in the source and the pages that explain them disagree.

Three kinds of tag stand in docstrings and comments: `[Eq. name]`, the paper's equation, which has
one home and a row in docs/reference/paper_map.md; `[Choice k]`, a heading of
docs/explanation/choices.md; and `Law:`, a property together with the tests that check it.

Usage: python tools/check_tags.py
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
EQUATION = re.compile(r"\[Eq\. ([\w:-]+)\]")
CHOICE = re.compile(r"\[Choice (\d+)\]")
HEADING = re.compile(r"^## \[Choice (\d+)\]", re.MULTILINE)
LAW = re.compile(r"Law:(.*?)(?:\n\s*\n|\Z)", re.DOTALL)
TEST = re.compile(r"\btest_\w+(?<!_)\b(?!\.py)")
TEST_FILE = re.compile(r"\btests/[\w/]+\.py\b")
LINK = re.compile(r"\[`([\w.]+)`\]\((?:\.\./)+([\w/.]+)\)")


class Place(NamedTuple):
    """A module, class or function: its dotted name, its file, its docstring."""

    name: str
    file: str
    docstring: str


class Row(NamedTuple):
    """A row of the paper map: its tags, linked places (name, file), tests."""

    equations: list[str]
    places: list[tuple[str, str]]
    tests: list[str]


def places(root: Path) -> list[Place]:
    """Return every module, class and function of the package and of the experiments."""
    found: list[Place] = []
    for folder, base in (("src/motes", root / "src" / "motes"), ("experiments", root)):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.extend(_inside(tree, module, path.relative_to(root).as_posix()))
    return found


def _inside(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str, file: str
) -> Iterator[Place]:
    yield Place(name, file, ast.get_docstring(node) or "")
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _inside(child, f"{name}.{child.name}", file)


def test_names(root: Path) -> set[str]:
    """Return the name of every test, and the path of every file of tests."""
    paths = list((root / "tests").rglob("test_*.py"))
    defined = re.compile(r"^\s*def (test_\w+)", re.MULTILINE)
    names = {name for path in paths for name in defined.findall(path.read_text("utf-8"))}
    return names | {str(path.relative_to(root)) for path in paths}


def rows(page: str) -> list[Row]:
    """Return the rows of the tables of the paper map."""
    return [
        Row(EQUATION.findall(line), LINK.findall(line), TEST.findall(line))
        for line in page.splitlines()
        if line.startswith("|") and LINK.search(line)
    ]


def equation_problems(source: str, found: Iterable[Place], table: Iterable[Row]) -> Iterator[str]:
    """Compare the equations named in the source with the rows of the map."""
    counts = {tag: source.count(f"[Eq. {tag}]") for tag in EQUATION.findall(source)}
    homes = {tag: place.name for place in found for tag in EQUATION.findall(place.docstring)}
    listed = {tag: [name for name, _ in row.places] for row in table for tag in row.equations}
    for tag, count in counts.items():
        if count > 1:
            yield f"[Eq. {tag}] occurs {count} times in src; an equation has one home"
        if tag not in homes:
            yield f"[Eq. {tag}] stands in src outside of a docstring"
        elif homes[tag] not in listed.get(tag, []):
            yield f"[Eq. {tag}] is at {homes[tag]}; paper_map.md has no such row"
    for tag in listed.keys() - counts.keys():
        yield f"docs/reference/paper_map.md lists [Eq. {tag}], which no docstring in src has"


def row_problems(table: Iterable[Row], found: Iterable[Place], tests: set[str]) -> Iterator[str]:
    """Look up the functions and tests that the map names."""
    files = {place.name: place.file for place in found}
    for row in table:
        for name, file in row.places:
            if files.get(name) != file:
                yield f"docs/reference/paper_map.md: {name} is not in {file}"
        for test in row.tests:
            if test not in tests:
                yield f"docs/reference/paper_map.md: there is no test {test}"


def law_problems(found: Iterable[Place], tests: set[str]) -> Iterator[str]:
    """Look up the tests that the laws name."""
    for place in found:
        for law in LAW.findall(place.docstring):
            named = {*TEST.findall(law), *TEST_FILE.findall(law)}
            if not named:
                yield f"{place.name}: its law names no test"
            for test in sorted(named - tests):
                yield f"{place.name}: its law names {test}, which does not exist"


def choice_problems(source: str, page: str) -> Iterator[str]:
    """Compare the choices tagged in the source with the headings of the page."""
    tagged, explained = set(CHOICE.findall(source)), HEADING.findall(page)
    for number in sorted(tagged - set(explained), key=int):
        yield f"[Choice {number}] stands in src and not in docs/explanation/choices.md"
    for number in sorted(set(explained) - tagged, key=int):
        yield f"[Choice {number}] stands in docs/explanation/choices.md and nowhere in src"
    if explained != [str(k + 1) for k in range(len(explained))]:
        yield f"docs/explanation/choices.md numbers its choices {explained}; count from 1"


def problems(root: Path = ROOT) -> list[str]:
    """Return every disagreement in the project."""
    paths = sorted((root / "src" / "motes").rglob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    found, tests = places(root), test_names(root)
    table = rows((root / "docs" / "reference" / "paper_map.md").read_text(encoding="utf-8"))
    decisions = (root / "docs" / "explanation" / "choices.md").read_text(encoding="utf-8")
    return [
        *equation_problems(source, found, table),
        *row_problems(table, found, tests),
        *law_problems(found, tests),
        *choice_problems(source, decisions),
    ]


if __name__ == "__main__":
    disagreements = problems()
    print("\n".join(disagreements) or "tags: source, tests and pages agree")
    sys.exit(bool(disagreements))
