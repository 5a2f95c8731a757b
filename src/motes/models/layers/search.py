"""The search for objects in pictures: where each is, of which kind, and who stands in front."""

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

MAX_MAHALANOBIS = 16.0  # four standard deviations, squared: a detection in three thousand
CHUNK_FRAMES = 2**9  # frames, for each object, that are looked at side by side: bounds memory


def forward_pass(
    scene: Scene[LayeredRenderer], classes: SpriteClasses, trusted: Bool[Tensor, "B T"]
) -> tuple[Detections, Int[Tensor, "B N"]]:
    """Finds the objects in the first trusted frame and follows them forwards; places and kinds.

    What every frame tells of an object's kind is added up, and the likeliest so far is believed.
    """
    renderer, present = scene.renderer, scene.present
    (B, N), T = present.shape, scene.observed.shape[1]
    belief = scene.dynamics.initial((B, N))
    first = trusted.int().argmax(1)
    start, sprite_class = detect(classes, scene.frame(first), scene.num_objects, N)
    wide = (classes.radius**2 / 4 * torch.eye(2, device=start.device)).expand(B, N, 2, 2)
    tally = classes.log_class_prior.expand(B, N, -1)
    found = []
    for t in range(T):
        shown = scene.frame_batch(slice(t, t + 1))
        prediction = predict_place(scene, belief)
        new = (first == t)[:, None].expand(B, N)
        guess = PixelGaussian.where(new, PixelGaussian(start, wide), prediction)
        prior = PixelGaussian.where(new, PixelGaussian(start, 1e6 * wide), prediction)
        place, told = (
            PixelGaussian(*(part.clone() for part in guess)),
            torch.zeros_like(guess.mean[..., 0]),
        )
        evidence = torch.zeros_like(tally)
        for _ in range(PASSES_PER_FRAME):
            for n in range(N):
                near = classes.window_around(place.mean[:, n])
                rest = render_context(
                    classes, near, FrameObjects(place.mean, sprite_class, present), n, None
                )
                its_prior = PixelGaussian(prior.mean[:, n], prior.covariance[:, n])
                seen_n = evaluate_window(classes, shown.crop(near)[:, 0], near, rest, its_prior)
                evidence[:, n] = seen_n.evidence
                looked = seen_n.select_class((tally[:, n] + evidence[:, n]).argmax(-1))
                place.mean[:, n], place.covariance[:, n] = looked.moments()
                told[:, n] = looked.log_likelihood_ratio
        seen = trusted[:, t, None] & (told > MIN_LLR)
        place = PixelGaussian.where(seen, place, guess)
        tally = torch.where(seen[..., None], tally + evidence, tally)
        sprite_class = torch.where(seen, tally.argmax(-1), sprite_class)
        found.append(Detections(place, seen))
        belief = scene.dynamics.update(belief, renderer.from_pixels(place.mean), seen)
        belief = scene.dynamics.predict(belief)
    return Detections.joined([detection.one_frame() for detection in found], 2), sprite_class


class TrackState(NamedTuple):
    """Objects through all frames, as they stand while one after the other is looked for."""

    mean: Float[Tensor, "B N T 2"]
    appearance: Appearance
    expected: PixelGaussian  # the prior, B N T


def evaluate_object(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    objects: TrackState,
    n: int,
    time: slice,
    *,
    known: bool,
) -> tuple[ClassPosteriors, Detections]:
    """Appearance for an object near where it stands, in a stretch of frames: [M K], all frames in a row.

    A detection that the other frames all but exclude is none: two objects that were mistaken for
    one another would stay so, each held where the other should be found.

    Args:
        scene: frames.
        classes: how objects look.
        objects: all of them, the one that is looked for among them.
        n: which it is.
        time: of the frames.
        known: whether its kind is; then no other is tried, and K is 1.
    """
    shown = scene.frame_batch(time)
    frames = len(shown.clip) // len(scene.clip)
    mean = objects.mean[:, :, time].transpose(1, 2).flatten(0, 1)
    expected = PixelGaussian(*(part[:, n, time].flatten(0, 1) for part in objects.expected))
    everyone = objects.appearance.of_frames(frames)
    cast = FrameObjects(mean, everyone.sprite_class, scene.present.repeat_interleave(frames, 0))
    near = classes.window_around(mean[:, n])
    rest = render_context(classes, near, cast, n, everyone.order)
    sprite_class = everyone.sprite_class[:, n] if known else None
    found = evaluate_window(classes, shown.crop(near)[:, 0], near, rest, expected, sprite_class)
    if known:
        found = found._replace(windows=refine_subpixel(found.windows, classes.phases))
    place, before = found.windows.moments(), PixelGaussian(*(part[:, None] for part in expected))
    away = mahalanobis((place.mean - before.mean)[..., None, :], before.covariance)[..., 0]
    seen = (
        shown.observed[:, None]
        & (found.windows.log_likelihood_ratio > MIN_LLR)
        & (away < MAX_MAHALANOBIS)
    )
    return found, Detections(PixelGaussian.where(seen, place, before), seen)


