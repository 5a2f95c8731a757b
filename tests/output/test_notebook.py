"""Displays of notebooks: answers, models, runs, progress."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import motes
from motes.core.errors import InputError
from motes.output.notebook import RunFolder, curve, training_progress
from tests.tiny import tiny_frames, tiny_model, tiny_sprite_model

OUTSIDE = re.compile(r"(?:src|href)=\"(?!data:)|<script|https?:")


def pictures(page: str) -> list[Image.Image]:
    found = re.findall(r"data:image/\w+;base64,([\w+/=]+)", page)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


@pytest.mark.parametrize("model", [tiny_model(), tiny_sprite_model()], ids=["paper", "sprites"])
def test_answers_and_models_display_themselves(model):
    answer = motes.infer(model, tiny_frames(2, 5), torch.tensor([1, 3]))
    page = answer._repr_html_()
    (clip,) = pictures(page)
    assert clip.n_frames == 5
    assert page.count("<tr>") == 1 + 6
    assert "and 14 rows more" in page
    assert not OUTSIDE.search(page)
    page = model._repr_html_()
    (picture,) = pictures(page)
    assert picture.size[0] / picture.size[1] == pytest.approx(8 / 6)
    assert "6x8 pixels" in page
    assert not OUTSIDE.search(page)


def test_an_undetected_object_is_dashed():
    """Fewer coloured pixels than with a whole ring."""
    from motes.queries.display import animation

    model = tiny_sprite_model()
    answer = motes.infer(model, tiny_frames(1, 3), 1)
    rings = []
    for flag in (True, False):
        object.__setattr__(answer, "found", torch.full_like(answer.found, flag))
        first = Image.open(io.BytesIO(animation(answer))).convert("RGB")
        levels = np.asarray(first).astype(int)
        rings.append(int((levels[..., 2] - levels[..., 0] > 60).sum()))
    assert 0 < rings[1] < 0.8 * rings[0]


def test_a_run_displays_its_curve(tmp_path):
    with pytest.raises(InputError, match="expected a run folder"):
        RunFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    lines = [{"step": 10 * n, "bound": -100.0 / n} for n in range(1, 6)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = RunFolder(tmp_path)._repr_html_()
    assert "step 50, bound -20.0 nats per clip" in page
    (points,) = re.findall(r'points="([^"]*)"', page)
    heights = [float(point.partition(",")[2]) for point in points.split()]
    assert heights == sorted(heights, reverse=True)  # the bound rises
    assert curve([(1, 2.0)]) == ""


def test_progress_is_a_bar_that_moves():
    shown: list[str] = []
    report = training_progress(shown.append)
    report({"fit": 1})
    for step in (10, 20):
        line = {"step": step, "of": 40, "bound": -5.0 - step, "iterations_per_second": 2.0}
        report(line)
    assert len(shown) == 2
    assert '<progress max="40" value="20">' in shown[1]
    assert "step 20 of 40, 10 s left, bound -25.0" in shown[1]


def test_progress_without_a_notebook_is_logged(caplog):
    caplog.set_level("INFO", logger="motes")
    line = {"step": 1, "of": 4, "bound": -5.0, "iterations_per_second": 1.0}
    training_progress()(line)
    assert caplog.messages == ["step 1 of 4, 3 s left, bound -5.0"]
