"""q(a | v) of the layered family: the sprite search, with sprite classes and depth order."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes.config import DataConfig, require
from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.layers.renderer import FINER, Appearance, LayeredRenderer, opacity_at
from motes.models.protocols import Family
from motes.models.sprites.forward_pass import PASSES_PER_FRAME, predict_place
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks
from motes.models.sprites.likelihood_maps import (
    MIN_LLR,
    Detections,
    PixelGaussian,
    Scene,
    Window,
    WindowPosterior,
    left_to_right_order,
    pixel_mahalanobis,
    probabilities,
    window_offsets,
)
from motes.models.sprites.pins import PixelPins, search_again
from motes.models.sprites.search import (
    FINE_WINDOW,
    GridInference,
    SearchSettings,
    best_hypothesis,
    delayed_starts,
    predict_from_other_frames,
)

ZOOM = 4  # smaller cells in a cell, along each axis
MARGIN = 2  # cells on each side that the interpolation needs
MAX_OUTSIDE = 1e-3  # weight outside the refined region
MAX_MAHALANOBIS = 16.0  # squared; four standard deviations exclude one detection in three thousand
CHUNK_FRAMES = 2**9  # frames times objects in one batch, which bounds memory


def refine_subpixel(window: WindowPosterior, phases: int) -> WindowPosterior:
    """Return a posterior over as many smaller cells around the mean, if nearly all weight is there.

    The log-likelihood ratio is a smooth function of the position, which changes over a pixel
    however many nats that are. Few cells therefore suffice, and a posterior that is narrower than
    a cell is found by interpolation between them. [Choice 41]

    Law: has the moments of a Gaussian that is much narrower than a cell
    (test_subpixel_refinement_recovers_a_narrow_gaussian).
    """
    grid = _as_grid(window.log_weights.flatten(0, -2), phases)
    side, device = grid.shape[-1], grid.device
    inner = side // ZOOM
    weights = probabilities(grid.flatten(1)).view_as(grid)
    axis = torch.arange(side, device=device).to(grid)
    mean = torch.stack([weights.sum(2) @ axis, weights.sum(1) @ axis], -1)  # row, column
    start = (mean - (inner - 1) / 2).round().clamp(MARGIN, side - inner - MARGIN).long()
    near = start[..., None] + torch.arange(-MARGIN, inner + MARGIN, device=device)
    number = torch.arange(len(grid), device=device)[:, None, None]
    region = number, near[:, 0, :, None], near[:, 1, None, :]
    held = weights[region][:, MARGIN:-MARGIN, MARGIN:-MARGIN].sum((1, 2))
    cubic = _cubic_interpolation(inner).to(grid)
    finer = (cubic @ grid[region] @ cubic.T).flatten(1).log_softmax(1).view_as(grid)
    narrow = (held > 1 - MAX_OUTSIDE).view_as(window.log_likelihood_ratio)
    moved = ((start.to(grid) + inner / 2 - side / 2) / phases).flip(-1).view_as(window.centre)
    return window._replace(
        centre=torch.where(narrow[..., None], window.centre + moved, window.centre),
        log_weights=torch.where(
            narrow[..., None],
            _as_cells(finer, phases).view_as(window.log_weights),
            window.log_weights,
        ),
        zoom=torch.where(narrow, 1 / ZOOM, 1.0).to(grid),
    )


def _cubic_interpolation(inner: int) -> Float[Tensor, "smaller cells"]:
    """Return the matrix that interpolates smaller cells by cubics through four cells."""
    place = (torch.arange(inner * ZOOM, dtype=torch.float64) + 0.5) / ZOOM - 0.5
    points = place.floor()[:, None] + torch.arange(-1, 3)
    rows = torch.zeros(len(place), inner + 2 * MARGIN, dtype=torch.float64)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        weight = torch.stack([(place - points[:, j]) / (i - j) for j in others]).prod(0)
        rows.scatter_(1, points[:, i, None].long() + MARGIN, weight[:, None])
    return rows


def _as_grid(cells: Float[Tensor, "M cells"], phases: int) -> Float[Tensor, "M side side"]:
    """Return values in the order of `window_offsets` as an image."""
    pixels = round((cells.shape[1] // phases**2) ** 0.5)
    split = cells.unflatten(1, (phases, phases, pixels, pixels))
    grid: Tensor = split.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
    return grid


def _as_cells(grid: Float[Tensor, "M side side"], phases: int) -> Float[Tensor, "M cells"]:
    """Return an image in the order of `window_offsets`, the inverse of `_as_grid`."""
    pixels = grid.shape[1] // phases
    split = grid.unflatten(2, (pixels, phases)).unflatten(1, (pixels, phases))
    cells: Tensor = split.permute(0, 2, 4, 1, 3).flatten(1)
    return cells


class SpriteClasses(NamedTuple):
    """The renderer's sprites as convolution kernels; `phases`, `window` as in `SpriteTemplate`."""

    kernels: Float[Tensor, "K*phases*phases features taps taps"]
    table: Float[Tensor, "K phases*phases side side"]  # of `opacity_at`
    colours: Float[Tensor, "K C"]
    background: Float[Tensor, "height width C"]
    precision: Float[Tensor, " C"]
    log_class_prior: Float[Tensor, " K"]
    phases: int
    window: int

    @staticmethod
    def coarse(renderer: LayeredRenderer, window: int) -> "SpriteClasses":
        """Return kernels of objects anywhere in their pixel: means over its cells."""
        fine = SpriteClasses.fine(renderer, window)
        return fine._replace(
            kernels=fine.kernels.unflatten(0, (len(fine.table), -1)).mean(1),
            table=fine.table.mean(1, keepdim=True),
            phases=1,
        )

    @staticmethod
    def fine(renderer: LayeredRenderer, window: int) -> "SpriteClasses":
        """Return kernels of objects in each cell of their pixel.

        An object of opacity a and colour c before an image b changes the residual of a pixel v
        from r = v - b to r - a (c - b), which gains

            a c r - a (b r) - (a c)^2 / 2 + (a^2 c) b - a^2 (b^2 / 2)

        times the precision: a sum of products of kernels and feature images. [Choice 31]
        """
        opacity = renderer.opacities(FINER // ZOOM)
        a = opacity.flatten(1, 2)[:, :, None]
        c = renderer.colours()[:, None, :, None, None]
        kernels = torch.cat([a * c, a, (a * c).square(), a.square() * c, a.square()], 2)
        return SpriteClasses(
            kernels=kernels.flatten(0, 1),
            table=renderer.padded_opacities(),
            colours=renderer.colours(),
            background=renderer.background(),
            precision=renderer.scale().pow(-2),
            log_class_prior=renderer.kind_logits.log_softmax(-1),
            phases=opacity.shape[1],
            window=window,
        )

    @property
    def radius(self) -> int:
        """Return the distance from a sprite's centre to its border, in pixels."""
        return self.kernels.shape[-1] // 2

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]

    def window_around(self, mean: Float[Tensor, "M 2"]) -> Window:
        """Return the crop that all evaluated positions around a mean depend on."""
        return Window.around(mean[:, None], self.window + self.radius, self.image_size)


