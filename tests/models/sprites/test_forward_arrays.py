import pytest
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.forward_arrays import covers, forward_arrays
from motes.models.sprites.forward_pass import PASSES_PER_FRAME, forward_pass, redetect_lost
from motes.models.sprites.likelihood_maps import SpriteTemplate, scene_of
from motes.models.sprites.search import (
    delayed_starts,
)
from sprite_scenes import disk_renderer, frame_with, straight

SIZE, FRAMES, WINDOW = 40, 24, 6


def crossing(hide: slice = slice(0)) -> torch.Tensor:
    """Return frames of three disks that cross; the third is invisible for a while."""
    frames = []
    for t in range(FRAMES):
        places = [(6 + t, 12), (32 - t, 14), (10 + t // 2, 30 - t // 3)]
        frames.append(frame_with(places[:2] if t in range(FRAMES)[hide] else places, SIZE))
    return torch.cat(frames)[None]


@torch.no_grad()
@pytest.mark.parametrize("hide", [slice(0), slice(8, 13)])
def test_the_forward_pass_of_arrays_equals_the_reference(
    hide: slice, generator: torch.Generator
) -> None:
    """Means to 1e-3 px: both compute in float32, whose scores of some 100 nats keep 5 digits."""
    renderer, dynamics = disk_renderer(SIZE), straight(1.0)
    observed = torch.rand(1, FRAMES, generator=generator) < 0.9
    scene = scene_of(crossing(hide), torch.tensor([3]), dynamics, renderer, observed).repeated(3)
    template = SpriteTemplate.coarse(renderer, WINDOW)
    trusted = delayed_starts(observed, 3)
    assert covers(scene)
    plain = forward_pass(scene, template, trusted)
    fast = forward_arrays(scene, template, trusted, redetect_lost, PASSES_PER_FRAME)
    assert torch.equal(fast.detected, plain.detected)
    seen = plain.detected
    torch.testing.assert_close(fast.place.mean[seen], plain.place.mean[seen], rtol=0, atol=1e-3)
    torch.testing.assert_close(
        fast.place.covariance[seen], plain.place.covariance[seen], rtol=1e-2, atol=1e-3
    )
    early = forward_arrays(scene, template, trusted, redetect_lost, PASSES_PER_FRAME, stop=7)
    assert torch.equal(early.place.mean, fast.place.mean[:, :, :7])


def test_many_searches_and_other_laws_are_left_to_the_reference() -> None:
    class Other(LinearDynamics):
        """A law that arrays do not know."""

    frames, renderer, law = crossing(), disk_renderer(SIZE), straight()
    other = Other(generator=torch.Generator().manual_seed(0))
    assert not covers(scene_of(frames, torch.tensor([3]), other, renderer))
    assert not covers(scene_of(frames, torch.tensor([3]), law, renderer).repeated(5))
