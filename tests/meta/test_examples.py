"""Every example runs and says what it should; an example that is not listed here fails."""

import re
import runpy
from pathlib import Path

import pytest

import motes
from motes.config import RunConfig
from motes.models.checkpoint import save_model
from motes.models.model import build
from motes.models.paper import PaperSettings
from motes.training.presets import PRESETS

FOLDER = Path(__file__).parents[2] / "examples"
# Each with its arguments and with words that must stand in what it prints.
EXAMPLES = {
    "01_filter_a_trajectory.py": ([], "smoothed y"),
    "02_make_clips.py": (["clips"], "moon.npz"),
    "03_train_a_tiny_model.py": (["run"], "finished at step 20"),
    "04_query_a_video.py": (["model"], "interpolate"),
}
MAX_LINES = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place to run in, but for an untrained model in the folder `model`."""
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", build(PRESETS["paper-smoke"]), PRESETS["paper-smoke"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_listed():
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(EXAMPLES)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments, words = EXAMPLES[name]
    monkeypatch.setattr("sys.argv", [name, *arguments])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short_and_say_how_to_run_them(name: str):
    text = (FOLDER / name).read_text("utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert f"Usage: python examples/{name}" in text


def test_the_readmes_python_does_what_its_comments_say(monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```python\n(.*?)```", (FOLDER.parent / "README.md").read_text(), re.S)
    small = PaperSettings(inference_state_size=8, renderer_state_size=8)
    untrained = build(RunConfig(model=small))
    monkeypatch.setattr(motes, "load", lambda name: untrained)
    names: dict[str, motes.Answer] = {}
    exec(block, names)
    promised = re.findall(r"^answer\.(\w+)  # \[([\d, ]+)\]", block, re.MULTILINE)
    assert len(promised) == 3
    for field, shape in promised:
        assert ", ".join(map(str, getattr(names["answer"], field).shape)) == shape
    assert names["filled"].observed[0].sum() == 10
    assert names["found"].count_probabilities is not None
    assert names["samples"].pixels.shape == (8, 3, 30, 2)
