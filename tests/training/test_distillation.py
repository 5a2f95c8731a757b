"""Pseudo-labels of a teacher, compatible teachers, and the change to the bound."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from motes.config import RunConfig, ScheduleConfig
from motes.core.errors import InputError
from motes.data import cannonballs, save_clips
from motes.models.checkpoint import load, read_config, read_tensors, save_model
from motes.models.layers.search import LayerSettings
from motes.models.model import build
from motes.models.protocols import GaussianPosterior
from motes.models.sprites.search import SpriteSettings
from motes.training import distillation
from motes.training import train as training
from motes.training.distillation import (
    distillation_terms,
    find_teacher,
    infer_pseudo_labels,
    starting_order,
    with_teacher,
)
from motes.training.inputs import Dataset, make_dataset
from motes.training.step import Trainer
from motes.training.train import Run, begin_run, resume, train
from oracles import log_density, one_model
from tiny import HEIGHT, MAX_OBJECTS, WIDTH, tiny_config, tiny_frames, tiny_model

CPU = torch.device("cpu")
DISTILLED = 3


def distilled_config(folder: Path) -> RunConfig:
    """Return a run whose first three steps are distillation from a sprite model in `folder`."""
    config = tiny_config(
        teacher=str(folder / "teacher"),
        schedule=ScheduleConfig(iterations=8, frozen_dynamics=4, distillation_steps=DISTILLED),
        checkpoint_every=2,
    )
    its = replace(config, teacher=None, seed=5, model=SpriteSettings())
    (folder / "teacher").mkdir()
    save_model(folder / "teacher", build(its), its)
    return config


def dataset_with_pseudo_labels(config: RunConfig) -> Dataset:
    assert config.teacher is not None
    dataset = make_dataset(config, CPU)
    return dataset._replace(training=infer_pseudo_labels(load(config.teacher), dataset.training))


def test_distillation_is_three_densities_by_naive_loops(generator: torch.Generator) -> None:
    model, frames, counts = tiny_model(), tiny_frames(2, 4), torch.tensor([3, 1])
    shape = (2, MAX_OBJECTS, 4, 2)
    means, noise = (torch.randn(shape, generator=generator) for _ in range(2))
    labels = GaussianPosterior(means, torch.rand(shape, generator=generator) + 0.1)
    terms = distillation_terms(model, labels, frames, counts, noise)
    positions = labels.means + labels.scales * noise
    with torch.no_grad():
        said = model.inference(frames, counts)
        white = model.renderer(positions, model.present(counts)).double().sigmoid()
        weights, components = model.dynamics.log_weights().exp(), model.dynamics.components()
    everything = np.ones(4, dtype=bool)
    for b, count in enumerate(counts.tolist()):
        picture, density, prior = 0.0, 0.0, 0.0
        for t, i, j in np.ndindex(4, HEIGHT, WIDTH):
            p = float(white[b, t, i, j])
            picture += math.log(p if frames[b, t, i, j] else 1 - p)
        for n in range(count):
            for t, axis in np.ndindex(4, 2):
                scale = float(said.scales[b, n, t, axis])
                distance = float(positions[b, n, t, axis] - said.means[b, n, t, axis]) / scale
                nats = 0.5 * distance**2 + math.log(scale) + 0.5 * math.log(2 * math.pi)
                density -= nats * scale * (1 + 6 * math.exp(-t / 2))
            path = positions[b, n].double().numpy()
            K = len(weights)
            prior += math.log(
                sum(
                    float(weights[k])
                    * math.exp(log_density(one_model(components, (K,), (k,)), path, everything))
                    for k in range(K)
                )
            )
        # Float32 sums of about 200 numbers of order one.
        ours = [float(term[b].detach()) for term in terms]
        assert ours == pytest.approx([picture, density, prior], rel=1e-4)


def test_uncertain_predictions_of_the_student_are_trained_all_the_same(
    generator: torch.Generator,
) -> None:
    """By the error in scales, not in squares of them, and the weight itself is not learned."""
    means, scales = (torch.rand(1, 1, 3, 2, generator=generator).requires_grad_() for _ in "ab")
    positions, present = torch.zeros(1, 1, 3, 2), torch.ones(1, 1, dtype=torch.bool)
    density = distillation.log_density(GaussianPosterior(means, scales), positions, present).sum()
    by_means, by_scales = torch.autograd.grad(density, (means, scales))
    early = 1 + 6 * torch.exp(-torch.arange(3) / 2)[:, None]
    torch.testing.assert_close(by_means, -early * (means / scales).detach())
    torch.testing.assert_close(by_scales, early * ((means / scales).square() - 1).detach())


def test_pseudo_labels_are_what_the_teacher_infers_of_every_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = distilled_config(tmp_path)
    teacher = find_teacher(config, CPU)
    assert teacher is not None
    clips = make_dataset(config, CPU).training
    frames = clips.frames(torch.arange(12))
    with torch.no_grad():
        found = teacher.infer(frames, clips.num_objects)
    scales = found.covariances().diagonal(dim1=-2, dim2=-1).sqrt()
    present = teacher.present(clips.num_objects)  # the other slots hold nothing of meaning
    backwards = torch.arange(MAX_OBJECTS).flip(0)
    monkeypatch.setattr(
        distillation,
        "starting_order",
        lambda dynamics, first, present: backwards.expand(len(first), -1),
    )
    # In one piece, and in pieces of which the last is shorter.
    for batch, reports in ((1000, [0, 12]), (5, [0, 5, 10, 12])):
        monkeypatch.setattr(distillation, "BATCH", batch)
        reported: list[int] = []
        lessons = infer_pseudo_labels(teacher, clips, reported.append).pseudo_labels
        assert reported == reports
        assert lessons is not None
        torch.testing.assert_close(lessons.means.flip(1)[present], found.means[present])
        torch.testing.assert_close(lessons.scales.flip(1)[present], scales[present])


def test_objects_are_ordered_by_side_and_then_by_height() -> None:
    """Two kinds of start, left and right, both much higher than wide."""
    dynamics = tiny_model().dynamics
    with torch.no_grad():
        dynamics.initial_mean[:] = torch.tensor([[-9.0, 0, 1, 0], [9.0, 0, -1, 0]])
        dynamics.initial_factor[:] = torch.diag(torch.tensor([0.0, 1.5, 0, 0]))
    first = torch.tensor([[[9.0, -3], [-9.5, 1], [-8.5, -4]], [[8.0, 2], [-9, 3], [0, 0]]])
    present = torch.tensor([[True, True, True], [True, True, False]])
    order = starting_order(dynamics, first, present)
    assert order.tolist() == [[2, 1, 0], [1, 0, 2]]


def test_the_starting_order_undoes_any_permutation(generator: torch.Generator) -> None:
    model = tiny_model()
    first = 3 * torch.randn(40, MAX_OBJECTS, 2, generator=generator)
    present = torch.ones(40, MAX_OBJECTS, dtype=torch.bool)
    with torch.no_grad():
        ordered = first.gather(
            1, starting_order(model.dynamics, first, present)[..., None].expand_as(first)
        )
        mixed = first[:, torch.randperm(MAX_OBJECTS, generator=generator)]
        again = mixed.gather(
            1, starting_order(model.dynamics, mixed, present)[..., None].expand_as(first)
        )
    assert torch.equal(ordered, again)


def test_a_run_without_a_teacher_has_none() -> None:
    assert find_teacher(tiny_config(), CPU) is None


@pytest.mark.parametrize(
    "change",
    [
        {"height": 7},
        {"width": 9},
        {"num_objects": (1, 2)},
        {"num_components": 3},
        {"law": "linear"},
    ],
)
def test_a_teacher_of_other_clips_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    part = "data" if hasattr(config.data, next(iter(change))) else "dynamics"
    other = replace(config, **{part: replace(getattr(config, part), **change)})
    with pytest.raises(InputError, match=r"teacher \S+ has .* this run has") as caught:
        find_teacher(other, CPU)
    assert "motes train --preset sprites" in str(caught.value)
    assert "--teacher" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_teacher_with_layers_is_refused(tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    config = replace(config, data=replace(config.data, height=8, width=8))
    its = replace(read_config(tmp_path / "teacher"), data=config.data, model=LayerSettings())
    save_model(tmp_path / "teacher", build(its), its)
    with pytest.raises(InputError, match="is of the layers family; expected one of"):
        find_teacher(config, CPU)


def test_the_paper_s_networks_are_refused_as_a_teacher(tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    its = tiny_config()
    save_model(tmp_path / "teacher", build(its), its)
    with pytest.raises(InputError, match="is of the paper family"):
        find_teacher(config, CPU)


def test_a_missing_teacher_is_named(tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    with pytest.raises(InputError, match="nobody"):
        find_teacher(replace(config, teacher=str(tmp_path / "nobody")), CPU)


def test_a_teacher_without_distillation_steps_is_refused() -> None:
    with pytest.raises(InputError, match="use --preset paper-distilled"):
        tiny_config(teacher="cannonballs-structured")


def test_incompatible_teachers_are_rejected_before_any_data_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = distilled_config(tmp_path)
    monkeypatch.setattr(training, "make_dataset", lambda *given: pytest.fail("clips were made"))
    other = replace(config, data=replace(config.data, height=7))
    with pytest.raises(InputError, match="this run has"):
        train(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    begin_run(tmp_path / "run", config, replicas=1)
    shutil.rmtree(tmp_path / "teacher")  # since the run began
    with pytest.raises(InputError, match="no model at"):
        resume(tmp_path / "run")


def test_own_clips_of_another_length_are_distilled_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a teacher with another law and more components, given by a relative path."""
    config = distilled_config(tmp_path)
    its = read_config(tmp_path / "teacher")
    its = replace(its, dynamics=replace(its.dynamics, law="linear", num_components=3))
    teacher = build(its)
    save_model(tmp_path / "teacher", teacher, its)
    clips = cannonballs(12, (1, 2, 3), config.data.num_frames + 2, (HEIGHT, WIDTH), seed=3)
    save_clips(tmp_path / "clips.npz", clips)
    own = replace(
        config,
        teacher=None,
        schedule=replace(config.schedule, iterations=2),
        data=replace(config.data, path=str(tmp_path / "clips.npz")),
    )
    monkeypatch.chdir(tmp_path)
    assert train(with_teacher(own, "teacher"), tmp_path / "run").finished
    stored = read_config(tmp_path / "run")
    assert stored.data.num_frames == its.data.num_frames + 2
    assert stored.teacher == str(tmp_path / "teacher")
    assert with_teacher(own, "cannonballs-structured").teacher == "cannonballs-structured"
    learned, known = load(tmp_path / "run").dynamics.state_dict(), teacher.dynamics.state_dict()
    assert all(torch.equal(learned[name], known[name]) for name in known)  # frozen for 4 steps


