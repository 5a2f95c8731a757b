"""A person's own video through the command line: prepared, learned from, asked about, drawn."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

import motes
from motes import cli
from motes.data import write_gif
from motes.video import open_video

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


def test_a_sheet_may_have_any_name_and_is_there_with_the_clips_or_neither(gif, tmp_path, capsys):
    asked = ["prepare", str(gif), "-o", f"{tmp_path}/clips.npz", "--size=40", "--frames=12"]
    assert cli.main([*asked, f"--sheet={tmp_path}/no/sheet.png"]) == 2
    assert list(tmp_path.iterdir()) == []
    told(capsys, *asked, f"--sheet={tmp_path}/sheet")
    with Image.open(tmp_path / "sheet") as sheet:
        assert sheet.format == "PNG"


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


@pytest.fixture(scope="module")
def run(gif: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned a little from the clips of the video."""
    folder = tmp_path_factory.mktemp("run")
    clips = f"{folder}/clips.npz"
    asked = ["prepare", str(gif), "-o", clips, "--size=40", "--frames=12", "--stride=4"]
    assert cli.main([*asked, "--crop", "0", "4", "80", "60"]) == 0
    asked = ["train", "--preset=smoke", "--family=structured", f"--data={clips}"]
    assert cli.main([*asked, f"--out={folder}/run"]) == 0
    return folder / "run"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_video_is_answered_in_its_own_pixels_and_seconds(gif, run, tmp_path):
    out = tmp_path / "tracks.csv"
    asked = ["infer", str(gif), f"--model={run}", "--num-objects=1", f"--out={out}"]
    assert cli.main(asked) == 0
    table = rows(out)
    assert [int(row["frame"]) for row in table] == list(range(T))
    assert [float(row["time"]) for row in table] == pytest.approx(np.arange(T) / FPS)
    found = np.array([(float(row["x"]), float(row["y"])) for row in table])
    # A frame pixel is two of the video: half of one along each axis is a pixel of the video; a
    # tracker of whole pixels that has hardly learned may be one more away.
    assert np.abs(found - true_centres()).max() < 3


def test_in_a_long_video_the_usual_number_of_objects_is_followed(
    gif, run, tmp_path, capsys, monkeypatch
):
    asked = ["infer", str(gif), f"--model={run}", f"--out={tmp_path}/tracks.csv"]
    monkeypatch.setattr("motes.cli.queries.MAX_COUNTED", T)
    assert cli.main(asked) == 0
    assert "as usual" not in capsys.readouterr().err
    monkeypatch.setattr("motes.cli.queries.MAX_COUNTED", T - 1)
    monkeypatch.setattr("motes.queries.count_log_evidence", None)  # is not needed
    assert cli.main(asked) == 0
    assert "1 objects, as usual in a frame; give --num-objects" in capsys.readouterr().err
    assert len(rows(tmp_path / "tracks.csv")) == T


