"""A last fit of detected positions at the full resolution of a recording.

Models see shrunk and thresholded frames, which costs sub-pixel precision. Here the picture of an
object (a template) is learned from the recording's own pixels around its detections, and every
detection is fitted by least squares over shift, contrast and offset.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from motes.core.axes import Bool, Float, Int, UInt8
from motes.video.source import grey

Pictures = Callable[[], Iterator[UInt8[np.ndarray, "height width 3"]]]
Patches = Float[np.ndarray, "P side side"]

BLOCK = 20_000  # patches that are fitted together
NUM_LEARNED = 300  # patches that the template is learned from
NUM_BACKGROUND = 48  # frames whose median is the background
ROUNDS, STEPS = 4, 8  # of learning the template, and of a fit
MARGIN = 1.5  # of a patch, as a multiple of the radius
MIN_RADIUS = 2.0  # pixels
MIN_EXPLAINED = 0.6  # of the variance of a patch, for a fit to count
MIN_PIXELS = 0.5  # share of a patch that belongs to the object alone
MAX_LAG = 4  # pixels over which residuals are correlated
MIN_SD = 0.03  # pixels: errors of the template and its interpolation


class Refined(NamedTuple):
    """Positions after the fit; those that were not fitted are as before."""

    positions: Float[np.ndarray, "N T 2"]
    covariances: Float[np.ndarray, "N T 2 2"]
    fitted: Bool[np.ndarray, "N T"]


class Fit(NamedTuple):
    """Least-squares fits of patches."""

    shifts: Float[np.ndarray, "P 2"]  # (x, y) from the centre of the patch
    residuals: Patches
    inverse: Float[np.ndarray, "P 2 2"]  # covariance of a shift for unit noise
    variance: Float[np.ndarray, " P"]  # of the residuals
    explained: Float[np.ndarray, " P"]  # share of the patch's variance


def refine_positions(
    pictures: Pictures,
    positions: Float[np.ndarray, "N T 2"],
    covariances: Float[np.ndarray, "N T 2 2"],
    seen: Bool[np.ndarray, "N T"],
    radius: float,
    reach: float,
) -> Refined:
    """Return positions fitted to the pixels of a recording, with the covariances of the fit.

    A fit counts if it explains the patch and stays within `reach`; other rows keep what they had,
    and so do all if the fitted paths are rougher than the given ones.

    Law: simulated disks are found within a tenth of a pixel, and nine of ten lie in the 90 %
    regions (test_fits_are_close_and_their_regions_hold); fits that make paths rougher are dropped
    (test_fits_that_make_paths_rougher_are_dropped).

    Args:
        pictures: Yields the frames; called more than once.
        positions: In pixels of the recording.
        covariances: Of the positions.
        seen: Which positions are detections inside the picture.
        radius: Of an object, pixels.
        reach: Largest distance of the fit from the given position, pixels.
    """
    half = int(np.ceil(MARGIN * max(radius, MIN_RADIUS))) + 1
    background = _background(pictures(), positions.shape[1])
    template: Float[np.ndarray, "side side"] | None = None
    given = Refined(positions, covariances, np.zeros_like(seen))
    positions, covariances = positions.astype(float), covariances.astype(float)
    fitted = np.zeros_like(seen)
    for rows, patches, weights in _blocks(
        pictures(), background, positions, seen, half, max(radius, MIN_RADIUS)
    ):
        centres = np.rint(positions[rows[:, 0], rows[:, 1]])
        start = positions[rows[:, 0], rows[:, 1]] - centres
        if template is None:
            template = learn_template(patches, weights, start)
        fit = fit_patches(patches, weights, start, template)
        factor = correlation_factor(fit.residuals, weights, template)
        moved = np.linalg.norm(fit.shifts - start, axis=1)
        good = (fit.explained > MIN_EXPLAINED) & (moved <= reach)
        n, t = rows[good].T
        positions[n, t] = centres[good] + fit.shifts[good]
        spread = factor * fit.variance[good, None, None] * fit.inverse[good]
        covariances[n, t] = spread + MIN_SD**2 * np.eye(2)
        fitted[n, t] = True
    if roughness(positions, fitted) > roughness(given.positions, fitted):
        return given
    return Refined(positions, covariances, fitted)


def learn_template(
    patches: Patches, weights: Patches, shifts: Float[np.ndarray, "P 2"]
) -> Float[np.ndarray, "side side"]:
    """Return the median of aligned patches, with its centre of mass in the middle."""
    alone = np.nonzero(weights.all((1, 2)))[0]
    alone = alone if len(alone) else np.arange(len(patches))
    chosen = alone[np.linspace(0, len(alone) - 1, min(NUM_LEARNED, len(alone))).astype(int)]
    some, own, shifts = patches[chosen], weights[chosen], shifts[chosen]
    template = np.zeros(patches.shape[1:])
    for _ in range(ROUNDS):
        moved = [
            ndimage.shift(p, -s[::-1], order=3, mode="nearest")
            for p, s in zip(some, shifts, strict=True)
        ]
        template = np.median(moved, axis=0)
        mass = np.abs(template - np.median(_rim(template)))
        mass[mass < 0.2 * mass.max()] = 0
        y, x = ndimage.center_of_mass(mass)
        middle = (len(template) - 1) / 2
        template = ndimage.shift(template, (middle - y, middle - x), order=3, mode="nearest")
        shifts = fit_patches(some, own, shifts, template).shifts
    return template


def fit_patches(
    patches: Patches,
    weights: Patches,
    start: Float[np.ndarray, "P 2"],
    template: Float[np.ndarray, "side side"],
) -> Fit:
    """Return the least-squares shift, contrast and offset of the template in each patch.

    patch = offset + contrast template(pixel - shift) + noise, by Gauss-Newton steps: for a given
    shift contrast and offset follow from a regression, and the shift from the residual's
    projection on the template's gradient.
    """
    side = len(template)
    images = [ndimage.spline_filter(image, 3) for image in (template, *_slopes(template))]
    grid = np.arange(side, dtype=float)
    shifts = start.astype(float).copy()

    def moved(image: np.ndarray) -> Patches:
        y = np.broadcast_to(grid[None, :, None] - shifts[:, 1, None, None], patches.shape)
        x = np.broadcast_to(grid[None, None, :] - shifts[:, 0, None, None], patches.shape)
        found: Patches = ndimage.map_coordinates(
            image, (y, x), order=3, mode="nearest", prefilter=False
        )
        return found

    total = weights.sum((1, 2)).clip(1)

    def centred(values: Patches) -> Patches:
        mean = (weights * values).sum((1, 2)) / total
        about: Patches = weights * (values - mean[:, None, None])
        return about

    target = centred(patches)
    power = (target**2).sum((1, 2)).clip(1e-12)
    for _ in range(STEPS):
        shape, across, down = (centred(moved(image)) for image in images)
        contrast = (shape * target).sum((1, 2)) / (shape**2).sum((1, 2)).clip(1e-12)
        residuals = target - contrast[:, None, None] * shape
        # The derivative of template(pixel - shift) is minus its slope.
        jacobian = -contrast[:, None, None, None] * np.stack((across, down), 1)
        normal = np.einsum("pihw,pjhw->pij", jacobian, jacobian) + 1e-9 * np.eye(2)
        step = np.linalg.solve(normal, np.einsum("pihw,phw->pi", jacobian, residuals)[..., None])
        shifts += step[..., 0].clip(-1, 1)
    variance = (residuals**2).sum((1, 2)) / (total - 4).clip(1)
    explained = np.where(contrast > 0, 1 - (residuals**2).sum((1, 2)) / power, 0.0)
    return Fit(shifts, residuals, np.linalg.inv(normal), variance, explained)


def correlation_factor(
    residuals: Patches, weights: Patches, template: Float[np.ndarray, "side side"]
) -> float:
    """Return by how much correlated residuals widen a shift's variance, at least 1.

    The variance of a projection g . r is sum over lags of corr_r(lag) corr_g(lag) times that of
    independent residuals, g being the template's gradient.
    """
    slope = _slopes(template)
    lags = range(-MAX_LAG, MAX_LAG + 1)
    total, power, energy = (
        0.0,
        float((residuals**2).mean()),
        sum(float((g**2).sum()) for g in slope),
    )
    for dy in lags:
        for dx in lags:
            noise = float((residuals * np.roll(residuals, (dy, dx), (1, 2))).mean())
            same = sum(float((g * np.roll(g, (dy, dx), (0, 1))).sum()) for g in slope)
            total += noise * same / max(power * energy, 1e-300)
    return max(total, 1.0)


def _slopes(template: Float[np.ndarray, "side side"]) -> list[Float[np.ndarray, "side side"]]:
    """Return the derivatives of the interpolated template along x and y."""
    moves = ((0.0, 0.25), (0.25, 0.0))

    def moved(move: tuple[float, float], sign: float) -> Float[np.ndarray, "side side"]:
        found: Float[np.ndarray, "side side"] = ndimage.shift(
            template, sign * np.array(move), order=3, mode="nearest"
        )
        return found

    return [(moved(move, -1.0) - moved(move, 1.0)) / 0.5 for move in moves]


def _rim(image: Float[np.ndarray, "side side"]) -> Float[np.ndarray, " rim"]:
    return np.concatenate((image[0], image[-1], image[:, 0], image[:, -1]))


def _background(
    pictures: Iterable[UInt8[np.ndarray, "height width 3"]], num_frames: int
) -> Float[np.ndarray, "height width"]:
    """Return the median over frames spread over the recording, in grey."""
    wanted = set(np.linspace(0, num_frames - 1, min(NUM_BACKGROUND, num_frames)).astype(int))
    shown = enumerate(islice(pictures, num_frames))
    some = [_levels(picture) for t, picture in shown if t in wanted]
    background: Float[np.ndarray, "height width"] = np.median(some, axis=0).astype(np.float32)
    return background


def _patch(
    picture: UInt8[np.ndarray, "height width 3"],
    background: Float[np.ndarray, "height width"],
    x: int,
    y: int,
    half: int,
) -> tuple[Float[np.ndarray, "side side"], Float[np.ndarray, "side side"]]:
    """Return what differs from the background around a pixel, and 1 inside the picture, else 0."""
    height, width = background.shape
    top, left = max(y - half, 0), max(x - half, 0)
    here = np.s_[top : min(y + half + 1, height), left : min(x + half + 1, width)]
    patch = np.zeros((2 * half + 1, 2 * half + 1), np.float32)
    weight = np.zeros_like(patch)
    found = _levels(picture[here]) - background[here]
    place = np.s_[
        top - y + half : top - y + half + len(found),
        left - x + half : left - x + half + found.shape[1],
    ]
    patch[place], weight[place] = found, 1
    return patch, weight


def roughness(positions: Float[np.ndarray, "N T 2"], used: Bool[np.ndarray, "N T"]) -> float:
    """Return the median length of third differences over four frames in use; 0 without any.

    Third differences of a smooth path are small, so they tell errors of positions.
    """
    steps = np.linalg.norm(np.diff(positions, 3, axis=1), axis=-1)
    whole = used[:, :-3] & used[:, 1:-2] & used[:, 2:-1] & used[:, 3:]
    return float(np.median(steps[whole])) if whole.any() else 0.0


def _levels(picture: UInt8[np.ndarray, "height width 3"]) -> Float[np.ndarray, "height width"]:
    levels: Float[np.ndarray, "height width"] = grey(picture).astype(np.float32)
    return levels


def _blocks(
    pictures: Iterable[UInt8[np.ndarray, "height width 3"]],
    background: Float[np.ndarray, "height width"],
    positions: Float[np.ndarray, "N T 2"],
    seen: Bool[np.ndarray, "N T"],
    half: int,
    radius: float,
) -> Iterator[tuple[Int[np.ndarray, "P 2"], Patches, Patches]]:
    """Yield rows (n, t), patches around detections and their weights, a block at a time.

    The weight of a pixel is 0 outside the picture and where it is nearer to another detection.
    """
    rows: list[tuple[int, int]] = []
    patches: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    offsets = np.arange(-half, half + 1)
    for t, picture in zip(range(seen.shape[1]), pictures, strict=False):
        names = np.nonzero(seen[:, t])[0]
        if not len(names):
            continue
        for n in names:
            x, y = np.rint(positions[n, t]).astype(int)
            if not (0 <= x < background.shape[1] and 0 <= y < background.shape[0]):
                continue
            patch, weight = _patch(picture, background, x, y, half)
            own = np.hypot(
                offsets[:, None] + y - positions[n, t, 1], offsets + x - positions[n, t, 0]
            )
            for m in names[names != n]:
                dx, dy = offsets + x - positions[m, t, 0], offsets[:, None] + y - positions[m, t, 1]
                other = np.hypot(dy, dx)
                weight[(other < own) | (other < radius + 1)] = 0
            if weight.mean() >= MIN_PIXELS:
                rows.append((int(n), t))
                patches.append(patch)
                weights.append(weight)
        if len(rows) >= BLOCK:
            yield np.array(rows), np.stack(patches).astype(float), np.stack(weights).astype(float)
            rows, patches, weights = [], [], []
    if rows:
        yield np.array(rows), np.stack(patches).astype(float), np.stack(weights).astype(float)
