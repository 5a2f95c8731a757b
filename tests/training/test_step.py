import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

from motes.config import RunConfig, ScheduleConfig
from motes.core.axes import Tensor
from motes.data import cannonballs
from motes.models.elbo import BoundTerms, bound_terms
from motes.models.model import build
from motes.models.protocols import Posterior, Search
from motes.training import distributed
from motes.training import step as stepping
from motes.training.inputs import (
    Dataset,
    TrainingData,
    blur,
    make_dataset,
    schedule_at_step,
    step_inputs,
)
from motes.training.presets import PRESETS
from motes.training.step import (
    EXPLORE,
    EXPLORE_UNTIL,
    FIT_CLIPS,
    OCCLUSION_RATE,
    Trainer,
    held_out_bound,
)
from motes.training.train import Run, Team, take_step
from tiny import tiny_config

CPU = torch.device("cpu")


def dataset(config: RunConfig) -> Dataset:
    return make_dataset(config, CPU)


def trainer_of(config: RunConfig) -> Trainer:
    return Trainer(config, dataset(config).training, CPU)


def copy_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_what_is_random_in_a_step_is_a_function_of_seed_and_step() -> None:
    config, before = tiny_config(), torch.get_rng_state()
    first, other_step = step_inputs(config, 100, 7), step_inputs(config, 100, 8)
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 (whatever else draws in between)
    torch.set_rng_state(before)
    again = step_inputs(config, 100, 7)
    other_seed = step_inputs(replace(config, seed=1), 100, 7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (other_step, other_seed):
        assert not torch.equal(first.noise, other.noise)
        assert not torch.equal(first.indices, other.indices)
    assert first.noise.shape == (4, 3, 7, 2)
    assert first.noise.dtype == torch.float32
    assert ((first.indices >= 0) & (first.indices < 100)).all()
    assert first.settings.tolist() == [*schedule_at_step(config.schedule, 7), 7]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_stays_while_it_is_looked_at_and_its_noise_changes() -> None:
    config = tiny_config(schedule=ScheduleConfig(iterations=8, steps_per_search=4))
    steps = [step_inputs(config, 1000, step) for step in range(8)]
    for step, inputs in enumerate(steps):
        assert torch.equal(inputs.indices, steps[step - step % 4].indices)
    assert not torch.equal(steps[0].indices, steps[4].indices)
    assert len({float(inputs.noise[0, 0, 0, 0]) for inputs in steps}) == 8


def disk(size: int, x: int, y: int) -> torch.Tensor:
    """The paper's ball: the 13 pixels within a distance of 2."""
    distance = (torch.arange(size) - x) ** 2 + (torch.arange(size)[:, None] - y) ** 2
    return (distance <= 4).float()[None, None]


@pytest.mark.parametrize("width", [0.3, 1.0, 2.0, 4.0, 8.0])
def test_blur_keeps_the_peak_of_a_lone_disk_near_one(width: float) -> None:
    # The divisor is exact for a round disk of 13 pixels' area, whose radius is 2.03; the ball of
    # pixels has the second moment 28 / 13 instead of 13 / 2 pi, so that for wide lenses the peak
    # is off by (28 / 13 - 13 / 2 pi) / 2 w^2, and by less than 2 % for narrow ones.
    peak = blur(disk(65, 32, 32), torch.tensor(width), mass=13.0).max()
    assert float(peak) == pytest.approx(1.0, abs=0.03)


def test_blur_of_width_zero_is_the_identity(generator: torch.Generator) -> None:
    frames = torch.rand(2, 3, 9, 11, generator=generator)
    assert torch.equal(blur(frames, torch.tensor(0.0), mass=13.0), frames)


@pytest.mark.parametrize("width", [0.5, 2.0, 4.0])
def test_blur_leaves_the_mass_in_its_place(width: float) -> None:
    blurred = blur(disk(65, 30, 35), torch.tensor(width), mass=13.0)[0, 0].double()
    mass = blurred.sum()
    x = (blurred.sum(0) * torch.arange(65)).sum() / mass
    y = (blurred.sum(1) * torch.arange(65)).sum() / mass
    # The border is 7 or more widths away: exp(-7^2 / 2) = 2e-11 of the mass; float32 rounding.
    assert float(x) == pytest.approx(30, abs=1e-3)
    assert float(y) == pytest.approx(35, abs=1e-3)
    divisor = 1 - math.exp(-13 / (2 * math.pi * width**2))
    if width > 1:  # a narrow lens meets the limit of 1, which takes mass away
        assert float(mass) == pytest.approx(13 / divisor, rel=0.02)


def test_blur_is_a_gaussian_average_by_naive_loops(generator: torch.Generator) -> None:
    frames = (torch.rand(1, 1, 5, 7, generator=generator) < 0.1).float()
    width, mass = 1.3, 3.0
    norm = sum(math.exp(-0.5 * (d / width) ** 2) for d in range(-30, 31)) ** 2
    expected = torch.zeros(5, 7)
    for i, j in np.ndindex(5, 7):
        for k, m in np.ndindex(5, 7):
            weight = math.exp(-0.5 * ((i - k) ** 2 + (j - m) ** 2) / width**2) / norm
            expected[i, j] += weight * frames[0, 0, k, m]
    expected /= 1 - math.exp(-mass / (2 * math.pi * width**2))
    ours = blur(frames, torch.tensor(width), mass)[0, 0]
    # The code sums its norm over one frame's reach: 5 px are 3.8 widths, 1e-4 of the mass.
    torch.testing.assert_close(ours, expected.clamp(0, 1), rtol=1e-3, atol=1e-4)


def test_frozen_dynamics_do_not_move_and_released_ones_do() -> None:
    config = tiny_config(schedule=ScheduleConfig(iterations=4, frozen_dynamics=2))
    trainer = trainer_of(config)
    start, networks = copy_of(trainer.model.dynamics), copy_of(trainer.model.renderer)
    for _ in range(2):
        trainer.advance()
        assert same(trainer.model.dynamics.state_dict(), start)
    assert not same(trainer.model.renderer.state_dict(), networks)
    trainer.advance()
    for name, value in trainer.model.dynamics.state_dict().items():
        assert not torch.equal(value, start[name]), name


@pytest.mark.slow
def test_no_occluder_is_learned_before_the_sprite() -> None:
    trainer = trainer_of(replace(PRESETS["sprites-smoke"], data=tiny_config().data))
    schedule = trainer.config.schedule
    assert 0 < schedule.frozen_occlusion < schedule.iterations
    started = copy_of(trainer.model.renderer)
    for step in range(schedule.iterations):
        trainer.advance()
        moved = {
            name: not torch.equal(value, started[name])
            for name, value in trainer.model.renderer.state_dict().items()
        }
        assert moved.pop("visibility_logit") == (step >= schedule.frozen_occlusion)
        assert all(moved.values())


@pytest.mark.slow
def test_q_explores_during_the_first_part_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, shares = trainer_of(PRESETS["sprites-smoke"]), []  # 8 steps, a search every 4
    infer = trainer.model.infer

    def noted(frames: Tensor, counts: Tensor, observed: Tensor | None, search: Search) -> Posterior:
        shares.append(search.explore)
        return infer(frames, counts, observed, search)

    monkeypatch.setattr(trainer.model, "infer", noted)
    monkeypatch.setattr("motes.training.step.EXPLORE_UNTIL", 0.5)
    for _ in range(5):
        trainer.advance()
    assert shares == [EXPLORE, 0.0]


@pytest.mark.slow
def test_the_final_fit_of_initial_states_uses_clips_from_all_over_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = PRESETS["sprites-smoke"]
    data = make_dataset(config, CPU).training
    assert len(data.num_objects) <= FIT_CLIPS
    fits = []
    trainer = Trainer(config, data, CPU)
    monkeypatch.setattr(
        trainer.model.dynamics, "fit_initial_state", lambda *given: fits.append(given)
    )
    while trainer.step < config.schedule.iterations:
        trainer.advance()
    of_a_batch, of_all = (positions for positions, _ in fits)
    assert len(of_a_batch) <= config.batch_size * config.data.max_objects
    assert len(of_all) == int(data.num_objects.sum())
    # Every clip once: no two objects have the same track.
    assert len(of_all.flatten(1).unique(dim=0)) == len(of_all)


@pytest.mark.slow
def test_training_overfits_one_tiny_batch() -> None:
    schedule = ScheduleConfig(iterations=200, frozen_dynamics=50, learning_rate=((0, 1e-2),))
    config = tiny_config(schedule=schedule, batch_size=2)
    config = replace(config, data=replace(config.data, num_clips=2, num_objects=(1,)))
    trainer = trainer_of(config)
    bounds = []
    for _ in range(4):
        for _ in range(50):
            trainer.advance()
        bounds.append(float(trainer.mean_terms().weighted(1.0)))
    assert bounds == sorted(bounds)
    # At the start a pixel is worth log 2; a batch that is known by heart, a small part of that.
    assert bounds[-1] > 0.6 * bounds[0]
    assert trainer.step == 200


def test_mean_terms_average_the_steps_since_the_last_call() -> None:
    config = tiny_config()
    one_by_one, at_once = trainer_of(config), trainer_of(config)
    single = []
    for _ in range(3):
        one_by_one.advance()
        at_once.advance()
        single.append(one_by_one.mean_terms())
    for name, value in at_once.mean_terms()._asdict().items():
        expected = sum(float(getattr(terms, name)) for terms in single) / 3
        assert float(value) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("config", [tiny_config(), PRESETS["sprites-smoke"]])
def test_a_restored_state_goes_on_as_if_it_had_never_stopped(config: RunConfig) -> None:
    straight, first, second = (trainer_of(config) for _ in range(3))
    for _ in range(6):
        straight.advance()
    for _ in range(4):
        first.advance()
    second.restore(first.state(), 4)
    for _ in range(2):
        second.advance()
    assert second.step == straight.step == 6
    assert same(straight.state(), second.state())


POISONS = {
    "reconstruction": ("renderer.image_bias", torch.nan),
    "entropy": ("inference.position_bias", torch.inf),
    "log_prior": ("dynamics.force", torch.nan),
}


def poison(trainer: Trainer, term: str) -> None:
    name, value = POISONS[term]
    with torch.no_grad():
        parameter = dict(trainer.model.named_parameters())[name]
        parameter.view(-1)[-1] = value


@pytest.mark.parametrize("term", POISONS)
def test_a_value_that_is_not_finite_is_named_with_its_step(term: str) -> None:
    trainer = trainer_of(tiny_config())
    for _ in range(2):
        trainer.advance()
    trainer.mean_terms()
    poison(trainer, term)
    for _ in range(2):
        trainer.advance()
    with pytest.raises(FloatingPointError, match=rf"{term} is not finite at step 2"):
        trainer.mean_terms()


def test_a_run_that_breaks_names_its_last_good_checkpoint_and_keeps_it(tmp_path: Path) -> None:
    config = tiny_config()  # logs every 2 steps, saves every 4
    clips = dataset(config)
    run = Run(tmp_path, config, clips, CPU, lambda line: None)
    team = Team([run], together=False)
    for _ in range(4):
        take_step(team)
    saved = (tmp_path / "checkpoint.safetensors").read_bytes()
    take_step(team)
    poison(run.trainer, "log_prior")
    with pytest.raises(FloatingPointError) as caught:
        take_step(team)
    message = str(caught.value)
    assert "log_prior is not finite at step 5" in message
    assert re.search(r"last good checkpoint is \S*checkpoint\.safetensors of step 4", message)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == saved


def test_a_run_that_breaks_at_once_says_that_nothing_was_saved(tmp_path: Path) -> None:
    config = tiny_config()
    run = Run(tmp_path, config, dataset(config), CPU, lambda line: None)
    team = Team([run], together=False)
    poison(run.trainer, "reconstruction")
    take_step(team)
    with pytest.raises(FloatingPointError, match="no checkpoint had been saved yet"):
        take_step(team)


def test_the_held_out_bound_is_a_mean_over_clips_however_they_are_batched() -> None:
    config = tiny_config()
    clips, trainer = dataset(config).held_out, trainer_of(config)
    assert len(clips.num_objects) == config.data.num_held_out
    whole = held_out_bound(trainer, clips)
    assert held_out_bound(trainer, clips) == whole
    # Other batches are given other noise: the same to the noise of a draw, some nats of 200.
    assert held_out_bound(trainer, clips, batch_size=3) == pytest.approx(whole, rel=0.1)


def test_packed_and_grey_clips_train_alike() -> None:
    config = tiny_config()
    packed = dataset(config).training
    grey = TrainingData(packed.frames(torch.arange(12)), packed.num_objects, packed.mass)
    trainers = [Trainer(config, clips, CPU) for clips in (packed, grey)]
    for trainer in trainers:
        trainer.advance()
    assert same(trainers[0].state(), trainers[1].state())


def test_the_mass_of_an_object_is_its_number_of_pixels() -> None:
    config = tiny_config()
    config = replace(config, data=replace(config.data, num_objects=(1,), height=32, width=32))
    clips = cannonballs(16, (1,), 7, (32, 32), seed=config.data.seed).frames
    lit = float(clips[:12].sum()) / (12 * 7)
    assert dataset(config).training.mass == pytest.approx(lit, rel=1e-6)


SHARED_BATCH = tiny_config(batch_size=5)  # not divisible by two, so that the shares differ


def take_steps(config: RunConfig) -> tuple[dict[str, torch.Tensor], BoundTerms, torch.Tensor]:
    trainer = trainer_of(config)
    trainer.advance()
    gradient = torch.cat([p.grad.double().flatten() for p in trainer.model.parameters()])
    for _ in range(2):
        trainer.advance()
    return trainer.state(), trainer.mean_terms(), gradient


def work(rank: int, folder: str) -> None:
    """One of two processes; saves what it has after three steps."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    state, terms, gradient = take_steps(SHARED_BATCH)
    torch.save({"state": state, "terms": list(terms), "gradient": gradient}, f"{folder}/{rank}")
    distributed.leave(store)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2)
    ours, theirs = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert same(ours["state"], theirs["state"])
    state, terms, gradient = take_steps(SHARED_BATCH)
    # Sums over the batch in two parts: float32 rounding of the largest gradients.
    rounding = 1e-6 * float(gradient.abs().max())
    torch.testing.assert_close(ours["gradient"], gradient, rtol=1e-5, atol=rounding)
    # Adam divides by the size of a gradient, so that one of rounding size alone moves its weight
    # at random, by at most the learning rate; nearly all must agree to a thousandth of a step.
    for name, value in state.items():
        if name.startswith("model/"):
            gap = (ours["state"][name] - value).abs()
            assert gap.max() <= 3 * 2e-3, name
            assert gap.double().quantile(0.9) <= 1e-6, name
    torch.testing.assert_close(ours["terms"], list(terms), rtol=1e-6, atol=1e-6)


def test_what_hides_objects_is_learned_at_a_pace_of_its_own() -> None:
    """Adam's first step is its learning rate for every number that has a gradient."""
    config = PRESETS["sprites-smoke"]
    schedule = replace(config.schedule, frozen_occlusion=0)
    trainer = trainer_of(replace(config, schedule=schedule))
    renderer = trainer.model.renderer
    before = {name: part.detach().clone() for name, part in renderer.named_parameters()}
    trainer.advance()
    moved = {name: (part - before[name]).abs().max() for name, part in renderer.named_parameters()}
    torch.testing.assert_close(
        moved["visibility_logit"], OCCLUSION_RATE * moved["root_background"], rtol=1e-3, atol=0
    )


def test_weights_follow_from_the_seed() -> None:
    for config in (tiny_config(), PRESETS["sprites-smoke"], PRESETS["layers"]):
        one, again, other = (build(replace(config, seed=seed)).state_dict() for seed in (1, 1, 2))
        assert same(one, again)
        assert not same(one, other)


def test_the_held_out_bound_is_the_sum_of_its_three_terms() -> None:
    """At KL weight 1, by which seeds are compared, whatever the schedule says."""
    config = tiny_config(
        schedule=ScheduleConfig(iterations=4, frozen_dynamics=0, kl_weight=((0, 7.0),))
    )
    clips, trainer = dataset(config).held_out, trainer_of(config)
    data = config.data
    random = np.random.Generator(np.random.Philox(key=(data.seed, 0)))
    shape = (data.num_held_out, data.max_objects, data.num_frames, 2)
    noise = torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
    frames = clips.frames(torch.arange(data.num_held_out))
    with torch.no_grad():
        terms = bound_terms(trainer.model, frames, clips.num_objects, noise)
    expected = float((terms.reconstruction + terms.entropy + terms.log_prior).mean())
    # Sums of float32 in another order.
    assert held_out_bound(trainer, clips) == pytest.approx(expected, rel=1e-5)


def test_exploration_ends_before_training_does() -> None:
    assert 0 < EXPLORE < 1
    assert 0 < EXPLORE_UNTIL < 1


@pytest.mark.slow
def test_the_dynamics_are_finally_fitted_to_the_tracks_of_many_clips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[tuple[int, object]] = []
    trainer = trainer_of(PRESETS["sprites-smoke"])

    def noted(dynamics: object, positions: Tensor, observed: Tensor) -> None:
        assert positions.shape[:2] == observed.shape
        fits.append((trainer.step, dynamics))
        assert len(positions) == int(trainer.data.num_objects.sum())

    monkeypatch.setattr("motes.training.step.fit_dynamics", noted)
    while trainer.step < trainer.config.schedule.iterations:
        trainer.advance()
    assert fits == [(trainer.step, trainer.model.dynamics)]


def test_the_preset_of_the_paper_has_its_sizes() -> None:
    """Section 5 of the paper: 60,000 clips of 30 frames, states of 1024, batches of 20."""
    paper = PRESETS["paper"]
    assert (paper.model.inference_state_size, paper.model.renderer_state_size) == (1024, 1024)
    assert paper.batch_size == 20
    assert (paper.data.num_frames, paper.data.height, paper.data.width) == (30, 48, 48)
    assert paper.schedule.iterations == 200_000


def test_a_weight_that_is_not_finite_is_not_saved_even_if_the_bound_is(tmp_path: Path) -> None:
    config = tiny_config()
    run = Run(tmp_path, config, dataset(config), CPU, lambda line: None)
    with torch.no_grad():
        run.trainer.model.get_parameter("renderer.empty_canvas").fill_(torch.inf)  # behind a tanh
    assert math.isfinite(held_out_bound(run.trainer, run.dataset.held_out))
    with pytest.raises(FloatingPointError, match="empty_canvas is not finite"):
        run.save()
    assert not (tmp_path / "model.safetensors").exists()


def test_a_step_follows_the_gradient_at_the_given_kl_weight() -> None:
    config, rates = tiny_config(), [torch.tensor(0.0)] * 2
    gradients = []
    for weight in (0.0, 3.0):
        one, other = trainer_of(config), trainer_of(config)
        inputs = step_inputs(config, len(one.data), 0)
        one.update(one.terms(one.frames(inputs), inputs), rates, torch.tensor(weight))
        terms = other.terms(other.frames(inputs), inputs)
        loss = -(terms.reconstruction + weight * (terms.log_prior + terms.entropy)).sum()
        (loss / config.batch_size).backward()
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        for found, wanted in pairs:
            torch.testing.assert_close(found.grad, wanted.grad)
        gradients.append(one.model.dynamics.force.grad)
    assert gradients[0] is None or not gradients[0].any()  # no prior at weight 0
    assert gradients[1].any()


def test_clips_that_are_searched_together_have_the_same_posteriors_and_noise(monkeypatch):
    trainer = trainer_of(PRESETS["sprites-smoke"])
    parts = list(trainer.inferred(3))
    monkeypatch.setattr(stepping, "clips_at_a_time", lambda config, device: 2 * config.batch_size)
    joined = list(trainer.inferred(3))
    assert [len(batch.noise) for batch in parts] == [8, 8, 8]
    assert [len(batch.noise) for batch in joined] == [16, 8]
    for name in ("noise", "frames", "present"):
        one, other = (torch.cat([getattr(b, name) for b in some]) for some in (parts, joined))
        assert torch.equal(one, other)
    means, others = (torch.cat([batch.q.means for batch in some]) for some in (parts, joined))
    torch.testing.assert_close(means, others, rtol=0, atol=1e-5)


def test_a_gpu_searches_whole_batches_within_its_memory():
    config, gpu = PRESETS["sprites"], torch.device("cuda")
    assert stepping.clips_at_a_time(config, torch.device("cpu")) == 48
    assert stepping.clips_at_a_time(config, gpu) == 480
    large = replace(config, data=replace(config.data, height=512, width=512, num_frames=30))
    assert stepping.clips_at_a_time(large, gpu) == 48


def test_a_fit_on_the_cpu_reaches_the_module_itself():
    class Elsewhere(torch.nn.Linear):
        """A module that says that it is on a device which this machine need not have."""

        def parameters(self, recurse: bool = True):
            return iter([torch.empty(1, device="meta")])

        def cpu(self):
            return self

    for made in (Elsewhere(2, 2), torch.nn.Linear(2, 2)):
        with stepping.on_cpu(made) as module, torch.no_grad():
            module.weight.fill_(3.0)
            assert (module is made) == (type(made) is torch.nn.Linear)
        assert torch.equal(made.weight, torch.full((2, 2), 3.0))
