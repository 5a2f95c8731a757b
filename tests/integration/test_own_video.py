"""A person's own video through the command line: prepared, learned from, asked about, drawn."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import motes
from motes import cli
from motes.data import write_gif

T, HEIGHT, WIDTH, FPS = 36, 60, 80, 20.0
START, STEP = np.array([12.0, 40.0]), np.array([1.6, -0.7])


def true_centres() -> np.ndarray:
    return START + STEP * np.arange(T)[:, None]


@pytest.fixture(scope="module")
def gif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bright disk on a grey scene, moving on a straight line."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    scene = 0.2 + 0.1 * ((rows // 7 + columns // 9) % 2)
    frames = [
        np.where((columns - x) ** 2 + (rows - y) ** 2 <= 20, 0.9, scene) for x, y in true_centres()
    ]
    path = tmp_path_factory.mktemp("video") / "disk.gif"
    write_gif(path, torch.tensor(np.array(frames), dtype=torch.float32), fps=FPS)
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert cli.main([*arguments, "--json"]) == 0
    record: dict[str, object] = json.loads(capsys.readouterr().out)
    return record


def test_prepare_cuts_clips_counts_objects_and_shows_them(gif, tmp_path, capsys):
    asked = ["prepare", str(gif), "-o", f"{tmp_path}/clips.npz", "--size=40", "--frames=12"]
    record = told(capsys, *asked, "--stride=8")
    assert record["num_objects"] == [1, 1, 1, 1]
    assert (record["height"], record["width"]) == (30, 40)
    clips = motes.load_clips(tmp_path / "clips.npz")
    assert clips.frames.shape == (4, 12, 30, 40)
    with Image.open(tmp_path / "clips.png") as sheet:
        assert sheet.width > 40 * 10


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--crop", "0", "0", "81", "60"], "80x60"),
        (["--frames=1"], "frames is 1"),
        (["--frames=50"], "50 frames"),
        (["--stride=99"], "stride is 99"),
        (["--fps=60"], "20 frames a second"),
        (["--start=100"], "no frames there"),
        (["--start=2", "--end=1"], "start is 2"),
        (["--size=1"], "1x1"),
        (["--size", "8", "8", "8"], "size is 8 8 8"),
        (["--threshold=2"], "threshold is 2"),
        (["--colour=orange"], "'orange'"),
        (["--num-objects=0"], "num_objects is 0"),
    ],
)
def test_bad_options_of_prepare_are_told_in_one_line(gif, tmp_path, capsys, options, named):
    out = ["-o", f"{tmp_path}/clips.npz"]
    assert cli.main(["prepare", str(gif), *out, *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert not list(tmp_path.iterdir())
