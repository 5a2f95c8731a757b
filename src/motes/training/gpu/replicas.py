"""Batched training steps of several models: other seeds or settings, one computation.

The models' parameters are views of stacked tensors, so that one batched computation serves all
(`motes.training.gpu.networks`) while each model can be saved, queried and resumed by itself. On a
GPU the whole step is captured once as a CUDA graph.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.func import functional_call

from motes.core.axes import Bool, Float, Float64, Tensor
from motes.data.clips import PackedFrames
from motes.kalman.dense import PositionPrior, position_prior
from motes.kalman.dynamics import LinearDynamics, require_linear
from motes.kalman.model import LGSSM
from motes.models.elbo import BoundTerms, entropy
from motes.models.model import Model
from motes.models.protocols import GaussianPosterior
from motes.training.distillation import log_density
from motes.training.gpu import networks
from motes.training.gpu.reference_ops import BETA_1, BETA_2
from motes.training.inputs import InputBlocks, StepInputs, blur, joined_inputs
from motes.training.step import Monitor, Trainer, training_step

GROUP = 4  # models in one computation; more are limited by memory bandwidth
EAGER_STEPS = 3  # real steps before a step is captured, which also compile kernels


class Groups:
    """Any number of trainers in groups of at most `GROUP`, each on its own stream.

    Launch and memory latency of one group overlaps with the arithmetic of the others.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        number = -(-len(trainers) // GROUP)
        self.groups = [Replicas(trainers[i::number]) for i in range(number)]
        device = self.groups[0].device
        streams = number if number > 1 and device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream(device) for _ in range(streams)]
        self.apart = False

    def advance(self) -> None:
        """Take one step of every trainer; groups run asynchronously."""
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

    def synchronize(self) -> None:
        """Order all steps before whatever comes next on this stream."""
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        self.apart = False


