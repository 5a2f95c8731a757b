"""The package as people install it: built, unpacked elsewhere, run outside of the source tree."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_installed_wheel_answers_outside_of_the_source_tree(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")  # which builds it
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    sources = tmp_path / "sources"  # a copy: building leaves files beside the sources
    shutil.copytree(ROOT / "src", sources / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sources)]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("motes-*.whl")
    place = tmp_path / "installed"
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(place), str(wheel)],
        check=True,
        capture_output=True,
    )
    code = (
        "import json, motes\n"
        "clips = motes.cannonballs(1, 2, 8, 48, seed=3)\n"
        "answer = motes.infer(motes.load('cannonballs-structured'), clips.frames, 2)\n"
        "print(json.dumps([motes.__file__, list(answer.pixels.shape)]))"
    )
    elsewhere = {**os.environ, "PYTHONPATH": str(place)}
    for command in (["-c", code], ["-m", "motes", "doctor", "--json"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=elsewhere,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        if command[0] == "-c":
            file, shape = json.loads(done.stdout)
            assert Path(file).is_relative_to(place)
            assert shape == [1, 2, 8, 2]
    for name in ("py.typed", "server/page/index.html", "models/cannonballs-48/model.safetensors"):
        assert (place / "motes" / name).is_file(), name
