import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.linalg import map_vector, solve_covariance, square_root
from motes.kalman.model import draw_path, select
from strategies import random_covariance


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


def test_spread_scales_the_start(generator: torch.Generator) -> None:
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


def test_shared_parts_are_shared_and_the_start_is_not(generator: torch.Generator) -> None:
    model = LinearDynamics(num_components=2, generator=generator).components()
    shapes = [tuple(field.shape) for field in model]
    assert shapes == [(4, 4), (4,), (2, 4), (4, 4), (2, 2), (2, 4), (2, 4, 4)]
    assert not torch.equal(model.initial_mean[0], model.initial_mean[1])


@pytest.mark.parametrize(
    "setting", [{"num_components": 0}, {"sampling_period": -1.0}, {"state_noise": 0.0}]
)
def test_impossible_settings_are_named(
    generator: torch.Generator, setting: dict[str, float]
) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(InputError, match=f"got {name}={value}; expected a positive"):
        LinearDynamics(**setting, generator=generator)


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_square_root_of_singular_covariance(rank: int) -> None:
    rng = np.random.default_rng(rank)
    root = rng.normal(size=(5, 4, rank))
    covariance = torch.from_numpy(root @ np.swapaxes(root, -1, -2)).requires_grad_()
    factor = square_root(covariance)
    # A dropped pivot is at most 4 eps times a diagonal entry of size 10.
    torch.testing.assert_close(factor @ factor.mT, covariance, rtol=0, atol=1e-13)
    assert torch.equal(factor, factor.tril())
    (gradient,) = torch.autograd.grad(factor.sum(), covariance)
    assert gradient.isfinite().all()


def test_square_root_of_regular_covariance_is_choleskys() -> None:
    covariance = torch.from_numpy(random_covariance(np.random.default_rng(0), (3,), 4))
    expected = torch.linalg.cholesky(covariance)
    torch.testing.assert_close(square_root(covariance), expected, rtol=1e-12, atol=1e-12)


def test_paths_obey_the_equations_of_motion(generator: torch.Generator) -> None:
    """Each row of noise moves exactly what it should: checked against a plain loop."""
    model = LinearDynamics(num_components=2, generator=generator).components()
    model = type(model)(*(field.detach() for field in model))
    noise = torch.randn(3, 2, 7, 6, dtype=torch.float64, generator=generator)
    path = draw_path(model, noise)
    for clip in range(3):
        for k in range(2):
            A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
            h = mu[k] + torch.linalg.cholesky(Sigma[k]) @ noise[clip, k, 0, :4]
            for t in range(7):
                if t > 0:
                    h = A @ h + u + torch.linalg.cholesky(Sigma_H) @ noise[clip, k, t, :4]
                a = B @ h + torch.linalg.cholesky(Sigma_A) @ noise[clip, k, t, 4:]
                torch.testing.assert_close(path.states[clip, k, t], h, rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(path.positions[clip, k, t], a, rtol=1e-12, atol=1e-12)


def test_select_gives_each_object_its_component(generator: torch.Generator) -> None:
    model = LinearDynamics(num_components=3, generator=generator).components()
    component = torch.tensor([[2, 0], [1, 1]])
    chosen = select(model, component)
    assert chosen.transition is model.transition
    assert torch.equal(chosen.initial_covariance[0, 0], model.initial_covariance[2])
    assert torch.equal(chosen.initial_mean[0, 0], model.initial_mean[2])
    assert torch.equal(chosen.initial_mean[1], model.initial_mean[[1, 1]])


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


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_solve_with_singular_covariance(rank: int, generator: torch.Generator) -> None:
    factor = torch.randn(5, 4, rank, dtype=torch.float64, generator=generator)
    covariance = factor @ factor.mT
    right = covariance @ torch.randn(5, 4, 3, dtype=torch.float64, generator=generator)
    found = solve_covariance(covariance, right)
    assert found.isfinite().all()
    # Rounding of 1e-16, times condition numbers of up to 1e5 among so few random matrices.
    torch.testing.assert_close(covariance @ found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("matrices", "vectors"),
    [((), (5, 2)), ((2,), (2,)), ((2,), (5, 2)), ((3, 2), (5, 3, 2)), ((2,), (5, 3, 2)),
     ((2,), (5, 1)), ((1, 2), (3, 1)), ((5, 2), (2,))],
)  # fmt: skip
def test_matrices_meet_vectors_as_a_loop_over_pairs_does(
    matrices: tuple[int, ...], vectors: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randint(-9, 9, (*matrices, 4, 3), generator=generator).double()
    vector = torch.randint(-9, 9, (*vectors, 3), generator=generator).double()
    lead = torch.broadcast_shapes(matrices, vectors)
    pairs = zip(
        matrix.expand(*lead, 4, 3).reshape(-1, 4, 3),
        vector.expand(*lead, 3).reshape(-1, 3),
        strict=True,
    )
    expected = torch.stack([(M * v).sum(-1) for M, v in pairs]).view(*lead, 4)
    torch.testing.assert_close(map_vector(matrix, vector), expected, rtol=0, atol=0)
