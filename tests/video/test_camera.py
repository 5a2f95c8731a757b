"""Motion of the camera: found, taken out, and put back where positions leave the package."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from motes.data import load_clips
from motes.video import Preparation, VideoMap, load_video_map, plan
from motes.video.camera import CameraSample, Reference, inside, shifted, shrunk
from motes.video.clips import cut_clips
from motes.video.foreground import blob_masses
from motes.video.geometry import Box
from videos import camera_pictures, crossing, video_of, video_of_disks

T = 40
SHAKE = np.stack((2.0 * np.sin(0.9 * np.arange(T)), 1.4 * np.cos(1.7 * np.arange(T))), axis=1)
FLIGHT = np.stack((20 + 2.1 * np.arange(T), 70 - 3.0 * np.arange(T) + 0.07 * np.arange(T) ** 2), 1)
BACK = np.array((127, 95)) - FLIGHT  # the same flight, turned by half a turn


def motion_of(pictures):
    sample = CameraSample()
    for frame in video_of(pictures).frames():
        sample.add(frame.picture)
    return sample.find_motion()


def test_a_shifted_picture_equals_scipy():
    picture = np.random.default_rng(0).random((9, 11))
    for shift in ((0.0, 0.0), (2.0, -1.0), (0.3, 0.8), (-3.7, 2.25)):
        place = np.indices(picture.shape) + np.array(shift[::-1])[:, None, None]
        expected = ndimage.map_coordinates(picture, place, order=1, mode="nearest")
        np.testing.assert_allclose(shifted(picture, shift), expected, atol=1e-6)  # float32
        box = Box(2, 1, 9, 8)
        np.testing.assert_allclose(shifted(picture, shift, box), expected[1:8, 2:9], atol=1e-6)
        known = ((place >= 0) & (place <= np.array((8, 10))[:, None, None])).all(0)
        levels = (255 * picture[..., None]).astype(np.uint8)
        np.testing.assert_array_equal(inside(levels, shift, box), known[1:8, 2:9])


def test_known_shifts_are_found_among_objects():
    pictures = [p[..., None] for p in camera_pictures(SHAKE, np.stack((FLIGHT, BACK), 1))]
    small = [shrunk(p.round().clip(0, 255).astype(np.uint8), 1) for p in pictures]
    scene = Reference(small[0])
    found = [scene.register(image) for image in small]
    assert min(one.agreement for one in found) > 0.6
    apart = np.array([one.shift for one in found]) - (SHAKE - SHAKE[0])
    # Noise of 1.5 levels against gradients of about 9: some .17 px a pixel, over thousands of
    # pixels; linear interpolation adds some hundredths. Required are .2 px.
    assert np.abs(apart).max() < 0.1


def test_a_shift_of_many_pixels_is_found():
    far = np.array(((0.0, 0.0), (11.3, -8.6)))  # more than Gauss-Newton steps reach
    first, second = (
        shrunk(p.round().clip(0, 255).astype(np.uint8)[..., None], 1)
        for p in camera_pictures(far, [BACK[:1], BACK[9:10]])
    )
    np.testing.assert_allclose(Reference(first).register(second).shift, far[1], atol=0.1)


def test_what_a_panning_camera_has_not_seen_is_no_foreground():
    pan = np.stack((0.35 * np.arange(T) - 7, 0 * np.arange(T)), axis=1)
    found = plan(video_of(camera_pictures(pan, FLIGHT[:, None])), Preparation(96, 128))
    assert found.camera is not None
    for prepared in list(found.frames())[2 : T - 2]:
        assert len(blob_masses(prepared.frame)) == 1


def test_a_shaken_recording_gives_tracks_in_its_own_pixels(tmp_path):
    video = video_of(camera_pictures(SHAKE, FLIGHT[:, None], radius=9.0))
    found = plan(video, Preparation(48, 64))
    assert found.camera is not None
    shifts = np.array([prepared.shift for prepared in found.frames()])
    apart = shifts - SHAKE
    # The reference may lie anywhere: only differences between frames count.
    assert np.abs(apart - np.median(apart, axis=0)).max() < 0.2
    assert any("moves by up to" in line and "--camera still" in line for line in found.warnings)
    cut_clips(found, tmp_path / "a.npz", T, T, None)
    where, preparation = load_video_map(tmp_path / "a.npz")
    assert preparation.camera == "auto"
    frames = load_clips(tmp_path / "a.npz").frames[0].double().numpy()
    rows, columns = np.indices(frames.shape[1:])
    mass = frames.sum((1, 2))
    centroids = np.stack(((frames * columns).sum((1, 2)), (frames * rows).sum((1, 2))), 1)
    pixels = torch.from_numpy(centroids / mass[:, None])[None, None]
    inner = slice(2, T - 2)  # the disk is whole
    error = where.points(pixels)[0, 0].numpy() - (FLIGHT + SHAKE)
    assert np.abs(error[inner]).max() < 0.3
    # Without the camera's part the positions are those in the scene: wrong by the shake.
    still = VideoMap(where.scale, where.offset, where.times, where.numbers)
    apart = still.points(pixels)[0, 0].numpy() - (FLIGHT + SHAKE)
    assert np.abs(apart[inner]).max() > 1.0


def test_a_camera_at_rest_changes_nothing():
    for video in (
        video_of_disks(crossing()),
        video_of(camera_pictures(np.zeros((T, 2)), np.stack((FLIGHT, BACK), 1))),
    ):
        found = plan(video, Preparation(30, 45))
        still = plan(video, Preparation(30, 45, camera="still"))
        assert found.camera is None
        assert found.warnings == ()
        for one, other in zip(found.frames(), still.frames(), strict=True):
            assert np.array_equal(one.frame, other.frame)
            assert one.shift == (0.0, 0.0)


def test_objects_on_black_are_not_taken_for_a_camera():
    flights = FLIGHT[:, None] + np.array(((0, 0), (0, 12), (12, 0)))
    rows, columns = np.indices((96, 128))
    pictures = [
        255.0 * np.any([np.hypot(columns - x, rows - y) < 7 for x, y in disks], axis=0)
        for disks in flights
    ]
    assert motion_of(pictures).kind == "still"


@pytest.mark.parametrize(
    ("shifts", "zooms", "kind"),
    [
        (np.stack((0.3 * np.arange(T), np.zeros(T)), 1), None, "moving"),  # a slow pan
        (np.stack((2.5 * np.arange(T), np.zeros(T)), 1), None, "lost"),  # a long one
        (np.zeros((T, 2)), 1 + 0.02 * np.arange(T), "lost"),
    ],
)
def test_small_motion_is_taken_out_and_large_motion_is_said(shifts, zooms, kind):
    video = video_of(camera_pictures(shifts, FLIGHT[:, None], zooms))
    motion = motion_of(frame.picture[..., 0] for frame in video.frames())
    assert motion.kind == kind
    found = plan(video, Preparation(48, 64))
    assert any("camera moves" in line for line in found.warnings)
    assert (found.camera is not None) == (kind == "moving")


def test_shifts_are_added_frame_by_frame():
    random = np.random.default_rng(0)
    times = np.arange(6.0).reshape(2, 3) / 10
    shifts = random.normal(size=(2, 3, 2))
    where = VideoMap(np.array((2.0, 3.0)), np.array((1.0, -1.0)), times, times.astype(int), shifts)
    pixels = torch.from_numpy(random.normal(size=(2, 4, 5, 2)))
    points = where.points(pixels)
    for b in range(2):
        for n in range(4):
            for t in range(5):
                expected = (2, 3) * pixels[b, n, t].numpy() + (1, -1) + shifts[b, min(t, 2)]
                np.testing.assert_allclose(points[b, n, t], expected)


@pytest.mark.parametrize("shape", [(1, 1), (5, 40), (33, 33)])
def test_small_pictures_are_taken_to_be_at_rest(shape):
    random = np.random.default_rng(0)
    assert motion_of(random.uniform(0, 255, (8, *shape))).kind == "still"
