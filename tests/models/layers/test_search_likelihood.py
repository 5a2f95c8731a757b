"""Posteriors over windows of layered frames against naive loops."""

import itertools
import math

import numpy as np
import pytest
import torch

from layer_scenes import crop_first_frames, disk_and_ring, naive_log_density, naive_mean, odd_layers
from motes.models.layers.renderer import Appearance
from motes.models.layers.search import (
    FrameObjects,
    SpriteClasses,
    detect,
    evaluate_window,
    render_context,
)
from motes.models.sprites.likelihood_maps import PixelGaussian

SIZE = (9, 11)


def without_gradient(classes: SpriteClasses) -> SpriteClasses:
    return SpriteClasses(*(part.detach() for part in classes[:-2]), classes.phases, classes.window)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], None])
def test_layered_evaluate_window_equals_the_naive_loop(order, generator):
    renderer, n, window = odd_layers(SIZE), 1, 1
    classes = without_gradient(SpriteClasses.fine(renderer, window))
    frame = torch.rand(1, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    centres = torch.tensor([[[4.3, 4.1], [5.2, 3.4], [10.4, 5.6]]], dtype=torch.float64)
    sprite_class, present = torch.tensor([[0, 2, 1]]), torch.ones(1, 3, dtype=torch.bool)
    prior = PixelGaussian(centres[:, n] + 0.7, torch.tensor([[[1.5, 0.4], [0.4, 0.8]]]).double())
    near = classes.window_around(centres[:, n])
    held = None if order is None else torch.tensor([order])
    rest = render_context(classes, near, FrameObjects(centres, sprite_class, present), n, held)
    seen = crop_first_frames(near, frame)
    found = evaluate_window(classes, seen, near, rest, prior)
    joint = found.windows.log_weights + found.evidence[..., None]
    # Without an order the object is behind all others.
    layers = [1, 0, 2] if order is None else order
    others = [m for m in layers if m != n]
    picture = frame[0, 0].numpy()
    empty = naive_log_density(
        renderer, picture, naive_mean(renderer, centres[0].numpy(), [0, 2, 1], others)
    )
    places = (near.centre[0] + found.windows.offsets).numpy()
    away = places - prior.mean[0].numpy()
    distance = np.einsum("pi,ij,pj->p", away, np.linalg.inv(prior.covariance[0].numpy()), away)
    before = np.exp(-0.5 * distance) / np.exp(-0.5 * distance).sum()
    for k, p in itertools.product(range(3), range(0, len(places), 7)):
        moved = centres[0].numpy().copy()
        moved[n] = places[p]
        mean = naive_mean(renderer, moved, [0, k, 1], layers, exact=n)
        gain = naive_log_density(renderer, picture, mean) - empty
        np.testing.assert_allclose(joint[0, k, p], gain + np.log(before[p]), rtol=1e-8)


def test_a_known_class_is_the_only_one_evaluated(generator):
    renderer, count = odd_layers(SIZE), 7
    classes = without_gradient(SpriteClasses.fine(renderer, 1))
    frames = torch.rand(count, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    centres = 2 + 5 * torch.rand(count, 2, 2, generator=generator, dtype=torch.float64)
    sprite_class = torch.randint(3, (count, 2), generator=generator)
    near = classes.window_around(centres[:, 0])
    objects = FrameObjects(centres, sprite_class, torch.ones(count, 2, dtype=torch.bool))
    rest = render_context(classes, near, objects, 0, None)
    prior = PixelGaussian(centres[:, 0], torch.eye(2).double().expand(count, 2, 2))
    arguments = (classes, crop_first_frames(near, frames), near, rest, prior)
    alone, among_all = evaluate_window(*arguments, sprite_class[:, 0]), evaluate_window(*arguments)
    theirs = among_all.select_class(sprite_class[:, 0])
    # The same sums, in another order.
    torch.testing.assert_close(alone.windows.log_weights[:, 0], theirs.log_weights)
    torch.testing.assert_close(
        alone.windows.log_likelihood_ratio[:, 0], theirs.log_likelihood_ratio
    )
    torch.testing.assert_close(alone.evidence, among_all.evidence.gather(1, sprite_class[:, :1]))


def test_coarse_scores_are_the_mean_over_the_cells_of_a_pixel(generator):
    renderer = odd_layers(SIZE)
    fine, coarse = (
        without_gradient(make(renderer, 1)) for make in (SpriteClasses.fine, SpriteClasses.coarse)
    )
    frame = torch.rand(1, 1, *SIZE, 2, generator=generator, dtype=torch.float64)
    prior = PixelGaussian(torch.full((1, 2), 5.0).double(), 1e9 * torch.eye(2)[None].double())
    near = fine.window_around(prior.mean)
    alone_in_frame = FrameObjects(
        prior.mean[:, None], torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0
    )
    one, many = (
        evaluate_window(
            classes,
            crop_first_frames(near, frame),
            near,
            render_context(classes, near, alone_in_frame, 0, None),
            prior,
        )
        for classes in (coarse, fine)
    )
    # The prior is flat.
    one, many = (
        found.windows.log_weights + found.evidence[..., None] + math.log(len(found.windows.offsets))
        for found in (one, many)
    )
    scores = many.unflatten(-1, (fine.phases**2, 9)).mean(-2)
    torch.testing.assert_close(one, scores, rtol=1e-9, atol=1e-9)


def test_objects_are_detected_with_their_classes_from_left_to_right(generator):
    renderer = disk_and_ring(32)
    positions = renderer.from_pixels(torch.tensor([[[[22.0, 9.0]], [[7.0, 20.0]]]]))
    appearance = Appearance(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    drawn = renderer(positions, torch.ones(1, 2, dtype=torch.bool), appearance).sigmoid().detach()
    noisy = drawn + 0.03 * torch.randn(drawn.shape, generator=generator)
    classes = without_gradient(SpriteClasses.coarse(renderer, 7))
    places, sprite_class = detect(classes, noisy[0, ..., None], torch.tensor([2]), 3)
    assert places[0, :2].tolist() == [[7.0, 20.0], [22.0, 9.0]]
    assert sprite_class[0, :2].tolist() == [1, 0]
