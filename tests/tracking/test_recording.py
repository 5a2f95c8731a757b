"""Whole recordings: drawn scenes with truth, degenerate input, errors in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import motes
from motes import cli
from motes.core.errors import InputError
from motes.data.worlds.arrivals import draw_scene
from motes.evaluation.tracking_metrics import score_tracks
from motes.tracking import COLUMNS, Tracks, track


@pytest.fixture(scope="module")
def flights() -> tuple[Tracks, dict[str, object]]:
    scene = draw_scene("5 flights", 10, num_frames=40)
    found = motes.track(scene.frames)
    return found, score_tracks(scene.positions, scene.exists, scene.visible, found)


def test_flights_of_a_small_scene_are_followed(flights: tuple[Tracks, dict[str, object]]):
    found, scores = flights
    assert scores["idf1"] >= 0.97
    assert scores["rmse"] < 0.2
    assert found.laws is not None
    # Gravity is .08: some 200 rows with errors of .03 pixels give it to a few thousandths.
    assert found.laws.force[1, 3] == pytest.approx(0.08, abs=0.01)


def test_arrays_and_rows_agree(flights: tuple[Tracks, dict[str, object]]):
    found, _ = flights
    shape = (found.num_tracks, found.num_frames)
    assert found.positions.shape == (*shape, 2)
    assert found.covariances.shape == (*shape, 2, 2)
    assert found.seen.shape == found.exists.shape == found.shows.shape == shape
    assert ((found.exists >= found.shows - 1e-9) & (found.exists <= 1 + 1e-9)).all()
    np.testing.assert_allclose(found.expected_count, found.exists.sum(0))
    rows = list(found.rows())
    assert len(rows) == (found.exists >= 0.05).sum()
    assert rows == sorted(rows, key=lambda row: row[:2])
    for row in rows[:50]:
        named = dict(zip(COLUMNS, row, strict=True))
        n, t = named["particle"], named["frame"]
        assert named["x"] == found.positions[n, t, 0]
        assert named["sd_y"] == np.sqrt(found.covariances[n, t, 1, 1])
        assert named["seen"] == found.seen[n, t]
    assert (found.to_dataframe().columns == list(COLUMNS)).all()


def test_seen_rows_lie_inside_the_picture(flights: tuple[Tracks, dict[str, object]]):
    found, _ = flights
    raw = found.row_raw[found.row_seen]
    assert ((raw >= -0.5) & (raw <= 95.5)).all()
    assert np.isnan(found.row_raw[~found.row_seen]).all()


def test_the_same_recording_gives_the_same_tracks():
    frames = draw_scene("5 walks", 3, num_frames=12).frames
    one, other = track(frames), track(torch.from_numpy(frames))
    np.testing.assert_array_equal(list(one.rows()), list(other.rows()))


def test_dark_objects_are_tracked_as_bright_ones_are():
    frames = draw_scene("5 walks", 4, num_frames=16).frames
    bright, dark = track(frames), track(1 - frames)
    assert dark.num_tracks == bright.num_tracks
    np.testing.assert_allclose(dark.row_positions, bright.row_positions, atol=0.02)


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((10, 32, 40), np.uint8),
        np.full((10, 32, 40), 0.5),
        np.full((1, 32, 40), 0.5),
        np.zeros((2, 8, 8), bool),
    ],
    ids=["black", "grey", "one frame", "smallest"],
)
def test_frames_without_objects_have_no_tracks(frames: np.ndarray):
    found = track(frames)
    assert found.num_tracks == 0
    assert found.num_frames == len(frames)
    assert list(found.rows()) == []
    assert found.expected_count.tolist() == [0.0] * len(frames)
    assert found.positions.shape == (0, len(frames), 2)


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_has_no_tracks(seed: int):
    random = np.random.default_rng(seed)
    found = track((0.5 + 0.03 * random.standard_normal((20, 64, 64))).clip(0, 1))
    assert found.expected_count.sum() < 0.5


def test_one_frame_gives_no_tracks_but_no_error():
    assert track(draw_scene("5 walks", 0, num_frames=1).frames).num_frames == 1


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((0, 16, 16)), "without frames"),
        (np.zeros((16, 16)), r"shape \[16, 16\]; expected \[T, height, width\]"),
        (np.zeros((4, 4, 16)), "16x4 pixels; expected sides of 8"),
        (np.full((4, 16, 16), 7.0), "values from 7 to 7; expected floats in"),
        (np.full((4, 16, 16), np.nan), "nan"),
        (np.zeros((4, 16, 16), int), "int64; expected uint8"),
    ],
)
def test_wrong_frames_are_refused_in_one_line(frames: np.ndarray, message: str):
    with pytest.raises(InputError, match=message) as caught:
        track(frames)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of a small scene."""
    folder = tmp_path_factory.mktemp("scene") / "pictures"
    folder.mkdir()
    for t, frame in enumerate(draw_scene("5 walks", 5, num_frames=12).frames):
        Image.fromarray((255 * frame).round().astype(np.uint8)).save(folder / f"{t}.png")
    return folder


def test_the_command_writes_a_table_and_an_overlay(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out, overlay = tmp_path / "tracks.csv", tmp_path / "tracks.gif"
    assert cli.main(["track", str(pictures), f"--out={out}", f"--overlay={overlay}"]) == 0
    assert "track: " in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) > 12
    with Image.open(overlay) as animation:
        assert animation.n_frames == 12


@pytest.mark.parametrize("name", ["t.trackpy.csv", "t.napari.csv", "t.xml", "t.txt", "t.parquet"])
def test_the_command_writes_other_formats(pictures: Path, tmp_path: Path, name: str):
    assert cli.main(["track", str(pictures), f"--out={tmp_path / name}", "--json"]) == 0
    assert (tmp_path / name).stat().st_size > 100


def test_the_command_reports_wrong_input_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["track", str(tmp_path / "missing.mp4")]) == 2
    error = capsys.readouterr().err
    assert "missing.mp4" in error
    assert error.count("\n") == 1
