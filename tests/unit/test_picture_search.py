"""The search in pictures: looks against naive loops, objects that pass before one another."""

import itertools

import numpy as np
import pytest
import torch

from motes.lgssm import Dynamics
from motes.structured.picture import Looks
from motes.structured.picture_search import (
    Cast,
    Kinds,
    Photos,
    around,
    detect,
    likelier,
    look,
    revisit,
)
from motes.structured.picture_tracker import track_pictures
from motes.structured.places import Place
from motes.structured.search import Sightings
from motes.structured.windows import Window
from photos import hollow_pictures, naive_log_density, naive_mean, odd_pictures

SIZE = (9, 11)


def without_gradient(kinds: Kinds) -> Kinds:
    return Kinds(*(part.detach() for part in kinds[:-1]), kinds.phases)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], None])
def test_looking_at_a_picture_equals_the_naive_loop(order, generator):
    renderer, n, window = odd_pictures(SIZE), 1, 1
    kinds = without_gradient(Kinds.fine(renderer))
    frame = torch.rand(1, 99, 2, generator=generator, dtype=torch.float64)
    centres = torch.tensor([[[4.3, 4.1], [5.2, 3.4], [10.4, 5.6]]], dtype=torch.float64)
    kind, present = torch.tensor([[0, 2, 1]]), torch.ones(1, 3, dtype=torch.bool)
    prior = Place(centres[:, n] + 0.7, torch.tensor([[[1.5, 0.4], [0.4, 0.8]]]).double())
    near = Window.around(centres[:, n : n + 1], window + renderer.reach, SIZE)
    held = None if order is None else torch.tensor([order])
    rest = around(kinds, near, Cast(centres, kind, present), n, held)
    found = look(kinds, frame, near, rest, prior)
    # Nobody knows the order: the object is behind all others.
    painted = [1, 0, 2] if order is None else order
    others = [m for m in painted if m != n]
    picture = frame.numpy().reshape(*SIZE, 2)
    empty = naive_log_density(
        renderer, picture, naive_mean(renderer, centres[0].numpy(), [0, 2, 1], others)
    )
    places = (near.centre[0] + found.offsets).numpy()
    away = places - prior.mean[0].numpy()
    distance = np.einsum("pi,ij,pj->p", away, np.linalg.inv(prior.covariance[0].numpy()), away)
    before = np.exp(-0.5 * distance) / np.exp(-0.5 * distance).sum()
    for k, p in itertools.product(range(3), range(0, len(places), 7)):
        moved = centres[0].numpy().copy()
        moved[n] = places[p]
        mean = naive_mean(renderer, moved, [0, k, 1], painted)
        gain = naive_log_density(renderer, picture, mean) - empty
        np.testing.assert_allclose(found.joint[0, k, p], gain + np.log(before[p]), rtol=1e-8)


def test_a_coarse_look_is_the_mean_over_the_places_in_a_pixel(generator):
    renderer = odd_pictures(SIZE)
    fine, coarse = (without_gradient(make(renderer)) for make in (Kinds.fine, Kinds.coarse))
    frame = torch.rand(1, 99, 2, generator=generator, dtype=torch.float64)
    prior = Place(torch.full((1, 2), 5.0).double(), 1e9 * torch.eye(2)[None].double())
    near = Window.around(prior.mean[:, None], 1 + renderer.reach, SIZE)
    nobody = Cast(prior.mean[:, None], torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0)
    one, many = (
        look(kinds, frame, near, around(kinds, near, nobody, 0, None), prior)
        for kinds in (coarse, fine)
    )
    scores = (many.joint - many.before[:, None]).unflatten(-1, (fine.phases**2, 9)).mean(-2)
    torch.testing.assert_close(one.joint - one.before[:, None], scores, rtol=1e-9, atol=1e-9)


def test_objects_are_detected_with_their_kinds_from_left_to_right(generator):
    renderer = hollow_pictures(32)
    positions = renderer.from_pixels(torch.tensor([[[[22.0, 9.0]], [[7.0, 20.0]]]]))
    looks = Looks(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), looks).sigmoid().detach()
    noisy = drawn + 0.03 * torch.randn(drawn.shape, generator=generator)
    places, kind = detect(
        without_gradient(Kinds.coarse(renderer)), noisy.view(1, -1, 1), torch.tensor([2]), 3
    )
    assert places[0, :2].tolist() == [[7.0, 20.0], [22.0, 9.0]]
    assert kind[0, :2].tolist() == [1, 0]


