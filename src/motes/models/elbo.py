"""The evidence lower bound (ELBO): its three terms for a draw of q."""

from typing import Any, NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.model import Model
from motes.models.protocols import Posterior


class BoundTerms(NamedTuple):
    """The three terms of the bound for each clip, or their mean over clips, in nats."""

    reconstruction: Float[Tensor, "..."]
    entropy: Float[Tensor, "..."]
    log_prior: Float[Tensor, "..."]

    def weighted(self, kl_weight: float | Float[Tensor, ""]) -> Float[Tensor, "..."]:
        """Return the bound with its KL term multiplied by a weight; 1 is the bound itself."""
        return self.reconstruction + kl_weight * (self.entropy + self.log_prior)


def reconstruction(
    nats: Float[Tensor, "B T"], observed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """Return log p(v | a), summed over the observed frames (all, if None)."""
    return nats.sum(1) if observed is None else torch.where(observed, nats, 0.0).sum(1)


def entropy(nats: Float[Tensor, "B N T"], present: Bool[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """Return H[q], summed over the present objects."""
    return torch.where(present, nats.sum(2), 0.0).sum(1)


def log_prior(
    dynamics: Any,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    detected: Bool[Tensor, "B _ T"] | None = None,
) -> Float[Tensor, " B"]:
    """Return log p(a) of a draw, exact under the law of motion."""
    nats: Tensor = dynamics.log_density(positions, present, detected)
    return nats.to(positions.dtype)


def bound_terms(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """Return the terms of the bound for each clip, from one draw of q."""
    q = model.infer(frames, num_objects, observed)
    return terms_of(model, q, frames, num_objects, noise, observed)


def terms_of(
    model: Model,
    q: Posterior,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """Return the terms of the bound of a given q on the observed frames, from one draw.

    Paper: [Eq. elbo].

    Law: equals the exact log evidence for a linear-Gaussian stand-in with the exact posterior as
    q, and lies below it for any other q; tests/models/test_elbo.py.
    """
    present, positions, detected = model.present(num_objects), q.draw(noise), q.detected
    # Where an object was not detected q is its prior given the rest, and the two cancel.
    everywhere = detected is None or bool(detected.all())
    nats = model.log_likelihood(positions, present, frames, q.appearance, detected)
    prior = log_prior(model.dynamics, positions, present, None if everywhere else detected)
    return BoundTerms(
        reconstruction=reconstruction(nats, observed),
        entropy=entropy(q.entropy(), present),
        log_prior=prior + model.renderer.appearance_log_prior(q.appearance, present),
    )
