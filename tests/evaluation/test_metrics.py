import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes.evaluation import metrics
from motes.evaluation.metrics import (
    ClipStatistics,
    clip_statistics,
    concatenate,
    curve_statistics,
    score,
    standard_error,
)

NAN = float("nan")


def paths(generator: torch.Generator, num_clips: int = 4, num_objects: int = 3) -> torch.Tensor:
    return 10 * torch.randn(num_clips, num_objects, 5, 2, generator=generator)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_objects=st.integers(1, 4), num_absent=st.integers(0, 3))
def test_best_order_undoes_any_permutation(seed: int, num_objects: int, num_absent: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = paths(generator, 1, num_objects)
    truth[:, num_objects - min(num_absent, num_objects - 1) :] = NAN
    order = torch.randperm(num_objects, generator=generator)
    back = metrics.reorder(truth[:, order], metrics.best_order(truth[:, order], truth))
    torch.testing.assert_close(back, truth, rtol=0, atol=0, equal_nan=True)


def naive_cost(estimate: torch.Tensor, truth: torch.Tensor, order: tuple[int, ...]) -> float:
    cost = 0.0
    for j, i in enumerate(order):
        for t in range(truth.shape[1]):
            for axis in range(2):
                cost += float(estimate[i, t, axis] - truth[j, t, axis]) ** 2
    return cost


def test_best_order_is_the_cheapest_of_all_for_the_whole_clip(generator: torch.Generator) -> None:
    estimate, truth = paths(generator), paths(generator)
    order = metrics.best_order(estimate, truth)
    for b in range(4):
        costs = {o: naive_cost(estimate[b], truth[b], o) for o in permutations(range(3))}
        assert tuple(order[b].tolist()) == min(costs, key=costs.__getitem__)


def test_an_object_that_was_missed_is_matched_last(generator: torch.Generator) -> None:
    """Two estimates for three objects: the two are still put where they fit best."""
    truth = paths(generator, 20)
    order = torch.stack([torch.randperm(3, generator=generator) for _ in range(20)])
    estimate = metrics.reorder(truth, order) + 0.1
    estimate[:, 2] = NAN
    back = metrics.reorder(estimate, metrics.best_order(estimate, truth))
    gap = (back - truth).abs()
    assert gap.isnan().all(-1).all(-1).sum(1).tolist() == [1] * 20
    assert gap.nan_to_num().max() < 0.2


def test_rmse_is_the_naive_loop(generator: torch.Generator) -> None:
    estimate, truth = paths(generator), paths(generator)
    truth[1, 2:] = estimate[1, 2:] = NAN
    chosen = torch.tensor([True, False, True, True, False])
    for mask in (None, chosen):
        total = count = 0.0
        for b, n, t in np.ndindex(4, 3, 5):
            if not truth[b, n, t].isnan().any() and (mask is None or mask[t]):
                total += float((estimate[b, n, t] - truth[b, n, t]).double().square().sum())
                count += 1
        assert metrics.rmse(estimate, truth, mask) == pytest.approx(math.sqrt(total / count), 1e-5)


def test_tracked_is_within_four_pixels_in_every_frame() -> None:
    truth = torch.zeros(5, 2, 3, 2)
    truth[4, 1] = NAN
    estimate = torch.zeros(5, 2, 3, 2)
    estimate[0, 1, 2] = torch.tensor([0.0, 4.0])
    estimate[1, 1, 2] = torch.tensor([0.0, 4.001])
    estimate[2, 0, 0] = torch.tensor([3.0, 3.0])  # 4.24 px
    estimate[3, 0] = NAN  # an object that was missed
    estimate[4, 1] = NAN  # an object that is not there
    assert metrics.tracked(estimate, truth).tolist() == [True, False, False, False, True]


@pytest.mark.statistical
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_of_gaussian_draws_is_their_level(
    level: float, generator: torch.Generator
) -> None:
    B, T = 2_000, 5
    factor = torch.randn(B, 1, T, 2, 2, generator=generator) + 2 * torch.eye(2)
    mean = paths(generator, B, 1)
    noise = torch.randn(B, 1, T, 2, generator=generator)
    truth = mean + (factor @ noise[..., None])[..., 0]
    held = metrics.inside(metrics.squared_distance(mean, factor @ factor.mT, truth), level)
    share = float(held.mean())
    # A binomial share of 10,000: beyond 5 standard deviations once in 2e6 seeds.
    assert abs(share - level) < 5 * math.sqrt(level * (1 - level) / (B * T))


def test_of_absent_objects_it_is_not_known_whether_they_are_inside() -> None:
    estimate = torch.zeros(1, 2, 3, 2)
    cov = torch.eye(2).expand(1, 2, 3, 2, 2)
    truth = torch.zeros(1, 2, 3, 2)
    truth[0, 0, 2] = 100.0
    truth[0, 1] = NAN
    held = metrics.inside(metrics.squared_distance(estimate, cov, truth), 0.9)
    assert held[0, 0].tolist() == [1, 1, 0]
    assert held[0, 1].isnan().all()


def test_the_border_of_a_region_is_that_of_the_chi_square_law() -> None:
    radius = math.sqrt(-2 * math.log(0.1))  # of the circle that holds 0.9 of a plane Gaussian
    estimate, cov = torch.zeros(1, 1, 2, 2), torch.eye(2).expand(1, 1, 2, 2, 2)
    truth = torch.tensor([[[[radius - 1e-3, 0.0], [0.0, radius + 1e-3]]]])
    held = metrics.inside(metrics.squared_distance(estimate, cov, truth), 0.9)
    assert held.flatten().tolist() == [1, 0]


def test_a_region_without_extent_holds_nothing_else() -> None:
    estimate, truth = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    squares = metrics.squared_distance(estimate, torch.zeros(1, 1, 2, 2, 2), truth)
    assert not metrics.inside(squares, 0.9).any()


def test_the_loss_of_frames_is_the_naive_mean(generator: torch.Generator) -> None:
    p = torch.rand(2, 3, 4, 5, generator=generator)
    v = (torch.rand(2, 3, 4, 5, generator=generator) < 0.5).float()
    for b in range(2):
        total = 0.0
        for t, i, j in np.ndindex(3, 4, 5):
            q = float(p[b, t, i, j])
            total -= math.log(q if v[b, t, i, j] else 1 - q)
        assert float(metrics.frame_losses(p, v)[b].mean()) == pytest.approx(total / 60, rel=1e-5)


def test_a_certain_and_wrong_picture_has_a_finite_loss() -> None:
    wrong = metrics.frame_losses(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert float(wrong) == pytest.approx(-math.log(1e-6), rel=1e-4)


def test_many_objects_are_matched_as_few_are(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = torch.rand(9, 4, 4, generator=generator, dtype=torch.float64)
    few = metrics.cheapest_order(costs)
    monkeypatch.setattr(metrics, "MOST_PERMUTED", 3)
    assert torch.equal(metrics.cheapest_order(costs), few)


def crossing() -> torch.Tensor:
    """Two objects side by side for ten frames."""
    truth = torch.zeros(1, 2, 10, 2)
    truth[..., 0] = torch.arange(10)
    truth[0, 1, :, 1] = 6.0
    return truth


def test_a_swap_half_way_is_two_switches() -> None:
    truth = crossing()
    swapped = torch.cat([truth[:, :, :5], truth[:, [1, 0], 5:]], 2)
    assert metrics.switches(truth, truth).tolist() == [0]
    assert metrics.switches(truth[:, [1, 0]], truth).tolist() == [0]
    assert metrics.switches(swapped, truth).tolist() == [2]


def test_a_pause_is_no_switch_and_an_old_estimate_is_kept_while_it_is_near() -> None:
    truth = crossing()
    paused = truth.clone()
    paused[0, 0, 4:6] += 20.0
    assert metrics.switches(paused, truth).tolist() == [0]
    near = truth.clone()
    near[0, 1] = truth[0, 0]  # the other estimate comes closer,
    near[0, 0] += 1.5  # but the first is within the gate
    near[0, 0, :, 1] -= 1.5
    near[0, 0, :1], near[0, 1, :1] = truth[0, 0, :1], truth[0, 1, :1]
    assert metrics.switches(near, truth).tolist() == [0]


def test_identified_is_the_best_share_under_one_order() -> None:
    truth = crossing()
    swapped = torch.cat([truth[:, :, :7], truth[:, [1, 0], 7:]], 2)
    assert metrics.identified(swapped, truth).tolist() == [14]
    assert metrics.identified(truth[:, [1, 0]] + 1.0, truth).tolist() == [20]
    assert metrics.identified(truth + 2.0, truth).tolist() == [0]  # 2.83 px away


def test_surprise_is_the_negative_log_density(generator: torch.Generator) -> None:
    factor = torch.randn(5, 2, 2, generator=generator, dtype=torch.float64) + 2 * torch.eye(2)
    mean, truth = torch.randn(2, 5, 2, generator=generator, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(mean, factor @ factor.mT).log_prob(truth)
    torch.testing.assert_close(
        metrics.negative_log_density(mean, factor @ factor.mT, truth), -expected
    )


def test_distances_are_unknown_for_absent_objects_and_endless_without_area() -> None:
    covariances = torch.stack([torch.eye(2), torch.zeros(2, 2), torch.full((2, 2), NAN)])
    truth = torch.tensor([[3.0, 4.0], [1.0, 0.0], [NAN, NAN]])
    found = metrics.squared_distance(torch.zeros(3, 2), covariances, truth)
    assert found[:2].tolist() == [25.0, math.inf]
    assert found[2].isnan()


def test_black_frames_have_log_two_in_the_papers_unit() -> None:
    black = torch.zeros(1, 2, 3, 4)
    assert metrics.losses_in_papers_unit(black, black).tolist() == [
        pytest.approx([math.log(2)] * 2)
    ]


def test_a_score_is_the_mean_over_everything_known():
    values = torch.tensor([[[1.0, math.nan]], [[4.0, 7.0]]])
    assert float(score(clip_statistics(values))) == 4
    assert float(score(clip_statistics(values, root=True))) == 2
    assert score(curve_statistics(values)).tolist() == [2.5, 7.0]


def test_the_score_of_parts_is_that_of_the_whole(generator: torch.Generator):
    values = torch.rand(7, 2, 3, generator=generator)
    parts = [clip_statistics(values[:2], root=True), clip_statistics(values[2:], root=True)]
    torch.testing.assert_close(score(concatenate(parts)), score(clip_statistics(values, root=True)))


@pytest.mark.statistical
def test_the_error_of_a_mean_is_the_textbooks(generator: torch.Generator):
    values = torch.randn(400, generator=generator).double()
    textbook = float(values.std() / 400**0.5)
    # 500 resamples give a standard deviation to 1 / sqrt(1000) = 3 %; five of those.
    assert float(standard_error(clip_statistics(values))) == pytest.approx(textbook, rel=0.16)


def test_clips_count_by_how_much_of_them_is_scored():
    unequal = ClipStatistics(torch.tensor([1.0, 30.0]).double(), torch.tensor([1.0, 9.0]).double())
    assert float(score(unequal)) == pytest.approx(3.1)


def test_errors_are_the_same_in_every_run(generator: torch.Generator):
    values = torch.rand(20, generator=generator)
    assert torch.equal(
        standard_error(clip_statistics(values)), standard_error(clip_statistics(values))
    )
