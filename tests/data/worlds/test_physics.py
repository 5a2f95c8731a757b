"""The generator against closed-form flight, and its pictures against disks drawn pixel by pixel."""

import hashlib
import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.data import World, cannonballs
from motes.data.worlds.registry import draw_disks


@pytest.fixture(scope="module")
def clips():
    return cannonballs(num_clips=300, seed=7)


def disk_by_hand(height, width, centre, radius):
    """One frame, pixel by pixel."""
    frame = np.zeros((height, width), dtype=np.uint8)
    for y in range(height):
        for x in range(width):
            if (x - centre[0]) ** 2 + (y - centre[1]) ** 2 <= radius**2:
                frame[y, x] = 1
    return frame


def to_world(world, pixels):
    """Pixels back to the world: the box's corners lie `radius` inside the frame, y upside down."""
    (low_x, low_y), (high_x, high_y) = world.box
    radius = world.radius
    x = low_x + (pixels[..., 0] - radius) / (world.width - 1 - 2 * radius) * (high_x - low_x)
    y = high_y - (pixels[..., 1] - radius) / (world.height - 1 - 2 * radius) * (high_y - low_y)
    return np.stack((x, y), axis=-1)


def test_clean_paths_are_the_parabola_of_free_fall(clips):
    world = World()
    paths = to_world(world, clips.clean.double().numpy())
    paths = paths[~np.isnan(paths[:, :, 0, 0])]
    time = 0.015 * np.arange(30)
    # From the first and the last point of a parabola with known gravity follow all the others.
    fallen = np.stack((np.zeros(30), -0.5 * 9.81 * time**2), axis=-1)
    velocity = (paths[:, -1] - paths[:, 0] - fallen[-1]) / time[-1]
    expected = paths[:, :1] + velocity[:, None] * time[:, None] + fallen
    # float32 pixels up to 48 carry 2e-6 px, a pixel is 0.04 units, and three such errors add up.
    np.testing.assert_allclose(paths, expected, rtol=0, atol=3 * 2e-6 * 0.05)
    speed, angle = (
        np.hypot(*velocity.T),
        np.degrees(np.arctan2(velocity[:, 1], abs(velocity[:, 0]))),
    )
    assert 2 - 1e-5 < speed.min() < 2.1
    assert 2.9 < speed.max() < 3 + 1e-5
    assert 40 - 1e-3 < angle.min() < 42
    assert 58 < angle.max() < 60 + 1e-3


def test_balls_start_on_the_left_flying_right_or_on_the_right_flying_left(clips):
    paths = to_world(World(), clips.clean.double().numpy())
    paths = paths[~np.isnan(paths[:, :, 0, 0])]
    start, flies_right = paths[:, 0], paths[:, 1, 0] > paths[:, 0, 0]
    shift = 0.9 * (-0.1 + 3 * np.cos(np.radians(40)) * 29 * 0.015)
    slack = 1e-6
    for low, high, here in ((-0.5, -0.1, flies_right), (-0.5 + shift, -0.1 + shift, ~flies_right)):
        assert low - slack < start[here, 0].min() < low + 0.02
        assert high - 0.02 < start[here, 0].max() < high + slack
    assert -0.5 - slack < start[:, 1].min() < -0.48
    assert 0.48 < start[:, 1].max() < 0.5 + slack
    # A fair coin over n balls strays from n/2 by more than 5 sqrt(n)/2 once in 1.7 million seeds.
    assert abs(flies_right.sum() - len(paths) / 2) < 2.5 * len(paths) ** 0.5


def test_gravity_and_noise_have_the_stated_size_in_pixels(clips):
    world = World()
    assert world.pixel_force == pytest.approx([0, 0.0523], abs=5e-5)
    second = np.diff(clips.clean.double().numpy(), n=2, axis=2)
    second = second[~np.isnan(second[..., 0])]
    # Four float32 roundings of 2e-6 px enter a second difference.
    np.testing.assert_allclose(second, np.broadcast_to(world.pixel_force, second.shape), atol=8e-6)
    noise = (clips.positions - clips.clean).double().numpy()
    noise = noise[~np.isnan(noise[..., 0])]
    # The standard deviation of n draws has relative error 1/sqrt(2n): 5 of them.
    tolerance = 5 / (2 * len(noise)) ** 0.5
    assert noise.std(axis=0) == pytest.approx([0.804, 0.750], rel=tolerance + 1e-3)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / len(noise) ** 0.5


