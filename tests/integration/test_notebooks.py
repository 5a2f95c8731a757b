"""The notebooks run, cell by cell, and what they show displays as HTML from this machine alone."""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def run(path: Path) -> list[object]:
    """Execute the cells as a kernel does; the values of the last lines."""
    names: dict[str, object] = {}
    shown = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}[{number}]", "exec"), names)
        if last is not None:
            source = ast.Expression(last.value)
            shown.append(eval(compile(source, f"{path.name}[{number}]", "eval"), names))
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run(path)
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 3
    for page in pages:
        assert re.findall(r"https?://(?!www\.w3\.org/)[^\"'\s<]*", page) == []
    if path.stem == "your_recording":
        assert (tmp_path / "tracks.xml").stat().st_size > 1000


def test_notebooks_hold_no_outputs():
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        assert all(cell.get("outputs", []) == [] for cell in cells)
        assert path.stat().st_size < 20_000
