"""How well a picture is explained with one object of each kind at each of many places."""

from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.layers.renderer import FINER, LayeredRenderer, opacity_at
from motes.models.layers.subpixel import ZOOM
from motes.models.sprites.likelihood_maps import (
    Look,
    PixelGaussian,
    from_left_to_right,
    mahalanobis,
    probabilities,
)
from motes.models.sprites.patches import Window, window_offsets


class Kinds(NamedTuple):
    """What looking needs of the renderer; `phases` and `window` are those of `places.SpriteTemplate`."""

    kernels: Float[Tensor, "K*phases*phases pictures taps taps"]
    table: Float[Tensor, "K phases*phases side side"]  # of `opacity_at`
    colours: Float[Tensor, "K C"]
    background: Float[Tensor, "height width C"]
    precision: Float[Tensor, " C"]
    log_shares: Float[Tensor, " K"]
    phases: int
    window: int

    @staticmethod
    def coarse(renderer: LayeredRenderer, window: int) -> "Kinds":
        """Kinds of objects that are anywhere in their pixel: a mean over places in it."""
        fine = Kinds.fine(renderer, window)
        return fine._replace(
            kernels=fine.kernels.unflatten(0, (len(fine.table), -1)).mean(1),
            table=fine.table.mean(1, keepdim=True),
            phases=1,
        )

    @staticmethod
    def fine(renderer: LayeredRenderer, window: int) -> "Kinds":
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
        return Kinds(
            kernels=kernels.flatten(0, 1),
            table=renderer.padded(),
            colours=renderer.colours(),
            background=renderer.background(),
            precision=renderer.scale().pow(-2),
            log_shares=renderer.kind_logits.log_softmax(-1),
            phases=opacity.shape[1],
            window=window,
        )

    @property
    def reach(self) -> int:
        """Pixels from the centre of a glyph to its border."""
        return self.kernels.shape[-1] // 2

    def around(self, mean: Float[Tensor, "M 2"]) -> Window:
        """The window in which an object is looked for."""
        return Window.around(mean[:, None], self.window + self.reach, self.image_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]


class Around(NamedTuple):
    """What a frame shows around one object without it: before it, behind it, and the rest."""

    behind: Float[Tensor, "M side side C"]
    front: Float[Tensor, "M side side C"]  # already weighted by its opacity
    clear: Float[Tensor, "M side side"]  # how much of what is behind shows

    def pictures(
        self, v: Float[Tensor, "M side side C"], precision: Float[Tensor, " C"]
    ) -> Float[Tensor, "M pictures side side"]:
        """The pictures that go with the kernels of `Kinds`."""
        F, b = self.clear[..., None], self.behind
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


class Found(NamedTuple):
    """What a frame tells of an object, if it is of each of some kinds."""

    look: Look  # M K, the posterior over places
    evidence: Float[Tensor, "M K"]  # nats by which the frame is better explained than without it

    def of_kind(self, kind: Int[Tensor, " M"]) -> Look:
        """The posterior over places for an object of a kind."""
        rows = torch.arange(len(kind), device=kind.device)
        centre, log_weights, told = (
            part[rows, kind] for part in (self.look.centre, self.look.log_weights, self.look.told)
        )
        return self.look._replace(centre=centre, log_weights=log_weights, told=told)


class Cast(NamedTuple):
    """The objects of frames as they stand for now."""

    mean: Float[Tensor, "M N 2"]
    kind: Int[Tensor, "M N"]
    present: Bool[Tensor, "M N"]


def around(
    kinds: Kinds, near: Window, cast: Cast, n: int, order: Int[Tensor, "M N"] | None
) -> Around:
    """What a frame shows around object n without it.

    Args:
        kinds: how objects look.
        near: the window of object n.
        cast: all objects.
        n: the one that is left out.
        order: from the back to the front; if None, nobody knows, and all others are taken to
            stand in front: then what they cover tells nothing, rather than something wrong.
    """
    others = cast.present.clone()
    others[:, n] = False
    opacity = opacity_at(kinds.table, cast.kind, cast.mean, near.x, near.y)
    opacity = opacity * others[..., None, None]
    behind = kinds.background.flatten(0, 1)[near.flat[:, 0]]
    front, clear = torch.zeros_like(behind), torch.ones_like(behind[..., 0])
    colour = kinds.colours[cast.kind]
    own_turn = (
        torch.zeros_like(others[:, 0]) if order is not None else torch.ones_like(others[:, 0])
    )
    places = range(cast.mean.shape[1])
    for place in places:
        m = torch.full_like(cast.kind[:, 0], place) if order is None else order[:, place]
        own_turn = own_turn | (m == n)
        a = opacity.take_along_dim(m[:, None, None, None], 1)[:, 0, ..., None]
        c = colour.take_along_dim(m[:, None, None], 1)[:, :, None]
        before = own_turn[:, None, None, None]
        behind = torch.where(before, behind, behind + a * (c - behind))
        front = torch.where(before, front + a * (c - front), front)
        clear = torch.where(before[..., 0], clear * (1 - a[..., 0]), clear)
    return Around(behind, front, clear)


