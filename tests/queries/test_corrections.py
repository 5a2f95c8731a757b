"""Corrections: a pin is exact conditioning, one pin mends a swap, wrong ones are refused."""

import numpy as np
import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.queries import tracks
from motes.queries.corrections import (
    Forbid,
    Observations,
    Pin,
    Swap,
    apply_corrections,
    as_corrections,
    as_mapping,
)
from tests import oracles
from tests.sprite_scenes import straight
from tests.tiny import tiny_frames, tiny_model, tiny_sprite_model

T = 7


def scene(generator, variance):
    """A model of two latent units per three pixels, and detections of two objects."""
    model = tiny_sprite_model()
    model.dynamics = straight()
    detected = torch.ones(1, 2, T, dtype=torch.bool)
    detected[0, 0, 3] = detected[0, 1, 5] = False
    start, step = torch.tensor([[0.0, 0.5], [3.0, -2.0]]), torch.tensor([[0.3, 0.1], [-0.2, 0.2]])
    line = start[:, None] + step[:, None] * torch.arange(T)[:, None]
    positions = (line + 0.02 * torch.randn(2, T, 2, generator=generator))[None].double()
    covariances = variance * (1 + torch.rand(1, 2, T, 2, generator=generator).double())
    return model, Observations(positions, covariances.diag_embed(), detected, detected)


def conditional(model, seen, pin, n):
    """Mean and covariance of the states of object n given a pin, by dense Gaussians in numpy.

    In detected frames a ~ N(q's mean, q's covariance), elsewhere it follows the law of motion; the
    pin is a measurement of one a_t. The states given all a are linear in a.
    """
    law = oracles.one_model(model.dynamics.components(), (1,), (0,))
    detected = seen.detected[0, n].numpy()
    means, spread = seen.positions[0, n].numpy(), seen.covariances[0, n].numpy()
    full, gain = oracles.joint(law, T), oracles.gains(law, detected)
    rows = oracles.observed_rows(detected, 2)
    V = np.zeros((2 * T, 2 * T))
    for t in np.flatnonzero(detected):
        V[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] = spread[t]
    # Joint of z = (h, a) under q: a Gaussian that is a linear image of the detected positions,
    # plus what the law leaves open given them.
    z_mean = np.concatenate([full.state_mean, full.position_mean])
    z_cov = np.block([[full.state_cov, full.cross_cov], [full.cross_cov.T, full.position_cov]])
    D = len(full.state_mean)
    to_a = z_cov[:, D:][:, rows]
    K = np.linalg.solve(full.position_cov[np.ix_(rows, rows)], to_a.T).T
    mean = z_mean + K @ (means.reshape(-1) - full.position_mean)[rows]
    cov = z_cov - K @ to_a.T + K @ V[np.ix_(rows, rows)] @ K.T
    inverse = np.linalg.inv(model.pixel_matrix.double().numpy())
    place = inverse @ (np.array([pin.x, pin.y]) - model.pixel_offset.double().numpy())
    noise = pin.sd**2 * inverse @ inverse.T
    H = np.zeros((2, D + 2 * T))
    H[:, D + 2 * pin.frame : D + 2 * pin.frame + 2] = np.eye(2)
    update = cov @ H.T @ np.linalg.inv(H @ cov @ H.T + noise)
    mean, cov = mean + update @ (place - H @ mean), cov - update @ H @ cov
    assert gain.shape == (D, 2 * T)
    size = D // T
    blocks = [cov[t * size : (t + 1) * size, t * size : (t + 1) * size] for t in range(T)]
    return mean[:D].reshape(T, size), np.stack(blocks)


@pytest.mark.parametrize(("frame", "variance"), [(3, 0.0), (2, 0.05)])
def test_a_pin_is_the_conditional_of_the_dense_gaussian(generator, frame, variance):
    """Without and with a detection in the pinned frame."""
    model, seen = scene(generator, variance)
    at = model.to_pixels(seen.positions[0, 0, frame] + 0.1)
    pin = Pin(object=0, frame=frame, x=float(at[0]), y=float(at[1]), sd=1.0)
    corrected = apply_corrections(model, seen, [pin], torch.tensor([2]))
    states = tracks.smooth_tracks(model, corrected).select(torch.zeros(1, 2, dtype=torch.int64))
    mean, covariance = conditional(model, seen, pin, 0)
    assert np.allclose(states.mean[0, 0].detach(), mean, atol=1e-9)
    assert np.allclose(states.covariance[0, 0].detach(), covariance, atol=1e-9)
    other = tracks.smooth_tracks(model, seen).select(torch.zeros(1, 2, dtype=torch.int64))
    assert torch.equal(states.mean[0, 1], other.mean[0, 1])  # objects are independent


