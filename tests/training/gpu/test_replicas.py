"""Replicas that take their steps together are their single runs up to rounding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import motes.training.gpu.replicas
from motes.config import RunConfig, ScheduleConfig
from motes.models.protocols import GaussianPosterior
from motes.training.gpu.replicas import Groups, Replicas, keep_factors
from motes.training.inputs import (
    InputBlocks,
    TrainingData,
    joined_inputs,
    make_dataset,
    step_inputs,
)
from motes.training.step import Trainer
from motes.training.train import Run, Team, find_teams, take_step
from tiny import tiny_config

CPU = torch.device("cpu")


def configs(distilled: int = 0) -> list[RunConfig]:
    """Three seeds, each with a schedule of its own."""
    schedules = [
        ScheduleConfig(
            iterations=8,
            frozen_dynamics=2 + seed,
            distillation_steps=distilled,
            learning_rate=((0, 1e-3 * (1 + seed)),),
            kl_weight=((0, 1.0 + seed),),
            blur=((0, 2.0 * seed), (4, 0.3)),
        )
        for seed in range(3)
    ]
    return [tiny_config(seed=seed, schedule=schedule) for seed, schedule in enumerate(schedules)]


def data_for(config: RunConfig) -> TrainingData:
    data = make_dataset(config, CPU).training
    if config.schedule.distillation_steps == 0:
        return data
    generator = torch.Generator().manual_seed(5)
    shape = (len(data.num_objects), 3, config.data.num_frames, 2)
    means = torch.randn(shape, generator=generator)
    return data._replace(pseudo_labels=GaussianPosterior(means, torch.full(shape, 0.3)))


def close(ours: Trainer, theirs: Trainer, steps: int) -> None:
    """Adam divides by a gradient's size, so one of rounding size moves its weight at random."""
    mine, other = ours.state(), theirs.state()
    assert mine.keys() == other.keys()
    for name, value in other.items():
        gap = (mine[name].double() - value.double()).abs()
        if name.startswith("model/"):
            assert gap.max() <= steps * 2 * 3e-3, name  # twice the largest rate, every step
            assert gap.flatten().quantile(0.9) <= 1e-6, name
        else:  # moments are sums of gradients, of which float32 keeps seven digits
            assert gap.max() <= 1e-4 * max(1.0, float(value.abs().max())), name


@pytest.mark.parametrize(("distilled", "kept"), [(0, False), (3, False), (0, True)])
def test_replicas_take_the_steps_of_their_single_runs(distilled: int, kept: bool) -> None:
    """Also with factors that are kept from step to step, as on a GPU."""
    own = configs(distilled)
    data = data_for(own[0])
    singles, together = ([Trainer(config, data, CPU) for config in own] for _ in range(2))
    replicas = Replicas(together)
    replicas.kept_factors = keep_factors(replicas.stacks) if kept else None
    for _ in range(6):
        replicas.advance()
        for trainer in singles:
            trainer.advance()
    for ours, theirs in zip(together, singles, strict=True):
        assert ours.step == theirs.step == 6
        close(ours, theirs, 6)
        expected = theirs.mean_terms()
        for term, value in ours.mean_terms()._asdict().items():
            assert float(value) == pytest.approx(float(getattr(expected, term)), rel=1e-5)


def test_groups_take_the_steps_of_their_single_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(motes.training.gpu.replicas, "GROUP", 2)
    own = configs()
    data = data_for(own[0])
    singles, together = ([Trainer(config, data, CPU) for config in own] for _ in range(2))
    groups = Groups(together)
    assert [len(group.trainers) for group in groups.groups] == [2, 1]
    for _ in range(4):
        groups.advance()
        for trainer in singles:
            trainer.advance()
    groups.synchronize()
    for ours, theirs in zip(together, singles, strict=True):
        assert ours.step == theirs.step == 4
        close(ours, theirs, 4)


