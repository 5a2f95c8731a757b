"""Every command, from the arguments to the files and the exit code, on a smoke-size model."""

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import motes
from motes import cli
from motes.cli.terminal import describe
from motes.data import Clips, worlds, write_gif
from motes.models.checkpoint import find_model, read_config
from motes.queries.answer import COLUMNS
from motes.training.presets import PRESETS
from motes.video import read_frames

T, SIZE, NUM_CLIPS = 12, 16, 6
TESTED_ELSEWHERE = {"track", "watch", "demo", "figures", "prepare", "serve", "doctor"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with clips in three forms and a trained model, all made by the command line."""
    folder = tmp_path_factory.mktemp("world")
    clips = [f"--num-clips={NUM_CLIPS}", "--num-objects", "1", "2", f"--num-frames={T}"]
    made = ["data", *clips, f"--size={SIZE}", f"--out={folder}/clips.npz"]
    assert cli.main([*made, f"--gif={folder}/first.gif"]) == 0
    assert cli.main(["train", "--preset=smoke", f"--out={folder}/run"]) == 0
    (folder / "pictures").mkdir()
    frames = motes.load_clips(folder / "clips.npz").frames[0]
    for t, frame in enumerate(frames):
        Image.fromarray(255 * frame.numpy()).save(folder / "pictures" / f"frame{t}.png")
    return folder


QUERIES = {
    "infer": [],
    "forecast": ["--num-observed=5", "--horizon=7"],
    "interpolate": ["--hide", "3:6", "8"],
}
COVERED = {"data", "train", "calibrate", "evaluate", "law", "sample", "bench", *QUERIES}


def test_every_verb_is_tested() -> None:
    assert set(cli.VERBS) == COVERED | TESTED_ELSEWHERE


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_shows_an_example_that_starts_with_the_verb(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Example: motes {verb}" in shown
    assert "--json" in shown


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) in (COLUMNS, (*COLUMNS, "time"))  # a video has a clock
    assert np.isfinite([[float(row[name]) for name in COLUMNS[:-2]] for row in rows]).all()
    return rows


def record_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    parsed: dict[str, Any] = json.loads(printed)
    return parsed


@pytest.mark.parametrize("source", ["clips.npz", "first.gif", "pictures"])
@pytest.mark.parametrize("verb", QUERIES)
def test_questions_write_a_table_and_an_animation(
    verb: str, source: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gif = tmp_path / "tracks.csv", tmp_path / "seen.gif"
    asked = [verb, str(world / source), *QUERIES[verb], f"--model={world}/run"]
    capsys.readouterr()
    assert cli.main([*asked, f"--out={out}", f"--gif={gif}", "--json"]) == 0
    record = record_of(capsys)
    known = motes.load_clips(world / "clips.npz").num_objects
    assert known is not None
    if source == "clips.npz":
        assert record["num_objects"] == known.tolist()
    assert record["frames"] == T
    assert len(table(out)) == sum(record["num_objects"]) * T
    assert read_frames(gif).shape == (1, T, SIZE, SIZE)
    hidden = {int(row["frame"]) for row in table(out) if row["observed"] == "False"}
    expected = {"infer": set(), "forecast": set(range(5, T)), "interpolate": {3, 4, 5, 8}}
    assert hidden == expected[verb]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen.gif", "tracks.csv"]


@pytest.mark.parametrize("verb", QUERIES)
def test_frames_that_a_file_says_were_lost_are_not_taken_for_seen(
    verb: str, world: Path, tmp_path: Path
) -> None:
    whole = motes.load_clips(world / "clips.npz")
    lost = torch.arange(T) == torch.tensor([[2], [4]] * (NUM_CLIPS // 2))
    marks = whole.frames.float()
    marks[lost] = 1.0  # as if all of it were objects
    clips = tmp_path / "lost.npz"
    np.savez(clips, frames=marks, num_objects=whole.num_objects, observed=~lost)
    out, gif = tmp_path / "tracks.csv", tmp_path / "a.gif"
    asked = [verb, str(clips), *QUERIES[verb], f"--model={world}/run", f"--gif={gif}"]
    assert cli.main([*asked, f"--out={out}"]) == 0
    rows = table(out)
    hidden = {"infer": set(), "forecast": set(range(5, T)), "interpolate": {3, 4, 5, 8}}[verb]
    for clip, gone in ((0, 2), (1, 4)):
        said = {
            int(r["frame"]) for r in rows if r["clip"] == str(clip) and r["observed"] == "False"
        }
        assert said == hidden | {gone}
    # What they hold cannot matter.
    np.savez(clips, frames=whole.frames, num_objects=whole.num_objects, observed=~lost)
    assert cli.main([*asked, f"--out={out}"]) == 0
    assert table(out) == rows


def test_a_gif_that_is_too_long_is_refused_before_the_question(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("motes.output.tracks.MAX_GIF_FRAMES", T - 1)
    monkeypatch.setattr("motes.queries.infer", lambda *given, **options: pytest.fail("asked"))
    asked = ["infer", str(world / "clips.npz"), f"--model={world}/run"]
    assert cli.main([*asked, f"--overlay={world}/a.gif"]) == 2
    assert f"more than {T - 1} frames" in capsys.readouterr().err


def test_a_plot_of_clips_is_in_the_pixels_of_the_table_and_knows_no_seconds(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("motes.output.tracks.plot_paths", lambda *given: drawn.append(given))
    asked = ["infer", str(world / "clips.npz"), f"--model={world}/run", f"--out={tmp_path}/a.csv"]
    assert cli.main([*asked, f"--plot={tmp_path}/a.png"]) == 0
    _, tracks, picture, title = drawn[0]
    assert picture.shape == (SIZE, SIZE, 3)
    assert title.endswith(f"{T} frames")
    first = table(tmp_path / "a.csv")[0]
    np.testing.assert_allclose(tracks.pixels[0, 0], [float(first[name]) for name in "xy"])


def test_a_table_that_nobody_named_lies_beside_the_clips(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world / "pictures")
    for source, name in (("../clips.npz", "../clips-infer.csv"), (".", "../pictures-infer.csv")):
        capsys.readouterr()
        assert cli.main(["infer", source, f"--model={world}/run", "--json"]) == 0
        written = Path(record_of(capsys)["out"])
        assert written.resolve() == Path(name).resolve()
        assert len(table(written)) > 0
        written.unlink()


@pytest.mark.parametrize("verb", [*QUERIES, "sample", "data"])
def test_where_one_file_cannot_be_written_none_is_left(
    verb: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = [str(world / "clips.npz"), *QUERIES[verb]] if verb in QUERIES else []
    model = [f"--model={world}/run"] if verb != "data" else []
    for good, bad in (("gif", "out"), ("out", "gif")):
        files = [f"--{good}={tmp_path}/good.{good}", f"--{bad}={tmp_path}/no/bad.{bad}"]
        capsys.readouterr()
        assert cli.main([verb, *source, *model, *files]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", QUERIES)
def test_a_table_holds_what_python_answers(verb: str, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "tracks.csv"
    asked = [verb, f"{world}/clips.npz", *QUERIES[verb], f"--model={world}/run"]
    assert cli.main([*asked, "--num-objects=2", f"--out={out}"]) == 0
    model, frames = motes.load(world / "run"), motes.load_clips(world / "clips.npz").frames
    observed = torch.tensor([t not in (3, 4, 5, 8) for t in range(T)])
    answer = {
        "infer": lambda: motes.infer(model, frames, 2),
        "forecast": lambda: motes.forecast(model, frames[:, :5], 2, horizon=7),
        "interpolate": lambda: motes.interpolate(model, frames, observed, 2),
    }[verb]()
    for row, expected in zip(table(out), answer.rows(), strict=True):
        assert [row[name] for name in COLUMNS] == [str(value) for value in expected]


def test_without_a_name_a_table_stands_beside_its_source(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "video").mkdir()
    for picture in (world / "pictures").iterdir():
        (tmp_path / "video" / picture.name).write_bytes(picture.read_bytes())
    monkeypatch.chdir(tmp_path / "video")
    assert cli.main(["infer", ".", f"--model={world}/run", "--num-objects=1"]) == 0
    assert len(table(tmp_path / "video-infer.csv")) == T


def test_sample_writes_clips_that_can_be_asked_about(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gif = tmp_path / "samples.npz", tmp_path / "first.gif"
    capsys.readouterr()
    imagined = ["sample", f"--model={world}/run", f"--num-frames={T}", "--num-clips=3"]
    assert cli.main([*imagined, f"--out={out}", f"--gif={gif}", "--json"]) == 0
    assert record_of(capsys)["clips"] == 3
    clips = motes.load_clips(out)
    assert clips.frames.shape == (3, T, SIZE, SIZE)
    assert clips.num_objects is not None
    assert clips.num_objects.tolist() == [2, 2, 2]
    assert read_frames(gif).shape == (1, T, SIZE, SIZE)
    first = out.read_bytes()
    assert cli.main([*imagined, f"--out={out}"]) == 0
    assert out.read_bytes() == first


def test_data_makes_the_same_clips_from_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made = ["data", "--num-clips=3", f"--size={SIZE}", f"--seed={seed}", "--json"]
        assert cli.main([*made, f"--out={tmp_path}/{name}.npz"]) == 0
        assert record_of(capsys)["seed"] == seed
    a, b, c = (motes.load_clips(tmp_path / f"{name}.npz").frames for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_evaluate_scores_fresh_clips_and_given_ones(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.json"
    capsys.readouterr()
    asked = ["evaluate", f"{world}/run", "--num-clips=6"]
    assert cli.main([*asked, f"--out={out}", "--json"]) == 0
    record = record_of(capsys)
    assert json.loads(out.read_text()) == record
    assert set(record["by_count"]) == {"1", "2"}
    assert sum(scores["clips"] for scores in record["by_count"].values()) == 6
    assert cli.main(["evaluate", f"{world}/run", f"--data={world}/clips.npz"]) == 0
    shown = capsys.readouterr().out
    for name in record["by_count"]["1"]:
        assert name in shown


def test_evaluate_fits_its_affine_map_on_training_clips(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Clips] = []

    def listening(predictor: Any, clips: Clips, training: Clips, progress: Any) -> dict[str, Any]:
        given.extend([clips, training])
        raise motes.InputError("enough")

    monkeypatch.setattr("motes.evaluation.evaluate.evaluate", listening)
    assert cli.main(["evaluate", f"{world}/run", "--num-clips=6"]) == 2
    clips, training = given
    data = PRESETS["paper-smoke"].data
    size = (data.height, data.width)
    first = motes.cannonballs(len(training), data.num_objects, data.num_frames, size, data.seed)
    assert training.positions is not None
    assert first.positions is not None
    assert torch.equal(training.positions.nan_to_num(), first.positions.nan_to_num())
    assert not torch.equal(training.frames[:6], clips.frames[:6])


def test_the_limit_is_given_the_physics_of_the_clips_or_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, code in (("weightless", 0), ("bounce", 2)):
        motes.save_clips(tmp_path / "clips.npz", worlds.make(name, 4, 1, T, SIZE, seed=3))
        capsys.readouterr()
        told = cli.main(["evaluate", "limit", f"--clips={tmp_path}/clips.npz", "--json"])
        assert told == code
        shown = capsys.readouterr()
        if code == 0:  # positions are known to a pixel, so the path in a gap is too
            assert json.loads(shown.out)["by_count"]["1"]["interpolation_rmse"] < 1
        else:
            assert "no law of motion" in shown.err


def test_calibrate_scales_the_covariances_of_a_copy(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, out = tmp_path / "sprites", tmp_path / "calibrated"
    trained = ["train", "--family=structured", "--preset=smoke", f"--out={reference}"]
    assert cli.main(trained) == 0
    before = {path.name: path.read_bytes() for path in (world / "run").iterdir()}
    capsys.readouterr()
    given = ["calibrate", f"{world}/run", f"--data={world}/clips.npz", f"--reference={reference}"]
    assert cli.main([*given, f"--out={out}", "--json"]) == 0
    scales = record_of(capsys)["covariance_scales"]
    assert all(math.isfinite(scale) and scale > 0 for scale in scales)
    assert {path.name: path.read_bytes() for path in (world / "run").iterdir()} == before
    frames = motes.load_clips(world / "clips.npz").frames
    for count in (1, 2):
        old, new = (motes.infer(motes.load(run), frames, count) for run in (world / "run", out))
        torch.testing.assert_close(new.covariances, scales[count - 1] * old.covariances)
        torch.testing.assert_close(new.positions, old.positions)


def test_train_learns_from_a_file_of_clips(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    asked = ["train", "--preset=smoke", f"--data={world}/clips.npz", "--iterations=2", "--json"]
    assert cli.main([*asked, "--seed=5", f"--out={run}"]) == 0
    record = record_of(capsys)
    assert record["finished"]
    assert record["step"] == 2
    config = json.loads((run / "config.json").read_text())
    assert config["seed"] == 5
    assert config["data"]["num_clips"] + config["data"]["num_held_out"] == NUM_CLIPS
    assert config["data"]["num_frames"] == T
    # A sprite finds the balls at once. The networks of the fixture have learned nothing yet.
    assert record["quality"]["verdict"] == "good"
    assert "Try: " not in record["quality"]["in_words"]
    assert json.loads((run / "quality.json").read_text()) == record["quality"]
    poor = json.loads((world / "run" / "quality.json").read_text())
    assert poor["verdict"] == "poor"
    assert "Try: networks need long training: more --iterations" in poor["in_words"]


def test_training_says_how_good_it_is_and_how_long_it_takes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", "--preset=sprites-smoke", f"--data={world}/clips.npz", "--iterations=8"]
    assert cli.main([*asked, f"--out={tmp_path}/run"]) == 0
    printed = capsys.readouterr()
    words = r"(good|fair|poor): the model explains \d+ % of what moves and finds objects in \d+ % "
    words += r"of their frames; positions are \d+\.\d\d px from a smooth path, their expected "
    words += r"error is \d+\.\d\d px"
    assert re.search(r"4/8 bound .* it/s, \d+ (s|min) left", printed.err)
    assert re.search(r"8/8 " + words, printed.err)
    assert re.search(r"\nquality: " + words, printed.out)
    log = [json.loads(line) for line in (world / "run/log.jsonl").read_text().splitlines()]
    (check,) = [line for line in log if "quality" in line]  # at the checkpoint before the last
    assert check["step"] == 10
    assert re.search(r"held-out bound .*saved; " + words, describe(check))


def test_the_other_family_is_trained_and_asked_in_the_same_way(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "tracks.csv"
    asked = ["train", "--family=structured", "--preset=smoke", f"--out={run}", "--json"]
    assert cli.main(asked) == 0
    assert record_of(capsys)["finished"]
    gap = ["interpolate", f"{world}/clips.npz", "--hide", "3:6", f"--model={run}"]
    assert cli.main([*gap, f"--out={out}"]) == 0
    known = motes.load_clips(world / "clips.npz").num_objects
    assert known is not None
    assert len(table(out)) == int(known.sum()) * T


def test_networks_are_taught_by_a_model_of_the_same_clips(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, run, data = tmp_path / "teacher", tmp_path / "run", f"--data={world}/clips.npz"
    assert cli.main(["train", data, "--iterations=12", f"--out={teacher}"]) == 0
    capsys.readouterr()
    asked = ["train", "--preset=taught", data, f"--teacher={teacher}", "--iterations=2"]
    assert cli.main([*asked, f"--out={run}", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["finished"]
    lines = printed.err.splitlines()
    assert lines[0].startswith(f"pseudo-labels for {run} 0/{NUM_CLIPS - 1} ")
    assert lines[1].startswith(f"pseudo-labels for {run} {NUM_CLIPS - 1}/{NUM_CLIPS - 1} ")
    assert lines[1].endswith(" clips/s")
    config = json.loads((run / "config.json").read_text())
    assert config["teacher"] == str(teacher)
    assert (config["family"], config["dynamics"]["law"]) == ("paper", "linear")


def test_a_dry_run_prints_the_configuration_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert cli.main(["train", "--preset=paper", "--dry-run", f"--out={out}"]) == 0
    assert json.loads(capsys.readouterr().out)["schedule"]["iterations"] == 200_000
    assert not out.exists()


def test_a_dry_run_has_the_sizes_of_the_clips(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--preset=paper", f"--data={world}/clips.npz", "--dry-run"]
    capsys.readouterr()
    assert cli.main(words) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["num_frames"], data["height"], data["width"]) == (T, SIZE, SIZE)


@pytest.mark.parametrize(
    ("words", "family"),
    [
        (["--preset=covered"], "sprites"),
        (["--preset=sprites-occluded"], "sprites"),
        (["--preset=paper-small", "--data=clips.npz"], "paper"),
        (["--preset=small"], "paper"),
        (["--preset=small", "--family=structured"], "sprites"),
        (["--preset=robust", "--family=paper"], "paper"),
        (["--preset=layers"], "layers"),
        (["--data=clips.npz"], "sprites"),
        ([], "paper"),
        (["--preset=paper", "--data=clips.npz"], "paper"),
        (["--preset=smoke"], "paper"),
        (["--preset=smoke", "--data=clips.npz"], "sprites"),
        (["--preset=smoke", "--family=structured"], "sprites"),
    ],
)
def test_a_run_is_of_the_family_that_has_its_preset(
    words: list[str],
    family: str,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(world)
    capsys.readouterr()
    assert cli.main(["train", *words, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == family


def test_help_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out
    assert [name for name in PRESETS if not re.search(rf"\b{name}\b", shown)] == []


@pytest.mark.parametrize("preset", ["sprites-video", "sprites-occluded"])
def test_presets_for_own_videos_begin_with_a_sprite_of_the_size_of_the_objects(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    white = torch.zeros(4, 6, 32, 32)
    white[..., 8:18, 8:18] = 1.0  # as much as a disk of radius 10 / sqrt(pi)
    motes.save_clips(tmp_path / "clips.npz", Clips(white, torch.ones(4, dtype=torch.long)))
    words = ["train", f"--data={tmp_path / 'clips.npz'}", f"--preset={preset}", "--dry-run"]
    assert cli.main(words) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["sprite_width"] == pytest.approx(0.9 * 10 / math.pi**0.5)
    assert model["sprite_radius"] == 12  # twice the radius, to the next pixel
    assert model["models_occlusion"] == (preset == "sprites-occluded")


def test_bench_times_training_and_queries_and_stores_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--smoke", f"--out={out}", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == record
    assert all(seconds > 0 for seconds in record["seconds"].values())
    for name in motes.models.checkpoint.shipped_names():
        for query in ("infer", "forecast"):
            assert f"{query}, one clip, {name}" in record["seconds"]


WRONG: dict[str, tuple[list[str], str]] = {
    "missing file": (["infer", "none.npz"], "none.npz"),
    "missing folder": (["infer", "none"], "none"),
    "unknown kind": (["infer", "notes.txt"], "notes.txt"),
    "damaged file": (["infer", "broken.npz"], "broken.npz"),
    "wrong size": (["infer", "large.npz"], "20x20"),
    "one frame": (["infer", "short.npz"], "1 frames"),
    "unknown model": (["infer", "clips.npz", "--model=none"], "'none'"),
    "no objects": (["infer", "clips.npz", "--num-objects=0"], "num_objects is 0"),
    "too many objects": (["forecast", "clips.npz", "--num-objects=9"], "num_objects is 9"),
    "no horizon": (["forecast", "clips.npz", "--horizon=0"], "horizon is 0"),
    "more observed than frames": (
        ["forecast", "clips.npz", "--num-observed=99"],
        "num_observed is 99",
    ),
    "span of words": (["interpolate", "clips.npz", "--hide", "a:b"], "'a:b'"),
    "span backwards": (["interpolate", "clips.npz", "--hide", "6:3"], "'6:3'"),
    "span too long": (["interpolate", "clips.npz", "--hide", "3:99"], "'3:99'"),
    "span before the start": (["interpolate", "clips.npz", "--hide=-1"], "'-1'"),
    "nothing observed": (["interpolate", "clips.npz", "--hide", "0:12"], "no observed frame"),
    "no such folder for a table": (["infer", "clips.npz", "--out=none/x.csv"], "none/x.csv"),
    "no such folder for a gif": (
        ["infer", "clips.npz", "--out=x.csv", "--gif=none/x.gif"],
        "none/x.gif",
    ),
    "no clips": (["sample", "--num-clips=0"], "num_clips is 0"),
    "too many sampled objects": (["sample", "--num-objects=9"], "num_objects is 9"),
    "no clips to make": (["data", "--num-clips=0"], "num_clips"),
    "calibration of a shipped model in place": (["calibrate", "cannonballs-48"], "--out"),
    "calibration of a sprite model": (["calibrate", "cannonballs-structured"], "paper's family"),
    "reference of other clips": (["calibrate", "run"], "--reference"),
    "seed of training": (["evaluate", "run", "--seed=1"], "seed 1"),
    "clips without truth": (["evaluate", "run", "--data=bare.npz"], "truth"),
    "clips too short to score": (["evaluate", "run", "--data=brief.npz"], "5 frames"),
    "colour for a baseline": (["evaluate", "limit", "--clips=colour.npz"], "in colour"),
    "no such folder for scores": (["evaluate", "run", "--out=none/x.json"], "none/x.json"),
    "no such folder for times": (["bench", "--out=none/x.json"], "none/x.json"),
    "no such device": (["bench", "--device=cuda"], "device is cuda"),
    "neither new nor resumed": (["train", "--preset=smoke"], "--out"),
    "folder not empty": (["train", "--preset=smoke", "--out=run"], "not empty"),
    "nothing to resume": (["train", "--resume=none"], "none"),
    "no data": (["train", "--preset=smoke", "--data=none.npz", "--out=new"], "none.npz"),
    "data without counts": (["train", "--preset=smoke", "--data=bare.npz", "--out=new"], "bare"),
    "no iterations": (["train", "--preset=smoke", "--iterations=0", "--out=new"], "iterations"),
    "a preset that a family lacks": (
        ["train", "--family=structured", "--preset=paper", "--out=new"],
        "leave out --family",
    ),
    "teacher of other clips": (
        ["train", "--preset=taught", "--data=clips.npz", "--out=new"],
        "clips.npz --out TEACHER, and choose it by --teacher TEACHER",
    ),
    "teacher of other clips, dry": (
        ["train", "--preset=taught", "--data=clips.npz", "--dry-run"],
        "this run has frames of 16x16",
    ),
    "teacher of the paper's family": (
        ["train", "--preset=taught", "--data=clips.npz", "--teacher=run", "--out=new"],
        "paper family",
    ),
    "unknown teacher": (["train", "--preset=taught", "--teacher=none", "--out=new"], "'none'"),
    "teacher without distillation": (
        ["train", "--preset=smoke", "--teacher=cannonballs-structured", "--out=new"],
        "--preset paper-distilled",
    ),
    "unknown preset": (
        ["train", "--preset=none", "--out=new"],
        f"'none'; expected one of {', '.join(PRESETS)}",
    ),
    "no replicas": (["train", "--preset=smoke", "--replicas=0", "--out=new"], "replicas is 0"),
}


@pytest.fixture(scope="module")
def mistakes(world: Path) -> Path:
    """The world with files that cannot be used."""
    clips = motes.load_clips(world / "clips.npz")
    np.savez(world / "large.npz", frames=np.zeros((1, 4, 20, 20), np.uint8))
    np.savez(world / "short.npz", frames=np.zeros((1, 1, SIZE, SIZE), np.uint8))
    np.savez(world / "bare.npz", frames=clips.frames.numpy())
    brief = motes.cannonballs(2, (1,), 5, SIZE, seed=4)
    motes.save_clips(world / "brief.npz", brief)
    motes.save_clips(world / "colour.npz", worlds.make("colour", 1, 1, T, SIZE))
    (world / "broken.npz").write_bytes((world / "clips.npz").read_bytes()[:200])
    (world / "notes.txt").write_text("no video")
    return world


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("mistake", WRONG)
def test_bad_input_is_one_line_and_exit_code_two(
    mistake: str,
    mistakes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, expected = WRONG[mistake]
    asks = arguments[0] in (*QUERIES, "sample")
    if asks and not any(given.startswith("--model") for given in arguments):
        arguments = [*arguments, "--model=run"]
    monkeypatch.chdir(mistakes)
    before = listing(mistakes)
    capsys.readouterr()
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.startswith("motes: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert listing(mistakes) == before


def test_help_lists_every_command_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 88
    for title, group in cli.GROUPS.items():
        _, _, rest = shown.partition(f"\n{title}\n")
        listed = [line.split()[0] for line in rest.partition("\n\n")[0].splitlines()]
        assert listed == list(group)


@pytest.mark.parametrize("given", [[], ["inferr"]])
def test_a_missing_or_unknown_command_is_answered_with_the_list(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(given) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("motes: no command")
    assert printed.count("\n") == 1
    assert all(verb in printed for verb in cli.VERBS)


def test_a_number_that_is_none_is_refused_by_the_parser(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sample", "--num-clips=many"])
    assert ended.value.code == 2
    assert "many" in capsys.readouterr().err


def test_training_that_breaks_ends_with_one_line_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise FloatingPointError("training stopped: entropy is not finite at step 3")

    monkeypatch.setattr("motes.training.train.train", broken)
    assert cli.main(["train", "--preset=smoke", f"--out={tmp_path}/run"]) == 1
    assert capsys.readouterr().err == ("motes: training stopped: entropy is not finite at step 3\n")


def test_the_installed_command_speaks_and_returns_the_exit_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "motes", "infer", "none.npz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "none.npz" in ended.stderr


def test_a_gif_of_a_clip_is_asked_about_as_the_clip_itself(world: Path, tmp_path: Path) -> None:
    frames = motes.load_clips(world / "clips.npz").frames[:1]
    write_gif(tmp_path / "one.gif", frames[0].float())
    np.savez(tmp_path / "one.npz", frames=frames.numpy())
    for name in ("one.gif", "one.npz"):
        asked = ["infer", f"{tmp_path}/{name}", f"--model={world}/run", "--num-objects=1"]
        assert cli.main([*asked, f"--out={tmp_path}/{name}.csv"]) == 0
    gif, npz = (table(tmp_path / f"{name}.csv") for name in ("one.gif", "one.npz"))
    for name in ("frame", "particle", "x", "y", "sd_x", "sd_y", "cov_xy"):
        assert [row[name] for row in gif] == [row[name] for row in npz]


def test_the_scores_of_one_clip_have_no_standard_errors(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(world / "run"), "--num-clips=2", "--seed=4"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "forecast_rmse" in shown
    assert "±" not in shown  # one clip for each number of objects


# `motes` itself may not import what takes long; the process has no other modules.
LIGHT = """
import sys
from motes import cli
try:
    cli.main({arguments})
except SystemExit:
    pass
heavy = [name for name in ("torch", "numpy", "scipy", "matplotlib") if name in sys.modules]
print("heavy:", *heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["no-such-command"],
        *([verb, "--help"] for verb in cli.VERBS),
        ["infer", "clips.npz", "--no-such-option"],
        ["infer", "--tyro-print-completion", "bash"],
    ],
    ids=" ".join,
)
def test_help_versions_and_wrong_options_need_no_torch(arguments: list[str]) -> None:
    code = LIGHT.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "heavy:"
    if arguments == ["--version"]:
        assert re.fullmatch(r"motes \d+\.\d+\.\d+\n", done.stdout)


