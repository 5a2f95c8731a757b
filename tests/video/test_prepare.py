"""Foreground extraction and preparation of videos."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motes.cli import main
from motes.core.errors import InputError
from motes.video import Preparation, plan, prepare
from motes.video import foreground as fg
from motes.video.foreground import (
    MIN_LEVEL,
    blob_masses,
    dilate,
    find_background,
    has_colour,
    typical_count,
)
from motes.video.prepare import Place, preparation_from_json, preparation_to_json
from videos import FPS, crossing, disk, video_of_disks


def test_a_video_without_motion_is_rejected():
    still = video_of_disks(np.zeros((12, 0, 2)))
    with pytest.raises(InputError, match="nothing moves"):
        plan(still, Preparation(30, 45))


def test_resampling_takes_the_nearest_frame():
    video = video_of_disks(crossing(20))
    whole = plan(video, Preparation(30, 45))
    assert [p.number for p in whole.frames()] == list(range(20))
    own = plan(video, Preparation(30, 45, fps=FPS))
    assert [p.number for p in own.frames()] == list(range(20))
    slow = plan(video, Preparation(30, 45, fps=4.0))
    # Beats at 0, .25, .5 ... s, pictures at 0, .1, .2 ...; of two equally near the later.
    assert [p.number for p in slow.frames()] == [0, 3, 5, 8, 10, 13, 15, 18]
    late = plan(video, Preparation(30, 45), span=(0.5, 0.8))
    assert [p.number for p in late.frames()] == [5, 6, 7, 8]
    with pytest.raises(InputError, match="10 frames a second"):
        plan(video, Preparation(30, 45, fps=30.0))


def test_a_source_that_can_be_read_once_is_not_prepared():
    live = replace(video_of_disks(crossing(20)), rereadable=False)
    with pytest.raises(InputError, match=r"disks can be read only once.*record it to a file"):
        plan(live, Preparation(30, 45))


def test_a_video_without_a_clock_is_given_one():
    video = video_of_disks(crossing(20), fps=None)
    found = plan(video, Preparation(30, 45, source_fps=50.0))
    assert [p.time for p in found.frames()] == pytest.approx(np.arange(20) / 50)


def test_preparations_travel_as_json_and_invalid_ones_are_rejected():
    asked = Preparation(48, 64, crop=(1, 2, 30, 40), threshold=0.2, colour="grey")
    assert preparation_from_json(preparation_to_json(asked), "x") == asked
    good = preparation_to_json(asked)
    for bad in ("", "[]", "{}", good.replace("48", '"a"'), good.replace("median", "pink")):
        with pytest.raises(InputError):
            preparation_from_json(bad, "run")
    for wrong in ({"height": 3}, {"threshold": 1.5}, {"fps": -1.0}, {"source_fps": 0.0}):
        with pytest.raises(InputError):
            replace(asked, **wrong)


def test_small_objects_are_grown_until_a_frame_shows_them():
    video = video_of_disks(crossing().round(), radius=2)
    assert plan(video, Preparation(60, 90)).preparation.grow == 0
    small = plan(video, Preparation(12, 18))
    # 1.6 frame pixels are 8 of the video; a disk of 13 pixels has a radius of 2.03.
    assert small.preparation.grow == 6
    assert all(2 * 6 < p.frame.sum() / 255 for p in small.frames())
    assert plan(video, Preparation(12, 18, grow=1)).preparation.grow == 1


def test_a_sample_is_bounded_and_fair(monkeypatch):
    monkeypatch.setattr(prepare, "SAMPLE_BYTES", 50 * 2)
    numbers = (np.full((1, 1, 1), t, dtype=np.uint16) for t in range(10_000))
    kept = prepare.sample_frames(numbers).flatten()
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
    best = fg.otsu_threshold(np.array(counts), values)
    assert between(best) == pytest.approx(max(between(cut) for cut in cuts))


def test_one_level_of_difference_is_cut_in_the_middle():
    assert fg.otsu_threshold(np.array([0, 7]), np.array([10.0, 200.0])) == 100.0


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


def test_regions_keep_and_leave_out_objects(tmp_path, capsys):
    upper = ((-1.0, -1.0), (90.0, -1.0), (90.0, 30.0), (-1.0, 30.0))
    video = video_of_disks(crossing())  # one disk at y = 15, one from 45 to 40
    whole = [prepared.frame for prepared in plan(video, Preparation(60, 90)).frames()]
    for name, shown in (("keep", slice(0, 30)), ("leave_out", slice(30, 60))):
        found = plan(video, Preparation(60, 90, **{name: (upper,)}))
        for prepared, frame in zip(found.frames(), whole, strict=True):
            kept = np.zeros_like(frame)
            kept[shown] = frame[shown]
            assert np.array_equal(prepared.frame, kept)
        text = preparation_to_json(found.preparation)
        assert preparation_from_json(text, "x") == found.preparation
    np.save(tmp_path / "video.npy", np.stack([frame.picture[..., 0] for frame in video.frames()]))
    arguments = ["prepare", str(tmp_path / "video.npy"), "-o", str(tmp_path / "a.npz"), "--json"]
    for options, counts in (([], {2}), (["--keep", "0,0 90,0 90,30 0,30"], {1})):
        assert main([*arguments, "--source-fps", "10", *options]) == 0
        assert set(json.loads(capsys.readouterr().out)["num_objects"]) == counts
    assert main([*arguments, "--mask", "0,0 90"]) == 2


def test_a_stated_background_is_black_or_white():
    sample = np.full((3, 2, 2, 3), 7, np.uint8)
    assert (find_background(sample, "black") == 0).all()
    assert (find_background(sample, "white") == 255).all()
    assert (find_background(sample, "median") == 7).all()


def test_hues_on_both_sides_of_red_are_red_and_of_cyan_cyan():
    crimson, orange, blue = [255, 0, 10], [255, 10, 0], [0, 0, 255]
    greenish, bluish = [0, 255, 245], [0, 245, 255]  # angles near 180 and -180 degrees
    pixels = np.array([crimson, orange, greenish, bluish, blue], np.uint8)
    for wanted in ("#ff000a", "#ff0a00"):
        assert has_colour(pixels, wanted).tolist() == [True, True, False, False, False]
    for wanted in ("#00fff5", "#00f5ff"):
        assert has_colour(pixels, wanted).tolist() == [False, False, True, True, False]


def test_the_typical_count_is_the_most_frequent_and_of_equal_ones_the_larger():
    one, two, three = [9.0], [9.0, 9.0], [9.0, 9.0, 9.0]
    assert typical_count([two, two, two, three]) == 2
    assert typical_count([one, one, two, two]) == 2
    assert typical_count([[], []]) == 0


@pytest.mark.parametrize("fps", [None, 7.0, 4.0])
def test_a_pass_goes_on_after_a_place(fps):
    found = plan(video_of_disks(crossing(40)), Preparation(30, 45, fps=fps), span=(0.3, 3.5))
    whole = list(found.frames())
    for used in range(1, len(whole)):
        last = whole[used - 1]
        rest = list(found.frames(Place(used, last.number, last.time, last.shift)))
        assert [p.number for p in rest] == [p.number for p in whole[used:]]
        assert all(
            np.array_equal(one.frame, two.frame)
            for one, two in zip(rest, whole[used:], strict=True)
        )


def test_a_plan_by_seeking_reads_a_sample(monkeypatch):
    """Seeking finds the background of a whole pass, or is not used if it finds few frames."""
    video = video_of_disks(crossing(60))
    frames = list(video.frames())
    monkeypatch.setattr(prepare, "MIN_SEEKABLE", 20)

    def sample(count):
        places = np.linspace(0, 58, min(count, 59)).astype(int)
        return ((frames[t], frames[t + 1]) for t in places)

    def no_pass():
        raise AssertionError

    whole = plan(video, Preparation(30, 45))
    sought = plan(
        replace(video, sample=sample, frames=no_pass), Preparation(30, 45), by_seeking=True
    )
    apart = sought.foreground.background.astype(int) - whole.foreground.background
    assert np.abs(apart).max() <= 4  # of noise of 2 levels
    few = replace(video, sample=lambda count: iter([(frames[0], frames[1])]))
    by_pass = plan(few, Preparation(30, 45), by_seeking=True)
    assert np.array_equal(by_pass.foreground.background, whole.foreground.background)
