"""The law of motion with contacts as a `Dynamics`."""

import pytest
import torch

from motes.config import DynamicsConfig
from motes.kalman.contact_dynamics import ContactDynamics
from motes.kalman.dynamics import LinearDynamics
from motes.models.law import describe_law
from motes.models.model import find_law
from motes.models.protocols import Dynamics

NOISE, DISTANCE, WALL = 0.02, 1.0, -3.0


def dynamics() -> ContactDynamics:
    """A floor, and objects that bounce off one another."""
    made = ContactDynamics(
        num_walls=1,
        sampling_period=0.5,
        state_noise=0.01,
        position_noise=NOISE**2,
        initial_spread=3.0,
        generator=torch.Generator().manual_seed(0),
    )
    one = torch.ones((), dtype=torch.float64)
    made.set_law(
        {
            "wall_normals": torch.tensor([[0.0, 1.0]]).double(),
            "wall_offsets": WALL * one[None],
            "wall_restitution": 0.9 * one[None],
            "contact_distance": DISTANCE * one,
            "contact_restitution": 0.8 * one,
            "contact_errors": torch.tensor([0.05, 0.1], dtype=torch.float64),
            "event_variance": torch.tensor([1e-6, 1e-6]).double(),
            "mean_variance": NOISE**2 * one,
        },
        delta=0.5 * one,
        acceleration=torch.zeros(2).double(),
        state_sds=torch.full((4,), 1e-3).double(),
        position_variance=NOISE**2,
        first_state=(torch.zeros(4).double(), torch.tensor([9.0, 9.0, 1.0, 1.0]).double().diag()),
    )
    return made


def head_on(frames: int) -> torch.Tensor:
    """Return two objects that meet between frames 4 and 5, by hand, [1, 2, frames, 2]."""
    time = torch.arange(frames, dtype=torch.float64)
    meet = 4.5
    gap = torch.where(time < meet, DISTANCE + 0.4 * (meet - time), DISTANCE + 0.32 * (time - meet))
    x = torch.stack([-0.5 * gap, 0.5 * gap])
    return torch.stack([x, torch.zeros_like(x)], -1)[None]


def test_it_is_a_law_of_motion_with_its_own_configuration() -> None:
    made = dynamics()
    assert isinstance(made, Dynamics)
    assert not made.independent_objects
    config = DynamicsConfig(num_walls=1, contact_kinds=1)
    again = find_law("newton")(config, torch.Generator().manual_seed(1))
    again.load_state_dict(made.state_dict())
    assert isinstance(again, ContactDynamics)
    assert torch.equal(again.contact_distance, made.contact_distance)
    assert not any(part.requires_grad for part in made.flight.parameters())


def test_a_forecast_goes_through_a_contact() -> None:
    made, path = dynamics(), head_on(10)
    seen = (torch.arange(10) < 4).expand(1, 2, 10)
    zeros = torch.zeros_like(path)
    found = made.smooth(path, seen, zeros).select(torch.zeros(1, 2, dtype=torch.int64))
    # Noise of 0.02 in four frames: 0.02 of the velocity, over six frames and through a contact.
    assert torch.allclose(found.mean[..., :2], path, atol=0.1)
    draws = made.draw_tracks(path, seen, zeros, 64, seed=3)
    assert draws.shape == (64, 1, 2, 10, 4)
    sd = found.covariance[..., :2, :2].diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool(((draws[..., :2].mean(0) - found.mean[..., :2]).abs() < sd + 0.02).all())
    # Never nearer than the contact's distance, but for noise.
    apart = (draws[:, :, 0, :, :2] - draws[:, :, 1, :, :2]).norm(dim=-1)
    assert float(apart.min()) > DISTANCE - 0.1
    with torch.no_grad():
        straight = LinearDynamics.smooth(made, path, seen, zeros)
    assert float((straight.means[0, 0, 0, -1, :2] - path[0, 0, -1]).norm()) > 0.5


def test_contacts_make_their_paths_more_likely() -> None:
    made, path = dynamics(), head_on(10)
    present = torch.ones(1, 2, dtype=torch.bool)
    with_contacts = made.log_density(path, present)
    alone = made.search_log_density(path, present).detach()
    assert float(with_contacts - alone) > 10
    # Paths that no event explains keep the density of the law of the search, less a constant.
    odd = path.clone()
    odd[0, 0, 5:, 1] += 1.0
    low = made.log_density(odd, present) - made.search_log_density(odd, present).detach()
    assert -4.7 < float(low)


def test_absent_objects_have_no_effect() -> None:
    made, path = dynamics(), head_on(8)
    three = torch.cat([path, path[:, :1] + 0.1], 1)
    present = torch.tensor([[True, True, False]])
    expected = made.log_density(path, present[:, :2])
    assert torch.allclose(made.log_density(three, present), expected)
    seen = present[..., None].expand(1, 3, 8)
    zeros = torch.zeros_like(three)
    both = made.smooth(path, seen[:, :2], zeros[:, :2])
    assert torch.allclose(made.smooth(three, seen, zeros).means[:, :2], both.means)


def test_samples_stay_on_their_side_of_walls() -> None:
    made = dynamics()
    drawn = made.sample((6, 3), 12, torch.Generator().manual_seed(2))
    assert drawn.positions.shape == (6, 3, 12, 2)
    assert drawn.states.shape == (6, 3, 12, 4)
    assert float(drawn.states[..., 1].min()) > WALL - 0.05


def test_the_law_names_contacts() -> None:
    matrix = 3 * torch.eye(2, dtype=torch.float64)
    law = describe_law(dynamics(), matrix, torch.zeros(2, dtype=torch.float64))
    found = {term.name: (term.value, term.error) for term in law.terms}
    assert found["contact distance"] == pytest.approx((3 * DISTANCE, 3 * 0.05))
    assert found["restitution of contacts"] == pytest.approx((0.8, 0.1))
    assert len(law.walls) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_answers_as_the_cpu() -> None:
    made, positions = dynamics(), head_on(9)
    seen = torch.ones(1, 2, 9, dtype=torch.bool)
    seen[..., 3:6] = False
    present, variances = torch.ones(1, 2, dtype=torch.bool), torch.full((1, 2, 9, 2), NOISE**2)
    on_cpu = (
        made.log_density(positions, present),
        made.smooth(positions, seen, variances.double()).means,
        made.draw_tracks(positions, seen, variances.double(), 4, 0),
    )
    made = made.cuda()
    positions, seen, present, variances = (
        part.cuda() for part in (positions, seen, present, variances.double())
    )
    on_gpu = (
        made.log_density(positions, present),
        made.smooth(positions, seen, variances).means,
        made.draw_tracks(positions, seen, variances, 4, 0),
    )
    # The same draws in another order of additions: rounding grows a thousandfold at contacts.
    for one, other in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-9, atol=1e-9)
