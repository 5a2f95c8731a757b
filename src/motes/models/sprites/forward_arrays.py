"""The forward pass of few searches in NumPy, whose calls cost a fraction of PyTorch's.

The pass is sequential over frames and a frame of a single recording holds little work, so that the
number of calls decides. `motes.models.sprites.forward_pass` is the plain reference. Of pairs
of objects only those near each other are evaluated, so that the work grows with the number of
objects, not with its square.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch.nn.functional import conv1d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.models.sprites.likelihood_maps import (
    Detections,
    PixelGaussian,
    Scene,
    SpriteTemplate,
    detect,
)
from motes.models.sprites.renderer import SpriteRenderer

Array = np.ndarray
MAX_SEARCHES = 4  # PyTorch is as fast for more
MAX_PRODUCTS = 8  # windows; a convolution is as fast for more
FAR = 160.0  # squared distance at which the blob of an object has faded to nothing
Redetect = Callable[[SpriteTemplate, Tensor, Detections, Tensor], Detections]


def covers(scene: Scene[SpriteRenderer]) -> bool:
    """Return whether this form of the pass can be used: few searches on a CPU, a linear law."""
    return (
        len(scene.clip) <= MAX_SEARCHES
        and not scene.frames.is_cuda
        and scene.frames.dtype == torch.float32
        and type(scene.dynamics) is LinearDynamics
    )


class Place(NamedTuple):
    """Gaussian beliefs about positions in pixels."""

    mean: Float[Array, "B N 2"]
    covariance: Float[Array, "B N 2 2"]

    @staticmethod
    def where(flags: Bool[Array, "B N"], yes: "Place", no: "Place") -> "Place":
        """Return `yes` where the flag is set and `no` elsewhere."""
        mean = np.where(flags[..., None], yes.mean, no.mean)
        return Place(mean, np.where(flags[..., None, None], yes.covariance, no.covariance))

    @staticmethod
    def of(place: PixelGaussian) -> "Place":
        """Return the arrays of tensors."""
        return Place(*(part.numpy() for part in place))

    def tensors(self) -> PixelGaussian:
        """Return the tensors of the arrays."""
        return PixelGaussian(*(torch.from_numpy(part) for part in self))


class Belief:
    """The states of all objects under each component; changed in place. See `LinearDynamics`."""

    def __init__(self, dynamics: LinearDynamics, batch: tuple[int, int]) -> None:
        model = [part.detach().numpy() for part in dynamics.components()]
        self.A, self.u, self.B, self.Q, self.R, mu, Sigma = model
        self.mean = np.broadcast_to(mu, (*batch, *mu.shape))
        self.covariance = np.broadcast_to(Sigma, (*batch, *Sigma.shape))
        weights = dynamics.log_weights().detach().numpy()
        self.log_weights = np.broadcast_to(weights, (*batch, len(weights)))

    def predict(self) -> None:
        """Move on to the next frame."""
        self.mean = self.mean @ self.A.T + self.u
        self.covariance = self.A @ self.covariance @ self.A.T + self.Q

    def place(self, scale: float, centre: Float[Array, " 2"]) -> Place:
        """Return the moments of the predicted positions, in pixels."""
        weights = np.exp(self.log_weights - self.log_weights.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True))[..., None]
        means, covariances = self.mean[..., :2], self.covariance[..., :2, :2] + self.R
        mean = (weights * means).sum(-2)
        away = means - mean[..., None, :]
        scatter = covariances + away[..., :, None] * away[..., None, :]
        covariance = (weights[..., None] * scatter).sum(-3) * scale**2
        return Place((mean * scale + centre).astype(np.float32), covariance.astype(np.float32))

    def update(self, positions: Float[Array, "B N 2"], seen: Bool[Array, "B N"]) -> None:
        """Condition on positions where they were seen."""
        B, cross = self.B, self.covariance @ self.B.T
        S = B @ cross + self.R
        determinant = S[..., 0, 0] * S[..., 1, 1] - S[..., 0, 1] * S[..., 1, 0]
        precision = np.empty_like(S)
        precision[..., 0, 0], precision[..., 1, 1] = S[..., 1, 1], S[..., 0, 0]
        precision[..., 0, 1], precision[..., 1, 0] = -S[..., 0, 1], -S[..., 1, 0]
        precision *= (seen[..., None] / determinant)[..., None, None]
        gain = cross @ precision
        away = positions[:, :, None] - self.mean @ B.T
        kept = np.eye(len(self.A)) - gain @ B
        square = ((precision @ away[..., None])[..., 0] * away).sum(-1)
        constant = seen[..., None] * (0.5 * np.log(determinant) + math.log(2 * math.pi))
        self.log_weights = self.log_weights - 0.5 * square - constant
        self.mean = self.mean + (gain @ away[..., None])[..., 0]
        noise = gain @ self.R @ gain.swapaxes(-1, -2)
        self.covariance = kept @ self.covariance @ kept.swapaxes(-1, -2) + noise


class Windows:
    """What the scores of all windows of a search depend on, as arrays."""

    def __init__(self, template: SpriteTemplate) -> None:
        self.radius, self.size = template.crop_radius, template.image_size
        self.side = 2 * self.radius + 1
        self.taps = np.arange(-self.radius, self.radius + 1)
        self.visibility = template.static_crops[0].numpy()
        self.background = _crops(template.background, self.radius)
        self.mass, self.spread = float(template.mass), float(template.spread)
        self.log_miss, self.kernels = float(template.log_miss), template.kernels
        self.by_tap = self.kernels.flatten(1).T.contiguous().numpy()
        self.offsets = template.offsets.numpy()
        x, y = self.offsets.T
        self.moments = np.stack([x, y, x * x, x * y, y * y], -1)
        self.cell, self.min_llr = 1 / template.phases, float(template.min_llr)

    def centre(self, mean: Float[Array, "B N 2"]) -> Int[Array, "B N 2"]:
        """Return the pixel of the frame nearest to each position."""
        height, width = self.size
        nearest: Array = np.clip(np.rint(mean), 0, (width - 1, height - 1)).astype(np.int64)
        return nearest

    def responsibilities(
        self, centre: Int[Array, "B N 2"], place: Place, present: Bool[Array, "B N"]
    ) -> Float[Array, "B N side side"]:
        """Return `likelihood_maps.responsibilities`."""
        x, y = centre[..., 0], centre[..., 1]
        total = self.background[y, x].copy()
        blob = place.covariance + self.spread * np.eye(2, dtype=np.float32)
        b_xx, b_xy, b_yy = blob[..., 0, 0], blob[..., 0, 1], blob[..., 1, 1]
        scale = b_xx * b_yy - b_xy * b_xy
        density = present * np.float32(self.mass) / (2 * np.float32(np.pi) * np.sqrt(scale))
        # Pairs whose squared distance may be less than FAR somewhere in the window.
        apart = np.abs(centre[:, :, None] - place.mean[:, None]) - self.radius
        reach = np.sqrt(FAR * np.stack([b_xx, b_yy], -1))[:, None]
        near = (apart < reach).all(-1) & present[:, None]
        if not near[:, ~np.eye(near.shape[-1], dtype=bool)].any():
            own = _gaussian(
                x[..., None] + self.taps - place.mean[..., :1],
                y[..., None] + self.taps - place.mean[..., 1:],
                (b_yy / scale, -b_xy / scale, b_xx / scale),
            )
            own *= (density * np.diagonal(near, axis1=1, axis2=2))[..., None, None]
            total += own
            apart_share: Array = own / np.maximum(total, np.float32(1e-30), out=total)
            return apart_share
        clip, window, other = np.nonzero(near)
        at = clip, other
        s = scale[at]
        depth = _gaussian(
            x[clip, window, None] + self.taps - place.mean[at][:, :1],
            y[clip, window, None] + self.taps - place.mean[at][:, 1:],
            (b_yy[at] / s, -b_xy[at] / s, b_xx[at] / s),
        )
        depth *= density[at][:, None, None]
        # Pairs are in the order of their windows.
        flat = clip * centre.shape[1] + window
        begins = np.flatnonzero(np.diff(flat, prepend=-1))
        if len(begins):
            total[clip[begins], window[begins]] += np.add.reduceat(depth, begins)
        own = np.zeros_like(total)
        mine = window == other
        own[clip[mine], window[mine]] = depth[mine]
        share: Array = own / np.maximum(total, np.float32(1e-30))
        return share

    def correlate(self, rows: Float[Array, "M rows side"]) -> Float[Array, "M cells"]:
        """Return the convolution with the kernels along x; few of them by a matrix product."""
        (M, height, side), taps = rows.shape, self.kernels.shape[-1]
        if M > MAX_PRODUCTS:
            return conv1d(torch.from_numpy(rows), self.kernels).flatten(1).numpy()
        image, row, pixel = rows.strides
        parts = as_strided(rows, (M, side - taps + 1, height, taps), (image, pixel, row, pixel))
        product = parts.reshape(-1, len(self.by_tap)) @ self.by_tap
        cells: Array = product.reshape(M, side - taps + 1, -1).swapaxes(1, 2).reshape(M, -1)
        return cells

    def evaluate(
        self,
        crops: Float[Array, "clips height width side side"],
        clip: Int[Array, " B"],
        centre: Int[Array, "B N 2"],
        share: Float[Array, "B N side side"],
        prior: Place,
    ) -> tuple[Place, Float[Array, "B N"]]:
        """Return moments and log-likelihood ratios of `likelihood_maps.evaluate_window`."""
        B, N = centre.shape[:2]
        x, y = centre[..., 0], centre[..., 1]
        visibility = self.visibility[y, x]
        lit = crops[clip[:, None], y, x] * visibility
        images = np.empty((B * N, 2, self.side, self.side), dtype=np.float32)
        np.multiply(lit, share, out=images[:, 0].reshape(lit.shape))
        np.subtract(visibility, lit, out=images[:, 1].reshape(lit.shape))
        score = self.correlate(images.reshape(B * N, -1, self.side)).reshape(B, N, -1)
        # logaddexp, of which NumPy has no vectorised form
        most = np.maximum(score, np.float32(self.log_miss))
        score = most + np.log(np.exp(score - most) + np.exp(np.float32(self.log_miss) - most))
        C = prior.covariance
        s = (C[..., 0, 0] * C[..., 1, 1] - C[..., 0, 1] * C[..., 1, 0])[..., None]
        a, b, c = C[..., 1, 1, None] / s, -C[..., 0, 1, None] / s, C[..., 0, 0, None] / s
        away = (centre - prior.mean).astype(np.float32)
        dx, dy = away[..., :1] + self.offsets[:, 0], away[..., 1:] + self.offsets[:, 1]
        before = np.float32(-0.5) * (a * dx * dx + 2 * b * dx * dy + c * dy * dy)
        joint = score + before
        joint -= joint.max(-1, keepdims=True)
        weights = np.exp(joint)
        weights /= weights.sum(-1, keepdims=True)
        llr = (weights * score).sum(-1)
        mx, my, xx, xy, yy = np.moveaxis(weights @ self.moments, -1, 0)
        covariance = np.empty((B, N, 2, 2), dtype=np.float32)
        covariance[..., 0, 0] = xx - mx * mx + self.cell**2 / 12
        covariance[..., 1, 1] = yy - my * my + self.cell**2 / 12
        covariance[..., 0, 1] = covariance[..., 1, 0] = xy - mx * my
        return Place((centre + np.stack([mx, my], -1)).astype(np.float32), covariance), llr


def _gaussian(
    dx: Float[Array, "*batch side"],
    dy: Float[Array, "*batch side"],
    precision: tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]],
) -> Float[Array, "*batch side side"]:
    """Return exp(-d / 2) of squared distances d = a dx^2 + 2 b dx dy + c dy^2, at most FAR."""
    a, b, c = (part[..., None] for part in precision)
    dx, dy = dx.astype(np.float32), dy.astype(np.float32)
    distance: Array = (2 * b * dy)[..., None] * dx[..., None, :]
    distance += (a * dx * dx)[..., None, :]
    distance += (c * dy * dy)[..., None]
    np.minimum(distance, np.float32(FAR), out=distance)
    distance *= np.float32(-0.5)
    np.exp(distance, out=distance)
    return distance


def _crops(image: Tensor, radius: int) -> Float[Array, "*B height width side side"]:
    """Return `sliding_crops` as a view of one padded copy."""
    side = 2 * radius + 1
    padded = pad(image, (radius,) * 4)
    return padded.unfold(-2, side, 1).unfold(-2, side, 1).numpy()


def forward_arrays(
    scene: Scene[SpriteRenderer],
    template: SpriteTemplate,
    trusted: Bool[Tensor, "B T"],
    redetect_lost: Redetect,
    passes: int,
    stop: int | None = None,
) -> Detections:
    """Return the detections of the forward pass in the frames before `stop`; None for all.

    Law: equals `motes.models.sprites.forward_pass`
    (test_the_forward_pass_of_arrays_equals_the_reference).
    """
    renderer, dynamics = scene.renderer, scene.dynamics
    (B, N), windows = scene.present.shape, Windows(template)
    belief, present = Belief(dynamics, (B, N)), scene.present.numpy()
    first = trusted.int().argmax(1)
    found, nats = detect(template, scene.frame(first), scene.num_objects, N)
    start, strong = found.numpy(), (nats > template.min_llr).numpy()
    eye = np.eye(2, dtype=np.float32)
    wide = np.broadcast_to(2 * np.float32(windows.spread) * eye, (B, N, 2, 2))
    scale, offset = renderer.pixels_per_unit, renderer._centre(found.double()).numpy()
    flags, parts = trusted.numpy(), []
    clips, which = np.unique(scene.clip.numpy(), return_inverse=True)
    frames = scene.frames.numpy()
    for t in range(flags.shape[1] if stop is None else stop):
        prediction = belief.place(scale, offset)
        if not present.all():
            prediction = Place.where(present, prediction, Place(start, wide))
        place = guess = prior = prediction
        new = (first.numpy() == t)[:, None] & strong
        if new.any():
            place = guess = Place.where(new, Place(start, wide), prediction)
            prior = Place.where(new, Place(start, np.float32(1e6) * wide), prediction)
        looked = flags[:, t, None] & present
        seen = looked
        if looked.any():
            # Searches that do not trust this frame ignore what they see.
            crops = _crops(torch.from_numpy(frames[clips, t]), windows.radius)
            for _ in range(passes):
                centre = windows.centre(place.mean)
                share = windows.responsibilities(centre, place, present)
                place, llr = windows.evaluate(crops, which, centre, share, prior)
                seen = looked & (llr > windows.min_llr)
        place = Place.where(seen, place, guess)
        lost = looked & ~seen
        if lost.any():
            detection = Detections(place.tensors(), torch.from_numpy(seen))
            detection = redetect_lost(template, scene.frame(t), detection, torch.from_numpy(lost))
            place, seen = Place.of(detection.place), detection.detected.numpy()
        parts.append((place.mean, place.covariance, seen))
        belief.update((place.mean - offset.astype(np.float32)) / np.float32(scale), seen)
        belief.predict()
    means, covariances, detected = (
        torch.from_numpy(np.stack(part, 2)) for part in zip(*parts, strict=True)
    )
    return Detections(PixelGaussian(means, covariances), detected)
