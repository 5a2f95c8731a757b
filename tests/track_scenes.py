"""Dynamics with all parameters in use, and tracks that swap identities."""

import torch

from motes.kalman.dynamics import LinearDynamics


def linear_dynamics(state_noise: float = 1e-3) -> LinearDynamics:
    """Return two components with a force, a force field and correlated initial states."""
    dynamics = LinearDynamics(
        num_components=2,
        sampling_period=0.7,
        state_noise=state_noise,
        position_noise=0.02,
        linear=True,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.1, 0.0, 0.02, -0.03]))
        dynamics.logits.copy_(torch.tensor([0.3, -0.4]))
        dynamics.initial_factor[:, 2, 0] = 0.3
        assert dynamics.force_field is not None
        dynamics.force_field.copy_(0.1 * torch.arange(8.0).view(2, 4).cos())
    return dynamics


def swapped_from(values: torch.Tensor, one: int, other: int, frame: int) -> torch.Tensor:
    """Return one clip whose two objects swap identities from a frame on."""
    swapped = values.clone()
    swapped[one, frame:], swapped[other, frame:] = values[other, frame:], values[one, frame:]
    return swapped