def test_without_a_model_a_quick_one_is_trained_on_the_recording(
    gif, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("motes.cli.quick_model.STEPS", 24)
    out = tmp_path / "tracks.csv"
    assert cli.main(["infer", str(gif), f"--out={out}"]) == 0
    told = capsys.readouterr().err
    assert "a quick one is trained on the recording itself" in told
    assert re.search(r"trained in \d+ s", told)
    found = np.array([(float(row["x"]), float(row["y"])) for row in rows(out)])
    assert len(found) == T  # one object, which was counted
    assert np.abs(found - true_centres()).max() < 3  # as above
    first = out.read_text()
    assert cli.main(["infer", str(gif), f"--out={out}"]) == 0  # not trained again
    assert "the quick model of before" in capsys.readouterr().err
    assert out.read_text() == first
    assert cli.main(["infer", str(gif), f"--out={tmp_path}/b.csv", f"--model={tmp_path}/no"]) == 2


def test_a_folder_of_the_name_of_a_quick_model_is_left_alone(gif, tmp_path, capsys):
    (tmp_path / "tracks-model").mkdir()
    assert cli.main(["infer", str(gif), f"--out={tmp_path}/tracks.csv"]) == 2
    assert "tracks-model" in capsys.readouterr().err
    assert list((tmp_path / "tracks-model").iterdir()) == []


def test_tables_are_in_units_where_a_scale_is_known(gif, run, tmp_path, capsys):
    asked = ["infer", str(gif), f"--model={run}", "--num-objects=1"]
    plain, scaled = tmp_path / "a.csv", tmp_path / "b.csv"
    assert cli.main([*asked, f"--out={plain}"]) == 0
    assert cli.main([*asked, f"--out={scaled}", "--scale=0.5mm/px", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["unit"] == "mm"
    for pixels, lengths in zip(rows(plain), rows(scaled), strict=True):
        assert lengths["unit"] == "mm"
        for name in ("x", "y", "sd_x", "sd_y", "vx", "vy"):
            assert float(lengths[name]) == pytest.approx(0.5 * float(pixels[name]), rel=1e-5)
        assert float(lengths["cov_xy"]) == pytest.approx(0.25 * float(pixels["cov_xy"]), rel=1e-4)
        assert lengths["time"] == pixels["time"]


def test_units_given_to_prepare_hold_for_clips_run_and_answers(gif, tmp_path):
    clips, folder, out = (tmp_path / name for name in ("clips.npz", "run", "tracks.csv"))
    asked = ["prepare", str(gif), "-o", str(clips), "--size=40", "--frames=12"]
    assert cli.main([*asked, "--ruler=0,0 80,0 2m"]) == 0
    train = ["train", "--preset=sprites-smoke", f"--data={clips}", f"--out={folder}"]
    assert cli.main([*train, "--iterations=4"]) == 0
    for source in (gif, clips):
        asked = ["infer", str(source), f"--model={folder}", "--num-objects=1", f"--out={out}"]
        assert cli.main(asked) == 0
        first = [row for row in rows(out) if row["clip"] == "0"][:12]
        assert {row["unit"] for row in first} == {"m"}
        found = np.array([(float(row["x"]), float(row["y"])) for row in first])
        assert np.abs(found * 40 - true_centres()[:12]).max() < 3


def test_a_forecast_is_drawn_on_the_frames_that_came(gif, run, tmp_path):
    overlay = tmp_path / "ahead.gif"
    asked = ["forecast", str(gif), f"--model={run}", "--num-objects=1", f"--out={tmp_path}/a.csv"]
    assert cli.main([*asked, "--end=0.7", "--horizon=30", f"--overlay={overlay}"]) == 0
    drawn = [frame.picture.astype(int) for frame in open_video(overlay).frames()]
    true = [frame.picture.astype(int) for frame in open_video(gif).frames()]
    assert len(drawn) == 15 + 30
    corner = (slice(-12, None), slice(-12, None))  # no track gets there
    for t in (20, T - 1):  # after the last frame that was used, in the recording
        assert np.abs(drawn[t][corner] - true[t][corner].mean(-1, keepdims=True)).mean() < 12
    # After its end the last one is repeated, darker; the palette of a GIF has no third of it.
    assert drawn[-1][corner].mean() < drawn[T - 1][corner].mean()


def test_an_overlay_on_clips_shows_the_frames_that_came(run, tmp_path):
    clips = run.parent / "clips.npz"
    asked = ["forecast", str(clips), f"--model={run}", f"--out={tmp_path}/a.csv", "--seen=6"]
    assert cli.main([*asked, "--horizon=6", f"--overlay={tmp_path}/a.gif"]) == 0
    lit = [
        (frame.picture > 200).all(-1).mean() for frame in open_video(tmp_path / "a.gif").frames()
    ]
    frames = motes.load_clips(clips).frames[0]
    assert len(lit) == 12
    assert lit[11] > 0.5 * float(frames[11].float().mean())


def test_a_gif_without_delays_is_told_and_can_be_given_a_rate(gif, run, tmp_path, capsys):
    still = tmp_path / "no_delays.gif"
    with Image.open(gif) as source:
        pictures = [picture.copy() for picture in ImageSequence.Iterator(source)]
    pictures[0].save(still, save_all=True, append_images=pictures[1:], duration=0)
    out = tmp_path / "a.csv"
    asked = ["infer", str(still), f"--model={run}", "--num-objects=1", f"--out={out}"]
    assert cli.main(asked) == 0
    assert "no time stamps" in capsys.readouterr().err
    assert cli.main([*asked, "--source-fps=20"]) == 0
    assert "no time stamps" not in capsys.readouterr().err
    assert float(rows(out)[-1]["time"]) == pytest.approx((T - 1) / 20)


def test_clips_of_a_video_are_answered_in_its_pixels_too(gif, run, tmp_path):
    clips, out = run.parent / "clips.npz", tmp_path / "tracks.csv"
    assert cli.main(["infer", str(clips), f"--model={run}", f"--out={out}"]) == 0
    second = [row for row in rows(out) if row["clip"] == "1"]
    assert [int(row["frame"]) for row in second] == list(range(4, 16))
    found = np.array([(float(row["x"]), float(row["y"])) for row in second])
    assert np.abs(found - true_centres()[4:16]).max() < 3


def test_a_forecast_goes_on_in_the_seconds_of_the_video(gif, run, tmp_path):
    out = tmp_path / "tracks.csv"
    asked = ["forecast", str(gif), f"--model={run}", "--num-objects=1", f"--out={out}"]
    assert cli.main([*asked, "--seen=20", "--horizon=30"]) == 0
    table = rows(out)
    assert [int(row["frame"]) for row in table] == list(range(50))
    assert [float(row["time"]) for row in table] == pytest.approx(np.arange(50) / FPS)
    assert [row["observed"] for row in table] == ["True"] * 20 + ["False"] * 30


def test_overlay_and_plot_are_drawn_on_the_video(gif, run, tmp_path):
    overlay, plot = tmp_path / "over.gif", tmp_path / "paths.png"
    asked = ["interpolate", str(gif), f"--model={run}", "--num-objects=1", "--hide=10:20"]
    asked += [f"--out={tmp_path}/a.csv", f"--overlay={overlay}", f"--plot={plot}"]
    assert cli.main([*asked, "--start=0.2", "--end=1.6"]) == 0
    video = open_video(overlay)
    frames = list(video.frames())
    assert (len(frames), video.height, video.width) == (29, HEIGHT, WIDTH)
    colour = np.array([0x56, 0xB4, 0xE9])
    for t in (3, 15):  # seen, hidden
        x, y = true_centres()[4 + t].round().astype(int)
        near = frames[t].picture[max(y - 9, 0) : y + 10, max(x - 9, 0) : x + 10].astype(int)
        # A palette of 128 colours and antialiasing of the text leave the line's colour close.
        assert (np.abs(near - colour).sum(-1) < 60).any()
    with Image.open(plot) as picture:
        assert picture.width > 400


def test_an_overlay_of_clips_without_a_video_is_drawn_on_their_frames(run, tmp_path):
    np.savez(tmp_path / "a.npz", frames=motes.load_clips(run.parent / "clips.npz").frames.numpy())
    asked = ["infer", f"{tmp_path}/a.npz", f"--model={run}", "--num-objects=1"]
    assert cli.main([*asked, f"--out={tmp_path}/a.csv", f"--overlay={tmp_path}/a.gif"]) == 0
    video = open_video(tmp_path / "a.gif")
    assert max(video.height, video.width) == 480


def test_tables_are_parquet_where_the_name_says_so(gif, run, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    asked = ["infer", str(gif), f"--model={run}", "--num-objects=1"]
    for name in ("a.csv", "a.parquet"):
        assert cli.main([*asked, f"--out={tmp_path}/{name}"]) == 0
    left, right = pandas.read_csv(tmp_path / "a.csv"), pandas.read_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(left, right)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--overlay=a.txt"], "a.txt"),
        (["--start=3", "--end=1"], "start is 3"),
        (["--start=50"], "no frames there"),
    ],
)
def test_bad_questions_about_a_video_are_told_in_one_line(gif, run, capsys, options, named):
    capsys.readouterr()
    assert cli.main(["infer", str(gif), f"--model={run}", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert not list(gif.parent.glob("*.csv"))