class ContextLayers(NamedTuple):
    """A frame around one object, rendered without it, as the layers behind and in front of it."""

    behind: Float[Tensor, "M side side C"]
    front: Float[Tensor, "M side side C"]  # premultiplied by its opacity
    transmittance: Float[Tensor, "M side side"]  # of the front

    def features(
        self, v: Float[Tensor, "M rows columns C"], precision: Float[Tensor, " C"]
    ) -> Float[Tensor, "M features rows columns"]:
        """Return the feature images that go with the kernels of `SpriteClasses`."""
        F, b = self.transmittance[..., None], self.behind
        r = v - self.front - F * b
        squares = (F.square() * b.square() * precision).sum(-1, keepdim=True)
        parts = [
            F * r * precision,
            -(F * r * b * precision).sum(-1, keepdim=True),
            -0.5 * F.square() * precision,
            F.square() * b * precision,
            -0.5 * squares,
        ]
        return torch.cat([part.expand(*b.shape[:-1], -1) for part in parts], -1).movedim(-1, 1)


class ClassPosteriors(NamedTuple):
    """Posteriors over positions for each sprite class, and the evidence of the classes."""

    windows: WindowPosterior  # M K
    evidence: Float[Tensor, "M K"]  # log-likelihood ratio of the frame, positions marginalised

    def select_class(self, sprite_class: Int[Tensor, " M"]) -> WindowPosterior:
        """Return the posterior of each object under one class."""
        rows, windows = torch.arange(len(sprite_class), device=sprite_class.device), self.windows
        return windows._replace(
            centre=windows.centre[rows, sprite_class],
            log_weights=windows.log_weights[rows, sprite_class],
            log_likelihood_ratio=windows.log_likelihood_ratio[rows, sprite_class],
        )


