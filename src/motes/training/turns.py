"""Turns: the places where the straight paths of objects bend, with a line before and after each.

A path is compared with two lines through a few frames before and after every moment. Where they
differ and each fits, there is a turn; the lines are then extended to the neighbouring turns. The
two lines of a turn meet where it happened, to a fraction of a frame. A common acceleration is taken
off first. Everything is in closed form: a thousand tracks take a second.
"""

import math
from typing import NamedTuple

import torch

from motes.core.axes import Bool, Float, Int, Tensor

SHORT, LONG = 4, 8  # frames of a line
SIGNIFICANT = 60.0  # chi squared of four numbers, for a turn
CLEAN = 5.0  # squared residuals per degree of freedom, in units of the noise
ROBUST = 1.4826  # standard deviations in a median absolute deviation


class Lines(NamedTuple):
    """Straight paths p + v time."""

    place: Float[Tensor, "*batch 2"]
    velocity: Float[Tensor, "*batch 2"]
    spread: Float[Tensor, "*batch 2 2"]  # covariance of (p, v) of a coordinate for unit noise
    misfit: Float[Tensor, "*batch"]  # squared residuals per degree of freedom

    def at(self, time: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 2"]:
        """Return places."""
        return self.place + time[..., None] * self.velocity

    def select(self, index: Tensor) -> "Lines":
        """Return some of the lines."""
        return Lines(*(part[index] for part in self))


class Turns(NamedTuple):
    """Turns near the middle between the frames `step` and `step` + 1, which is time 0."""

    track: Int[Tensor, " turns"]
    step: Int[Tensor, " turns"]
    before: Lines
    after: Lines
    reach: Float[Tensor, " turns"]  # frames before and after the middle in which it may be

    def select(self, index: Tensor) -> "Turns":
        """Return some of the turns."""
        lines = (self.before.select(index), self.after.select(index))
        return Turns(self.track[index], self.step[index], *lines, self.reach[index])

    @property
    def change(self) -> Float[Tensor, "turns 2"]:
        """Of the velocity."""
        return self.after.velocity - self.before.velocity

    def times(self) -> Float[Tensor, " turns"]:
        """Return when the lines meet, along the direction of the turn."""
        gap = self.before.place - self.after.place
        time: Tensor = (gap * self.change).sum(-1) / self.change.square().sum(-1).clamp(min=1e-30)
        return time.clamp(-self.reach, self.reach)


def joined(one: Turns, other: Turns) -> Turns:
    """Return the turns of both."""
    before, after = (
        Lines(*(torch.cat(part) for part in zip(*both, strict=True)))
        for both in ((one.before, other.before), (one.after, other.after))
    )
    track, step = torch.cat([one.track, other.track]), torch.cat([one.step, other.step])
    return Turns(track, step, before, after, torch.cat([one.reach, other.reach]))


class Motion(NamedTuple):
    """What tracks show beside their turns, in units of length and frames."""

    acceleration: Float[Tensor, " 2"]
    acceleration_error: Float[Tensor, " 2"]
    noise: float  # standard deviation of a coordinate
    jitter: float  # of the velocity from frame to frame
    state_mean: Float[Tensor, " 4"]
    state_covariance: Float[Tensor, "4 4"]
    calm: float  # share of stretches of 2 `SHORT` frames without any turn
    turns: Turns
    hidden: Turns  # at some time between two lines that a gap parts


def fit_lines(
    times: Float[Tensor, "*#batch L"], points: Float[Tensor, "*batch L 2"], used: Tensor
) -> Lines:
    """Return the least-squares lines through the points that are used."""
    m = used.to(points)
    t = times * m
    s0, s1, s2 = m.sum(-1), t.sum(-1), (t * times).sum(-1)
    determinant = (s0 * s2 - s1.square()).clamp(min=1e-12)
    x0 = (m[..., None] * points).sum(-2)
    x1 = (t[..., None] * points).sum(-2)
    place = (s2[..., None] * x0 - s1[..., None] * x1) / determinant[..., None]
    velocity = (s0[..., None] * x1 - s1[..., None] * x0) / determinant[..., None]
    rows = torch.stack([torch.stack([s2, -s1], -1), torch.stack([-s1, s0], -1)], -2)
    rest = points - place[..., None, :] - times[..., None] * velocity[..., None, :]
    squares = (m * rest.square().sum(-1)).sum(-1)
    misfit = squares / (2 * (s0 - 2)).clamp(min=1.0)
    return Lines(place, velocity, rows / determinant[..., None, None], misfit)


def rough_noise(positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]) -> float:
    """Return the noise of positions by the median of second differences, which turns spare."""
    bend = positions[:, 2:] - 2 * positions[:, 1:-1] + positions[:, :-2]
    seen = observed[:, 2:] & observed[:, 1:-1] & observed[:, :-2]
    if not bool(seen.any()):
        return 0.0
    values = bend[seen]
    return ROBUST * float((values - values.median(0).values).abs().median()) / math.sqrt(6)