@pytest.mark.parametrize(
    "physics",
    [
        {"position_noise": 0.0},
        {"position_noise": 0.0, "angles": (30.0, 150.0), "num_frames": 50},
        {"position_noise": 0.0, "force": (0.0, 0.0, 0.05, -0.1), "speeds": (0.0, 1.0)},
    ],
)
def test_no_shot_leaves_the_box_and_some_touch_it(physics):
    world = World(size=48, **physics)
    # Independent route: fly every combination of extreme shots, and a fan of angles, step by step.
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    transition = np.eye(4)
    transition[0, 2] = transition[1, 3] = world.sampling_period
    for sign, starts in ((1, world.left), (-1, world.right)):
        for angle in np.radians(np.linspace(*world.angles, 241)):
            for speed in world.speeds:
                for x in starts:
                    for y in world.heights:
                        velocity = (sign * speed * np.cos(angle), speed * np.sin(angle))
                        state = np.array((x, y, *velocity))
                        for _ in range(world.num_frames):
                            low = np.minimum(low, state[:2])
                            high = np.maximum(high, state[:2])
                            state = transition @ state + world.step_force
    np.testing.assert_allclose(world.box, (low, high), rtol=0, atol=1e-9)


def test_state_noise_adds_up_along_the_path():
    covariance = np.diag((1e-4, 2e-4, 3e-3, 4e-3))
    still = {"speeds": (0.0, 0.0), "force": (0.0, 0.0, 0.0, 0.0), "position_noise": 1e-9}
    arguments = {"num_objects": 1, "num_frames": 4, "sampling_period": 0.5, **still}
    clips = cannonballs(2000, state_noise=covariance, **arguments)
    world = World(num_frames=4, sampling_period=0.5, state_noise=covariance, **still)
    moved = to_world(world, clips.clean.double().numpy()[:, 0])
    moved = moved[:, 3] - moved[:, 0]
    # Three kicks of position; velocity kicks act for 2 and 1 later periods of 0.5.
    expected = 3 * np.array((1e-4, 2e-4)) + 0.25 * (4 + 1) * np.array((3e-3, 4e-3))
    assert moved.var(axis=0) == pytest.approx(expected, rel=5 * (2 / 2000) ** 0.5)


def test_correlated_position_noise_has_its_covariance():
    covariance = np.array(((0.002, 0.001), (0.001, 0.001)))
    clips = cannonballs(400, num_objects=1, position_noise=covariance)
    world = World(position_noise=covariance)
    noise = to_world(world, clips.positions.double().numpy()) - to_world(
        world, clips.clean.double().numpy()
    )
    # Entries of a sample covariance of n draws err by about sqrt(2/n) of the largest variance.
    error = abs(np.cov(noise.reshape(-1, 2).T) - covariance)
    assert error.max() < 5 * (2 / (400 * 30)) ** 0.5 * 0.002


def test_every_disk_is_whole_and_its_centroid_is_the_position_to_half_a_pixel():
    clips = cannonballs(200, num_objects=1, seed=3)
    frames = clips.frames.numpy().astype(np.float64)
    assert (frames.sum(axis=(2, 3)) == 13).all()
    y = (frames.sum(axis=3) * np.arange(48)).sum(axis=2) / 13
    x = (frames.sum(axis=2) * np.arange(48)).sum(axis=2) / 13
    centroids = np.stack((x, y), axis=-1)
    # Centroids of whole disks are whole numbers up to rounding in a sum of 13.
    assert abs(centroids - clips.positions[:, 0].numpy()).max() <= 0.5 + 1e-6


def test_positions_keep_every_ball_whole_even_where_the_noise_is_large():
    clips = cannonballs(200, size=(20, 40), radius=3, position_noise=10.0)
    present = ~torch.isnan(clips.positions[..., 0])
    x, y = clips.positions[present].T
    assert (x.min(), x.max(), y.min(), y.max()) == (3, 36, 3, 16)  # held at the border


def test_frames_are_the_disks_of_the_positions_drawn_by_hand():
    clips = cannonballs(4, num_objects=(2, 3), num_frames=3, size=(24, 32), radius=3, seed=5)
    for b in range(4):
        for t in range(3):
            expected = np.zeros((24, 32), dtype=np.uint8)
            for n in range(int(clips.num_objects[b])):
                expected |= disk_by_hand(24, 32, clips.positions[b, n, t].round().tolist(), 3)
            np.testing.assert_array_equal(clips.frames[b, t].numpy(), expected)


def test_frames_of_several_balls_are_the_union_of_single_ones():
    # Overlapping, equal and absent balls.
    positions = np.array([[5.2, 5.4], [6.6, 5.0], [6.6, 5.0], [np.nan, np.nan]])[None, :, None]
    together = draw_disks(positions, 12, 14, 2)
    single = [draw_disks(positions[:, [n]], 12, 14, 2) for n in range(4)]
    np.testing.assert_array_equal(together, np.maximum.reduce(single))
    assert [frame.sum() for frame in single] == [13, 13, 13, 0]
    assert 13 < together.sum() < 26


