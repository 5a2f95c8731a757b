"""The NumPy form of the dense smoother."""

import pytest
import torch

from motes import kalman
from motes.kalman.dense_arrays import covers, smooth_shared
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM, select
from motes.kalman.sequential import smooth_sequential


def problem(generator: torch.Generator) -> tuple[LGSSM, torch.Tensor]:
    dynamics = LinearDynamics(num_components=3, generator=generator)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator).double()
    model = LGSSM(*(field.detach() for field in dynamics.components()))
    return model, torch.randn(4, 1, 9, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("mask", [None, "111111111", "101100011", "000000001", "100000000"])
@pytest.mark.parametrize("one", [True, False])
def test_the_numpy_form_equals_the_sequential_smoother(
    one: bool, mask: str | None, generator: torch.Generator
) -> None:
    model, positions = problem(generator)
    observed = None if mask is None else torch.tensor([flag == "1" for flag in mask])
    if one:
        model = select(model, torch.tensor(1))
    shown = positions if observed is None else torch.where(observed[:, None], positions, torch.nan)
    assert covers(model, shown, observed)
    found = smooth_shared(model, shown, observed)
    assert found is not None
    ours, rounding = found
    expected, _ = smooth_sequential(model, shown.nan_to_num(), observed)
    # Float64 and covariances of condition below 1e4, as in tests/laws/test_kalman_laws.py.
    torch.testing.assert_close(ours.means, expected.means, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.covariances, expected.covariances, rtol=1e-9, atol=1e-9)
    assert 0 < rounding < kalman.MAX_ROUNDING


def test_the_numpy_form_leaves_the_rest_to_others(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients, a mask for each track, batches of dynamics, and what is not positive definite."""
    model, positions = problem(generator)
    masks = torch.ones(4, 1, 9, dtype=torch.bool)
    assert not covers(model, positions.clone().requires_grad_(), None)
    assert not covers(model, positions, masks)
    assert not covers(model._replace(transition=model.transition.expand(3, 4, 4)), positions, None)
    assert not covers(model, positions.expand(4, 3, 9, 2), None)
    assert smooth_shared(model, positions, ~masks[0, 0]) is None
    noiseless = LGSSM(*(torch.zeros_like(field) for field in model))
    assert smooth_shared(noiseless, positions, None) is None
    with torch.no_grad():
        assert covers(model, positions.clone().requires_grad_(), None)
    calls = []
    monkeypatch.setattr(kalman, "smooth_shared", lambda *given: calls.append(given))
    kalman.smooth(model, positions)
    assert len(calls) == 1  # and None lets the dense form answer
