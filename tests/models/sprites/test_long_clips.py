import math

import pytest
import torch

from motes.core.axes import Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites import long_clips
from motes.models.sprites.likelihood_maps import (
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    scene_of,
)
from motes.models.sprites.long_clips import (
    LaterStart,
    LongSearch,
    changed_frames,
    forward,
    is_best,
    later_starts,
    search_long,
    undo_swaps,
)
from motes.models.sprites.search import (
    Tracker,
    delayed_starts,
    predict_from_other_frames,
    refine,
)
from sprite_scenes import disk_renderer, frame_with, straight

SIZE, FRAMES, WINDOW = 48, 140, 7


def swinging() -> LinearDynamics:
    """Return dynamics with enough process noise for objects that turn back."""
    dynamics = straight(1.0)
    with torch.no_grad():
        dynamics.state_factor.diagonal().fill_(0.5 * math.log(0.02))
    return dynamics


def places(num_frames: int = FRAMES) -> Tensor:
    """Return whole pixels of two objects that swing, and pass each other in height, [2 T 2]."""
    t = torch.arange(num_frames)
    one = torch.stack([14 + 8 * (t / 9).sin(), 24 + 12 * (t / 11).cos()], -1)
    two = torch.stack([34 + 8 * (t / 8).cos(), 24 + 12 * (t / 7).sin()], -1)
    return torch.stack([one, two]).round()


def scene_with(truth: Tensor, flash: bool = False, hidden: tuple[int, ...] = ()) -> Scene:
    """Return the scene; a flash takes the place of the second object in the first frame.

    In hidden frames the second object does not show.
    """
    pairs = [[tuple(xy) for xy in now] for now in truth.long().transpose(0, 1).tolist()]
    if flash:
        pairs[0] = [pairs[0][0], (44, 44)]
    for t in hidden:
        pairs[t] = pairs[t][:1]
    frames = torch.cat([frame_with(pair, SIZE) for pair in pairs])[None]
    return scene_of(frames, torch.tensor([2]), swinging(), disk_renderer(SIZE))


@torch.no_grad()
@pytest.mark.parametrize("hidden", [(), (4, 5, 6, 31, 70, 71)])
def test_a_long_clip_is_searched_as_with_all_hypotheses(
    hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-3 px: another convergence of frames in which nothing was wrong."""
    truth = places()
    scene, tracker = scene_with(truth, hidden=hidden), Tracker(WINDOW)
    starts = delayed_starts(scene.observed, 3)
    once, *_ = search_long(scene, starts, WINDOW)
    assert once is not None
    monkeypatch.setattr(long_clips, "MIN_FRAMES", FRAMES + 1)
    monkeypatch.setattr(long_clips, "is_settled", lambda *scene: torch.zeros(1, dtype=torch.bool))
    found, expected = tracker._best_search(scene, 3)
    assert torch.equal(once[0].detected, found.detected)
    assert (~found.detected[0, 1]).nonzero()[:, 0].tolist() == list(hidden)
    assert (found.place.mean[0] - truth)[found.detected[0]].abs().max() < 0.6
    torch.testing.assert_close(once[0].place.mean, found.place.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(once[1].mean, expected.mean, rtol=0, atol=1e-3)


@torch.no_grad()
def test_later_starts_join_without_doubt_where_objects_are_separated() -> None:
    for flash in (False, True):
        scene = scene_with(places(), flash)
        coarse = SpriteTemplate.coarse(scene.renderer, WINDOW)
        first = forward(scene, coarse, scene.observed)
        starts = delayed_starts(scene.observed, 3)
        found = later_starts(scene, coarse, first, starts)
        assert all(start.joins and not start.doubtful for start in found) == (not flash)


def doubtful_beginning(wrong: bool) -> tuple[Scene, Detections]:
    """Return a scene and a forward pass that is right from frame 12 on, or everywhere.

    In the frames before, both objects are taken to be at rest far from where they show.
    """
    truth = places()
    scene = scene_with(truth)
    mean = truth.clone()
    if wrong:
        mean[:, :12] = torch.tensor([[4.0, 4.0], [44.0, 4.0]])[:, None]
    place = PixelGaussian(mean[None], torch.eye(2).expand(1, 2, FRAMES, 2, 2).clone())
    return scene, Detections(place, torch.ones(1, 2, FRAMES, dtype=torch.bool))


@torch.no_grad()
@pytest.mark.parametrize("wrong", [False, True])
def test_a_doubtful_beginning_is_kept_only_if_it_is_better(wrong: bool) -> None:
    """A later start that is blind to the beginning goes back to the right tracks there."""
    scene, first = doubtful_beginning(wrong)
    coarse = SpriteTemplate.coarse(scene.renderer, WINDOW)
    trusted = scene.observed & (torch.arange(FRAMES) >= 24)
    start = LaterStart(trusted, stop=72, joins=True, doubtful=True)
    best = refine(scene, coarse, first, scene.observed)
    assert is_best(scene, best, LongSearch(None, first, [start]), WINDOW) == (not wrong)
    sure = start._replace(doubtful=False)
    assert is_best(scene, best, LongSearch(None, first, [sure]), WINDOW)
    assert not is_best(scene, best, LongSearch(None, first, []), WINDOW)


@torch.no_grad()
def test_a_doubtful_beginning_that_is_decided_is_searched_as_with_all_hypotheses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_clips, "MAX_MAHALANOBIS", 0.0)  # every frame is in doubt
    scene, tracker = scene_with(places(), hidden=(4, 5, 6, 31)), Tracker(WINDOW)
    once = search_long(scene, delayed_starts(scene.observed, 3), WINDOW)
    assert once.result is None
    assert all(start.joins and start.doubtful for start in once.joined)
    found, expected = tracker._best_search(scene, 3)
    assert is_best(scene, (found, expected), once, WINDOW)
    monkeypatch.setattr(long_clips, "MIN_FRAMES", FRAMES + 1)
    monkeypatch.setattr(long_clips, "is_settled", lambda *scene: torch.zeros(1, dtype=torch.bool))
    plain, there = tracker._best_search(scene, 3)
    assert torch.equal(found.detected, plain.detected)
    torch.testing.assert_close(found.place.mean, plain.place.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(expected.mean, there.mean, rtol=0, atol=1e-3)


@torch.no_grad()
def test_swapped_parts_of_long_tracks_are_swapped_back() -> None:
    truth = places()
    scene = scene_with(truth)
    coarse = SpriteTemplate.coarse(scene.renderer, WINDOW)
    wrong = torch.cat([truth[:, :60], truth.flip(0)[:, 60:]], 1)
    place = PixelGaussian(wrong[None], torch.eye(2).expand(1, 2, FRAMES, 2, 2))
    found = Detections(place, torch.ones(1, 2, FRAMES, dtype=torch.bool))
    after, there = undo_swaps(scene, coarse, found, predict_from_other_frames(scene, found))
    assert (after.place.mean[0] - truth).abs().max() < 0.6
    torch.testing.assert_close(there.mean, predict_from_other_frames(scene, after).mean)


def test_frames_change_where_predictions_do() -> None:
    before = PixelGaussian(torch.zeros(1, 2, 30, 2), torch.eye(2).expand(1, 2, 30, 2, 2).clone())
    after = PixelGaussian(before.mean.clone(), before.covariance)
    after.mean[0, 1, 12, 0] = 0.5
    assert changed_frames(after, before).tolist() == list(range(8, 17))
    assert len(changed_frames(before, before)) == 0
