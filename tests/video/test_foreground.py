"""Background, threshold, colours, dilation and blobs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.video import Preparation
from motes.video import foreground as fg
from motes.video.foreground import MIN_LEVEL, blob_masses, dilate, typical_count
from videos import crossing, disk, video_of_disks


def test_a_sample_is_bounded_and_fair(monkeypatch):
    monkeypatch.setattr(fg, "SAMPLE_BYTES", 50 * 2)
    numbers = (np.full((1, 1, 1), t, dtype=np.uint16) for t in range(10_000))
    kept = fg.sample_frames(numbers).flatten()
    assert len(kept) == 50
    # The mean of 50 uniform draws has a standard deviation of 10000 / sqrt(12 * 50) = 408;
    # five of them.
    assert abs(kept.mean() - 5_000) < 5 * 408


def test_integer_levels_take_the_mean_of_the_middle_two_rounded_down():
    frames = np.array([9, 0, 4, 7], dtype=np.uint8).reshape(4, 1, 1, 1) * np.ones(
        (1, 2, 3, 1), dtype=np.uint8
    )
    found = fg.find_background(frames, "median")
    assert found.dtype == np.uint8
    assert found.shape == (2, 3, 1)
    assert (found == 5).all()


def test_the_median_background_is_the_scene_without_what_moves():
    clean = video_of_disks(np.zeros((1, 0, 2)), noise=0.0)
    scene = next(clean.frames()).picture
    sample = np.stack([frame.picture for frame in video_of_disks(crossing(), noise=0.0).frames()])
    assert np.array_equal(fg.find_background(sample, "median"), scene)
    assert fg.find_background(sample, "white").min() == 255


def test_the_threshold_parts_noise_from_small_objects():
    video = video_of_disks(crossing(), radius=1.5, level=120, noise=2.0)
    sample = np.stack([frame.picture for frame in video.frames()])
    background = fg.find_background(sample, "median")
    found = 255 * fg.automatic_threshold(sample, background)
    # Objects differ from the scene by 60 levels at least; noise reaches five deviations.
    assert 10 < found < 60


@given(
    st.lists(st.integers(0, 50), min_size=3, max_size=12).filter(lambda c: sum(map(bool, c)) > 1)
)
def test_otsu_equals_the_search_by_hand(counts):
    values = np.arange(len(counts)) + 0.5
    points = np.repeat(values, counts)

    def between(cut):
        low, high = points[points < cut], points[points >= cut]
        return len(low) * len(high) * (low.mean() - high.mean()) ** 2

    filled = values[np.array(counts) > 0]
    cuts = (filled[1:] + filled[:-1]) / 2
    best = fg.otsu(np.array(counts), values)
    assert between(best) == pytest.approx(max(between(cut) for cut in cuts))


def test_one_level_of_difference_is_cut_in_the_middle():
    assert fg.otsu(np.array([0, 7]), np.array([10.0, 200.0])) == 100.0


def test_colours_are_selected_by_hue_and_grey_by_saturation():
    pixels = np.array([(200, 200, 190), (250, 120, 0), (0, 0, 250), (40, 38, 40)], dtype=np.uint8)
    assert fg.has_colour(pixels, "grey").tolist() == [True, False, False, True]
    assert fg.has_colour(pixels, "#ff8000").tolist() == [False, True, False, False]
    assert fg.has_colour(pixels, "#0000ff").tolist() == [False, False, True, False]
    with pytest.raises(InputError, match="'orange'"):
        Preparation(48, 48, colour="orange")
    with pytest.raises(InputError, match="the video is grey"):
        fg.has_colour(pixels[:, :1], "grey")


def flood_fill(frame):
    """The mass of every blob, pixel by pixel."""
    left = {(r, c): frame[r, c] / 255 for r, c in np.argwhere(frame >= MIN_LEVEL).tolist()}
    masses = []
    while left:
        pixel, mass = left.popitem()
        stack = [pixel]
        while stack:
            row, column = stack.pop()
            near = [(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
            for neighbour in set(near) & set(left):
                mass += left.pop(neighbour)
                stack.append(neighbour)
        masses.append(mass)
    return masses


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6])
def test_blobs_equal_a_flood_fill(share):
    random = np.random.default_rng(0)
    frame = random.integers(0, 256, (20, 30)) * (random.random((20, 30)) < share)
    assert sorted(blob_masses(frame.astype(np.uint8))) == pytest.approx(sorted(flood_fill(frame)))


def test_specks_do_not_count_and_of_two_numbers_the_larger_wins():
    assert typical_count([[9.0, 9.0, 0.3], [9.0, 8.0], [18.0]]) == 2
    assert typical_count([[9.0], [9.0, 9.0]]) == 2
    assert typical_count([[], []]) == 0


@given(st.integers(20, 70), st.integers(20, 40), st.integers(0, 7))
def test_dilation_keeps_centroids(x, y, by):
    mask = dilate(disk(x, y, 4), by)
    assert [places.mean() for places in np.nonzero(mask)[::-1]] == pytest.approx([x, y])
    assert mask.any(1).sum() == 9 + 2 * by


@pytest.mark.parametrize("by", [1, 3, 9])
def test_dilation_equals_the_naive_loop(by):
    mask = np.random.default_rng(by).random((11, 17)) < 0.03
    expected = np.zeros_like(mask)
    for row, column in zip(*np.nonzero(mask), strict=True):
        rows = slice(max(row - by, 0), row + by + 1)
        expected[rows, max(column - by, 0) : column + by + 1] = True
    np.testing.assert_array_equal(dilate(mask, by), expected)
