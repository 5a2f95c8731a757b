"""Several models that take their steps together: other seeds, other settings, one computation.

The models' parameters lie side by side in memory, so that one batched computation serves all
(`motes.training.gpu.networks`), and each model stays a whole one that is saved, asked and resumed on its
own. On a GPU the whole step is captured once as a graph.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.func import functional_call

from motes.core.axes import Bool, Float, Float64, Tensor
from motes.data.clips import PackedFrames
from motes.kalman.dense import PositionPrior, position_prior
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM
from motes.models.elbo import BoundTerms, entropy
from motes.models.model import Model
from motes.models.paper.inference import GaussianPosterior
from motes.training.distillation import log_density
from motes.training.gpu import networks as stacked
from motes.training.gpu.reference_ops import BETA_1, BETA_2
from motes.training.inputs import InputBlocks, StepInputs, blur, joined_inputs
from motes.training.step import Trainer, Watch

GROUP = 4  # models in one computation: more would wait for memory
EAGER_STEPS = 3  # before a step is captured: real steps, which also compile kernels


class Groups:
    """Any number of trainers as groups of at most `GROUP`, each with a stream of its own.

    What a group waits for, launches or memory, hides behind the arithmetic of the other.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        number = -(-len(trainers) // GROUP)
        self.groups = [Replicas(trainers[i::number]) for i in range(number)]
        device = self.groups[0].device
        streams = number if number > 1 and device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream(device) for _ in range(streams)]
        self.apart = False

    def advance(self) -> None:
        """Takes one step of every trainer; the groups may be at different places in it."""
        if not self.streams:
            for group in self.groups:
                group.advance()
            return
        for group, stream in zip(self.groups, self.streams, strict=True):
            if not self.apart:
                stream.wait_stream(torch.cuda.current_stream(group.device))
            with torch.cuda.stream(stream):
                group.advance()
        self.apart = True

    def wait(self) -> None:
        """Makes whatever comes next on this stream come after all steps, and they after it."""
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        self.apart = False


