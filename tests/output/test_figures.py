"""Figures of a model, drawn from new clips in any directory."""

import json

import pytest

import motes
from motes.cli import main
from motes.core.errors import InputError
from motes.models.checkpoint import save_model
from motes.models.model import build
from motes.output.figures import FIGURES, figures_of
from motes.training.presets import PRESETS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An untrained model: figures must not depend on its quality."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    save_model(folder, build(PRESETS["paper-smoke"]), PRESETS["paper-smoke"])
    return folder


def test_every_figure_is_written_twice(run, tmp_path):
    clips = motes.cannonballs(4, (1, 2), 16, 16, seed=3)
    done = []
    names = figures_of(motes.load(run), clips, tmp_path / "figures", progress=done.append)
    assert names == list(FIGURES)
    assert done == list(range(1, len(FIGURES) + 1))
    for name in names:
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_command_works_in_an_empty_directory(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(run), "--num-clips", "3", "--only", "strip", "horizon", "--json"]
    assert main(["figures", *words]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == ["strip", "horizon"]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"strip.png", "strip.pdf", "horizon.png", "horizon.pdf"}


def test_unknown_figures_and_clips_without_truth_are_named(run, tmp_path):
    model, clips = motes.load(run), motes.cannonballs(2, 1, 16, 16)
    with pytest.raises(InputError, match="'99'; choose from strip"):
        figures_of(model, clips, tmp_path, only=["99"])
    with pytest.raises(InputError, match="no truth"):
        figures_of(model, motes.Clips(clips.video), tmp_path)
    assert not list(tmp_path.iterdir())
