import numpy as np
import torch

from motes.kalman.mixture import GaussianMixture, SmoothedTracks


def test_states_under_a_component_are_its_own(generator: torch.Generator) -> None:
    means, roots = torch.randn(2, 3, 4, 5, 6, generator=generator).split([4, 2], -1)
    covariances = roots[..., :1, None] * torch.eye(4)
    tracks = SmoothedTracks(torch.zeros(2, 3, 4), means, covariances)
    component = torch.randint(4, (2, 3), generator=generator)
    chosen = tracks.select(component)
    for b, n in np.ndindex(2, 3):
        k = component[b, n]
        assert torch.equal(chosen.mean[b, n], means[b, n, k])
        assert torch.equal(chosen.covariance[b, n], covariances[b, n, k])


def random_mixture(generator: torch.Generator) -> GaussianMixture:
    mean = torch.randn(2, 3, 4, 2, generator=generator, dtype=torch.float64)
    root = torch.randn(2, 3, 4, 2, 2, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    return GaussianMixture(log_weights, mean, root @ root.mT)


def test_moments_are_those_of_the_mixture(generator: torch.Generator) -> None:
    mixture = random_mixture(generator)
    found = mixture.moments()
    for b, n in np.ndindex(2, 3):
        weights = mixture.log_weights[b, n].exp().numpy()
        weights /= weights.sum()
        first, second = np.zeros(2), np.zeros((2, 2))
        for k in range(4):
            m, P = mixture.means[b, n, k].numpy(), mixture.covariances[b, n, k].numpy()
            first += weights[k] * m
            second += weights[k] * (P + np.outer(m, m))
        np.testing.assert_allclose(found.mean[b, n], first, rtol=1e-12, atol=1e-12)
        spread = second - np.outer(first, first)
        np.testing.assert_allclose(found.covariance[b, n], spread, rtol=1e-11, atol=1e-11)


def test_the_mode_is_the_mean_of_the_component_with_the_largest_weight(
    generator: torch.Generator,
) -> None:
    mixture = random_mixture(generator)
    shared = mixture._replace(means=mixture.means[0, 0])  # the same components for all objects
    for b, n in np.ndindex(2, 3):
        k = int(np.argmax(mixture.log_weights[b, n].numpy()))
        assert torch.equal(mixture.mode()[b, n], mixture.means[b, n, k])
        assert torch.equal(shared.mode()[b, n], mixture.means[0, 0, k])
