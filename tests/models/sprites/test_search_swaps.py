"""Identity swaps between tracks: candidates, and the best ones to apply."""

import pytest
import torch

from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.search import MIN_SEPARATION, Detections, best_swaps, frame_swap_gains
from track_scenes import linear_dynamics, swapped_from


def straight_paths() -> tuple[LinearDynamics, torch.Tensor]:
    """Three objects that go straight on, and their positions."""
    dynamics = linear_dynamics(1e-4)
    with torch.no_grad():
        dynamics.force.zero_()
        assert dynamics.force_field is not None
        dynamics.force_field.zero_()
        dynamics.initial_factor.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    starts = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [2.0, 1.0]])
    speeds = torch.tensor([[0.1, 0.0], [0.4, 0.1], [-0.4, 0.1]])
    return dynamics, starts[:, None] + torch.arange(9.0)[:, None] * speeds[:, None]


def detections_of(places: torch.Tensor, detected: torch.Tensor) -> Detections:
    """Return the same detections in two clips."""
    spread = 0.1 * torch.eye(2).expand(2, *places.shape, 2)
    return Detections(PixelGaussian(torch.stack([places] * 2), spread), torch.stack([detected] * 2))


PRESENT = torch.tensor([[True, True, True], [True, True, False]])


@torch.no_grad()
def test_the_best_swap_undoes_one_and_leaves_absent_objects_alone() -> None:
    """The last two objects swap identities from frame 5 on."""
    dynamics, truth = straight_paths()
    found = detections_of(swapped_from(truth, 1, 2, 5), torch.ones(3, 9, dtype=torch.bool))
    gains = dynamics.swap_gains(found.place.mean, found.detected)
    gain, source = best_swaps(gains, PRESENT, persistent=True)
    assert gain[0] > 10
    torch.testing.assert_close(found.reordered(source).place.mean[0], truth)
    assert (source[1, 2] == 2).all()


@torch.no_grad()
def test_swaps_far_apart_in_a_long_clip_are_undone_together() -> None:
    """Of three objects that go round, two swap identities three times, not always the same two."""
    dynamics, _ = straight_paths()
    time = torch.arange(MIN_SEPARATION * 4.0)
    angle = time / 10 + torch.tensor([[0.0], [2.1], [4.2]])
    truth = 2 * torch.stack([angle.cos(), angle.sin()], -1)
    wrong = truth
    for one, other, frame in [
        (0, 1, 30),
        (1, 2, 30 + MIN_SEPARATION),
        (0, 2, 40 + 2 * MIN_SEPARATION),
    ]:
        wrong = swapped_from(wrong, one, other, frame)
    found = detections_of(wrong, torch.ones(3, len(time), dtype=torch.bool))
    gains = dynamics.swap_gains(found.place.mean, found.detected)
    everyone = torch.ones(2, 3, dtype=torch.bool)
    _, source = best_swaps(gains, everyone, persistent=True)
    assert torch.equal(found.reordered(source).place.mean[0], truth)


@torch.no_grad()
@pytest.mark.parametrize("both", [True, False])
def test_a_swap_in_one_frame_is_undone_also_where_only_one_was_detected(both: bool) -> None:
    _, truth = straight_paths()
    wrong, seen = truth.clone(), torch.ones(3, 9, dtype=torch.bool)
    seen[2, 7] = both
    shown = seen.clone()
    wrong[[1, 2], 7], shown[[1, 2], 7] = truth[[2, 1], 7], seen[[2, 1], 7]
    found, expected = detections_of(wrong, shown), detections_of(truth, seen).place
    gain, source = best_swaps(frame_swap_gains(found, expected), PRESENT, persistent=False)
    right = found.reordered(source)
    assert torch.equal(right.detected[0], seen)
    assert torch.equal(right.place.mean[0], truth)
    # In nats of the predictions: of both positions, or of the one detected.
    gained = (truth[1, 7] - truth[2, 7]).square().sum() / 0.1
    torch.testing.assert_close(gain[0], gained if both else gained / 2)
    assert (source[1, 2] == 2).all()
