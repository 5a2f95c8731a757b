import pytest
from hypothesis import given
from hypothesis import strategies as st

from motes.config import ScheduleConfig
from motes.training.inputs import Phase, interpolate_knots, schedule_at_step
from motes.training.presets import PRESETS

ALL_PRESETS = PRESETS
LR = 1e-3
# (preset, step) -> learning rate, that of the dynamics, KL weight, blur; at and around each border.
TABLE = {
    ("paper", 0): (LR, 0, 1, 0),
    ("paper", 9_999): (LR, 0, 1, 0),
    ("paper", 10_000): (LR, LR, 100, 0),
    ("paper", 35_000): (LR, LR, 10, 0),  # half-way from 100 to 1 on a logarithmic scale
    ("paper", 60_000): (LR, LR, 1, 0),
    ("paper", 199_999): (LR, LR, 1, 0),
    ("paper-curriculum", 0): (LR, 0, 1, 8),
    ("paper-curriculum", 1_600): (LR, 0, 15 ** (1_600 / 2_720), 8 * (0.3 / 8) ** 0.5),
    ("paper-curriculum", 2_719): (LR, 0, 15 ** (2_719 / 2_720), 8 * (0.3 / 8) ** (2_719 / 3_200)),
    ("paper-curriculum", 2_720): (LR, LR, 15, 8 * (0.3 / 8) ** (2_720 / 3_200)),
    ("paper-curriculum", 3_199): (LR, LR, 15, 8 * (0.3 / 8) ** (3_199 / 3_200)),
    ("paper-curriculum", 3_200): (LR, LR, 15, 0),
    ("paper-curriculum", 5_280): (LR, LR, 15, 0),
    ("paper-curriculum", 8_000): (LR, LR, 15 * (4 / 15) ** (2_720 / 6_720), 0),
    ("paper-curriculum", 12_000): (LR * 0.02**0.5, LR * 0.02**0.5, 4, 0),
    ("paper-curriculum", 16_000): (0.02 * LR, 0.02 * LR, 4, 0),
    ("paper-small", 0): (LR, 0, 1, 6),
    ("paper-small", 1_999): (LR, 0, 15 ** (1_999 / 2_000), 6 * (0.3 / 6) ** (1_999 / 4_000)),
    ("paper-small", 2_000): (LR, LR, 15, 6 * (0.3 / 6) ** 0.5),
    ("paper-small", 3_999): (LR, LR, 15, 6 * (0.3 / 6) ** (3_999 / 4_000)),
    ("paper-small", 4_000): (LR, LR, 15, 0),
    ("paper-small", 8_000): (LR, LR, 4, 0),
    ("paper-small", 10_000): (LR / 10, LR / 10, 4, 0),
    ("paper-small", 12_000): (LR / 100, LR / 100, 4, 0),
    ("paper-distilled", 0): (LR, 0, 1, 0),
    ("paper-distilled", 35_999): (LR, 0, 1, 0),
    ("paper-distilled", 36_000): (0.3 * LR, 0, 4, 0),
    ("paper-distilled", 39_999): (0.3 * LR, 0, 4, 0),
    ("paper-distilled", 40_000): (0.3 * LR, 0.3 * LR, 4, 0),
    ("paper-distilled", 42_000): (0.3 * LR, 0.3 * LR, 4, 0),
    ("paper-distilled", 51_000): (LR * 0.003**0.5, LR * 0.003**0.5, 4, 0),
    ("paper-distilled", 60_000): (0.01 * LR, 0.01 * LR, 4, 0),
    ("paper-scratch", 0): (LR, 0, 1, 0),
    ("paper-scratch", 29_999): (LR, 0, 1, 0),
    ("paper-scratch", 30_000): (0.3 * LR, 0, 4, 0),
    ("paper-scratch", 33_999): (0.3 * LR, 0, 4, 0),
    ("paper-scratch", 34_000): (0.3 * LR, 0.06 * LR, 4, 0),
    ("paper-scratch", 36_000): (0.3 * LR, 0.06 * LR, 4, 0),
    ("paper-scratch", 45_000): (LR * 0.003**0.5, 0.2 * LR * 0.003**0.5, 4, 0),
    ("paper-scratch", 54_000): (0.01 * LR, 0.002 * LR, 4, 0),
    ("paper-scratch-small", 0): (LR, 0, 1, 0),
    ("paper-scratch-small", 6_000): (LR, 0, 1, 0),
    ("paper-scratch-small", 7_999): (LR * 0.3 ** (1_999 / 2_000), 0, 1, 0),
    ("paper-scratch-small", 8_000): (0.3 * LR, 0, 4, 0),
    ("paper-scratch-small", 8_400): (0.3 * LR * 30**-0.2, 0.06 * LR * 30**-0.2, 4, 0),
    ("paper-scratch-small", 10_000): (0.01 * LR, 0.002 * LR, 4, 0),
    ("paper-smoke", 0): (LR, 0, 1, 3),
    ("paper-smoke", 4): (LR, 0, 5**0.8, 3 * 0.1**0.4),
    ("paper-smoke", 5): (LR, LR, 5, 3 * 0.1**0.5),
    ("paper-smoke", 9): (LR, LR, 5 * 0.2**0.4, 3 * 0.1**0.9),
    ("paper-smoke", 10): (LR, LR, 5 * 0.2**0.5, 0),
    ("paper-smoke", 15): (LR, LR, 1, 0),
    ("paper-smoke", 19): (LR, LR, 1, 0),
}
TABLE |= {
    (name, step): (rate, 0.3 * rate, 1, 0)
    for name in ("sprites", "sprites-small", "sprites-smoke")
    for step, rate in ((0, 0.1), (216, 0.1), (288, 0.1 * 0.1**0.5), (360, 0.01))
}
TABLE |= {
    (name, round(part * steps)): (rate, 0.5 * rate, 1, 0)
    for name, steps in (("sprites-video", 180), ("sprites-occluded", 300))
    for part, rate in ((0, 0.03), (2 / 3, 0.03), (5 / 6, (0.03 * 0.005) ** 0.5), (1, 0.005))
}
TABLE |= {
    ("layers", step): (rate, rate, 1, 0)
    for step, rate in ((0, 0.03), (72, 0.03), (96, 0.03 * 0.1**0.5), (120, 0.003))
}


