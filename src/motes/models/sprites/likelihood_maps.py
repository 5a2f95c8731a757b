"""Likelihood maps: how well one object at each nearby position explains a frame, others fixed."""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv1d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.sprites.patches import Window, sliding_crops, window_offsets
from motes.models.sprites.renderer import SpriteRenderer, log_white

# Detection threshold in nats. Below it the posterior over positions is all but the prior: the
# object is occluded or lost.
MIN_LLR = 1.0
# Also at least this fraction of a whole sprite's nats: the edge of another has less. [Choice 37]
MIN_LLR_FRACTION = 0.03


class PixelGaussian(NamedTuple):
    """Gaussian beliefs about object positions, in pixels."""

    mean: Float[Tensor, "*batch 2"]
    covariance: Float[Tensor, "*batch 2 2"]

    def select(self, clips: Int[Tensor, " b"]) -> "PixelGaussian":
        """Return the beliefs of some of the clips."""
        return PixelGaussian(self.mean[clips], self.covariance[clips])

    def during(self, time: slice) -> "PixelGaussian":
        """Return the beliefs of a block of frames, [B N T]."""
        return PixelGaussian(self.mean[:, :, time], self.covariance[:, :, time])

    def put(self, clips: Int[Tensor, " b"], others: "PixelGaussian") -> "PixelGaussian":
        """Return a copy with the beliefs of some clips replaced."""
        mean = self.mean.index_copy(0, clips, others.mean)
        return PixelGaussian(mean, self.covariance.index_copy(0, clips, others.covariance))

    @staticmethod
    def where(
        flags: Bool[Tensor, "*batch"], yes: "PixelGaussian", no: "PixelGaussian"
    ) -> "PixelGaussian":
        """Return `yes` where the flag is set and `no` elsewhere."""
        mean = torch.where(flags[..., None], yes.mean, no.mean)
        covariance = torch.where(flags[..., None, None], yes.covariance, no.covariance)
        return PixelGaussian(mean, covariance)


class SpriteTemplate(NamedTuple):
    """The renderer's sprite at whole-pixel offsets, its background, and precomputed kernels.

    `phases` is the number of cells per pixel and axis: 1 for a coarse template (the sprite averaged
    over its pixel), or that of the sprite's table. Positions up to `window` pixels from a guess
    are evaluated, along each axis.
    """

    depth: Float[Tensor, "phases*phases taps taps"]
    lit_llr: Float[Tensor, "phases*phases taps taps"]  # of white, with the object against without
    background: Float[Tensor, "height width"]  # depth
    visibility: Float[Tensor, "height width"]
    log_miss: Float[Tensor, ""]  # log probability that an object does not show in a frame
    white_background: Float[Tensor, ""]  # probability of white in a typical background pixel
    min_llr: Float[Tensor, ""]  # detection threshold in nats
    phases: int
    window: int
    kernels: Float[Tensor, "rows columns taps"]  # `row_kernels` of lit_llr and -depth
    offsets: Float[Tensor, "cells 2"]  # of the cells of a window
    static_crops: Float[Tensor, "2 height width side side"]  # of visibility and exp(-background)
    coverage_crops: Float[Tensor, "shifts shifts side side"]  # of a sprite, by its (y, x) shift
    mass: Float[Tensor, ""]  # total depth of the sprite
    spread: Float[Tensor, ""]  # variance of its mass along one axis, in pixels

    @staticmethod
    def coarse(renderer: SpriteRenderer, window: int) -> "SpriteTemplate":
        """Return the template of an object anywhere in its pixel."""
        return SpriteTemplate._of(renderer.kernels().mean((0, 1))[None], renderer, 1, window)

    @staticmethod
    def fine(renderer: SpriteRenderer, window: int) -> "SpriteTemplate":
        """Return the template of an object in each cell of its pixel."""
        kernels = renderer.kernels()
        return SpriteTemplate._of(kernels.flatten(0, 1), renderer, len(kernels), window)

    @staticmethod
    def _of(
        depth: Float[Tensor, "P taps taps"], renderer: SpriteRenderer, phases: int, window: int
    ) -> "SpriteTemplate":
        background, visibility = renderer.background(), renderer.visibility()
        # The median for all pixels; `responsibilities` assign brighter ones to the background.
        typical = background.median()
        gain = log_white(depth + typical) - log_white(typical)
        radius, mean = depth.shape[-1] // 2, depth.mean(0)
        axis = torch.arange(-radius, radius + 1, device=depth.device)
        along = mean.sum(0) + mean.sum(1)
        far = window + radius
        dark = (-depth).exp()
        expected_llr = ((1 - dark) * gain - dark * depth).sum((1, 2)).mean()
        return SpriteTemplate(
            depth=depth,
            lit_llr=gain,
            background=background,
            visibility=visibility,
            log_miss=torch.log1p(-visibility.median()),
            white_background=-torch.expm1(-typical),
            min_llr=(MIN_LLR_FRACTION * expected_llr).clamp(min=MIN_LLR),
            phases=phases,
            window=window,
            kernels=row_kernels(torch.stack([gain, -depth], 1), 2 * window + 1),
            offsets=window_offsets(phases, window).to(depth),
            static_crops=sliding_crops(torch.stack([visibility, (-background).exp()]), far),
            # The border is as wide as a crop, so that the outermost shift is an empty crop.
            coverage_crops=sliding_crops(pad(-torch.expm1(-mean), (far + 1,) * 4), far),
            mass=mean.sum(),
            spread=(along * axis.square()).sum() / along.sum(),
        )

    @property
    def radius(self) -> int:
        """Return the distance from the sprite's centre to its border, in pixels."""
        return self.depth.shape[-1] // 2

    @property
    def crop_radius(self) -> int:
        """Return the radius of the crop that all positions of a window depend on."""
        return self.window + self.radius

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]