def test_one_replica_that_breaks_is_named_alone() -> None:
    own = configs()
    trainers = [Trainer(config, data_for(own[0]), CPU) for config in own]
    replicas = Replicas(trainers)
    replicas.advance()
    with torch.no_grad():
        trainers[1].model.get_parameter("renderer.image_bias")[0] = torch.nan
    replicas.advance()
    trainers[0].mean_terms()
    trainers[2].mean_terms()
    with pytest.raises(FloatingPointError, match="reconstruction is not finite at step 1"):
        trainers[1].mean_terms()


def test_replicas_go_on_from_restored_states() -> None:
    own = configs()
    data = data_for(own[0])
    straight, first, second = ([Trainer(c, data, CPU) for c in own] for _ in range(3))
    whole, before = Replicas(straight), Replicas(first)
    for _ in range(6):
        whole.advance()
    for _ in range(4):
        before.advance()
    for ours, theirs in zip(second, first, strict=True):
        ours.restore(theirs.state(), 4)
    after = Replicas(second)
    for _ in range(2):
        after.advance()
    for ours, theirs in zip(second, straight, strict=True):
        mine, other = ours.state(), theirs.state()
        assert all(torch.equal(mine[name], other[name]) for name in other)


def test_blocks_of_inputs_hold_the_inputs_of_each_step() -> None:
    own = [replace(config, seed=seed) for seed, config in enumerate(configs())]
    blocks = InputBlocks(own, 12, CPU)
    for step in (62, 63, 64, 65, 64, 3):  # over the border of two blocks, and back
        blocks.load(step)
        taken = blocks.take()
        expected = joined_inputs(own, 12, step)
        assert all(torch.equal(a, b) for a, b in zip(taken, expected, strict=True))
        assert torch.equal(taken.noise[1], step_inputs(own[1], 12, step).noise)


def runs_in(folder: Path) -> list[Run]:
    own = [replace(c, seed=seed) for seed, c in enumerate([tiny_config()] * 3)]
    data = make_dataset(own[0], CPU)
    folders = [folder / str(config.seed) for config in own]
    for place in folders:
        place.mkdir()
    return [
        Run(place, config, data, CPU, lambda line: None, roll_backs=1)
        for place, config in zip(folders, own, strict=True)
    ]


def test_a_team_breaks_up_when_one_of_it_goes_back(tmp_path: Path) -> None:
    runs = runs_in(tmp_path)  # they log every 2 steps and save every 4
    team = Team(runs, together=True)
    for _ in range(5):
        take_step(team)
    assert not team.broken_up
    with torch.no_grad():
        runs[1].trainer.model.get_parameter("renderer.image_bias")[0] = torch.nan
    take_step(team)
    assert team.broken_up
    assert [run.trainer.step for run in runs] == [6, 4, 6]
    assert [run.rolled_back for run in runs] == [0, 1, 0]


def test_runs_of_one_shape_at_one_step_are_a_team_on_a_gpu_and_alone_on_a_cpu(
    tmp_path: Path,
) -> None:
    runs = runs_in(tmp_path)
    assert [len(team.runs) for team in find_teams(runs)] == [1, 1, 1]
    assert runs[0].shape == runs[1].shape
    runs[1].trainer.step = 4
    assert runs[0].shape != runs[1].shape
    other = replace(runs[2].config, batch_size=3)
    assert Run(tmp_path, other, runs[2].dataset, CPU, lambda line: None).shape != runs[0].shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_steps_on_a_gpu_are_those_of_a_cpu():
    # Products read 16 bits, and forty steps with gradients off by thousandths, at random, end
    # within 1e-5 of the same terms (tried on a CPU); work that reads what another stream writes
    # over is off by per cents.
    config, terms = tiny_config(), []
    for device in (CPU, torch.device("cuda")):
        trainer = Trainer(config, make_dataset(config, device).training, device)
        advance = trainer.advance if device == CPU else Replicas([trainer]).advance
        for _ in range(40):
            advance()
        terms.append(torch.stack(list(trainer.mean_terms())))
    assert (terms[1] - terms[0]).abs().max() < 1e-3 * terms[0].abs().max()
