"""The likelihood-ratio test of the law of motion."""

import numpy as np
import pytest
import torch

from motes.queries.law_test import departure_from_law

T, NOISE, PLACE, SPEED = 20, 0.7, 8.0, 0.8


def covariance() -> np.ndarray:
    """Return that of a coordinate x0 + v t + noise at all times."""
    time = np.arange(T)
    return PLACE**2 + SPEED**2 * np.outer(time, time) + NOISE**2 * np.eye(T)


def log_density(
    positions: torch.Tensor, present: torch.Tensor, detected: torch.Tensor
) -> torch.Tensor:
    assert detected.all()
    precision = torch.from_numpy(np.linalg.inv(covariance()))
    squares = torch.einsum("bntp,ts,bnsp->bn", positions, precision, positions)
    return -0.5 * (squares * present).sum(1)


def draw(num_clips: int, num_objects: int = 2, force: float = 0.0, seed: int = 0) -> torch.Tensor:
    noise = np.random.default_rng(seed).standard_normal((num_clips, num_objects, 2, T))
    paths = (noise @ np.linalg.cholesky(covariance()).T).swapaxes(2, 3)
    paths[..., 0] += force * np.arange(T) ** 2 / 2
    return torch.from_numpy(paths)


def departure(positions: torch.Tensor) -> torch.Tensor:
    there = torch.ones(positions.shape[:3], dtype=torch.bool)
    return departure_from_law(log_density, positions, there[..., 0], there, 1.0)


def test_the_law_test_equals_a_regression_on_the_displacements() -> None:
    positions = draw(5, 3)
    precision, time = np.linalg.inv(covariance()), np.arange(T)
    for clip, found in zip(positions.numpy(), departure(positions).tolist(), strict=True):
        normal, score = np.zeros((3, 3)), np.zeros(3)
        for path in clip:
            drag = np.polyfit(time, path, 1)[0] * time[:, None] ** 2 / 2
            for axis in range(2):
                design = np.stack(
                    [(axis == 0) * time**2 / 2, (axis == 1) * time**2 / 2, drag[:, axis]]
                )
                normal += design @ precision @ design.T
                score += design @ precision @ path[:, axis]
        assert found**2 == pytest.approx(score @ np.linalg.solve(normal, score), rel=1e-6)


@pytest.mark.statistical
def test_the_law_test_has_its_distribution() -> None:
    """Mean 3 and variance 6 of a chi-squared: 5 standard errors."""
    squares = departure(draw(1000)).square()
    assert abs(float(squares.mean()) - 3) < 5 * np.sqrt(6 / 1000)
    assert float((squares > 16.27).double().mean()) < 0.01  # one in a thousand


def test_a_steady_force_is_found() -> None:
    # A force of .05 bends a path of 20 frames by .05 * 400 / 27 = .75 pixels, the noise: 8
    # standard errors in two objects.
    assert float(departure(draw(50, force=0.05)).min()) > 2
    assert float(departure(draw(50, force=0.05)).median()) > 5
    assert float(departure(draw(50)).median()) < 2.5


def test_absent_objects_and_long_clips_do_not_matter() -> None:
    positions = draw(3, 3)
    there = torch.ones(3, 3, T, dtype=torch.bool)
    there[:, 2] = False

    def density(moved: torch.Tensor, present: torch.Tensor, detected: torch.Tensor) -> torch.Tensor:
        return log_density(moved, present, torch.ones(1))

    fewer = departure_from_law(density, positions, there[..., 0], there, 1.0)
    assert torch.allclose(fewer, departure(positions[:, :2]), rtol=1e-6)
