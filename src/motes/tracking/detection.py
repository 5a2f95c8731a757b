"""Candidates: where objects may be in each frame, with evidence in nats.

A matched filter proposes peaks, a joint fit refines them, and a second search of the residual finds
objects that others had covered.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from motes.tracking.fitting import (
    Canvas,
    canvas,
    clusters,
    draw_objects,
    fit_objects,
    overlapping,
)
from motes.tracking.sprite import Array, Sprite

MIN_RESPONSE = 4.0  # standard deviations of the matched filter under noise alone
MIN_EVIDENCE = -2.0  # nats; weaker candidates are dropped
MIN_OVERLAPPING = 6.0  # nats; the same for candidates that overlap others, which must be needed
ROUNDS = 3  # searches of a frame: the frame itself, then residuals
MOST_CANDIDATES = 3000  # of a frame
PRUNINGS = 4  # times that superfluous candidates are dropped and the others refitted


@dataclass(frozen=True, eq=False)
class Looks:
    """How objects and the rest of a frame look.

    Attributes:
        sprites: one for each kind of object, all of one size.
        noise: standard deviation of a pixel around background and objects.
        amplitude: means and standard deviations of the amplitudes of each kind, [kinds] each.
        rounds: searches of a frame: the frame itself, then residuals. Where noise has structure,
            residuals are of the sprites, not of further objects.
        least: smallest response of the matched filter, in standard deviations.
        faintest: smallest amplitude of an object, as a share of the mean.
        misfit: smallest amplitude of an object beside another one, as a share of that one's, which
            an object that does not look like the sprite leaves unexplained.
        excess: variance of what the sprites leave of objects, relative to that of the noise, by
            which the stated variances of positions are larger.
        most: candidates of a frame that are proposed at most; the strongest are kept.
        level: brightness of opaque objects, which cover one another; 0: objects add up.
    """

    sprites: tuple[Sprite, ...]
    noise: float
    amplitude: tuple[Array, Array]
    rounds: int = ROUNDS
    least: float = MIN_RESPONSE
    faintest: float = 0.0
    misfit: float = 0.0
    excess: float = 1.0
    most: int = MOST_CANDIDATES
    level: float = 0.0

    def matched_filter(self, height: int, width: int) -> "MatchedFilter":
        """Return the matched filter of the sprites for frames of this size."""
        return MatchedFilter(tuple(sprite.centred for sprite in self.sprites), height, width)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Possible detections, ordered by frame.

    Attributes:
        frame: [M].
        positions: (x, y) in pixels, [M, 2].
        covariances: of the positions, [M, 2, 2].
        amplitudes: [M].
        evidence: log likelihood ratio of the best fit with and without the object, the others
            refitted, amplitudes marginalised; nats, [M].
        kinds: which sprite, [M].
    """

    frame: Array
    positions: Array
    covariances: Array
    amplitudes: Array
    evidence: Array
    kinds: Array

    def __len__(self) -> int:
        return len(self.frame)

    def select(self, chosen: Array) -> "Candidates":
        """Return some of the candidates: a mask or an index."""
        return Candidates(
            self.frame[chosen], self.positions[chosen], self.covariances[chosen],
            self.amplitudes[chosen], self.evidence[chosen], self.kinds[chosen],
        )  # fmt: skip

    def shifted(self, frames: int) -> "Candidates":
        """Return the candidates with frames counted from an earlier one."""
        return Candidates(
            self.frame + frames, self.positions, self.covariances,
            self.amplitudes, self.evidence, self.kinds,
        )  # fmt: skip


def join(parts: list[Candidates]) -> Candidates:
    """Return candidates of consecutive blocks of frames as one."""
    return Candidates(
        np.concatenate([part.frame for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.covariances for part in parts]),
        np.concatenate([part.amplitudes for part in parts]),
        np.concatenate([part.evidence for part in parts]),
        np.concatenate([part.kinds for part in parts]),
    )


class MatchedFilter:
    """Correlation of frames with sprites, normalised by the noise and by what is inside."""

    def __init__(self, crops: tuple[Array, ...], height: int, width: int) -> None:
        """Prepare the transforms of centred sprites for frames of one size."""
        half = len(crops[0]) // 2
        self.size = (height, width)
        self.shape = (
            fft.next_fast_len(height + half, real=True),
            fft.next_fast_len(width + half, real=True),
        )
        self.half = half
        self.kernels = [self._kernel(crop) for crop in crops]
        inside = np.ones((1, height, width), np.float32)
        self.norms = [
            np.sqrt(np.maximum(self._apply(inside, self._kernel(crop**2))[0], 1e-6))
            for crop in crops
        ]

    def _kernel(self, crop: Array) -> Array:
        padded = np.zeros(self.shape, np.float32)
        side = len(crop)
        padded[:side, :side] = crop
        padded = np.roll(padded, (-self.half, -self.half), (0, 1))
        kernel: Array = np.conj(fft.rfft2(padded))
        return kernel

    def _apply(self, frames: Array, kernel: Array) -> Array:
        height, width = self.size
        spectrum = fft.rfft2(frames, s=self.shape)
        spectrum *= kernel
        out: Array = fft.irfft2(spectrum, s=self.shape)[:, :height, :width]
        return out

    def responses(self, frames: Array) -> list[Array]:
        """Return one map [F, height, width] for each sprite: amplitude estimate times norm."""
        return [
            self._apply(frames, kernel) / norm
            for kernel, norm in zip(self.kernels, self.norms, strict=True)
        ]


