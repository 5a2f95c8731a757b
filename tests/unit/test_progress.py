"""What a terminal shows of training; plain lines are seen in the tests of the command line."""

import sys

import pytest

from motes.verbs.progress import training_bar


def test_a_terminal_shows_how_far_lessons_and_steps_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    terms = dict.fromkeys(("bound", "reconstruction", "entropy", "log_prior"), -1.0)
    step = {"step": 30, "of": 60, "kl_weight": 1.0, "blur": 0.0, "iterations_per_second": 7.0}
    with training_bar(None) as report:
        for done in (0, 200, 500):
            lessons = {"lessons": done, "of": 500, "clips_per_second": done / 4}
            report({"folder": "runs/new", **lessons})
        report({"folder": "runs/new", **step, **terms})
    shown = capsys.readouterr().err
    for row in (
        ("lessons for runs/new", "200/500", "50.0 clips/s"),
        ("lessons for runs/new", "500/500", "125.0 clips/s"),
        ("runs/new", "30/60", "7.0 it/s", "bound -1.0"),
    ):
        assert any(all(part in line for part in row) for line in shown.splitlines()), row
