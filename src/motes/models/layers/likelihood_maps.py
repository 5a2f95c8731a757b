"""Likelihood maps of layered frames: one object of each sprite class at each nearby position."""

from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.layers.renderer import FINER, LayeredRenderer, opacity_at
from motes.models.layers.subpixel import ZOOM
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    WindowPosterior,
    left_to_right_order,
    mahalanobis,
    probabilities,
)
from motes.models.sprites.patches import Window, window_offsets


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
        self, v: Float[Tensor, "M side side C"], precision: Float[Tensor, " C"]
    ) -> Float[Tensor, "M features side side"]:
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

    Args:
        classes: the sprites.
        crop: the frame in the window.
        near: the window.
        context: the frame in the window, rendered without the object.
        prior: of the object's position.
        sprite_class: its class if that is known; no other is evaluated then, and K is 1.

    Law: equals a loop over classes and positions
    (test_layered_evaluate_window_equals_the_naive_loop).
    """
    features = context.features(crop, classes.precision) * near.inside
    offsets = window_offsets(classes.phases, classes.window).to(crop)
    away = near.centre + offsets - prior.mean[:, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
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

    Greedy, as `sprites.detection.detect`: the best object is rendered over the background, so
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
