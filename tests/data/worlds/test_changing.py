"""Balls whose looks change: masks agree with the truth."""

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.data.worlds.changing import CHANGES, changing_cannonballs


@pytest.mark.parametrize("change", CHANGES)
def test_masks_are_centred_on_the_truth(change):
    clips = changing_cannonballs(change, 6, seed=3)
    masks, truth = clips.frames.numpy(), clips.positions[:, 0].numpy()
    y, x = np.mgrid[:64, :64]
    near = np.hypot(x - truth[..., 0, None, None], y - truth[..., 1, None, None]) < 9
    masks = masks * near  # single pixels of noise elsewhere
    mass = masks.sum((2, 3))
    centre = np.stack([(masks * axis).sum((2, 3)) / mass for axis in (x, y)], -1)
    # A mask of 20 to 80 pixels of which a few at the rim are wrong.
    assert np.abs(centre - truth).max() < 0.7
    assert np.abs((centre - truth).mean()) < 0.03


def test_growing_balls_cover_four_times_as_much_in_the_end():
    mass = changing_cannonballs("growth", 8, seed=1).frames.sum((2, 3)).float().mean(0)
    assert 3 < float(mass[-1] / mass[0]) < 4.5


def test_the_same_seed_gives_the_same_clips_and_other_changes_are_named():
    one, same = (changing_cannonballs("blur", 2, seed=4).frames for _ in range(2))
    assert (one == same).all()
    with pytest.raises(InputError, match="got change 'melt'"):
        changing_cannonballs("melt", 1)
