import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motes
from motes.kalman.dynamics import LinearDynamics
from motes.models.model import Model
from motes.models.sprites.renderer import BACKGROUND_UNIT
from motes.models.sprites.search import Tracker
from motes.queries.fit import FitReference
from motes.queries.scatter import LIMITS, Scatter, ScatterSums, at_least, frame_scores
from sprite_scenes import disk_renderer


def disk_model(size: int = 16) -> Model:
    dynamics = LinearDynamics(num_components=1, generator=torch.Generator().manual_seed(0))
    return Model(dynamics, disk_renderer(size), Tracker(7), image_size=(size, size), max_objects=2)


def test_scores_of_drawn_frames_have_unit_variance() -> None:
    """400 frames: the standard error of a mean square is at most .1 for nearly normal scores."""
    model, generator = disk_model(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        # Soft, so that many pixels are uncertain and none is beyond the limits of probabilities.
        renderer: Any = model.renderer
        renderer.root_depth.mul_(0.8)
        renderer.root_background.fill_(math.sqrt(0.1) / BACKGROUND_UNIT)
    places = torch.rand(1, 2, 400, 2, generator=generator) - 0.5
    there = torch.ones(1, 2, 400, dtype=torch.bool)
    p = model.render(places, there[..., 0]).detach()
    drawn = (torch.rand(p.shape, generator=generator) < p).float()
    scores = frame_scores(model, drawn, places.double(), there)
    assert float(scores.square().mean()) == pytest.approx(1, abs=0.3)
    # Whole frames that err together: either all as likely as not, or none of it.
    together = (p > torch.rand(1, 400, 1, 1, generator=generator)).float()
    correlated = frame_scores(model, together, places.double(), there)
    assert float(correlated.square().mean()) > 2 * float(scores.square().mean())


def test_frames_without_detections_have_no_score() -> None:
    model, places = disk_model(), torch.zeros(1, 2, 3, 2).double()
    there = torch.tensor([[[True, False, True], [False, False, True]]])
    scores = frame_scores(model, torch.zeros(1, 3, 16, 16), places, there)
    assert scores.isfinite().tolist() == [[True, False, True]]


def test_a_widened_covariance_contains_both() -> None:
    draws = torch.randn(50, 2, 2, generator=torch.Generator().manual_seed(5)).double()
    covariances, floor = (
        draws @ draws.mT + 0.01 * torch.eye(2),
        torch.tensor([[1.0, 0.4], [0.4, 0.5]]),
    )
    wide = at_least(covariances, floor.double())
    for given in (covariances, floor.double()):
        assert float(torch.linalg.eigvalsh(wide - given).min()) > -1e-9
    # One that contains the floor stays as it is.
    large = floor.double() + covariances
    torch.testing.assert_close(at_least(large, floor.double()), large)


def test_only_frames_that_do_not_fit_widen() -> None:
    covariance, (low, high) = torch.eye(2).double(), LIMITS
    assert Scatter(1.0, covariance).floor is None
    assert Scatter(low, covariance).floor is None
    for score, share in (((low + high) / 2, 0.5), (high, 1.0), (10 * high, 1.0)):
        floor = Scatter(score, covariance).floor
        assert floor is not None
        torch.testing.assert_close(floor, share * covariance)


def test_scatter_is_that_of_leave_one_out_residuals() -> None:
    model = disk_model(24)
    clips = motes.cannonballs(3, 2, 8, 24, seed=2)
    answer = motes.infer(model, clips.frames, 2)
    found = ScatterSums.of(model, clips.frames.float(), answer)
    total, count = np.zeros((2, 2)), 0
    for b in range(3):
        for n in range(2):
            for t in answer.found[b, n].nonzero()[:, 0].tolist():
                others = answer.found[b, n].clone()
                others[t] = False
                track = answer.positions[b, n].double()[None, None]
                states = model.dynamics.smooth(track, others[None, None], torch.zeros_like(track))
                best = states.select(states.log_weights.argmax(-1))
                away = (track - model.dynamics.emit(best).mean)[0, 0, t].detach().numpy()
                total, count = total + np.outer(away, away), count + 1
    assert found.detections == count
    np.testing.assert_allclose(found.products.numpy(), total, rtol=1e-6)


def test_error_bars_are_at_least_the_scatter_of_a_run_that_does_not_fit(tmp_path: Path) -> None:
    model = motes.load("cannonballs-structured")
    clips = motes.cannonballs(2, 1, seed=4)
    before = motes.infer(model, clips.frames, 1)
    shipped = FitReference.load(model.folder) if model.folder is not None else None
    assert shipped is not None
    floor = torch.tensor([[0.09, 0.01], [0.01, 0.04]]).double()
    for score, wider in ((1.0, False), (50.0, True)):
        scatter = Scatter(score, floor)
        FitReference(shipped.mean, shipped.sd, shipped.num_frames, scatter).save(tmp_path)
        model.folder = tmp_path
        after = motes.infer(model, clips.frames, 1)
        torch.testing.assert_close(after.pixels, before.pixels, rtol=0, atol=0)
        assert bool((after.pixel_covariances != before.pixel_covariances).any()) == wider
        least = after.covariances.double() - (floor if wider else 0 * floor)
        assert float(torch.linalg.eigvalsh(least).min()) > -1e-6