class Replicas:
    """Trainers of models of one shape, at the same step, on the same clips; an `Engine`."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, first = trainers, trainers[0]
        self.config, self.data, self.device = first.config, first.data, first.device
        self.stacks = stack_parameters([trainer.model for trainer in trainers])
        self.moments = stack_moments(trainers, list(self.stacks))
        # On a GPU kept from step to step and updated with the weights by Adam.
        precision, on_gpu = self.config.precision, self.device.type == "cuda"
        self.kept_factors = keep_factors(self.stacks, precision) if on_gpu else None
        self.bad = torch.zeros(len(trainers), dtype=torch.int32, device=self.device)
        self.monitor = Monitor(len(trainers), self.device)
        for row, trainer in enumerate(trainers):
            trainer.monitor = self.monitor.row(row)
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
        """The number of steps taken."""
        return self.trainers[0].step

    def advance(self) -> None:
        """Take one step of every trainer."""
        if self.blocks is None:
            configs = [trainer.config for trainer in self.trainers]
            training_step(self, joined_inputs(configs, len(self.data.num_objects), self.step))
        else:
            self.blocks.load(self.step)
            self._advance_on_gpu(self.blocks)
        for trainer in self.trainers:
            trainer.count_step()

    def frames(self, inputs: StepInputs) -> Float[Tensor, "R B T height width"]:
        """Return the clips of the step, blurred as the schedule says."""
        indices, video = inputs.indices.flatten(), self.data.video
        if self.side is not None and not self.blurs and isinstance(video, PackedFrames):
            from motes.training.gpu import kernels

            pixels = kernels.unpack_frames(video.bits, indices, video.height * video.width)
            return pixels.view(*inputs.indices.shape, *video.shape[1:])
        frames: Tensor = self.data.frames(indices).unflatten(0, inputs.indices.shape)
        if not self.blurs:
            return frames
        widths = inputs.settings[:, -2].float()
        blurred: Tensor = torch.vmap(blur, (0, 0, None))(frames, widths, self.data.mass)
        return blurred

    def terms(self, frames: Float[Tensor, "R B T height width"], inputs: StepInputs) -> BoundTerms:
        """Return the terms to maximise, per replica and clip: of the bound or of distillation."""
        num_objects = self.data.num_objects[inputs.indices]
        slots = torch.arange(self.config.data.max_objects, device=self.device)
        present, shape = slots < num_objects[..., None], num_objects.shape
        with self._on_side_stream():  # many small operations that need no frames
            motion = self.motion()
        floor, factors = self.config.model.scale_floor, self.factors()
        means, scales = networks.encode(
            self._of("inference."),
            factors["inference.from_image"],
            factors["inference.recurrent"],
            frames,
            num_objects,
            floor,
        )
        # The rest treats the clips of all replicas as one batch.
        clips = GaussianPosterior(means.flatten(0, 1), scales.flatten(0, 1))
        noise = inputs.noise.flatten(0, 1)
        distills = self.step < self.config.schedule.distillation_steps
        if distills and self.data.pseudo_labels is not None:
            positions = self.labels(inputs).draw(noise)
            spread = log_density(clips, positions, present.flatten(0, 1))
        else:
            positions = clips.draw(noise)
            spread = entropy(clips.entropy(), present.flatten(0, 1))
        positions = positions.unflatten(0, shape)
        with self._on_side_stream(positions, present):
            evidence = log_evidence(*motion, positions, present)
        likelihood = networks.log_likelihood(
            self._of("renderer."), factors["renderer.to_image"], positions, present, frames
        )
        return BoundTerms(likelihood, spread.unflatten(0, shape), evidence)

    def labels(self, inputs: StepInputs) -> GaussianPosterior:
        """Return the pseudo-labels of the step's clips, of one replica after another."""
        own = []
        for trainer, indices in zip(self.trainers, inputs.indices, strict=True):
            assert trainer.data.pseudo_labels is not None
            own.append(trainer.data.pseudo_labels.select(indices))
        means, scales = (torch.cat([getattr(q, part) for q in own]) for part in ("means", "scales"))
        return GaussianPosterior(means, scales)

    def factors(self) -> dict[str, networks.Factor]:
        """Return the matrices of the networks as products read them."""
        return networks.factors(self.stacks) if self.kept_factors is None else self.kept_factors

    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors to differentiate: the stacks, or the factors kept in their place."""
        if self.kept_factors is None:
            return self.stacks
        inside = networks.parts_of_factors()
        rest = {name: stack for name, stack in self.stacks.items() if name not in inside}
        return rest | {name: factor.backward for name, factor in self.kept_factors.items()}

    def update(
        self, terms: BoundTerms, rates: Sequence[Float64[Tensor, " R"]], kl_weight: Tensor
    ) -> Bool[Tensor, " R"]:
        """Take a step of Adam; return which replicas' gradients were finite.

        The gradient of the weighted bound is taken without forming the loss, so that no term waits
        for another.
        """
        one = torch.ones_like(terms.reconstruction)
        weights = (one, *(kl_weight.to(one)[:, None] * one,) * 2)
        leaves = self.leaves()
        gradients = torch.autograd.grad(
            terms, list(leaves.values()), [-w / self.config.batch_size for w in weights]
        )
        self._join()
        self.apply_adam(rates, dict(zip(leaves, gradients, strict=True)))
        return self.bad == 0

    @torch.no_grad()
    def apply_adam(
        self, rates: Sequence[Float64[Tensor, " R"]], gradients: Mapping[str, Tensor]
    ) -> None:
        """Apply Adam to the stacks; rates are those of the networks and of the dynamics.

        Gradients are of `leaves`.
        """
        self.moments.steps.add_(1)
        self.bad.zero_()
        steps, adam = self.moments.steps.double(), networks.backend(self.bad).adam_step
        step_sizes = [rate / (1 - BETA_1**steps) for rate in rates]
        correction = 1 / (1 - BETA_2**steps)
        gradients, copies = dict(gradients), dict[str, list[Tensor]]()
        for name, factor in (self.kept_factors or {}).items():
            parts = networks.FACTORS[name]
            rows = [whole.chunk(len(parts), dim=1) for whole in (gradients[name], *factor)]
            for part, gradient, *own in zip(parts, *rows, strict=True):
                gradients[part], copies[part] = gradient, own
        for name, stack in self.stacks.items():
            step_size = step_sizes[name.startswith("dynamics.")]
            moments = self.moments.means[name], self.moments.squares[name]
            own = [copy for copy in copies.get(name, []) if copy.stride(0) > 0]
            adam(stack, gradients[name], *moments, step_size, correction, self.bad, own)

    def motion(self) -> tuple[PositionPrior, Float64[Tensor, "R K"]]:
        """Return the prior of positions, with axes [R, B, N, K], and its component weights."""
        own = self._of("dynamics.")
        dynamics = require_linear(self.trainers[0].model.dynamics)
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
        """Return the stacked parameters of one part of the models by their own names."""
        names = (name for name in self.stacks if name.startswith(part))
        return {name.removeprefix(part): self.stacks[name] for name in names}

    def _on_side_stream(self, *lent: Tensor) -> contextlib.AbstractContextManager[object]:
        """Return a context on the side stream, which runs beside what follows until `_join`.

        Tensors that are lent to it are not reused by the allocator before it has read them.
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
        """Take the first steps eagerly, then capture one and replay it."""
        if self.step == self.config.schedule.distillation_steps:  # another computation from here on
            self.graph, self._eager_left = None, EAGER_STEPS
        if self._eager_left > 0:
            self._eager_left -= 1
            training_step(self, blocks.take())
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            # On its own stream: products of two graphs must not share their workspace.
            with torch.cuda.graph(self.graph, stream=torch.cuda.Stream(self.device)):
                training_step(self, blocks.take())
        self.graph.replay()


