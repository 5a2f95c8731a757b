"""`motes watch` on a recorded video: rows as they come, the ring buffer, one-line errors."""

import csv
import subprocess
import sys

import numpy as np
import pytest

from experiments.own_video.watch_pipe import centres, model_folder
from motes.cli import main
from motes.models.checkpoint import save_model
from motes.video import live
from motes.video.prepare import PREPARATION, Preparation, preparation_to_json
from tests.own_videos import HEIGHT, NUM_FRAMES, WIDTH, places, write_two_balls


@pytest.fixture
def run(tmp_path):
    """A model whose sprite has the size of the balls in the prepared frames."""
    from motes.models.checkpoint import load_with_config

    model, config = load_with_config("cannonballs-structured")
    (tmp_path / "run").mkdir()
    save_model(tmp_path / "run", model, config)
    height, width = model.image_size
    right, bottom = float(WIDTH), float(HEIGHT)
    region = ((60.0, 0.0), (right, 0.0), (right, bottom), (0.0, bottom), (0.0, 40.0))
    prepared = Preparation(height, width, keep=(region,))
    (tmp_path / "run" / PREPARATION).write_text(preparation_to_json(prepared))
    return tmp_path / "run"


@pytest.fixture
def no_waiting(monkeypatch):
    """Time stands still: a paced file is read at once, and no frame is late."""
    monkeypatch.setattr(live.paced, "__defaults__", (lambda: 0.0, lambda seconds: None))


@pytest.mark.usefixtures("no_waiting")
def test_rows_come_with_a_stated_delay_and_the_ring_is_bounded(run, tmp_path, capsys):
    write_two_balls(tmp_path / "balls.mp4")
    table, ring = tmp_path / "live.csv", tmp_path / "ring"
    options = ["-m", str(run), "-n", "2", "-o", str(table), "--warm-up", "1"]
    buffer = ["--ring", str(ring), "--ring-seconds", "0.4"]
    assert main(["watch", str(tmp_path / "balls.mp4"), *options, *buffer]) == 0
    assert "a row comes at most 9 frames (0.36 s) and two updates after" in capsys.readouterr().err
    with table.open() as file:
        rows = list(csv.DictReader(file))
    frames = sorted({int(row["frame"]) for row in rows})
    assert frames == list(range(26, NUM_FRAMES))  # after a second of warm-up
    assert len(rows) == 2 * len(frames)
    truth = places()
    for row in rows:
        at = np.array([float(row["x"]), float(row["y"])])
        near = np.linalg.norm(truth[:, int(row["frame"])] - at, axis=-1).min()
        # Up to two prepared pixels of 5.4 each; balls that leave the picture are predicted.
        inside = ((truth[:, int(row["frame"])] > 12).all(-1)).all()
        assert near < 11 or not inside
    assert float(rows[0]["time"]) == pytest.approx(26 / 25)
    assert len(list(ring.iterdir())) == 10


def test_wrong_input_is_one_line(run, tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none.mp4"), "-m", str(run)]) == 2
    assert "expected a camera (0, /dev/video0) or a stream" in capsys.readouterr().err
    write_two_balls(tmp_path / "balls.mp4")
    given = ["watch", str(tmp_path / "balls.mp4"), "-m", str(run), "--warm-up", "0"]
    assert main(given) == 2
    assert "warm_up is 0; give seconds above 0" in capsys.readouterr().err
    folder = ["watch", str(tmp_path / "balls.mp4"), "-m", str(run), "-o", str(tmp_path)]
    assert main(folder) == 2
    assert "a folder; expected the name of a file" in capsys.readouterr().err


def test_frames_from_a_pipe_of_another_process_are_followed(tmp_path):
    """Frames that come before the program is ready may be lost; the last ones are not."""
    folder = model_folder(tmp_path / "model")
    write = [sys.executable, "-m", "experiments.own_video.watch_pipe", "--write=60", "--speed=50"]
    watch = [sys.executable, "-m", "motes", "watch", "-", "-m", str(folder), "-n", "2"]
    writer = subprocess.Popen(write, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    done = subprocess.run(
        [*watch, "--warm-up", "1.5"], stdin=writer.stdout, capture_output=True, text=True
    )
    writer.communicate()
    assert done.returncode == 0, done.stderr
    assert "2 objects at 25 frames/s" in done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    frames = sorted({int(row["frame"]) for row in rows})
    assert frames[0] > 1.5 * 25
    assert frames[-1] == 59
    assert len(rows) == 2 * len(frames)
    for row in rows[-2:]:
        at = [float(row["x"]), float(row["y"])]
        # Two prepared pixels of 5.4 each.
        assert np.linalg.norm(centres(59) - at, axis=-1).min() < 11