class FrameObjects(NamedTuple):
    """The current estimate of all objects of M frames."""

    mean: Float[Tensor, "M N 2"]
    sprite_class: Int[Tensor, "M N"]
    present: Bool[Tensor, "M N"]


def render_context(
    classes: SpriteClasses,
    near: Window,
    objects: FrameObjects,
    n: int,
    order: Int[Tensor, "M N"] | None,
) -> ContextLayers:
    """Return what the other objects and the background show in the window of object n.

    `order` lists the objects from back to front. If it is None, all others are taken to be in
    front: the pixels that they cover then carry no evidence, rather than wrong evidence.
    """
    others = objects.present.clone()
    others[:, n] = False
    opacity = opacity_at(classes.table, objects.sprite_class, objects.mean, near.x, near.y)
    opacity = opacity * others[..., None, None]
    colour = classes.colours[objects.sprite_class]
    behind = classes.background.flatten(0, 1)[near.flat[:, 0]]
    front, clear = torch.zeros_like(behind), torch.ones_like(behind[..., 0])
    passed = torch.full_like(others[:, 0], order is None)  # whether n lies behind what comes
    for layer in range(objects.mean.shape[1]):
        m = torch.full_like(objects.sprite_class[:, 0], layer) if order is None else order[:, layer]
        passed = passed | (m == n)
        a = opacity.take_along_dim(m[:, None, None, None], 1)[:, 0, ..., None]
        c = colour.take_along_dim(m[:, None, None], 1)[:, :, None]
        before = passed[:, None, None, None]
        behind = torch.where(before, behind, behind + a * (c - behind))
        front = torch.where(before, front + a * (c - front), front)
        clear = torch.where(before[..., 0], clear * (1 - a[..., 0]), clear)
    return ContextLayers(behind, front, clear)


def evaluate_window(
    classes: SpriteClasses,
    crop: Float[Tensor, "M side side C"],
    near: Window,
    context: ContextLayers,
    prior: PixelGaussian,
    sprite_class: Int[Tensor, " M"] | None = None,
) -> ClassPosteriors:
    """Return the posterior over the cells of a window for an object of each class.

        log p(a | frame, class) = score_class(a) + log N(a; prior) + const.

    If the class is known no other is evaluated, and K is 1.

    Law: equals a loop over classes and positions
    (test_layered_evaluate_window_equals_the_naive_loop).
    """
    features = context.features(crop, classes.precision) * near.inside
    offsets = window_offsets(classes.phases, classes.window).to(crop)
    away = near.centre + offsets - prior.mean[:, None]
    before = (-0.5 * pixel_mahalanobis(away, prior.covariance)).log_softmax(-1)
    score = _scores(classes, features, sprite_class)
    joint = score + before[:, None]
    after = joint.log_softmax(-1)
    llr = (probabilities(after) * score).sum(-1)
    centre = near.centre.to(crop).expand(*llr.shape, 2)
    windows = WindowPosterior(centre, after, offsets, 1 / classes.phases, llr)
    return ClassPosteriors(windows, joint.logsumexp(-1))


