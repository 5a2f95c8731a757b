import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.mixture import Gaussian
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
