"""Pictures: what is painted, and how likely a frame is."""

import itertools

import numpy as np
import pytest
import torch

from layer_scenes import naive_log_density, naive_mean, odd_layers
from motes.models.layers.renderer import MIN_SCALE, Appearance
from motes.models.sprites.likelihood_maps import FrameBatch

SIZE = (9, 11)
PRESENT = torch.tensor([[True, True, True], [True, False, True]])
APPEARANCE = Appearance(torch.tensor([[0, 2, 1], [1, 0, 0]]), torch.tensor([[2, 0, 1], [0, 1, 2]]))


def scattered(generator: torch.Generator, num_frames: int = 3) -> torch.Tensor:
    """Latent positions of objects that overlap, stand at the border and beside the frame."""
    return 1.2 * torch.randn(2, 3, num_frames, 2, generator=generator, dtype=torch.float64)


def means(renderer, positions):
    """The naive pictures of all clips and frames."""
    pixels = renderer.to_pixels(positions).numpy()
    pictures = np.zeros((*positions.shape[:1], positions.shape[2], *SIZE, renderer.channels))
    for clip, frame in np.ndindex(pictures.shape[:2]):
        order = [n for n in APPEARANCE.order[clip].tolist() if PRESENT[clip, n]]
        classes = APPEARANCE.sprite_class[clip].tolist()
        pictures[clip, frame] = naive_mean(renderer, pixels[clip, :, frame], classes, order)
    return pictures


@pytest.mark.parametrize("channels", [1, 2])
def test_layered_renderer_equals_the_naive_loop(channels, generator):
    renderer, positions = odd_layers(SIZE, channels), scattered(generator)
    drawn = renderer(positions, PRESENT, APPEARANCE).sigmoid().detach().view(2, 3, *SIZE, channels)
    np.testing.assert_allclose(drawn, means(renderer, positions), rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 2])
def test_layered_log_likelihood_equals_the_gaussian_density(channels, generator):
    renderer, positions = odd_layers(SIZE, channels), scattered(generator)
    frames = torch.rand(2, 3, *SIZE, channels, generator=generator, dtype=torch.float64)
    given = frames[..., 0] if channels == 1 else frames
    found = renderer.log_likelihood(positions, PRESENT, given, APPEARANCE).detach()
    expected = means(renderer, positions)
    for clip, frame in np.ndindex(2, 3):
        nats = naive_log_density(renderer, frames[clip, frame].numpy(), expected[clip, frame])
        # Thousands of nats, a sum of squares written out: eight digits are left of sixteen.
        np.testing.assert_allclose(found[clip, frame], nats, rtol=1e-8)


@torch.no_grad()
def test_a_swap_in_the_depth_order_changes_only_the_pixels_of_the_two_objects(generator):
    renderer, positions = odd_layers(SIZE), 0.5 * scattered(generator)  # so that many overlap
    frames = torch.rand(2, 3, *SIZE, 2, generator=generator, dtype=torch.float64)
    everything = torch.ones(2, 3, dtype=torch.bool)
    shown = FrameBatch.during(frames, torch.arange(2), everything, slice(None))
    for pair in itertools.combinations(range(3), 2):
        swapped = APPEARANCE.order.clone()
        swapped[:, pair] = APPEARANCE.order[:, pair[::-1]]
        other = APPEARANCE._replace(order=swapped)
        nats, near = (
            torch.stack([explain(appearance) for appearance in (APPEARANCE, other)]).diff(dim=0)
            for explain in (
                lambda appearance: renderer.log_likelihood(positions, PRESENT, frames, appearance),
                lambda appearance, pair=pair: renderer.log_likelihood_ratio(
                    positions, PRESENT, appearance, shown, pair
                ),
            )
        )
        assert nats.abs().max() > 1
        torch.testing.assert_close(near, nats)


def test_absent_objects_of_layers_have_no_effect(generator):
    renderer, positions = odd_layers(SIZE), scattered(generator)
    frames = torch.rand(2, 3, *SIZE, 2, generator=generator, dtype=torch.float64)
    spoiled = torch.where(PRESENT[..., None, None], positions, torch.nan)
    one = renderer.log_likelihood(positions, PRESENT, frames, APPEARANCE)
    assert torch.equal(one, renderer.log_likelihood(spoiled, PRESENT, frames, APPEARANCE))
    assert torch.equal(
        renderer(positions, PRESENT, APPEARANCE), renderer(spoiled, PRESENT, APPEARANCE)
    )


def test_the_prior_of_classes_and_orders_sums_to_one():
    renderer = odd_layers(SIZE)
    present = torch.ones(1, 2, dtype=torch.bool)
    cases = list(itertools.product(range(3), range(3), ([0, 1], [1, 0])))
    appearance = Appearance(
        *(torch.tensor(part) for part in ([case[:2] for case in cases], [c[2] for c in cases]))
    )
    total = float(
        renderer.appearance_log_prior(appearance, present.expand(len(cases), 2))
        .detach()
        .exp()
        .sum()
    )
    assert total == pytest.approx(1, abs=1e-6)  # lgamma of a count is in float32


def test_coverage_is_centred_like_the_naive_loop(generator):
    renderer = odd_layers(SIZE, num_classes=1)
    with torch.no_grad():
        renderer.raw_background.zero_()
        renderer.raw_colour.fill_(10.0)  # a colour of one before nothing: a picture of opacity
    positions = scattered(generator)[0, 0]
    covered = renderer.coverage(positions).detach()
    for place, cover in zip(renderer.to_pixels(positions).numpy(), covered, strict=True):
        painted = naive_mean(renderer, place[None], [0], [0])[..., 0]
        np.testing.assert_allclose(cover, painted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_noise_of_a_pixel_has_a_floor():
    renderer = odd_layers(SIZE)
    renderer.raw_scale.fill_(-1e3)
    assert torch.equal(renderer.scale(), torch.full_like(renderer.raw_scale, MIN_SCALE))
