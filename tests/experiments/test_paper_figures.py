"""Figures come from what is stored, and from nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import motes
from experiments.paper_figures.__main__ import main
from experiments.paper_figures.figures import FIGURES
from experiments.paper_figures.stored import Stored
from experiments.paper_figures.stored_examples import collect, first_swap, save_arrays
from motes.core.errors import InputError
from motes.data import World
from motes.evaluation.evaluate import query_masks
from motes.output.plots import INFERRED, TRUTH, pdf, png
from tiny import tiny_config, tiny_model


@pytest.fixture(scope="module")
def stored() -> Stored:
    return Stored("cannonballs-48")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_without_a_model(
    name: str, stored: Stored, monkeypatch: pytest.MonkeyPatch
):
    def no_model(*arguments: object, **options: object) -> None:
        raise AssertionError("a figure asked for a model")

    monkeypatch.setattr("motes.models.checkpoint.load_with_config", no_model)
    figure = FIGURES[name](stored)
    assert sum(len(axis.get_children()) for axis in figure.axes) > 10
    assert len(png(figure)) > 3_000


@pytest.mark.parametrize("name", ["3", "6", "8", "9", "10", "12", "13"])
def test_figures_say_which_networks_they_show(name: str, stored: Stored):
    assert "from scratch" in FIGURES[name](stored).get_supxlabel()


def test_blue_is_the_mean_of_q_and_black_what_was_drawn(stored: Stored):
    axis, clip = FIGURES["8"](stored).axes[0], stored.with_count(2)[0]
    lines = {
        line.get_color(): line.get_xydata() for line in axis.lines if len(line.get_xdata()) > 1
    }
    blue = stored.examples["infer_pixels"][clip, 1]
    assert stored.clips.positions is not None
    black = stored.clips.positions[clip, 1].numpy()
    np.testing.assert_allclose(lines[INFERRED.colour], blue)
    np.testing.assert_allclose(lines[TRUTH.colour], black)


def test_a_figure_is_the_same_file_whenever_it_is_drawn(stored: Stored):
    first, second = (FIGURES["1"](stored) for _ in range(2))
    assert png(first) == png(second)
    assert pdf(first) == pdf(second)
    assert pdf(first).startswith(b"%PDF")


def test_the_command_writes_both_kinds_of_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--out", str(tmp_path), "--only", "2", "4"]) == 0
    assert "drew 2 figures" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"figure-02.png", "figure-02.pdf", "figure-04.png", "figure-04.pdf"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "99"], "99"),
        (["--records", "nowhere"], "--out nowhere/cannonballs-48.json"),
        (
            ["--records", "nowhere", "--only", "seeds"],
            "experiments.paper_training.watch_training",
        ),
    ],
)
def test_what_is_not_there_is_told_in_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--out", str(tmp_path), *arguments]) == 2
    assert named in capsys.readouterr().err.strip().splitlines()[-1]


def test_the_example_clips_are_those_that_were_asked_about(stored: Stored):
    """Inferred positions lie on the clips that the seed makes again, mostly within two pixels."""
    assert stored.clips.positions is not None
    told = stored.examples["infer_pixels"]
    true = stored.clips.positions.numpy()
    distance = np.linalg.norm(told[:, None] - true[:, :, None], axis=-1)
    nearest = np.nan_to_num(distance, nan=np.inf).min(axis=2)
    assert np.median(nearest[np.isfinite(nearest)]) < 2


def test_what_is_collected_is_what_the_questions_answer(tmp_path: Path):
    model, config = tiny_model(), tiny_config()
    size = (config.data.height, config.data.width)
    clips = motes.cannonballs(4, (1, 2), 12, World(12, 8).width, seed=5)
    model.image_size = size  # of the networks; frames are cut to it
    frames = clips.frames[:, :, : size[0], : size[1]]
    cut = motes.Clips(
        motes.data.clips.pack(frames), clips.num_objects, clips.positions, clips.clean
    )
    found = collect(model, cut)
    answer = motes.forecast(model, frames[:, :5].float(), clips.num_objects, horizon=7)
    np.testing.assert_allclose(
        found["forecast_pixels"], answer.pixels.numpy(), rtol=2e-3, atol=1e-2
    )
    levels = found["forecast_mean_frames"].astype(np.float32) / 255
    np.testing.assert_allclose(levels, answer.mean_frames.numpy(), atol=0.5 / 255 + 1e-6)
    assert found["grid_tiles"].shape == (9, 9, *size)
    save_arrays(tmp_path / "a.npz", found)
    with np.load(tmp_path / "a.npz") as file:
        assert set(file.files) == set(found)


def test_the_gap_is_the_papers():
    assert query_masks(30)["interpolation"].nonzero()[:, 0].tolist() == [*range(5), *range(25, 30)]


def test_the_clip_with_a_swap_is_found():
    true = torch.randn(3, 2, 10, 2, generator=torch.Generator().manual_seed(0)).numpy() * 5
    told = true.copy()
    told[1, :, 5:] = told[1, ::-1, 5:]
    assert first_swap(told, true) == 1


def test_a_record_of_a_file_has_no_examples(tmp_path: Path):
    (tmp_path / "x.json").write_text(
        json.dumps(
            {"test_seed": None, "frame_size": [8, 8], "num_frames": 3, "by_count": {"1": {}}}
        )
    )
    save_arrays(tmp_path / "x.npz", {"infer_pixels": np.zeros((1, 1, 3, 2))})
    with pytest.raises(InputError, match="seed"):
        _ = Stored("x", tmp_path).clips


def test_a_damaged_record_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "training.json").write_text("{")
    words = ["--records", str(tmp_path), "--only", "seeds", "--out", str(tmp_path / "drawn")]
    assert main(words) == 2
    assert "training.json is no complete record" in capsys.readouterr().err
