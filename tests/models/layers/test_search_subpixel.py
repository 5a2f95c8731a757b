"""Subpixel refinement of posteriors that are narrower than a cell."""

import torch

from motes.models.layers.search import ZOOM, refine_subpixel
from motes.models.sprites.likelihood_maps import WindowPosterior, pixel_mahalanobis, window_offsets

PHASES, WINDOW = 8, 2


def gaussian_window(mean: torch.Tensor, covariance: torch.Tensor) -> WindowPosterior:
    """Return the cell posteriors of two objects whose exact posteriors are Gaussian."""
    centre = torch.tensor([[[7.0, 5.0]], [[3.0, 9.0]]], dtype=torch.float64)
    offsets = window_offsets(PHASES, WINDOW).double()
    away = centre[..., None, :] + offsets - mean[:, None, None]
    log_weights = (-0.5 * pixel_mahalanobis(away, covariance.expand(2, 1, 2, 2))).log_softmax(-1)
    return WindowPosterior(
        centre, log_weights, offsets, 1 / PHASES, torch.ones(2, 1, dtype=torch.float64)
    )


def test_subpixel_refinement_recovers_a_narrow_gaussian() -> None:
    mean = torch.tensor([[7.31, 4.12], [3.04, 9.9]], dtype=torch.float64)
    covariance = torch.tensor([[9e-4, 2e-4], [2e-4, 12e-4]], dtype=torch.float64)
    found = refine_subpixel(gaussian_window(mean, covariance), PHASES)
    place, cell = found.moments(), 1 / PHASES / ZOOM
    assert found.zoom is not None
    assert torch.equal(found.zoom, torch.full((2, 1), 1 / ZOOM, dtype=torch.float64))
    # Cubics through a parabola are the parabola. Sums over cells as wide as a standard deviation
    # are integrals up to exp(-2 pi^2) of it, 3e-9; each cell stands for the whole of itself.
    even = torch.eye(2, dtype=torch.float64) * cell**2 / 12
    torch.testing.assert_close(place.mean[:, 0], mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(place.covariance[0, 0], covariance + even, rtol=0, atol=1e-7)


def test_a_wide_posterior_is_not_refined() -> None:
    mean = torch.tensor([[7.31, 4.12], [3.04, 9.9]], dtype=torch.float64)
    window = gaussian_window(mean, 0.25 * torch.eye(2, dtype=torch.float64))
    found = refine_subpixel(window, PHASES)
    assert found.zoom is not None
    assert bool((found.zoom == 1).all())
    assert torch.equal(found.log_weights, window.log_weights)
    assert torch.equal(found.centre, window.centre)


def test_refinement_at_the_border_of_the_window_does_not_extrapolate() -> None:
    # Half of the Gaussian lies outside the window, where there are no smaller cells.
    mean = torch.tensor([[9.5, 5.0], [3.0, 6.5]], dtype=torch.float64)
    found = refine_subpixel(gaussian_window(mean, 9e-4 * torch.eye(2, dtype=torch.float64)), PHASES)
    place = found.moments()
    assert bool(((place.mean - found.centre).abs() < WINDOW + 0.5).all())
    assert bool(((place.mean[:, 0] - mean).norm(dim=-1) < 1 / PHASES).all())
