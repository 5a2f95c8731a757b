"""Corrections of a person: pin an object, forbid a detection, swap two objects from a frame on.

A pin is an observation of a_t with a small variance, and inference answers anew:

    q(a_t | v, pin) ~ q(a_t | v) N(pin; a_t, sd^2)              in frames with a detection
                      p(a_t | other frames) N(pin; a_t, sd^2)   in frames without

Objects keep the identity of the frame in which both were first detected. If a pin contradicts its
track, tails of tracks are exchanged while that raises

    log p(a) + sum over pins of log p(pin | a)

over all frames from which two objects may be exchanged. If its track is still elsewhere, the
object is searched for anew from the pin. Corrections are applied in their order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError, require
from motes.kalman.model import Gaussian
from motes.models.model import Model
from motes.models.protocols import Pins

MAX_EXCHANGES = 8  # of tails, for one pin
CONTRADICTION = 13.8  # squared distance of a detection from its pin: 0.1 % of chi-squared, 2 dof
MAX_CORRECTIONS = 10_000
ROUNDING = 1e-6  # nats


@dataclass(frozen=True)
class Pin:
    """An object is at a place, in pixels of the frames, with a standard deviation."""

    object: int
    frame: int
    x: float
    y: float
    sd: float = 0.5
    clip: int = 0


@dataclass(frozen=True)
class Forbid:
    """What was detected from `frame` to before `end` is no object, or not this one.

    With `x`, `y`: pixels within `radius` are no object, whatever the tracks say. Without: the
    object's detections are dropped, and it is predicted there.
    """

    frame: int
    end: int | None = None  # excluded; None: this frame alone
    object: int | None = None
    x: float | None = None
    y: float | None = None
    radius: float = 3.0
    clip: int = 0


@dataclass(frozen=True)
class Swap:
    """Two objects exchange their identities from a frame on."""

    object: int
    other: int
    frame: int
    clip: int = 0


Correction = Pin | Forbid | Swap
KINDS: dict[str, type[Pin] | type[Forbid] | type[Swap]] = {
    "pin": Pin,
    "forbid": Forbid,
    "swap": Swap,
}


class Observations(NamedTuple):
    """The moments of q where objects were detected or localized; elsewhere without meaning."""

    positions: Float[Tensor, "B N T 2"]
    covariances: Float[Tensor, "B N T 2 2"]
    detected: Bool[Tensor, "B N T"]
    localized: Bool[Tensor, "B N T"]  # detected, or inferred to be occluded [Choice 40]
    forbidden: Bool[Tensor, "B N T"] | None = None  # detections dropped by a person

    def exchanged(self, clip: int, first: int, second: int, frame: int) -> "Observations":
        """Return the same with two objects of a clip exchanged from a frame on."""
        parts = [part.clone() for part in self if part is not None]
        for part in parts:
            tails = part[clip, [second, first], frame:].clone()
            part[clip, [first, second], frame:] = tails
        return Observations(*parts)


def as_corrections(given: Any) -> list[Correction]:
    """Return corrections from objects or from mappings with a `kind`, as files hold them."""
    found: list[Correction] = []
    if not isinstance(given, Iterable | None) or isinstance(given, Mapping | str):
        raise InputError(f"corrections are a {type(given).__name__}; give a list")
    for number, entry in enumerate([] if given is None else given):
        require(number < MAX_CORRECTIONS, f"got more than {MAX_CORRECTIONS} corrections")
        found.append(_from_mapping(entry, number) if isinstance(entry, Mapping) else entry)
        if not isinstance(found[-1], Correction):
            raise InputError(
                f"correction {number} is a {type(entry).__name__}; give a Pin, Forbid, Swap or dict"
            )
    return found


def as_mapping(correction: Correction) -> dict[str, Any]:
    """Return a correction as a flat mapping with its `kind`; `as_corrections` reads it."""
    kind = next(name for name, known in KINDS.items() if isinstance(correction, known))
    values = {name: value for name, value in vars(correction).items() if value is not None}
    return {"kind": kind, **values}


def _from_mapping(entry: Mapping[str, Any], number: int) -> Correction:
    values = {name: value for name, value in entry.items() if value not in (None, "")}
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise InputError(f"correction {number} has kind {kind!r:.40}; give {', '.join(KINDS)}")
    known = KINDS[kind].__dataclass_fields__
    unknown = sorted(set(values) - set(known))
    require(
        not unknown, f"correction {number}: a {kind} has no {', '.join(map(str, unknown))[:80]}"
    )
    try:
        typed: dict[str, Any] = {
            name: float(value) if name in ("x", "y", "sd", "radius") else _whole(value)
            for name, value in values.items()
        }
        return KINDS[kind](**typed)
    except (TypeError, ValueError) as error:
        raise InputError(f"correction {number}, a {kind}: {str(error)[:120]}") from None


def _whole(value: Any) -> int:
    number = float(value)
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


def check_corrections(
    corrections: list[Correction],
    num_clips: int,
    num_frames: int,
    num_objects: Int[Tensor, " B"] | None,
) -> None:
    """Raise `InputError` unless every correction names a clip, frames and objects there are."""
    for number, correction in enumerate(corrections):
        what, clip = f"correction {number}", correction.clip
        require(
            0 <= clip < num_clips,
            f"{what} is in clip {clip}; the clips are 0 to {num_clips - 1}",
        )
        count = MAX_CORRECTIONS if num_objects is None else int(num_objects[clip])
        names = [correction.object] + ([correction.other] if isinstance(correction, Swap) else [])
        for name in names:
            require(
                name is None or 0 <= name < count,
                f"{what} names object {name}; the objects of clip {clip} are 0 to {count - 1}",
            )
        end = correction.end if isinstance(correction, Forbid) else None
        last = correction.frame + 1 if end is None else end
        require(
            0 <= correction.frame < last <= num_frames,
            f"{what} is in frames {correction.frame}:{last}; the frames are 0 to {num_frames - 1}",
        )
        if isinstance(correction, Pin):
            numbers = torch.tensor([correction.x, correction.y, correction.sd])
            require(
                bool(numbers.isfinite().all()) and correction.sd > 0,
                f"{what} is at {correction.x}, {correction.y} with sd {correction.sd}; "
                "give numbers, sd above 0",
            )
        elif isinstance(correction, Forbid):
            placed = correction.x is not None and correction.y is not None
            require(
                placed or correction.object is not None,
                f"{what} forbids nothing; give an object, or x and y",
            )
        elif correction.object == correction.other:
            raise InputError(f"{what} swaps object {correction.object} with itself; give two")


def without_forbidden(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    corrections: list[Correction],
) -> Float[Tensor, "B T height width *channels"]:
    """Return the frames with pixels of forbidden places black.

    Frames with a background of their own, of the layered family, are returned as they are: there
    the detections are dropped instead.
    """
    places = [entry for entry in corrections if isinstance(entry, Forbid) and entry.x is not None]
    if not places or not model.black_and_white:
        return frames
    frames = frames.clone()
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in frames.shape[2:4]), indexing="ij")
    for entry in places:
        away = (columns - float(entry.x or 0)).square() + (rows - float(entry.y or 0)).square()
        part = frames[entry.clip, entry.frame : _end(entry)]
        part[:, away <= entry.radius**2] = 0
    return frames


SearchAgain = Callable[[Observations, Pins, Bool[Tensor, "B N"]], Observations]


@torch.no_grad()
def apply_corrections(
    model: Model,
    seen: Observations,
    corrections: list[Correction],
    num_objects: Int[Tensor, " B"],
    search_again: SearchAgain | None = None,
) -> Observations:
    """Return the detections after all corrections, in their order.

    Args:
        model: of the objects.
        seen: the detections before.
        corrections: of a person.
        num_objects: of each clip.
        search_again: returns the detections of a search that starts from the detections so far and
            obeys pins; called if pins are far from the tracks of their objects, the last argument.

    Law: a pin is the conditional of the dense Gaussian
    (test_a_pin_is_the_conditional_of_the_dense_gaussian); a pin far from every track changes what
    is followed (test_a_pin_far_from_the_track_changes_what_is_followed).
    """
    pins: list[Pin] = []
    for entry in corrections:
        if isinstance(entry, Swap):
            seen = seen.exchanged(entry.clip, entry.object, entry.other, entry.frame)
            pins = [_renamed(pin, entry) for pin in pins]
        elif isinstance(entry, Forbid):
            seen = _drop(model, seen, entry)
        else:
            pins.append(entry)
            seen = _mend_identities(model, seen, pins, int(num_objects[entry.clip]))
    if search_again is not None:
        seen = _search_from_pins(model, seen, pins, search_again)
    for pin in pins:
        seen = _observe(model, seen, pin)
    return seen


def _search_from_pins(
    model: Model, seen: Observations, pins: list[Pin], search_again: SearchAgain
) -> Observations:
    """Return the detections of a further search if the tracks of pinned objects are elsewhere."""
    B, N, T = seen.detected.shape
    released = torch.zeros(B, N, dtype=torch.bool, device=seen.detected.device)
    given = torch.zeros_like(seen.detected)
    means = torch.zeros_like(seen.positions, dtype=torch.float64)
    covariances = torch.eye(2).to(means).expand(B, N, T, 2, 2).clone()
    for pin in pins:
        at = (pin.clip, pin.object, pin.frame)
        given[at] = True
        means[at], covariances[at] = _latent_pin(model, pin)
        released[at[:2]] |= _contradicts(model, _one(seen, pin.clip), pin)
    if not bool(released.any()):
        return seen
    found = search_again(seen, Pins(Gaussian(means, covariances), given), released)
    kept = ~released.any(1)
    parts = [
        torch.where(kept.view(-1, *[1] * (old.ndim - 1)), old, new)
        for old, new in zip(seen[:4], found[:4], strict=True)
    ]
    allowed = torch.ones_like(given) if seen.forbidden is None else ~seen.forbidden
    positions, covariances, detected, localized = parts
    return Observations(
        positions, covariances, detected & allowed, localized & allowed, seen.forbidden
    )


def _end(entry: Forbid) -> int:
    return entry.frame + 1 if entry.end is None else entry.end


def _renamed(pin: Pin, swap: Swap) -> Pin:
    """Return the pin of a track whose tail gets another name."""
    names = {swap.object: swap.other, swap.other: swap.object}
    if pin.clip != swap.clip or pin.frame < swap.frame or pin.object not in names:
        return pin
    return Pin(names[pin.object], pin.frame, pin.x, pin.y, pin.sd, pin.clip)


def _drop(model: Model, seen: Observations, entry: Forbid) -> Observations:
    """Return the detections without the forbidden ones."""
    span = slice(entry.frame, _end(entry))
    gone = torch.zeros_like(seen.detected)
    if entry.x is not None and entry.y is not None:
        place = seen.positions.new_tensor([entry.x, entry.y])
        away = (model.to_pixels(seen.positions[entry.clip, :, span]) - place).norm(dim=-1)
        near = away <= entry.radius
        if entry.object is None:
            gone[entry.clip, :, span] = near
        else:
            gone[entry.clip, entry.object, span] = near[entry.object]
    else:
        gone[entry.clip, entry.object, span] = True
    before = torch.zeros_like(gone) if seen.forbidden is None else seen.forbidden
    return Observations(*seen[:2], seen.detected & ~gone, seen.localized & ~gone, before | gone)


def _one(seen: Observations, clip: int, count: int | None = None) -> Observations:
    """Return a copy of one clip with its first `count` objects."""
    return Observations(*(part[clip : clip + 1, :count].clone() for part in seen[:4]))


def _places(model: Model, seen: Observations) -> Gaussian:
    """Return the distribution of a_t of one clip: q, or the prediction where not detected."""
    expected = model.dynamics.leave_one_out(seen.positions.double(), seen.detected)
    flags = seen.detected[..., None]
    return Gaussian(
        torch.where(flags, seen.positions.double(), expected.mean)[0],
        torch.where(flags[..., None], seen.covariances.double(), expected.covariance)[0],
    )


def _latent_pin(model: Model, pin: Pin) -> Gaussian:
    """Return the pin in latent units."""
    inverse = model.pixel_matrix.double().inverse()
    place = torch.tensor([pin.x, pin.y], dtype=torch.float64, device=model.device)
    return Gaussian(
        inverse @ (place - model.pixel_offset.double()), pin.sd**2 * inverse @ inverse.T
    )


def _pin_score(
    pin: Gaussian, mean: Float[Tensor, "N 2"], covariance: Float[Tensor, "N 2 2"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return log p(pin | place of each object), up to a constant, and the squared distances."""
    spread = covariance + pin.covariance
    away = (mean - pin.mean)[..., None]
    distance = (away.mT @ torch.linalg.solve(spread, away))[..., 0, 0]
    return -0.5 * (distance + torch.logdet(spread)), distance


