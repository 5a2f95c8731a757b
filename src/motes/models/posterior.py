"""The Gaussian posterior of the paper's inference network."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.protocols import Posterior


class GaussianPosterior(NamedTuple):
    """q(a | v): an independent Gaussian for each position, in latent units."""

    means: Float[Tensor, "B N T 2"]
    scales: Float[Tensor, "B N T 2"]
    observed: Bool[Tensor, "B T"] | None = None  # elsewhere q has no meaning; None: everywhere

    @property
    def appearance(self) -> None:
        """All objects look alike."""
        return None

    @property
    def detected(self) -> Bool[Tensor, "B 1 T"] | None:
        """Where objects were detected: in every observed frame; None: everywhere."""
        return None if self.observed is None else self.observed[:, None]

    @property
    def localized(self) -> Bool[Tensor, "B 1 T"] | None:
        """Where q is informative: in every observed frame; None: everywhere."""
        return self.detected

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """Return a draw by reparametrisation. Paper: [Eq. reparam-monte-carlo] with M = 1."""
        return self.means + self.scales * noise

    def entropy(self) -> Float[Tensor, "B N T"]:
        """Return the entropy of each observed position in nats: log(scale sqrt(2 pi e)) summed."""
        nats = (self.scales.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return nats if self.detected is None else torch.where(self.detected, nats, 0.0)

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """Return the log density of the draw that this noise makes; 0 where unobserved."""
        nats = -0.5 * (noise.square() - 1).sum(-1)
        masked = nats if self.detected is None else torch.where(self.detected, nats, 0.0)
        return -self.entropy() + masked

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """Return the covariance of each position."""
        return self.scales.square().diag_embed()

    def pieces(self) -> Iterator[tuple[slice, "GaussianPosterior"]]:
        """Yield all of it, for all frames and those after them."""
        yield slice(None), self

    @staticmethod
    def matching(q: Posterior) -> "GaussianPosterior":
        """Return the Gaussian with the means and marginal variances of another posterior."""
        return GaussianPosterior(q.means, q.covariances().diagonal(dim1=-2, dim2=-1).sqrt())

    def select(self, clips: Int[Tensor, " b"]) -> "GaussianPosterior":
        """Return the posterior of some clips, all of whose frames are observed."""
        return GaussianPosterior(self.means[clips], self.scales[clips])
