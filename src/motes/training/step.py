"""One model in training: its state and one step of it.

Everything random in a step is a function of (seed, step) alone, so a run that is resumed from a
saved step goes on exactly as if it had never stopped, and several processes agree on the global
batch that they share. On a GPU, `motes.training.gpu.replicas` takes the steps.
"""

from collections.abc import Iterator

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Float64, Int, Tensor
from motes.core.errors import InputError
from motes.models.elbo import BoundTerms, bound_terms
from motes.models.model import build
from motes.models.paper.inference import GaussianPosterior
from motes.models.sprites.grid_posterior import GridPosterior
from motes.training import distributed
from motes.training.distillation import distillation_terms
from motes.training.dynamics_fit import fit_dynamics
from motes.training.gpu.reference_ops import BETA_1, BETA_2, EPSILON
from motes.training.inputs import StepInputs, TrainingData, blur, step_inputs
from motes.training.mixture_em import seed_mixture
from motes.training.sprite_refit import Batch, refit_kinds

TERMS = (*BoundTerms._fields, "gradient")
NEVER = 2**62  # the step at which what has not happened happened
# Of the learning rate: a logit has a long way from "nothing stands here" to "something does", and
# until it has gone it objects behind a cover teach the dynamics that they jump.
VISIBILITY_PACE = 4.0
EXPLORE = 0.2  # of the structured family's q, see `Tracker.search`
EXPLORED = 0.6  # of all steps; then glyphs are known, and q as it is says how far objects stray
SETTLED = 20  # batches whose tracks the dynamics are fitted to in the end
REFITTED = 3  # batches that kinds of object are fitted to in the end


class Watch:
    """The terms of R models added up, and the first step at which something was not finite."""

    def __init__(self, num_models: int, device: torch.device) -> None:
        self.sums = torch.zeros(num_models, len(TERMS) - 1, dtype=torch.float64, device=device)
        self.first_bad = torch.full((num_models, len(TERMS)), NEVER, device=device)

    def row(self, model: int) -> "Watch":
        """The part of one model, in the same memory."""
        part = Watch(0, self.sums.device)
        part.sums, part.first_bad = self.sums[model : model + 1], self.first_bad[model : model + 1]
        return part

    @torch.no_grad()
    def see(
        self,
        means: Float64[Tensor, "R terms"],
        finite_gradient: Bool[Tensor, " R"],
        steps: Float64[Tensor, " R"],
    ) -> None:
        """Takes note of a step."""
        self.sums += means
        finite = torch.cat([means.isfinite(), finite_gradient[:, None]], 1)
        earliest = self.first_bad.minimum(steps.long()[:, None])
        self.first_bad.copy_(torch.where(finite, self.first_bad, earliest))