def _mend_identities(model: Model, seen: Observations, pins: list[Pin], count: int) -> Observations:
    """Return the detections with tails exchanged so that the newest pin agrees with its track."""
    newest = pins[-1]
    clip, touched = newest.clip, {newest.object}
    mine = [pin for pin in pins if pin.clip == clip]
    if count == 1 or not _contradicts(model, _one(seen, clip), newest):
        return seen
    for _ in range(MAX_EXCHANGES):
        gains = _exchange_gains(model, _one(seen, clip, count), mine)
        chosen = torch.tensor([n in touched for n in range(count)], device=gains.device)
        gains[~(chosen[:, None] | chosen)] = -torch.inf
        gain, best = gains.flatten().max(0)
        if not float(gain) > ROUNDING:
            break
        pair, frame = divmod(int(best), gains.shape[2])
        first, second = divmod(pair, count)
        seen = seen.exchanged(clip, first, second, frame)
        touched |= {first, second}
    return seen


def _contradicts(model: Model, seen: Observations, pin: Pin) -> bool:
    places = _places(model, seen)
    at = (slice(None), pin.frame)
    _, distance = _pin_score(_latent_pin(model, pin), places.mean[at], places.covariance[at])
    return float(distance[pin.object]) > CONTRADICTION


def _exchange_gains(model: Model, seen: Observations, pins: list[Pin]) -> Float[Tensor, "N N T"]:
    """Return the gain of exchanging two objects of one clip from each frame on.

    Minus infinity up to the frame in which both were first detected, which names them, and for
    objects that never were.
    """
    N, T = seen.detected.shape[1:]
    gains: Tensor = model.dynamics.swap_gains(seen.positions.double(), seen.detected)[0].clone()
    places = _places(model, seen)
    time = torch.arange(T, device=gains.device)
    for pin in pins:
        scores, _ = _pin_score(
            _latent_pin(model, pin), places.mean[:, pin.frame], places.covariance[:, pin.frame]
        )
        gain = torch.where(time <= pin.frame, (scores - scores[pin.object])[:, None], 0.0)
        gains[pin.object] += gain
        gains[:, pin.object] += gain
    ever = seen.detected[0].any(1)
    first = torch.where(ever, seen.detected[0].int().argmax(1), T)
    named = torch.maximum(first[:, None], first)
    later = time > named[..., None]
    off_diagonal = ~torch.eye(N, dtype=torch.bool, device=gains.device)
    return torch.where(later & off_diagonal[..., None], gains, -torch.inf)


def _observe(model: Model, seen: Observations, pin: Pin) -> Observations:
    """Return the detections with a pin as a further observation."""
    at = (pin.clip, pin.object, pin.frame)
    here = _one(seen, pin.clip)
    if bool(seen.detected[at]) and _contradicts(model, here, pin):
        here.detected[0, pin.object, pin.frame] = False  # something else was detected
    places, latent = _places(model, here), _latent_pin(model, pin)
    mean, covariance = places.mean[at[1:]], places.covariance[at[1:]]
    gain = covariance @ torch.linalg.inv(covariance + latent.covariance)
    positions, covariances = seen.positions.clone(), seen.covariances.clone()
    positions[at] = (mean + gain @ (latent.mean - mean)).to(positions)
    covariances[at] = (covariance - gain @ covariance).to(covariances)
    detected, localized = seen.detected.clone(), seen.localized.clone()
    detected[at] = localized[at] = True
    return Observations(positions, covariances, detected, localized, seen.forbidden)
