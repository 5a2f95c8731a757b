"""From a video to frames: background, threshold, geometry, clock, clips and their counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.data import load_clips
from motes.video import Frame, Preparation, Video, VideoMap, load_video_map, plan
from motes.video import foreground as fg
from motes.video.clip_file import ClipWriter, cut_clips, windows
from motes.video.foreground import MIN_LEVEL, blob_masses, dilate, typical_count
from motes.video.geometry import Box, Geometry, fit_box, frame_size
from motes.video.prepare import PreparedFrame, preparation_from_json, preparation_to_json

HEIGHT, WIDTH, FPS = 60, 90, 10


def disk(x, y, radius, shape=(HEIGHT, WIDTH)):
    rows, columns = np.indices(shape)
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


def video_of_disks(centres, radius=4, level=200, noise=2.0, fps=FPS):
    """Disks on a textured background, with camera noise; `centres` is [T, N, 2]."""
    random = np.random.default_rng(0)
    scene = random.integers(20, 60, (HEIGHT, WIDTH))
    pictures = []
    for frame in centres:
        lit = np.any([disk(x, y, radius) for x, y in frame], axis=0) if len(frame) else False
        clean = np.where(lit, level, scene)
        noisy = clean + random.normal(0, noise, clean.shape)
        pictures.append(noisy.round().clip(0, 255).astype(np.uint8)[..., None])

    def frames():
        return (Frame(t / (fps or 1), picture) for t, picture in enumerate(pictures))

    return Video("disks", HEIGHT, WIDTH, len(pictures), fps, frames)


def crossing(num_frames=40):
    t = np.linspace(0, 1, num_frames)[:, None]
    return np.stack(
        [np.concatenate([8 + 70 * t, 15 + 0 * t], 1), np.concatenate([80 - 70 * t, 45 - 5 * t], 1)],
        1,
    )


def test_a_sample_is_bounded_and_fair(monkeypatch):
    monkeypatch.setattr(fg, "SAMPLE_BYTES", 50 * 2)
    numbers = (np.full((1, 1, 1), t, dtype=np.uint16) for t in range(10_000))
    kept = fg.sample_frames(numbers).flatten()
    assert len(kept) == 50
    # The mean of 50 uniform draws has a standard deviation of 10000 / sqrt(12 * 50) = 408;
    # five of them.
    assert abs(kept.mean() - 5_000) < 5 * 408


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


def test_a_video_in_which_nothing_moves_is_refused():
    still = video_of_disks(np.zeros((12, 0, 2)))
    with pytest.raises(InputError, match="nothing moves"):
        plan(still, Preparation(30, 45))


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


def test_colours_are_chosen_by_hue_and_grey_by_the_lack_of_it():
    pixels = np.array([(200, 200, 190), (250, 120, 0), (0, 0, 250), (40, 38, 40)], dtype=np.uint8)
    assert fg.has_colour(pixels, "grey").tolist() == [True, False, False, True]
    assert fg.has_colour(pixels, "#ff8000").tolist() == [False, True, False, False]
    assert fg.has_colour(pixels, "#0000ff").tolist() == [False, False, True, False]
    with pytest.raises(InputError, match="'orange'"):
        Preparation(48, 48, colour="orange")
    with pytest.raises(InputError, match="the video is grey"):
        fg.has_colour(pixels[:, :1], "grey")


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


def test_clips_start_at_every_stride():
    frames = [(PreparedFrame(t, 0.0, np.zeros((2, 2), np.uint8)), []) for t in range(11)]
    starts = [[p.number for p in clip] for clip, _ in windows(iter(frames), 4, 3)]
    assert starts == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_clips_written_one_by_one_come_back_with_their_map(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(30, 45))
    clip = list(found.frames())[:6]
    with ClipWriter(tmp_path / "a.npz", found.geometry, found.preparation) as writer:
        writer.write(clip[:3], 2)
        writer.write(clip[3:], 1)
    clips = load_clips(tmp_path / "a.npz")
    frames = np.stack([p.frame for p in clip]).reshape(2, 3, 30, 45)
    assert np.array_equal(clips.frames.numpy(), frames / np.float32(255))
    assert clips.num_objects.tolist() == [2, 1]
    where, preparation = load_video_map(tmp_path / "a.npz")
    assert preparation == found.preparation
    assert where.numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert where.fps == pytest.approx(FPS)
    assert where.scale.tolist() == list(found.geometry.scale)


def test_frames_without_grey_are_kept_as_bits(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(HEIGHT, WIDTH))
    cut_clips(found, tmp_path / "a.npz", 10, 10, None)
    assert load_clips(tmp_path / "a.npz").frames.dtype == torch.uint8


def test_a_failed_writer_leaves_nothing_behind(tmp_path):
    found = plan(video_of_disks(crossing()), Preparation(30, 45))
    with (
        pytest.raises(RuntimeError, match="stop"),
        ClipWriter(tmp_path / "a.npz", found.geometry, found.preparation),
    ):
        raise RuntimeError("stop")
    assert not list(tmp_path.iterdir())


def test_empty_clips_are_left_out_and_full_ones_counted(tmp_path):
    centres = [*crossing(20), *([np.zeros((0, 2))] * 20)]
    found = plan(video_of_disks(centres), Preparation(30, 45))
    summary = cut_clips(found, tmp_path / "a.npz", 10, 10, None)
    assert summary.counts == [2, 2]
    assert summary.num_empty == 2
    with pytest.raises(InputError, match="no clip of 50 frames"):
        cut_clips(found, tmp_path / "b.npz", 50, 50, None)
    assert not (tmp_path / "b.npz").exists()


def test_a_forecast_goes_on_with_the_clock_of_the_clip():
    times, numbers = np.array([[1.0, 1.2, 1.4]]), np.array([[10, 12, 14]])
    longer = VideoMap(np.ones(2), np.zeros(2), times, numbers).extended(5)
    assert longer.times[0] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8])
    assert longer.numbers[0].tolist() == [10, 12, 14, 16, 18]


def test_preparations_travel_as_json_and_nonsense_is_told_in_one_line():
    asked = Preparation(48, 64, crop=(1, 2, 30, 40), threshold=0.2, colour="grey")
    assert preparation_from_json(preparation_to_json(asked), "x") == asked
    good = preparation_to_json(asked)
    for bad in ("", "[]", "{}", good.replace("48", '"a"'), good.replace("median", "pink")):
        with pytest.raises(InputError):
            preparation_from_json(bad, "run")
    for wrong in ({"height": 3}, {"threshold": 1.5}, {"fps": -1.0}, {"source_fps": 0.0}):
        with pytest.raises(InputError):
            replace(asked, **wrong)


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


def test_small_objects_are_grown_until_a_frame_shows_them():
    video = video_of_disks(crossing().round(), radius=2)
    assert plan(video, Preparation(60, 90)).preparation.grow == 0
    small = plan(video, Preparation(12, 18))
    # 1.6 frame pixels are 8 of the video; a disk of 13 pixels has a radius of 2.03.
    assert small.preparation.grow == 6
    assert all(2 * 6 < p.frame.sum() / 255 for p in small.frames())
    assert plan(video, Preparation(12, 18, grow=1)).preparation.grow == 1
