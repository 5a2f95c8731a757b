"""The package imports where the Unix-only modules of the standard library are missing.

Checked here: in a fresh process on which `resource`, `fcntl`, `termios`, `pwd` and `grp` cannot be
imported and `os.sysconf` and the fork start methods of `multiprocessing` do not exist, the package,
its command line, training and the server import, and memory, locks and atomic files work.
Not checked: a real Windows or macOS.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
UNIX_ONLY = ("resource", "fcntl", "termios", "pwd", "grp")

# Libraries choose by `sys.platform` what they import, and torch's own binaries are those of Linux:
# they are imported before the modules vanish, and our package after it.
WINDOWS = """
import sys
sys.path.insert(0, {source!r})
import asyncio, multiprocessing, os, pathlib, subprocess, tempfile
import filelock, fastapi, matplotlib.figure, PIL.Image, psutil, rich, scipy.optimize
import torch, torch.distributed, tyro, uvicorn
for name in {missing}:
    sys.modules[name] = None
multiprocessing.get_all_start_methods = lambda: ["spawn"]
del os.sysconf
"""

IMPORTS = """
import motes, motes.cli, motes.training.train, motes.server, motes.server.uploads, motes.output.demo
print("imported")
"""

WORK = """
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.core.memory import free_bytes
from motes.training.train import lock_run_folder
assert free_bytes() > 2**20
with tempfile.TemporaryDirectory() as folder:
    with atomic_path(pathlib.Path(folder) / "a.txt") as path:
        path.write_text("whole")
    try:
        with lock_run_folder(pathlib.Path(folder)), lock_run_folder(pathlib.Path(folder)):
            pass
    except InputError as error:
        assert "in use" in str(error)
        print("locked")
"""


def run_without_unix(code: str) -> str:
    whole = WINDOWS.format(source=str(SOURCE), missing=UNIX_ONLY) + code
    done = subprocess.run([sys.executable, "-I", "-c", whole], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_package_imports_without_modules_that_windows_lacks() -> None:
    assert run_without_unix(IMPORTS) == "imported"


@pytest.mark.slow
def test_memory_files_and_locks_work_without_modules_that_windows_lacks() -> None:
    assert run_without_unix(WORK) == "locked"


@pytest.mark.parametrize("name", UNIX_ONLY)
def test_no_module_imports_unix_only_modules_at_its_top(name: str) -> None:
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if line.startswith((f"import {name}", f"from {name} "))
    ]
    assert found == []
