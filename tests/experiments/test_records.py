"""Records: what they were made from, which are old, and how they are made again."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import records
from experiments.records import (
    RECIPES,
    ROOT,
    Recipe,
    ages,
    depends_on,
    is_current,
    make_records,
    source_hash,
)
from experiments.traced_sources import called_functions, functions_hash, tracing
from motes.training.presets import PRESETS


def test_every_record_has_a_recipe_and_every_recipe_a_record():
    stored = {name for name in records.record_paths() if not name.startswith("config")}
    assert stored == set(RECIPES)


def test_recipes_name_files_and_commands_that_exist():
    for name, recipe in RECIPES.items():
        for pattern in recipe.sources:
            assert list(ROOT.glob(pattern)), f"{name}: nothing matches {pattern}"
        for command in recipe.commands:
            words = command.split()
            if words[0] == "python":
                assert find_spec(words[2]) is not None, f"{name}: no module {words[2]}"
            else:
                assert words[:2] in (["motes", "evaluate"], ["motes", "train"])
            if "--preset" in words:
                assert words[words.index("--preset") + 1] in PRESETS


def write(root: Path, code: str) -> str:
    (root / "code.py").write_text(code)
    return source_hash(["*.py"], root)


def test_a_record_is_old_when_code_has_changed(tmp_path: Path):
    code = 'def f(x):\n    """Return x."""\n    return x + 1\n'
    first = write(tmp_path, code)
    assert write(tmp_path, code.replace("Return x", "Return more") + "# a comment\n") == first
    assert write(tmp_path, code.replace("x + 1", "x + 2")) != first
    write(tmp_path, code)
    (tmp_path / "other.py").write_text("")
    assert source_hash(["*.py"], tmp_path) != first


TRACED = """import multiprocessing
import idle
from experiments.unused import SIZE
LIMIT = 3
class Law:
    def used(self):
        return LIMIT + SIZE
    def other(self):
        return 2
def child(x):
    return Law().used() + x
def never():
    return 1
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(child, [1])
"""


def test_a_traced_record_depends_on_what_was_called(tmp_path: Path):
    """Calls in a child process count; functions that were not called do not."""
    code = tmp_path / "experiments" / "traced.py"
    code.parent.mkdir()
    code.write_text(TRACED)
    (code.parent / "__init__.py").touch()
    for name in ("idle", "unused"):
        (code.parent / f"{name}.py").write_text("SIZE = 1\ndef idle():\n    return 1\n")
    variables = tracing(tmp_path / "calls", tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    subprocess.run([sys.executable, str(code)], env=variables, check=True)
    functions = called_functions(tmp_path / "calls")
    assert functions == {"experiments/traced.py": "Law.used child"}
    first = functions_hash(functions, tmp_path)
    for old, new, same in (
        ("return 1", "return 5", True),
        ("return 2", "return 5", True),
        ("import idle", "import json", True),
        ("LIMIT = 3", "LIMIT = 3  # three", True),
        ("LIMIT = 3", "LIMIT = 3\nOTHER = 4", True),
        ("child(x)", "child(x: int) -> int", True),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("return LIMIT", "return 1 + LIMIT", False),
        ("used() + x", "used() - x", False),
        ("def used", "bias = 1\n    def used", False),
        ("class Law:", "class Law(dict):", False),
        ("def child", "def infant", False),
    ):
        code.write_text(TRACED.replace(old, new))
        assert (functions_hash(functions, tmp_path) == first) is same, new
    code.write_text(TRACED)
    (code.parent / "unused.py").write_text("SIZE = 2\n")
    assert functions_hash(functions, tmp_path) != first


def test_a_traced_record_survives_that_code_moves(tmp_path: Path):
    folder = tmp_path / "experiments"
    folder.mkdir()
    law = "class Law:\n    def used(self):\n        return scale(SIZE)\n"
    scale = "FACTOR = 2\ndef scale(x):\n    return FACTOR * x\n"
    size = "SIZE = 1\n"

    def hashed(called: dict[str, str], **files: str) -> str:
        for file in folder.iterdir():
            file.unlink()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return functions_hash(called, tmp_path)

    in_one = {"experiments/one.py": "Law.used scale"}
    first = hashed(in_one, one=size + scale + law)
    imports = "from experiments.two import scale\nfrom experiments.three import SIZE\n"
    moved = dict(one=imports + law, two=scale, three=size)
    assert hashed(in_one, **moved) == first
    assert hashed(in_one, **moved | dict(three="SIZE = 3\n")) != first
    assert hashed(in_one, **moved | dict(two=scale.replace("2", "3"))) != first
    assert hashed(in_one, **moved | dict(four=scale)) == first
    unclear = moved | dict(one=law, four=scale)  # which one was called?
    assert hashed(in_one, **unclear) != first
    # The same text now calls another function.
    in_two = {"experiments/one.py": "Law.used", "experiments/two.py": "scale"}
    assert hashed(in_two, **moved | dict(four=scale)) == first
    moved["one"] = moved["one"].replace(".two", ".four")
    assert hashed(in_two, **moved | dict(four=scale)) != first


def test_a_page_says_which_records_are_old(monkeypatch: pytest.MonkeyPatch):
    name = "constant-image"
    fresh = {"sources": source_hash(RECIPES[name].sources)}
    assert is_current(name, fresh)
    assert "old" not in ages([name], {name: fresh})
    assert f"**old** (their sources have changed since): {name}" in ages([name], {name: {}})
    changed = RECIPES[name]._replace(sources=("experiments/records.py",))
    monkeypatch.setitem(RECIPES, name, changed)
    assert not is_current(name, fresh)


def test_current_records_name_a_commit_of_this_history():
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True).returncode != 0:
        pytest.skip("not a repository")
    for name, record in records.read_records().items():
        if "sources" in record:
            revision = record["environment"]["motes_commit"]
            known = subprocess.run([*git, "merge-base", "--is-ancestor", revision, "HEAD"])
            assert known.returncode == 0, f"{name}: {revision}"


def test_making_records_is_resumable(tmp_path: Path):
    """Of three records one fails first; the second call makes that one alone."""
    script = "import json, sys, pathlib; p = pathlib.Path(sys.argv[1]); "
    good = tmp_path / "good.py"
    good.write_text(script + "p.write_text(json.dumps({'value': 1}))")
    late = tmp_path / "late.py"
    late.write_text("import sys; sys.exit('not yet')")
    recipes = {
        "one": Recipe((f"python {good} {{out}}",), ("experiments/records.py",), 1),
        "two": Recipe((f"python {late} {{out}}",), ("experiments/records.py",), 1),
        "three": Recipe((f"python {good} {{out}}",), ("experiments/records.py",), 1),
    }
    made = make_records(list(recipes), tmp_path / "new", "abc", 2, recipes)
    assert made == {"one": True, "two": False, "three": True}
    record = json.loads((tmp_path / "new" / "one.json").read_text())
    assert record["environment"]["motes_commit"] == "abc"
    assert record["environment"]["command"] == f"python {good} one.json"
    assert record["sources"] == depends_on(recipes["one"], record["functions"])
    late.write_text(good.read_text())
    assert make_records(list(recipes), tmp_path / "new", "abc", 1, recipes) == {"two": True}
    assert make_records(list(recipes), tmp_path / "new", "abc", 1, recipes) == {}


def test_a_changed_tree_makes_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "commit", lambda: "abc+changes")
    with pytest.raises(SystemExit, match="commit first"):
        make_records([], tmp_path)
