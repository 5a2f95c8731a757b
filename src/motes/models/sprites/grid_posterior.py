"""The posterior of a search, a distribution over sub-pixel cells, and the frames it expects."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.kalman.linalg import map_vector, square_root
from motes.kalman.model import Gaussian
from motes.models.sprites.likelihood_maps import (
    PixelGaussian,
    WindowPosterior,
    cell_moments,
    pixel_mahalanobis,
    probabilities,
)
from motes.models.sprites.renderer import CELLS_PER_PIXEL, PixelRenderer, SpriteRenderer

REGION = 0.9  # probability of the region whose ellipse the covariance describes
FINE_CELLS = 16  # the most likely cells, subdivided where the region cuts them
CHUNK_POSITIONS = 1024  # positions whose ellipses are computed together, which bounds memory
# fields with axes of objects and frames
PER_OBJECT = (
    *("origin", "log_weights", "zoom", "detected"),
    *("expected_means", "expected_covariances"),
)
CHUNK_FRAMES = 512  # of an object in one batch, which bounds memory


class OcclusionPosterior(NamedTuple):
    """Of unseen positions in seen frames where the object does not show. Latent units."""

    occluded: Bool[Tensor, "B N T"]  # which these are; of others the rest means nothing
    samples: Float[Tensor, "B N T spots 2"]  # each as likely as another
    divergence: Float[Tensor, "B N T"]  # divergence from what other frames expect, in nats

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """One of the spots, chosen by standard normal noise."""
        number = self.samples.shape[3]
        index = (to_uniform(noise[..., :1]) * number).long().clamp(max=number - 1)
        return self.samples.take_along_dim(index[..., None], 3)[..., 0, :]

    def select(self, objects: Int[Tensor, " n"]) -> "OcclusionPosterior":
        """Those of some of the objects."""
        return OcclusionPosterior(*(part[:, objects] for part in self))

    @staticmethod
    def joined(parts: list["OcclusionPosterior"]) -> "OcclusionPosterior":
        """Those of one block of frames after the other."""
        return OcclusionPosterior(*(torch.cat(part, 2) for part in zip(*parts, strict=True)))


class GridPosterior(NamedTuple):
    """q(a | v): for each object and frame weights of cells, uniform within each. Latent units.

    Where an object was not detected (unobserved frame, or occlusion) q is the prior given the
    detections in other frames, and adds nothing to entropy and log prior of the bound. With an
    occlusion model q is also conditioned on the missing detection, and adds the divergence.
    """

    origin: Float[Tensor, "B N T 2"]  # centre of the window of cells
    log_weights: Float[Tensor, "B N T places"]
    offsets: Float[Tensor, "places 2"]  # from the origin to the centre of each cell
    cell: float  # side of a cell
    zoom: Float[Tensor, "B N T"]  # multiplies offsets and sides where q is narrow
    detected: Bool[Tensor, "B N T"]
    expected_means: Float[Tensor, "B N T 2"]  # leave-one-out prediction
    expected_covariances: Float[Tensor, "B N T 2 2"]
    appearance: Any = None  # of layered sprites: a point mass on classes and depth order
    occlusion: OcclusionPosterior | None = None  # with an occlusion model

    @staticmethod
    def of(
        cells: WindowPosterior,
        detected: Bool[Tensor, "B N T"],
        expected: PixelGaussian,
        renderer: PixelRenderer,
        occlusion: OcclusionPosterior | None = None,
    ) -> "GridPosterior":
        """Return the posterior of a fine window, and the prediction where nothing was detected."""
        unit = renderer.pixels_per_unit
        return GridPosterior(
            origin=renderer.from_pixels(cells.centre),
            log_weights=cells.log_weights,
            offsets=cells.offsets / unit,
            cell=cells.cell / unit,
            zoom=torch.ones_like(cells.log_likelihood_ratio) if cells.zoom is None else cells.zoom,
            detected=detected,
            expected_means=renderer.from_pixels(expected.mean),
            expected_covariances=expected.covariance / unit**2,
            occlusion=occlusion,
        )

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """Return a draw as a function of standard normal noise.

        The first coordinate, made uniform, selects the cell by inverse CDF; its remainder is
        uniform again and places x within the cell.

        Law: draws follow the weights and cover cells evenly
        (test_draws_follow_the_weights_and_fill_their_cells).
        """
        index, within = self._cell(noise)
        found = self.origin + self.zoom[..., None] * (self.offsets[index] + self.cell * within)
        guessed = self.expected_means + map_vector(square_root(self.expected_covariances), noise)
        if self.occlusion is not None:
            guessed = torch.where(
                self.occlusion.occluded[..., None], self.occlusion.draw(noise), guessed
            )
        return torch.where(self.detected[..., None], found, guessed)

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """Return the log density of the draw that this noise makes; 0 where not detected."""
        index, _ = self._cell(noise)
        weight = self.log_weights.gather(-1, index[..., None])[..., 0]
        return torch.where(self.detected, weight - 2 * self._log_side(), 0.0)

    def _cell(
        self, noise: Float[Tensor, "B N T 2"]
    ) -> tuple[Int[Tensor, "B N T"], Float[Tensor, "B N T 2"]]:
        """Return the cell that noise selects, and the offset in it: -1/2 to 1/2 of its side."""
        uniform = to_uniform(noise)
        weights = probabilities(self.log_weights)
        cumulative = weights.cumsum(-1)
        target = uniform[..., :1] * cumulative[..., -1:]  # the last one is 1 up to rounding
        index = torch.searchsorted(cumulative, target).clamp(max=weights.shape[-1] - 1)
        beyond = 1 - (cumulative.gather(-1, index) - target) / weights.gather(-1, index)
        return index[..., 0], torch.cat([beyond.clamp(0, 1), uniform[..., 1:]], -1) - 0.5

    def entropy(self) -> Float[Tensor, "B N T"]:
        """Return the entropy of each position in nats.

        Where the object was not detected, minus the divergence from the prior.
        """
        # A weight of zero has log weight -inf and adds no entropy.
        surprise = -(probabilities(self.log_weights) * self.log_weights.clamp(min=-1e4)).sum(-1)
        cost = torch.zeros_like(surprise) if self.occlusion is None else self.occlusion.divergence
        return torch.where(self.detected, surprise + 2 * self._log_side(), -cost)

    def _log_side(self) -> Float[Tensor, "B N T"]:
        """Return the log of the side of the cells of each position."""
        return self.zoom.log() + math.log(self.cell)

    @property
    def localized(self) -> Bool[Tensor, "B N T"]:
        """Where q is more informative than detections in other frames."""
        return self.detected if self.occlusion is None else self.detected | self.occlusion.occluded

    @property
    def means(self) -> Float[Tensor, "B N T 2"]:
        """The mean of each position."""
        found = self.origin + self.zoom[..., None] * (
            probabilities(self.log_weights) @ self.offsets
        )
        return torch.where(self.detected[..., None], found, self.expected_means)

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """Return the covariance of the Gaussian whose 90 % ellipse holds 90 % of q.

        q is not Gaussian: rounding leaves a position anywhere in its pixel, and the ellipse of the
        uniform distribution's covariance would hold 97 % of it. [Choice 24]

        Law: the ellipse holds 90 % of the draws
        (test_the_ellipse_of_an_answer_holds_its_share_of_the_draws).
        """
        rows = probabilities(self.log_weights.flatten(0, 2))
        parts = rows.split(chunk_size(CHUNK_POSITIONS, like=self.origin))
        found = torch.cat([_ellipse(part, self.offsets, self.cell) for part in parts])
        found = self.zoom[..., None, None].square() * found.view(*self.detected.shape, 2, 2)
        return torch.where(self.detected[..., None, None], found, self.expected_covariances)

    def widened(self, slots: int) -> "GridPosterior":
        """Return the posterior with `slots` objects; additional ones repeat the last."""
        size, device = self.detected.shape[1], self.detected.device
        if size == slots:
            return self
        objects = torch.arange(slots, device=device).clamp(max=size - 1)
        parts = {name: getattr(self, name)[:, objects] for name in PER_OBJECT}
        appearance = None if self.appearance is None else self.appearance.widened(slots)
        occlusion = None if self.occlusion is None else self.occlusion.select(objects)
        return self._replace(appearance=appearance, occlusion=occlusion, **parts)

    def pieces(self) -> Iterator[tuple[slice, "GridPosterior"]]:
        """Yield all of it, for all frames and those after them."""
        yield slice(None), self

    @staticmethod
    def joined(parts: list["GridPosterior"]) -> "GridPosterior":
        """Return the posterior of all frames from those of its blocks."""
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts], 2) for name in PER_OBJECT
        }
        hidden = [part.occlusion for part in parts if part.occlusion is not None]
        return parts[0]._replace(
            occlusion=OcclusionPosterior.joined(hidden) if hidden else None, **joined
        )


PosteriorBlocks = Callable[[], Iterator[tuple[slice, GridPosterior]]]


class StreamedPosterior(NamedTuple):
    """q(a | v) of a long clip: its moments; cells are recomputed when they are needed.

    The cells of a clip may take more memory than its frames.

    Law: equals `GridPosterior` (test_a_streamed_posterior_equals_the_whole_one).
    """

    blocks: PosteriorBlocks  # recomputes the cells, block by block
    means: Float[Tensor, "B N T 2"]
    spreads: Float[Tensor, "B N T 2 2"]
    nats: Float[Tensor, "B N T"]
    detected: Bool[Tensor, "B N T"]
    localized: Bool[Tensor, "B N T"]
    appearance: Any = None

    @staticmethod
    def of(blocks: PosteriorBlocks) -> "StreamedPosterior":
        """Return the posterior whose cells these blocks recompute."""
        parts = []
        for _, q in blocks():
            appearance = q.appearance  # the same in all blocks
            parts.append((q.means, q.covariances(), q.entropy(), q.detected, q.localized))
        means, spreads, nats, *flags = (torch.cat(part, 2) for part in zip(*parts, strict=True))
        return StreamedPosterior(blocks, means, spreads, nats, flags[0], flags[1], appearance)

    def pieces(self) -> Iterator[tuple[slice, GridPosterior]]:
        """Yield the blocks, the last one open-ended."""
        for time, q in self.blocks():
            ends = time.stop >= self.detected.shape[2]
            yield slice(time.start, None if ends else time.stop), q

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """Return a draw as a function of standard normal noise."""
        return torch.cat([q.draw(noise[:, :, time]) for time, q in self.blocks()], 2)

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """Return the log density of the draw that this noise makes; 0 where not detected."""
        return torch.cat([q.log_density(noise[:, :, time]) for time, q in self.blocks()], 2)

    def entropy(self) -> Float[Tensor, "B N T"]:
        """Return the entropy of each position, see `GridPosterior.entropy`."""
        return self.nats

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """Return the covariances, see `GridPosterior.covariances`."""
        return self.spreads


def to_uniform(noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard normal noise as uniform noise on (0, 1)."""
    return 0.5 * torch.erfc(-noise * math.sqrt(0.5))


