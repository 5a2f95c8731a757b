"""A search once more, with places that a person gave.

A pin is a further observation of a_t, so tracks are compared by

    log p(v, a) + sum over pins of log N(pin; a_t)

An object whose track is far from its pin is searched for anew, from the pin to both sides. A family
gives the step of its search and its bound as `Steps`.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import Gaussian
from motes.models.protocols import Pins
from motes.models.sprites import search
from motes.models.sprites.forward_pass import in_pixels
from motes.models.sprites.likelihood_maps import (
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    determinant,
    pixel_mahalanobis,
)
from motes.models.sprites.renderer import SpriteRenderer


class PixelPins(NamedTuple):
    """Pins in pixels; without meaning where none is given."""

    place: PixelGaussian  # B N T
    given: Bool[Tensor, "B N T"]

    def condition(self, prior: PixelGaussian) -> PixelGaussian:
        """Return the predictions conditioned on the pins.

        Law: the product of two Gaussians (test_predictions_are_conditioned_on_pins).
        """
        mean, covariance = prior
        gain = covariance @ torch.linalg.inv(covariance + self.place.covariance)
        moved = mean + (gain @ (self.place.mean - mean)[..., None])[..., 0]
        return PixelGaussian.where(
            self.given, PixelGaussian(moved, covariance - gain @ covariance), prior
        )

    def log_density(self, place: PixelGaussian) -> Float[Tensor, " B"]:
        """Return the log density of the pins of each clip, given where the objects are."""
        spread = place.covariance + self.place.covariance
        away = (self.place.mean - place.mean)[..., None, :]
        square = pixel_mahalanobis(away, spread)[..., 0]
        nats = -0.5 * (square + determinant(spread).log()) - math.log(2 * math.pi)
        return torch.where(self.given, nats, 0.0).sum((1, 2))

    def distance(self) -> Int[Tensor, "B N T"]:
        """Return how many frames the nearest pin of each object is away."""
        T = self.given.shape[2]
        time = torch.arange(T, device=self.given.device)
        apart = (time[:, None] - time).abs()  # frame, pin
        return torch.where(self.given[:, :, None], apart, T).amin(-1)

    def during(self, time: Int[Tensor, " some"]) -> "PixelPins":
        """Return the pins of some frames."""
        at = (slice(None), slice(None), time)
        return PixelPins(self.place.select(at), self.given[at])


def in_scene(scene: Scene[Any], pins: Pins) -> PixelPins:
    """Return pins in pixels, for the objects of a scene."""
    most = scene.present.shape[1]
    place = Gaussian(*(part[:, :most] for part in pins.place))
    return PixelPins(in_pixels(scene.renderer, place), pins.given[:, :most])


@runtime_checkable
class Steps(Protocol):
    """What the search of a family offers."""

    def revisit(self, scene: Scene[Any], guess: PixelGaussian, prior: PixelGaussian) -> Detections:
        """Return detections near a guess, given the prior."""

    def bound(
        self, scene: Scene[Any], found: Detections, expected: PixelGaussian
    ) -> Float[Tensor, " B"]:
        """Return the bound at the means of q."""


class SpriteSteps(NamedTuple):
    """Steps of the sprite family."""

    template: SpriteTemplate

    def revisit(
        self, scene: Scene[SpriteRenderer], guess: PixelGaussian, prior: PixelGaussian
    ) -> Detections:
        """Return detections near a guess, given the prior."""
        blocks = search.revisit_blocks(scene, self.template, guess, prior)
        return Detections.joined([part for *_, part in blocks], 2)

    def bound(
        self, scene: Scene[SpriteRenderer], found: Detections, expected: PixelGaussian
    ) -> Float[Tensor, " B"]:
        """Return the bound at the means of q."""
        return search._bound(scene, found, expected)


class Searched(NamedTuple):
    """Tracks after a further search."""

    found: Detections
    expected: PixelGaussian  # leave-one-out predictions
    clips: Int[Tensor, " some"]  # with tracks that were not found before


def search_again(
    scene: Scene[Any],
    found: Detections,
    pins: PixelPins,
    released: Bool[Tensor, "B N"],
    before: Steps,
    after: Steps,
) -> Searched:
    """Return detections and leave-one-out predictions: as found, or better ones by the pins.

    New tracks are taken where frames show the released objects at their pins, and where the bound
    with the log density of the pins rises.

    Args:
        scene: the clips.
        found: the tracks so far.
        pins: places of objects.
        released: objects whose track contradicts a pin and is searched for anew.
        before: steps of the search, for the bound of the tracks so far.
        after: the same for new tracks; they may change what they know of released objects.

    Law: a pin leads the search to another object
    (test_a_pin_far_from_the_track_changes_what_is_followed); a pin where nothing is does not
    (test_a_pin_where_nothing_is_keeps_the_track).
    """
    expected = search.predict_from_other_frames(scene, found)
    new = regrow(scene, after, found, pins, released)
    for _ in range(search.REVISITS):
        prior = pins.condition(search.predict_from_other_frames(scene, new))
        new, seen = _look(scene, after, new, prior, pins)
    later = search.predict_from_other_frames(scene, new)
    gained = _score(scene, after, new, later, pins) > _score(scene, before, found, expected, pins)
    # Frames of many grey levels outweigh any pin. Where they show an object at its pins, that
    # object is meant, even if another one explains more pixels.
    needed = pins.given & released[..., None]
    shown = (seen | ~needed).flatten(1).all(1) & needed.flatten(1).any(1)
    clips = (gained | shown).nonzero()[:, 0]
    # A pin is counted once: the detections are those of the frames alone.
    new = Detections(new.place, seen)
    return Searched(
        found.put(clips, new.select(clips)), expected.put(clips, later.select(clips)), clips
    )


def regrow(
    scene: Scene[Any],
    steps: Steps,
    found: Detections,
    pins: PixelPins,
    released: Bool[Tensor, "B N"],
) -> Detections:
    """Return the detections with released objects searched for from their pins to both sides.

    The frames that are searched grow by half in every step, so that predictions are from frames
    nearby.
    """
    free, distance = released[..., None], pins.distance()
    place = PixelGaussian.where(free & pins.given, pins.place, found.place)
    found = Detections(place, (found.detected & ~free) | (free & pins.given))
    reach, T = 1, found.detected.shape[2]
    while True:
        near = distance <= reach
        time = (free & near).any(1).any(0).nonzero()[:, 0]
        expected = search.predict_from_other_frames(scene, found)
        at = (slice(None), slice(None), time)
        part, own = scene.during(time), pins.during(time)
        here = Detections(found.place.select(at), found.detected[at])
        new, _ = _look(part, steps, here, own.condition(expected.select(at)), own)
        change = free & near & released.any(1)[:, None, None]
        means, covariances = (
            torch.where(
                change.reshape(*change.shape, *[1] * (old.ndim - 3)), old.index_copy(2, time, some),
                old,
            )
            for old, some in zip(found.place, new.place, strict=True)
        )  # fmt: skip
        detected = found.detected.index_copy(2, time, new.detected)
        detected = torch.where(change, detected, found.detected)
        found = Detections(PixelGaussian(means, covariances), detected)
        if reach >= T:
            return found
        reach += max(reach // 2, 1)


def _look(
    scene: Scene[Any], steps: Steps, found: Detections, prior: PixelGaussian, pins: PixelPins
) -> tuple[Detections, Bool[Tensor, "B N T"]]:
    """Return new detections, those by a pin among them, and which the frames show."""
    guess = PixelGaussian.where(found.detected, found.place, prior)
    new = steps.revisit(scene, guess, prior)
    return Detections(new.place, new.detected | pins.given), new.detected


def _score(
    scene: Scene[Any],
    steps: Steps,
    found: Detections,
    expected: PixelGaussian,
    pins: PixelPins,
) -> Float[Tensor, " B"]:
    """Return the bound at the means of q with the log density of the pins."""
    place = PixelGaussian.where(found.detected, found.place, expected)
    return steps.bound(scene, found, expected) + pins.log_density(place)