def row_kernels(
    kernels: Float[Tensor, "P images taps taps"], num_rows: int
) -> Float[Tensor, "rows columns taps"]:
    """Return 2-D kernels as those of a 1-D convolution along x whose channels are image rows.

    One call then gives all rows of scores. On a CPU this fills the vector units, which one or two
    2-D kernels leave mostly idle.
    """
    P, images, taps, _ = kernels.shape
    rows = kernels.new_zeros(P, num_rows, images, num_rows + taps - 1, taps)
    for row in range(num_rows):
        rows[:, row, :, row : row + taps] = kernels
    return rows.flatten(2, 3).flatten(0, 1)


class WindowPosterior(NamedTuple):
    """Posterior over the cells of a window around each object, uniform within each cell."""

    centre: Float[Tensor, "*batch 2"]  # pixel at the centre of the window
    log_weights: Float[Tensor, "*batch cells"]
    offsets: Float[Tensor, "cells 2"]  # from the centre to those of the cells
    cell: float  # side of a cell in pixels
    log_likelihood_ratio: Float[Tensor, "*batch"]  # posterior mean, with against without the object
    zoom: Float[Tensor, "*batch"] | None = None  # factor of offsets and cells

    def blended(self, share: float) -> "WindowPosterior":
        """Return the posterior with this share of each pixel's weight spread over its cells."""
        pixels = (2 * round(float(self.offsets.max())) + 1) ** 2
        weights = self.weights.unflatten(-1, (-1, pixels))  # cells of a pixel, pixels
        blend = torch.lerp(weights, weights.mean(-2, keepdim=True).expand_as(weights), share)
        return self._replace(log_weights=blend.flatten(-2).log())

    @staticmethod
    def by_clips(parts: list["WindowPosterior"], num_clips: int) -> "WindowPosterior":
        """Concatenate objects of frames, [M N], and return them by clip, [B N T]."""
        names = ["centre", "log_weights", "log_likelihood_ratio"]
        names += ["zoom"] if parts[0].zoom is not None else []
        joined: dict[str, Any] = {
            name: by_clip(torch.cat([getattr(part, name) for part in parts], 1), num_clips)
            for name in names
        }
        return parts[0]._replace(**joined)

    @property
    def weights(self) -> Float[Tensor, "*batch cells"]:
        """Return the probabilities of the cells."""
        return probabilities(self.log_weights)

    def moments(self) -> PixelGaussian:
        """Return mean and covariance of each position."""
        mean, covariance = cell_moments(self.weights, self.offsets, self.cell)
        if self.zoom is not None:
            zoom = self.zoom[..., None]
            mean, covariance = zoom * mean, zoom[..., None].square() * covariance
        return PixelGaussian(self.centre + mean, covariance)