def test_absent_balls_are_nan_and_counts_are_drawn_evenly(clips):
    counts = clips.num_objects
    present = ~torch.isnan(clips.positions[:, :, 0, 0])
    torch.testing.assert_close(present.sum(dim=1), counts)
    assert present[:, 0].all()
    for truth in (clips.positions, clips.clean):
        assert torch.equal(torch.isnan(truth), ~present[:, :, None, None].expand(truth.shape))
    # Each third of 300 clips strays from 100 by 5 binomial deviations once in millions of seeds.
    assert all(abs(int((counts == n).sum()) - 100) < 5 * (300 * 2 / 9) ** 0.5 for n in (1, 2, 3))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**40), st.floats(0, 1e-3))
def test_fewer_clips_are_the_first_of_more(few, seed, state_noise):
    arguments = {"seed": seed, "num_frames": 5, "size": 16, "state_noise": state_noise}
    less, more = cannonballs(few, **arguments), cannonballs(25, **arguments)[:few]
    assert torch.equal(less.frames, more.frames)
    assert torch.equal(less.num_objects, more.num_objects)
    assert torch.equal(less.positions.nan_to_num(-1), more.positions.nan_to_num(-1))
    assert torch.equal(less.clean.nan_to_num(-1), more.clean.nan_to_num(-1))


def test_clips_do_not_depend_on_the_blocks_they_are_made_in(monkeypatch):
    whole = cannonballs(11, num_frames=4, size=16)
    # The package shows the function of the same name in the place of the module.
    module = importlib.import_module("motes.data.worlds.registry")
    monkeypatch.setattr(module, "CHUNK_PIXELS", 3 * 4 * 16 * 16)
    parts = cannonballs(11, num_frames=4, size=16)
    assert torch.equal(whole.frames, parts.frames)
    assert torch.equal(whole.positions.nan_to_num(-1), parts.positions.nan_to_num(-1))


def test_the_same_seed_means_these_clips_on_every_machine():
    frames = cannonballs(3, seed=0).frames
    assert frames.dtype == torch.uint8
    assert hashlib.sha256(frames.numpy().tobytes()).hexdigest()[:16] == "030c2104d58210a6"
    assert not torch.equal(frames, cannonballs(3, seed=1).frames)


def test_global_random_state_is_left_alone():
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    cannonballs(2)
    after = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert before == after


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_clips": 0}, "num_clips=0"),
        ({"num_objects": 0}, "num_objects=0"),
        ({"num_objects": ()}, "num_objects="),
        ({"num_objects": (1, -2)}, "num_objects=-2"),
        ({"num_frames": 0}, "num_frames=0"),
        ({"size": 5}, "size=5"),
        ({"size": (48, 5)}, "size=5"),
        ({"radius": -1}, "radius=-1"),
        ({"radius": 30}, "size=48"),
        ({"seed": -1}, "seed=-1"),
        ({"sampling_period": 0.0}, "sampling_period=0.0"),
        ({"sampling_period": float("nan")}, "sampling_period=.*nan"),
        ({"gravity": float("inf")}, "gravity=.*inf"),
        ({"force": (0.0, 0.0, 0.0, float("nan"))}, "force="),
        ({"angles": (60.0, 40.0)}, "angles="),
        ({"speeds": (-1.0, 1.0)}, "speeds="),
        ({"heights": (float("nan"), 1.0)}, "heights="),
        ({"position_noise": -0.1}, "position_noise=-0.1"),
        ({"position_noise": np.array(((1.0, 2.0), (2.0, 1.0)))}, "position_noise="),
        ({"state_noise": np.eye(2)}, "state_noise="),
        ({"num_frames": 1, "left": (0.0, 0.0), "position_noise": 0.0}, "wide and high"),
    ],
)
def test_bad_arguments_are_named_in_one_line(arguments, named):
    with pytest.raises(InputError, match=named) as caught:
        cannonballs(**arguments)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bounce_keeps_a_share_of_height_and_speed():
    world = World(floor=-1.0, bounce=0.8)
    before = np.array([[2.0, -1.25, 3.0, -4.0], [2.0, -0.75, 3.0, -4.0]])
    # .25 below the floor: .8 * .25 above it, and .8 of the speed upwards; the other one flies on.
    after = [[2.0, -1.0 + 0.8 * 0.25, 3.0, 0.8 * 4.0], [2.0, -0.75, 3.0, -4.0]]
    np.testing.assert_allclose(world.reflect(before), after, rtol=1e-15)