def peaks(response: Array, least: float) -> tuple[Array, Array, Array]:
    """Return frame, row and column of local maxima of maps [F, height, width] above a value."""
    frames, height, width = response.shape
    padded = np.full((frames, height + 2, width + 2), -np.inf, response.dtype)
    padded[:, 1:-1, 1:-1] = response
    flat, stride = padded.ravel(), width + 2
    index = np.flatnonzero(flat > least)
    value = flat[index]
    for offset in (-stride - 1, -stride, -stride + 1, -1):  # ties: the last of equal pixels counts
        keep = value >= flat[index + offset]
        index, value = index[keep], value[keep]
    for offset in (1, stride - 1, stride, stride + 1):
        keep = value > flat[index + offset]
        index, value = index[keep], value[keep]
    frame, rest = np.divmod(index, (height + 2) * stride)
    row, column = np.divmod(rest, stride)
    return frame, row - 1, column - 1


def find_candidates(
    deviation: Array,
    looks: Looks,
    matched: MatchedFilter,
    rounds: int = ROUNDS,
    least: float = MIN_RESPONSE,
) -> tuple[Candidates, Array]:
    """Return the candidates in frames minus background [F, height, width], and the residual.

    Args:
        deviation: frames minus background, objects brighter.
        looks: sprites, noise, amplitudes.
        matched: the filter of the sprites.
        rounds: searches: 1 looks at the frames alone, further ones at residuals.
        least: smallest response of the filter, in standard deviations.
    """
    picture = canvas(deviation, looks.sprites[0].half + 1)
    found, values = _nothing(), picture.values
    for turn in range(rounds):
        residual = _inner(values, picture, len(deviation))
        new = _propose(residual, looks, matched, least)
        if turn:
            new = new.select(_locally_best(new, looks.sprites[0]))
            if len(new) == 0:
                break
        size = len(found)
        found = join([found, new])
        changed = np.arange(len(found)) >= size
        for _ in range(PRUNINGS):
            found, values = _refit(picture, found, values, _touched(found, changed, looks), looks)
            weak = _weakest(found, looks)
            if not weak.any():
                break
            values, changed = _without(picture, found, values, weak, looks)
            found, changed = found.select(~weak), changed[~weak]
            if not changed.any():
                break
    order = np.argsort(found.frame, kind="stable")
    found = found.select(order)
    if looks.excess > 1:
        found = replace(found, covariances=looks.excess * found.covariances)
    return found.select(_valid(found.covariances)), _inner(values, picture, len(deviation))


def _touched(found: Candidates, changed: Array, looks: Looks) -> Array:
    """Return the candidates in clusters with a change."""
    if changed.all():
        return np.arange(len(found))
    pairs = overlapping(found.frame, found.positions, looks.sprites[0])
    touched = changed.copy()
    for group in clusters(len(found), pairs):
        touched[group] |= changed[group].any(1, keepdims=True)
    return np.flatnonzero(touched)


def _refit(
    picture: Canvas, found: Candidates, values: Array, chosen: Array, looks: Looks
) -> tuple[Candidates, Array]:
    """Return the candidates and the residual after a joint fit of the chosen ones."""
    part = found.select(chosen)
    means, scales = (table[part.kinds] for table in looks.amplitude)
    base = picture.values
    if len(chosen) < len(found):
        fitted = part.select(np.isfinite(part.evidence))  # new ones are not drawn yet
        base = values.copy()
        _draw(picture, fitted, looks, base, 1.0)
    fit, values = fit_objects(
        replace(picture, values=base), looks.sprites, part.frame, part.positions, part.amplitudes,
        part.kinds, looks.noise, (means, scales), looks.level,
    )  # fmt: skip
    evidence = amplitude_evidence(fit.amplitudes, fit.covariances[:, 2, 2], means, scales)
    out = Candidates(
        found.frame, found.positions.copy(), found.covariances.copy(), found.amplitudes.copy(),
        found.evidence.copy(), found.kinds,
    )  # fmt: skip
    out.positions[chosen], out.covariances[chosen] = fit.positions, fit.covariances[:, :2, :2]
    out.amplitudes[chosen], out.evidence[chosen] = fit.amplitudes, evidence
    return out, values


def _weakest(found: Candidates, looks: Looks) -> Array:
    """Return which candidates to drop: too weak, and the weakest among those they overlap.

    One at a time, because the evidence of the others rises when one is gone.
    """
    pairs = overlapping(found.frame, found.positions, looks.sprites[0])
    bound = np.full(len(found), MIN_EVIDENCE)
    bound[pairs.ravel()] = MIN_OVERLAPPING
    weak: Array = found.evidence < bound
    if looks.faintest > 0:
        weak |= found.amplitudes < looks.faintest * looks.amplitude[0][found.kinds]
    if looks.misfit > 0 and len(pairs):
        size = found.amplitudes[pairs]
        weak[pairs[size[:, 0] < looks.misfit * size[:, 1], 0]] = True
        weak[pairs[size[:, 1] < looks.misfit * size[:, 0], 1]] = True
    margin = found.evidence - bound
    first, second = pairs[weak[pairs].all(1)].T
    weak[np.where(margin[first] <= margin[second], second, first)] = False
    return weak


