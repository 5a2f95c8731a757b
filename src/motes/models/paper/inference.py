"""Frames to positions: the paper's recurrent inference network."""

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import softplus

from motes.core.axes import Float, Int, Tensor
from motes.core.errors import InputError
from motes.models.paper import paper_init
from motes.models.paper.recurrence import recur

AT_ONCE = 256  # frames whose states are held side by side, which bounds memory


class GaussianPosterior(NamedTuple):
    """q(a | v): an independent Gaussian for each position, in latent units."""

    means: Float[Tensor, "B N T 2"]
    scales: Float[Tensor, "B N T 2"]

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """A draw by reparametrisation. Paper: [Eq. reparam-monte-carlo] with M = 1."""
        return self.means + self.scales * noise

    def entropy(self) -> Float[Tensor, "B N T"]:
        """The entropy of each position in nats, in closed form: log(scale sqrt(2 pi e)) summed."""
        return (self.scales.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """The log density of the draw that this noise makes."""
        return -self.entropy() - 0.5 * (noise.square() - 1).sum(-1)

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """The covariance of each position."""
        return self.scales.square().diag_embed()


class InferenceNetwork(nn.Module):
    """Reads frames in order and says, for each object and frame, where the object is.

    A clip with fewer objects than `max_objects` carries the later ones along and ignores them:
    object n at frame t depends on objects 1..n and frames 1..t only.

    Law: that sentence (test_later_frames_and_objects_cannot_matter), and `forward` equals `step`
    taken frame by frame, however long the clip (test_forward_equals_steps).
    """

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
        for part in frames.flatten(2).transpose(0, 1).split(AT_ONCE):  # T B pixels
            states = recur(before, self.image_part(part), self.from_past, self.from_below)
            before = states[:, -1]
            read.append(self.read_out(states))  # N T B 2
        means, scales = (
            torch.cat(parts, 1).permute(2, 0, 1, 3) for parts in zip(*read, strict=True)
        )
        return GaussianPosterior(means, scales)

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
