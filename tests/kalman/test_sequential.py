import pytest
import torch

from motes.kalman.model import LGSSM
from motes.kalman.sequential import smooth_sequential


@pytest.mark.parametrize("delta", [0.07, 0.1, 0.3])
def test_smoothed_covariances_stay_positive_with_a_wide_initial_state_and_little_noise(
    delta: float, generator: torch.Generator
) -> None:
    """The initial velocity variance of 4 is reduced by ten orders of magnitude."""
    eye, state_noise, position_noise = torch.eye(4, dtype=torch.float64), 1e-12, 1e-10
    model = LGSSM(
        transition=eye + delta * eye.roll(2, 1).triu(),
        force=torch.zeros(4, dtype=torch.float64),
        emission=eye[:2],
        state_noise=state_noise * eye,
        position_noise=position_noise * eye[:2, :2],
        initial_mean=torch.zeros(4, dtype=torch.float64),
        initial_covariance=4 * eye,
    )
    positions = torch.randn(100, 2, dtype=torch.float64, generator=generator).cumsum(0)
    plain = smooth_sequential(model, positions, None)[0].covariances
    assert (torch.linalg.eigvalsh(plain) > 0).all()
    # Two positions alone determine the velocity with this variance; a hundred do no worse.
    assert plain[0, 2, 2] < (2 * position_noise + state_noise) / delta**2
    wide = torch.full_like(positions, position_noise)
    widened, _ = smooth_sequential(model, positions, None, wide)
    assert (torch.linalg.eigvalsh(widened.covariances - plain) > 0).all()
