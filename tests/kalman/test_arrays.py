import pytest
import torch

from motes.core.axes import Tensor
from motes.kalman.arrays import few_tracks, joined_few
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import LGSSM
from motes.kalman.sequential import run_filter, smooth_sequential
from motes.kalman.track_evidence import joined_by_filter

FRAMES = 40


def law(num_components: int = 2) -> LGSSM:
    """Return components that differ in their initial state, with a force."""
    generator = torch.Generator().manual_seed(3)
    dynamics = LinearDynamics(
        num_components=num_components, state_noise=0.01, position_noise=0.1, generator=generator
    )
    with torch.no_grad():
        dynamics.force.copy_(torch.tensor([0.0, 0.0, 0.1, -0.3]))
    return LGSSM(*(part.detach() for part in dynamics.components()))


def walks(generator: torch.Generator) -> Tensor:
    """Return positions of two clips of three objects."""
    return torch.randn(2, 3, 1, FRAMES, 2, dtype=torch.float64, generator=generator).cumsum(-2)


@pytest.mark.parametrize("mask", ["none", "shared", "each"])
@pytest.mark.parametrize("with_variances", [False, True])
def test_few_tracks_equal_the_sequential_smoother(
    mask: str, with_variances: bool, generator: torch.Generator
) -> None:
    """Float64 with condition numbers below 1e4: twelve digits agree."""
    model, a = law(), walks(generator)
    flags = torch.rand(2, 3, 1, FRAMES, generator=generator) < 0.8
    observed = {"none": None, "shared": flags[0, 0, 0], "each": flags}[mask]
    variances = torch.rand(a.shape, dtype=torch.float64, generator=generator)
    if observed is not None:
        a, variances = (torch.where(observed[..., None], part, 0.0) for part in (a, variances))
    given = variances if with_variances else None
    plain, rounding = smooth_sequential(model, a, observed, given)
    few = few_tracks(model, a, observed, given)
    assert few is not None
    torch.testing.assert_close(few.smoothed.means, plain.means, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(few.smoothed.covariances, plain.covariances, rtol=1e-9, atol=1e-12)
    density = run_filter(model, a, observed)[0].log_likelihood
    torch.testing.assert_close(few.log_likelihood, density, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(few.rounding, rounding, rtol=1e-6, atol=0.0)


def test_a_single_model_needs_no_axis_of_components(generator: torch.Generator) -> None:
    model, a = law(), walks(generator)[0, :, 0]
    one = model._replace(
        initial_mean=model.initial_mean[0], initial_covariance=model.initial_covariance[0]
    )
    few, plain = few_tracks(one, a, None), smooth_sequential(one, a, None)[0]
    assert few is not None
    torch.testing.assert_close(few.smoothed.means, plain.means, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(few.smoothed.covariances, plain.covariances, rtol=1e-9, atol=1e-12)


def test_few_tracks_are_joined_as_by_the_filter(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, a = law(), walks(generator)[:, :, 0]
    observed = torch.rand(2, 3, FRAMES, generator=generator) < 0.8
    observed[1] = observed[1, 0]  # one clip with one mask
    a = torch.where(observed[..., None], a, 0.0)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    few = joined_few(model, weights, a, observed)
    monkeypatch.setattr("motes.kalman.track_evidence.joined_few", lambda *given: None)
    assert few is not None
    plain = joined_by_filter(model, weights, a, observed)
    torch.testing.assert_close(few, plain, rtol=1e-10, atol=1e-8)


def test_what_few_tracks_do_not_cover_is_left_to_other_routes(generator: torch.Generator) -> None:
    model, a = law(), walks(generator)
    traced = model._replace(force=model.force.clone().requires_grad_())
    batched = model._replace(transition=model.transition.expand(2, 4, 4))
    assert few_tracks(traced, a, None) is None
    assert few_tracks(batched, a, None) is None
    assert few_tracks(model, a.float(), None) is None
    assert few_tracks(model, a.expand(400, -1, -1, -1, -1, -1), None) is None
    singular = model._replace(
        state_noise=torch.zeros_like(model.state_noise),
        initial_covariance=torch.zeros_like(model.initial_covariance),
    )
    assert few_tracks(singular, a, None) is None