def log_evidence(
    prior: PositionPrior,
    log_weights: Float64[Tensor, "R K"],
    positions: Float[Tensor, "R B N T 2"],
    present: Bool[Tensor, "R B N"],
) -> Float[Tensor, "R B"]:
    """Return log p(a) of each clip: `motes.models.elbo.log_prior` of each replica."""
    joint = log_weights[:, None, None] + prior.log_density(positions[:, :, :, None])
    evidence = torch.where(present, joint.logsumexp(-1), 0.0).sum(-1)
    return evidence.to(positions.dtype)


def stack_parameters(models: Sequence[Model]) -> dict[str, Tensor]:
    """Return the parameters of all models as stacks, of which each model's become views."""
    stacks = {}
    for name, _ in models[0].named_parameters():
        own = [model.get_parameter(name) for model in models]
        stacks[name] = torch.stack([parameter.detach() for parameter in own])
        for parameter, row in zip(own, stacks[name], strict=True):
            parameter.data = row
        stacks[name].requires_grad_()
    return stacks


def keep_factors(
    stacks: Mapping[str, Tensor], precision: str = "mixed"
) -> dict[str, networks.Factor]:
    """Return the factors of the stacks as leaves for differentiation."""
    with torch.no_grad():
        made = networks.factors(stacks, precision)
    # Pixels get no gradient, so this one is never read, only differentiated.
    image = made["inference.from_image"]
    hollow = image.backward.new_zeros(()).expand_as(image.backward)
    made["inference.from_image"] = image._replace(backward=hollow)
    for factor in made.values():
        factor.backward.requires_grad_()
    return made


class Moments(NamedTuple):
    """Adam's moments of R replicas, of each stack by its name.

    First moments have the type of the gradients [Choice 21].
    """

    steps: Float[Tensor, " R"]
    means: dict[str, Tensor]
    squares: dict[str, Tensor]


def stack_moments(trainers: Sequence[Trainer], names: Sequence[str]) -> Moments:
    """Return the moments of all optimizers as stacks, of which each optimizer's become views."""
    states = [trainer.optimizer.state for trainer in trainers]
    steps = torch.zeros(len(trainers), device=trainers[0].device)
    means, squares, inside = {}, {}, networks.parts_of_factors()
    for name in names:
        own = [trainer.model.get_parameter(name) for trainer in trainers]
        zero = torch.zeros_like(own[0])
        means[name], squares[name] = (
            torch.stack([s[p].get(slot, zero) for s, p in zip(states, own, strict=True)])
            for slot in ("exp_avg", "exp_avg_sq")
        )
        if name in inside:
            kind = networks.types_of(zero, trainers[0].config.precision).backward
            means[name] = means[name].to(kind)
        for row, (state, parameter) in enumerate(zip(states, own, strict=True)):
            steps[row] = state[parameter].get("step", 0)
            state[parameter] = dict(
                step=steps[row], exp_avg=means[name][row], exp_avg_sq=squares[name][row]
            )
    return Moments(steps, means, squares)


class _Parts(torch.nn.Module):
    """The matrices of the dynamics as a module's output, as `functional_call` needs."""

    def __init__(self, dynamics: LinearDynamics) -> None:
        super().__init__()
        self.dynamics = dynamics

    def forward(self) -> tuple[LGSSM, Float64[Tensor, " K"]]:
        return self.dynamics.components(), self.dynamics.log_weights()
