import pytest
import torch

from motes.core.errors import InputError
from motes.kalman.dynamics import LinearDynamics


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
