"""The training step, the state of one model in training, and what precedes and follows its steps.

`training_step` is the loop body for every family and device. It works on an engine: a `Trainer`,
which holds one model, or `motes.training.gpu.replicas.Replicas`, which computes the steps of
several models at once. Checkpoints, signals, roll-backs and processes are handled around it, in
`motes.training.train`.

Everything random in a step is a function of (seed, step), so a resumed run continues exactly, and
several processes agree on the global batch that they share.

`initialize` sets the first weights, `fit_dynamics` the last ones of the dynamics.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Float64, Int, Tensor
from motes.core.device import optimize_uncompiled
from motes.core.errors import InputError
from motes.models.checkpoint import find_model, load, read_config, rename_old_tensors
from motes.models.elbo import BoundTerms, bound_terms, terms_of
from motes.models.model import FAMILIES, Model, build
from motes.models.protocols import InferredBatch, Posterior, Search
from motes.training import distributed
from motes.training.distillation import distillation_terms
from motes.training.gpu.reference_ops import BETA_1, BETA_2, EPSILON
from motes.training.inputs import StepInputs, TrainingData, blur, step_inputs

TERMS = (*BoundTerms._fields, "gradient")
NEVER = 2**62  # sentinel step: no non-finite value so far
SEARCH_BETA_2 = 0.99  # Adam's beta_2 for sprites, whose gradients shrink a thousandfold early on
# Multiple of the learning rate for visibility logits, which have far to go: until an occluder is
# learned, occluded objects make the dynamics noisy.
OCCLUSION_RATE = 4.0
EXPLORE = 0.2  # share of q spread out while exploring, see `Search`
EXPLORE_UNTIL = 0.6  # of all steps
FIT_CLIPS = 288  # whose tracks the dynamics are finally fitted to, and have events or not
REFIT_BATCHES = 3  # batches that sprite classes are finally fitted to
FIT_ITERATIONS = 50  # of L-BFGS
# Clips that a GPU searches at a time, in about the time of a few; and their pixels, at most.
GPU_CLIPS, GPU_PIXELS = 512, 2**27

# Restarts: multiples of the sprite's width and of the variance of positions. Training does not
# recover by itself from a sprite that is too wide, nor from positions with too little noise.
RESTARTS = ((1.0, 1.0), (0.25, 1.0), (1.0, 16.0), (0.25, 16.0))
RESTART_STEPS = 24
RESTARTS_KEPT = 2  # of the restarts take the second half of the steps
RESTART_BATCH = 16
RESTART_POSITIONS = 640  # of objects in the clips of a batch, where so many clips are not needed
INITIAL_CLIPS = 64  # clips that background and sprite classes are initialised from
REPORT_EVERY = 4  # steps that a reported bound is averaged over


class Monitor:
    """Sums of the bound's terms of R models, and the first step with a non-finite value."""

    def __init__(self, num_models: int, device: torch.device) -> None:
        self.sums = torch.zeros(num_models, len(TERMS) - 1, dtype=torch.float64, device=device)
        self.first_bad = torch.full((num_models, len(TERMS)), NEVER, device=device)

    def row(self, model: int) -> "Monitor":
        """Return the part of one model, sharing memory."""
        part = Monitor(0, self.sums.device)
        part.sums, part.first_bad = self.sums[model : model + 1], self.first_bad[model : model + 1]
        return part

    @torch.no_grad()
    def record(
        self,
        means: Float64[Tensor, "R terms"],
        finite_gradient: Bool[Tensor, " R"],
        steps: Float64[Tensor, " R"],
    ) -> None:
        """Add the terms of a step."""
        self.sums += means
        finite = torch.cat([means.isfinite(), finite_gradient[:, None]], 1)
        earliest = self.first_bad.minimum(steps.long()[:, None])
        self.first_bad.copy_(torch.where(finite, self.first_bad, earliest))


@runtime_checkable
class Engine(Protocol):
    """What computes the steps of one model or of R models with a leading axis."""

    config: RunConfig
    monitor: Monitor

    def frames(self, inputs: StepInputs) -> Tensor:
        """Return the clips of the step, blurred as the schedule says."""

    def terms(self, frames: Tensor, inputs: StepInputs) -> BoundTerms:
        """Return the terms to maximise for each clip: of the bound, or of distillation."""

    def update(
        self, terms: BoundTerms, rates: Sequence[Tensor], kl_weight: Tensor
    ) -> Bool[Tensor, " R"]:
        """Take a gradient step; return whether the gradients were finite."""


