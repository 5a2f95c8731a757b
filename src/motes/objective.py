"""The bound F on log p(v), one function for each of its terms.

    F = E_q log p(v|a)  +  H[q(a|v)]  +  E_q log p(a)
        reconstruction     entropy       log_prior

The expectations are estimated with one reparametrised draw a = mean + scale * noise.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from motes import mixture
from motes.lgssm import Dynamics
from motes.model import Model
from motes.networks.inference import Encoding
from motes.shapes import Bool, Float, Int, Tensor


class BoundTerms(NamedTuple):
    """The three terms of the bound for each clip, or their mean over clips, in nats."""

    reconstruction: Float[Tensor, "..."]
    entropy: Float[Tensor, "..."]
    log_prior: Float[Tensor, "..."]

    def weighted(self, kl_weight: float | Float[Tensor, ""]) -> Float[Tensor, "..."]:
        """The bound with its KL term multiplied by a weight; 1 is the bound itself."""
        return self.reconstruction + kl_weight * (self.entropy + self.log_prior)


def reconstruction(
    logits: Float[Tensor, "B T height width"],
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """The log of p(v | a), summed over the Bernoulli pixels of the seen frames (all, if None)."""
    nats = -binary_cross_entropy_with_logits(logits, frames, reduction="none").sum((2, 3))
    return nats.sum(1) if observed is None else torch.where(observed, nats, 0.0).sum(1)


def entropy(
    scales: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """H[q] in closed form: the sum of log(scale sqrt(2 pi e)) over present objects."""
    nats = (scales.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(3)
    if observed is not None:
        nats = torch.where(observed[:, None], nats, 0.0)
    return torch.where(present, nats.sum(2), 0.0).sum(1)


def log_prior(
    dynamics: Dynamics,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """The log of p(a) of a draw, exact: a sum over present objects of their mixture evidence."""
    mask = None if observed is None else observed[:, None]
    evidence = mixture.log_prior(dynamics, positions, mask)
    return torch.where(present, evidence, 0.0).sum(1).to(positions.dtype)


def draw_positions(encoding: Encoding, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
    """A draw from q by reparametrisation. Paper: [Eq. reparam-monte-carlo] with M = 1."""
    return encoding.means + encoding.scales * noise


def bound_terms(
    model: Model,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    found: Encoding | None = None,
) -> BoundTerms:
    """The terms of the bound for each clip, all frames seen, from one draw of q.

    `found` is what `Model.track` found in the frames, if that is known already.
    """
    return terms_of(model, model.encode(frames, num_objects, found), frames, num_objects, noise)


def terms_of(
    model: Model,
    encoding: Encoding,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """The terms of the bound of a given q on the seen frames, from one draw. Paper: [Eq. elbo].

    Law: equals the exact log evidence for a linear-Gaussian stand-in with the exact posterior as
    q, and lies below it for any other q; tests/unit/test_objective.py.
    """
    present = model.present(num_objects)
    positions = draw_positions(encoding, noise)
    return BoundTerms(
        reconstruction=reconstruction(model.renderer(positions, present), frames, observed),
        entropy=entropy(encoding.scales, present, observed),
        log_prior=log_prior(model.dynamics, positions, present, observed),
    )