def crossing(order: list[int], generator: torch.Generator):
    """A disk and a ring that cross: renderer, frames, positions and looks."""
    renderer, time = hollow_pictures(32), torch.arange(15)
    left = torch.stack([4 + 1.7 * time, 12.3 + 0.3 * time], -1)
    right = torch.stack([28 - 1.6 * time, 17.1 - 0.2 * time], -1)
    positions = renderer.from_pixels(torch.stack([left, right])[None])
    looks = Looks(torch.tensor([[0, 1]]), torch.tensor([order]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), looks).sigmoid().detach()
    return renderer, drawn + 0.03 * torch.randn(drawn.shape, generator=generator), positions, looks


def scene_of(renderer, frames, generator: torch.Generator) -> Photos:
    dynamics = Dynamics(
        position_noise=0.05, initial_spread=8.0, state_noise=1e-2, generator=generator
    )
    observed = torch.ones(frames.shape[:2], dtype=torch.bool)
    present = torch.ones(1, 2, dtype=torch.bool)
    return Photos(frames[..., None], observed, torch.tensor([2]), present, dynamics, renderer)


@torch.no_grad()
def test_a_sighting_that_the_other_frames_exclude_is_none(generator):
    renderer, frames, positions, looks = crossing([0, 1], generator)
    scene, kinds = scene_of(renderer, frames, generator), Kinds.coarse(renderer)
    truth = renderer.to_pixels(positions)
    sharp = 0.25 * torch.eye(2).expand(*truth.shape, 2)
    elsewhere = truth.clone()
    elsewhere[0, 0, 3] += 3.0  # six standard deviations from where it is seen
    guess, expected = Place(truth, sharp), Place(elsewhere, sharp)
    _, found, _ = revisit(scene, kinds, guess, looks, expected, 7)
    assert not found.seen[0, 0, 3]
    assert torch.equal(found.place.mean[0, 0, 3], elsewhere[0, 0, 3])
    others = torch.arange(15) != 3
    assert found.seen[0, 0, others].float().mean() > 0.9


@torch.no_grad()
def test_of_each_frame_the_likelier_sightings_are_kept(generator):
    renderer, frames, positions, looks = crossing([0, 1], generator)
    scene, truth = scene_of(renderer, frames, generator), renderer.to_pixels(positions)
    expected = Place(truth, torch.eye(2).expand(*truth.shape, 2))
    seen = torch.ones(1, 2, 15, dtype=torch.bool)
    exchanged = truth.clone()
    exchanged[:, :, :5] = truth.flip(1)[:, :, :5]
    moved = truth.clone()
    moved[:, :, 5:] += 1.0
    one, other = (Sightings(Place(mean, expected.covariance), seen) for mean in (exchanged, moved))
    assert torch.equal(likelier(scene, one, other, looks, expected).place.mean, truth)
    assert torch.equal(likelier(scene, other, one, looks, expected).place.mean, truth)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_two_objects_that_cross_keep_their_kind_and_who_is_in_front_is_found(order, generator):
    renderer, frames, positions, _ = crossing(order, generator)
    dynamics = scene_of(renderer, frames, generator).dynamics
    q = track_pictures(frames, torch.tensor([2]), dynamics, renderer, None, 1, window=7)
    assert q.looks is not None
    assert q.looks.kind.tolist() == [[0, 1]]
    assert q.looks.order.tolist() == [order]
    seen = renderer.to_pixels(q.means)[q.seen]
    gap = (seen - renderer.to_pixels(positions)[q.seen]).norm(dim=-1)
    assert q.seen.float().mean() > 0.9
    # A cell of an eighth of a pixel, whose centre stands for it, and noise of 0.03 for a contrast
    # of 0.5 over the twenty pixels of an edge: well below half a pixel.
    assert gap.max() < 0.5