def test_a_distilled_run_starts_from_the_dynamics_of_its_teacher(tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    teacher = find_teacher(config, CPU)
    assert teacher is not None
    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run", config, dataset_with_pseudo_labels(config), CPU, print)
    run.start(teacher)
    own = run.trainer.model.dynamics.state_dict()
    for name, value in teacher.dynamics.state_dict().items():
        assert torch.equal(own[name], value), name
    fresh = build(config).dynamics.state_dict()
    assert not torch.equal(own["initial_mean"], fresh["initial_mean"])


def weights_after(config: RunConfig, dataset: Dataset, steps: int) -> dict[str, torch.Tensor]:
    trainer = Trainer(config, dataset.training, CPU)
    for _ in range(steps):
        trainer.advance()
    return trainer.state()


def test_pseudo_labels_matter_during_distillation_and_not_after(tmp_path: Path) -> None:
    config = distilled_config(tmp_path)
    with_pseudo_labels = dataset_with_pseudo_labels(config)
    without = make_dataset(config, CPU)
    own, bound = (weights_after(config, clips, 1) for clips in (with_pseudo_labels, without))
    assert not torch.equal(own["model/renderer.to_image"], bound["model/renderer.to_image"])
    untaught = replace(
        config, teacher=None, schedule=replace(config.schedule, distillation_steps=0)
    )
    own, bound = weights_after(untaught, with_pseudo_labels, 2), weights_after(untaught, without, 2)
    assert all(torch.equal(own[name], bound[name]) for name in own)


def forget_teacher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the teacher, and fail if pseudo-labels are requested."""
    shutil.rmtree(folder / "teacher")
    monkeypatch.setattr(
        training, "infer_pseudo_labels", lambda *given: pytest.fail("pseudo-labels were inferred")
    )


@pytest.mark.parametrize("stop", [2, DISTILLED, 4])  # during distillation, at its end and after it
def test_a_distilled_run_resumes_exactly(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = distilled_config(tmp_path)
    train(config, tmp_path / "straight")
    teacher = find_teacher(config, CPU)
    (tmp_path / "stopped").mkdir()
    stopped = Run(
        tmp_path / "stopped",
        config,
        dataset_with_pseudo_labels(config),
        CPU,
        lambda line: None,
    )
    stopped.start(teacher)
    for _ in range(stop):
        stopped.trainer.advance()
        stopped.after_step()
    stopped.finish()
    if stop >= DISTILLED:
        forget_teacher(tmp_path, monkeypatch)
    assert resume(tmp_path / "stopped").step == 8
    for name in ("checkpoint.safetensors", "model.safetensors"):
        straight, again = (read_tensors(tmp_path / run / name) for run in ("straight", "stopped"))
        assert straight[1] == again[1]
        assert straight[0].keys() == again[0].keys()
        assert all(torch.equal(straight[0][key], again[0][key]) for key in again[0])


def test_a_seed_that_lags_behind_is_taught_when_others_need_no_lessons(tmp_path: Path) -> None:
    train(distilled_config(tmp_path), tmp_path / "run", replicas=2)
    behind = tmp_path / "run" / "seed-1"
    before = read_tensors(behind / "checkpoint.safetensors")[0]
    for name in ("checkpoint.safetensors", "model.safetensors", "log.jsonl"):
        (behind / name).unlink()
    resume(tmp_path / "run")
    again = read_tensors(behind / "checkpoint.safetensors")[0]
    assert all(torch.equal(before[name], again[name]) for name in before)
