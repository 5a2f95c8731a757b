"""The search for objects in pictures: where each is, of which kind, and who stands in front."""

from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes import kalman
from motes.lgssm import Dynamics
from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.picture import Looks, PictureRenderer, opacity_at
from motes.structured.places import TOLD, Look, Place, chosen, mahalanobis
from motes.structured.search import LOOKS, Sightings, predict_place
from motes.structured.windows import Window, window_offsets

TOO_FAR = 16.0  # four standard deviations, squared: a sighting in three thousand


class Photos(NamedTuple):
    """What a search knows: the frames, and the model so far."""

    frames: Float[Tensor, "B T height width C"]
    observed: Bool[Tensor, "B T"]
    num_objects: Int[Tensor, " B"]
    present: Bool[Tensor, "B N"]
    dynamics: Dynamics
    renderer: PictureRenderer

    def repeated(self, times: int) -> "Photos":
        """All clips, again and again."""
        return self._replace(
            frames=torch.cat([self.frames] * times),
            observed=torch.cat([self.observed] * times),
            num_objects=torch.cat([self.num_objects] * times),
            present=torch.cat([self.present] * times),
        )


class Kinds(NamedTuple):
    """What looking needs of the renderer; `phases` is that of `places.Glyph`."""

    kernels: Float[Tensor, "K*phases*phases pictures taps taps"]
    table: Float[Tensor, "K phases*phases side side"]  # of `opacity_at`
    colours: Float[Tensor, "K C"]
    background: Float[Tensor, "height width C"]
    precision: Float[Tensor, " C"]
    log_shares: Float[Tensor, " K"]
    phases: int

    @staticmethod
    def coarse(renderer: PictureRenderer) -> "Kinds":
        """Kinds of objects that are anywhere in their pixel: a mean over places in it."""
        fine = Kinds.fine(renderer)
        K, P = fine.table.shape[:2]
        return fine._replace(
            kernels=fine.kernels.unflatten(0, (K, P)).mean(1),
            table=fine.table.mean(1, keepdim=True),
            phases=1,
        )

    @staticmethod
    def fine(renderer: PictureRenderer) -> "Kinds":
        """Kinds of objects in each cell of their pixel.

        With an object of opacity a and colour c before a picture b, what is left unexplained of
        a pixel v goes from r = v - b to r - a (c - b), which gains

            a c r - a (b r) - (a c)^2 / 2 + (a^2 c) b - a^2 (b^2 / 2)

        nats times the precision: products of a kernel and a picture. [Choice 31]
        """
        opacity = renderer.opacities().flatten(1, 2)
        a = opacity[:, :, None]
        c = renderer.colours()[:, None, :, None, None]
        kernels = torch.cat([a * c, a, (a * c).square(), a.square() * c, a.square()], 2)
        return Kinds(
            kernels=kernels.flatten(0, 1),
            table=renderer.padded(),
            colours=renderer.colours(),
            background=renderer.background(),
            precision=renderer.scale().pow(-2),
            log_shares=renderer.kind_logits.log_softmax(-1),
            phases=renderer.opacities().shape[1],
        )

    @property
    def reach(self) -> int:
        """Pixels from the centre of a glyph to its border."""
        return self.kernels.shape[-1] // 2

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
    """Scores of all kinds at all places of a window, the prior of places included."""

    centre: Float[Tensor, "M 2"]
    joint: Float[Tensor, "M K places"]
    before: Float[Tensor, "M places"]
    offsets: Float[Tensor, "places 2"]
    cell: float

    def evidence(self) -> Float[Tensor, "M K"]:
        """Nats by which the frame is better explained with an object of each kind than without."""
        return self.joint.logsumexp(-1)

    def of_kind(self, kind: Int[Tensor, " M"]) -> Look:
        """The posterior over places for an object of a kind."""
        joint = self.joint.take_along_dim(kind[:, None, None], 1)[:, 0]
        after = joint.log_softmax(-1)
        told = (after.exp() * (joint - self.before)).sum(-1)
        return Look(self.centre, after, self.offsets, self.cell, told)


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
    kinds: Kinds, v: Float[Tensor, "M pixels C"], near: Window, rest: Around, prior: Place
) -> Found:
    """How well an object of each kind at each place of a window would explain a frame.

    Law: equals a loop over kinds and places (test_looking_at_a_picture_equals_the_naive_loop).
    """
    flat = near.flat[:, 0]
    seen = v.gather(1, flat.flatten(1)[..., None].expand(-1, -1, v.shape[-1]))
    pictures = rest.pictures(seen.view(*flat.shape, -1), kinds.precision)
    pictures = pictures * near.inside
    score = conv2d(pictures, kinds.kernels).unflatten(1, (len(kinds.colours), -1)).flatten(2)
    offsets = window_offsets(kinds.phases, near.x.shape[-1] // 2 - kinds.reach).to(v)
    away = near.centre + offsets - prior.mean[:, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    joint = score + before[:, None]
    return Found(near.centre[:, 0].to(v), joint, before, offsets, 1 / kinds.phases)


def detect(
    kinds: Kinds, v: Float[Tensor, "M pixels C"], num_objects: Int[Tensor, " M"], slots: int
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
        pictures = rest.pictures(v.view(mean.shape), kinds.precision)
        score = (
            conv2d(pictures, kinds.kernels, padding=kinds.reach) + kinds.log_shares[:, None, None]
        )
        best = score.flatten(1).argmax(1)
        which, place = best // (height * width), best % (height * width)
        where = torch.stack([place % width, place // width], -1).to(v)
        a = opacity_at(kinds.table, which, where, x, y)[..., None]
        mean = mean + a * (kinds.colours[which][:, None, None] - mean)
        taken, kind = torch.cat([taken, where[:, None]], 1), torch.cat([kind, which[:, None]], 1)
    spare = torch.arange(slots, device=v.device) >= num_objects[:, None]
    order = (taken[..., 0] + spare * 2.0 * width).argsort(1)
    return taken.take_along_dim(order[..., None], 1), kind.take_along_dim(order, 1)


def follow(
    scene: Photos, kinds: Kinds, trusted: Bool[Tensor, "B T"], window: int
) -> tuple[Sightings, Int[Tensor, "B N"]]:
    """Finds the objects in the first trusted frame and follows them forwards; places and kinds.

    What every frame tells of an object's kind is added up, and the likeliest so far is believed.
    """
    renderer, present = scene.renderer, scene.present
    (B, N), T = present.shape, scene.observed.shape[1]
    components = scene.dynamics.components()
    belief = kalman.Belief(components.initial_mean, components.initial_covariance)
    log_weights = scene.dynamics.log_weights().expand(B, N, -1)
    video = scene.frames.flatten(2, 3)
    first = trusted.int().argmax(1)
    start, kind = detect(kinds, video[torch.arange(B), first], scene.num_objects, N)
    wide = (kinds.reach**2 / 4 * torch.eye(2, device=start.device)).expand(B, N, 2, 2)
    tally = kinds.log_shares.expand(B, N, -1)
    found = []
    for t in range(T):
        prediction = predict_place(components, belief, log_weights, renderer)
        new = (first == t)[:, None].expand(B, N)
        guess = chosen(new, Place(start, wide), prediction)
        prior = chosen(new, Place(start, 1e6 * wide), prediction)
        place, told = Place(*(part.clone() for part in guess)), torch.zeros_like(guess.mean[..., 0])
        evidence = torch.zeros_like(tally)
        for _ in range(LOOKS):
            for n in range(N):
                near = Window.around(
                    place.mean[:, n : n + 1], window + kinds.reach, kinds.image_size
                )
                rest = around(kinds, near, Cast(place.mean, kind, present), n, None)
                its_prior = Place(prior.mean[:, n], prior.covariance[:, n])
                seen_n = look(kinds, video[:, t], near, rest, its_prior)
                evidence[:, n] = seen_n.evidence()
                looked = seen_n.of_kind((tally[:, n] + evidence[:, n]).argmax(-1))
                place.mean[:, n], place.covariance[:, n] = looked.place()
                told[:, n] = looked.told
        seen = trusted[:, t, None] & (told > TOLD)
        place = chosen(seen, place, guess)
        tally = torch.where(seen[..., None], tally + evidence, tally)
        kind = torch.where(seen, tally.argmax(-1), kind)
        found.append(Sightings(place, seen))
        position = renderer.from_pixels(place.mean)[:, :, None]
        belief, log_density = kalman.update(components, *belief, position, seen[..., None])
        log_weights = log_weights + log_density
        belief = kalman.predict(components, *belief)
    means, covariances = zip(*(sighting.place for sighting in found), strict=True)
    place = Place(torch.stack(means, 2), torch.stack(covariances, 2))
    return Sightings(place, torch.stack([sighting.seen for sighting in found], 2)), kind


def revisit(
    scene: Photos, kinds: Kinds, guess: Place, looks: Looks, expected: Place, window: int
) -> tuple[Look, Sightings, Looks]:
    """Looks at all frames at once, near a guess, with what is expected there as the prior.

    One object after the other, each time as the others stand; its kind is the one that all frames
    together speak for. A sighting that the other frames all but exclude is none: two objects that
    were mistaken for one another would stay so, each held where the other should be found.
    """
    B, T = scene.observed.shape
    N = scene.present.shape[1]

    def by_frame(values: Tensor) -> Tensor:
        return values.transpose(1, 2).flatten(0, 1)

    video, observed = scene.frames.flatten(0, 1).flatten(1, 2), scene.observed
    whole = looks.of_frames(T)
    present, kind = scene.present.repeat_interleave(T, 0), whole.kind.clone()
    means = by_frame(guess.mean).clone()
    found = []
    for n in range(N):
        prior = Place(*(part[:, n].flatten(0, 1) for part in expected))
        near = Window.around(means[:, n : n + 1], window + kinds.reach, kinds.image_size)
        rest = around(kinds, near, Cast(means, kind, present), n, whole.order)
        seen_n = look(kinds, video, near, rest, prior)
        evidence = torch.where(observed[..., None], seen_n.evidence().unflatten(0, (B, T)), 0.0)
        likely = (kinds.log_shares + evidence.sum(1)).argmax(-1)
        kind[:, n] = likely.repeat_interleave(T)
        looked = seen_n.of_kind(kind[:, n])
        place = looked.place()
        away = mahalanobis((place.mean - prior.mean)[:, None], prior.covariance)[:, 0]
        seen = observed.flatten() & (looked.told > TOLD) & (away < TOO_FAR)
        place = chosen(seen, place, prior)
        means[:, n] = place.mean
        found.append((looked, place, seen))
    looked = found[0][0]

    def by_object(parts: list[Tensor]) -> Tensor:
        return torch.stack([part.unflatten(0, (B, T)) for part in parts], 1)

    cells = looked._replace(
        centre=by_object([look.centre for look, _, _ in found]),
        log_weights=by_object([look.log_weights for look, _, _ in found]),
        told=by_object([look.told for look, _, _ in found]),
    )
    place = Place(
        by_object([place.mean for _, place, _ in found]),
        by_object([place.covariance for _, place, _ in found]),
    )
    sightings = Sightings(place, by_object([seen for _, _, seen in found]))
    return cells, sightings, looks._replace(kind=kind[::T])


def arrange(scene: Photos, places: Float[Tensor, "B N T 2"], looks: Looks) -> Looks:
    """The looks with the order that explains the frames best, two objects exchanged at a time."""
    positions = scene.renderer.from_pixels(places)

    def explained(order: Tensor) -> Tensor:
        tried = looks._replace(order=order)
        nats = scene.renderer.log_likelihood(positions, scene.present, scene.frames, tried)
        return torch.where(scene.observed, nats, 0.0).sum(1)

    order, best = looks.order, explained(looks.order)
    N = order.shape[1]
    for i in range(N):
        for j in range(i + 1, N):
            swapped = order.clone()
            swapped[:, [i, j]] = order[:, [j, i]]
            nats = explained(swapped)
            better = nats > best
            order, best = torch.where(better[:, None], swapped, order), nats.maximum(best)
    return looks._replace(order=order)


def likelier(
    scene: Photos, one: Sightings, other: Sightings, looks: Looks, expected: Place
) -> Sightings:
    """Of each frame the sightings that explain it better, what is expected being the prior."""
    renderer, present = scene.renderer, scene.present[..., None]

    def explained(means: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B T"]:
        positions = renderer.from_pixels(means)
        nats = renderer.log_likelihood(positions, scene.present, scene.frames, looks)
        away = mahalanobis((means - expected.mean)[..., None, :], expected.covariance)[..., 0]
        return nats - 0.5 * torch.where(present, away, 0.0).sum(1)

    better = (explained(other.place.mean) > explained(one.place.mean))[:, None].expand_as(one.seen)
    place = chosen(better, other.place, one.place)
    return Sightings(place, torch.where(better, other.seen, one.seen))
