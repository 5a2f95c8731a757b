from collections.abc import Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from motes import kalman
from motes.core.errors import InputError
from motes.kalman.chunked import log_likelihood_chunked
from motes.kalman.dense import smooth_dense
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.exact import filter_exact, smooth_exact
from motes.kalman.model import LGSSM, select
from motes.kalman.sequential import smooth_sequential
from oracles import log_density, one_model
from strategies import random_model


def newton(generator: torch.Generator, num_components: int = 2) -> LGSSM:
    """The paper's dynamics at the initial parameters, with a force."""
    dynamics = LinearDynamics(num_components=num_components, generator=generator)
    with torch.no_grad():
        dynamics.force.normal_(std=0.1, generator=generator)
    return LGSSM(*(field.detach() for field in dynamics.components()))


def noisy_positions(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, 2, dtype=torch.float64, generator=generator)


def test_one_frame_is_one_gaussian_update(generator: torch.Generator) -> None:
    model, positions = newton(generator), noisy_positions(generator, 5, 1, 1)
    result, track = kalman.filter(model, positions), kalman.smooth(model, positions)
    # B = [I, 0] and Sigma = Sigma_A = I: half way between mean and position, variance a half.
    half_way = (model.initial_mean[:, None, :2] + positions) / 2
    for means, covariances in (result[:2], track):
        assert means.shape == (5, 2, 1, 4)
        assert covariances.shape == (5, 2, 1, 4, 4)
        torch.testing.assert_close(means[..., :2], half_way, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            covariances[0, 0, 0].diagonal(), torch.tensor([0.5, 0.5, 1.0, 1.0]).double()
        )


