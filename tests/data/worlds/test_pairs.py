"""Worlds with forces between objects."""

import numpy as np
import pytest

from motes.data.worlds.pairs import PairWorld, paig_spring, spring_pair, stove_gravity

WORLDS = {"pair": spring_pair(), "paig": paig_spring(), "stove": stove_gravity()}


def potential(name: str, x: np.ndarray) -> np.ndarray:
    """Return the potential energy per mass, by hand."""
    i, j = np.triu_indices(x.shape[1], 1)
    r = np.linalg.norm(x[:, i] - x[:, j], axis=-1)
    if name == "pair":
        return 0.5 * 0.02 * ((r - 12) ** 2).sum(1) + 0.002 * ((x - 16) ** 2).sum((1, 2))
    assert name == "paig"
    return 0.5 * 0.36 * ((r - 12) ** 2).sum(1)


@pytest.mark.parametrize("name", ["pair", "paig"])
def test_worlds_with_forces_keep_energy(name: str) -> None:
    states = WORLDS[name].simulate(20, 20, seed=0)
    x, v = states[..., :2], states[..., 2:]
    energy = np.stack(
        [0.5 * (v[:, :, t] ** 2).sum((1, 2)) + potential(name, x[:, :, t]) for t in range(20)], 1
    )
    # Euler's symplectic steps keep energy up to their size: a tenth of a frame.
    assert np.abs(energy / energy[:, :1] - 1).max() < 0.1


def test_three_bodies_keep_their_centre_and_pull_by_the_inverse_square() -> None:
    world = WORLDS["stove"]
    states = world.simulate(12, 30, seed=0)
    np.testing.assert_allclose(states[..., :2].mean(1), 15.0, atol=0.2)
    x = np.array([[[15.0, 15.0], [15.0, 23.0], [29.0, 15.0]]])
    # Of the first body in the middle: 0.5 * 4 / r^2 towards each of the others.
    np.testing.assert_allclose(world.accelerate(x)[0, 0], [2 / 14**2, 2 / 8**2], rtol=1e-4)


@pytest.mark.parametrize("name", list(WORLDS))
def test_clips_repeat_and_show_objects_where_they_are(name: str) -> None:
    world: PairWorld = WORLDS[name]
    clips, again = world.make(3, 6, seed=4), world.make(3, 6, seed=4)
    assert clips.positions is not None
    assert bool((clips.video == again.video).all())
    frames = clips.video[0, 2].double().numpy()
    axis = np.arange(world.size)
    for n in range(clips.positions.shape[1]):
        mass = frames[..., n]
        found = np.array([(mass.sum(0) * axis).sum(), (mass.sum(1) * axis).sum()]) / mass.sum()
        np.testing.assert_allclose(found, clips.positions[0, n, 2].numpy(), atol=0.05)


def test_the_oracle_of_a_world_is_its_simulator() -> None:
    world = WORLDS["paig"]
    states = world.simulate(4, 12, seed=1)
    later = world.forecast(states[:, :, 3], 8)
    np.testing.assert_allclose(later, states[:, :, 4:], atol=1e-9)
