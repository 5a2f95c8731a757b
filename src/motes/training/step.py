"""The training step and the state of one model in training.

`training_step` is the loop body for every family and device. It works on an engine: a `Trainer`,
which holds one model, or `motes.training.gpu.replicas.Replicas`, which computes the steps of
several models at once. Checkpoints, signals, roll-backs and processes are handled around it, in
`motes.training.run` and `motes.training.train`.

Everything random in a step is a function of (seed, step), so a resumed run continues exactly, and
several processes agree on the global batch that they share.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Float64, Tensor
from motes.core.errors import InputError
from motes.models.model import FAMILIES, BoundTerms, build, renamed, terms_of
from motes.models.protocols import InferredBatch, Posterior, Search
from motes.training import distributed
from motes.training.distillation import distillation_terms
from motes.training.dynamics_fit import fit_dynamics
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
FIT_BATCHES = 20  # batches whose tracks the dynamics are finally fitted to
REFIT_BATCHES = 3  # batches that sprite classes are finally fitted to


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


class Trainer:
    """A model, its optimizer and its place in the schedule."""

    def __init__(self, config: RunConfig, data: TrainingData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.searches = not FAMILIES[config.family].networks
        self.model = build(config).to(device)
        occlusion = list(self.model.renderer.occlusion_parameters())
        networks = [*self.model.renderer.parameters(), *self.model.inference.parameters()]
        networks = [part for part in networks if all(part is not other for other in occlusion)]
        groups = [{"params": networks}, {"params": list(self.model.dynamics.parameters())}]
        self.optimizer = torch.optim.Adam(
            groups + [{"params": occlusion}] * bool(occlusion),
            lr=0.0,
            betas=(BETA_1, SEARCH_BETA_2 if self.searches else BETA_2),
            eps=EPSILON,
            fused=True,
        )
        self.step = 0
        self.num_summed = 0
        self.monitor = Monitor(1, device)
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
            self._final_fit()

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
        tensors = renamed(tensors)
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

    def _final_fit(self) -> None:
        """Fit to many clips what single batches determine poorly: sprite classes, then dynamics."""
        self.model.renderer.refit(lambda: self._inferred(REFIT_BATCHES), distributed.all_reduce_sum)
        tracks = [
            tracks_of(batch.q, batch.q.draw(batch.noise), batch.present)
            for batch in self._inferred(FIT_BATCHES)
        ]
        positions, observed = (torch.cat(parts) for parts in zip(*tracks, strict=True))
        self._fit_initial_state(positions, observed)
        fit_dynamics(self.model.dynamics, positions, observed)
        distributed.broadcast(self.model.dynamics)

    def _inferred(self, num_batches: int) -> Iterator[InferredBatch]:
        """Yield clips spread over the data with their posteriors."""
        generator = torch.Generator().manual_seed(self.config.seed + distributed.rank())
        number = min(num_batches * self.config.batch_size, len(self.data.num_objects))
        spread = torch.linspace(0, len(self.data.num_objects) - 1, number).round().long()
        mine = spread[distributed.rank() :: distributed.world_size()].to(self.device)
        for indices in mine.split(self.config.batch_size):
            frames, num_objects = self.data.frames(indices), self.data.num_objects[indices]
            q = self.model.infer(frames, num_objects, self.data.observed_in(indices))
            noise = torch.randn(q.means.shape, generator=generator).to(frames)
            yield InferredBatch(frames, q, self.model.present(num_objects), noise)

    def _fit_initial_state(
        self, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
    ) -> None:
        self.model.dynamics.fit_initial_state(positions, observed)
        distributed.broadcast(self.model.dynamics)  # each process has its share of the clips


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
