"""Joint positions and moments of draws, against plain loops."""

import torch

from motes.kalman.joint_tracks import groups, joint_positions, with_draws, with_moments
from motes.kalman.model import SmoothedTracks


def test_groups_hold_every_active_object_once() -> None:
    active = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])
    found = {
        (int(clip), int(slot))
        for clips, slots in groups(active)
        for clip, own in zip(clips, slots, strict=True)
        for slot in own
    }
    assert found == {(0, 0), (0, 2), (2, 1), (2, 2)}


def test_joint_positions_put_objects_side_by_side() -> None:
    positions = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(0))
    observed = torch.ones(2, 3, 4, dtype=torch.bool)
    observed[1, 2, 3] = False
    a, known = joint_positions(positions, observed, torch.tensor([1]), torch.tensor([[0, 2]]))
    for t in range(4):
        row = [*positions[1, 0, t].tolist(), *positions[1, 2, t].tolist()]
        if t == 3:
            row[2:] = [0.0, 0.0]
        assert a[0, t].tolist() == row
    assert known[0, 3].tolist() == [True, True, False, False]


def test_moments_and_draws_replace_those_of_clips_that_were_drawn() -> None:
    generator = torch.Generator().manual_seed(1)
    plain = SmoothedTracks(
        torch.zeros(2, 2, 1, dtype=torch.float64),
        torch.randn(2, 2, 1, 3, 4, generator=generator, dtype=torch.float64),
        torch.eye(4, dtype=torch.float64).expand(1, 2, 1, 3, 4, 4),
    )
    states = torch.randn(50, 1, 2, 3, 4, generator=generator, dtype=torch.float64)
    drawn = [(torch.tensor([1]), torch.tensor([[1, 0]]), states)]
    found = with_moments(plain, drawn)
    assert torch.equal(found.means[0], plain.means[0])
    for n, slot in ((0, 1), (1, 0)):
        for t in range(3):
            own = states[:, 0, n, t]
            torch.testing.assert_close(found.means[1, slot, 0, t], own.mean(0))
            torch.testing.assert_close(
                found.covariances[1, slot, 0, t], torch.cov(own.T, correction=0)
            )
    every = with_draws(torch.zeros(50, 2, 2, 3, 4, dtype=torch.float64), drawn)
    assert torch.equal(every[:, 1, 1], states[:, 0, 0])
    assert not bool(every[:, 0].any())