def by_clip(values: Tensor, num_clips: int) -> Tensor:
    """Return values of frames, one clip after the other, [M N ...], as [B N T ...]."""
    grouped: Tensor = values.unflatten(0, (num_clips, -1))
    return grouped.transpose(1, 2)


def probabilities(log_weights: Float[Tensor, "*batch cells"]) -> Float[Tensor, "*batch cells"]:
    """Return exp of normalised log weights.

    By softmax: `exp` takes ten times as long where it underflows.
    """
    return log_weights.softmax(-1)


def cell_moments(
    weights: Float[Tensor, "*batch cells"], offsets: Float[Tensor, "cells 2"], cell: float
) -> PixelGaussian:
    """Return mean and covariance of a mixture of uniform distributions over cells."""
    mean = weights @ offsets
    second = weights @ (offsets[:, :, None] * offsets[:, None]).flatten(1)
    scatter = second.unflatten(-1, (2, 2)) - mean[..., :, None] * mean[..., None, :]
    return PixelGaussian(mean, scatter + cell**2 / 12 * torch.eye(2, device=mean.device))


class CropView(NamedTuple):
    """Crops of a frame, the visibility and the background; all are zero outside the frame."""

    window: Window
    frame: Float[Tensor, "B N side side"]
    visibility: Float[Tensor, "B N side side"]
    background_dark: Float[Tensor, "B N side side"]  # probability that the background is dark

    @staticmethod
    def through(
        window: Window,
        template: SpriteTemplate,
        frames: Float[Tensor, "frames height width side side"],
        which: Int[Tensor, " B"],
    ) -> "CropView":
        """Return the crops of frame `which[b]` for each clip b, from `sliding_crops` of frames."""
        crops = window.crop(frames, which)
        return CropView(window, crops, *window.crop_shared(template.static_crops))


