"""Lengths: against linear algebra by hand, finite differences and Monte Carlo."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes import InputError
from motes.video.prepare import Preparation, preparation_from_json, preparation_to_json
from motes.video.units import Units, parse_units

CORNERS = np.array([[10.0, 20.0], [400.0, 35.0], [390.0, 300.0], [5.0, 280.0]])
PLACES = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.5], [0.0, 1.5]])
TILTED = Units.by_plane(CORNERS, PLACES, "m")


def by_hand(matrix, point):
    u, v, w = np.asarray(matrix) @ (*point, 1.0)
    return np.array([u / w, v / w])


def mapped(units, points):
    return units.points(torch.tensor(np.asarray(points), dtype=torch.float64)).numpy()


def test_four_points_are_met_and_equal_a_linear_solve():
    # With the last entry fixed to 1 the eight equations are a square linear system.
    rows, right = [], []
    for (x, y), (u, v) in zip(CORNERS, PLACES, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    solved = np.append(np.linalg.solve(np.array(rows), np.array(right)), 1.0).reshape(3, 3)
    found = np.array(TILTED.matrix)
    np.testing.assert_allclose(found / found[2, 2], solved, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mapped(TILTED, CORNERS), PLACES, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    st.tuples(st.floats(-5e-4, 5e-4), st.floats(-5e-4, 5e-4)),
    st.integers(4, 9),
)
def test_a_plane_by_points_is_the_map_that_made_them(affine, tilt, count):
    a, b, c, d, e, f = affine
    matrix = np.array([[1 + 0.3 * a, 0.3 * b, 50 * c], [0.3 * d, 1 + 0.3 * e, 50 * f], [*tilt, 1]])
    random = np.random.default_rng(0)
    points = np.concatenate([CORNERS, random.uniform(0, 300, (count - 4, 2))])
    made = np.array([by_hand(matrix, point) for point in points])
    units = Units.by_plane(points, made, "mm")
    probe = random.uniform(0, 300, (5, 2))
    expected = [by_hand(matrix, point) for point in probe]
    np.testing.assert_allclose(mapped(units, probe), expected, rtol=1e-7, atol=1e-6)


def test_a_ruler_and_a_scale_are_a_pixel_size():
    scale = parse_units("0.5mm/px", None, None)
    ruler = parse_units(None, "100,40 130,80 25 mm", None)  # 50 pixels
    assert scale is not None
    assert ruler is not None
    assert (scale.length, ruler.length) == ("mm", "mm")
    assert scale.is_uniform
    np.testing.assert_allclose(ruler.matrix, scale.matrix, rtol=1e-12)
    np.testing.assert_allclose(mapped(scale, [[3.0, 8.0]]), [[1.5, 4.0]])


def test_a_plane_is_read_from_text():
    text = " ".join(f"{x},{y}={u},{v}" for (x, y), (u, v) in zip(CORNERS, PLACES, strict=True))
    read = parse_units(None, None, f"{text} m")
    assert read == TILTED
    assert not TILTED.is_uniform
    assert parse_units(None, None, None) is None


def test_velocities_in_units_are_those_of_the_positions():
    points = torch.tensor([[50.0, 60.0], [300.0, 200.0]], dtype=torch.float64)
    velocities = torch.tensor([[30.0, -10.0], [5.0, 70.0]], dtype=torch.float64)
    step = 1e-5  # seconds; the error of a central difference is of its square
    ahead, behind = (
        TILTED.points(points + step * velocities),
        TILTED.points(points - step * velocities),
    )
    expected = (ahead - behind) / (2 * step)
    torch.testing.assert_close(
        TILTED.velocities(points, velocities), expected, rtol=1e-7, atol=1e-9
    )


@pytest.mark.statistical
def test_error_bars_in_units_agree_with_draws():
    mean = torch.tensor([250.0, 180.0], dtype=torch.float64)
    covariance = torch.tensor([[4.0, 1.5], [1.5, 2.0]], dtype=torch.float64)
    stated = TILTED.covariances(mean, covariance)
    count = 200_000
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = TILTED.points(mean + noise @ torch.linalg.cholesky(covariance).mT)
    found = torch.cov(drawn.mT)
    # An entry of the sample covariance has a standard deviation of at most sqrt(2 / count) times
    # the product of the standard deviations; five of them, and 1e-4 for the curvature of the map,
    # of relative size sd * tilt = 2 px * 3e-4 / px, squared.
    scale = stated.diagonal().sqrt()
    allowed = (5 * (2 / count) ** 0.5 + 1e-4) * scale[:, None] * scale
    assert ((found - stated).abs() < allowed).all()
    # One scale for the whole picture would not do: the derivatives differ from those at a corner.
    elsewhere = TILTED.covariances(torch.tensor(CORNERS[0]), covariance)
    assert not ((elsewhere - stated).abs() < allowed).all()


def test_beyond_the_horizon_there_is_no_place():
    units = Units(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (-0.01, 0.0, 1.0)), "m")  # horizon: x = 100
    found = units.points(torch.tensor([[99.0, 0.0], [101.0, 0.0]]))
    assert found.isnan().any(-1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("0.5mm", None, None), "0.5mm"),
        (("-1mm/px", None, None), "more than 0"),
        ((None, "1,2 3,4", None), "ruler"),
        ((None, "1,2 1,2 3m", None), "differ"),
        ((None, None, "1,2=0,0 m"), "four or more"),
        ((None, None, "0,0=0,0 1,1=1,0 2,2=1,1 3,3=0,1 m"), "line"),
        (("1mm/px", "1,2 3,4 1m", None), "one of them"),
    ],
)
def test_texts_that_are_no_units_are_told(given, named):
    with pytest.raises(InputError, match=named):
        parse_units(*given)


def test_units_are_stored_with_a_preparation():
    kept = Preparation(48, 64, units=TILTED)
    assert preparation_from_json(preparation_to_json(kept), "here") == kept
    old = preparation_to_json(Preparation(48, 64)).replace(', "units": null', "")
    assert preparation_from_json(old, "here") == Preparation(48, 64)