def revisit(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    guess: PixelGaussian,
    appearance: Appearance,
    expected: PixelGaussian,
) -> tuple[Detections, Appearance]:
    """Appearance at all frames, near a guess, with what is expected there as the prior.

    One object after the other, each time as the others stand; its kind is the one that all frames
    together speak for.

    Law: the same in stretches (test_layered_search_in_blocks_equals_the_search_at_once).
    """
    (B, N), T = scene.present.shape, scene.observed.shape[1]
    objects = TrackState(
        guess.mean.clone(),
        appearance._replace(sprite_class=appearance.sprite_class.clone()),
        expected,
    )
    detections = []
    for n in range(N):
        told, parts = classes.log_class_prior, []
        for time in scene.blocks(CHUNK_FRAMES // N):
            found, seen = evaluate_object(scene, classes, objects, n, time, known=False)
            evidence = found.evidence.unflatten(0, (B, -1))
            told = told + torch.where(scene.observed[:, time, None], evidence, 0.0).sum(1)
            parts.append(seen.by_clips(B))  # of each kind, not of each object
        sprite_class = told.argmax(-1)
        its = Detections.joined(parts, 2).reordered(sprite_class[:, None, None].expand(B, 1, T))
        objects.appearance.sprite_class[:, n], objects.mean[:, n] = (
            sprite_class,
            its.place.mean[:, 0],
        )
        detections.append(its)
    return Detections.joined(detections, 1), objects.appearance


def refine_positions(
    scene: Scene[LayeredRenderer],
    classes: SpriteClasses,
    guess: PixelGaussian,
    appearance: Appearance,
    expected: PixelGaussian,
) -> Iterator[tuple[slice, WindowPosterior, Bool[Tensor, "B N T"]]]:
    """Cells around a guess and who was seen, with kinds that are known, in stretches of frames.

    One object after the other, as in `revisit`.
    """
    B, N = scene.present.shape
    objects = TrackState(guess.mean.clone(), appearance, expected)
    for time in scene.blocks(CHUNK_FRAMES // N):
        found, detections = [], []
        for n in range(N):
            its, detection = evaluate_object(scene, classes, objects, n, time, known=True)
            detections.append(detection.by_clips(B))
            objects.mean[:, n, time] = detections[-1].place.mean[:, 0]
            found.append(its.windows)
        yield time, WindowPosterior.by_clips(found, B), Detections.joined(detections, 1).detected


def explained_llr(
    scene: Scene[LayeredRenderer],
    means: Float[Tensor, "B N T 2"],
    appearance: Appearance,
    layers: tuple[int, ...] | None = None,
) -> Float[Tensor, "B T"]:
    """Nats by which objects explain each seen frame better than the background alone.

    See `LayeredRenderer.gain`.
    """
    renderer, parts = scene.renderer, []
    for time in scene.blocks(CHUNK_FRAMES // means.shape[1]):
        positions = renderer.from_pixels(means[:, :, time])
        parts.append(
            renderer.gain(positions, scene.present, appearance, scene.frame_batch(time), layers)
        )
    return torch.where(scene.observed, torch.cat(parts, 1), 0.0)


def order_depth(
    scene: Scene[LayeredRenderer], means: Float[Tensor, "B N T 2"], appearance: Appearance
) -> Appearance:
    """The looks with the order that explains the frames best, two objects exchanged at a time."""
    for pair in itertools.combinations(range(means.shape[1]), 2):
        swapped = appearance.order.clone()
        swapped[:, pair] = appearance.order[:, pair[::-1]]
        # Away from the two nothing changes.
        before, after = (
            explained_llr(scene, means, appearance._replace(order=order), pair).sum(1)
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
    """Of each frame the detections that explain it better, what is expected being the prior."""

    def nats(means: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B T"]:
        away = mahalanobis((means - expected.mean)[..., None, :], expected.covariance)[..., 0]
        unlikely = torch.where(scene.present[..., None], away, 0.0).sum(1)
        return explained_llr(scene, means, appearance) - 0.5 * unlikely

    better = (nats(other.place.mean) > nats(one.place.mean))[:, None].expand_as(one.detected)
    place = PixelGaussian.where(better, other.place, one.place)
    return Detections(place, torch.where(better, other.detected, one.detected))
