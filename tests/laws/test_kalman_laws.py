"""Algebra that holds for any model, mask and batch shape.

Tolerance 1e-9, absolute and relative: condition numbers of the random problems stay below about
1e4, values below 1e3, so rounding (1e-16) amounts to 1e-10 at the most; a wrong formula is wrong
by far more than 1e-9.
"""

from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes import kalman
from motes.kalman.chunked import log_likelihood_chunked
from motes.kalman.dense import log_likelihood_dense, smooth_dense
from motes.kalman.exact import filter_exact, smooth_exact
from motes.kalman.sequential import run_filter, smooth_sequential
from oracles import diagonal_blocks, gains, log_density, one_model, posterior
from strategies import Problem, problems

TOLERANCE = 1e-9
few = settings(max_examples=25, deadline=None, derandomize=True)
LIKELIHOODS = {
    "interface": kalman.log_likelihood,
    "dense": lambda *problem: log_likelihood_dense(*problem)[0],
    "chunked": lambda *problem: log_likelihood_chunked(*problem, 3)[0],
    "sequential": lambda *problem: run_filter(*problem)[0].log_likelihood,
    "exact": lambda *problem: filter_exact(*problem).log_likelihood,
}
SMOOTHERS = {
    "interface": kalman.smooth,
    "dense": lambda *problem: smooth_dense(*problem)[0],
    "sequential": lambda *problem: smooth_sequential(*problem)[0],
    "exact": smooth_exact,
}


def assert_same(actual: torch.Tensor, expected: torch.Tensor | np.ndarray, route: str = "") -> None:
    torch.testing.assert_close(
        actual,
        torch.as_tensor(expected),
        rtol=TOLERANCE,
        atol=TOLERANCE,
        msg=lambda text: f"{route}: {text}",
    )


def one_by_one(problem: Problem):
    """The model, positions and mask at every index of the broadcast leading axes, in numpy."""
    model, positions, observed, lead = problem
    positions = positions.expand(*lead, *positions.shape[-2:])
    observed = observed.expand(*lead, observed.shape[-1])
    for index in np.ndindex(*lead):
        single = one_model(model, lead, index)
        yield index, single, positions[index].numpy(), observed[index].numpy()


@few
@given(problems())
def test_every_log_likelihood_matches_the_joint_gaussian(problem: Problem) -> None:
    for name, route in LIKELIHOODS.items():
        value = route(*problem[:3]).expand(problem.lead)
        for index, model, positions, observed in one_by_one(problem):
            expected = torch.tensor(log_density(model, positions, observed)).double()
            assert_same(value[index], expected, name)


@few
@given(problems(), st.integers(1, 8))
def test_all_routes_to_the_log_likelihood_agree(problem: Problem, num_frames: int) -> None:
    model, positions, observed, _ = problem
    dense, _ = log_likelihood_dense(model, positions, observed)
    assert_same(log_likelihood_chunked(model, positions, observed, num_frames)[0], dense)
    assert_same(kalman.filter(model, positions, observed).log_likelihood, dense)
    everything = torch.ones(positions.shape[-2], dtype=torch.bool)
    assert_same(
        log_likelihood_chunked(model, positions, None, num_frames)[0],
        log_likelihood_dense(model, positions, everything)[0],
    )


@few
@given(problems())
def test_filter_matches_dense_conditioning(problem: Problem) -> None:
    result = kalman.filter(*problem[:3])
    for index, model, positions, observed in one_by_one(problem):
        for t in range(len(positions)):
            until, before = observed.copy(), observed.copy()
            until[t + 1 :], before[t:] = False, False
            mean, cov = posterior(model, positions, until)
            mean_pred, cov_pred = posterior(model, positions, before)
            assert_same(result.means[index][t], mean[t])
            assert_same(result.covariances[index][t], cov[t, :, t])
            assert_same(result.predicted_means[index][t], mean_pred[t])
            assert_same(result.predicted_covariances[index][t], cov_pred[t, :, t])


@few
@given(problems())
def test_smoother_matches_dense_posterior(problem: Problem) -> None:
    for name, route in SMOOTHERS.items():
        result = route(*problem[:3])
        for index, model, positions, observed in one_by_one(problem):
            mean, cov = posterior(model, positions, observed)
            assert_same(result.means[index], mean, name)
            assert_same(result.covariances[index], diagonal_blocks(cov), name)


@few
@given(problems())
def test_dense_and_sequential_smoothers_agree(problem: Problem) -> None:
    model, positions, observed, _ = problem
    for given_variances in (None, positions.square()):
        dense, _ = smooth_dense(model, positions, observed, given_variances)
        for name in ("sequential", "exact"):
            other = SMOOTHERS[name](model, positions, observed, given_variances)
            assert_same(other.means, dense.means, name)
            assert_same(other.covariances, dense.covariances, name)


@few
@given(problems(), st.integers(1, 4))
def test_chunks_of_frames_do_not_change_the_smoother(problem: Problem, chunk_frames: int) -> None:
    model, positions, observed, _ = problem
    for given_variances in (None, positions.square()):
        arguments = (model, positions, observed, given_variances)
        whole, _ = smooth_sequential(*arguments)
        with patch("motes.kalman.sequential.CHUNK_FRAMES", chunk_frames):
            pieces, _ = smooth_sequential(*arguments)
        assert_same(pieces.means, whole.means)
        assert_same(pieces.covariances, whole.covariances)