def _windows(
    positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"], pull: Float[Tensor, " 2"]
) -> tuple[Lines, Lines, Bool[Tensor, "M steps"]]:
    """Return short lines before and after every moment, and where all their frames were seen."""
    at = torch.arange(2 * SHORT, dtype=positions.dtype) - (SHORT - 0.5)
    points = positions.unfold(1, 2 * SHORT, 1).mT - 0.5 * at.square()[:, None] * pull
    seen = observed.unfold(1, 2 * SHORT, 1)
    first = at < 0
    return fit_lines(at, points, first), fit_lines(at, points, ~first), seen.all(-1)


def find_turns(positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]) -> Motion | None:
    """Return turns and free motion of tracks; None where nothing moves or too little is seen.

    Law: turns of broken lines are found to a fraction of a frame
        (test_turns_of_broken_lines_are_where_they_bend).
    """
    if positions.shape[1] < 2 * SHORT:
        return None
    noise = rough_noise(positions, observed)
    apart = positions[:, 4:] - 2 * positions[:, 2:-2] + positions[:, :-4]
    there = observed[:, 4:] & observed[:, 2:-2] & observed[:, :-4]
    if not bool(there.any()):
        return None
    pull, error = 0.25 * apart[there].median(0).values, positions.new_zeros(2)
    for _ in range(2):
        before, after, seen = _windows(positions, observed, pull)
        if not bool(seen.any()):
            return None
        chi = _chi_squared(before, after, max(noise, 1e-9))
        calm = seen & (chi < SIGNIFICANT / 2)
        if int(calm.sum()) < 8:
            return None
        # Of a parabola the two lines differ in velocity by its bend over the frames between.
        bend = (after.velocity - before.velocity)[calm] / SHORT
        pull = pull + bend.median(0).values
        tracks = max(int(calm.any(1).sum()), 1)
        error = ROBUST * (bend - bend.median(0).values).abs().median(0).values / math.sqrt(tracks)
    before, after, seen = _windows(positions, observed, pull)
    chi = _chi_squared(before, after, max(noise, 1e-9))
    calm = seen & (chi < SIGNIFICANT / 2)
    noise = max(float(before.misfit[calm].mean().sqrt()), 1e-9)
    chi = _chi_squared(before, after, noise)
    moved = before.velocity[seen]
    if float(moved.abs().median()) < 1e-3 * noise:
        return None
    drift = (after.velocity - before.velocity)[calm].square().mean()
    expected = noise**2 * float((before.spread + after.spread)[..., 1, 1].flatten()[0])
    jitter = math.sqrt(max(float(drift) - expected, 0.0) / SHORT)
    states = torch.cat([before.at(torch.zeros_like(chi))[seen], moved], -1)
    spread = 1.2 * states.T.cov() + noise**2 * torch.eye(4, dtype=states.dtype)
    turns = _turns(positions, observed, pull, noise, (before, after, seen, chi))
    share = float(calm.sum()) / int(seen.sum())
    hidden = _hidden_turns(positions, observed, pull, noise)
    return Motion(pull, error, noise, jitter, states.mean(0), spread, share, turns, hidden)


def _chi_squared(before: Lines, after: Lines, noise: float) -> Float[Tensor, "M steps"]:
    """Return how much the lines differ in the middle, in place and velocity."""
    gap = torch.stack([after.place - before.place, after.velocity - before.velocity], -1)
    precision = (before.spread + after.spread).inverse()
    chi: Tensor = torch.einsum("...ij,...jk,...ik->...", gap, precision, gap) / noise**2
    return chi


