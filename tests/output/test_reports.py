"""Reports: self-contained, complete, true to their record, and safe whatever they contain."""

import base64
import dataclasses
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from motes.cli import main
from motes.data import cannonballs, save_clips, worlds
from motes.evaluation.labels import SCORES
from motes.models.checkpoint import save_model
from motes.models.layers.search import LayerSettings
from motes.models.model import Model, build
from motes.output import demo_report as report
from motes.output.demo_report import CAPTIONS, LIMITS, SHOWN
from motes.output.evaluation_report import _comparable, _describe_error
from motes.output.plots import TRUTH, View
from motes.training.presets import PRESETS

SMOKE = PRESETS["paper-smoke"]
HOSTILE = "</title><script>alert(1)</script>\"' onerror=x &amp; <img src=//host>"
PNG, GIF = b"\x89PNG\r\n\x1a\nnot a real one ", b"GIF89a not a real one "
ALONE = {"meta", "img"}  # elements without an end


class Reader(HTMLParser):
    """Collects elements, attributes and text, and checks that elements nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def findings(**changes) -> report.Findings:
    scores = {name: 0.123 + place / 7 for place, name in enumerate(SHOWN)}
    by_count = {str(count): {"clips": 20 + count, **scores} for count in (1, 2, 3)}
    told = report.Findings(
        model="cannonballs-48",
        seed=4321,
        frame_size=(48, 48),
        num_frames=30,
        scores={"by_count": by_count, "force_px_per_frame2": [0.0012, 0.0519]},
        true_force=(0.0, 0.0523),
        initial_states=[report.InitialState("learned 1", 0.5, (13.2, 23.3), (0.61, -0.65))],
        pixel_map_residual=0.17,
        figures={name: (GIF if name == "animation" else PNG) + name.encode() for name in CAPTIONS},
        environment={"python": "3.11", "processor": "a CPU"},
        seconds=41.6,
    )
    return dataclasses.replace(told, **changes)


def text(page: str) -> str:
    return " ".join(Reader(page).text)


def test_a_report_refers_to_nothing_outside():
    page = report.demo_page(findings())
    for tag, attributes in Reader(page).elements:
        assert tag not in ("script", "link", "iframe", "object", "base")
        for name in ("src", "href", "srcset", "style", "action"):
            assert attributes.get(name, "data:").startswith("data:")
    words = re.sub(r"data:image/\w+;base64,[\w+/=]+", "", page)
    assert not re.search(r"https?:|//|url\(|@import", words)


def test_every_picture_stands_in_the_page_byte_for_byte():
    told = findings()
    figures = iter(Reader(report.demo_page(told)).elements)
    found = {}
    for tag, attributes in figures:
        if tag == "figure":
            name = attributes["id"]
        if tag == "img":
            kind, data = attributes["src"].split(",", 1)
            assert kind == f"data:image/{'gif' if name == 'animation' else 'png'};base64"
            assert attributes["alt"]
            found[name] = base64.b64decode(data, validate=True)
    assert found == {name: data for name, data in told.figures.items() if name != "training"}


LEARNED = report.TrainingSummary(
    num_clips=1_234, num_steps=168, seconds=71.4, first_bound=-987.6, held_out_bound=-182.3
)


def test_a_model_that_was_learned_just_now_is_told_so_in_figures():
    page = report.demo_page(findings(training=LEARNED))
    words = text(page)
    for told in ("1,234", "168", "71 seconds", "-988", "-182", "on this machine", "from scratch"):
        assert told in words
        assert told not in text(report.demo_page(findings()))
    ids = [attributes.get("id") for tag, attributes in Reader(page).elements if tag == "figure"]
    assert sorted(ids) == sorted(CAPTIONS)


def test_elements_nest_and_all_are_closed():
    assert Reader(report.demo_page(findings())).open == []
    assert Reader(report.demo_page(findings(training=LEARNED))).open == []


@pytest.mark.parametrize(
    "changes",
    [
        {"model": HOSTILE},
        {"environment": {HOSTILE: HOSTILE}},
        {"initial_states": [report.InitialState(HOSTILE, 0.5, (1.0, 1.0), (0.0, 0.0))]},
    ],
    ids=["model", "environment", "initial states"],
)
def test_hostile_names_stay_text(changes):
    plain, hostile = (Reader(report.demo_page(findings(**c))) for c in ({}, changes))
    tags = {tag for tag, _ in plain.elements}
    assert {tag for tag, _ in hostile.elements} == tags
    assert HOSTILE in "".join(hostile.text)
    assert hostile.open == []


def test_every_score_of_every_count_is_told():
    told = findings()
    words = text(report.demo_page(told))
    for column in told.scores["by_count"].values():
        for name in SHOWN:
            score = SCORES[name]
            assert f"{column[name]:{score.form}}" in words
            assert score.label in words
            assert score.meaning in words


def test_limits_stand_beside_scores_of_the_same_clips_only():
    assert report.demo_limit(findings(), "forecast_rmse", "2") == LIMITS["forecast_rmse"][1]
    assert "limit 2.12" in text(report.demo_page(findings()))
    for changes in ({"frame_size": (32, 32)}, {"num_frames": 50}):
        other = findings(**changes)
        assert report.demo_limit(other, "forecast_rmse", "2") is None
        assert "limit 2.12" not in text(report.demo_page(other))
        assert "Limits are known for 48x48 clips" in text(report.demo_page(other))
    assert report.demo_limit(findings(), "forecast_rmse", "4") is None


def test_error_bars_have_an_ideal_for_any_clips():
    assert report.demo_limit(findings(frame_size=(16, 16)), "forecast_coverage90", "7") == 0.9


def test_the_law_stands_beside_the_true_one():
    words = text(report.demo_page(findings()))
    for number in ("+0.0519", "+0.0523", "+0.0012", "13.2", "-0.65", "0.17 pixels"):
        assert number in words


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # No number of objects explains frames to an untrained model; it would try up to 16.
    monkeypatch.setattr(Model, "max_searchable_objects", 1)
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


def test_a_record_does_not_stand_beside_itself(folder: Path):
    record = json.loads((folder / "tiny.json").read_text("utf-8"))
    assert list(_comparable(record, {record["model"]: record, "limit": record})) == ["limit"]
