"""Answers as tables and pictures: units, columns, what is drawn where."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.output.plots import INFERRED, View
from motes.output.tracks import (
    MAX_GIF_FRAMES,
    SHOWN_DRAWS,
    QueryClips,
    answer_in_video,
    draw_tracks,
    plot_paths,
    table,
    tracks_of,
    write_animation,
)
from motes.queries import sample
from motes.queries.answer import COLUMNS
from motes.video import VideoMap
from tests.tiny import tiny_model

T = 6


@pytest.fixture
def answer():
    return sample(tiny_model(), num_clips=2, num_objects=torch.tensor([1, 2]), num_frames=T)


def where(num_frames=T):
    """Clips at 20 frames a second, every second picture of a video at 40; scales 3 and 5."""
    numbers = np.arange(num_frames) * 2 + np.array([[0], [7]])
    return VideoMap(np.array([3.0, 5.0]), np.array([10.0, -1.0]), numbers / 40, numbers)


def test_answers_are_mapped_to_the_pixels_and_seconds_of_the_video(answer):
    told, mapped = answer, answer_in_video(answer, where())
    assert torch.allclose(mapped.pixels[..., 0], 3 * told.pixels[..., 0] + 10, equal_nan=True)
    assert torch.allclose(
        mapped.path_pixels[..., 1], 5 * told.path_pixels[..., 1] - 1, equal_nan=True
    )
    speed = told.pixel_velocities * torch.tensor([3.0, 5.0]) * 20
    assert torch.allclose(mapped.pixel_velocities, speed, equal_nan=True)
    scale = torch.diag(torch.tensor([3.0, 5.0]))
    spread = torch.eye(2) + torch.tensor([[0.0, 0.3], [0.3, 0.0]])
    assert torch.allclose(where().covariances(spread), scale @ spread @ scale)


def test_drawn_paths_are_mapped_like_positions(answer):
    paths = torch.randn(3, 2, 2, T, 2, generator=torch.Generator().manual_seed(0))
    mapped = answer_in_video(replace(answer, draw_paths=lambda: paths), where()).draws
    assert torch.allclose(mapped, paths * torch.tensor([3.0, 5.0]) + torch.tensor([10.0, -1.0]))


def test_only_a_law_that_forks_shows_drawn_paths_and_only_with_hidden_frames(answer):
    paths = torch.zeros(40, 2, 2, T, 2)
    for forks, hidden in ((True, True), (True, False), (False, True)):
        observed = torch.ones(2, T, dtype=torch.bool)
        observed[:, 3:] = not hidden
        given = replace(answer, forks=forks, observed=observed, draw_paths=lambda: paths)
        view = tracks_of(given, 1)
        expected = (SHOWN_DRAWS if forks and hidden else 0, T, 2)
        assert view.branches(1).shape == expected


def test_branches_are_drawn_from_the_last_detection_on():
    seen = [True] * 3 + [False] * 3
    up, down = (np.stack([np.linspace(10, 50, T), np.linspace(30, y, T)], -1) for y in (5, 55))
    view = replace(tracks(seen), draws=np.stack([up, down])[:, None])
    plain, forked = (list(draw_tracks(black(T), one)) for one in (tracks(seen), view))
    assert (plain[2] == forked[2]).all()
    rows = np.flatnonzero((plain[-1] != forked[-1]).any((1, 2)))
    # Frames 2 to 5 of the branches: heights 20 to 5 and 40 to 55.
    assert rows.min() <= 6
    assert rows.max() >= 54
    assert not ((rows > 21) & (rows < 39)).any()


def test_a_table_counts_frames_in_the_video_and_tells_the_time(answer):
    columns, rows = table(answer, where())
    assert columns == [*COLUMNS, "time"]
    rows = list(rows)
    assert len(rows) == 3 * T
    assert [row[:3] for row in rows[T : T + 2]] == [(1, 7, 0), (1, 7, 1)]
    assert rows[T][-1] == pytest.approx(7 / 40)


def test_a_table_of_a_forecast_is_longer_than_its_clip(answer):
    _, rows = table(answer, where(num_frames=4))
    assert [row[1] for row in rows if row[0] == 0] == [0, 2, 4, 6, 8, 10]


def tracks(seen):
    path = np.stack([np.linspace(10, 50, T), np.full(T, 30.0)], -1)[None]
    spread = np.tile(36 * np.eye(2), (1, T, 1, 1))
    observed = np.ones(T, dtype=bool)
    return View(INFERRED, path, spread, path, spread, observed, detected=np.array([seen]))


def black(count):
    return iter(np.zeros((count, 60, 64, 3), dtype=np.uint8))


def test_a_ghost_is_dashed_and_a_seen_object_is_not():
    seen, hidden = (
        next(draw_tracks(black(T), tracks([flag] * T))).any(-1).sum() for flag in (True, False)
    )
    # Half of the ellipse is left out; the label and the corners of dashes are drawn in both.
    assert 0.4 * seen < hidden < 0.85 * seen


def test_an_object_draws_its_last_frames_behind_it(monkeypatch):
    def lit(frame, x):
        return bool(list(draw_tracks(black(T), tracks([True] * T)))[frame][30, x].any())

    # It goes from 10 to 50 in five steps of eight pixels; its ellipse has a radius of 13.
    assert lit(T - 1, 20)
    assert not lit(0, 25)
    monkeypatch.setattr("motes.output.tracks.TAIL", 2)
    assert lit(T - 1, 36)
    assert not lit(T - 1, 20)


def test_pictures_that_end_early_stay_darker():
    white = iter([np.full((60, 64, 3), 240, dtype=np.uint8)] * 2)
    drawn = list(draw_tracks(white, tracks([True] * T)))
    assert len(drawn) == T
    assert drawn[1][-1, -1].tolist() == [240] * 3
    assert drawn[2][-1, -1].tolist() == [80] * 3


def test_a_gif_that_would_fill_the_memory_is_refused(tmp_path):
    endless = (np.zeros((4, 4, 3), dtype=np.uint8) for _ in range(MAX_GIF_FRAMES + 1))
    with pytest.raises(InputError, match=r"\.mp4"):
        write_animation(tmp_path / "a.gif", endless, 10.0)
    assert not list(tmp_path.iterdir())


def test_paths_are_drawn_in_the_colours_of_the_objects(tmp_path):
    from PIL import Image

    flags = [True] * 3 + [False] * 3
    plot_paths(tmp_path / "a.png", tracks(flags), np.zeros((60, 64, 3), np.uint8), "title")
    with Image.open(tmp_path / "a.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (np.abs(pixels.astype(int) - (0x56, 0xB4, 0xE9)).sum(1) < 9).any()


def test_pixel_centres_of_a_clip_stay_centres_when_it_is_enlarged():
    clips = QueryClips(torch.zeros(1, 2, 3, 4), None, None)
    place, pictures = clips.background(5)
    assert next(pictures).shape[:2] == (15, 20)
    # Pixel (0, 0) covers enlarged pixels 0 to 4, whose middle is 2.
    assert place.points(torch.zeros(1, 1, 1, 2)).flatten().tolist() == [2.0, 2.0]