def _without(
    picture: Canvas, found: Candidates, values: Array, weak: Array, looks: Looks
) -> tuple[Array, Array]:
    """Return the residual without some candidates, and which ones overlap them."""
    values = values.copy()
    if looks.level > 0:
        touched = np.zeros(len(found), bool)
        touched[_touched(found, weak, looks)] = True
        _draw(picture, found.select(touched), looks, values, 1.0)
        _draw(picture, found.select(touched & ~weak), looks, values, -1.0)
    else:
        _draw(picture, found.select(weak), looks, values, 1.0)
    pairs = overlapping(found.frame, found.positions, looks.sprites[0])
    changed = np.zeros(len(found), bool)
    changed[pairs[weak[pairs].any(1)].ravel()] = True
    return values, changed


def _draw(picture: Canvas, objects: Candidates, looks: Looks, values: Array, sign: float) -> None:
    draw_objects(
        picture, looks.sprites, objects.frame, objects.positions, objects.amplitudes,
        objects.kinds, values, sign, looks.level,
    )  # fmt: skip


def _locally_best(new: Candidates, sprite: Sprite) -> Array:
    """Return which proposals are stronger than all that they overlap."""
    best = np.ones(len(new), bool)
    pairs = overlapping(new.frame, new.positions, sprite)
    first, second = pairs.T
    best[np.where(new.amplitudes[first] < new.amplitudes[second], first, second)] = False
    return best


def _valid(covariances: Array) -> Array:
    """Return which matrices are positive definite."""
    a, b, d = covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]
    valid: Array = (a > 0) & (d > 0) & (a * d - b * b > 0)
    return valid


def _nothing() -> Candidates:
    return Candidates(
        np.zeros(0, np.int64), np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros(0), np.zeros(0),
        np.zeros(0, np.int64),
    )  # fmt: skip


def _inner(values: Array, picture: Canvas, count: int) -> Array:
    border = picture.border
    whole = values.reshape(count, *picture.shape)
    return whole[:, border:-border, border:-border]


def _propose(deviation: Array, looks: Looks, matched: MatchedFilter, least: float) -> Candidates:
    """Return the peaks of the matched filter, without covariances and evidence."""
    responses = matched.responses(deviation)
    best = responses[0]
    kind_map = None
    if len(responses) > 1:
        stacked = np.stack(responses)
        kind_map = stacked.argmax(0)
        best = stacked.max(0)
    frame, row, column = peaks(best, least * looks.noise)
    if len(frame) > looks.most:
        kept = _strongest(frame, best[frame, row, column], looks.most)
        frame, row, column = frame[kept], row[kept], column[kept]
    kinds = np.zeros(len(frame), np.int64) if kind_map is None else kind_map[frame, row, column]
    height, width = best.shape[1:]
    centre = best[frame, row, column]
    offsets = []
    for dy, dx in ((0, 1), (1, 0)):
        before = best[frame, np.maximum(row - dy, 0), np.maximum(column - dx, 0)]
        after = best[frame, np.minimum(row + dy, height - 1), np.minimum(column + dx, width - 1)]
        bend = np.minimum(before - 2 * centre + after, -1e-9)
        offsets.append(np.clip(0.5 * (before - after) / bend, -0.5, 0.5))
    positions = np.column_stack((column + offsets[0], row + offsets[1])).astype(float)
    norms = np.stack(matched.norms)[kinds, row, column]
    return Candidates(
        frame.astype(np.int64), positions, np.zeros((len(frame), 2, 2)),
        (centre / norms).astype(float), np.full(len(frame), -np.inf), kinds,
    )  # fmt: skip


def _strongest(frame: Array, values: Array, most: int) -> Array:
    """Return the indices, in order, of the largest values of each frame, at most so many."""
    order = np.lexsort((-values, frame))
    rank = np.arange(len(frame)) - np.searchsorted(frame[order], frame[order])
    return np.sort(order[rank < most])


def amplitude_evidence(amplitudes: Array, variances: Array, means: Array, scales: Array) -> Array:
    """Return the log likelihood ratio of an amplitude ~ N(mean, scale^2) against none.

    `amplitudes` and `variances` describe the posterior under that prior; the likelihood they came
    from is recovered first.

    Law: equals the ratio of two Gaussian integrals (test_amplitude_evidence_equals_a_quadrature).
    """
    precision = np.maximum(1 / variances - 1 / scales**2, 1e-12)
    spread = 1 / precision
    estimate = (amplitudes / variances - means / scales**2) / precision
    total = spread + scales**2
    return (
        0.5 * np.log(spread / total)
        - 0.5 * (estimate - means) ** 2 / total
        + 0.5 * estimate**2 / spread
    )
