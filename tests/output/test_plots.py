"""Pictures: the geometry against its definition, the files by opening them again."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from motes.output import plots as pictures

T, SIDE = 12, 16


def view(style=pictures.FORECAST, seen=5):
    """Two balls that move to the right, the first `seen` frames observed."""
    time = np.arange(T, dtype=np.float32)
    path = np.stack([np.stack([2 + time, np.full(T, y, np.float32)], -1) for y in (4, 10)])
    covariances = np.broadcast_to(np.diag([1.0, 0.25]).astype(np.float32), (2, T, 2, 2))
    frames = np.zeros((T, SIDE, SIDE), np.float32)
    for t in range(T):
        frames[t, [4, 10], 2 + t] = 1
    return pictures.View(
        style=style,
        frames=frames,
        mean_frames=frames,
        pixels=path,
        pixel_covariances=covariances,
        path_pixels=path,
        path_pixel_covariances=covariances,
        observed=np.arange(T) < seen,
        detected=np.broadcast_to(np.arange(T) < seen, (2, T)),
    )


def opened(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()  # a damaged file fails here
    return picture


def grid(side=5):
    return np.stack(np.meshgrid(np.arange(float(side)), np.arange(float(side))), -1)


def test_every_point_of_an_outline_has_the_distance_of_its_probability():
    mean, covariance = np.array([3.0, -1.0]), np.array([[2.0, 0.7], [0.7, 0.5]])
    gap = pictures.outline(mean, covariance) - mean
    distance = (gap @ np.linalg.inv(covariance) * gap).sum(-1)
    # The 90 % point of a chi-squared law with two degrees of freedom is 2 log 10.
    np.testing.assert_allclose(distance, 2 * math.log(10), rtol=1e-12)


def test_an_outline_of_no_uncertainty_is_a_point():
    points = pictures.outline(np.array([3.0, 4.0]), np.zeros((2, 2)))
    np.testing.assert_array_equal(points, np.broadcast_to([3.0, 4.0], points.shape))


def test_the_last_frame_is_lightest_and_on_top():
    frames = np.zeros((3, 1, 4), np.float32)
    frames[0, 0, :2] = frames[1, 0, 1] = frames[2, 0, 2] = 1
    first, second, last, empty = pictures.overlaid(frames)[0]
    assert last == 1
    assert empty == 0
    assert 0 < first < second < last


def figures():
    one, points = view(), np.array([[2.0, 3.0], [12.0, 9.0]])
    tiles = np.broadcast_to(one.frames[0], (5, 5, SIDE, SIDE))
    return {
        "strip": pictures.strip([view(pictures.TRUTH, T), one], [0, 4, 8]),
        "trajectories": pictures.trajectories([[view(pictures.TRUTH, T), one, one]] * 2),
        "overlays": pictures.overlays([[("a", one.frames), ("b", one.frames)]]),
        "training": pictures.training_curve(
            np.arange(6, 174, 6),
            np.linspace(-500.0, -180.0, 28),
            np.linspace(np.zeros((44, 44)), np.eye(44), 28),
        ),
        "latent_grid": pictures.latent_grid(
            tiles, 3 * grid(), 3 * grid(), np.eye(4, dtype=bool), points
        ),
        "initial_states": pictures.initial_states(
            (SIDE, SIDE), points, points / 9, points, np.stack([np.eye(2)] * 2), points / 9
        ),
    }


@pytest.mark.parametrize(
    "name", ["strip", "trajectories", "overlays", "training", "latent_grid", "initial_states"]
)
def test_figures_become_png_files_of_their_own_size(name):
    figure = figures()[name]
    picture = opened(pictures.png(figure))
    assert picture.format == "PNG"
    # Pixels are whole: the size in inches is cut to them.
    assert picture.size == pytest.approx(figure.get_size_inches() * pictures.DPI, abs=1)
    assert len(picture.convert("RGB").getcolors(1 << 20)) > 10  # something is drawn


@pytest.mark.parametrize("num_reports", [1, 2, 5, 28, 100])
def test_a_picture_of_learning_shows_the_first_and_the_last_glyph(num_reports):
    steps = 6 * np.arange(1, num_reports + 1)
    glyphs = steps[:, None, None] / steps[-1] * np.ones((44, 44))
    figure = pictures.training_curve(steps, -100.0 / steps, glyphs)
    tiles = figure.subfigs[0].axes
    assert len(tiles) <= pictures.SNAPSHOTS
    for tile, shown in ((tiles[0], 0), (tiles[-1], -1)):
        assert tile.get_title() == f"step {steps[shown]}"
        assert (tile.images[0].get_array() == glyphs[shown]).all()


def test_a_png_is_the_same_each_time_and_names_no_place_on_the_web():
    first, second = (pictures.png(pictures.strip([view()], [0, 8])) for _ in range(2))
    assert first == second
    assert b"http" not in first


def test_hidden_frames_of_a_strip_have_ellipses_of_the_stated_width():
    figure = pictures.strip([view()], [8])
    rings = [line.get_xydata() for line in figure.axes[0].get_lines()]
    assert len(rings) == 2  # one for each ball
    for ring in rings:
        width, height = np.ptp(ring, axis=0)
        # 48 corners miss the extremes of an ellipse by up to 1 - cos(pi / 48), 0.2 %.
        assert width == pytest.approx(2 * math.sqrt(2 * math.log(10)), rel=3e-3)
        assert height == pytest.approx(width / 2, rel=3e-3)


def test_tracks_are_told_apart_without_colour():
    styles = (pictures.TRUTH, pictures.INFERRED, pictures.FORECAST, pictures.INTERPOLATED)
    assert len({(style.line, style.marker) for style in styles}) == len(styles)


def test_trajectories_run_downwards_in_pixels():
    axis = pictures.trajectories([[view(pictures.TRUTH, T), view()]]).axes[0]
    assert axis.get_ylim() == (SIDE - 0.5, -0.5)
    assert axis.get_xlim() == (-0.5, SIDE - 0.5)


def test_trajectories_have_one_ellipse_for_each_ball_and_hidden_frame():
    axis = pictures.trajectories([[view(pictures.TRUTH, T), view(seen=5)]]).axes[0]
    assert len(axis.patches) == 2 * (T - 5)


def test_an_animation_has_the_stated_size_and_every_frame():
    views = [view(pictures.TRUTH, T), view(), view()]
    gif = opened(pictures.animation(views, scale=4))
    border = 2 * pictures.MARGIN
    assert gif.format == "GIF"
    assert gif.n_frames == T
    assert gif.info["loop"] == 0
    assert gif.size == (3 * (4 * SIDE + border), 4 * SIDE + border + pictures.TITLE)


def test_hidden_frames_of_an_animation_have_a_coloured_border():
    gif = opened(pictures.animation([view(seen=5)], scale=4))
    place = (pictures.MARGIN + 20, pictures.TITLE + pictures.MARGIN - 2)
    colours = []
    for t in range(T):
        gif.seek(t)
        colours.append(gif.convert("RGB").getpixel(place))
    orange = tuple(bytes.fromhex(pictures.FORECAST.on_black[1:]))
    # A palette of 64 colours moves a shade by a few levels.
    near = [max(abs(a - b) for a, b in zip(c, orange, strict=True)) < 24 for c in colours]
    assert near == [t >= 5 for t in range(T)]


def test_a_later_frame_covers_an_earlier_one():
    frames = np.ones((3, 1, 1), np.float32)
    assert pictures.overlaid(frames)[0, 0] == 1
