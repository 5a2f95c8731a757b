"""Simulated worlds: laws of motion against loops and closed forms, corruptions pixel by pixel."""

import math

import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.data import Clips, OpticalTrap, World, cannonballs, load_clips, save_clips, worlds
from motes.data.worlds import corruptions
from motes.data.worlds.registry import draw_clips


def clean_states(world, clips):
    """Clean paths of present objects in world units, from pixels."""
    paths = clips.clean.double().numpy()
    paths = paths[~np.isnan(paths[:, :, 0, 0])]
    (low_x, low_y), (high_x, high_y) = world.box
    room = np.array((world.width, world.height)) - 1 - 2 * world.radius
    share = (paths - world.radius) / room
    return np.stack(
        (low_x + share[..., 0] * (high_x - low_x), high_y - share[..., 1] * (high_y - low_y)), -1
    )


# float32 pixels up to 48 carry 2e-6 px; a pixel is at most 0.06 units, and four errors add up.
SLACK = 4 * 2e-6 * 0.06


def test_drag_takes_the_stated_share_of_velocity_in_every_frame():
    world = worlds.physics_of("drag")
    paths = clean_states(world, worlds.make("drag", 50, seed=1))
    displacement = np.diff(paths, axis=1)
    # x_{t+1} - x_t = delta v_t + u_x and v_t = 0.97 v_{t-1} + u_v, so displacements obey a line.
    delta, push = world.sampling_period, np.array(world.step_force)
    expected = 0.97 * (displacement[:, :-1] - push[:2]) + delta * push[2:] + push[:2]
    np.testing.assert_allclose(displacement[:, 1:], expected, rtol=0, atol=2 * SLACK)


def test_wind_pushes_to_the_right_and_gravity_down():
    world = worlds.physics_of("wind")
    second = np.diff(clean_states(world, worlds.make("wind", 50, seed=1)), n=2, axis=1)
    # A constant acceleration a has second differences a delta^2.
    expected = np.broadcast_to(0.015**2 * np.array((6.0, -9.81)), second.shape)
    np.testing.assert_allclose(second, expected, rtol=0, atol=4 * SLACK)


def test_weightless_balls_fly_straight():
    clips = worlds.make("weightless", 50, seed=1)
    second = np.diff(clean_states(worlds.physics_of("weightless"), clips), n=2, axis=1)
    np.testing.assert_allclose(second, 0, rtol=0, atol=4 * SLACK)


def test_bounced_paths_equal_a_ball_by_ball_loop():
    world = World(angles=(-30.0, 30.0), heights=(-0.3, 0.7), floor=-0.5)
    paths = clean_states(world, worlds.make("bounce", 40, seed=2))
    bounces = 0
    for path in paths:
        x, y = path[0]
        vx = (path[1, 0] - path[0, 0]) / 0.015
        # The first step cannot meet the floor: starts are 0.2 above it and steps at most 0.03.
        vy = (path[1, 1] - path[0, 1] + 9.81 * 0.015**2 / 2) / 0.015
        for point in path[1:]:
            x, y, vy = x + 0.015 * vx, y + 0.015 * vy - 9.81 * 0.015**2 / 2, vy - 9.81 * 0.015
            if y < -0.5:
                y, vy = -0.5 + 0.8 * (-0.5 - y), -0.8 * vy
                bounces += 1
            # The velocity read off two float32 points errs by 2 SLACK / delta, 29 frames long.
            assert point == pytest.approx((x, y), abs=70 * SLACK)
    assert bounces > len(paths) / 3


def test_no_bouncing_ball_leaves_the_box():
    for seed in range(3):
        low, high = worlds.physics_of("bounce").box
        paths = clean_states(worlds.physics_of("bounce"), worlds.make("bounce", 200, seed=seed))
        assert (paths >= low - SLACK).all()
        assert (paths <= high + SLACK).all()


def test_a_world_with_drag_touches_its_box_and_stays_inside():
    world = World(drag=0.05, position_noise=0.0)
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for sign, starts in ((1, world.left), (-1, world.right)):
        for angle in np.radians(np.linspace(*world.angles, 101)):
            for speed in world.speeds:
                for x in starts:
                    for y in world.heights:
                        point = np.array((x, y))
                        v = speed * np.array((sign * np.cos(angle), np.sin(angle)))
                        for _ in range(world.num_frames):
                            low, high = np.minimum(low, point), np.maximum(high, point)
                            point = point + 0.015 * v + world.step_force[:2]
                            v = 0.95 * v + world.step_force[2:]
    np.testing.assert_allclose(world.box, (low, high), rtol=0, atol=1e-9)


