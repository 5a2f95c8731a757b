"""Training progress on a terminal; test_commands.py covers plain lines."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from motes.cli.terminal import training_bar


def test_a_terminal_shows_the_progress_of_pseudo_labels_and_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    terms = dict.fromkeys(("bound", "reconstruction", "entropy", "log_prior"), -1.0)
    step = {"step": 30, "of": 60, "kl_weight": 1.0, "blur": 0.0, "iterations_per_second": 7.0}
    with training_bar(None) as report:
        for done in (0, 200, 500):
            labels = {"pseudo_labels": done, "of": 500, "clips_per_second": done / 4}
            report({"folder": "runs/new", **labels})
        report({"folder": "runs/new", **step, **terms})
    shown = capsys.readouterr().err
    for row in (
        ("pseudo-labels for runs/new", "200/500", "50.0 clips/s"),
        ("pseudo-labels for runs/new", "500/500", "125.0 clips/s"),
        ("runs/new", "30/60", "7.0 it/s", "bound -1.0"),
    ):
        assert any(all(part in line for part in row) for line in shown.splitlines()), row


class Writer:
    """Stands in for TensorBoard's, which makes its folder at once."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        (self.folder / "closed").touch()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        with (self.folder / "numbers").open("a") as file:
            file.write(f"{name} {value} {step}\n")


def test_events_begin_with_the_run_and_are_closed_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    line = {"folder": "new", "step": 3, "of": 6, "rolled_back": 1, "why": "NaN", "blur": 0.5}
    events = tmp_path / "new" / "events"
    with contextlib.suppress(FloatingPointError), training_bar(tmp_path / "new") as report:
        assert not events.parent.exists()
        report(line)
        report(line)
        assert not (events / "closed").exists()
        raise FloatingPointError
    assert (events / "closed").exists()
    assert (events / "numbers").read_text() == 2 * "blur 0.5 3\n"
