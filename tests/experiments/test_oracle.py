"""The oracle: its search against all orders, its law against the world's own loop."""

from itertools import permutations, product

import numpy as np
import pytest
import torch

from experiments.worlds import oracle
from experiments.worlds.oracle import Law, oracle_tracks, predict_with_oracle
from motes import kalman
from motes.data import OpticalTrap, World, worlds
from motes.data.worlds.registry import draw_clips
from motes.evaluation import metrics


def evidence(law, tracks):
    """Log density of tracks, NaN where nothing was seen, kinds of start summed out."""
    model, log_weights, _ = law.physics
    seen = ~tracks.isnan().any(-1)
    each = log_weights + kalman.log_likelihood(model, tracks[:, None], seen[:, None])
    return float(each.logsumexp(-1).sum())


def test_the_search_finds_the_likeliest_of_all_orders(generator):
    law = Law.of(worlds.physics_of("cannonballs"))
    # Points in a heap, so that the best of one frame is often not the best of all. Two objects in
    # five frames have 16 histories up to their names, as many as the search keeps.
    for points in (20 + 6 * torch.rand(20, 2, 5, 2, generator=generator)).double().round():
        best = max(
            evidence(law, torch.stack([points[list(o), t] for t, o in enumerate(orders)], 1))
            for orders in product([(0, 1)], *[list(permutations(range(2)))] * 4)
        )
        found = oracle_tracks(points[None], law)[0]
        # The same sum of Gaussians, in another order of adding.
        assert evidence(law, found) == pytest.approx(best, abs=1e-8)


def test_the_order_in_which_points_are_given_does_not_matter():
    law = Law.of(worlds.physics_of("bar"))
    clips = worlds.make("bar", 6, 3, seed=12)
    points = torch.where(clips.visible[..., None], clips.positions.round(), torch.nan)
    one, other = predict_with_oracle(points, law), predict_with_oracle(points.flip(1), law)
    order = metrics.best_order(other.path_pixels, one.path_pixels)
    assert torch.allclose(metrics.reorder(other.path_pixels, order), one.path_pixels)


def test_exchanges_make_the_oracle_s_tracks_likelier(monkeypatch):
    law, clips = Law.of(worlds.physics_of("long", 30)), worlds.make("long", 2, 3, 400, seed=5)
    points = clips.positions.round()
    monkeypatch.setattr(oracle, "BEAM", 1)  # the best of one frame is often not the best of all
    found = oracle_tracks(points, law)
    monkeypatch.setattr(oracle, "EXCHANGES", 0)
    before = oracle_tracks(points, law)
    gains = [
        evidence(law, one) - evidence(law, other) for one, other in zip(found, before, strict=True)
    ]
    assert min(gains) >= 0
    assert max(gains) > 1
    # Each point is still taken by one object.
    for tracks in (found, before):
        assert torch.equal(tracks.sum(1), points.double().sum(1))


@pytest.mark.parametrize("name", ["cannonballs", "wind", "drag", "bounce", "weightless"])
def test_the_oracle_s_law_is_the_world_s(name):
    world = worlds.physics_of(name)
    law = Law.of(world)
    clips = worlds.make(name, 5, 1, seed=13)
    path = clips.clean[:, 0].double()
    # The state of a clean path: its point, and the way to the next point less the push on it.
    velocity = path[:, 1] - path[:, 0] - law.physics.model.force[:2]
    states = kalman.StateEstimate(
        torch.cat([path[:, 0], velocity], 1), torch.zeros(5, 4, 4).double()
    )
    for t in range(30):
        # float32 pixels carry 2e-6 px; the velocity errs by twice that, 29 frames long.
        assert states.mean[:, :2].numpy() == pytest.approx(path[:, t].numpy(), abs=2e-4)
        states = law.predict(states)


@pytest.mark.statistical
@pytest.mark.parametrize("world", [World(), World(drag=0.05), OpticalTrap(num_frames=30)])
def test_true_physics_has_the_moments_of_the_clips(world):
    physics = Law.of(world).physics
    model = physics.model
    paths = draw_clips(world, 4000, 1, seed=14).clean[:, 0].double().numpy()
    last = 29
    A, u = model.transition.numpy(), model.force.numpy()
    means, covariances = model.initial_mean.numpy(), model.initial_covariance.numpy()
    for _ in range(last):
        means = means @ A.T + u
        covariances = A @ covariances @ A.T + model.state_noise.numpy()
    mean = means.mean(0)
    covariance = covariances.mean(0) + np.cov(means.T, bias=True).reshape(4, 4)
    sd = np.sqrt(covariance.diagonal()[:2])
    assert abs(paths[:, last].mean(0) - mean[:2]).max() < 5 * sd.max() / 4000**0.5
    assert paths[:, last].std(0) == pytest.approx(sd, rel=5 / 8000**0.5)


def test_error_bars_of_the_oracle_hold_behind_the_bar():
    law = Law.of(worlds.physics_of("bar"))
    clips = worlds.make("bar", 60, 1, seed=15)
    told = predict_with_oracle(
        torch.where(clips.visible[..., None], clips.positions.round(), torch.nan), law
    )
    gap = (clips.positions - told.pixels).double()
    distance = (gap * torch.linalg.solve(told.pixel_covariances.double(), gap)).sum(-1)
    hidden = ~clips.visible
    share = float((distance <= 4.605)[hidden].double().mean())
    # Errors of one clip go together: 60 clips as if 60 draws, five deviations.
    assert abs(share - 0.9) < 5 * (0.9 * 0.1 / 60) ** 0.5
    spread = told.pixel_covariances.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert spread[hidden].min() > spread[~hidden].max()


def test_objects_that_are_never_seen_stay_unknown():
    law = Law.of(worlds.physics_of("cannonballs"))
    points = worlds.make("cannonballs", 2, 2, seed=16).positions.round()
    points[:, 1] = torch.nan
    told = predict_with_oracle(points, law)
    assert bool(told.pixels.isfinite().all())
    assert int((told.pixel_covariances[..., 0, 0] < 0.1).sum()) == 2 * 30
