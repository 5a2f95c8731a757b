"""One model in training: its state, one step of it, and that step as a CUDA graph.

Everything random in a step is a function of (seed, step) alone, so a run that is resumed from a
saved step goes on exactly as if it had never stopped, and several processes agree on the global
batch that they share.
"""

import torch

from motes import processes
from motes.batches import StepInputs, TrainingData, blur, step_inputs
from motes.config import RunConfig
from motes.errors import InputError
from motes.model import build
from motes.networks.inference import Encoding
from motes.objective import BoundTerms, bound_terms
from motes.shapes import Float, Float64, Int, Tensor
from motes.structured.seeding import seed_mixture
from motes.teaching import lesson_terms

TERMS = (*BoundTerms._fields, "gradient")
NEVER = 2**62  # the step at which what has not happened happened
EAGER_STEPS = 3  # before a step is captured as a graph: real steps, which also warm up the GPU


class Trainer:
    """A model, its optimizer and its place in the schedule."""

    def __init__(self, config: RunConfig, data: TrainingData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.model = build(config).to(device)
        captured = device.type == "cuda" and processes.world() == 1
        captured = captured and config.model.family == "paper"
        networks = [*self.model.renderer.parameters(), *self.model.inference.parameters()]
        self.optimizer = torch.optim.Adam(
            [{"params": networks}, {"params": list(self.model.dynamics.parameters())}],
            lr=torch.zeros((), device=device) if captured else 0.0,
            betas=(0.9, 0.999),
            eps=1e-8,
            fused=True,
            capturable=captured,
        )
        for group in self.optimizer.param_groups:  # one learning rate each, not one shared tensor
            group["lr"] = torch.zeros((), device=device) if captured else 0.0
        self.step = 0
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.num_summed = 0
        self.first_bad = torch.full((len(TERMS),), NEVER, device=device)
        self.stream = torch.cuda.Stream(device) if captured else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.static: StepInputs | None = None
        self._eager_left = EAGER_STEPS
        self._found: Encoding | None = None  # structured family: the last look at the frames

    def advance(self) -> None:
        """Takes one training step."""
        inputs = step_inputs(self.config, len(self.data.num_objects), self.step)
        mine = slice(processes.rank(), None, processes.world())
        inputs = inputs._replace(indices=inputs.indices[mine], noise=inputs.noise[mine])
        if self.stream is None:
            self._compute(StepInputs(*(value.to(self.device) for value in inputs)))
        else:
            with torch.cuda.stream(self.stream):
                self._advance_on_stream(inputs)
        self.step += 1
        self.num_summed += 1

    def mean_terms(self) -> BoundTerms:
        """The terms of the bound for a clip, averaged over the steps since the last call.

        Raises:
            FloatingPointError: a term or a gradient was not finite; names both and the step.
        """
        if self.stream is not None:
            self.stream.synchronize()
        processes.add_up(self.sums)
        processes.earliest(self.first_bad)
        first_bad = zip(self.first_bad.tolist(), TERMS, strict=True)
        step, name = min(first_bad, key=lambda first: first[0])  # of equals the first term
        if step < NEVER:
            raise FloatingPointError(f"{name} is not finite at step {step}")
        means = (self.sums / max(self.num_summed, 1)).cpu()
        self.sums.zero_()
        self.num_summed = 0
        return BoundTerms(*means)

    def state(self) -> dict[str, Tensor]:
        """All tensors that the next step depends on."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": value for name, value in slots.items()}
        return {name: value.detach().cpu() for name, value in tensors.items()}

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

    def _advance_on_stream(self, inputs: StepInputs) -> None:
        """Runs the step eagerly the first times, then captures it once and replays it."""
        if self.static is None:
            self.static = StepInputs(*(torch.empty_like(v, device=self.device) for v in inputs))
        for buffer, value in zip(self.static, inputs, strict=True):
            buffer.copy_(value.pin_memory(), non_blocking=True)
        if self.step == self.config.schedule.taught:  # another arithmetic from here on
            self.graph, self._eager_left = None, EAGER_STEPS
        if self._eager_left > 0:
            self._eager_left -= 1
            self._compute(self.static)
            return
        if self.graph is None:
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize(self.device)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._compute(self.static)
        self.graph.replay()

    def _compute(self, inputs: StepInputs) -> None:
        """The arithmetic of a step: bound, gradient, update."""
        *rates, kl_weight, blur_width, step = inputs.settings.unbind()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if self.stream is None:
                group["lr"] = float(rate)
            else:  # a captured graph reads the rate from the same tensor every time
                group["lr"].copy_(rate)
        frames = blur(self.data.frames(inputs.indices), blur_width.float(), self.data.ink)
        num_objects = self.data.num_objects[inputs.indices]
        terms = self._terms(frames, num_objects, inputs)
        loss = -terms.weighted(kl_weight.float()).sum() / self.config.batch_size
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        processes.sum_gradients(self.model)
        self.optimizer.step()
        self._watch(terms, step)

    def _terms(
        self,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        inputs: StepInputs,
    ) -> BoundTerms:
        """The terms to maximise: the bound's, or those of a lesson while being taught."""
        model, lessons, schedule = self.model, self.data.lessons, self.config.schedule
        if lessons is not None and self.step < schedule.taught:
            lesson = Encoding(*(part.index_select(0, inputs.indices) for part in lessons))
            return lesson_terms(model, lesson, frames, num_objects, inputs.noise)
        if self.step % schedule.steps_per_look == 0:  # several steps for each look [Choice 16]
            self._found = model.track(frames, num_objects)
            if self._found is not None and self.step in schedule.seed_mixture:
                seed_mixture(model.dynamics, self._found.means, model.present(num_objects))
                processes.follow(model.dynamics)  # each has seen its share of the batch alone
        return bound_terms(model, frames, num_objects, inputs.noise, self._found)

    @torch.no_grad()
    def _watch(self, terms: BoundTerms, step: Float64[Tensor, ""]) -> None:
        """Adds up the terms, and notes the first step at which something was not finite."""
        sums = torch.stack([term.double().sum() for term in terms])
        self.sums += sums / self.config.batch_size
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack([n.double() for n in torch._foreach_norm(gradients)])
        finite = torch.cat([sums, norms.sum()[None]]).isfinite()
        earliest = self.first_bad.minimum(step.long())
        self.first_bad.copy_(torch.where(finite, self.first_bad, earliest))