@pytest.mark.parametrize("num_unobserved", [0, 9])
def test_statsmodels_agrees(generator: torch.Generator, num_unobserved: int) -> None:
    """Independent check: a mature library with missing data, on the paper's dynamics."""
    from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

    model = one_model(newton(generator, 1), (1,), (0,))
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    positions = noisy_positions(generator, 3, 20)
    observed = torch.ones(20, dtype=torch.bool)
    observed[5 : 5 + num_unobserved] = False
    ours = LGSSM(*(torch.from_numpy(field) for field in model))
    track = kalman.smooth(ours, positions, observed)
    past = kalman.filter(ours, positions, observed)
    evidence = kalman.log_likelihood(ours, positions, observed)
    for clip, a in enumerate(positions):
        theirs = KalmanSmoother(k_endog=2, k_states=4, k_posdef=4, tolerance=0)
        theirs.bind(torch.where(observed[:, None], a, torch.nan).numpy().copy())
        theirs["transition"], theirs["state_intercept"] = A, u[:, None]
        theirs["design"], theirs["selection"] = B, np.eye(4)
        theirs["state_cov"], theirs["obs_cov"] = Sigma_H, Sigma_A
        theirs.initialize_known(mu, Sigma)
        answer = theirs.smooth()
        # Two float64 routes, condition numbers of about 1e3 (Sigma_A / Sigma_H): 1e-13, and spare.
        close = dict(rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(track.means[clip], answer.smoothed_state.T, **close)
        np.testing.assert_allclose(
            track.covariances[clip], answer.smoothed_state_cov.transpose(2, 0, 1), **close
        )
        np.testing.assert_allclose(past.means[clip], answer.filtered_state.T, **close)
        np.testing.assert_allclose(evidence[clip], answer.llf_obs.sum(), **close)


def test_long_videos_take_the_long_routes_and_agree_with_the_filter(
    generator: torch.Generator,
) -> None:
    model = newton(generator)
    T = kalman.DENSE_FRAMES + kalman.BLOCK_FRAMES + 5
    positions = noisy_positions(generator, 3, 1, T)
    some = torch.rand(3, 1, T, generator=generator) < 0.6
    for observed in (None, some, some[0, 0]):
        past = kalman.filter(model, positions, observed)
        value = kalman.log_likelihood(model, positions, observed)
        # Sums of 200 terms of size 1 to 10: rounding about 1e-12.
        torch.testing.assert_close(value, past.log_likelihood, rtol=1e-11, atol=1e-9)
        track = kalman.smooth(model, positions, observed)
        torch.testing.assert_close(track.means[..., -1, :], past.means[..., -1, :])
        mask = torch.ones(T, dtype=torch.bool) if observed is None else observed
        expected, _ = smooth_dense(model, torch.where(mask[..., None], positions, 0.0), mask)
        torch.testing.assert_close(track.means, expected.means, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(track.covariances, expected.covariances, rtol=1e-9, atol=1e-9)


def test_precise_positions_with_a_vague_initial_state_lose_few_digits(
    generator: torch.Generator,
) -> None:
    """Position noise 1e-3, initial spread 1e3: variances 12 orders of magnitude apart."""
    model = newton(generator, 1)
    model = model._replace(
        position_noise=1e-6 * model.position_noise,
        initial_covariance=1e6 * model.initial_covariance,
    )
    positions = 1e-3 * noisy_positions(generator, 1, 90)
    exact = log_density(one_model(model, (1,), (0,)), positions[0].numpy(), np.ones(90, bool))
    # eps times the 1e12 between the scales is 1e-4 at the worst; the value is about 200.
    for value in (
        kalman.log_likelihood(model, positions),
        kalman.filter(model, positions).log_likelihood,
    ):
        assert value.item() == pytest.approx(exact, rel=1e-6)


def test_gradients_are_those_of_the_values(generator: torch.Generator) -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, [(2,)] * 7, 3, 2)
    positions = torch.from_numpy(rng.normal(size=(2, 1, 5, 2)))
    observed = torch.tensor([True, True, False, True, False])
    everything = torch.ones(5, dtype=torch.bool)
    noise = torch.from_numpy(rng.normal(size=(5, 5)))

    def symmetric(fields: tuple[torch.Tensor, ...]) -> LGSSM:
        # A step of gradcheck must stay among the symmetric matrices, where covariances live.
        A, u, B, Sigma_H, Sigma_A, mu, Sigma = fields
        return LGSSM(
            A, u, B, *((m + m.mT) / 2 for m in (Sigma_H, Sigma_A)), mu, (Sigma + Sigma.mT) / 2
        )

    each = torch.tensor([[[True, True, False, True, False]], [[False, True, True, True, True]]])
    shift = torch.from_numpy(rng.normal(size=(2, 1, 3)))

    def with_shifted_initial_mean(fields: tuple[torch.Tensor, ...]) -> LGSSM:
        model = symmetric(fields)
        return model._replace(initial_mean=model.initial_mean + shift)

    routes = {
        "dense": lambda a, *m: kalman.log_likelihood(symmetric(m), a),
        "masked": lambda a, *m: kalman.log_likelihood(symmetric(m), a, observed),
        "one mask each": lambda a, *m: kalman.log_likelihood(symmetric(m), a, each),
        "one initial mean each": lambda a, *m: kalman.log_likelihood(
            with_shifted_initial_mean(m), a, observed
        ),
        "chunked": lambda a, *m: log_likelihood_chunked(symmetric(m), a, everything, 2)[0],
        "chunked, equal masks": lambda a, *m: log_likelihood_chunked(symmetric(m), a, None, 2)[0],
        "filter": lambda a, *m: kalman.filter(symmetric(m), a, observed)[:2],
        "smooth": lambda a, *m: tuple(kalman.smooth(symmetric(m), a, observed, a.square())),
        "smooth each": lambda a, *m: tuple(kalman.smooth(symmetric(m), a, each, a.square())),
        "sequential": lambda a, *m: tuple(
            smooth_sequential(symmetric(m), a * observed[:, None], observed, a.square())[0]
        ),
        "exact": lambda a, *m: filter_exact(symmetric(m), a, observed)[:2],
        "exact likelihood": lambda a, *m: filter_exact(symmetric(m), a, observed).log_likelihood,
        "exact smoother": lambda a, *m: tuple(smooth_exact(symmetric(m), a, each, a.square())),
        "draws": lambda a, *m: kalman.draw_states(symmetric(m), a, observed, noise=noise),
    }
    inputs = tuple(tensor.requires_grad_() for tensor in (positions, *model))
    for name, route in routes.items():
        assert gradcheck(route, inputs, fast_mode=True), name


def test_nan_in_unobserved_positions_leaves_values_and_gradients_finite(
    generator: torch.Generator,
) -> None:
    fields = tuple(field.clone().requires_grad_() for field in newton(generator))
    model = LGSSM(*fields)
    for T in (6, kalman.DENSE_FRAMES + 1):
        positions = noisy_positions(generator, 4, 1, T)
        observed = torch.rand(4, 1, T, generator=generator) < 0.5
        positions[~observed] = torch.nan
        variances = positions.square()
        positions.requires_grad_()
        value = (
            kalman.log_likelihood(model, positions, observed).sum()
            + kalman.filter(model, positions, observed).means.sum()
            + kalman.smooth(model, positions, observed, variances).covariances.sum()
        )
        gradients = torch.autograd.grad(value, (positions, *fields))
        assert value.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][~observed] == 0).all()
        assert (gradients[0][observed] != 0).any()


