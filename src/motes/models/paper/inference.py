"""Frames to positions: the paper's recurrent inference network."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.models.paper.initialization import paper_init
from motes.models.paper.recurrence import recur
from motes.models.posterior import GaussianPosterior
from motes.models.protocols import Search

CHUNK_FRAMES = 256  # frames whose states are held together, which bounds memory
BYTES_PER_POSITION = 6_000  # peak memory, as measured


class InferenceNetwork(nn.Module):
    """A recurrent network over frames and objects that returns a Gaussian for each position.

    Object n at frame t depends on objects 1..n and frames 1..t only; slots beyond the objects of a
    clip are computed and ignored.

    Law: that sentence (test_later_frames_and_objects_cannot_matter), and `forward` equals `step`
    taken frame by frame, however long the clip (test_forward_equals_steps).
    """

    requires_zeroed_frames = True
    exchangeable = False

    def __init__(
        self,
        image_size: tuple[int, int],
        max_objects: int,
        state_size: int,
        scale_floor: float,
        initial_scale: float,
        generator: torch.Generator,
    ) -> None:
        """Build the network with the paper's random weights and zero biases.

        Args:
            image_size: height and width of a frame in pixels.
            max_objects: the largest number of objects in a clip.
            state_size: elements of the latent state s.
            scale_floor: scales stay above it, so that q cannot collapse to a point.
            initial_scale: the scale that the untrained network reads off a zero state.
            generator: source of the random weights.
        """
        super().__init__()
        if not 0 <= scale_floor < initial_scale:
            raise InputError(
                f"got initial_scale {initial_scale} and scale_floor {scale_floor}; expected "
                "0 <= scale_floor < initial_scale; raise the one or lower the other"
            )
        num_pixels, S = math.prod(image_size), state_size
        self.initial = nn.Parameter(torch.zeros(max_objects, max_objects, S))
        # W^beta and W^s, each one matrix on [s_{t-1}^n, s_t^{n-1}, v_t], stand side by side.
        both = [paper_init((2 * S + num_pixels, S), generator) for _ in ("beta", "shat")]
        past, below, image = torch.cat(both, dim=1).split([S, S, num_pixels])
        self.from_past = nn.Parameter(past.clone())
        self.from_below = nn.Parameter(below.clone())
        self.from_image = nn.Parameter(image.clone())
        self.gate_bias = nn.Parameter(torch.zeros(2 * S))
        heads = [paper_init((S, 2), generator) for _ in ("mean", "scale")]
        self.to_position = nn.Parameter(torch.cat(heads, dim=1))
        raw = math.log(math.expm1(initial_scale - scale_floor))  # softplus(raw) + floor = initial
        self.position_bias = nn.Parameter(torch.tensor([0.0, 0.0, raw, raw]))
        self.scale_floor = scale_floor

    def forward(
        self, frames: Float[Tensor, "B T height width"], num_objects: Int[Tensor, " B"]
    ) -> GaussianPosterior:
        """Return q(a | v) for all objects and frames.

        Args:
            frames: values in [0, 1].
            num_objects: objects in each clip, 1 to `max_objects`; it chooses the initial states.
        """
        before, read = self.initial_states(num_objects).transpose(0, 1), []
        for part in frames.flatten(2).transpose(0, 1).split(CHUNK_FRAMES):  # T B pixels
            states = recur(before, self.image_part(part), self.from_past, self.from_below)
            before = states[:, -1]
            read.append(self.read_out(states))  # N T B 2
        means, scales = (
            torch.cat(parts, 1).permute(2, 0, 1, 3) for parts in zip(*read, strict=True)
        )
        return GaussianPosterior(means, scales)

    def infer(
        self,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        *,
        dynamics: Any,
        renderer: Any,
        slots: int,
        search: Search,
    ) -> GaussianPosterior:
        """Return q(a | v); where a frame is unobserved it has no meaning.

        Law: pixels of unobserved frames cannot matter, and with the mask of the paper's section on
        past and future observations it is that procedure; tests/models/paper/test_gap_filling.py.
        """
        if observed is None:
            return self(frames, num_objects)  # type: ignore[no-any-return]
        observed_later = observed.flip(1).cumsum(1).flip(1) > 0
        if bool((~observed & observed_later).any()):
            q = self._infer_across_gaps(frames, num_objects, observed, dynamics, renderer)
        else:
            q = self(frames, num_objects)
        return q._replace(observed=observed)

    def _infer_across_gaps(
        self,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        dynamics: Any,
        renderer: Any,
    ) -> GaussianPosterior:
        """Return q(a | v) by the paper's procedure of the warmed-in state.

        Where a frame is unobserved the network reads the frame that the model expects: the
        rendered mean of the most likely component's prediction, given the positions inferred so
        far. It reads probabilities, not a binary draw of them. [Choice 8]
        """
        states = self.initial_states(num_objects)
        slots = torch.arange(states.shape[1], device=states.device)
        present = slots < num_objects[:, None]
        belief = dynamics.initial((len(frames), states.shape[1]))
        means, scales = [], []
        for frame, flag in zip(frames.unbind(1), observed.unbind(1), strict=True):
            if not bool(flag.all()):
                expected = dynamics.observe(belief).mode().to(states.dtype)
                logits: Tensor = renderer(expected[:, :, None], present)
                frame = torch.where(flag[:, None, None], frame, logits.sigmoid()[:, 0])
            states = self.step(states, frame)
            mean, scale = self.read_out(states)
            means.append(mean)
            scales.append(scale)
            belief = dynamics.predict(dynamics.update(belief, mean, flag[:, None]))
        return GaussianPosterior(torch.stack(means, 2), torch.stack(scales, 2))

    def max_objects(self, trained: int) -> int:
        """Return the largest count of the training clips: the network has no others."""
        return trained

    def bytes_per_clip(self, num_objects: int, num_frames: int, num_components: int) -> int:
        """Return the peak memory of `infer` for each of many clips."""
        return BYTES_PER_POSITION * num_objects * num_frames

    def initial_states(self, num_objects: Int[Tensor, " B"]) -> Float[Tensor, "B N state"]:
        """Return s_0 of each object, learned separately for each number of objects.

        Paper: section "Inference network", footnote; zero before training, [Choice 2].
        """
        return self.initial.index_select(0, num_objects - 1).tanh()

    def step(
        self, states: Float[Tensor, "B N state"], frame: Float[Tensor, "B height width"]
    ) -> Float[Tensor, "B N state"]:
        """Return the states after one more frame.

        Paper: [Eq. inference:state-update], with s_t^0 = 0.

            beta^n = sigm(W_beta [s_{t-1}^n, s_t^{n-1}, v_t] + b_beta)
            shat^n = tanh(W_s [s_{t-1}^n, s_t^{n-1}, v_t] + b_s)
            s_t^n  = (1 - beta^n) s_t^{n-1} + beta^n shat^n
        """
        image_part = self.image_part(frame.flatten(1))
        s = torch.zeros_like(states[:, 0])
        updated = []
        for s_past in states.unbind(1):
            gates = image_part + s_past @ self.from_past + s @ self.from_below
            beta, shat = gates.chunk(2, dim=-1)
            s = torch.lerp(s, shat.tanh(), beta.sigmoid())
            updated.append(s)
        return torch.stack(updated, dim=1)

    def read_out(
        self, states: Float[Tensor, "... state"]
    ) -> tuple[Float[Tensor, "... 2"], Float[Tensor, "... 2"]]:
        """Return the mean and the scale of the position that a state stands for.

        Paper: [Eq. inference-of-a]: a = mean + scale * epsilon, epsilon ~ Normal(0, I).
        """
        mean, raw = (states @ self.to_position + self.position_bias).chunk(2, dim=-1)
        return mean, self.scale_floor + softplus(raw)

    def image_part(self, pixels: Float[Tensor, "*rows pixels"]) -> Float[Tensor, "*rows gates"]:
        """Return what frames alone add to the two gates: it needs no state, so all go at once."""
        return pixels @ self.from_image + self.gate_bias
