"""The bound against exact answers: a renderer is replaced by a Gaussian view of the positions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes.kalman.dynamics import LinearDynamics
from motes.models import elbo
from motes.models.elbo import BoundTerms
from motes.models.model import Model
from motes.models.protocols import GaussianPosterior
from motes.models.sprites.grid_posterior import GridPosterior
from oracles import joint, one_model
from tiny import (
    HEIGHT,
    MAX_OBJECTS,
    WIDTH,
    tiny_frames,
    tiny_model,
    tiny_sprite_model,
)

T, P = 4, 2
VIEW_NOISE = 0.3  # variance of the stand-in's observation of each coordinate


def one_component(generator: torch.Generator, spread_log: float) -> LinearDynamics:
    """Dynamics with K = 1 and a force; `spread_log` is the log scale of what moves the state."""
    dynamics = LinearDynamics(num_components=1, generator=generator)
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.1, -0.2, 0.3, -0.1]))
        for factor in (dynamics.initial_factor, dynamics.state_factor):
            factor.diagonal(dim1=-2, dim2=-1).fill_(spread_log)
    return dynamics


def gaussian_log_density(x: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> float:
    gap = x - mean
    quadratic = gap @ np.linalg.solve(cov, gap)
    return -0.5 * (quadratic + np.linalg.slogdet(cov)[1] + len(x) * math.log(2 * math.pi))


def prior_moments(dynamics: LinearDynamics) -> tuple[np.ndarray, np.ndarray]:
    exact = joint(one_model(dynamics.components(), (1,), (0,)), T)
    return exact.position_mean, exact.position_cov


def bound_of_draws(
    dynamics: LinearDynamics, views: torch.Tensor, q: GaussianPosterior, noise: torch.Tensor
) -> torch.Tensor:
    """F with the stand-in view ~ N(a, VIEW_NOISE I) in place of the picture: one number a draw."""
    draws = noise.shape[0]
    q = GaussianPosterior(*(value.expand(draws, -1, -1, -1) for value in (q.means, q.scales)))
    a = q.draw(noise)
    gap = (views - a).square() / VIEW_NOISE + math.log(2 * math.pi * VIEW_NOISE)
    present = torch.ones(draws, a.shape[1], dtype=torch.bool)
    return BoundTerms(
        reconstruction=-0.5 * gap.sum((1, 2, 3)),
        entropy=elbo.entropy(q.entropy(), present),
        log_prior=elbo.log_prior(dynamics, a, present).detach(),
    ).weighted(1.0)


def cubature(num_objects: int) -> torch.Tensor:
    """Noise whose average of any quadratic function is exactly its normal expectation."""
    n = num_objects * T * P
    axes = math.sqrt(n) * torch.eye(n, dtype=torch.float64)
    return torch.cat([axes, -axes]).reshape(2 * n, num_objects, T, P)


def test_the_bound_with_the_exact_posterior_is_the_log_evidence(
    generator: torch.Generator,
) -> None:
    # exp(-40)^2 = 1e-35: the state is certain, so that frames are independent and the exact
    # posterior has the form of q; then log p(v, a) - log q(a) is constant in a.
    dynamics = one_component(generator, spread_log=-40.0)
    mean, cov = prior_moments(dynamics)
    views = torch.randn(1, 2, T, P, dtype=torch.float64, generator=generator)
    gain = np.diag(cov) / (np.diag(cov) + VIEW_NOISE)
    flat = views.reshape(2, -1).numpy()
    posterior_mean = mean + gain * (flat - mean)
    posterior_scale = np.broadcast_to(np.sqrt(VIEW_NOISE * gain), posterior_mean.shape)
    q = GaussianPosterior(
        torch.from_numpy(posterior_mean).reshape(1, 2, T, P),
        torch.from_numpy(posterior_scale.copy()).reshape(1, 2, T, P),
    )
    noise = torch.randn(50, 2, T, P, dtype=torch.float64, generator=generator)
    # H[q] is the expectation of -log q; a single draw has -log q itself in its place.
    surprise = 0.5 * (noise.square() - 1).sum((1, 2, 3))
    bounds = bound_of_draws(dynamics, views, q, noise) + surprise
    evidence = sum(
        gaussian_log_density(row, mean, cov + VIEW_NOISE * np.eye(T * P)) for row in flat
    )
    assert q.draw(noise).std(0).min() > 0.1  # the draws do differ
    # Terms of size 100 in float64: rounding below 100 * 16 * 1e-16.
    torch.testing.assert_close(bounds, torch.full_like(bounds, float(evidence)), rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_objects=st.integers(1, 2))
def test_the_bound_is_the_log_evidence_less_the_divergence_of_q(
    seed: int, num_objects: int
) -> None:
    """For any q: F = log p(v) - KL(q || p(a|v)), both from dense Gaussians in numpy."""
    generator = torch.Generator().manual_seed(seed)
    dynamics = one_component(generator, spread_log=-0.5)
    shape = (1, num_objects, T, P)
    views, means, log_scales = torch.randn(3, *shape, dtype=torch.float64, generator=generator)
    q = GaussianPosterior(means, (0.5 * log_scales).exp())
    bound = float(bound_of_draws(dynamics, views, q, cubature(num_objects)).mean())

    prior_mean, prior_cov = prior_moments(dynamics)
    size = T * P
    seen_cov = prior_cov + VIEW_NOISE * np.eye(size)
    gain = np.linalg.solve(seen_cov, prior_cov).T
    cov = prior_cov - gain @ prior_cov
    evidence = divergence = 0.0
    for n in range(num_objects):
        view = views[0, n].reshape(-1).numpy()
        mean = prior_mean + gain @ (view - prior_mean)
        q_mean, q_var = means[0, n].reshape(-1).numpy(), q.scales[0, n].reshape(-1).numpy() ** 2
        evidence += gaussian_log_density(view, prior_mean, seen_cov)
        gap = mean - q_mean
        divergence += 0.5 * (
            np.trace(np.linalg.solve(cov, np.diag(q_var)))
            + gap @ np.linalg.solve(cov, gap)
            - size
            + np.linalg.slogdet(cov)[1]
            - np.log(q_var).sum()
        )
    assert divergence > 0
    assert bound < evidence
    # Covariances have condition numbers below 1e3, terms are below 1e3: rounding below 1e-9.
    assert bound == pytest.approx(evidence - divergence, abs=1e-8)


@torch.no_grad()
def test_reconstruction_is_the_naive_sum_over_pixels(generator: torch.Generator) -> None:
    model = tiny_model().double()
    frames = torch.rand(2, 3, HEIGHT, WIDTH, dtype=torch.float64, generator=generator)
    positions = torch.randn(2, MAX_OBJECTS, 3, 2, dtype=torch.float64, generator=generator)
    present = model.present(torch.tensor([1, 3]))
    nats = model.renderer.log_likelihood(positions, present, frames)
    logits = model.renderer(positions, present)
    observed = torch.tensor([[True, False, True], [False, True, True]])
    for mask in (None, observed):
        value = elbo.reconstruction(nats, mask)
        for b in range(2):
            total = 0.0
            for t, i, j in np.ndindex(3, HEIGHT, WIDTH):
                if mask is None or mask[b, t]:
                    p = 1 / (1 + math.exp(-float(logits[b, t, i, j])))
                    v = float(frames[b, t, i, j])
                    total += v * math.log(p) + (1 - v) * math.log(1 - p)
            assert float(value[b]) == pytest.approx(total, rel=1e-12)


def test_entropy_is_that_of_the_gaussians_of_present_objects_and_observed_frames(
    generator: torch.Generator,
) -> None:
    scales = 0.1 + torch.rand(2, 3, 4, 2, dtype=torch.float64, generator=generator)
    present = torch.tensor([[True, True, False], [True, False, False]])
    observed = torch.tensor([[True, False, True, True], [True, True, False, False]])[:, None]
    each = torch.distributions.Normal(0.0, scales).entropy().sum(-1)
    for mask in (None, observed):
        nats = GaussianPosterior(
            torch.zeros_like(scales), scales, None if mask is None else mask[:, 0]
        ).entropy()
        counted = each * present[:, :, None] * (1 if mask is None else mask)
        torch.testing.assert_close(elbo.entropy(nats, present), counted.sum((1, 2)))


def test_masks_delete_frames_and_objects_from_the_prior(generator: torch.Generator) -> None:
    dynamics = tiny_model().dynamics
    positions = torch.randn(2, 3, 5, 2, dtype=torch.float64, generator=generator)
    present = torch.tensor([[True, True, False], [True, False, False]])
    # A path that ends early is a shorter path, and an absent object is no object.
    observed = torch.tensor([[True, True, True, False, False], [True, True, True, True, False]])
    seen = observed[:, None]
    value = elbo.log_prior(dynamics, positions, present, seen)
    poisoned = torch.where(observed[:, None, :, None], positions, torch.nan)
    poisoned = torch.where(present[:, :, None, None], poisoned, torch.nan)
    for b, (count, length) in enumerate([(2, 3), (1, 4)]):
        alone = positions[b : b + 1, :count, :length]
        everyone = torch.ones(1, count, dtype=torch.bool)
        expected = elbo.log_prior(dynamics, alone, everyone)
        # Log densities of about -50 by two routes of at most ten dimensions: 1e-13.
        torch.testing.assert_close(value[b : b + 1], expected, rtol=1e-11, atol=1e-11)
    finite = elbo.log_prior(dynamics, poisoned, present, seen)
    torch.testing.assert_close(finite, value, rtol=0, atol=0)


def test_weighting_scales_the_divergence_alone() -> None:
    terms = BoundTerms(*torch.tensor([[-10.0], [2.0], [-5.0]]))
    assert terms.weighted(1.0).item() == -13
    assert terms.weighted(4.0).item() == -22


def test_the_terms_of_a_model_are_those_of_its_parts(generator: torch.Generator) -> None:
    """And an absent object or a hidden frame, whatever it contains, changes nothing."""
    model = tiny_model()
    frames, counts = tiny_frames(3, 5), torch.tensor([1, 2, 3])
    noise = torch.randn(3, MAX_OBJECTS, 5, 2, generator=generator)
    q = model.inference(frames, counts)
    terms = elbo.bound_terms(model, frames, counts, noise)
    positions = q.means + q.scales * noise
    for b, count in enumerate(counts.tolist()):
        alone = positions[b : b + 1, :count]
        everyone = torch.ones(1, count, dtype=torch.bool)
        nats = model.renderer.log_likelihood(alone, everyone, frames[b : b + 1])
        expected = BoundTerms(
            elbo.reconstruction(nats),
            elbo.entropy(q.entropy()[b : b + 1, :count], everyone),
            elbo.log_prior(model.dynamics, alone, everyone),
        )
        # float32 sums of at most 240 pixel terms of order one: relative 1e-6 each
        torch.testing.assert_close(
            BoundTerms(*(term[b : b + 1] for term in terms)), expected, rtol=1e-5, atol=1e-4
        )


@torch.no_grad()
def test_undetected_positions_add_neither_entropy_nor_prior(
    generator: torch.Generator,
) -> None:
    """A search may detect one object in a frame and not another."""
    model, frames, counts = tiny_sprite_model(), tiny_frames(2, 5), torch.tensor([2, 1])
    found = model.infer(frames, counts)
    assert isinstance(found, GridPosterior)
    detected = torch.rand(2, MAX_OBJECTS, 5, generator=generator) < 0.5
    q = found._replace(detected=detected)
    noise = torch.randn(2, MAX_OBJECTS, 5, 2, generator=generator)
    terms = elbo.terms_of(model, q, frames, counts, noise)
    positions, nats = q.draw(noise), q.entropy()
    for b, count in enumerate(counts.tolist()):
        entropy, prior = 0.0, 0.0
        for n in range(count):
            mask = detected[b, n]
            entropy += float(nats[b, n, mask].sum())
            prior += float(model.dynamics.track_log_density(positions[b, n], mask))
        assert float(terms.entropy[b]) == pytest.approx(entropy, rel=1e-5)
        assert float(terms.log_prior[b]) == pytest.approx(prior, rel=1e-5)


@pytest.mark.parametrize("model", [tiny_model, tiny_sprite_model])
def test_every_parameter_learns_from_the_bound(
    model: Callable[[], Model], generator: torch.Generator
) -> None:
    model = model()
    noise = torch.randn(3, MAX_OBJECTS, 5, 2, generator=generator)
    terms = elbo.bound_terms(model, tiny_frames(3, 5), torch.tensor([1, 2, 3]), noise)
    terms.weighted(1.0).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_the_occluder_is_learned_only_when_its_gradients_are_on(generator: torch.Generator) -> None:
    model = tiny_sprite_model()
    noise = torch.randn(2, MAX_OBJECTS, 5, 2, generator=generator)
    for allowed in (False, True):
        for part in model.renderer.occlusion_parameters():
            part.requires_grad_(allowed)
        model.zero_grad()
        terms = elbo.bound_terms(model, tiny_frames(2, 5), torch.tensor([1, 2]), noise)
        terms.weighted(1.0).sum().backward()
        assert (model.renderer.visibility_logit.grad is not None) == allowed
        assert model.renderer.root_background.grad is not None
