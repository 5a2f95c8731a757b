"""The steps of the layered search: positions, sprite classes and the depth order."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.layers.likelihood_maps import (
    ClassPosteriors,
    FrameObjects,
    SpriteClasses,
    detect,
    evaluate_window,
    render_context,
)
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.subpixel import refine_subpixel
from motes.models.sprites.forward_pass import PASSES_PER_FRAME, Detections, Scene, predict_place
from motes.models.sprites.likelihood_maps import (
    MIN_LLR,
    PixelGaussian,
    WindowPosterior,
    mahalanobis,
)

MAX_MAHALANOBIS = 16.0  # squared; four standard deviations exclude one detection in three thousand
CHUNK_FRAMES = 2**9  # frames times objects in one batch, which bounds memory


def forward_pass(
    scene: Scene[LayeredRenderer], classes: SpriteClasses, trusted: Bool[Tensor, "B T"]
) -> tuple[Detections, Int[Tensor, "B N"]]:
    """Detect the objects in the first trusted frame and filter forwards; also return classes.

    The evidence for the class of an object accumulates over frames; the class so far is the one
    with the highest total.
    """
    renderer, present = scene.renderer, scene.present
    (B, N), T = present.shape, scene.observed.shape[1]
    belief = scene.dynamics.initial((B, N))
    first = trusted.int().argmax(1)
    start, sprite_class = detect(classes, scene.frame(first), scene.num_objects, N)
    wide = (classes.radius**2 / 4 * torch.eye(2, device=start.device)).expand(B, N, 2, 2)
    total = classes.log_class_prior.expand(B, N, -1)
    found = []
    for t in range(T):
        batch = scene.frame_batch(slice(t, t + 1))
        prediction = predict_place(scene, belief)
        new = (first == t)[:, None].expand(B, N)
        guess = PixelGaussian.where(new, PixelGaussian(start, wide), prediction)
        prior = PixelGaussian.where(new, PixelGaussian(start, 1e6 * wide), prediction)
        place = PixelGaussian(*(part.clone() for part in guess))
        llr, evidence = torch.zeros_like(guess.mean[..., 0]), torch.zeros_like(total)
        for _, n in itertools.product(range(PASSES_PER_FRAME), range(N)):
            near = classes.window_around(place.mean[:, n])
            objects = FrameObjects(place.mean, sprite_class, present)
            context = render_context(classes, near, objects, n, None)
            its_prior = PixelGaussian(prior.mean[:, n], prior.covariance[:, n])
            its = evaluate_window(classes, batch.crop(near)[:, 0], near, context, its_prior)
            evidence[:, n] = its.evidence
            window = its.select_class((total[:, n] + evidence[:, n]).argmax(-1))
            place.mean[:, n], place.covariance[:, n] = window.moments()
            llr[:, n] = window.log_likelihood_ratio
        detected = trusted[:, t, None] & (llr > MIN_LLR)
        place = PixelGaussian.where(detected, place, guess)
        total = torch.where(detected[..., None], total + evidence, total)
        sprite_class = torch.where(detected, total.argmax(-1), sprite_class)
        found.append(Detections(place, detected))
        belief = scene.dynamics.update(belief, renderer.from_pixels(place.mean), detected)
        belief = scene.dynamics.predict(belief)
    return Detections.joined([detection.one_frame() for detection in found], 2), sprite_class


class TrackState(NamedTuple):
    """The current estimate of all objects in all frames; updated in place, object by object."""

    mean: Float[Tensor, "B N T 2"]
    appearance: Appearance
    expected: PixelGaussian  # leave-one-out predictions, B N T


def evaluate_object(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    objects: TrackState,
    n: int,
    time: slice,
    *,
    known: bool,
) -> tuple[ClassPosteriors, Detections]:
    """Return posteriors and detections of object n in a block of frames, [M K], the others fixed.

    The prior is the leave-one-out prediction. A detection that it all but excludes is rejected:
    two objects with swapped identities would otherwise keep each other where they are. If the
    class is `known`, it is the only one evaluated (K = 1), and the posterior is refined.
    """
    batch = scene.frame_batch(time)
    frames = len(batch.clip) // len(scene.clip)
    mean = objects.mean[:, :, time].transpose(1, 2).flatten(0, 1)
    expected = PixelGaussian(*(part[:, n, time].flatten(0, 1) for part in objects.expected))
    sprite_class, order = objects.appearance.of_frames(frames)
    present = scene.present.repeat_interleave(frames, 0)
    near = classes.window_around(mean[:, n])
    context = render_context(classes, near, FrameObjects(mean, sprite_class, present), n, order)
    crop, its_class = batch.crop(near)[:, 0], sprite_class[:, n] if known else None
    found = evaluate_window(classes, crop, near, context, expected, its_class)
    if known:
        found = found._replace(windows=refine_subpixel(found.windows, classes.phases))
    place, before = found.windows.moments(), PixelGaussian(*(part[:, None] for part in expected))
    away = mahalanobis((place.mean - before.mean)[..., None, :], before.covariance)[..., 0]
    strong = (found.windows.log_likelihood_ratio > MIN_LLR) & (away < MAX_MAHALANOBIS)
    detected = batch.observed[:, None] & strong
    return found, Detections(PixelGaussian.where(detected, place, before), detected)


def revisit(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    guess: PixelGaussian,
    appearance: Appearance,
    expected: PixelGaussian,
) -> tuple[Detections, Appearance]:
    """Return detections in all frames near a guess, and classes by the evidence of all frames.

    Coordinate ascent: one object at a time, given the current estimate of the others.

    Law: the same in blocks of frames (test_layered_search_in_blocks_equals_the_search_at_once).
    """
    (B, N), T = scene.present.shape, scene.observed.shape[1]
    appearance = appearance._replace(sprite_class=appearance.sprite_class.clone())
    objects = TrackState(guess.mean.clone(), appearance, expected)
    detections = []
    for n in range(N):
        total, parts = classes.log_class_prior, []
        for time in scene.blocks(CHUNK_FRAMES // N):
            found, by_class = evaluate_object(scene, classes, objects, n, time, known=False)
            evidence = found.evidence.unflatten(0, (B, -1))
            total = total + torch.where(scene.observed[:, time, None], evidence, 0.0).sum(1)
            parts.append(by_class.by_clips(B))
        sprite_class = total.argmax(-1)
        its = Detections.joined(parts, 2).reordered(sprite_class[:, None, None].expand(B, 1, T))
        appearance.sprite_class[:, n] = sprite_class
        objects.mean[:, n] = its.place.mean[:, 0]
        detections.append(its)
    return Detections.joined(detections, 1), appearance


def refine_positions(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    guess: PixelGaussian,
    appearance: Appearance,
    expected: PixelGaussian,
) -> Iterator[tuple[slice, WindowPosterior, Bool[Tensor, "B N T"]]]:
    """Yield subpixel posteriors near a guess and detection flags, for known classes, by blocks.

    One object at a time, as in `revisit`.
    """
    B, N = scene.present.shape
    objects = TrackState(guess.mean.clone(), appearance, expected)
    for time in scene.blocks(CHUNK_FRAMES // N):
        windows, detections = [], []
        for n in range(N):
            found, detection = evaluate_object(scene, classes, objects, n, time, known=True)
            detections.append(detection.by_clips(B))
            objects.mean[:, n, time] = detections[-1].place.mean[:, 0]
            windows.append(found.windows)
        yield time, WindowPosterior.by_clips(windows, B), Detections.joined(detections, 1).detected


def frame_llr(
    scene: Scene[LayeredRenderer],
    means: Float[Tensor, "B N T 2"],
    appearance: Appearance,
    layers: tuple[int, ...] | None = None,
) -> Float[Tensor, "B T"]:
    """Return `LayeredRenderer.log_likelihood_ratio` of each frame; zero for unobserved ones."""
    renderer, parts = scene.renderer, []
    for time in scene.blocks(CHUNK_FRAMES // means.shape[1]):
        positions, batch = renderer.from_pixels(means[:, :, time]), scene.frame_batch(time)
        parts.append(
            renderer.log_likelihood_ratio(positions, scene.present, appearance, batch, layers)
        )
    return torch.where(scene.observed, torch.cat(parts, 1), 0.0)


def order_depth(
    scene: Scene[LayeredRenderer], means: Float[Tensor, "B N T 2"], appearance: Appearance
) -> Appearance:
    """Return the appearance with a better depth order, found by swaps of two objects."""
    for pair in itertools.combinations(range(means.shape[1]), 2):
        swapped = appearance.order.clone()
        swapped[:, pair] = appearance.order[:, pair[::-1]]
        # Only the pixels of the two can change.
        before, after = (
            frame_llr(scene, means, appearance._replace(order=order), pair).sum(1)
            for order in (appearance.order, swapped)
        )
        better = (after > before)[:, None]
        appearance = appearance._replace(order=torch.where(better, swapped, appearance.order))
    return appearance


def select_likelier(
    scene: Scene[LayeredRenderer],
    one: Detections,
    other: Detections,
    appearance: Appearance,
    expected: PixelGaussian,
) -> Detections:
    """Return for each frame the detections with the higher likelihood times prior `expected`."""

    def log_joint(means: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B T"]:
        away = mahalanobis((means - expected.mean)[..., None, :], expected.covariance)[..., 0]
        distance = torch.where(scene.present[..., None], away, 0.0).sum(1)
        return frame_llr(scene, means, appearance) - 0.5 * distance

    better = (log_joint(other.place.mean) > log_joint(one.place.mean))[:, None]
    better = better.expand_as(one.detected)
    place = PixelGaussian.where(better, other.place, one.place)
    return Detections(place, torch.where(better, other.detected, one.detected))