class Replicas:
    """Trainers of models of one shape, at the same step, on the same clips."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, first = trainers, trainers[0]
        self.config, self.data, self.device = first.config, first.data, first.device
        self.stacks = stack_parameters([trainer.model for trainer in trainers])
        self.moments = stack_moments(trainers, list(self.stacks))
        # On a GPU kept from step to step, brought up to date with the weights by Adam.
        self.kept_factors = keep_factors(self.stacks) if self.device.type == "cuda" else None
        self.bad = torch.zeros(len(trainers), dtype=torch.int32, device=self.device)
        self.watch = Watch(len(trainers), self.device)
        for row, trainer in enumerate(trainers):
            trainer.watch = self.watch.row(row)
        configs, num_clips = [trainer.config for trainer in trainers], len(self.data.num_objects)
        self.blurs = any(width > 0 for c in configs for _, width in c.schedule.blur)
        self.blocks: InputBlocks | None = None
        self.side: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.blocks = InputBlocks(configs, num_clips, self.device)
            self.side = torch.cuda.Stream(self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self._eager_left = EAGER_STEPS

    @property
    def step(self) -> int:
        """How many steps were taken."""
        return self.trainers[0].step

    def advance(self) -> None:
        """Takes one step of every trainer."""
        if self.blocks is None:
            configs = [trainer.config for trainer in self.trainers]
            self.compute(joined_inputs(configs, len(self.data.num_objects), self.step))
        else:
            self.blocks.load(self.step)
            self._advance_on_gpu(self.blocks)
        for trainer in self.trainers:
            trainer.count_step()

    def compute(self, inputs: StepInputs) -> None:
        """The arithmetic of a step of all: bounds, gradients, updates."""
        *rates, kl_weights, _, steps = inputs.settings.unbind(-1)
        terms = self.terms(self.frames(inputs), inputs)
        # Of the loss, minus the weighted bound; not formed, so that no term waits for another.
        one = torch.ones_like(terms.reconstruction)
        weights = (one, *(kl_weights.to(one)[:, None] * one,) * 2)
        leaves = self.leaves()
        gradients = torch.autograd.grad(
            terms, list(leaves.values()), [-w / self.config.batch_size for w in weights]
        )
        self._join()
        self.update(rates, dict(zip(leaves, gradients, strict=True)))
        means = torch.stack([term.detach().double().sum(1) for term in terms], 1)
        self.watch.see(means / self.config.batch_size, self.bad == 0, steps)

    def frames(self, inputs: StepInputs) -> Float[Tensor, "R B T height width"]:
        """The clips of a step, as sharp as they are shown."""
        indices, video = inputs.indices.flatten(), self.data.video
        if self.side is not None and not self.blurs and isinstance(video, PackedFrames):
            from motes.training.gpu import kernels

            pixels = kernels.unpack(video.bits, indices, video.height * video.width)
            return pixels.view(*inputs.indices.shape, *video.shape[1:])
        frames: Tensor = self.data.frames(indices).unflatten(0, inputs.indices.shape)
        if not self.blurs:
            return frames
        widths = inputs.settings[:, -2].float()
        blurred: Tensor = torch.vmap(blur, (0, 0, None))(frames, widths, self.data.ink)
        return blurred

    def terms(self, frames: Float[Tensor, "R B T height width"], inputs: StepInputs) -> BoundTerms:
        """The terms to maximise, of each replica and clip: those of a lesson while being taught."""
        num_objects = self.data.num_objects[inputs.indices]
        slots = torch.arange(self.config.data.max_objects, device=self.device)
        present, shape = slots < num_objects[..., None], num_objects.shape
        with self._beside():  # many small steps that need no frames
            motion = self.motion()
        floor, factors = self.config.model.scale_floor, self.factors()
        said = stacked.encode(
            self._of("inference."),
            factors["inference.from_image"],
            factors["inference.recurrent"],
            frames,
            num_objects,
            floor,
        )
        # What is left is done clip by clip: the clips of all replicas are one batch.
        clips, noise = (
            GaussianPosterior(*(part.flatten(0, 1) for part in said)),
            inputs.noise.flatten(0, 1),
        )
        if self.data.lessons is not None and self.step < self.config.schedule.taught:
            lesson = GaussianPosterior(
                *(part[inputs.indices.flatten()] for part in self.data.lessons)
            )
            positions = lesson.draw(noise)
            spread = log_density(clips, positions, present.flatten(0, 1))
        else:
            positions = clips.draw(noise)
            spread = entropy(clips.entropy(), present.flatten(0, 1))
        positions = positions.unflatten(0, shape)
        with self._beside(positions, present):
            evidence = log_evidence(*motion, positions, present)
        likelihood = stacked.log_likelihood(
            self._of("renderer."), factors["renderer.to_image"], positions, present, frames
        )
        return BoundTerms(likelihood, spread.unflatten(0, shape), evidence)

    def factors(self) -> dict[str, stacked.Factor]:
        """The matrices of the networks as products read them."""
        return stacked.factors(self.stacks) if self.kept_factors is None else self.kept_factors

    def leaves(self) -> dict[str, Tensor]:
        """What gradients are taken by: the stacks; of those that are kept as factors, these."""
        if self.kept_factors is None:
            return self.stacks
        inside = stacked.parts_of_factors()
        rest = {name: stack for name, stack in self.stacks.items() if name not in inside}
        return rest | {name: factor.backward for name, factor in self.kept_factors.items()}

    @torch.no_grad()
    def update(
        self, rates: Sequence[Float64[Tensor, " R"]], gradients: Mapping[str, Tensor]
    ) -> None:
        """A step of Adam; the two rates are of the networks and of the dynamics.

        Gradients are of `leaves`.
        """
        self.moments.steps.add_(1)
        self.bad.zero_()
        steps, adam = self.moments.steps.double(), stacked.quick(self.bad).adam
        paces = [rate / (1 - BETA_1**steps) for rate in rates]
        correction = 1 / (1 - BETA_2**steps)
        gradients, copies = dict(gradients), dict[str, list[Tensor]]()
        for name, factor in (self.kept_factors or {}).items():
            parts = stacked.FACTORS[name]
            rows = [whole.chunk(len(parts), dim=1) for whole in (gradients[name], *factor)]
            for part, gradient, *own in zip(parts, *rows, strict=True):
                gradients[part], copies[part] = gradient, own
        for name, stack in self.stacks.items():
            pace = paces[name.startswith("dynamics.")]
            moments = self.moments.means[name], self.moments.squares[name]
            own = [copy for copy in copies.get(name, []) if copy.stride(0) > 0]
            adam(stack, gradients[name], *moments, pace, correction, self.bad, own)

    def motion(self) -> tuple[PositionPrior, Float64[Tensor, "R K"]]:
        """The prior of positions, with axes [R, B, N, K], and the weights of its components."""
        dynamics, own = self.trainers[0].model.dynamics, self._of("dynamics.")
        models, log_weights = torch.vmap(
            lambda parameters: functional_call(_Parts(dynamics), parameters, ())
        )({f"dynamics.{name}": stack for name, stack in own.items()})
        shared, starts = models[:5], models[5:]
        model = LGSSM(
            *(part[:, None, None, None] for part in shared),
            *(part[:, None, None] for part in starts),
        )
        return position_prior(model, self.config.data.num_frames), log_weights

    def _of(self, part: str) -> dict[str, Tensor]:
        """The stacked parameters of one part of the models by their own names."""
        names = (name for name in self.stacks if name.startswith(part))
        return {name.removeprefix(part): self.stacks[name] for name in names}

    def _beside(self, *lent: Tensor) -> contextlib.AbstractContextManager[object]:
        """Work that may go on beside what follows, until `_join`, and what it reads.

        What is lent is kept from being written over by the other work when nobody holds it any
        more: the work beside may be late, and would read what is not there.
        """
        if self.side is None:
            return contextlib.nullcontext()
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in lent:
            tensor.record_stream(self.side)
        return torch.cuda.stream(self.side)

    def _join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.side)

    def _advance_on_gpu(self, blocks: InputBlocks) -> None:
        """Takes the step as it is written the first times, then captures it once and replays it."""
        if self.step == self.config.schedule.taught:  # another arithmetic from here on
            self.graph, self._eager_left = None, EAGER_STEPS
        if self._eager_left > 0:
            self._eager_left -= 1
            self.compute(blocks.take())
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            # On a stream of its own: products of two graphs must not share their work space.
            with torch.cuda.graph(self.graph, stream=torch.cuda.Stream(self.device)):
                self.compute(blocks.take())
        self.graph.replay()


def log_evidence(
    prior: PositionPrior,
    log_weights: Float64[Tensor, "R K"],
    positions: Float[Tensor, "R B N T 2"],
    present: Bool[Tensor, "R B N"],
) -> Float[Tensor, "R B"]:
    """The log of p(a) of each clip; `motes.models.elbo.log_prior` of each replica."""
    joint = log_weights[:, None, None] + prior.log_density(positions[:, :, :, None])
    evidence = torch.where(present, joint.logsumexp(-1), 0.0).sum(-1)
    return evidence.to(positions.dtype)


def stack_parameters(models: Sequence[Model]) -> dict[str, Tensor]:
    """The parameters of all models as stacks, of which each model's become views."""
    stacks = {}
    for name, _ in models[0].named_parameters():
        own = [model.get_parameter(name) for model in models]
        stacks[name] = torch.stack([parameter.detach() for parameter in own])
        for parameter, row in zip(own, stacks[name], strict=True):
            parameter.data = row
        stacks[name].requires_grad_()
    return stacks