def look(
    kinds: Kinds,
    seen: Float[Tensor, "M side side C"],
    near: Window,
    rest: Around,
    prior: PixelGaussian,
    kind: Int[Tensor, " M"] | None = None,
) -> Found:
    """How well an object of each kind at each place of a window would explain a frame.

    Args:
        kinds: how objects look.
        seen: what the frame shows through the window.
        near: the window.
        rest: what it would show there without the object.
        prior: where the object should be.
        kind: its kind, if that is known: then no other is tried.

    Law: equals a loop over kinds and places (test_looking_at_a_picture_equals_the_naive_loop).
    """
    pictures = rest.pictures(seen, kinds.precision) * near.inside
    offsets = window_offsets(kinds.phases, kinds.window).to(seen)
    away = near.centre + offsets - prior.mean[:, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    score = _scores(kinds, pictures, kind)
    joint = score + before[:, None]
    after = joint.log_softmax(-1)
    told = (probabilities(after) * score).sum(-1)
    centre = near.centre.to(seen).expand(*told.shape, 2)
    looked = Look(centre, after, offsets, 1 / kinds.phases, told)
    return Found(looked, joint.logsumexp(-1))


def _scores(
    kinds: Kinds, pictures: Float[Tensor, "M pictures side side"], kind: Int[Tensor, " M"] | None
) -> Float[Tensor, "M K places"]:
    """Nats that objects of all kinds gain at all places, or those of their own."""
    K = len(kinds.colours)
    if kind is None:
        of_all: Tensor = conv2d(pictures, kinds.kernels).unflatten(1, (K, -1))
        return of_all.flatten(2)
    side = 2 * kinds.window + 1
    scores = pictures.new_empty(len(kind), len(kinds.kernels) // K, side, side)
    for k, kernels in enumerate(kinds.kernels.unflatten(0, (K, -1))):
        rows = (kind == k).nonzero()[:, 0]
        scores[rows] = conv2d(pictures[rows], kernels)
    return scores.flatten(1)[:, None]


def detect(
    kinds: Kinds,
    v: Float[Tensor, "M height width C"],
    num_objects: Int[Tensor, " M"],
    slots: int,
) -> tuple[Float[Tensor, "M N 2"], Int[Tensor, "M N"]]:
    """Places and kinds of objects in a frame of which nothing is known, from left to right.

    The best is taken first and painted over the background, so that the next one explains what
    is left.
    """
    height, width = kinds.image_size
    taken = v.new_zeros(len(v), 0, 2)
    kind = num_objects.new_zeros(len(v), 0)
    x, y = (torch.arange(size, device=v.device) for size in (width, height))
    mean = kinds.background.expand(len(v), -1, -1, -1)
    nothing = torch.zeros_like(mean)
    for _ in range(slots):
        rest = Around(mean, nothing, torch.ones_like(mean[..., 0]))
        pictures = rest.pictures(v, kinds.precision)
        score = (
            conv2d(pictures, kinds.kernels, padding=kinds.reach) + kinds.log_shares[:, None, None]
        )
        best = score.flatten(1).argmax(1)
        which, place = best // (height * width), best % (height * width)
        where = torch.stack([place % width, place // width], -1).to(v)
        a = opacity_at(kinds.table, which, where, x, y)[..., None]
        mean = mean + a * (kinds.colours[which][:, None, None] - mean)
        taken, kind = torch.cat([taken, where[:, None]], 1), torch.cat([kind, which[:, None]], 1)
    order = from_left_to_right(taken, num_objects, width)
    return taken.take_along_dim(order[..., None], 1), kind.take_along_dim(order, 1)
