"""The core is silent and needs torch, numpy, scipy and safetensors alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "motes"
SPEAKERS = ("cli/",)
EXTRAS = (
    *("tyro", "rich", "matplotlib", "PIL", "pandas", "tensorboard", "jaxtyping", "beartype"),
    *("psutil", "jax", "dynamax", "pyro", "fastapi", "uvicorn", "pydantic", "starlette"),
    *("dask", "distributed"),
)
BLOCKED = """
import sys
for name in {extras}:
    sys.modules[name] = None
import motes, motes.training.train, motes.evaluation.evaluate
print(motes.cannonballs(1, 1, num_frames=3, size=8).frames.shape)
"""


def test_the_core_imports_and_makes_clips_without_the_extras():
    # Isolated, with the source given by hand: no hook of this process reaches it.
    code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})" + BLOCKED.format(extras=EXTRAS)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "torch.Size([1, 3, 8, 8])", done.stderr


def prints(source: str) -> Iterator[int]:
    """The lines of a module that write to the terminal."""
    for node in ast.walk(ast.parse(source)):
        is_print = isinstance(node, ast.Name) and node.id == "print"
        if is_print or (isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr")):
            yield node.lineno


def test_only_the_command_line_prints():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not str(path.relative_to(SOURCE)).startswith(SPEAKERS)
        for line in prints(path.read_text("utf-8"))
    ]
    # The git commands of `environment.commit` have an output of their own, which is not ours.
    assert [place for place in found if not place.startswith("core/environment.py")] == []


def test_printing_is_recognised():
    assert list(prints("x = 1\nprint(x)\n")) == [2]
    assert list(prints("import sys\nsys.stderr.write('x')\n")) == [2]