def _ellipse(
    weights: Float[Tensor, "M places"], offsets: Float[Tensor, "places 2"], cell: float
) -> Float[Tensor, "M 2 2"]:
    """Return the covariance over cells, scaled so that its ellipse holds REGION of the weight."""
    place = cell_moments(weights, offsets, cell)
    top = weights.topk(min(FINE_CELLS, len(offsets)))
    within = cell * _points_of_a_cell().to(offsets)
    points = (offsets[top.indices][..., None, :] + within).flatten(-3, -2)
    points = torch.cat([points, offsets.expand(*weights.shape, 2)], -2)
    rest = weights.scatter(-1, top.indices, 0.0)
    mass = torch.cat([top.values.repeat_interleave(len(within), -1) / len(within), rest], -1)
    away = pixel_mahalanobis(points - place.mean[..., None, :], place.covariance)
    distance, order = away.sort(-1)
    inside = (mass.gather(-1, order).cumsum(-1) < REGION).sum(-1, keepdim=True)
    border = distance.gather(-1, inside.clamp(max=mass.shape[-1] - 1))
    return place.covariance * (border[..., None] / (-2 * math.log(1 - REGION)))


def _points_of_a_cell() -> Float[Tensor, "points 2"]:
    """Return points spread evenly over a unit cell: half of a 4 x 4 checkerboard."""
    row, column = ((torch.arange(16) // 4), torch.arange(16) % 4)
    board = (torch.stack([column, row], -1) - 1.5) / 4
    return board[(row + column) % 2 == 0]


@torch.no_grad()
def expected_frames(
    renderer: SpriteRenderer,
    q: Any,
    present: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B N K"],
    predicted: Gaussian,
) -> Float[Tensor, "B T height width"]:
    """Return the probability of white in each pixel, with positions integrated out.

    Depths add and objects are independent, so the probability of dark is a product over objects
    of E exp(-sprite(pixel - position)). Each expectation is a convolution of the sprite with the
    distribution of the position: q where the object was detected, else the mixture of the
    components' predictions.

    Law: the mean of many rendered draws (test_expected_frames_are_the_average_of_draws), for a
    long clip as well (test_a_long_clip_is_answered_as_a_short_one_is).
    """
    parts = []
    for time, part in q.pieces():
        there = Gaussian(*(moments[:, :, :, time] for moments in predicted))
        parts.append(_block_frames(renderer, part, present, weights, there))
    return torch.cat(parts, 1)


def _block_frames(
    renderer: SpriteRenderer,
    q: GridPosterior,
    present: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B N K"],
    predicted: Gaussian,
) -> Float[Tensor, "B T height width"]:
    """Return the expected frames of one block of q."""
    B, N, _ = q.detected.shape
    T = predicted.mean.shape[3]
    detected = pad(q.detected, (0, T - q.detected.shape[2]))
    log_dark = q.log_weights.new_zeros(B, T, *renderer.image_size)  # by the objects alone
    for n in range(N):
        for by_cells in (True, False):
            selected = (present[:, n, None] & (detected[:, n] == by_cells)).nonzero()
            for clip, frame in (part.unbind(1) for part in selected.split(CHUNK_FRAMES)):
                if by_cells:
                    lit = _lit_by_cells(renderer, q, clip, n, frame)
                else:
                    place = Gaussian(*(part[clip, n, :, frame] for part in predicted))
                    lit = _lit_by_gaussians(renderer, weights[clip, n], place)
                log_dark[clip, frame] += torch.log1p(-lit.clamp(max=1 - 1e-7))
    depth = renderer.background() + renderer.visible_depth(-log_dark, renderer.visibility())
    return -torch.expm1(-depth)


def _lit_by_cells(
    renderer: SpriteRenderer, q: GridPosterior, clip: Tensor, n: int, frame: Tensor
) -> Float[Tensor, "M height width"]:
    """Return the probability that a detected object lights each pixel."""
    height, width = renderer.image_size
    weights = q.log_weights[clip, n, frame].exp()
    window = math.isqrt(weights.shape[-1] // CELLS_PER_PIXEL**2) // 2
    side = 2 * window + 1
    kernels = -torch.expm1(-renderer.kernels().flatten(0, 1))[:, None]
    patch = conv_transpose2d(weights.view(-1, CELLS_PER_PIXEL**2, side, side), kernels)[:, 0]
    far = window + renderer.radius
    corner = renderer.to_pixels(q.origin[clip, n, frame]).round().long()  # x, y
    canvas = patch.new_zeros(len(patch), height + 2 * far, width + 2 * far)
    taps = torch.arange(2 * far + 1, device=patch.device)
    rows = corner[:, 1, None, None] + taps[:, None]
    columns = corner[:, 0, None, None] + taps
    canvas[torch.arange(len(patch), device=patch.device)[:, None, None], rows, columns] = patch
    return canvas[:, far : far + height, far : far + width]


def _lit_by_gaussians(
    renderer: SpriteRenderer, weights: Float[Tensor, "M K"], place: Gaussian
) -> Float[Tensor, "M height width"]:
    """Return the probability that an object with a Gaussian mixture as its belief lights pixels."""
    radius, (height, width) = renderer.radius, renderer.image_size
    mean = renderer.to_pixels(place.mean).float()
    covariance = (place.covariance * renderer.pixels_per_unit**2).float()
    x, y = (torch.arange(-radius, size + radius).to(mean) for size in (width, height))
    c_xx, c_xy, c_yy = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]
    along = _interval_mass(x, mean[..., :1], c_xx[..., None].sqrt())  # p(x), M K columns
    slope = c_xy / c_xx
    shifted = mean[..., 1:] + slope[..., None] * (x - mean[..., :1])
    rest = (c_yy - slope * c_xy).clamp(min=1e-6).sqrt()
    across = _interval_mass(y[:, None], shifted[..., None, :], rest[..., None, None])  # p(y | x)
    mass = torch.einsum("mk,mkx,mkyx->myx", weights.to(mean), along, across)
    kernel = -torch.expm1(-renderer.kernels()).mean((0, 1))
    # A transposed convolution written as a plain one takes a ninth of the time on a CPU.
    return conv2d(mass[:, None], kernel.flip(0, 1)[None, None])[:, 0]


def _interval_mass(
    centre: Float[Tensor, "*#shape"],
    mean: Float[Tensor, "*#shape"],
    scale: Float[Tensor, "*#shape"],
) -> Float[Tensor, "*shape"]:
    """Return the mass of a Gaussian in unit intervals around the centres."""
    unit = scale * math.sqrt(2)
    upper, lower = (torch.erf((centre + side - mean) / unit) for side in (0.5, -0.5))
    return 0.5 * (upper - lower)