@few
@given(problems(), st.integers(1, 3), st.integers(1, 3))
def test_chunks_of_blocks_do_not_change_the_log_likelihood(
    problem: Problem, num_frames: int, chunk_blocks: int
) -> None:
    model, positions, observed, _ = problem
    for mask in (None, observed):
        whole, _ = log_likelihood_chunked(model, positions, mask, num_frames)
        with patch("motes.kalman.chunked.CHUNK_BLOCKS", chunk_blocks):
            pieces, _ = log_likelihood_chunked(model, positions, mask, num_frames)
        assert_same(pieces, whole)


@few
@given(problems())
def test_uncertain_positions_add_the_variance_of_the_smoothed_mean(problem: Problem) -> None:
    model, positions, observed, _ = problem
    variances = positions.square()
    result = kalman.smooth(model, positions, observed, variances)
    assert_same(result.means, kalman.smooth(model, positions, observed).means)
    for index, single, a, mask in one_by_one(problem):
        T, D = len(a), len(single.transition)
        gain = gains(single, mask)
        spread = (gain * a.reshape(-1) ** 2 @ gain.T).reshape(T, D, T, D)
        _, cov = posterior(single, a, mask)
        assert_same(result.covariances[index], diagonal_blocks(cov + spread))


@few
@given(problems())
def test_masking_a_frame_is_deleting_its_rows(problem: Problem) -> None:
    """Values at masked frames do not matter; the oracle deletes them, so only values vary here."""
    model, positions, observed, _ = problem
    garbage = torch.where(observed[..., None], positions, torch.nan)
    variances = torch.where(observed[..., None], positions.square(), torch.nan)
    assert_same(
        kalman.log_likelihood(model, garbage, observed),
        kalman.log_likelihood(model, positions, observed),
    )
    for with_garbage, clean in zip(
        kalman.smooth(model, garbage, observed, variances),
        kalman.smooth(model, positions, observed, positions.square()),
        strict=True,
    ):
        assert torch.equal(with_garbage, clean)
    other = torch.where(observed[..., None], positions, 7.0)
    for name, route in LIKELIHOODS.items():
        assert torch.equal(route(model, other, observed), route(model, positions, observed)), name
    for name, smoother in SMOOTHERS.items():
        for found, expected in zip(
            smoother(model, other, observed), smoother(model, positions, observed), strict=True
        ):
            assert torch.equal(found, expected), name


@few
@given(problems())
def test_one_mask_for_each_clip_is_one_clip_at_a_time(problem: Problem) -> None:
    value = kalman.log_likelihood(*problem[:3])
    track = kalman.smooth(*problem[:3])
    for index, model, positions, observed in one_by_one(problem):
        single = type(model)(*(torch.tensor(field) for field in model))
        a, mask = torch.tensor(positions), torch.tensor(observed)
        assert_same(value[index], kalman.log_likelihood(single, a, mask))
        assert_same(track.means[index], kalman.smooth(single, a, mask).means)
        assert_same(track.covariances[index], kalman.smooth(single, a, mask).covariances)


@few
@given(problems())
def test_one_step_at_a_time_is_the_filter(problem: Problem) -> None:
    model, positions, observed, lead = problem
    expected = kalman.filter(model, positions, observed)
    estimate = kalman.StateEstimate(model.initial_mean, model.initial_covariance)
    total = torch.zeros((), dtype=torch.float64)
    for t, position in enumerate(positions.unbind(-2)):
        estimate, log_density = kalman.update(model, *estimate, position, observed[..., t])
        total = total + log_density
        assert_same(estimate.mean.expand(*lead, -1), expected.means[..., t, :])
        assert_same(
            estimate.covariance.expand_as(expected.covariances[..., t, :, :]),
            expected.covariances[..., t, :, :],
        )
        estimate = kalman.predict(model, *estimate)
    assert_same(total.expand(lead), expected.log_likelihood.expand(lead))


@few
@given(problems())
def test_zero_noise_gives_the_smoothed_mean(problem: Problem) -> None:
    model, positions, observed, _ = problem
    size = model.transition.shape[-1] + positions.shape[-1]
    noise = torch.zeros(positions.shape[-2], size, dtype=torch.float64)
    drawn = kalman.draw_states(model, positions, observed, noise=noise)
    assert_same(drawn, kalman.smooth(model, positions, observed).means)


@few
@given(problems())
def test_nothing_observed_leaves_the_prior(problem: Problem) -> None:
    model, positions, observed, _ = problem
    nothing = torch.zeros_like(observed)
    for name, route in LIKELIHOODS.items():
        assert (route(model, positions, nothing) == 0).all(), name
    results = {name: smoother(model, positions, nothing) for name, smoother in SMOOTHERS.items()}
    results["filter"] = kalman.Smoothed(*kalman.filter(model, positions, nothing)[:2])
    estimate = kalman.StateEstimate(model.initial_mean, model.initial_covariance)
    for t in range(positions.shape[-2]):
        for name, (means, covariances) in results.items():
            assert_same(means[..., t, :], estimate.mean.expand_as(means[..., t, :]), name)
            expected = estimate.covariance.expand_as(covariances[..., t, :, :])
            assert_same(covariances[..., t, :, :], expected, name)
        estimate = kalman.predict(model, *estimate)


@few
@given(problems())
def test_masking_the_future_is_stopping_early(problem: Problem) -> None:
    model, positions, observed, _ = problem
    frames = torch.arange(positions.shape[-2])
    for t in range(1, len(frames) + 1):
        for name, route in LIKELIHOODS.items():
            masked = route(model, positions, observed & (frames < t))
            shorter = route(model, positions[..., :t, :], observed[..., :t])
            assert_same(masked, shorter, name)
