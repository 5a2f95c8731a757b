"""Guesses of walls: clusters of the places where paths turn, in closed form.

Paths turn at kicks, which a law with unexplained kicks finds (`motes.training.event_fit`), or where
two straight lines meet (`motes.training.turns`). A wall is a direction and an offset with at least
a tenth of the hits of the commonest.
"""

import math
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.training.turns import ROBUST, SHORT, SIGNIFICANT, Motion, find_turns, joined

MAX_WALLS = 8
MIN_HITS = 4
MIN_TURNS = 8  # at a wall whose place is their median
MIN_SHARE = 0.1  # hits of a wall relative to the commonest
ANGLE = 0.35  # radians between kicks of one wall
MIN_CALM = 0.25  # share of calm stretches without which turns are not counted
CLEAR = 4.0  # times a significant turn that a typical kick is, if walls must have sharp turns

WallGuess = tuple[float, float, float, int]  # angle, offset, restitution, hits


class Tracks(NamedTuple):
    """Positions of single objects in latent units."""

    positions: Float[Tensor, "M T 2"]
    observed: Bool[Tensor, "M T"]

    @property
    def known(self) -> Bool[Tensor, "M T 2"]:
        """Which coordinates were observed."""
        return self.observed[..., None].expand(*self.observed.shape, 2)

    def select(self, index: slice | Tensor) -> "Tracks":
        """Return some of the tracks."""
        return Tracks(self.positions[index], self.observed[index])


class KickTable(NamedTuple):
    """The kicks of all tracks: where, and the velocities before and after, per frame."""

    position: Float[Tensor, "kicks 2"]
    expected: Float[Tensor, "kicks 2"]  # position by free flight
    before: Float[Tensor, "kicks 2"]
    after: Float[Tensor, "kicks 2"]
    track: Int[Tensor, " kicks"]
    step: Int[Tensor, " kicks"]


def cluster_walls(kicks: KickTable, tolerance: float) -> list[WallGuess]:
    """Return walls (angle, offset, restitution, hits) that explain kicks, the commonest first."""
    change = kicks.after - kicks.before
    normal = change / change.norm(dim=1, keepdim=True).clamp(min=1e-12)
    speed = -(kicks.before * normal).sum(1)
    bounce = (kicks.after * normal).sum(1) / speed.clamp(min=1e-9)
    usable = (speed > 0) & (bounce > -0.2) & (bounce < 1.5)
    normal, bounce = normal[usable], bounce[usable].clamp(0.0, 1.0)
    place = (kicks.position[usable] + bounce[:, None] * kicks.expected[usable]) / (
        1 + bounce[:, None]
    )
    found: list[WallGuess] = []
    left = torch.ones(len(normal), dtype=torch.bool)
    while len(found) < MAX_WALLS and bool(left.any()):
        offsets = normal @ place.T  # of each kick's own wall, at the place of every other
        own = offsets.diagonal()
        near = (normal @ normal.T > math.cos(ANGLE)) & ((offsets - own[:, None]).abs() < tolerance)
        near &= left[None] & left[:, None]
        hits = near.sum(1)
        centre = int(hits.argmax())
        members = near[centre]
        for _ in range(5):
            mean = normal[members].mean(0)
            mean = mean / mean.norm()
            along = place @ mean
            offset = along[members].median()
            fresh = left & (normal @ mean > math.cos(ANGLE)) & ((along - offset).abs() < tolerance)
            if not bool(fresh.any()):
                break
            members = fresh
        count = int(members.sum())
        if count < max(MIN_HITS, MIN_SHARE * (found[0][3] if found else 0)):
            break
        left &= ~members
        angle = math.atan2(float(mean[1]), float(mean[0]))
        # Of two lines that face the same way one is never reached, and three that are hit together
        # are as good as one.
        if all(math.cos(angle - wall[0]) < math.cos(ANGLE) for wall in found):
            found.append((angle, float(offset), float(bounce[members].median()), count))
    return found


