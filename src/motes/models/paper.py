"""The paper's family: a recurrent renderer and a recurrent inference network."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from motes.config import DataConfig, optional, require
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.models.protocols import Family, GaussianPosterior, PlainRenderer, Search

CHUNK_FRAMES = 256  # frames whose states are held together, which bounds memory
BYTES_PER_POSITION = 6_000  # peak memory, as measured


def paper_init(shape: tuple[int, int], generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """Draw the starting values of one weight matrix, Normal(0, 1/sqrt(d)) with d its elements.

    Paper: section "Initialization and training". 1/sqrt(d) is read as the *variance*: as a
    standard deviation it would be about 1e-4 at the paper's size, from which nothing is learned.
    [Choice 1]

    Law: the variance is 1/sqrt(d) (test_paper_init_has_variance_one_over_root_d).
    """
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return values / math.sqrt(math.sqrt(math.prod(shape)))


class PaperRenderer(PlainRenderer):
    """Draws the positions of all objects of a frame into the logits of its pixels.

    Paper: [Eq. rendering], [Eq. v].

        x^0 = tanh(theta)
        x^n = (1 - alpha^n) x^{n-1} + alpha^n xhat^n
              with alpha^n = sigm(W_alpha a^n + b_alpha) and xhat^n = tanh(W_x a^n + b_x)
        v ~ Bernoulli(sigm(W x^N + b))

    Law: equals the equations as loops (test_renderer_equals_the_naive_loop); what an absent object
    holds cannot matter (test_absent_objects_cannot_matter).
    """

    def __init__(
        self, image_size: tuple[int, int], state_size: int, generator: torch.Generator
    ) -> None:
        """Build the network with the paper's random weights and zero biases."""
        super().__init__()
        height, width = image_size
        self.image_size = image_size
        self.empty_canvas = nn.Parameter(torch.zeros(state_size, dtype=torch.float32))
        # alpha and xhat read the same positions, so their two matrices stand side by side.
        both = [paper_init((2, state_size), generator) for _ in ("alpha", "xhat")]
        self.from_position = nn.Parameter(torch.cat(both, dim=1))
        self.state_bias = nn.Parameter(torch.zeros(2 * state_size, dtype=torch.float32))
        self.to_image = nn.Parameter(paper_init((state_size, height * width), generator))
        self.image_bias = nn.Parameter(torch.zeros(height * width, dtype=torch.float32))

    def forward(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: None = None,
    ) -> Float[Tensor, "B T height width"]:
        """Return the logit of each pixel being white."""
        present = present[:, :, None, None]
        # Cleaned before the product: 0 * NaN would reach the gradients of the weights.
        a = torch.where(present, positions, 0)
        mask, contribution = (a @ self.from_position + self.state_bias).chunk(2, dim=-1)
        # alpha = 0 lets the state pass through an absent object unchanged.
        alpha, xhat = mask.sigmoid() * present, contribution.tanh()
        x = self.empty_canvas.tanh()
        for alpha_n, xhat_n in zip(alpha.unbind(1), xhat.unbind(1), strict=True):
            x = torch.lerp(x.expand_as(xhat_n), xhat_n, alpha_n)
        logits: Tensor = (x @ self.to_image + self.image_bias).unflatten(-1, self.image_size)
        return logits

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width"],
        *,
        appearance: None = None,
        detected: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return log p(v_t | a_t), summed over the Bernoulli pixels of each frame."""
        logits = self(positions, present)
        return -binary_cross_entropy_with_logits(logits, frames, reduction="none").sum((2, 3))


def recur(
    initial: Float[Tensor, "N B state"],
    image_part: Float[Tensor, "T B 2*state"],
    from_past: Float[Tensor, "state 2*state"],
    from_below: Float[Tensor, "state 2*state"],
) -> Float[Tensor, "N T B state"]:
    """Return the states of all objects at all frames, as repeated `InferenceNetwork.step`s would.

    The state of object n at frame t needs that of the same object one frame earlier (its past) and
    that of object n-1 at the same frame (the one below). Both lie on the diagonal t + n - 1, so all
    states with the same t + n are found together: T + N - 1 dependent steps instead of T * N.
    Buffers are skewed: row d holds diagonal d, so that each step reads and writes solid blocks.

    Args:
        initial: states before the first frame.
        image_part: what the frames alone add to the two gates, bias included.
        from_past: weights from an object's state one frame earlier to the two gates.
        from_below: weights from the state of the object before it to the two gates.

    Law: equals the plain loop, values and gradients (test_fast_order_equals_the_naive_loop,
    test_recurrence_passes_gradcheck).
    """
    states: Tensor = _Recurrence.apply(initial, image_part, from_past, from_below)
    return states


def _cells(skewed: Tensor, num_frames: int) -> Tensor:
    """View a skewed buffer [T+N-1, N, B, size] as [N, T, B, size]: cell (n, t) is in row t + n."""
    _, num_objects, num_clips, size = skewed.shape
    row, column, clip, element = skewed.stride()
    return skewed.as_strided(
        (num_objects, num_frames, num_clips, size), (row + column, row, clip, element)
    )


def _diagonals(num_frames: int, num_objects: int) -> Iterator[tuple[int, slice, slice, slice]]:
    """Give each diagonal d and its objects n = first..last (counted from 1) as three slices.

    Returns:
        own: columns n of the states, which begin with the column of s^0 = 0.
        below: columns n - 1 of the states, and those of object n in the gates, which have no s^0.
        fed: as `below`, without object 1: below it is s^0 = 0, whose product is not worth taking.
    """
    for d in range(num_frames + num_objects - 1):
        first, last = max(1, d - num_frames + 2), min(num_objects, d + 1)
        yield d, slice(first, last + 1), slice(first - 1, last), slice(max(first, 2) - 1, last)


def _rows(block: Tensor) -> Tensor:
    """View a solid block [n, B, size] as the rows of one matrix."""
    return block.flatten(0, 1)


class _Recurrence(torch.autograd.Function):
    """The diagonal order with its backward pass written out.

    Autograd would add to the weights' gradients at every step; here the gates' gradients are kept
    and each weight matrix has its gradient from one product over all cells.
    """

    @staticmethod
    def forward(
        ctx: Any, initial: Tensor, image_part: Tensor, from_past: Tensor, from_below: Tensor
    ) -> Tensor:
        (N, B, S), T = initial.shape, len(image_part)
        states = initial.new_empty(T + N, N + 1, B, S)
        states[:, 0] = 0  # s^0
        grid = _cells(states[:, 1:], T + 1)  # frame 0 is the initial state
        grid[:, 0] = initial
        gates = initial.new_empty(T + N - 1, N, B, 2 * S)
        _cells(gates, T).copy_(image_part.expand(N, -1, -1, -1))
        for d, own, below, fed in _diagonals(T, N):
            both = _rows(gates[d, below])
            both.addmm_(_rows(states[d, own]), from_past)
            _rows(gates[d, fed]).addmm_(_rows(states[d, fed]), from_below)
            beta, shat = both[:, :S].sigmoid_(), both[:, S:].tanh_()
            torch.lerp(_rows(states[d, below]), shat, beta, out=_rows(states[d + 1, own]))
        ctx.save_for_backward(states, gates, from_past, from_below)
        return grid[:, 1:].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, gates, from_past, from_below = ctx.saved_tensors
        N, T, _, S = grad_output.shape
        grad_states = torch.zeros_like(states)
        grad_grid = _cells(grad_states[:, 1:], T + 1)
        grad_grid[:, 1:] = grad_output
        grad_gates = torch.empty_like(gates)
        for d, own, below, fed in reversed(list(_diagonals(T, N))):
            grad_state, grad_both = _rows(grad_states[d + 1, own]), _rows(grad_gates[d, below])
            beta, shat = _rows(gates[d, below]).split(S, dim=1)
            # s = (1 - beta) s_below + beta shat, with beta and shat taken before sigm and tanh.
            torch.mul(grad_state, beta, out=grad_both[:, S:])
            grad_through = grad_state - grad_both[:, S:]
            _rows(grad_states[d, below]).add_(grad_through)
            torch.sub(shat, _rows(states[d, below]), out=grad_both[:, :S])
            grad_both[:, :S].mul_(beta).mul_(grad_through)
            grad_both[:, S:].addcmul_(grad_both[:, S:] * shat, shat, value=-1)
            _rows(grad_states[d, own]).addmm_(grad_both, from_past.t())
            _rows(grad_states[d, fed]).addmm_(_rows(grad_gates[d, fed]), from_below.t())
        grid, grad_cells = _cells(states[:, 1:], T + 1), _cells(grad_gates, T).contiguous()
        past, under = grid[:, :-1].reshape(-1, S), grid[:-1, 1:].reshape(-1, S)
        grad_from_past = past.t() @ grad_cells.view(-1, 2 * S)
        grad_from_below = under.t() @ grad_cells[1:].view(-1, 2 * S)
        return grad_grid[:, 0].contiguous(), grad_cells.sum(0), grad_from_past, grad_from_below


class InferenceNetwork(nn.Module):
    """A recurrent network over frames and objects that returns a Gaussian for each position.

    Object n at frame t depends on objects 1..n and frames 1..t only; slots beyond the objects of a
    clip are computed and ignored.

    Law: that sentence (test_later_frames_and_objects_cannot_matter), and `forward` equals `step`
    taken frame by frame, however long the clip (test_forward_equals_steps).
    """

    requires_zeroed_frames = True
    exchangeable = False
    clips_per_thread = 1

    def __init__(
        self,
        image_size: tuple[int, int],
        max_objects: int,
        state_size: int,
        scale_floor: float,
        initial_scale: float,
        generator: torch.Generator,
        gap_passes: int = 1,
    ) -> None:
        """Build the network with the paper's random weights and zero biases.

        A clip with hidden frames is read `gap_passes` times, see `infer`.
        """
        super().__init__()
        if not 0 <= scale_floor < initial_scale:
            raise InputError(
                f"got initial_scale {initial_scale} and scale_floor {scale_floor}; expected "
                "0 <= scale_floor < initial_scale; raise the one or lower the other"
            )
        num_pixels, S = math.prod(image_size), state_size
        self.initial = nn.Parameter(torch.zeros(max_objects, max_objects, S, dtype=torch.float32))
        # W^beta and W^s, each one matrix on [s_{t-1}^n, s_t^{n-1}, v_t], stand side by side.
        both = [paper_init((2 * S + num_pixels, S), generator) for _ in ("beta", "shat")]
        past, below, image = torch.cat(both, dim=1).split([S, S, num_pixels])
        self.from_past = nn.Parameter(past.clone())
        self.from_below = nn.Parameter(below.clone())
        self.from_image = nn.Parameter(image.clone())
        self.gate_bias = nn.Parameter(torch.zeros(2 * S, dtype=torch.float32))
        heads = [paper_init((S, 2), generator) for _ in ("mean", "scale")]
        self.to_position = nn.Parameter(torch.cat(heads, dim=1))
        raw = math.log(math.expm1(initial_scale - scale_floor))  # softplus(raw) + floor = initial
        self.position_bias = nn.Parameter(torch.tensor([0.0, 0.0, raw, raw], dtype=torch.float32))
        self.scale_floor, self.gap_passes = scale_floor, gap_passes

    def forward(
        self, frames: Float[Tensor, "B T height width"], num_objects: Int[Tensor, " B"]
    ) -> GaussianPosterior:
        """Return q(a | v) for all objects and frames."""
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
        past and future observations it is that procedure; tests/models/test_paper_gaps.py.
        """
        if observed is None:
            return self(frames, num_objects)  # type: ignore[no-any-return]
        observed_later = observed.flip(1).cumsum(1).flip(1) > 0
        if bool((~observed & observed_later).any()):
            q = self._infer_across_gaps(frames, num_objects, observed, dynamics, renderer)
            for _ in range(self.gap_passes - 1):
                q = self._read_again(q, frames, num_objects, observed, dynamics, renderer)
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

    def _read_again(
        self,
        q: GaussianPosterior,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        dynamics: Any,
        renderer: Any,
    ) -> GaussianPosterior:
        """Return q(a | v) given the frames that the tracks smoothed by an earlier q expect.

        A prediction from the frames before a gap is far off at its end, and so is the network's
        state; the smoothed track is not. [Choice 8]
        """
        present = torch.arange(q.means.shape[1], device=frames.device) < num_objects[:, None]
        seen = observed[:, None].expand(q.means.shape[:3])
        smoothed = dynamics.smooth(q.means, seen, q.scales.double().square())
        states = smoothed.select(smoothed.log_weights.argmax(-1))
        expected = dynamics.emit(states).mean.to(frames.dtype)
        parts = [renderer(part, present).sigmoid() for part in expected.split(CHUNK_FRAMES, 2)]
        filled = torch.where(observed[..., None, None], frames, torch.cat(parts, 1))
        return self(filled, num_objects)  # type: ignore[no-any-return]

    def max_objects(self, trained: int) -> int:
        """Return the largest count of the training clips: the network has no others."""
        return trained

    def bytes_per_clip(
        self, num_objects: int, num_frames: int, num_components: int, search: Search
    ) -> int:
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