@pytest.fixture(scope="module")
def throws():
    """Three balls that the shipped model tracks, and the answer about them."""
    model = motes.load("cannonballs-structured")
    clips = motes.cannonballs(num_clips=2, num_objects=(3,), num_frames=30, size=48, seed=11)
    frames = clips.frames.float()
    return model, frames, motes.infer(model, frames, 3)


def test_a_swap_made_on_purpose_is_mended_by_one_pin(throws):
    model, frames, told = throws
    swap = Swap(object=0, other=2, frame=14, clip=1)
    wrong = motes.infer(model, frames, 3, corrections=[swap])
    assert torch.equal(wrong.pixels[1, 0, 14:], told.pixels[1, 2, 14:])
    x, y = told.pixels[1, 0, 20].tolist()
    mended = motes.infer(model, frames, 3, corrections=[swap, Pin(0, 20, x, y, clip=1)])
    # Every detection is back; the pin only sharpens its own frame.
    others = torch.arange(30) != 20
    assert torch.equal(mended.pixels[:, :, others], told.pixels[:, :, others])
    assert float((mended.path_pixels - told.path_pixels).norm(dim=-1).max()) < 0.2
    before, after = (torch.linalg.det(a.pixel_covariances[1, 0, 20]) for a in (told, mended))
    assert after < before
    assert torch.equal(mended.pixels[0], told.pixels[0])


def test_a_pin_mends_a_swap_of_the_only_two_objects(throws):
    model, frames, _ = throws
    told = motes.infer(model, frames[:1], 2)
    swap = Swap(object=0, other=1, frame=14)
    x, y = told.pixels[0, 0, 20].tolist()
    mended = motes.infer(model, frames[:1], 2, corrections=[swap, Pin(0, 20, x, y)])
    others = torch.arange(30) != 20
    assert torch.equal(mended.pixels[:, :, others], told.pixels[:, :, others])


@pytest.mark.parametrize("frame", [3, 15, 28])
@pytest.mark.parametrize("ball", [0, 1, 2])
def test_a_pin_far_from_the_track_changes_what_is_followed(throws, ball, frame):
    """Of three balls one is looked for; the pin decides which one, in all frames."""
    model, frames, told = throws
    x, y = told.pixels[1, ball, frame].tolist()
    pinned = motes.infer(model, frames[1:], 1, corrections=[Pin(0, frame, x, y)])
    inside = told.found[1, ball]
    away = (pinned.pixels[0, 0] - told.pixels[1, ball]).norm(dim=-1)
    # Other balls that are no longer explained pull a track by less than a pixel where they touch.
    assert float(away[inside].max()) < 1.5
    assert float(away[inside].median()) < 0.1
    assert pinned.found[0, 0, inside].float().mean() > 0.9


def test_a_pin_releases_its_object_alone(throws):
    """Of three balls two are followed; a pin sends one of these to the third."""
    model, frames, told = throws
    two = motes.infer(model, frames[:1], 2)
    near = (two.pixels[0, :, None, 15] - told.pixels[0, None, :, 15]).norm(dim=-1).argmin(1)
    left = ({0, 1, 2} - set(near.tolist())).pop()
    x, y = told.pixels[0, left, 15].tolist()
    pinned = motes.infer(model, frames[:1], 2, corrections=[Pin(1, 15, x, y)])
    for n, ball in ((0, near[0]), (1, left)):
        inside = told.found[0, ball]
        away = (pinned.pixels[0, n] - told.pixels[0, ball]).norm(dim=-1)[inside]
        assert float(away.median()) < 0.1
        assert float(away.max()) < 1.5


def test_a_pin_where_nothing_is_keeps_the_track(throws):
    """The pin moves the object in its own frame; the frames speak against anything else."""
    model, frames, told = throws
    one = motes.infer(model, frames[:1], 1)
    corners = torch.tensor([[2.0, 2.0], [45.0, 2.0], [2.0, 45.0], [45.0, 45.0]])
    empty = (corners[:, None, None] - told.pixels[0]).norm(dim=-1).amin((1, 2)).argmax()
    x, y = corners[empty].tolist()
    pinned = motes.infer(model, frames[:1], 1, corrections=[Pin(0, 15, x, y, sd=2.0)])
    others = torch.arange(30) != 15
    assert torch.allclose(pinned.pixels[0, 0, others], one.pixels[0, 0, others], atol=0.01)


def test_forbidden_detections_stay_forbidden_after_a_further_search(throws):
    model, frames, told = throws
    x, y = told.pixels[0, 1, 15].tolist()
    forbid = Forbid(20, end=23, object=0)
    answer = motes.infer(model, frames[:1], 1, corrections=[forbid, Pin(0, 15, x, y)])
    assert not answer.found[0, 0, 20:23].any()
    assert answer.found[0, 0, 15]


