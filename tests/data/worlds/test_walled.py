import dataclasses

import numpy as np
import pytest

from motes.core.errors import InputError
from motes.data.worlds.walled import WalledRoom, box, polygon

ROOMS = {
    "box": box(),
    "box with gravity": box(gravity=0.3),
    "triangle": polygon(3),
    "hexagon with gravity": dataclasses.replace(polygon(6), gravity=(0.1, 0.2)),
}


@pytest.mark.parametrize("name", ROOMS)
def test_energy_is_kept_and_no_ball_leaves(name: str) -> None:
    room = ROOMS[name]
    states = room.simulate(50, 1, 60, seed=3)[:, 0]
    x, v = states[..., :2], states[..., 2:]
    energy = (v**2).sum(-1) / 2 - x @ np.array(room.gravity)
    # Hits are computed to rounding: 1e-13 of numbers up to a hundred, of some hundred hits.
    np.testing.assert_allclose(energy, energy[:, :1].repeat(60, 1), atol=1e-9)
    assert (x @ np.array(room.normals).T - np.array(room.offsets)).min() > -1e-9
    turned = np.sign(v[:, 1:]) != np.sign(v[:, :-1])
    assert turned.any(1).mean() > 0.5  # walls were hit


def test_a_ball_in_a_box_moves_on_a_triangle_wave() -> None:
    """Unfolding the reflections of one axis gives uniform motion: an independent solution."""
    room = box()
    states = room.simulate(30, 2, 40, seed=1)
    near, width = room.offsets[0], -room.offsets[1] - room.offsets[0]
    t = np.arange(40)[:, None]
    straight = states[:, :, :1, :2] - near + states[:, :, :1, 2:] * t
    folded = near + width - np.abs(straight % (2 * width) - width)
    np.testing.assert_allclose(states[..., :2], folded, atol=1e-9)


@pytest.mark.parametrize("gravity", [(0.0, 0.3), (-0.1, 0.2)])
def test_reflections_are_those_of_small_steps(gravity: tuple[float, float]) -> None:
    room = dataclasses.replace(polygon(5), gravity=gravity, restitution=0.7)
    states = room.simulate(20, 1, 6, seed=2)[:, 0]
    x, v = states[:, 0, :2].copy(), states[:, 0, 2:].copy()
    steps, n, d = 20_000, np.array(room.normals), np.array(room.offsets)
    for _ in range(5 * steps):
        x, v = x + v / steps, v + np.array(gravity) / steps
        speed = v @ n.T
        out = (x @ n.T < d) & (speed < 0)
        v -= 1.7 * (np.where(out, speed, 0.0)[..., None] * n).sum(1)
    # A step late at a hit is an error of speed / steps, 1e-4 pixels, which later hits enlarge.
    assert np.abs(x - states[:, 5, :2]).max() < 0.05


def test_clips_are_white_disks_at_the_rounded_positions() -> None:
    clips = box().make(4, 12, seed=5)
    assert clips.positions is not None
    assert clips.video.shape == (4, 12, 32, 32)
    frames = clips.frames.double().numpy()
    area = frames.sum((2, 3))
    rows, columns = np.mgrid[:32, :32]
    for axis, place in ((columns, 0), (rows, 1)):
        centre = (frames * axis).sum((2, 3)) / area
        assert np.abs(centre - clips.positions[:, 0, :, place].numpy()).max() <= 0.5 + 1e-6
    again = box().make(4, 12, seed=5)
    assert (again.frames == clips.frames).all()


def test_a_ball_that_comes_to_rest_ends_in_one_line() -> None:
    room = dataclasses.replace(box(gravity=2.0), restitution=0.05)
    with pytest.raises(InputError, match="came to rest"):
        room.simulate(3, 1, 60, seed=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"restitution": 1.2}, "restitution is 1.2; give 0 to 1"),
        ({"offsets": (1.0,)}, "got 4 normals and 1 offsets"),
    ],
)
def test_impossible_rooms_are_refused(given: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        WalledRoom(**{"normals": box().normals, "offsets": box().offsets, **given})