def training_step(engine: Engine, inputs: StepInputs) -> None:
    """Take one training step: frames, terms of the bound, gradients, update."""
    *rates, kl_weight, _, step = inputs.settings.unbind(-1)
    terms = engine.terms(engine.frames(inputs), inputs)
    finite = engine.update(terms, rates, kl_weight)
    means = torch.stack([term.detach().double().sum(-1) for term in terms], -1)
    means = means.view(-1, len(terms)) / engine.config.batch_size
    engine.monitor.record(means, finite, step.view(-1))


class Adam(torch.optim.Adam):
    """Adam without the wrapper of its step, which imports PyTorch's compiler.

    The wrapper turns gradients off, as here, and tells the compiler of it.
    """

    step = torch.no_grad()(getattr(torch.optim.Adam.step, "__wrapped__", torch.optim.Adam.step))


class Trainer:
    """A model, its optimizer and its place in the schedule."""

    def __init__(self, config: RunConfig, data: TrainingData, device: torch.device) -> None:
        optimize_uncompiled()
        self.config, self.data, self.device = config, data, device
        self.searches = not FAMILIES[config.family].networks
        self.model = build(config).to(device)
        occlusion = list(self.model.renderer.occlusion_parameters())
        networks = [*self.model.renderer.parameters(), *self.model.inference.parameters()]
        networks = [part for part in networks if all(part is not other for other in occlusion)]
        groups = [{"params": networks}, {"params": list(self.model.dynamics.parameters())}]
        self.optimizer = Adam(
            groups + [{"params": occlusion}] * bool(occlusion),
            lr=0.0,
            betas=(BETA_1, SEARCH_BETA_2 if self.searches else BETA_2),
            eps=EPSILON,
            fused=True,
        )
        self.step = 0
        self.num_summed = 0
        self.monitor = Monitor(1, device)
        self.fitted_to: list[InferredBatch] = []  # after the last step; without frames
        self._batch: Tensor | None = None  # frames of the last search
        self._posterior: Posterior | None = None  # and what it found

    def advance(self) -> None:
        """Take one training step; fit what remains after the last."""
        inputs = step_inputs(self.config, len(self.data.num_objects), self.step)
        mine = slice(distributed.rank(), None, distributed.world_size())
        inputs = inputs._replace(indices=inputs.indices[mine], noise=inputs.noise[mine])
        training_step(self, StepInputs(*(value.to(self.device) for value in inputs)))
        self.count_step()
        if self.step == self.config.schedule.iterations and self.config.schedule.mixture_em_steps:
            self._fit_to_many_clips()

    def count_step(self) -> None:
        """Move on in the schedule after a step."""
        self.step += 1
        self.num_summed += 1

    @property
    def _new_batch(self) -> bool:
        """Whether the next step searches new clips: several steps per search. [Choice 16]."""
        return self.step % self.config.schedule.steps_per_search == 0

    def frames(self, inputs: StepInputs) -> Float[Tensor, "B T height width *channels"]:
        """Return the clips of the step, blurred as the schedule says."""
        if self._batch is None or self._new_batch:
            self._batch = self.data.frames(inputs.indices)
        width = inputs.settings[-2]
        if self.model.renderer.grey_levels or not width > 0:
            return self._batch
        return blur(self._batch, width.float(), self.data.mass)

    def terms(
        self, frames: Float[Tensor, "B T height width *channels"], inputs: StepInputs
    ) -> BoundTerms:
        """Return the terms to maximise for each clip: of the bound, or of distillation."""
        model, schedule = self.model, self.config.schedule
        num_objects, labels = self.data.num_objects[inputs.indices], self.data.pseudo_labels
        if labels is not None and self.step < schedule.distillation_steps:
            targets = labels.select(inputs.indices)
            return distillation_terms(model, targets, frames, num_objects, inputs.noise)
        observed = self.data.observed_in(inputs.indices)
        if not self.searches:
            q = model.infer(frames, num_objects, observed)
            return terms_of(model, q, frames, num_objects, inputs.noise, observed)
        if self._new_batch:
            exploring = self.step < EXPLORE_UNTIL * schedule.iterations
            search = Search(explore=EXPLORE if exploring else 0.0)
            self._posterior = model.infer(frames, num_objects, observed, search)
            # Positions where nothing was found yet look occluded: sprites are learned first.
            for part in model.renderer.occlusion_parameters():
                part.requires_grad_(self.step >= schedule.frozen_occlusion)
            if self.step in schedule.mixture_em_steps:
                present = model.present(num_objects)
                self._fit_initial_state(*tracks_of(self._posterior, self._posterior.means, present))
        assert self._posterior is not None
        return terms_of(model, self._posterior, frames, num_objects, inputs.noise, observed)

    def update(
        self, terms: BoundTerms, rates: Sequence[Tensor], kl_weight: Tensor
    ) -> Bool[Tensor, " 1"]:
        """Take a gradient step; return whether the gradients were finite."""
        rates = [*rates, OCCLUSION_RATE * rates[0]][: len(self.optimizer.param_groups)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = float(rate)
        loss = -terms.weighted(kl_weight.float()).sum() / self.config.batch_size
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        distributed.sum_gradients(self.model)
        self.optimizer.step()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
        return norms.sum().isfinite()[None]

    def mean_terms(self) -> BoundTerms:
        """Return the terms of the bound per clip, averaged over the steps since the last call.

        Raises:
            FloatingPointError: a term or a gradient was not finite; names both and the step.
        """
        sums, first_bad = self.monitor.sums[0], self.monitor.first_bad[0]
        distributed.all_reduce_sum(sums)
        distributed.all_reduce_min(first_bad)
        step, name = min(  # of equals the first term
            zip(first_bad.tolist(), TERMS, strict=True), key=lambda first: first[0]
        )
        if step < NEVER:
            raise FloatingPointError(f"{name} is not finite at step {step}")
        means = (sums / max(self.num_summed, 1)).cpu()
        sums.zero_()
        self.num_summed = 0
        return BoundTerms(*means)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next step depends on."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": value for name, value in slots.items()}
        # Copied: replicas that train together share the memory of their step counts.
        return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore a state that `state` returned after `step` steps."""
        tensors = rename_old_tensors(tensors)
        weights = {n.removeprefix("model/"): v for n, v in tensors.items() if n[:6] == "model/"}
        moments: dict[int, dict[str, Tensor]] = {}
        try:
            for name, value in tensors.items():
                if not name.startswith("model/"):
                    _, index, slot = name.split("/")
                    moments.setdefault(int(index), {})[slot] = value
            self.model.load_state_dict(weights)
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the checkpoint does not fit its config.json ({reason})") from None
        self.step = step

    def _fit_to_many_clips(self) -> None:
        """Fit to many clips what single batches determine poorly: sprite classes, then dynamics."""
        self.model.renderer.refit(lambda: self.inferred(REFIT_BATCHES), distributed.all_reduce_sum)
        number = -(-FIT_CLIPS // self.config.batch_size)
        batches = [batch._replace(frames=batch.frames[:0]) for batch in self.inferred(number)]
        tracks = [tracks_of(batch.q, batch.q.draw(batch.noise), batch.present) for batch in batches]
        self.fitted_to = batches
        positions, observed = (torch.cat(parts) for parts in zip(*tracks, strict=True))
        self._fit_initial_state(positions, observed)
        with on_cpu(self.model.dynamics) as dynamics:
            fit_dynamics(dynamics, positions.cpu(), observed.cpu())
        distributed.broadcast(self.model.dynamics)

    def inferred(self, num_batches: int) -> Iterator[InferredBatch]:
        """Yield clips spread over the data with their posteriors."""
        generator = torch.Generator().manual_seed(self.config.seed + distributed.rank())
        number = min(num_batches * self.config.batch_size, len(self.data.num_objects))
        spread = torch.linspace(0, len(self.data.num_objects) - 1, number).round().long()
        mine = spread[distributed.rank() :: distributed.world_size()].to(self.device)
        size = self.config.batch_size
        for indices in mine.split(clips_at_a_time(self.config, self.device)):
            frames, num_objects = self.data.frames(indices), self.data.num_objects[indices]
            q = self.model.infer(frames, num_objects, self.data.observed_in(indices))
            # Numbers of single batches, so that they are the same for any number at a time.
            shapes = [part.shape for part in q.means.split(size)]
            noise = torch.cat([torch.randn(shape, generator=generator) for shape in shapes])
            yield InferredBatch(frames, q, self.model.present(num_objects), noise.to(frames))

    def _fit_initial_state(
        self, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
    ) -> None:
        with on_cpu(self.model.dynamics) as dynamics:
            dynamics.fit_initial_state(positions.cpu(), observed.cpu())
        distributed.broadcast(self.model.dynamics)  # each process has its share of the clips


def clips_at_a_time(config: RunConfig, device: torch.device) -> int:
    """Return how many clips are searched together after training: whole batches."""
    if device.type != "cuda":
        return config.batch_size
    data = config.data
    most = min(GPU_CLIPS, GPU_PIXELS // (data.num_frames * data.height * data.width))
    return max(most // config.batch_size, 1) * config.batch_size


@contextlib.contextmanager
def on_cpu(module: Any) -> Iterator[Any]:
    """Yield a module that is on a GPU as a copy on the CPU, whose state it takes at the end.

    A fit to few tracks is thousands of small operations, of which a GPU starts fewer in a second.

    Law: equals the change in place (test_a_fit_on_the_cpu_reaches_the_module_itself).
    """
    if all(part.device.type == "cpu" for part in module.parameters()):
        yield module
        return
    copied = copy.deepcopy(module).cpu()
    yield copied
    module.load_state_dict(copied.state_dict())


def tracks_of(
    q: Posterior, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, "M T 2"], Bool[Tensor, "M T"]]:
    """Return the positions of all present objects, and in which frames they were detected."""
    everywhere = torch.ones(positions.shape[:3], dtype=torch.bool, device=positions.device)
    detected = everywhere if q.detected is None else everywhere & q.detected
    return positions[present], detected[present]


def require_finite(trainer: Trainer) -> None:
    """Raise `FloatingPointError` if a weight is not finite, which could not be loaded again."""
    for name, value in trainer.model.state_dict().items():
        if not bool(value.isfinite().all()):
            raise FloatingPointError(f"{name} is not finite after step {trainer.step}")


@torch.no_grad()
def held_out_bound(trainer: Trainer, clips: TrainingData, batch_size: int = 60) -> float:
    """Return the mean bound of a held-out clip at KL weight 1 on sharp frames, in nats."""
    data = trainer.config.data
    random = np.random.Generator(np.random.Philox(key=(data.seed, 0)))
    total = 0.0
    for start in range(0, len(clips.num_objects), batch_size):
        indices = torch.arange(start, min(start + batch_size, len(clips.num_objects)))
        indices = indices.to(trainer.device)
        shape = (len(indices), data.max_objects, data.num_frames, 2)
        noise = torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
        terms = bound_terms(
            trainer.model,
            clips.frames(indices),
            clips.num_objects[indices],
            noise.to(trainer.device),
            observed=clips.observed_in(indices),
        )
        total += float(terms.weighted(1.0).sum())
    return total / len(clips.num_objects)


def fit_dynamics(
    dynamics: Any, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
) -> None:
    """Maximise the likelihood of tracks over all parameters of the dynamics, by L-BFGS.

    Stochastic steps leave the parameters as well determined as the last few batches do.
    [Choice 39]

    Args:
        dynamics: Changed in place.
        positions: Drawn from q, in latent units: their mean log p(a) is the part of the bound that
            depends on the dynamics.
        observed: Which of the positions count.

    Law: tracks do not become less likely (test_fitting_makes_tracks_no_less_likely).
    """
    whole = observed.all(1)  # these share one matrix

    def log_prior() -> Float[Tensor, ""]:
        total: Tensor = dynamics.track_log_density(positions[whole]).sum()
        if not bool(whole.all()):
            part = dynamics.track_log_density(positions[~whole], observed[~whole])
            total = total + part.sum()
        return total / len(positions)

    def loss() -> Float[Tensor, ""]:
        optimizer.zero_grad()
        value = -log_prior()
        value.backward()
        return value.detach()

    optimize_uncompiled()
    before, start = log_prior().detach(), [part.detach().clone() for part in dynamics.parameters()]
    optimizer = torch.optim.LBFGS(
        dynamics.parameters(), max_iter=FIT_ITERATIONS, line_search_fn="strong_wolfe"
    )
    optimizer.step(loss)
    with torch.no_grad():
        if not bool(log_prior() >= before):  # false for NaN too
            for part, value in zip(dynamics.parameters(), start, strict=True):
                part.copy_(value)


class Trial(NamedTuple):
    """A restart after some steps."""

    restart: int  # counted from 1
    step: int  # of RESTART_STEPS
    bound: float  # of the last steps, nats per clip
    model: Model  # training continues to change it


def initialize(trainer: Trainer) -> Iterator[Trial]:
    """Give a new trainer's model the weights that training starts from; yield progress.

    Those of `config.initial_model`, or of the best of a few short restarts for families that have
    them; else the random ones. The weights are set when the iteration ends.

    The size of objects and their process noise are unknown, and a sprite model that starts far from
    either takes long to recover. So restarts with different scales take a few steps each on small
    batches, and the bound selects one. After half of the steps only the best few go on. [Choice 25]

    Law: no restart that went on had a higher bound
    (test_the_restart_with_the_highest_bound_is_taken).
    """
    config, data, model = trainer.config, trainer.data, trainer.model
    if config.initial_model is not None:
        model.load_state_dict(weights_of_initial_model(config), strict=False)
        some = _initial_clips(data)  # the background belongs to the camera of these clips
        model.renderer.initialize_background(data.frames(some), data.observed_in(some))
    elif FAMILIES[config.family].restarts:
        runs = [
            restart(number, restart_config(config, *scales), data, trainer.device)
            for number, scales in enumerate(RESTARTS, 1)
        ]
        half = []
        for run in runs:
            for trial in run:
                yield trial
                if trial.step >= RESTART_STEPS // 2:
                    break
            half.append(trial)
        kept = sorted(range(len(runs)), key=lambda index: -half[index].bound)[:RESTARTS_KEPT]
        ends = []
        for index in sorted(kept):
            trial = half[index]
            for trial in runs[index]:
                yield trial
            ends.append(trial)
        best = max(ends, key=lambda trial: trial.bound)
        model.load_state_dict(best.model.state_dict(), strict=False)


def restart(
    number: int, config: RunConfig, data: TrainingData, device: torch.device
) -> Iterator[Trial]:
    """Take the steps of one restart; each bound is of the last few steps."""
    trainer = Trainer(config, data, device)
    some, generator = _initial_clips(data), torch.Generator().manual_seed(config.seed + number)
    trainer.model.renderer.initialize_from(
        data.frames(some), data.num_objects[some], data.observed_in(some), generator
    )
    while trainer.step < RESTART_STEPS:
        trainer.advance()
        if trainer.step % REPORT_EVERY == 0:
            bound = float(trainer.mean_terms().weighted(1.0))
            yield Trial(number, trainer.step, bound, trainer.model)


def restart_config(config: RunConfig, width: float, variance: float) -> RunConfig:
    """Return the configuration of a short run with multiples of the scales."""
    noise, half = variance * config.dynamics.position_noise, RESTART_STEPS // 2
    enough = -(-RESTART_POSITIONS // (config.data.num_frames * config.data.max_objects))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, sprite_width=width * config.model.sprite_width),
        dynamics=dataclasses.replace(config.dynamics, position_noise=noise),
        schedule=dataclasses.replace(
            config.schedule, steps_per_search=half, mixture_em_steps=(half,)
        ),
        batch_size=min(RESTART_BATCH, config.batch_size, enough),
        checkpoint_every=RESTART_STEPS,
    )


def _initial_clips(data: TrainingData) -> Int[Tensor, " b"]:
    """Return the indices of the clips that initial values are taken from."""
    return torch.arange(min(INITIAL_CLIPS, len(data.num_objects)), device=data.num_objects.device)


def weights_of_initial_model(config: RunConfig) -> dict[str, Tensor]:
    """Return the weights of the initial model that fit: those of the same name and shape.

    For sprites of another frame size, all but background and visibility: what belongs to the
    camera's view is learned again.
    """
    assert config.initial_model is not None
    shapes = {name: weights.shape for name, weights in build(config).state_dict().items()}
    theirs: dict[str, Tensor] = load(config.initial_model).state_dict()
    return {name: part for name, part in theirs.items() if shapes.get(name) == part.shape}


def with_initial_model(config: RunConfig, name_or_folder: str) -> RunConfig:
    """Return the configuration of a run that starts from a model: its sizes, the run's own law."""
    its = read_config(find_model(name_or_folder))
    model, dynamics = its.model, dataclasses.replace(its.dynamics, law=config.dynamics.law)
    if its.family == config.family and hasattr(model, "window"):
        model = dataclasses.replace(model, window=config.model.window)
    elif its.family != config.family:
        model = config.model  # refused later, by `check_initial_model`
    return dataclasses.replace(config, model=model, dynamics=dynamics, initial_model=name_or_folder)


def check_initial_model(config: RunConfig) -> None:
    """Refuse a run that starts from an incompatible model.

    Raises:
        InputError: there is no such model, or it is of another family or frame size.
    """
    if config.initial_model is None:
        return
    name_or_folder, its = config.initial_model, read_config(find_model(config.initial_model))
    if its.family != config.family:
        raise InputError(
            f"{name_or_folder} is of the {its.family} family; this run is of the "
            f"{config.family} family: start from a model of its own family"
        )
    size, its_size = ((c.data.height, c.data.width) for c in (config, its))
    if size != its_size and FAMILIES[config.family].networks:
        raise InputError(
            f"{name_or_folder} takes {its_size[0]}x{its_size[1]} frames, yours are "
            f"{size[0]}x{size[1]}: prepare them with --size {its_size[0]} {its_size[1]}"
        )
