"""The bound F on log p(v), one function for each of its terms.

    F = E_q log p(v|a)  +  H[q(a|v)]  +  E_q log p(a)
        reconstruction     entropy       log_prior

The expectations are estimated with one draw of q, a function of q and of given noise.
"""

from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman import mixture
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers.renderer import Appearance
from motes.models.model import Model, Posterior
from motes.models.paper.inference import GaussianPosterior
from motes.models.sprites.grid_posterior import GridPosterior


class BoundTerms(NamedTuple):
    """The three terms of the bound for each clip, or their mean over clips, in nats."""

    reconstruction: Float[Tensor, "..."]
    entropy: Float[Tensor, "..."]
    log_prior: Float[Tensor, "..."]

    def weighted(self, kl_weight: float | Float[Tensor, ""]) -> Float[Tensor, "..."]:
        """The bound with its KL term multiplied by a weight; 1 is the bound itself."""
        return self.reconstruction + kl_weight * (self.entropy + self.log_prior)


def reconstruction(
    nats: Float[Tensor, "B T"], observed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """The log of p(v | a) from that of each frame, summed over the seen frames (all, if None)."""
    return nats.sum(1) if observed is None else torch.where(observed, nats, 0.0).sum(1)


def entropy(
    nats: Float[Tensor, "B N T"],
    present: Bool[Tensor, "B N"],
    seen: Bool[Tensor, "B _ T"] | None = None,
) -> Float[Tensor, " B"]:
    """H[q] from that of each position, summed over the present objects where they were seen."""
    if seen is not None:
        nats = torch.where(seen, nats, 0.0)
    return torch.where(present, nats.sum(2), 0.0).sum(1)


def log_prior(
    dynamics: LinearDynamics,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    seen: Bool[Tensor, "B _ T"] | None = None,
) -> Float[Tensor, " B"]:
    """The log of p(a) of a draw, exact: a sum over present objects of their mixture evidence."""
    evidence = mixture.log_prior(dynamics, positions, seen)
    return torch.where(present, evidence, 0.0).sum(1).to(positions.dtype)


def bound_terms(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    found: GridPosterior | None = None,
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """The terms of the bound for each clip, from one draw of q.

    Args:
        model: of either family.
        frames: values in [0, 1].
        num_objects: objects in each clip.
        noise: of the draw.
        found: what `Model.track` found in the frames, if that is known already.
        observed: which frames were seen (all, if None); the paper's family needs them all.
    """
    if found is None and observed is not None:
        found = model.track(frames, num_objects, observed)
    q = model.encode(frames, num_objects, found)
    return terms_of(model, q, frames, num_objects, noise, observed)


def terms_of(
    model: Model,
    q: Posterior,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """The terms of the bound of a given q on the seen frames, from one draw. Paper: [Eq. elbo].

    Law: equals the exact log evidence for a linear-Gaussian stand-in with the exact posterior as
    q, and lies below it for any other q; tests/unit/test_objective.py.
    """
    present, seen = model.present(num_objects), detected_mask(q, observed)
    positions = q.draw(noise)
    appearance = appearance_of(q)
    prior = log_prior(model.dynamics, positions, present, seen)
    return BoundTerms(
        reconstruction=reconstruction(
            model.explain(positions, present, frames, appearance, detections_of(q)), observed
        ),
        # A search leaves out itself what it has not seen.
        entropy=entropy(q.entropy(), present, seen if isinstance(q, GaussianPosterior) else None),
        log_prior=prior + model.log_prior_of(appearance, present),
    )


def detections_of(q: Posterior) -> Bool[Tensor, "B N T"] | None:
    """Where a search has seen objects; None of the paper's networks."""
    return None if isinstance(q, GaussianPosterior) else q.seen


def appearance_of(q: Posterior) -> Appearance | None:
    """The looks of the objects, where a model of pictures has found them."""
    return None if isinstance(q, GaussianPosterior) else q.appearance


def detected_mask(
    q: Posterior, observed: Bool[Tensor, "B T"] | None
) -> Bool[Tensor, "B _ T"] | None:
    """Where the positions of q are sightings; None where all of them are.

    The paper's networks see all objects in a seen frame; a search may find that one is hidden.
    Where an object was not seen q is its prior given the rest, and the two cancel in the bound.
    """
    if isinstance(q, GaussianPosterior):
        return None if observed is None else observed[:, None]
    return None if bool(q.seen.all()) else q.seen