@dataclass(frozen=True)
class PaperSettings:
    """Sizes of the networks; the defaults are the paper's."""

    inference_state_size: int = 1024  # S, the paper's dimension of s_t^n
    renderer_state_size: int = 1024  # X, of x^n; the paper does not say, [Choice 3]
    scale_floor: float = 0.01  # smallest standard deviation of q, in latent units, [Choice 4]
    initial_scale: float = 0.5  # standard deviation of q before training, [Choice 4]
    # Readings of a clip with hidden frames; the paper's procedure is the first, [Choice 8].
    gap_passes: int = optional(1)

    def __post_init__(self) -> None:
        sizes = self.inference_state_size, self.renderer_state_size
        require(
            all(1 <= size <= 8192 for size in sizes),
            f"state sizes are {sizes[0]!r:.40} and {sizes[1]!r:.40}; give 1..8192",
        )
        require(
            0 < self.scale_floor < self.initial_scale < 1e6,
            f"scale_floor is {self.scale_floor} and initial_scale {self.initial_scale}; "
            "give 0 < scale_floor < initial_scale",
        )
        require(1 <= self.gap_passes <= 9, f"gap_passes is {self.gap_passes!r:.40}; give 1..9")


def build(
    settings: PaperSettings, data: DataConfig, generator: torch.Generator
) -> tuple[PaperRenderer, InferenceNetwork]:
    """Return the two networks with random weights."""
    size = data.height, data.width
    renderer = PaperRenderer(size, settings.renderer_state_size, generator)
    inference = InferenceNetwork(
        size,
        max_objects=data.max_objects,
        state_size=settings.inference_state_size,
        scale_floor=settings.scale_floor,
        initial_scale=settings.initial_scale,
        generator=generator,
        gap_passes=settings.gap_passes,
    )
    return renderer, inference


FAMILY = Family("paper", PaperSettings, build, networks=True)