def evaluate_window(
    template: SpriteTemplate,
    view: CropView,
    share: Float[Tensor, "B N side side"],
    prior: PixelGaussian,
) -> WindowPosterior:
    """Return the posterior over the cells of a window.

        score(a) = sum over lit pixels of visibility share lit_llr(pixel - a)
                 - sum over dark pixels of visibility depth(pixel - a)
        log p(a | frame) = log(exp(score(a)) + p_miss) + log N(a; prior) + const.    [Choice 15]

    Law: equals a loop over objects and positions (test_evaluate_window_equals_the_naive_loop).
    """
    (centre, *_), frame, visibility, _ = view
    lit = frame * visibility
    images = torch.stack([lit * share, visibility - lit], 2).flatten(0, 1)
    scores = conv1d(images.flatten(1, 2), template.kernels).flatten(1)
    # An object may be present and not show, however strongly a dark frame speaks against it.
    score = scores.unflatten(0, centre.shape[:2]).logaddexp(template.log_miss)
    away = centre[:, :, None] + template.offsets - prior.mean[:, :, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    after = (score + before).log_softmax(-1)
    # The mean over the posterior: excluding positions is no evidence for any other position.
    llr = (probabilities(after) * score).sum(-1)
    return WindowPosterior(centre.to(frame), after, template.offsets, 1 / template.phases, llr)


def responsibilities(
    template: SpriteTemplate, window: Window, guess: PixelGaussian, present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N side side"]:
    """Return the responsibility of object n for each pixel of its own window, if it is lit.

    The alternatives are the other present objects, each a Gaussian blob as wide as its belief and
    its sprite together, and the background. Used in the first pass over a frame, when positions
    are too uncertain for `unexplained_fraction`.

    Law: they sum to one with that of the background
    (test_responsibilities_sum_to_one_with_the_background).
    """
    x, y = window.x, window.y
    background = window.crop_shared(sliding_crops(template.background, x.shape[-1] // 2))
    blob = guess.covariance + template.spread * torch.eye(2, device=x.device)
    scale = determinant(blob)
    a, b, c = blob[..., 1, 1] / scale, -blob[..., 0, 1] / scale, blob[..., 0, 0] / scale
    # B, window of object, object, side. Squared distances are a sum of an outer product and of
    # two terms that depend on a row or a column alone.
    dx = x[:, :, None] - guess.mean[:, None, :, 0, None]
    dy = y[:, :, None] - guess.mean[:, None, :, 1, None]
    a, b, c = (part[:, None, :, None] for part in (a, b, c))
    distance = (2 * b * dy)[..., None] * dx[..., None, :]
    distance += (a * dx * dx)[..., None, :]
    distance += (c * dy * dy)[..., None]
    density = present * template.mass / (2 * torch.pi * scale.sqrt())
    # Clamped where next to nothing is left: `exp` is slow where it underflows.
    depth = density[:, None, :, None, None] * distance.clamp_(max=160).mul_(-0.5).exp_()
    own = depth.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return own / (depth.sum(2) + background).clamp(min=1e-30)


def unexplained_fraction(
    template: SpriteTemplate, dark: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return the part of a lit pixel's gain that other objects and the background leave over.

    With p = 1 - dark the probability of white without the object and b that of a typical
    background pixel, an object that lights the pixel for sure gains -log p of the -log b that it
    gains before the bare background: the fraction is log p / log b.
    """
    return (1 - dark).clamp(min=template.white_background).log() / template.white_background.log()


def dark_probability(
    template: SpriteTemplate,
    view: CropView,
    others: Int[Tensor, "B M 2"],
    present: Bool[Tensor, "B M"],
) -> Float[Tensor, "B 1 side side"]:
    """Return the probability that objects at pixels `others` leave each pixel of a crop dark.

    Law: equals one minus their coverage (test_dark_probability_is_one_minus_the_coverage).
    """
    shifts = len(template.coverage_crops)
    away = (view.window.centre - others + shifts // 2).clamp(0, shifts - 1)
    x, y = torch.where(present[..., None], away, 0).unbind(-1)  # shift 0 is an empty crop
    return (1 - template.coverage_crops[y, x] * view.visibility).prod(1, keepdim=True)


def coverage(
    template: SpriteTemplate, mean: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N pixels"]:
    """Return the probability that each object, at the pixel of its mean, lights each pixel."""
    window = Window.around(mean, template.radius, template.image_size)
    lit = -torch.expm1(-template.depth.mean(0)) * window.inside * present[..., None, None]
    canvas = lit.new_zeros(*mean.shape[:2], template.background.numel())
    # Pixels outside the frame have indices on its border in `flat`, and add zero there.
    canvas.scatter_add_(2, window.flat.flatten(2), lit.flatten(2))
    return canvas * template.visibility.flatten()


def left_to_right_order(
    positions: Float[Tensor, "B N 2"], num_objects: Int[Tensor, " B"], width: int
) -> Int[Tensor, "B N"]:
    """Return the order of objects by x; those beyond the number of objects last. [Choice 18]."""
    spare = torch.arange(positions.shape[1], device=positions.device) >= num_objects[:, None]
    return (positions[..., 0] + spare * 2.0 * width).argsort(1)


def determinant(matrix: Float[Tensor, "*batch 2 2"]) -> Float[Tensor, "*batch"]:
    """Return determinants, written out: LAPACK is slow for batches of small matrices."""
    return matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]


def mahalanobis(
    offsets: Float[Tensor, "*batch cells 2"], covariance: Float[Tensor, "*#batch 2 2"]
) -> Float[Tensor, "*batch cells"]:
    """Return squared Mahalanobis distances, written out for two dimensions."""
    scale = determinant(covariance)[..., None]
    a, b, c = (
        part[..., None] / scale
        for part in (covariance[..., 1, 1], -covariance[..., 0, 1], covariance[..., 0, 0])
    )
    x, y = offsets.unbind(-1)
    return a * x * x + 2 * b * x * y + c * y * y