def _turns(
    positions: Float[Tensor, "M T 2"],
    observed: Bool[Tensor, "M T"],
    pull: Float[Tensor, " 2"],
    noise: float,
    short: tuple[Lines, Lines, Tensor, Tensor],
) -> Turns:
    """Return the turns, each where the two short lines fit best, with longer lines."""
    before, after, seen, chi = short
    misfit = torch.where(seen, before.misfit + after.misfit, torch.inf)
    turned = (chi > SIGNIFICANT) & (misfit < 2 * CLEAN * noise**2)
    cost = torch.where(turned, misfit, torch.inf)
    padded = torch.nn.functional.pad(-cost, (2, 2), value=-torch.inf)
    best = padded.unfold(1, 5, 1).amax(-1)
    track, place = (turned & (-cost >= best)).nonzero().unbind(1)
    step = place + SHORT - 1
    T = positions.shape[1]
    # Frames from the turn before to the turn after, on the same track.
    same_last = torch.zeros_like(step) - 1
    same_next = torch.zeros_like(step) + T - 1
    if len(step) > 1:
        joined = track[1:] == track[:-1]
        same_last[1:] = torch.where(joined, step[:-1], same_last[1:])
        same_next[:-1] = torch.where(joined, step[1:], same_next[:-1])
    offset = torch.arange(2 * LONG) - (LONG - 1)
    frame = step[:, None] + offset
    inside = (frame > same_last[:, None]) & (frame <= same_next[:, None])
    index = frame.clamp(0, T - 1)
    used = inside & (frame < T) & observed[track[:, None], index]
    at = offset.to(positions) - 0.5
    points = positions[track[:, None], index] - 0.5 * at.square()[:, None] * pull
    lines = []
    for side, near in ((at < 0, at > -SHORT), (at > 0, at < SHORT)):
        long, few = fit_lines(at, points, used & side), fit_lines(at, points, used & side & near)
        clean = long.misfit < CLEAN * noise**2
        lines.append(
            Lines(
                *(
                    torch.where(clean.view(-1, *[1] * (a.ndim - 1)), a, b)
                    for a, b in zip(long, few, strict=True)
                )
            )
        )
    return Turns(track, step, lines[0], lines[1], torch.ones_like(at[:1]).expand(len(step)))


def _hidden_turns(
    positions: Float[Tensor, "M T 2"],
    observed: Bool[Tensor, "M T"],
    pull: Float[Tensor, " 2"],
    noise: float,
) -> Turns:
    """Return the turns in gaps: where the lines before and after a gap differ, and each fits.

    Law: a turn in a gap is where the lines meet (test_turns_in_gaps_are_where_the_lines_meet).
    """
    T, seen = positions.shape[1], torch.nn.functional.pad(observed, (1, 1))
    inside = torch.arange(T)
    # The last frame before each gap, and the first after it.
    last_track, last = (seen[:, 1:-1] & ~seen[:, 2:]).nonzero().unbind(1)
    later = torch.where(observed, inside, T).flip(1).cummin(1).values.flip(1)
    later = torch.nn.functional.pad(later[:, 1:], (0, 1), value=T)
    next_ = later[last_track, last]
    whole = (next_ <= T - SHORT) & (last >= SHORT - 1)
    track, last, next_ = last_track[whole], last[whole], next_[whole]
    step = (last + next_ - 1).div(2, rounding_mode="floor")
    offset, lines = torch.arange(SHORT), []
    usable = torch.ones(len(track), dtype=torch.bool)
    for first in (last - SHORT + 1, next_):
        frame = first[:, None] + offset
        usable &= observed[track[:, None], frame].all(1)
        at = (frame - step[:, None]).to(positions) - 0.5
        points = positions[track[:, None], frame] - 0.5 * at.square()[..., None] * pull
        lines.append(fit_lines(at, points, torch.ones_like(frame, dtype=torch.bool)))
    before, after = lines
    chi = (after.velocity - before.velocity).square().sum(-1) / (
        noise**2 * (before.spread + after.spread)[..., 1, 1]
    )
    usable &= (chi > SIGNIFICANT) & (before.misfit + after.misfit < 2 * CLEAN * noise**2)
    found = Turns(track, step, before, after, 0.5 * (next_ - last).to(positions) + 0.5)
    return found.select(usable.nonzero()[:, 0])
