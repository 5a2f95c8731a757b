"""Answers and weights of version 0.1, recorded by it, against those of this version.

`tests/golden` holds answers of the shipped models and of a small layered model, the final weights
of short runs, and the folders of these runs as they were half-way. Where PyTorch and the
instruction set are those of the recording, every operation is rounded alike and weights must be
equal; elsewhere sums are added in another order, and training amplifies the differences.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import motes
from motes.config import RunConfig
from motes.data import Clips, worlds
from motes.models.checkpoint import load, read_config, rename_old_tensors, save_model
from motes.models.model import Model, build
from motes.queries import Answer
from motes.training.presets import PRESETS
from motes.training.train import resume, train

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = ("2.13.0+cpu", "AVX2")
SAME_ROUNDING = (torch.__version__, torch.backends.cpu.get_cpu_capability()) == RECORDED
ANSWER_TOLERANCE = 1e-6 if SAME_ROUNDING else 1e-3  # of the largest value of a field
WEIGHT_TOLERANCE = 0.0 if SAME_ROUNDING else 1e-2
FIELDS = (
    *("positions", "covariances", "velocities", "pixels", "pixel_covariances"),
    *("pixel_velocities", "path_pixels", "path_pixel_covariances", "component_probabilities"),
    *("component", "found", "num_objects", "count_probabilities"),
)
RUNS = ["paper", "sprites", "distilled", "sprites-occluded"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over several threads are added in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return dict(arrays)


def recorded_weights(run: str) -> dict[str, torch.Tensor]:
    return rename_old_tensors(
        {n: torch.from_numpy(v) for n, v in recorded(f"weights_{run}").items()}
    )


def layer_clips() -> Clips:
    return worlds.make("pictures", 40, num_frames=12, size=24, seed=5)


def arrays_of(query: str, answer: Answer) -> dict[str, np.ndarray]:
    """Return the recorded part of an answer: all fields, and one frame of the rendered ones."""
    found = {f"{query}/{name}": getattr(answer, name) for name in FIELDS}
    for name in ("frames", "mean_frames"):
        found[f"{query}/{name}"] = getattr(answer, name)[:, ::7][:, -1:]
    return {name: value.numpy() for name, value in found.items() if value is not None}


def answers_of(model: Model, clips: Clips) -> dict[str, np.ndarray]:
    frames, counts = clips.frames.float(), clips.num_objects
    time = torch.arange(frames.shape[1])
    ends = (time < 5) | (time >= len(time) - 5)
    return {
        **arrays_of("infer", motes.infer(model, frames, counts)),
        **arrays_of("forecast", motes.forecast(model, frames[:, :5], counts, horizon=10)),
        **arrays_of("interpolate", motes.interpolate(model, frames, ends, counts)),
        **arrays_of("count", motes.infer(model, frames[:2, :6])),
        **arrays_of("sample", motes.sample(model, 2, 2, 8, seed=3)),
    }


def assert_same_answers(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind in "bi":
            assert np.array_equal(found[name], value), name
            continue
        limit = ANSWER_TOLERANCE * max(float(np.nanmax(np.abs(value), initial=0.0)), 1e-30)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        limit = WEIGHT_TOLERANCE * max(float(value.abs().max()), 1.0)
        torch.testing.assert_close(found[name], value, rtol=0, atol=limit, msg=name)


@pytest.mark.parametrize("name", ["cannonballs-48-distilled", "cannonballs-structured"])
def test_shipped_models_answer_as_in_version_0_1(name: str) -> None:
    clips = motes.cannonballs(num_clips=4, num_objects=(1, 2, 3), num_frames=20, size=48, seed=99)
    assert_same_answers(answers_of(motes.load(name), clips), recorded(f"answers_{name}"))


@pytest.mark.slow
def test_a_layered_model_answers_as_in_version_0_1() -> None:
    model = build(read_config(GOLDEN / "run_folders" / "layers")).eval()
    model.load_state_dict(recorded_weights("layers"))
    assert_same_answers(answers_of(model, layer_clips()[:3]), recorded("answers_layers"))


def run_config(name: str, folder: Path) -> RunConfig:
    """Return the configuration of a recorded run, written in terms of this version's presets."""
    smoke = PRESETS["paper-smoke"]
    if name == "paper":
        return smoke
    teacher = build(PRESETS["sprites-smoke"])
    teacher.load_state_dict(recorded_weights("sprites"))
    (folder / "sprites").mkdir()
    save_model(folder / "sprites", teacher, PRESETS["sprites-smoke"])
    schedule = replace(smoke.schedule, distillation_steps=10)
    return replace(smoke, teacher=str(folder / "sprites"), schedule=schedule)


# Other families begin with restarts, which take fewer steps than in version 0.1: their runs are
# continued from half-way, below.
@pytest.mark.parametrize("name", ["paper", "distilled"])
def test_training_ends_with_the_weights_of_version_0_1(name: str, tmp_path: Path) -> None:
    assert train(run_config(name, tmp_path), tmp_path / "run").finished
    found = load(tmp_path / "run").state_dict()
    assert_same_weights(found, recorded_weights(name))


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a run folder of version 0.1, half-way, with its clips at their path."""
    folder = tmp_path / "run"
    shutil.copytree(GOLDEN / "run_folders" / request.param, folder)
    if request.param == "layers":
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config["data"]["path"] = str(tmp_path / "layers.npz")
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        motes.save_clips(tmp_path / "layers.npz", layer_clips())
    return folder


@pytest.mark.parametrize(("copied", "name"), [(run, run) for run in RUNS], indirect=["copied"])
def test_run_folders_of_version_0_1_load_and_resume(copied: Path, name: str) -> None:
    check_run_folder(copied, name)


@pytest.mark.slow
@pytest.mark.parametrize("copied", ["layers"], indirect=True)
def test_run_folders_of_version_0_1_load_and_resume_with_layers(copied: Path) -> None:
    check_run_folder(copied, "layers")


def exact_map(
    weights: dict[str, torch.Tensor], found: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the map to pixels if it is that of the renderer: 3 px a unit, from sprite's centroid.

    Computed from the recorded sprite, whose cells are a quarter of a pixel, in frames of 16 pixels.
    """
    depth = weights["renderer.root_depth"].double().square()
    lit = 1 - (-depth).exp()
    axis = (torch.arange(len(lit)) - (len(lit) - 1) / 2).double() / 4
    centre = torch.stack([lit.sum(0) @ axis, lit.sum(1) @ axis]) / lit.sum() + 7.5
    torch.testing.assert_close(found["pixel_matrix"], 3 * torch.eye(2))
    torch.testing.assert_close(found["pixel_offset"].double(), centre, rtol=0, atol=1e-5)
    return {name: found[name] for name in ("pixel_matrix", "pixel_offset")}


def check_run_folder(folder: Path, name: str) -> None:
    config, model = read_config(folder), load(folder)
    blank = torch.zeros(1, 4, config.data.height, config.data.width)
    assert motes.infer(model, blank, 1).positions.shape == (1, 1, 4, 2)
    end = config.schedule.iterations
    before = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    assert {line["step"] for line in before} <= set(range(1, end // 2 + 1))
    outcome = resume(folder)
    assert (outcome.finished, outcome.step) == (True, end)
    found, expected = load(folder).state_dict(), recorded_weights(name)
    if name == "sprites":  # version 0.1 fitted the map to centroids, which the frame's edge moved
        expected |= exact_map(expected, found)
    assert_same_weights(found, expected)
    after = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    assert after[: len(before)] == before
    assert after[-1]["step"] == end