def keep_factors(stacks: Mapping[str, Tensor]) -> dict[str, stacked.Factor]:
    """The factors of the stacks as leaves of their own, which gradients are taken by."""
    with torch.no_grad():
        made = stacked.factors(stacks)
    # Pixels get no gradient, so this one is never read: it is there to be differentiated by.
    image = made["inference.from_image"]
    hollow = image.backward.new_zeros(()).expand_as(image.backward)
    made["inference.from_image"] = image._replace(backward=hollow)
    for factor in made.values():
        factor.backward.requires_grad_()
    return made


class Moments(NamedTuple):
    """What Adam remembers of R replicas, of each stack by its name.

    A mean is kept in the type of the gradients it is a mean of [Choice 21].
    """

    steps: Float[Tensor, " R"]
    means: dict[str, Tensor]
    squares: dict[str, Tensor]


def stack_moments(trainers: Sequence[Trainer], names: Sequence[str]) -> Moments:
    """The memory of all optimizers as stacks, of which each optimizer's become views."""
    states = [trainer.optimizer.state for trainer in trainers]
    steps = torch.zeros(len(trainers), device=trainers[0].device)
    means, squares, inside = {}, {}, stacked.parts_of_factors()
    for name in names:
        own = [trainer.model.get_parameter(name) for trainer in trainers]
        zero = torch.zeros_like(own[0])
        means[name], squares[name] = (
            torch.stack([s[p].get(slot, zero) for s, p in zip(states, own, strict=True)])
            for slot in ("exp_avg", "exp_avg_sq")
        )
        if name in inside:
            means[name] = means[name].to(stacked.gradient_type(zero))
        for row, (state, parameter) in enumerate(zip(states, own, strict=True)):
            steps[row] = state[parameter].get("step", 0)
            state[parameter] = dict(
                step=steps[row], exp_avg=means[name][row], exp_avg_sq=squares[name][row]
            )
    return Moments(steps, means, squares)


class _Parts(torch.nn.Module):
    """The matrices of the dynamics as a module's output, which `functional_call` asks for."""

    def __init__(self, dynamics: LinearDynamics) -> None:
        super().__init__()
        self.dynamics = dynamics

    def forward(self) -> tuple[LGSSM, Float64[Tensor, " K"]]:
        return self.dynamics.components(), self.dynamics.log_weights()
