"""The built wheel, installed elsewhere and run in an empty directory."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
FILES = (
    "py.typed",
    "server/page/index.html",
    "models/shipped/cannonballs-48/model.safetensors",
    "models/shipped/cannonballs-48-distilled/model.safetensors",
    "models/shipped/cannonballs-structured/config.json",
)
ANSWER = """
import json, motes
clips = motes.cannonballs(1, 2, 8, 48, seed=3)
answer = motes.infer(motes.load("cannonballs-structured"), clips.frames, 2)
print(json.dumps([motes.__file__, list(answer.pixels.shape)]))
"""
# Starting a process for each command would take longer than the commands.
IN_ONE_PROCESS = """
import sys
from motes import cli
for command in sys.argv[1:]:
    try:
        code = cli.main(command.split())
    except SystemExit as end:  # --help
        code = end.code
    assert not code, command
"""
COMMANDS = (
    "doctor --json",
    "data --num-clips 2 --num-frames 8 --out clips.npz",
    "infer clips.npz --model cannonballs-structured --num-objects 2 --out tracks.npz",
    "figures --out figures --num-clips 3 --only strip",
    "evaluate cannonballs-structured --num-clips 3 --report report.html",
    "bench --smoke --json",
    "calibrate --help",
    "train --preset paper-smoke --iterations 2 --out run",
)
WRITTEN = ("clips.npz", "tracks.npz", "figures/strip.png", "report.html", "run/model.safetensors")


def install(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, and return where it was unpacked."""
    sources = folder / "sources"  # a copy: building leaves files beside the sources
    shutil.copytree(ROOT / "src", sources / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    built = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sources)]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = folder.glob("motes-*.whl")
    place = folder / "installed"
    unpack = [*PIP, "install", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(unpack, check=True, capture_output=True)
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_installed_wheel_works_in_an_empty_directory(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")  # which builds it
    place, empty = install(tmp_path), tmp_path / "empty"
    empty.mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=empty,
            env={**os.environ, "PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    file, shape = json.loads(run("-c", ANSWER))
    assert Path(file).is_relative_to(place)
    assert shape == [1, 2, 8, 2]
    assert run("-m", "motes", "--help")
    run("-c", IN_ONE_PROCESS, *COMMANDS)
    assert [name for name in WRITTEN if not (empty / name).is_file()] == []
    assert [name for name in FILES if not (place / "motes" / name).is_file()] == []
    # Research code and records stay in the source tree.
    assert {path.name for path in place.iterdir() if path.suffix != ".dist-info"} <= {
        "motes",
        "bin",
    }
    assert not list(place.rglob("naive.py"))
