"""How well a picture is explained with one object of each kind at each of many places."""

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
    """What looking needs of the renderer; `phases` and `window` are those of `places.SpriteTemplate`."""

    kernels: Float[Tensor, "K*phases*phases pictures taps taps"]
    table: Float[Tensor, "K phases*phases side side"]  # of `opacity_at`
    colours: Float[Tensor, "K C"]
    background: Float[Tensor, "height width C"]
    precision: Float[Tensor, " C"]
    log_class_prior: Float[Tensor, " K"]
    phases: int
    window: int

    @staticmethod
    def coarse(renderer: LayeredRenderer, window: int) -> "SpriteClasses":
        """Kinds of objects that are anywhere in their pixel: a mean over places in it."""
        fine = SpriteClasses.fine(renderer, window)
        return fine._replace(
            kernels=fine.kernels.unflatten(0, (len(fine.table), -1)).mean(1),
            table=fine.table.mean(1, keepdim=True),
            phases=1,
        )

    @staticmethod
    def fine(renderer: LayeredRenderer, window: int) -> "SpriteClasses":
        """Kinds of objects in each cell of their pixel.

        With an object of opacity a and colour c before a picture b, what is left unexplained of
        a pixel v goes from r = v - b to r - a (c - b), which gains

            a c r - a (b r) - (a c)^2 / 2 + (a^2 c) b - a^2 (b^2 / 2)

        nats times the precision: products of a kernel and a picture. [Choice 31]
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
        """Pixels from the centre of a glyph to its border."""
        return self.kernels.shape[-1] // 2

    def window_around(self, mean: Float[Tensor, "M 2"]) -> Window:
        """The window in which an object is looked for."""
        return Window.around(mean[:, None], self.window + self.radius, self.image_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]


class ContextLayers(NamedTuple):
    """What a frame shows around one object without it: before it, behind it, and the rest."""

    behind: Float[Tensor, "M side side C"]
    front: Float[Tensor, "M side side C"]  # already weighted by its opacity
    transmittance: Float[Tensor, "M side side"]  # how much of what is behind shows

    def pictures(
        self, v: Float[Tensor, "M side side C"], precision: Float[Tensor, " C"]
    ) -> Float[Tensor, "M pictures side side"]:
        """The pictures that go with the kernels of `SpriteClasses`."""
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
    """What a frame tells of an object, if it is of each of some kinds."""

    windows: WindowPosterior  # M K, the posterior over places
    evidence: Float[Tensor, "M K"]  # nats by which the frame is better explained than without it

    def select_class(self, sprite_class: Int[Tensor, " M"]) -> WindowPosterior:
        """The posterior over places for an object of a kind."""
        rows = torch.arange(len(sprite_class), device=sprite_class.device)
        centre, log_weights, log_likelihood_ratio = (
            part[rows, sprite_class]
            for part in (
                self.windows.centre,
                self.windows.log_weights,
                self.windows.log_likelihood_ratio,
            )
        )
        return self.windows._replace(
            centre=centre, log_weights=log_weights, log_likelihood_ratio=log_likelihood_ratio
        )


class FrameObjects(NamedTuple):
    """The objects of frames as they stand for now."""

    mean: Float[Tensor, "M N 2"]
    sprite_class: Int[Tensor, "M N"]
    present: Bool[Tensor, "M N"]


def render_context(
    classes: SpriteClasses,
    near: Window,
    cast: FrameObjects,
    n: int,
    order: Int[Tensor, "M N"] | None,
) -> ContextLayers:
    """What a frame shows around object n without it.

    Args:
        classes: how objects look.
        near: the window of object n.
        cast: all objects.
        n: the one that is left out.
        order: from the back to the front; if None, nobody knows, and all others are taken to
            stand in front: then what they cover tells nothing, rather than something wrong.
    """
    others = cast.present.clone()
    others[:, n] = False
    opacity = opacity_at(classes.table, cast.sprite_class, cast.mean, near.x, near.y)
    opacity = opacity * others[..., None, None]
    behind = classes.background.flatten(0, 1)[near.flat[:, 0]]
    front, transmittance = torch.zeros_like(behind), torch.ones_like(behind[..., 0])
    colour = classes.colours[cast.sprite_class]
    own_turn = (
        torch.zeros_like(others[:, 0]) if order is not None else torch.ones_like(others[:, 0])
    )
    places = range(cast.mean.shape[1])
    for place in places:
        m = torch.full_like(cast.sprite_class[:, 0], place) if order is None else order[:, place]
        own_turn = own_turn | (m == n)
        a = opacity.take_along_dim(m[:, None, None, None], 1)[:, 0, ..., None]
        c = colour.take_along_dim(m[:, None, None], 1)[:, :, None]
        before = own_turn[:, None, None, None]
        behind = torch.where(before, behind, behind + a * (c - behind))
        front = torch.where(before, front + a * (c - front), front)
        transmittance = torch.where(before[..., 0], transmittance * (1 - a[..., 0]), transmittance)
    return ContextLayers(behind, front, transmittance)


def evaluate_window(
    classes: SpriteClasses,
    seen: Float[Tensor, "M side side C"],
    near: Window,
    rest: ContextLayers,
    prior: PixelGaussian,
    sprite_class: Int[Tensor, " M"] | None = None,
) -> ClassPosteriors:
    """How well an object of each kind at each place of a window would explain a frame.

    Args:
        classes: how objects look.
        seen: what the frame shows through the window.
        near: the window.
        rest: what it would show there without the object.
        prior: where the object should be.
        sprite_class: its kind, if that is known: then no other is tried.

    Law: equals a loop over kinds and places (test_layered_evaluate_window_equals_the_naive_loop).
    """
    pictures = rest.pictures(seen, classes.precision) * near.inside
    offsets = window_offsets(classes.phases, classes.window).to(seen)
    away = near.centre + offsets - prior.mean[:, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    score = _scores(classes, pictures, sprite_class)
    joint = score + before[:, None]
    after = joint.log_softmax(-1)
    log_likelihood_ratio = (probabilities(after) * score).sum(-1)
    centre = near.centre.to(seen).expand(*log_likelihood_ratio.shape, 2)
    looked = WindowPosterior(centre, after, offsets, 1 / classes.phases, log_likelihood_ratio)
    return ClassPosteriors(looked, joint.logsumexp(-1))


def _scores(
    classes: SpriteClasses,
    pictures: Float[Tensor, "M pictures side side"],
    sprite_class: Int[Tensor, " M"] | None,
) -> Float[Tensor, "M K places"]:
    """Nats that objects of all kinds gain at all places, or those of their own."""
    K = len(classes.colours)
    if sprite_class is None:
        of_all: Tensor = conv2d(pictures, classes.kernels).unflatten(1, (K, -1))
        return of_all.flatten(2)
    side = 2 * classes.window + 1
    scores = pictures.new_empty(len(sprite_class), len(classes.kernels) // K, side, side)
    for k, kernels in enumerate(classes.kernels.unflatten(0, (K, -1))):
        rows = (sprite_class == k).nonzero()[:, 0]
        scores[rows] = conv2d(pictures[rows], kernels)
    return scores.flatten(1)[:, None]


def detect(
    classes: SpriteClasses,
    v: Float[Tensor, "M height width C"],
    num_objects: Int[Tensor, " M"],
    slots: int,
) -> tuple[Float[Tensor, "M N 2"], Int[Tensor, "M N"]]:
    """Places and kinds of objects in a frame of which nothing is known, from left to right.

    The best is taken first and painted over the background, so that the next one explains what
    is left.
    """
    height, width = classes.image_size
    select = v.new_zeros(len(v), 0, 2)
    sprite_class = num_objects.new_zeros(len(v), 0)
    x, y = (torch.arange(size, device=v.device) for size in (width, height))
    mean = classes.background.expand(len(v), -1, -1, -1)
    nothing = torch.zeros_like(mean)
    for _ in range(slots):
        rest = ContextLayers(mean, nothing, torch.ones_like(mean[..., 0]))
        pictures = rest.pictures(v, classes.precision)
        score = (
            conv2d(pictures, classes.kernels, padding=classes.radius)
            + classes.log_class_prior[:, None, None]
        )
        best = score.flatten(1).argmax(1)
        which, place = best // (height * width), best % (height * width)
        where = torch.stack([place % width, place // width], -1).to(v)
        a = opacity_at(classes.table, which, where, x, y)[..., None]
        mean = mean + a * (classes.colours[which][:, None, None] - mean)
        select, sprite_class = (
            torch.cat([select, where[:, None]], 1),
            torch.cat([sprite_class, which[:, None]], 1),
        )
    order = left_to_right_order(select, num_objects, width)
    return select.take_along_dim(order[..., None], 1), sprite_class.take_along_dim(order, 1)
