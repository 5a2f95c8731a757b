"""The page: self-contained, whole, and safe whatever it is told."""

import base64
import dataclasses
import re
from html.parser import HTMLParser

import pytest

from motes.evaluation.labels import SCORES
from motes.output import demo_report as report
from motes.output.demo_report import CAPTIONS, LIMITS, SHOWN

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
    page = report.page(findings())
    for tag, attributes in Reader(page).elements:
        assert tag not in ("script", "link", "iframe", "object", "base")
        for name in ("src", "href", "srcset", "style", "action"):
            assert attributes.get(name, "data:").startswith("data:")
    words = re.sub(r"data:image/\w+;base64,[\w+/=]+", "", page)
    assert not re.search(r"https?:|//|url\(|@import", words)


def test_every_picture_stands_in_the_page_byte_for_byte():
    told = findings()
    figures = iter(Reader(report.page(told)).elements)
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
    page = report.page(findings(training=LEARNED))
    words = text(page)
    for told in ("1,234", "168", "71 seconds", "-988", "-182", "on this machine", "from scratch"):
        assert told in words
        assert told not in text(report.page(findings()))
    ids = [attributes.get("id") for tag, attributes in Reader(page).elements if tag == "figure"]
    assert sorted(ids) == sorted(CAPTIONS)


def test_elements_nest_and_all_are_closed():
    assert Reader(report.page(findings())).open == []
    assert Reader(report.page(findings(training=LEARNED))).open == []


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
    plain, hostile = (Reader(report.page(findings(**c))) for c in ({}, changes))
    tags = {tag for tag, _ in plain.elements}
    assert {tag for tag, _ in hostile.elements} == tags
    assert HOSTILE in "".join(hostile.text)
    assert hostile.open == []


def test_every_score_of_every_count_is_told():
    told = findings()
    words = text(report.page(told))
    for column in told.scores["by_count"].values():
        for name in SHOWN:
            score = SCORES[name]
            assert f"{column[name]:{score.form}}" in words
            assert score.label in words
            assert score.meaning in words


def test_limits_stand_beside_scores_of_the_same_clips_only():
    assert report.limit(findings(), "forecast_rmse", "2") == LIMITS["forecast_rmse"][1]
    assert "limit 2.28" in text(report.page(findings()))
    for changes in ({"frame_size": (32, 32)}, {"num_frames": 50}):
        other = findings(**changes)
        assert report.limit(other, "forecast_rmse", "2") is None
        assert "limit 2.28" not in text(report.page(other))
        assert "Limits are known for 48x48 clips" in text(report.page(other))
    assert report.limit(findings(), "forecast_rmse", "4") is None


def test_error_bars_have_an_ideal_for_any_clips():
    assert report.limit(findings(frame_size=(16, 16)), "forecast_coverage90", "7") == 0.9


def test_the_law_stands_beside_the_true_one():
    words = text(report.page(findings()))
    for number in ("+0.0519", "+0.0523", "+0.0012", "13.2", "-0.65", "0.17 pixels"):
        assert number in words
