"""Positions to frames: the paper's recurrent renderer."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from motes.core.axes import Bool, Float, Tensor
from motes.models.paper.initialization import paper_init
from motes.models.protocols import PlainRenderer


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
        """Build the network with the paper's random weights and zero biases.

        Args:
            image_size: height and width of a frame in pixels.
            state_size: elements of the latent state x.
            generator: source of the random weights.
        """
        super().__init__()
        height, width = image_size
        self.image_size = image_size
        self.empty_canvas = nn.Parameter(torch.zeros(state_size))
        # alpha and xhat read the same positions, so their two matrices stand side by side.
        both = [paper_init((2, state_size), generator) for _ in ("alpha", "xhat")]
        self.from_position = nn.Parameter(torch.cat(both, dim=1))
        self.state_bias = nn.Parameter(torch.zeros(2 * state_size))
        self.to_image = nn.Parameter(paper_init((state_size, height * width), generator))
        self.image_bias = nn.Parameter(torch.zeros(height * width))

    def forward(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: None = None,
    ) -> Float[Tensor, "B T height width"]:
        """Return the logit of each pixel being white.

        Args:
            positions: latent positions; those of absent objects may hold anything, NaN too.
            present: which objects a clip has.
            appearance: None: all objects look alike.
        """
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