def test_a_pin_that_agrees_moves_nothing_else(throws):
    model, frames, told = throws
    x, y = told.pixels[0, 1, 8].tolist()
    pinned = motes.infer(model, frames, 3, corrections=[Pin(1, 8, x, y)])
    assert torch.allclose(pinned.pixels, told.pixels, atol=1e-4)


def test_a_pin_holds_in_an_unobserved_frame(throws):
    model, frames, _ = throws
    observed = torch.ones(30, dtype=torch.bool)
    observed[10:20] = False
    told = motes.interpolate(model, frames, observed, 3)
    x, y = (told.pixels[0, 0, 15] + torch.tensor([1.5, -1.0])).tolist()
    pinned = motes.interpolate(model, frames, observed, 3, corrections=[Pin(0, 15, x, y, sd=0.01)])
    assert torch.allclose(pinned.pixels[0, 0, 15], torch.tensor([x, y]), atol=0.02)
    assert pinned.pixel_covariances[0, 0, 14].trace() < told.pixel_covariances[0, 0, 14].trace()
    assert pinned.found[0, 0, 15]


def test_forbidden_detections_are_predicted_instead(throws):
    model, frames, told = throws
    answer = motes.infer(model, frames, 3, corrections=[Forbid(12, end=15, object=1)])
    assert not answer.found[0, 1, 12:15].any()
    assert torch.equal(answer.found[0, 0], told.found[0, 0])
    assert answer.pixel_covariances[0, 1, 13].trace() > told.pixel_covariances[0, 1, 13].trace()


def test_pixels_of_a_forbidden_place_do_not_matter(throws):
    model, frames, told = throws
    blot = frames[:1].clone()
    blot[0, 10:20, 40:44, 4:8] = 1
    forbid = Forbid(10, end=20, x=5.5, y=41.5, radius=4.0)
    inside = (told.pixels[0] - torch.tensor([5.5, 41.5])).norm(dim=-1)[:, 10:20].min()
    assert inside > 8  # no ball is near the blot
    answer = motes.infer(model, blot, 3, corrections=[forbid])
    assert torch.equal(answer.pixels, motes.infer(model, frames[:1], 3).pixels)


def test_swaps_exchange_tails_for_every_family():
    model, frames = tiny_model(), tiny_frames(2, 5)
    told = motes.infer(model, frames, 3)
    answer = motes.infer(model, frames, 3, corrections=[{"kind": "swap", "object": 0, "other": 1,
                                                         "frame": 2, "clip": 1}])  # fmt: skip
    assert torch.equal(answer.pixels[1, 0, 2:], told.pixels[1, 1, 2:])
    assert torch.equal(answer.pixels[1, 1, :2], told.pixels[1, 1, :2])
    assert torch.equal(answer.pixels[0], told.pixels[0])


def test_corrections_survive_as_mappings():
    listed = [
        Pin(1, 2, 3.0, 4.5),
        Forbid(3, end=9, object=0),
        Forbid(1, x=2.0, y=3.0),
        Swap(0, 1, 5),
    ]
    assert as_corrections([as_mapping(entry) for entry in listed]) == listed
    texts = [{name: str(value) for name, value in as_mapping(entry).items()} for entry in listed]
    assert as_corrections(texts) == listed


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (3, "correction 0 is a int; give a Pin, Forbid, Swap or dict"),
        ({"kind": "move"}, "correction 0 has kind 'move'; give pin, forbid, swap"),
        ({"kind": "pin", "frame": 1}, "correction 0, a pin: .*missing"),
        ({"kind": "pin", "frame": 1, "colour": 2}, "a pin has no colour"),
        ({"kind": "swap", "object": 0, "other": 1.5, "frame": 1}, "1.5 is not a whole number"),
        (Pin(0, 1, 2.0, 3.0, clip=2), "correction 0 is in clip 2; the clips are 0 to 1"),
        (Pin(3, 1, 2.0, 3.0), "names object 3; the objects of clip 0 are 0 to 2"),
        (Pin(0, 5, 2.0, 3.0), "is in frames 5:6; the frames are 0 to 4"),
        (Pin(0, 1, float("nan"), 3.0), "is at nan, 3.0 with sd 0.5; give numbers, sd above 0"),
        (Forbid(2, end=2, object=0), "is in frames 2:2; the frames are 0 to 4"),
        (Forbid(2), "forbids nothing; give an object, or x and y"),
        (Swap(1, 1, 3), "swaps object 1 with itself; give two"),
    ],
)
def test_wrong_corrections_are_refused_in_one_line(correction, message):
    with pytest.raises(InputError, match=message):
        motes.infer(tiny_model(), tiny_frames(2, 5), 3, corrections=[correction])
