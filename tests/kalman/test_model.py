import torch

from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import draw_path, select


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