def sharp_walls(found: list[WallGuess], kicks: KickTable, tracks: Tracks) -> list[WallGuess]:
    """Return the walls at which paths turn within a frame, where the noise lets that be seen.

    A hand that catches and throws kicks objects too, but over many frames: a law of bounces there
    would be wrong and slow.

    Law: balls that a hand carries between two flights have no wall (test_hands_are_no_walls).
    """
    motion = find_turns(tracks.positions, tracks.observed)
    if motion is None or motion.calm < MIN_CALM:
        return found  # flights are too short to tell
    turns, change = motion.turns, (kicks.after - kicks.before).norm(dim=1).median()
    # Velocities of two lines of `SHORT` frames, whose squares sum to `spread`.
    spread = 2 * 12 / (SHORT * (SHORT**2 - 1))
    if float(change) ** 2 < CLEAR * SIGNIFICANT * spread * motion.noise**2:
        return found
    time = turns.times()
    place = 0.5 * (turns.before.at(time) + turns.after.at(time))
    kept = []
    for wall in found:
        normal = place.new_tensor([math.cos(wall[0]), math.sin(wall[0])])
        near = (place @ normal - wall[1]).abs() < 3 * motion.noise + 0.5 * float(change)
        towards = turns.change @ normal > math.cos(ANGLE) * turns.change.norm(dim=1)
        towards &= turns.before.velocity @ normal < 0
        if int((near & towards).sum()) >= max(MIN_HITS, MIN_SHARE * wall[3]):
            kept.append(wall)
    return kept


class Estimate(NamedTuple):
    """A number with its standard deviation."""

    value: float
    error: float


def robust(values: Float[Tensor, " n"]) -> Estimate:
    """Return the median and its standard deviation, which is 1.25 times that of a mean."""
    middle = values.median()
    sd = ROBUST * (values - middle).abs().median()
    return Estimate(float(middle), 1.2533 * float(sd) / math.sqrt(len(values)))


class WallFit(NamedTuple):
    """A wall and the turns at it."""

    angle: Estimate
    offset: Estimate
    restitution: Estimate
    turns: Int[Tensor, " hits"]  # that were seen


def find_walls(motion: Motion, lone: Bool[Tensor, " turns"]) -> list[WallFit]:
    """Return the walls that explain lone turns and those in gaps, the commonest first."""
    index = lone.nonzero()[:, 0]
    some = joined(motion.turns.select(index), motion.hidden)
    time = some.times()
    before, after = some.before.at(time), some.after.at(time)
    place = 0.5 * (before + after)
    speed = some.before.velocity.norm(dim=-1).median() if len(some.step) else 0.0
    tolerance = 3 * motion.noise + 0.3 * float(speed)
    meets = (after - before).norm(dim=-1) < 2 * tolerance
    meets[: len(index)] = True  # within a frame lines always do
    some, place = some.select(meets.nonzero()[:, 0]), place[meets]
    velocities = (some.before.velocity, some.after.velocity)
    found = cluster_walls(KickTable(place, place, *velocities, some.track, some.step), tolerance)
    walls = []
    for angle, offset, _, _ in found:
        normal = place.new_tensor([math.cos(angle), math.sin(angle)])
        away = (place @ normal - offset).abs()
        straight = (some.change @ normal) / some.change.norm(dim=-1).clamp(min=1e-12)
        incoming = -(some.before.velocity @ normal)
        own = (away < tolerance) & (straight > 0.9) & (incoming > 0)
        if int(own.sum()) < MIN_TURNS:
            continue
        side = some.change[own] @ place.new_tensor([-math.sin(angle), math.cos(angle)])
        turned = torch.atan2(side, some.change[own] @ normal)
        tilt = robust(turned)
        better = Estimate(angle + tilt.value, tilt.error)
        normal = place.new_tensor([math.cos(better.value), math.sin(better.value)])
        bounce = (some.after.velocity[own] @ normal) / -(some.before.velocity[own] @ normal)
        shown = index[own[: len(index)]]
        walls.append(WallFit(better, robust(place[own] @ normal), robust(bounce), shown))
    return walls


def enclosing_walls(walls: list[WallFit], places: Float[Tensor, "n 2"]) -> list[WallFit]:
    """Return walls where nobody was seen beyond, parallel to or across the commonest one.

    Directions that have a wall are left out. These are guesses: some walls are hit where nobody
    looks.
    """
    if not walls or len(places) < MIN_TURNS:
        return []
    first, none = walls[0], torch.zeros(0, dtype=torch.int64)
    guesses = []
    for turn in range(4):
        angle = first.angle.value + turn * math.pi / 2
        if any(math.cos(angle - wall.angle.value) > math.cos(ANGLE) for wall in walls):
            continue
        normal = places.new_tensor([math.cos(angle), math.sin(angle)])
        edge = (places @ normal).sort().values[:MIN_TURNS]
        place = Estimate(float(edge[MIN_HITS // 2]), float(edge[-1] - edge[0]))
        guesses.append(WallFit(Estimate(angle, first.angle.error), place, first.restitution, none))
    return guesses