def _scores(
    classes: SpriteClasses,
    features: Float[Tensor, "M features side side"],
    sprite_class: Int[Tensor, " M"] | None,
) -> Float[Tensor, "M K cells"]:
    """Return log-likelihood ratios at all cells, for all classes or for the given one."""
    K = len(classes.colours)
    if sprite_class is None:
        scores: Tensor = conv2d(features, classes.kernels).unflatten(1, (K, -1))
        return scores.flatten(2)
    side = 2 * classes.window + 1
    scores = features.new_empty(len(sprite_class), len(classes.kernels) // K, side, side)
    for k, kernels in enumerate(classes.kernels.unflatten(0, (K, -1))):
        rows = (sprite_class == k).nonzero()[:, 0]
        scores[rows] = conv2d(features[rows], kernels)
    return scores.flatten(1)[:, None]


def detect(
    classes: SpriteClasses,
    v: Float[Tensor, "M height width C"],
    num_objects: Int[Tensor, " M"],
    slots: int,
) -> tuple[Float[Tensor, "M N 2"], Int[Tensor, "M N"]]:
    """Return positions and classes of objects in a frame without any prior, from left to right.

    Greedy, as `sprites.likelihood_maps.detect`: the best object is rendered over the background, so
    that the next one explains what is left.
    """
    height, width = classes.image_size
    x, y = (torch.arange(size, device=v.device) for size in (width, height))
    mean = classes.background.expand(len(v), -1, -1, -1)
    nothing, prior = torch.zeros_like(mean), classes.log_class_prior[:, None, None]
    positions, found = [], []
    for _ in range(slots):
        context = ContextLayers(mean, nothing, torch.ones_like(mean[..., 0]))
        features = context.features(v, classes.precision)
        score = conv2d(features, classes.kernels, padding=classes.radius) + prior
        best = score.flatten(1).argmax(1)
        sprite_class, pixel = best // (height * width), best % (height * width)
        position = torch.stack([pixel % width, pixel // width], -1).to(v)
        a = opacity_at(classes.table, sprite_class, position, x, y)[..., None]
        mean = mean + a * (classes.colours[sprite_class][:, None, None] - mean)
        positions.append(position)
        found.append(sprite_class)
    means, sprite_classes = torch.stack(positions, 1), torch.stack(found, 1)
    order = left_to_right_order(means, num_objects, width)
    return means.take_along_dim(order[..., None], 1), sprite_classes.take_along_dim(order, 1)


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
    wide = (classes.radius**2 / 4 * torch.eye(2).to(start)).expand(B, N, 2, 2)
    total = classes.log_class_prior.expand(B, N, -1)
    found = []
    for t in range(T):
        batch = scene.frame_batch(slice(t, t + 1))
        prediction = predict_place(scene, belief)
        new = (first == t)[:, None].expand(B, N)
        guess = PixelGaussian.where(new, PixelGaussian(start, wide), prediction)
        prior = PixelGaussian.where(new, PixelGaussian(start, 1e6 * wide), prediction)
        place = guess.map(torch.clone)
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
    place, before = found.windows.moments(), expected.select((slice(None), None))
    away = pixel_mahalanobis((place.mean - before.mean)[..., None, :], before.covariance)[..., 0]
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
        away = pixel_mahalanobis((means - expected.mean)[..., None, :], expected.covariance)[..., 0]
        distance = torch.where(scene.present[..., None], away, 0.0).sum(1)
        return frame_llr(scene, means, appearance) - 0.5 * distance

    better = (log_joint(other.place.mean) > log_joint(one.place.mean))[:, None]
    better = better.expand_as(one.detected)
    place = PixelGaussian.where(better, other.place, one.place)
    return Detections(place, torch.where(better, other.detected, one.detected))


class LayeredTracker(GridInference):
    """The search of `Tracker`, for sprite classes and depth order as well."""

    @torch.no_grad()
    def search(
        self, scene: Scene[LayeredRenderer], hypotheses: int = 1, explore: float = 0.0
    ) -> PosteriorBlocks:
        """Return q(a | v) as a function that yields it in blocks of frames.

        `explore` has no effect: neighbouring cells differ enough that none is missed.
        """
        if hypotheses == 1 or scene.present.shape[1] == 1:
            found = _search(scene, scene.observed, self.window)
        else:
            many = scene.repeated(hypotheses)
            starts = delayed_starts(scene.observed, hypotheses)
            place, expected, appearance = _search(many, starts, self.window)
            best = best_hypothesis(_bound(many, place, expected, appearance), hypotheses)
            found = place.select(best), expected.select(best), appearance.select(best)
        return lambda: _blocks(scene, *found)

    def search_pinned(
        self,
        scene: Scene[LayeredRenderer],
        found: Detections,
        pins: PixelPins,
        released: Bool[Tensor, "B N"],
        appearance: Appearance,
    ) -> PosteriorBlocks:
        """Return q(a | v) of a search that starts from tracks and obeys pins."""
        most = released.shape[1]
        known = Appearance(appearance.sprite_class[:, :most], _without_slots(appearance, most))
        coarse = SpriteClasses.coarse(scene.renderer, self.window)
        before, after = (LayerSteps(coarse, known, released) for _ in range(2))
        found, expected, clips = search_again(scene, found, pins, released, before, after)
        place = PixelGaussian.where(found.detected, found.place, expected)
        gained = torch.zeros_like(released[:, :1]).index_fill(0, clips, True)
        appearance = Appearance(
            *(
                torch.where(gained, new, old)
                for new, old in zip(after.appearance, known, strict=True)
            )
        )
        return functools.partial(_blocks, scene, place, expected, appearance)


@dataclass
class LayerSteps:
    """Steps of a further search; the classes of released objects are found anew."""

    classes: SpriteClasses
    appearance: Appearance
    released: Bool[Tensor, "B N"]

    def revisit(
        self, scene: Scene[LayeredRenderer], guess: PixelGaussian, prior: PixelGaussian
    ) -> Detections:
        """Return detections near a guess, given the prior; update class and depth order."""
        found, seen = revisit(scene, self.classes, guess, self.appearance, prior)
        sprite_class = torch.where(self.released, seen.sprite_class, self.appearance.sprite_class)
        appearance = self.appearance._replace(sprite_class=sprite_class)
        self.appearance = order_depth(scene, found.place.mean, appearance)
        return found

    def bound(
        self, scene: Scene[LayeredRenderer], found: Detections, expected: PixelGaussian
    ) -> Float[Tensor, " B"]:
        """Return the bound at the means of q."""
        place = PixelGaussian.where(found.detected, found.place, expected)
        return _bound(scene, place, expected, self.appearance)


def _without_slots(appearance: Appearance, slots: int) -> Int[Tensor, "B N"]:
    """Return the depth order of the first objects."""
    order = appearance.order
    return order[order < slots].view(len(order), slots)


def _search(
    scene: Scene[LayeredRenderer], trusted: Bool[Tensor, "B T"], window: int
) -> tuple[PixelGaussian, PixelGaussian, Appearance]:
    """Run the forward pass over the trusted frames, then refine all frames.

    Returns positions, leave-one-out predictions and the appearance.
    """
    coarse = SpriteClasses.coarse(scene.renderer, window)
    found, sprite_class = forward_pass(scene, coarse, trusted)
    expected = predict_from_other_frames(scene, found)
    place = PixelGaussian.where(trusted[:, None].expand_as(found.detected), found.place, expected)
    order = torch.arange(sprite_class.shape[1], device=sprite_class.device).expand_as(sprite_class)
    appearance = order_depth(scene, place.mean, Appearance(sprite_class, order))
    found, appearance = revisit(scene, coarse, place, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    # Objects with swapped identities stay so when one is evaluated at a time, since each occupies
    # the position of the other. Hence once with all objects at their predictions.
    again, appearance = revisit(scene, coarse, expected, appearance, expected)
    found = select_likelier(scene, found, again, appearance, expected)
    expected = predict_from_other_frames(scene, found)
    appearance = order_depth(scene, found.place.mean, appearance)
    fine = SpriteClasses.fine(scene.renderer, FINE_WINDOW)
    found, appearance = revisit(scene, fine, found.place, appearance, expected)
    return found.place, expected, order_depth(scene, found.place.mean, appearance)


@torch.no_grad()
def _blocks(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Iterator[tuple[slice, GridPosterior]]:
    """Yield q, the weights of cells around the detections, in blocks of frames."""
    fine = SpriteClasses.fine(scene.renderer, FINE_WINDOW)
    for time, cells, detected in refine_positions(scene, fine, place, appearance, expected):
        q = GridPosterior.of(cells, detected, expected.during(time), scene.renderer)
        yield time, q._replace(appearance=appearance)


def _bound(
    scene: Scene[LayeredRenderer],
    place: PixelGaussian,
    expected: PixelGaussian,
    appearance: Appearance,
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q, up to terms that all searches of a clip share."""
    parts = [
        (q.means, q.detected, q.entropy()) for _, q in _blocks(scene, place, expected, appearance)
    ]
    means, detected, entropy = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    of_objects = entropy.sum(-1) + scene.dynamics.track_log_density(means, detected).float()
    nats = frame_llr(scene, scene.renderer.to_pixels(means), appearance).sum(1)
    nats = nats + scene.renderer.appearance_log_prior(appearance, scene.present)
    return nats + torch.where(scene.present, of_objects, 0.0).sum(1)


@dataclass(frozen=True)
class LayerSettings(SearchSettings):
    """Settings of the layered family."""

    num_sprite_classes: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        classes = self.num_sprite_classes
        require(1 <= classes <= 64, f"num_sprite_classes is {classes!r:.40}; give 1 to 64")


def build(
    settings: LayerSettings, data: DataConfig, generator: torch.Generator
) -> tuple[LayeredRenderer, LayeredTracker]:
    """Return the renderer with sprites that differ in brightness only, and the tracker."""
    renderer = LayeredRenderer(
        (data.height, data.width),
        channels=data.channels,
        num_classes=settings.num_sprite_classes,
        radius=settings.sprite_radius,
        initial_width=settings.sprite_width,
        pixels_per_unit=settings.pixels_per_unit,
    )
    return renderer, LayeredTracker(settings.window)


FAMILY = Family("layers", LayerSettings, build, restarts=True, keeps_colour=True)