@pytest.mark.statistical
def test_the_trap_is_stationary():
    trap = OpticalTrap(num_frames=200)
    clean = draw_clips(trap, 2000, 1, seed=4).clean[:, 0].double().numpy() - 23.5
    sd = (23.5 - 2) / 3.2
    # Relative error of a standard deviation of 2,000 draws is 1/sqrt(4000): five of them.
    for t in (0, 1, 50, 199):
        assert clean[:, t].std(axis=0) == pytest.approx([sd, sd], rel=5 / math.sqrt(4000))
    # The textbook's oscillator: x_{t+1} - 2 x_t + x_{t-1} = -0.01 x_{t-1} - 0.03 v_{t-1} + kick.
    x = clean[:, :, 0]
    kick = x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2] + 0.01 * x[:, :-2] + 0.03 * np.diff(x)[:, :-1]
    assert abs((kick * x[:, :-2]).mean()) < 5 * kick.std() * sd / math.sqrt(kick.size / 200)
    assert kick.var() == pytest.approx(
        trap.state_covariance[2, 2], rel=5 * math.sqrt(2 / kick.size)
    )


def test_a_long_clip_begins_like_a_short_one_of_the_same_law():
    short, long = OpticalTrap(num_frames=30), OpticalTrap(num_frames=3000)
    np.testing.assert_array_equal(short.transition, long.transition)
    np.testing.assert_array_equal(short.stationary_covariance, long.stationary_covariance)
    assert worlds.make("long", 1, 2).frames.shape == (1, 3000, 48, 48)


def test_an_occluder_hides_what_is_behind_it_and_nothing_else():
    plain, occluded = cannonballs(30, seed=3), worlds.make("bar", 30, seed=3)
    first, last = worlds.occluder_columns(48)
    assert (first, last) == (20, 27)
    assert not occluded.frames[..., 20:28].any()
    assert torch.equal(occluded.frames[..., :20], plain.frames[..., :20])
    assert torch.equal(occluded.frames[..., 28:], plain.frames[..., 28:])
    assert torch.equal(occluded.positions.nan_to_num(-1), plain.positions.nan_to_num(-1))
    for clip in range(30):
        for n in range(3):
            for t in range(30):
                x = plain.positions[clip, n, t, 0].item()
                shows = not math.isnan(x) and any(
                    not 20 <= round(x) + dx <= 27
                    for dx in range(-2, 3)
                    for dy in range(-2, 3)
                    if dx * dx + dy * dy <= 4
                )
                assert bool(occluded.visible[clip, n, t]) == shows


def test_dropped_frames_are_blank_and_as_many_as_requested():
    plain, dropped = cannonballs(40, seed=3), worlds.make("drops", 40, seed=3)
    assert dropped.observed.sum(1).tolist() == [15] * 40
    assert not dropped.frames[~dropped.observed].any()
    assert torch.equal(dropped.frames[dropped.observed], plain.frames[dropped.observed])
    # Every frame is as likely to be lost: 40 fair coins stray by 6 deviations once in 5e8.
    assert abs(dropped.observed.sum(0) - 20).max() < 6 * math.sqrt(10)


def opacity_by_hand(sprite, x, y, cx, cy):
    """How much of a pixel an object covers: an edge that fades over one pixel."""
    if sprite.shape == "square":
        inside = sprite.radius - max(abs(x - cx), abs(y - cy))
    else:
        distance = math.hypot(x - cx, y - cy)
        inside = sprite.radius - distance
        if sprite.shape == "ring":
            inside = min(inside, distance - sprite.radius / 2)
    return min(max(inside + 0.5, 0), 1)