@pytest.mark.parametrize(("preset", "step"), TABLE)
def test_presets_follow_the_table(preset: str, step: int) -> None:
    expected = TABLE[preset, step]
    assert schedule_at_step(ALL_PRESETS[preset].schedule, step) == pytest.approx(
        expected, rel=1e-12
    )


def test_every_preset_stands_in_the_table() -> None:
    assert {preset for preset, _ in TABLE} == set(ALL_PRESETS)


def test_every_border_stands_in_the_table() -> None:
    for name, config in ALL_PRESETS.items():
        schedule = config.schedule
        knots = (*schedule.learning_rate, *schedule.kl_weight, *schedule.blur)
        borders = {step for step, _ in knots} | {schedule.frozen_dynamics}
        assert borders <= {step for preset, step in TABLE if preset == name}, name


@st.composite
def curves(draw: st.DrawFn) -> tuple[tuple[int, float], ...]:
    steps = sorted(draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6)))
    values = st.one_of(st.just(0.0), st.floats(1e-6, 1e3))
    return tuple((step, draw(values)) for step in steps)


@given(curves())
def test_a_curve_passes_through_its_knots(knots: tuple[tuple[int, float], ...]) -> None:
    last_at = dict(knots)  # of several knots at one step the last one holds
    for step, value in last_at.items():
        # exp(log(value)) is off by an ulp of the logarithm, which is below 15
        assert interpolate_knots(knots, step) == pytest.approx(value, rel=1e-14)


@given(curves(), st.integers(-10, 1010))
def test_a_curve_stays_between_its_neighbours(
    knots: tuple[tuple[int, float], ...], step: int
) -> None:
    past = [value for at, value in knots if at <= step][-1:]
    future = [value for at, value in knots if at > step][:1]
    value, slack = interpolate_knots(knots, step), 1 + 1e-13
    assert min(past + future) / slack <= value <= max(past + future) * slack


def test_a_curve_is_geometric_between_positive_values_and_linear_to_zero() -> None:
    assert interpolate_knots(((0, 1.0), (10, 100.0)), 5) == pytest.approx(10.0, rel=1e-13)
    assert interpolate_knots(((0, 4.0), (8, 0.0)), 2) == pytest.approx(3.0, rel=1e-13)


def test_the_dynamics_are_released_at_their_step() -> None:
    schedule = ScheduleConfig(iterations=10, frozen_dynamics=3)
    rates = [schedule_at_step(schedule, step).dynamics_learning_rate for step in range(5)]
    assert rates == [0, 0, 0, LR, LR]


def test_a_stretched_schedule_says_the_same_at_stretched_steps() -> None:
    schedule = PRESETS["paper-curriculum"].schedule
    long = schedule.stretched(2 * schedule.iterations)
    for step in range(0, schedule.iterations, 500):
        phase: Phase = schedule_at_step(long, 2 * step)
        assert phase == pytest.approx(schedule_at_step(schedule, step), rel=1e-12)
