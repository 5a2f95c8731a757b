"""The law of motion in pixels and in units."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from motes.kalman.contact_dynamics import ContactDynamics
from motes.kalman.event_dynamics import EventDynamics
from motes.models.checkpoint import restore_weights
from motes.models.law import Law, describe_law
from motes.models.model import build
from motes.training.presets import find
from motes.video.units import Units

MATRIX = torch.tensor([[3.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
MIDDLE = torch.tensor([20.0, 15.0], dtype=torch.float64)
TILTED = Units.by_plane(
    [[0.0, 0.0], [40.0, 1.0], [39.0, 30.0], [1.0, 28.0]],
    [[0.0, 3.0], [4.0, 3.0], [4.0, 0.0], [0.0, 0.0]],
    "m",
)


def dynamics() -> EventDynamics:
    """A force, and a floor below the middle, tilted by three degrees."""
    made = EventDynamics(
        num_walls=1, sampling_period=0.5, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        made.force[2:] = torch.tensor([0.05, 0.2])
        made.force_error.fill_(0.01)
        tilt = math.radians(3)
        made.wall_normals[0] = torch.tensor([math.sin(tilt), -math.cos(tilt)])
        made.wall_offsets[0] = -4.0
        made.wall_errors[0] = torch.tensor([0.02, 0.05, 0.1])
    return made


def terms(law: Law) -> dict[str, tuple[float, float | None]]:
    return {term.name: (term.value, term.error) for term in law.terms}


def test_the_law_in_units_is_that_in_pixels_scaled() -> None:
    plain = terms(describe_law(dynamics(), MATRIX, MIDDLE))
    scaled = describe_law(dynamics(), MATRIX, MIDDLE, Units.by_scale(0.5, "mm"), 20.0)
    factors = {"acceleration": 0.5 * 20**2, "floor": 0.5, "observation noise": 0.5}
    for name, (value, error) in terms(scaled).items():
        factor = factors.get(name, 1.0)
        assert value == pytest.approx(factor * plain[name][0], rel=1e-9)
        before = plain[name][1]
        assert error == (None if before is None else pytest.approx(factor * before, rel=1e-6))
    assert {term.unit for term in scaled.terms} == {"mm/s^2", "mm", ""}


def test_units_of_a_video_hold_for_its_clips() -> None:
    scale, offset = np.array([4.0, 5.0]), np.array([7.0, -3.0])
    pixels = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double() * 5
    moved = pixels * torch.from_numpy(scale) + torch.from_numpy(offset)
    found = TILTED.of_clips(scale, offset).points(pixels)
    torch.testing.assert_close(found, TILTED.points(moved))


def test_walls_of_a_plane_are_their_images() -> None:
    law = describe_law(dynamics(), MATRIX, MIDDLE, TILTED, 20.0)
    (wall,) = law.walls  # in pixels
    normal, along = np.array(wall.normal), np.array([-wall.normal[1], wall.normal[0]])
    ends = np.stack([wall.offset * normal + step * along for step in (-10.0, 10.0)])
    (x0, y0), (x1, y1) = TILTED.points(torch.from_numpy(ends)).tolist()
    x, y = TILTED.points(MIDDLE).tolist()
    expected = y0 + (x - x0) * (y1 - y0) / (x1 - x0)  # of the straight line through two images
    place = next(term for term in law.terms if term.name == "floor")
    assert place.value == pytest.approx(expected, rel=1e-9)
    assert place.unit == "m"
    assert place.value < y  # below the middle, in a plane whose y axis points up
    # The normal points up, to the side of the middle; a line of slope dy/dx has it at 90 degrees.
    sign = 1 if x1 > x0 else -1
    degrees = math.degrees(math.atan2(sign * (x1 - x0), -sign * (y1 - y0)))
    assert f"normal {degrees:.1f} +-" in place.detail


def test_error_bars_of_the_law_follow_the_size_of_a_pixel() -> None:
    law = terms(describe_law(dynamics(), MATRIX, MIDDLE, TILTED))
    # Moving the floor by a pixel where the middle is moves it by the derivative there, in y alone.
    here = MIDDLE + torch.tensor([0.0, 12.0], dtype=torch.float64)  # near the floor
    height = abs(float(TILTED.jacobians(here)[1, 1]))
    _, error = law["floor"]
    assert error == pytest.approx(3 * 0.05 * height, rel=0.05)  # 3 px to a latent unit; the tilt
    pull = TILTED.jacobians(MIDDLE) @ MATRIX @ (0.5 * torch.tensor([0.05, 0.2]).double())
    assert law["acceleration"][0] == pytest.approx(float(pull.norm()), rel=1e-6)


def test_a_law_forks_if_it_has_walls() -> None:
    assert dynamics().forks
    assert not EventDynamics(num_walls=0, generator=torch.Generator()).forks


def test_a_law_with_contacts_forks_without_walls() -> None:
    assert ContactDynamics(num_walls=0, generator=torch.Generator()).forks


def test_models_with_walls_are_stored_and_loaded() -> None:
    config = find("sprites-video")
    config = dataclasses.replace(config, dynamics=dataclasses.replace(config.dynamics, num_walls=1))
    model, other = build(config), build(config)
    assert isinstance(model.dynamics, EventDynamics)
    model.dynamics.in_time.fill_(1.0)
    model.dynamics.mean_variance.fill_(0.5)
    stored = model.state_dict()
    restore_weights(other, dict(stored), Path("new"))
    assert isinstance(other.dynamics, EventDynamics)
    assert other.dynamics.law().in_time
    # A file of version 0.5 has neither.
    old = {name: part for name, part in stored.items() if not name.endswith(("_time", "_variance"))}
    restored = build(config)
    restore_weights(restored, old, Path("old"))
    assert isinstance(restored.dynamics, EventDynamics)
    assert not restored.dynamics.law().in_time
    noise = restored.dynamics.path_law(torch.ones(1, 1, 2, 2))[0].model.position_noise
    assert torch.equal(noise, restored.dynamics.law().model.position_noise)