def test_photographs_equal_the_naive_loop():
    positions = np.array([[[4.3, 5.1]], [[6.0, 5.5]], [[np.nan, np.nan]], [[11.2, 2.9]]])
    classes = np.array([0, 3, 1, 2])
    image, visible = corruptions.compose(positions, classes, 12, 15)
    background = corruptions.background_texture(12, 15)
    assert 0.1 <= background.min() < background.max() <= 0.5 + 1e-12
    for y in range(12):
        for x in range(15):
            value = background[y, x]
            for n in (0, 1, 3):
                sprite = corruptions.SPRITE_CLASSES[classes[n]]
                cover = opacity_by_hand(sprite, x, y, *positions[n, 0])
                value = (1 - cover) * value + cover * np.array(sprite.colour)
            assert image[0, y, x] == pytest.approx(value, abs=1e-12)
    assert visible[:, 0].tolist() == [True, True, False, True]


def test_a_small_object_behind_a_large_one_is_not_visible():
    same = np.array([[[8.0, 8.0]], [[8.0, 8.0]]])
    _, visible = corruptions.compose(same, np.array([1, 0]), 16, 16)
    assert visible[:, 0].tolist() == [False, True]
    # Through a ring one sees what is behind it.
    _, visible = corruptions.compose(same, np.array([1, 3]), 16, 16)
    assert visible[:, 0].tolist() == [True, True]


def test_pictures_are_256_levels_with_the_sensor_s_noise():
    clips = worlds.make("pictures", 3, 1, seed=5)
    levels = 255 * clips.frames
    assert clips.frames.dtype == torch.float32
    # A level k / 255 is a float32: times 255 it errs by less than 1e-4.
    assert (levels - levels.round()).abs().max() < 1e-4
    corner = (
        clips.frames[:, :, :3].double().numpy()
        - corruptions.background_texture(48, 48).mean(-1)[:3]
    )
    # Rounding to levels adds (1/255)^2 / 12, which is 0.1 %; no ball comes near the top rows here.
    assert corner.std() == pytest.approx(0.03, rel=5 / math.sqrt(2 * corner.size) + 2e-3)


def test_colour_and_grey_show_the_same_scene():
    grey, colour = worlds.make("pictures", 2, 2, seed=6), worlds.make("colour", 2, 2, seed=6)
    assert colour.frames.shape == (2, 30, 48, 48, 3)
    # Noise of 0.03 against 0.03 / sqrt(3): six deviations of the difference.
    gap = (colour.frames.mean(-1) - grey.frames).abs()
    assert gap.max() < 6 * 0.03 * math.sqrt(4 / 3)
    assert torch.equal(grey.visible, colour.visible)


@pytest.mark.parametrize("name", worlds.WORLDS)
def test_fewer_clips_of_any_world_are_the_first_of_more(name):
    arguments = {"num_objects": (1, 2), "num_frames": 6, "size": 24, "seed": 9}
    few, more = worlds.make(name, 2, **arguments), worlds.make(name, 4, **arguments)[:2]
    for part in ("frames", "num_objects", "positions", "clean", "observed", "visible"):
        one, other = getattr(few, part), getattr(more, part)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))


@pytest.mark.parametrize("name", ["bar", "drops", "colour"])
def test_any_world_comes_back_from_disk_as_it_was(tmp_path, name):
    clips = worlds.make(name, 2, 2, num_frames=6, size=24)
    save_clips(tmp_path / "clips.npz", clips)
    back = load_clips(tmp_path / "clips.npz")
    for part in ("frames", "observed", "visible"):
        one, other = getattr(clips, part), getattr(back, part)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_invalid_worlds_are_rejected_in_one_line():
    with pytest.raises(InputError, match=r"'moon'.*cannonballs, many"):
        worlds.make("moon")
    with pytest.raises(InputError, match=r"drag=1\.5"):
        World(drag=1.5)
    with pytest.raises(InputError, match="floor=0"):
        World(floor=0.0)
    with pytest.raises(InputError, match=r"share=0\.99"):
        corruptions.drop_frames(cannonballs(2), 0.99, seed=0)
    with pytest.raises(InputError, match="truth"):
        corruptions.photograph(Clips(torch.zeros(1, 2, 4, 4)), seed=0)
    with pytest.raises(InputError, match="truth"):
        corruptions.add_occluder(Clips(torch.zeros(1, 2, 4, 4)), 1, 2, radius=1)


def test_help_names_every_world():
    from motes.cli.data import data

    text = " ".join(data.__doc__.split())
    assert "cannonballs, " + ", ".join(list(worlds.WORLDS)[1:-1]) + " or long" in text
