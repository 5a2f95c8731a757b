"""Crops, prepared frames and the map back to the recording."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path as MatplotlibPath

from motes.core.errors import InputError
from motes.video import VideoMap
from motes.video.geometry import (
    Box,
    Geometry,
    fit_box,
    frame_size,
    parse_polygon,
    polygon_region,
)
from videos import disk


@given(
    st.integers(20, 70),
    st.integers(15, 45),
    st.integers(0, 9),
    st.sampled_from([(48, 48), (20, 31)]),
)
def test_a_centroid_survives_the_journey(x, y, left, size):
    mask = disk(x, y, 6)
    geometry = Geometry(Box(left, 3, 86, 57), *size)
    frame = geometry.shrink(mask[3:57, left:86]).astype(np.float64)
    rows, columns = np.indices(frame.shape)
    centre = np.array([(frame * columns).sum(), (frame * rows).sum()]) / frame.sum()
    empty = np.zeros((1, 2))
    back = VideoMap(np.array(geometry.scale), np.array(geometry.offset), empty, empty.astype(int))
    found = back.points(torch.from_numpy(centre)).numpy()
    whole = mask[3:57, left:86]
    expected = np.array([m.mean() for m in np.nonzero(whole)[::-1]]) + np.array([left, 3])
    # Averaging over boxes keeps a centroid; rounding to 255 levels moves each pixel that the disk
    # touches by at most half a level, at most a radius (and a pixel) away.
    reach = 6 / min(geometry.scale) + 1
    bound = (2 * reach + 1) ** 2 * 0.5 * reach / frame.sum() * max(geometry.scale)
    assert np.abs(found - expected).max() <= bound


def test_the_shape_of_the_crop_is_kept():
    assert frame_size(Box(0, 0, 320, 690), 156) == (156, 72)
    assert frame_size(Box(0, 0, 10, 10), 48) == (48, 48)
    geometry = Geometry(Box(0, 0, 100, 50), 48, 48)
    assert geometry.inner == (48, 24)
    assert geometry.margin == (0, 12)
    with pytest.raises(InputError, match="100x50"):
        fit_box(Box(0, 0, 101, 50), 100, 50)


def test_a_forecast_goes_on_with_the_clock_of_the_clip():
    times, numbers = np.array([[1.0, 1.2, 1.4]]), np.array([[10, 12, 14]])
    longer = VideoMap(np.ones(2), np.zeros(2), times, numbers).extended(5)
    assert longer.times[0] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8])
    assert longer.numbers[0].tolist() == [10, 12, 14, 16, 18]


def test_polygons_hold_the_points_of_matplotlib():
    random = np.random.default_rng(0)
    box = Box(3, 2, 40, 31)
    y, x = np.mgrid[box.top : box.bottom, box.left : box.right]
    places = np.stack((x, y), -1).reshape(-1, 2)

    def within(polygon):
        return MatplotlibPath([*polygon, polygon[0]]).contains_points(places).reshape(x.shape)

    for _ in range(20):  # corners off the grid, so that no pixel centre lies on an edge
        star = np.sort(random.uniform(0, 2 * np.pi, 7))
        far = random.uniform(4, 15, 7)
        one = tuple(zip(20 + far * np.cos(star), 15.3 + far * np.sin(star), strict=True))
        two = tuple(tuple(corner) for corner in random.uniform(0, 40, (3, 2)))
        assert np.array_equal(polygon_region(box, (one, two), ()), within(one) | within(two))
        assert np.array_equal(polygon_region(box, (one,), (two,)), within(one) & ~within(two))
        assert np.array_equal(polygon_region(box, (), (two,)), ~within(two))
    assert polygon_region(box, (), ()) is None
    with pytest.raises(InputError, match="no pixel"):
        polygon_region(box, (((50.0, 50.0), (60.0, 50.0), (60.0, 60.0)),), ())


@pytest.mark.parametrize("text", ["", "1,2 3,4", "1,2 3,4 5", "1,2 3,4 a,b", "1,2 3,4 nan,1"])
def test_texts_that_are_no_polygon_are_refused_in_one_line(text):
    assert parse_polygon("10,20 200,20  100,1.5") == ((10, 20), (200, 20), (100, 1.5))
    with pytest.raises(InputError, match="three or more corners") as caught:
        parse_polygon(text)
    assert "\n" not in str(caught.value)
