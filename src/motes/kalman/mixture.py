"""Weighted Gaussian components: what laws of motion return about positions and states."""

from typing import NamedTuple

from motes.core.axes import Float, Int, Tensor


class Gaussian(NamedTuple):
    """Means and covariances of independent Gaussians."""

    mean: Float[Tensor, "*batch D"]
    covariance: Float[Tensor, "*batch D D"]


class GaussianMixture(NamedTuple):
    """A mixture of K Gaussians for each object; parts shared by objects may lack their axes."""

    log_weights: Float[Tensor, "*batch K"]
    means: Float[Tensor, "*#batch K D"]
    covariances: Float[Tensor, "*#batch K D D"]

    def moments(self) -> Gaussian:
        """Return the mean and covariance of the mixture.

        Law: those of the mixture by its definition (test_moments_are_those_of_the_mixture).
        """
        weights = self.log_weights.softmax(-1)[..., None]
        mean = (weights * self.means).sum(-2)
        offsets = self.means - mean[..., None, :]
        scatter = self.covariances + offsets[..., :, None] * offsets[..., None, :]
        return Gaussian(mean, (weights[..., None] * scatter).sum(-3))

    def mode(self) -> Float[Tensor, "*batch D"]:
        """Return the mean of the component with the largest weight."""
        likely = self.log_weights.argmax(-1, keepdim=True)
        means = self.means.expand(*self.log_weights.shape, self.means.shape[-1])
        return means.take_along_dim(likely[..., None], -2)[..., 0, :]


class SmoothedTracks(NamedTuple):
    """States of every object and frame given all observations, under each of K components."""

    log_weights: Float[Tensor, "B N K"]
    means: Float[Tensor, "B N K T D"]
    covariances: Float[Tensor, "#B #N K T D D"]

    def select(self, component: Int[Tensor, "B N"]) -> Gaussian:
        """Return the states of each object under one component, [B N T ...].

        Law: they are those of that component (test_states_under_a_component_are_its_own).
        """
        pick = component[..., None, None, None]
        mean = self.means.take_along_dim(pick, 2)[:, :, 0]
        return Gaussian(mean, self.covariances.take_along_dim(pick[..., None], 2)[:, :, 0])


class SampledTracks(NamedTuple):
    """Draws from the prior of a law of motion."""

    component: Int[Tensor, "*batch"]
    states: Float[Tensor, "*batch T D"]
    positions: Float[Tensor, "*batch T 2"]