def test_public_names_are_imported_on_first_use() -> None:
    code = (
        "import sys, motes; before = 'torch' in sys.modules; from motes import *; "
        "print(before, infer.__module__, motes.data.__name__, 'torch' in sys.modules, dir(motes))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("False motes.queries motes.data True ['Answer'")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        motes.nothing  # noqa: B018


def test_law_prints_one_line_for_each_quantity(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "law.png"
    assert cli.main(["law", "cannonballs-structured", "--json", f"--out={picture}"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["terms"][0]["name"] == "acceleration"
    # The world's gravity in pixels, of which the shipped model is known to be within 5 %.
    assert record["terms"][0]["value"] == pytest.approx(0.0523, rel=0.05)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["law", "cannonballs-structured", "--fps=0"]) == 2


def test_the_seed_of_a_run_is_the_given_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--preset=paper-smoke", "--seed=7", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 7


def test_evaluate_fits_its_affine_map_to_training_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def score(predictor: object, clips: Clips, training: Clips, *more: object) -> None:
        given.append((clips, training))
        raise motes.InputError("enough")

    monkeypatch.setattr("motes.evaluation.evaluate.evaluate", score)
    assert cli.main(["evaluate", "cannonballs-48", "--num-clips=3", "--seed=12"]) == 2
    ((clips, training),) = given
    own_seed = read_config(find_model("cannonballs-48")).data.seed
    expected = [motes.cannonballs(count, seed=seed) for count, seed in ((3, 12), (90, own_seed))]
    for made, own in zip((clips, training), expected, strict=True):
        assert torch.equal(made.video.bits, own.video.bits)
