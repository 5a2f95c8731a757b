"""Camera motion: one translation of the picture for each frame, to be taken out.

A frame I is registered to a reference R by the shift s for which I(x + s) = R(x): phase correlation
gives whole pixels, Gauss-Newton steps the fraction. Steps are solved in the cells of a grid and
their median is taken, so objects that move on their own do not count as long as most of the
textured cells belong to the scene.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import fft, ndimage

from motes.core.axes import Bool, Float
from motes.video.geometry import Box
from motes.video.source import Picture

LONGEST = 480  # pixels of the longer side at which motion is estimated, at most
MIN_SIDE = 32  # pixels; in smaller pictures nothing is estimated
GRID = 8  # cells along either side
SAMPLE = 16  # frames from which motion is detected
MIN_CELLS, MIN_SPREAD = 12, 5  # textured cells, and their rows and columns: fewer may be objects
TOLERANCE = 0.5  # pixels, of a cell that moves with the camera
MIN_CORRELATION = 0.6  # of such a cell with the reference
MIN_AGREEMENT = 0.6  # of textured cells, where a shift is trusted
MIN_MOTION = 0.3  # pixels; less is a camera at rest
MAX_MOTION = 0.15  # of the longer side; more is not taken out
PEAKS = 5  # of the phase correlation that are compared
NEAR = 0.9  # correlation of cells above which no peak is searched
STEPS = 4  # of Gauss-Newton, at most

Image = Float[np.ndarray, "height width"]


class Registration(NamedTuple):
    """The shift of a frame against a reference, in pixels of the reference."""

    shift: Float[np.ndarray, "2"]  # (x, y)
    agreement: float  # share of the textured cells that moved by it; 0 with too few of them
    textured: bool  # whether enough cells have texture


@dataclass(frozen=True, eq=False)
class Reference:
    """An image that others are registered to."""

    image: Image

    @cached_property
    def spectrum(self) -> np.ndarray:
        """Conjugate Fourier transform of the windowed image."""
        spectrum: np.ndarray = np.conj(fft.rfft2(_windowed(self.image)))
        return spectrum

    @cached_property
    def gradient(self) -> Float[np.ndarray, "2 height width"]:
        """Derivatives along x and y."""
        along_y, along_x = np.gradient(self.image)
        return np.stack((along_x, along_y))

    @cached_property
    def texture(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Sums of gx gx, gx gy and gy gy in every cell, and whether a cell has texture.

        It has if the smaller eigenvalue of the sums exceeds three times that of noise. The noise
        of an image is seen where scenes have little energy, in the differences of differences of
        2x2 pixels; of white noise the squared gradients of `shrunk` are 2.5 times as large.
        """
        gx, gy = self.gradient
        xx, xy, yy = (_cell_sums(a * b) for a, b in ((gx, gx), (gx, gy), (gy, gy)))
        rows, columns = (side - side % 2 for side in self.image.shape)
        blocks = self.image[:rows, :columns].reshape(rows // 2, 2, columns // 2, 2)
        twice = np.diff(np.diff(blocks, axis=1), axis=3) / 2
        noise = max(float(np.median(np.abs(twice))) / 0.6745, 0.1 / 255)
        least = (xx + yy - np.hypot(xx - yy, 2 * xy)) / 2
        return xx, xy, yy, least > (3 * 2.5 * gx.size / GRID**2 + 100) * noise**2

    def register(self, image: Image, start: Float[np.ndarray, "2"] | None = None) -> Registration:
        """Return the shift of an image; `start` replaces phase correlation.

        Law: finds known shifts among moving objects (test_known_shifts_are_found_among_objects).
        """
        textured = self.texture[3]
        spread = min(textured.any(0).sum(), textured.any(1).sum())
        if textured.sum() < MIN_CELLS or spread < MIN_SPREAD:
            return Registration(np.zeros(2), 0.0, False)
        shift = start
        if shift is None:
            candidates = [np.zeros(2)]
            scores = [self._correlation(image).mean()]
            if scores[0] < NEAR:
                candidates += self._peaks(image)
                scores += [self._correlation(shifted(image, s)).mean() for s in candidates[1:]]
            shift = candidates[int(np.argmax(scores))]
        for _ in range(STEPS):
            change, agreement = self._step(shifted(image, shift))
            shift = shift + change
            if np.abs(change).max() < 0.01:
                break
        return Registration(shift, agreement, True)

    def _peaks(self, image: Image) -> list[Float[np.ndarray, "2"]]:
        """Return the highest peaks of the phase correlation, as (x, y) in whole pixels.

        There are several because the sharp edges of an object may outweigh a smooth scene.
        """
        cross = fft.rfft2(_windowed(image)) * self.spectrum
        surface = fft.irfft2(cross / (np.abs(cross) + 1e-9), image.shape)
        # Noise has random phases at high frequencies, where images have little energy.
        surface = ndimage.gaussian_filter(surface, 1.0, mode="wrap")
        height, width = image.shape
        reach = int(MAX_MOTION * 2 * max(height, width)) + 1
        y, x = (np.minimum(np.arange(n), n - np.arange(n)) for n in (height, width))
        surface[(y[:, None] > reach) | (x > reach)] = -np.inf
        surface[surface < ndimage.maximum_filter(surface, 3, mode="wrap")] = -np.inf
        # Of the peaks alone: a partition is slow where most values are equal.
        peaks_at = np.flatnonzero(surface > -np.inf)
        highest = peaks_at[np.argsort(surface.ravel()[peaks_at])[-PEAKS:]]
        rows, columns = np.unravel_index(highest, surface.shape)
        peaks, size = np.stack((columns, rows), axis=1).astype(float), np.array((width, height))
        return list(peaks - size * (2 * peaks > size))

    def _step(self, moved: Image) -> tuple[Float[np.ndarray, "2"], float]:
        """Return a Gauss-Newton step and the share of the textured cells that agree with it.

        In a cell the step d solves (sum g g') d = sum g (R - J), with g the gradient of R and J
        the moved image.
        """
        apart = self.image - moved
        gx, gy = self.gradient
        xx, xy, yy, textured = self.texture
        bx, by = _cell_sums(gx * apart), _cell_sums(gy * apart)
        determinant = np.where(textured, xx * yy - xy**2, 1.0)
        steps = np.stack(((yy * bx - xy * by), (xx * by - xy * bx))) / determinant
        middle = np.median(steps[:, textured], axis=1)
        near = np.abs(steps - middle[:, None, None]).max(0) < TOLERANCE
        agrees = textured & near & (self._correlation(moved) > MIN_CORRELATION)
        if not agrees.any():
            return middle.clip(-1, 1), 0.0
        sums = [part[agrees].sum() for part in (xx, xy, xy, yy)]
        matrix = np.reshape(sums, (2, 2))
        change = np.linalg.solve(matrix, (bx[agrees].sum(), by[agrees].sum()))
        return change.clip(-1, 1), float(agrees.sum() / textured.sum())

    def _correlation(self, moved: Image) -> Float[np.ndarray, "cells cells"]:
        """Return the correlation of the moved image with this one in every cell."""
        count = _cell_sums(np.ones_like(moved))
        means = [_cell_sums(image) / count for image in (self.image, moved)]
        variances = [
            _cell_sums(image**2) / count - mean**2
            for image, mean in zip((self.image, moved), means, strict=True)
        ]
        covariance = _cell_sums(self.image * moved) / count - means[0] * means[1]
        scale = np.sqrt((variances[0] * variances[1]).clip(1e-12))
        correlation: Float[np.ndarray, "cells cells"] = covariance / scale
        return correlation


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera that moves a little: the scene at rest, to which every frame is registered."""

    reference: Reference
    factor: int  # video pixels per pixel of the reference
    motion: float  # largest shift found, video pixels

    def shift(
        self, picture: Picture, before: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[float, float]:
        """Return the shift (x, y) of a frame in video pixels; `before` if it cannot be told."""
        found = self.reference.register(shrunk(picture, self.factor))
        if found.agreement < MIN_AGREEMENT / 2:
            return before
        x, y = (self.factor * found.shift).tolist()
        return x, y


class CameraMotion(NamedTuple):
    """How a camera moves: at rest, a little (and can be taken out), or too much."""

    kind: str  # "still", "moving" or "lost"
    motion: float = 0.0  # largest shift in video pixels
    camera: Camera | None = None


class CameraSample:
    """Evenly spaced, shrunk frames of a video of unknown length, each with its successor."""

    def __init__(self) -> None:
        self._pairs: list[list[Image]] = []
        self._every, self._count, self.factor = 1, 0, 1

    def add(self, picture: Picture, successor: Picture | None = None) -> None:
        """Take the next frame into account; its successor is the next one, if not given."""
        self.factor = -(-max(picture.shape[:2]) // LONGEST)
        if successor is not None:
            if len(self._pairs) == 2 * SAMPLE:
                self._pairs, self._every = self._pairs[::2], 2 * self._every
            if self._count % self._every == 0:
                self._pairs.append([shrunk(part, self.factor) for part in (picture, successor)])
            self._count += 1
            return
        if len(self._pairs) == 2 * SAMPLE:
            self._pairs, self._every = self._pairs[::2], 2 * self._every
        if self._count % self._every < 2:
            small = shrunk(picture, self.factor)
            if self._pairs and len(self._pairs[-1]) == 1:
                self._pairs[-1].append(small)
            if self._count % self._every == 0:
                self._pairs.append([small])
        self._count += 1

    def find_motion(self) -> CameraMotion:
        """Return how the camera moves, judged from at most SAMPLE of the frames."""
        pairs = self._pairs[:: max(len(self._pairs) // SAMPLE, 1)]
        images = [pair[0] for pair in pairs]
        if len(images) < 3 or min(images[0].shape) < MIN_SIDE:
            return CameraMotion("still")
        # The median of frames is the scene if the camera is at rest, else it is blurred.
        scene = Reference(np.median(images, axis=0))
        found = [scene.register(image) for image in images]
        at_rest = [o.agreement >= MIN_AGREEMENT and abs(o.shift).max() < MIN_MOTION for o in found]
        if np.mean(at_rest) >= 0.8:
            return CameraMotion("still")
        scene = Reference(images[len(images) // 2])
        found = [scene.register(image) for image in images]
        if not any(one.textured for one in found):
            return CameraMotion("still")
        if np.mean([one.agreement >= MIN_AGREEMENT for one in found]) < 0.8:
            lost = _share_of_moving_pairs([pair for pair in pairs if len(pair) == 2]) > 0.5
            return CameraMotion("lost" if lost else "still")
        shifts = np.array([one.shift for one in found if one.agreement >= MIN_AGREEMENT])
        motion = float(np.abs(shifts - np.median(shifts, axis=0)).max())
        if motion < MIN_MOTION:
            return CameraMotion("still")
        if motion > MAX_MOTION * max(images[0].shape):
            return CameraMotion("lost", self.factor * motion)
        for _ in range(2):  # the aligned median has no moving objects and little noise
            centre = np.median(shifts, axis=0).round()
            aligned = [
                shifted(image, one.shift - centre)
                for image, one in zip(images, found, strict=True)
                if one.agreement >= MIN_AGREEMENT
            ]
            scene = Reference(np.median(aligned, axis=0))
            found = [scene.register(image) for image in images]
            shifts = np.array([one.shift for one in found if one.agreement >= MIN_AGREEMENT])
            if not len(shifts):
                return CameraMotion("lost", self.factor * motion)
        if np.abs(shifts).max() < MIN_MOTION:
            return CameraMotion("still")
        motion = self.factor * float(np.abs(shifts).max())
        return CameraMotion("moving", motion, Camera(scene, self.factor, motion))


def _share_of_moving_pairs(pairs: Iterable[list[Image]]) -> float:
    """Return in how many pairs of consecutive frames most textured cells are not at rest."""
    moving = []
    for first, second in pairs:
        found = Reference(first).register(second, start=np.zeros(2))
        still = found.agreement >= 0.5 and np.abs(found.shift).max() < MIN_MOTION
        moving.append(found.textured and not still)
    return float(np.mean(moving)) if moving else 0.0


def shrunk(picture: Picture, factor: int) -> Image:
    """Return the mean over channels and factor x factor pixels in [0, 1], slightly smoothed."""
    height, width = (side - side % factor for side in picture.shape[:2])
    rows = picture[:height, :width].reshape(height // factor, factor, -1)
    # Row by row: numpy's sums over so short axes are several times slower.
    total = sum(rows[:, row].astype(np.float32) for row in range(factor))
    blocks = np.reshape(total, (height // factor, width // factor, -1)).mean(2)
    small: Image = ndimage.gaussian_filter(blocks, 0.7) / (factor * np.iinfo(picture.dtype).max)
    return small


def shifted(
    picture: np.ndarray,
    shift: Float[np.ndarray, "2"] | tuple[float, float],
    box: Box | None = None,
) -> np.ndarray:
    """Return the picture (or a box of it) sampled at x + shift; outside it the border is repeated.

    Law: equals scipy's linear interpolation (test_a_shifted_picture_equals_scipy).
    """
    height, width = picture.shape[:2]
    box = box or Box(0, 0, width, height)
    x, y = shift
    column, row = int(np.floor(x)), int(np.floor(y))
    across, down = np.float32(x - column), np.float32(y - row)
    rows = np.arange(box.top + row, box.bottom + row + 1).clip(0, height - 1)
    columns = np.arange(box.left + column, box.right + column + 1).clip(0, width - 1)
    # Whole shifts are slices with repeated borders; the fraction is a weighted mean of two.
    near = picture[rows][:, columns].astype(np.float32)
    near = near[:-1] + down * (near[1:] - near[:-1])
    sampled: np.ndarray = near[:, :-1] + across * (near[:, 1:] - near[:, :-1])
    return sampled


def inside(picture: Picture, shift: tuple[float, float], box: Box) -> Bool[np.ndarray, "rows cols"]:
    """Return which pixels x of a box have x + shift inside the picture."""
    height, width = picture.shape[:2]
    x, y = np.arange(box.left, box.right) + shift[0], np.arange(box.top, box.bottom) + shift[1]
    known: Bool[np.ndarray, "rows cols"] = ((y >= 0) & (y <= height - 1))[:, None] & (
        (x >= 0) & (x <= width - 1)
    )
    return known


def _windowed(image: Image) -> Image:
    """Return the image without its mean, fading to zero at the border."""
    window = np.hanning(image.shape[0])[:, None] * np.hanning(image.shape[1])
    windowed: Image = ((image - image.mean()) * window).astype(np.float32)
    return windowed


def _cell_sums(image: Image) -> Float[np.ndarray, "cells cells"]:
    """Return the sums over the cells of a GRID x GRID grid."""
    rows, columns = (np.linspace(0, side, GRID + 1).astype(int)[:-1] for side in image.shape)
    return np.add.reduceat(np.add.reduceat(image, rows, 0), columns, 1).astype(np.float64)
