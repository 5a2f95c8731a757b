"""The page about an evaluation: self-contained, and true to its record."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from motes.cli import main
from motes.data import cannonballs, save_clips, worlds
from motes.models.layers.search import LayerSettings
from motes.models.model import build, save_model
from motes.output.evaluation_report import _comparable, _describe_error
from motes.output.plots import TRUTH, View
from motes.training.presets import PRESETS

SMOKE = PRESETS["paper-smoke"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its record and its page, with a limit of the same clips beside it."""
    here = tmp_path_factory.mktemp("scorecard")
    (here / "<b>tiny").mkdir()
    save_model(here / "<b>tiny", build(SMOKE), SMOKE)
    common = ["--num-clips", "6", "--seed", "5"]
    record, page = here / "tiny.json", here / "page.html"
    words = [
        str(here / "<b>tiny"),
        *common,
        "--out",
        str(record),
        "--baselines",
        str(here / "none"),
    ]
    assert main(["evaluate", *words]) == 0
    other = json.loads(record.read_text("utf-8"))
    (here / "results").mkdir()
    (here / "results" / "limit.json").write_text(json.dumps({**other, "model": "limit"}))
    words[-1] = str(here / "results")
    assert main(["evaluate", *words, "--report", str(page), "--json"]) == 0
    return here


def test_a_scorecard_refers_to_nothing_outside(folder: Path):
    page = (folder / "page.html").read_text("utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert len(sources) >= 4
    assert all(source.startswith(("data:image/png", "data:image/gif")) for source in sources)
    assert "<script" not in page
    assert "<b>tiny" not in page.replace("&lt;b&gt;tiny", "")
    assert str(folder) not in page


def test_a_scorecard_shows_the_scores_of_the_record_and_of_the_limit(folder: Path):
    page = (folder / "page.html").read_text("utf-8")
    record = json.loads((folder / "tiny.json").read_text("utf-8"))
    for column in record["by_count"].values():
        assert page.count(f">{column['forecast_loss']:.4f}<small>") >= 2
    assert "limit: true physics" in page
    for clip in record["worst_clips"]:
        assert f'id="clip-{clip}"' in page


def test_the_same_record_is_written_again(folder: Path, tmp_path: Path):
    words = [str(folder / "<b>tiny"), "--num-clips", "6", "--seed", "5", "--out"]
    assert main(["evaluate", *words, str(tmp_path / "again.json")]) == 0
    first, second = (
        json.loads(path.read_text("utf-8"))
        for path in (folder / "tiny.json", tmp_path / "again.json")
    )
    first.pop("environment")
    second.pop("environment")
    assert first == second


@pytest.mark.parametrize(
    "change", [{"test_seed": 6}, {"frame_size": [9, 9]}, {"by_count": {"1": {"clips": 3}}}]
)
def test_only_records_of_the_same_clips_stand_beside(folder: Path, change: dict[str, object]):
    record = json.loads((folder / "tiny.json").read_text("utf-8"))
    assert _comparable(record, {"limit": {**record, "model": "limit"}})
    assert not _comparable(record, {"limit": {**record, "model": "limit", **change}})


def test_a_baseline_has_no_scorecard(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", "limit", "--report", str(tmp_path / "page.html")]) == 2
    assert "baseline" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_baseline_is_scored_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "kalman.json"
    assert main(["evaluate", "kalman", "--num-clips", "3", "--out", str(out)]) == 0
    assert "forecast_rmse" in capsys.readouterr().out
    assert json.loads(out.read_text("utf-8"))["by_count"]


def test_a_baseline_learns_from_clips_as_large_and_as_full_as_those_it_is_scored_on(tmp_path: Path):
    clips, out = tmp_path / "clips.npz", tmp_path / "constant.json"
    save_clips(clips, cannonballs(3, 4, num_frames=12, size=20))
    words = ["constant-image", "--clips", str(clips), "--out", str(out)]
    assert main(["evaluate", *words]) == 0
    assert json.loads(out.read_text("utf-8"))["by_count"]["4"]["forecast_loss"] > 0


def test_a_model_of_colour_has_a_scorecard_and_needs_clips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    base = PRESETS["sprites-smoke"]
    config = replace(
        base,
        data=replace(base.data, path="clips.npz", channels=3, num_objects=(1,)),
        model=LayerSettings(num_sprite_classes=2, sprite_radius=2),
    )
    (tmp_path / "run").mkdir()
    save_model(tmp_path / "run", build(config), config)
    save_clips(tmp_path / "clips.npz", worlds.make("colour", 2, 1, 12, 16))
    words = [str(tmp_path / "run"), "--out", str(tmp_path / "scores.json")]
    assert main(["evaluate", *words]) == 2
    assert "--data" in capsys.readouterr().err
    words += ["--clips", str(tmp_path / "clips.npz"), "--report", str(tmp_path / "page.html")]
    assert main(["evaluate", *words]) == 0
    assert json.loads((tmp_path / "scores.json").read_text("utf-8"))["frame_size"] == [16, 16]
    assert 'id="clip-0"' in (tmp_path / "page.html").read_text("utf-8")


def test_a_clip_that_went_wrong_is_told_in_words():
    still = np.zeros((2, 3, 2), np.float32)
    still[1, :, 0] = 9.0
    certain, frames = np.zeros((2, 3, 2, 2), np.float32), np.zeros((3, 8, 8), np.float32)

    def view(pixels: np.ndarray) -> View:
        seen = np.ones(3, dtype=bool)
        found = np.ones((2, 3), dtype=bool)
        return View(TRUTH, pixels, certain, pixels, certain, seen, found, frames, frames)

    swapped, lost = still.copy(), still.copy()
    swapped[:, 2] = still[::-1, 2]
    lost[1, 1, 1] = 5.0
    told = _describe_error(view(still), view(swapped))
    assert told == (
        "Largest error: 9.0 pixels, in frame 3. "
        "Another estimate is there: two objects were confused."
    )
    assert _describe_error(view(still), view(lost)) == "Largest error: 5.0 pixels, in frame 2."