class Trainer:
    """A model, its optimizer and its place in the schedule."""

    def __init__(self, config: RunConfig, data: TrainingData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.model = build(config).to(device)
        networks = [*self.model.renderer.parameters(), *self.model.inference.parameters()]
        hiding = self.model.hiding()
        networks = [part for part in networks if all(part is not hides for hides in hiding)]
        groups = [{"params": networks}, {"params": list(self.model.dynamics.parameters())}]
        self.optimizer = torch.optim.Adam(
            groups + [{"params": hiding}] * bool(hiding),
            lr=0.0,
            # A glyph goes from a blob to a sharp edge in a few hundred steps: its first gradients
            # are a thousand times its last, and are to be forgotten in time.
            betas=(BETA_1, 0.99 if config.model.family == "structured" else BETA_2),
            eps=EPSILON,
            fused=True,
        )
        self.step = 0
        self.num_summed = 0
        self.watch = Watch(1, device)
        self._frames: Tensor | None = None  # those that the last look was at
        self._found: GridPosterior | None = None  # structured family: what it found

    def advance(self) -> None:
        """Takes one training step."""
        inputs = step_inputs(self.config, len(self.data.num_objects), self.step)
        mine = slice(distributed.rank(), None, distributed.world_size())
        inputs = inputs._replace(indices=inputs.indices[mine], noise=inputs.noise[mine])
        self._compute(StepInputs(*(value.to(self.device) for value in inputs)))
        self.count_step()
        if self.step == self.config.schedule.iterations and self.config.schedule.seed_mixture:
            self._settle()

    def count_step(self) -> None:
        """Moves on in the schedule, when a step has been taken."""
        self.step += 1
        self.num_summed += 1

    def mean_terms(self) -> BoundTerms:
        """The terms of the bound for a clip, averaged over the steps since the last call.

        Raises:
            FloatingPointError: a term or a gradient was not finite; names both and the step.
        """
        sums, first_bad = self.watch.sums[0], self.watch.first_bad[0]
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
        """All tensors that the next step depends on."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": value for name, value in slots.items()}
        # Copied: replicas that train together share the memory of their counts of steps.
        return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Goes back to a state that `state` gave after `step` steps."""
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

    def _compute(self, inputs: StepInputs) -> None:
        """The arithmetic of a step: bound, gradient, update."""
        *rates, kl_weight, blur_width, step = inputs.settings.unbind()
        rates += [VISIBILITY_PACE * rates[0]] * bool(self.model.hiding())
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = float(rate)
        if self._frames is None or self._looks:
            self._frames = self.data.frames(inputs.indices)
        frames = self._frames
        if self.config.model.pixels == "binary" and blur_width > 0:
            frames = blur(frames, blur_width.float(), self.data.ink)
        num_objects = self.data.num_objects[inputs.indices]
        terms = self._terms(frames, num_objects, inputs)
        loss = -terms.weighted(kl_weight.float()).sum() / self.config.batch_size
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        distributed.sum_gradients(self.model)
        self.optimizer.step()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
        means = torch.stack([term.detach().double().sum() for term in terms])
        self.watch.see(
            means[None] / self.config.batch_size, norms.sum().isfinite()[None], step[None]
        )

    @property
    def _looks(self) -> bool:
        """Whether the next step looks at new clips: several steps for each look. [Choice 16]."""
        return self.step % self.config.schedule.steps_per_look == 0

    def _terms(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        inputs: StepInputs,
    ) -> BoundTerms:
        """The terms to maximise: the bound's, or those of a lesson while being taught."""
        model, lessons, schedule = self.model, self.data.lessons, self.config.schedule
        if lessons is not None and self.step < schedule.taught:
            lesson = GaussianPosterior(*(part.index_select(0, inputs.indices) for part in lessons))
            return distillation_terms(model, lesson, frames, num_objects, inputs.noise)
        observed = self.data.seen(inputs.indices)
        if self._looks:
            explore = EXPLORE if self.step < EXPLORED * schedule.iterations else 0.0
            self._found = model.track(frames, num_objects, observed, explore=explore)
            model.set_occlusion_learning(self.step >= schedule.frozen_visibility)
            if self._found is not None and self.step in schedule.seed_mixture:
                self._seed(*self._found.tracks(model.present(num_objects)))
        return bound_terms(model, frames, num_objects, inputs.noise, self._found, observed)

    def _settle(self) -> None:
        """Fits to many clips what one batch cannot tell well: kinds of object, then dynamics."""
        if self.model.painter is not None:
            refit_kinds(self.model.painter, lambda: self._look_at(REFITTED))
        tracks = [
            (found.draw(noise)[present], found.seen[present])
            for _, found, present, noise in self._look_at(SETTLED)
        ]
        positions, seen = (torch.cat(parts) for parts in zip(*tracks, strict=True))
        self._seed(positions, seen)
        fit_dynamics(self.model.dynamics, positions, seen)
        distributed.broadcast(self.model.dynamics)

    def _look_at(self, num_batches: int) -> Iterator[Batch]:
        """Clips from all over the data."""
        generator = torch.Generator().manual_seed(self.config.seed + distributed.rank())
        number = min(num_batches * self.config.batch_size, len(self.data.num_objects))
        spread = torch.linspace(0, len(self.data.num_objects) - 1, number).round().long()
        mine = spread[distributed.rank() :: distributed.world_size()].to(self.device)
        for indices in mine.split(self.config.batch_size):
            frames, num_objects = self.data.frames(indices), self.data.num_objects[indices]
            found = self.model.track(frames, num_objects, self.data.seen(indices))
            assert found is not None  # only the structured family settles
            noise = torch.randn(found.origin.shape, generator=generator).to(frames)
            yield Batch(frames, found, self.model.present(num_objects), noise)

    def _seed(self, positions: Float[Tensor, "M T 2"], seen: Bool[Tensor, "M T"]) -> None:
        seed_mixture(self.model.dynamics, positions, seen)
        distributed.broadcast(self.model.dynamics)  # each has seen its share of the clips alone


def require_finite(trainer: Trainer) -> None:
    """Raises `FloatingPointError` where a weight is not finite; nobody could load such a model."""
    for name, value in trainer.model.state_dict().items():
        if not bool(value.isfinite().all()):
            raise FloatingPointError(f"{name} is not finite after step {trainer.step}")
