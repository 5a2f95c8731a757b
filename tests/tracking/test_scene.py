"""Scenes outside the regime: compression, captions, large objects, cuts, moving cameras."""

from dataclasses import replace

import numpy as np
import pytest

from motes.tracking import track
from motes.tracking.background import Scene, look, object_diameter
from motes.tracking.detection import Candidates, Looks
from motes.tracking.recording import foreground_bound, without_ghosts
from motes.tracking.resting import without_captions
from motes.tracking.scene import Fit, shrink
from motes.tracking.sprite import gaussian_sprite

SIZE = 96


def throws(
    radius: float = 3.0, size: int = SIZE, frames: int = 60, letters: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return a ball that is thrown twice over a textured, compressed scene, and where it is.

    Edges of the scene change by four levels every other frame; a caption of three letters shows at
    times; the first frame is fainter as a whole.
    """
    random = np.random.default_rng(0)
    scale = size / SIZE
    scene = np.kron(random.integers(30, 60, (24, 24)), np.ones((size // 24, size // 24)))
    edges = np.abs(np.gradient(scene)).sum(0) > 4
    y, x = np.mgrid[:size, :size]
    video, places = [], np.full((frames, 2), np.nan)
    for t in range(frames):
        frame = scene + 4 * edges * (t % 2) * random.choice((-1, 1), scene.shape)
        if letters and (10 <= t < 18 or 40 <= t < 48):
            for column in (10, 18, 26):
                frame[round(6 * scale) : round(12 * scale), round(column * scale) :][
                    :, : round(5 * scale)
                ] = 220
        flight = t % 30 - 4
        if 0 <= flight < 20:
            place = scale * np.array((15 + 3.4 * flight, 85 - 6.5 * flight + 0.32 * flight**2))
            places[t] = place
            apart = np.hypot(x - place[0], y - place[1])
            frame = frame + (200 - frame) * np.clip(radius * scale + 0.5 - apart, 0, 1)
        video.append(frame if t else 0.6 * frame)
    return np.clip(np.rint(video), 0, 255).astype(np.uint8), places


def test_a_thrown_ball_is_seen_where_it_is_and_nowhere_else():
    video, places = throws()
    found = track(video)
    present = ~np.isnan(places[:, 0])
    rows = found.frame[found.row_seen]
    assert present[rows].all()
    assert len(np.unique(rows)) >= 0.9 * present.sum()
    errors = np.linalg.norm(found.row_raw[found.row_seen] - places[rows], axis=1)
    assert errors.max() < 1.0
    assert found.fit.warnings == ()


def test_large_objects_are_followed_in_shrunk_frames():
    video, places = throws(radius=3.0, size=8 * SIZE, frames=34, letters=False)
    found = track(video)
    assert found.fit.factor > 1
    rows = found.frame[found.row_seen]
    errors = np.linalg.norm(found.row_raw[found.row_seen] - places[rows], axis=1)
    assert len(np.unique(rows)) >= 0.8 * (~np.isnan(places[:, 0])).sum()
    assert np.nanmedian(errors) < 3.0  # of a ball with a diameter of 48 pixels


@pytest.mark.parametrize("factor", [2, 3])
def test_the_diameter_of_things_grows_with_the_frames(factor: int):
    video, _ = throws(letters=False)
    frames = video[1:].astype(np.float32) / 255
    small = object_diameter(look(frames))
    large = np.repeat(np.repeat(frames, factor, 1), factor, 2)
    # The scene's parts that change are larger, too, so their tolerance is given.
    assert small == pytest.approx(6, abs=1)
    tolerance = np.full(large.shape[1:], 0.05, np.float32)
    assert object_diameter(Scene(large, tolerance, None, np.median(large, 0))) == pytest.approx(
        factor * 6, abs=factor
    )


def test_shrunk_frames_are_means():
    frames = np.arange(2 * 5 * 7, dtype=np.float32).reshape(2, 5, 7)
    small = shrink(frames, 2)
    assert small.shape == (2, 2, 3)
    assert small[1, 1, 2] == frames[1, 2:4, 4:6].mean()


def candidates(rows: list[tuple[int, float, float]]) -> Candidates:
    table = np.array(sorted(rows), float)
    count = len(table)
    return Candidates(
        table[:, 0].astype(int), table[:, 1:], np.tile(0.01 * np.eye(2), (count, 1, 1)),
        np.ones(count), np.full(count, 50.0), np.zeros(count, int),
    )  # fmt: skip


def test_captions_are_left_out_and_resting_balls_are_kept():
    letter = [(t, 80.0, 10.0) for t in range(5, 15)]
    ball = [(t, 20.0 + 3 * min(t, 9), 30.0) for t in range(20)]
    kept = without_captions(candidates(letter + ball), diameter=5.0)
    assert len(kept) == len(ball)
    assert (kept.positions[:, 1] == 30).all()


def test_faint_errors_of_the_background_are_no_objects():
    balls = [(t, 10.0 * n, 30.0) for t in range(4) for n in range(3)]
    ghosts = [(t, 10.0 * n, 60.0) for t in range(4) for n in range(5)]
    found = candidates(balls + ghosts)
    ghost = found.positions[:, 1] == 60
    # 4 % and 6 % of the contrast of the balls
    for share, kept in ((0.04, ~ghost), (0.06, np.ones(len(found), bool))):
        some = replace(found, evidence=np.where(ghost, share**2 * 7e4, 7e4))
        assert (without_ghosts(some).positions == found.positions[kept]).all()


def test_pixels_that_change_by_noise_alone_have_no_tolerance():
    random = np.random.default_rng(1)
    frames = 0.3 + 0.02 * random.standard_normal((12, 40, 40)).astype(np.float32)
    assert look(frames).tolerance is None


def test_faint_objects_in_noise_are_no_wobble():
    """Faint spots over a third of the picture, elsewhere in each frame; noise of 1.5 levels."""
    random = np.random.default_rng(3)
    frames = 0.3 + 1.5 / 255 * random.standard_normal((31, 60, 60)).astype(np.float32)
    covered = np.kron(random.random((31, 15, 15)) < 0.33, np.ones((1, 4, 4)))
    assert look((frames + 5 / 255 * covered).astype(np.float32)).tolerance is None


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (Fit(detections=0), "no object was found"),
        (Fit(detections=90, explained=0.3), "objects of one shape explain 30%"),
        (Fit(detections=90, explained=0.3, camera="moving"), "the camera moves"),
        (Fit(detections=90, explained=0.3, camera="lost", foreground=0.4), "the camera moves"),
        (Fit(detections=90, explained=0.3, camera="lost", foreground=0.1), "objects of one shape"),
        (Fit(detections=90, explained=0.9, crowded=0.5), "clutter"),
        (Fit(detections=90, explained=0.9, followed=0.2), "only 20% of the detections"),
        (Fit(detections=90, explained=0.9, foreground=0.4), "40% of the picture"),
    ],
)
def test_misfit_is_put_into_one_line_with_a_remedy(fit: Fit, words: str):
    (line,) = fit.warnings
    assert line.startswith(words)
    assert "\n" not in line
    assert ":" in line


def test_objects_are_foreground_even_where_noise_has_structure():
    sprite = (gaussian_sprite(1.5),)
    sizes = np.array((0.5, 0.2)), np.array((0.05, 0.02))
    assert foreground_bound(Looks(sprite, 0.03, sizes)) == pytest.approx(6 * 0.03)
    assert foreground_bound(Looks(sprite, 0.2, sizes)) == pytest.approx(0.1)


def test_a_panning_camera_is_named():
    random = np.random.default_rng(2)
    scene = np.kron(random.integers(0, 255, (40, 60)), np.ones((6, 6)))
    video = np.stack([scene[3 * t : 3 * t + 120, 4 * t : 4 * t + 160] for t in range(24)])
    lines = track(video.astype(np.uint8)).fit.warnings
    assert len(lines) == 1
    assert lines[0].startswith("the camera moves")