def test_covariances_are_not_formed_for_each_clip(generator: torch.Generator) -> None:
    """With a shared mask, the results of many clips are views of one covariance."""
    model, positions = newton(generator), noisy_positions(generator, 50, 1, 8)
    observed = torch.arange(8) != 3
    for covariances in (
        kalman.filter(model, positions, observed).covariances,
        kalman.smooth(model, positions, observed).covariances,
    ):
        assert covariances.shape == (50, 2, 8, 4, 4)
        assert covariances.stride(0) == 0


def test_float32_positions_are_computed_in_the_models_type(generator: torch.Generator) -> None:
    model, positions = newton(generator), noisy_positions(generator, 3, 1, 8).float()
    value = kalman.log_likelihood(model, positions)
    assert value.dtype == torch.float64
    assert torch.equal(value, kalman.log_likelihood(model, positions.double()))


@pytest.mark.parametrize("field", ["position_noise", "initial_covariance"])
@pytest.mark.parametrize("num_frames", [5, kalman.DENSE_FRAMES + 1])
def test_an_invalid_covariance_gives_nan(
    generator: torch.Generator, field: str, num_frames: int
) -> None:
    model, positions = newton(generator), noisy_positions(generator, 1, num_frames)
    broken = model._replace(**{field: -getattr(model, field)})
    assert kalman.log_likelihood(broken, positions).isnan().all()


def test_wrong_shapes_are_reported(generator: torch.Generator) -> None:
    model = newton(generator)
    with pytest.raises(InputError, match=r"\(4, 7, 3\); expected \(\.\.\., T, 2\)"):
        kalman.filter(model, torch.zeros(4, 7, 3))
    with pytest.raises(InputError, match=r"\(4, 0, 2\); expected .* T >= 1"):
        kalman.smooth(model, torch.zeros(4, 0, 2))
    with pytest.raises(InputError, match=r"noise of shape \(8, 4\); expected \(\.\.\., T, 6\)"):
        kalman.draw_states(model, torch.zeros(1, 8, 2), noise=torch.zeros(8, 4))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable annotation checks, as for users: invalid inputs must still be rejected."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
def test_wrong_masks_are_reported(generator: torch.Generator) -> None:
    model, positions = newton(generator), torch.zeros(1, 8, 2)
    with pytest.raises(InputError, match=r"shape \(9,\); expected torch.bool and \(\.\.\., 8\)"):
        kalman.log_likelihood(model, positions, torch.ones(9, dtype=torch.bool))
    with pytest.raises(InputError, match=r"type torch.float32 .* expected torch.bool"):
        kalman.filter(model, positions, torch.ones(8))


def test_global_random_state_is_not_touched(generator: torch.Generator) -> None:
    before = torch.get_rng_state()
    model, positions = newton(generator), noisy_positions(generator, 1, 6)
    noise = torch.randn(6, 6, generator=generator)
    kalman.draw_states(model, positions, noise=noise)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_frames", [1, 5, kalman.DENSE_FRAMES + 1])
def test_empty_batches_give_empty_results(num_frames: int, generator: torch.Generator) -> None:
    model = select(LinearDynamics(generator=generator).components(), torch.tensor(0))
    positions = torch.zeros(2, 0, num_frames, 2)
    for observed in (None, torch.ones(2, 0, num_frames, dtype=torch.bool)):
        assert kalman.log_likelihood(model, positions, observed).shape == (2, 0)
        assert kalman.smooth(model, positions, observed).means.shape[:3] == (2, 0, num_frames)
        assert kalman.filter(model, positions, observed).means.shape[:3] == (2, 0, num_frames)
