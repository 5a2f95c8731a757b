"""Pins in the search: conditioned predictions, their density, the frames nearest to them."""

import math

import torch

from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.pins import PixelPins


def spd(generator, *shape):
    root = torch.randn(*shape, 2, 2, generator=generator)
    return root @ root.mT + 0.5 * torch.eye(2)


def pins_and_prior(generator):
    given = torch.rand(2, 3, 5, generator=generator) < 0.4
    pins = PixelPins(
        PixelGaussian(torch.randn(2, 3, 5, 2, generator=generator), spd(generator, 2, 3, 5)), given
    )
    prior = PixelGaussian(torch.randn(2, 3, 5, 2, generator=generator), spd(generator, 2, 3, 5))
    return pins, prior


def test_predictions_are_conditioned_on_pins(generator):
    """By precisions: (P1 + P2)^-1 (P1 m1 + P2 m2)."""
    pins, prior = pins_and_prior(generator)
    mean, covariance = pins.condition(prior)
    for at in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        at = tuple(at)
        one, two = (torch.linalg.inv(part.covariance[at].double()) for part in (prior, pins.place))
        both = torch.linalg.inv(one + two)
        middle = both @ (one @ prior.mean[at].double() + two @ pins.place.mean[at].double())
        if not pins.given[at]:
            middle, both = prior.mean[at].double(), prior.covariance[at].double()
        torch.testing.assert_close(mean[at].double(), middle, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(covariance[at].double(), both, atol=1e-4, rtol=1e-4)


def test_the_density_of_pins_is_that_of_torch(generator):
    pins, place = pins_and_prior(generator)
    expected = torch.zeros(2)
    for b, n, t in pins.given.nonzero().tolist():
        spread = place.covariance[b, n, t] + pins.place.covariance[b, n, t]
        law = torch.distributions.MultivariateNormal(place.mean[b, n, t], spread)
        expected[b] += law.log_prob(pins.place.mean[b, n, t])
    torch.testing.assert_close(pins.log_density(place), expected, atol=1e-4, rtol=1e-4)


def test_the_distance_to_a_pin_counts_frames():
    given = torch.zeros(1, 2, 6, dtype=torch.bool)
    given[0, 0, 1] = given[0, 0, 5] = True
    nothing = PixelGaussian(torch.zeros(1, 2, 6, 2), torch.eye(2).expand(1, 2, 6, 2, 2))
    distance = PixelPins(nothing, given).distance()
    assert distance[0, 0].tolist() == [1, 0, 1, 2, 1, 0]
    assert distance[0, 1].tolist() == [6] * 6
    assert math.isfinite(float(PixelPins(nothing, given).log_density(nothing)))
