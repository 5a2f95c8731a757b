import itertools
import math

import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.kalman.dynamics import (
    InitialMixture,
    LinearDynamics,
    StateInformation,
    e_step,
    fit_mixture,
    initial_state_information,
)
from motes.kalman.model import Gaussian
from oracles import diagonal_blocks, log_density, one_model, posterior


def test_starting_values_are_the_papers(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(num_components=3, generator=generator)
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = dynamics.components()
    eye = torch.eye(4, dtype=torch.float64)
    step = [[1, 0, 0.1, 0], [0, 1, 0, 0.1], [0, 0, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(A, torch.tensor(step, dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.equal(B, eye[:2])
    assert (u == 0).all()
    torch.testing.assert_close(Sigma_H, 0.001 * eye, rtol=1e-15, atol=0)
    torch.testing.assert_close(Sigma_A, eye[:2, :2], rtol=1e-15, atol=0)
    torch.testing.assert_close(Sigma, eye.expand(3, 4, 4), rtol=1e-15, atol=0)
    assert (mu[:, 2:] == 0).all()
    assert mu[:, :2].unique().numel() == 6
    torch.testing.assert_close(dynamics.log_weights().exp(), torch.full((3,), 1 / 3).double())
    assert all(parameter.dtype == torch.float64 for parameter in dynamics.parameters())


def test_spread_scales_the_initial_state(generator: torch.Generator) -> None:
    wide = LinearDynamics(initial_spread=8.0, generator=torch.Generator().manual_seed(1))
    narrow = LinearDynamics(initial_spread=1.0, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(wide.initial_mean.data, 8 * narrow.initial_mean.data)
    torch.testing.assert_close(
        wide.components().initial_covariance, 64 * narrow.components().initial_covariance
    )


def test_covariances_are_valid_for_any_parameters(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(generator=generator)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    model = dynamics.components()
    for covariance in (model.state_noise, model.position_noise, model.initial_covariance):
        assert torch.equal(covariance, covariance.mT)
        assert (torch.linalg.eigvalsh(covariance) > 0).all()
        assert (covariance[..., 0, 1] != 0).all()
    assert model.transition[0, 2] > 0


def test_components_differ_only_in_the_initial_state(generator: torch.Generator) -> None:
    model = LinearDynamics(num_components=2, generator=generator).components()
    shapes = [tuple(field.shape) for field in model]
    assert shapes == [(4, 4), (4,), (2, 4), (4, 4), (2, 2), (2, 4), (2, 4, 4)]
    assert not torch.equal(model.initial_mean[0], model.initial_mean[1])


@pytest.mark.parametrize(
    "setting", [{"num_components": 0}, {"sampling_period": -1.0}, {"state_noise": 0.0}]
)
def test_invalid_settings_are_reported(
    generator: torch.Generator, setting: dict[str, float]
) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(InputError, match=f"got {name}={value}; expected a positive"):
        LinearDynamics(**setting, generator=generator)


def test_components_are_drawn_at_the_borders_of_pi(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(num_components=3, generator=generator)
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    noise = torch.tensor([[0.0, 0.19, 0.21], [0.69, 0.71, 0.999999]]).double()
    expected = torch.tensor([[0, 0, 1], [1, 2, 2]])
    assert torch.equal(dynamics.draw_components(noise), expected)


def test_a_linear_law_starts_as_newtons_and_learns_springs_and_drag(generator):
    newton, linear = (
        LinearDynamics(linear=flag, generator=torch.Generator().manual_seed(0))
        for flag in (False, True)
    )
    assert torch.equal(newton.components().transition, linear.components().transition)
    assert "force_field" not in dict(newton.named_parameters())
    with torch.no_grad():
        linear.force_field[0, 0], linear.force_field[1, 3] = -0.5, -0.25
    A = linear.components().transition
    # x is pulled back by half of its value; y's velocity loses a quarter.
    expected = newton.components().transition.detach().clone()
    expected[2, 0], expected[3, 3] = -0.5, 0.75
    assert torch.equal(A, expected)


def lopsided(generator: torch.Generator) -> LinearDynamics:
    dynamics = LinearDynamics(num_components=3, generator=generator)
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.0, 1.0, -1.0]))
    return dynamics


def test_track_log_density_is_the_mixture_of_dense_gaussians(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    positions = torch.randn(2, 3, 6, 2, generator=generator)
    observed = torch.rand(2, 1, 6, generator=generator) < 0.7
    value = dynamics.track_log_density(positions, observed)
    weights = dynamics.component_log_posterior(positions, observed)
    assert value.shape == (2, 3)
    assert value.dtype == torch.float64
    pi = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    for b, n in np.ndindex(2, 3):
        densities = [
            log_density(
                one_model(dynamics.components(), (3,), (k,)),
                positions[b, n].double().numpy(),
                observed[b, 0].numpy(),
            )
            for k in range(3)
        ]
        joint = pi * np.exp(densities)
        # Log densities of about -20 with condition number 10: rounding below 1e-13.
        np.testing.assert_allclose(value[b, n].item(), np.log(joint.sum()), rtol=1e-11)
        posterior = weights[b, n].detach().exp().numpy()
        np.testing.assert_allclose(posterior, joint / joint.sum(), rtol=1e-11)


def test_component_posterior_of_nothing_is_the_prior(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    nothing = torch.zeros(5, dtype=torch.bool)
    posterior = dynamics.component_log_posterior(torch.full((4, 5, 2), torch.nan), nothing)
    assert posterior.shape == (4, 3)
    torch.testing.assert_close(posterior, dynamics.log_weights().expand(4, 3))


def test_every_parameter_learns_from_the_prior(generator: torch.Generator) -> None:
    dynamics = lopsided(generator)
    dynamics.track_log_density(torch.randn(4, 9, 2, generator=generator)).sum().backward()
    for name, parameter in dynamics.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        lower = parameter.grad.tril() if name.endswith("factor") else parameter.grad
        assert (lower != 0).any(), name


@torch.no_grad()
def test_a_belief_after_each_frame_is_that_of_the_observed_positions(
    generator: torch.Generator,
) -> None:
    """initial, predict, update and observe frame by frame against dense Gaussians."""
    dynamics, (B, N, T) = lopsided(generator), (2, 2, 5)
    positions = torch.randn(B, N, T, 2, generator=generator)
    observed = torch.rand(B, N, T, generator=generator) < 0.6
    parts = [one_model(dynamics.components(), (3,), (k,)) for k in range(3)]
    belief = dynamics.initial((B, N))
    for t in range(T):
        seen = observed & (torch.arange(T) < t)
        mixture = dynamics.observe(belief)
        assert mixture.log_weights.shape == (B, N, 3)
        for b, n, k in np.ndindex(B, N, 3):
            track, mask = positions[b, n].double().numpy(), seen[b, n].numpy()
            mean, cov = posterior(parts[k], track, mask)
            means = mixture.means.expand(B, N, 3, 2)
            covariances = mixture.covariances.expand(B, N, 3, 2, 2)
            np.testing.assert_allclose(means[b, n, k], mean[t, :2], rtol=1e-9, atol=1e-9)
            spread = diagonal_blocks(cov)[t, :2, :2] + parts[k].position_noise
            np.testing.assert_allclose(covariances[b, n, k], spread, rtol=1e-9, atol=1e-9)
            weight = log_density(parts[k], track, mask) + float(dynamics.log_weights()[k])
            assert float(mixture.log_weights[b, n, k]) == pytest.approx(weight, abs=1e-9)
        updated = dynamics.update(belief, positions[:, :, t], observed[:, :, t])
        belief = dynamics.predict(updated)


@torch.no_grad()
def test_the_log_density_of_a_clip_is_the_sum_over_its_present_objects(
    generator: torch.Generator,
) -> None:
    dynamics = lopsided(generator)
    positions = torch.randn(2, 3, 4, 2, generator=generator)
    present = torch.tensor([[True, False, True], [True, False, False]])
    positions[~present] = torch.nan  # absent objects cannot matter
    found = dynamics.log_density(positions, present)
    for b in range(2):
        alone = dynamics.track_log_density(positions[b][present[b]]).sum()
        torch.testing.assert_close(found[b], alone)


@torch.no_grad()
def test_positions_and_velocities_of_states(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(sampling_period=0.5, position_noise=0.3, generator=generator)
    states = Gaussian(torch.arange(4.0).double(), 2 * torch.eye(4).double())
    assert dynamics.path(states).mean.tolist() == [0, 1]
    assert torch.equal(dynamics.path(states).covariance, 2 * torch.eye(2).double())
    assert dynamics.emit(states).mean.tolist() == [0, 1]
    torch.testing.assert_close(dynamics.emit(states).covariance, 2.3 * torch.eye(2).double())
    torch.testing.assert_close(dynamics.velocities(states.mean), torch.tensor([1.0, 1.5]).double())


def test_fit_mixture_recovers_clusters(generator: torch.Generator) -> None:
    counts, centres = (300, 100, 200), torch.tensor([[0.0, 0.0], [12.0, 3.0], [-2.0, 15.0]])
    factor = torch.tensor([[1.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    noise = torch.randn(sum(counts), 2, generator=generator, dtype=torch.float64)
    truth = centres.double().repeat_interleave(torch.tensor(counts), dim=0)
    # Points that are known up to a deviation of a millionth.
    precision = (1e12 * torch.eye(2, dtype=torch.float64)).expand(sum(counts), 2, 2)
    information = StateInformation(precision, 1e12 * (truth + noise @ factor.T))
    eye = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    start = InitialMixture(torch.full((3,), 1 / 3), torch.zeros(3, 2).double(), 100 * eye)
    weights, means, covariances = fit_mixture(information, start)
    order = [int((means - centre).norm(dim=1).argmin()) for centre in centres]
    assert sorted(order) == [0, 1, 2]
    # Clusters more than ten deviations apart share no points: the weights are the proportions.
    expected = torch.tensor(counts).double() / sum(counts)
    torch.testing.assert_close(weights[order], expected, rtol=0, atol=1e-6)
    # Five standard errors: of a mean 1 / sqrt(100), of a covariance sqrt(2 / 100).
    assert (means[order] - centres).abs().max() < 5 / math.sqrt(100)
    assert (covariances - factor @ factor.T).abs().max() < 5 * math.sqrt(2 / 100)


def test_one_track_or_equal_tracks_give_a_valid_mixture() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    start = InitialMixture(
        torch.full((2,), 0.5).double(), torch.zeros(2, 2).double(), eye.expand(2, 2, 2)
    )
    for number in (1, 16):
        information = StateInformation(
            (50 * eye).expand(number, 2, 2), 50 * torch.ones(number, 2).double()
        )
        weights, means, covariances = fit_mixture(information, start)
        assert float(weights.sum()) == 1
        # Known to a deviation of 1 / sqrt(50 n).
        assert (means - 1).abs().max() < 5 / math.sqrt(50)
        assert torch.linalg.eigvalsh(covariances).min() > 0


def test_unobserved_tracks_leave_the_mixture_unchanged() -> None:
    dynamics = dynamics_with_initial_states([[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]])
    before = {name: part.clone() for name, part in dynamics.state_dict().items()}
    dynamics.fit_initial_state(torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.bool))
    assert all(torch.equal(part, before[name]) for name, part in dynamics.state_dict().items())


def dynamics_with_initial_states(starts: list[list[float]]) -> LinearDynamics:
    dynamics = LinearDynamics(
        num_components=len(starts),
        sampling_period=1.0,
        state_noise=1e-4,
        position_noise=0.01,
        initial_spread=0.2,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        dynamics.initial_mean.copy_(torch.tensor(starts, dtype=torch.float64))
    return dynamics


def test_em_recovers_the_initial_states_of_tracks(
    generator: torch.Generator,
) -> None:
    starts = [[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]]
    source = dynamics_with_initial_states(starts)
    with torch.no_grad():
        source.logits.copy_(torch.tensor([0.75, 0.25]).log())
    component, _, positions = source.sample((40, 3), 8, generator)
    present = torch.arange(3) < torch.tensor([[1], [2], [3], [3]]).repeat(10, 1)
    dynamics = dynamics_with_initial_states([[0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])
    with torch.no_grad():
        dynamics.initial_factor.diagonal(dim1=1, dim2=2).fill_(math.log(5.0))
    before = {name: value.clone() for name, value in dynamics.state_dict().items()}
    unlikely = dynamics.track_log_density(positions[present]).mean()
    seen = torch.ones(positions[present].shape[:2], dtype=torch.bool)
    dynamics.fit_initial_state(positions[present], seen)
    components = dynamics.components()
    torch.linalg.cholesky(components.initial_covariance)  # raises unless positive definite
    order = components.initial_mean[:, 0].argsort()
    share = (component[present] == 0).double().mean()
    expected = torch.stack([share, 1 - share])
    torch.testing.assert_close(dynamics.log_weights().exp()[order], expected, rtol=0, atol=1e-6)
    # At least 20 tracks of each component, spread 0.2: five standard errors of a mean are 0.23, and
    # a variance of 0.04 is known to a third.
    assert (components.initial_mean[order] - torch.tensor(starts)).abs().max() < 0.23
    variance = components.initial_covariance.diagonal(dim1=1, dim2=2)
    assert ((variance > 0.015) & (variance < 0.09)).all()
    assert dynamics.track_log_density(positions[present]).mean() > unlikely + 3
    for name, value in dynamics.state_dict().items():
        refitted = name in ("logits", "initial_mean", "initial_factor")
        assert torch.equal(value, before[name]) != refitted, name


def two_components(generator: torch.Generator) -> tuple[LinearDynamics, torch.Tensor, torch.Tensor]:
    """Return dynamics with two components, tracks of others, and which frames are observed."""
    source = dynamics_with_initial_states([[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]])
    positions = source.sample((60,), 8, generator).positions
    seen = torch.rand(60, 8, generator=generator) < 0.6
    seen[0] = False  # a track without observations
    return (
        dynamics_with_initial_states([[-2.0, 0.0, 0.0, 0.0], [3.0, 0.5, 0.0, 0.0]]),
        positions,
        seen,
    )


def test_evidence_differs_from_the_filters_by_a_constant(generator: torch.Generator) -> None:
    dynamics, positions, seen = two_components(generator)
    information = initial_state_information(dynamics.components(), positions, seen)

    def constant() -> torch.Tensor:
        components = dynamics.components()
        mixture = InitialMixture(
            dynamics.log_weights().exp(), components.initial_mean, components.initial_covariance
        )
        evidence = e_step(information, mixture)[0].logsumexp(1)
        return dynamics.track_log_density(positions, seen) - evidence

    before = constant()
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.2, 0.8]).log())
        dynamics.initial_mean.add_(torch.tensor([0.3, -0.2, 0.1, 0.4]))
        dynamics.initial_factor.diagonal(dim1=1, dim2=2).add_(0.4)
    # Sums of terms of the size of the precision, 1e2, times squared positions, 1e2, each rounded.
    tolerance = 1e4 * 8 * 16 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(constant(), before, rtol=0, atol=tolerance)


def test_em_makes_tracks_no_less_likely(generator: torch.Generator) -> None:
    dynamics, positions, seen = two_components(generator)
    likely = [dynamics.track_log_density(positions, seen).mean()]
    for _ in range(3):
        dynamics.fit_initial_state(positions, seen)
        likely.append(dynamics.track_log_density(positions, seen).mean())
    assert likely[1] > likely[0] + 1
    # What is added to covariances, a ten-thousandth of the spread of all, may cost as much.
    assert min(late - early for early, late in itertools.pairwise(likely[1:])) > -1e-3


def test_drawn_tracks_have_the_moments_of_the_smoother(generator: torch.Generator) -> None:
    dynamics = LinearDynamics(position_noise=0.1, initial_spread=2.0, generator=generator)
    positions = torch.randn(1, 2, 5, 2, generator=generator, dtype=torch.float64)
    observed = torch.tensor([True, True, False, True, False]).expand(1, 2, 5)
    variances = torch.full_like(positions, 0.05)
    draws = dynamics.draw_tracks(positions, observed, variances, 20_000)
    smoothed = dynamics.smooth(positions, observed, variances)
    weights = smoothed.log_weights.exp()[..., None, None]
    mean = (weights * smoothed.means).sum(2)
    scale = smoothed.covariances.diagonal(dim1=-2, dim2=-1).amax().sqrt() + smoothed.means.std()
    # Five standard deviations of the mean of 20,000 draws.
    error = (draws.mean(0) - mean).abs().max().detach()
    assert float(error) < 5 * float(scale.detach()) / 20_000**0.5


def test_a_cluster_of_equal_points_keeps_a_ten_thousandth_of_the_variance() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    points = torch.tensor([[0.0, 0.0], [8.0, 4.0]], dtype=torch.float64).repeat_interleave(4, 0)
    information = StateInformation((1e12 * eye).expand(8, 2, 2), 1e12 * points)
    start = InitialMixture(torch.full((2,), 0.5).double(), points[[0, 4]], eye.expand(2, 2, 2))
    covariances = fit_mixture(information, start).covariances
    # Points known to a variance of 1e-12 leave the floor alone; the ridge of a thousandth moves
    # the points by that share, so their variance by two.
    floor = (1e-4 * points.var(0)).diag().expand(2, 2, 2)
    torch.testing.assert_close(covariances, floor, rtol=3e-3, atol=1e-11)
