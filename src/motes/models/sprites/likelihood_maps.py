"""Likelihood maps: how well one object at each nearby position explains a frame, others fixed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.nn.functional import conv1d, conv2d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.kalman.linalg import identity
from motes.kalman.model import Gaussian
from motes.models.sprites.renderer import PixelRenderer, SpriteRenderer, log_white

# Detection threshold in nats. Below it the posterior over positions is all but the prior: the
# object is occluded or lost.
MIN_LLR = 1.0
# Also at least this fraction of a whole sprite's nats: the edge of another has less. [Choice 37]
MIN_LLR_FRACTION = 0.03


class Window(NamedTuple):
    """A square window of pixels for each object; parts of it may lie outside the frame."""

    centre: Int[Tensor, "B N 2"]
    x: Int[Tensor, "B N side"]
    y: Int[Tensor, "B N side"]
    image_size: tuple[int, int]

    @staticmethod
    def around(mean: Float[Tensor, "B N 2"], radius: int, image_size: tuple[int, int]) -> "Window":
        """Return the window centred on the pixel nearest to each mean."""
        return Window.at(nearest_pixel(mean, image_size), radius, image_size)

    @staticmethod
    def at(centre: Int[Tensor, "B N 2"], radius: int, image_size: tuple[int, int]) -> "Window":
        """Return the window of side 2 radius + 1 centred on each given pixel."""
        near = torch.arange(-radius, radius + 1, device=centre.device)
        return Window(centre, centre[..., 0, None] + near, centre[..., 1, None] + near, image_size)

    @property
    def inside(self) -> Bool[Tensor, "B N side side"]:
        """Return which pixels of the window lie in the frame."""
        (height, width), x, y = self.image_size, self.x, self.y
        return ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]

    @property
    def flat(self) -> Int[Tensor, "B N side side"]:
        """Return row-major pixel indices, clamped to the border for pixels outside the frame."""
        height, width = self.image_size
        rows, columns = self.y.clamp(0, height - 1), self.x.clamp(0, width - 1)
        return rows[..., :, None] * width + columns[..., None, :]

    def crop(
        self, crops: Float[Tensor, "images height width side side"], which: Int[Tensor, " B"]
    ) -> Float[Tensor, "B N side side"]:
        """Return the windows of image `which[b]` for each clip b, from its `sliding_crops`."""
        x, y = self.centre.unbind(-1)
        return crops[which[:, None], y, x]

    def crop_shared(
        self, crops: Float[Tensor, "*images height width side side"]
    ) -> Float[Tensor, "*images B N side side"]:
        """Return the windows of images that are shared by all clips, from `sliding_crops`."""
        x, y = self.centre.unbind(-1)
        return crops[..., y, x, :, :]


class FrameBatch(NamedTuple):
    """References to M frames of clips, by clip and time; pixels are copied only when cropped."""

    frames: Float[Tensor, "clips T height width C"]
    clip: Int[Tensor, " M"]
    time: Int[Tensor, " M"]
    observed: Bool[Tensor, " M"]

    @staticmethod
    def during(
        frames: Float[Tensor, "clips T height width C"],
        clips: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        time: slice,
    ) -> "FrameBatch":
        """Return the frames of a block of time, one clip after the other."""
        times = torch.arange(frames.shape[1], device=clips.device)[time]
        clip, each = torch.meshgrid(clips, times, indexing="ij")
        return FrameBatch(frames, clip.flatten(), each.flatten(), observed[:, time].flatten())

    def crop(self, window: Window) -> Float[Tensor, "M N side side C"]:
        """Return each frame's windows: zero for unobserved frames, arbitrary outside the frame."""
        height, width = window.image_size
        rows, columns = window.y.clamp(0, height - 1), window.x.clamp(0, width - 1)
        clip, time = (part[:, None, None, None] for part in (self.clip, self.time))
        crops = self.frames[clip, time, rows[..., :, None], columns[..., None, :]]
        return crops.masked_fill_(~self.observed[:, None, None, None, None], 0.0)


def sliding_crops(
    images: Float[Tensor, "*B height width"], radius: int
) -> Float[Tensor, "*B height width side side"]:
    """Return the crop around every pixel, zero outside the image, as a view of one padded copy."""
    side = 2 * radius + 1
    padded: Tensor = pad(images, (radius, radius, radius, radius))
    return padded.unfold(-2, side, 1).unfold(-2, side, 1)


def nearest_pixel(mean: Float[Tensor, "*B 2"], image_size: tuple[int, int]) -> Int[Tensor, "*B 2"]:
    """Return the pixel of the frame nearest to each position."""
    height, width = image_size
    x, y = mean.round().long().unbind(-1)
    return torch.stack([x.clamp(0, width - 1), y.clamp(0, height - 1)], -1)


def pixel_grid(image_size: tuple[int, int], like: Tensor) -> Float[Tensor, "pixels 2"]:
    """Return (x, y) of all pixels in row-major order, with the dtype and device of `like`."""
    sizes = (torch.arange(size, dtype=like.dtype, device=like.device) for size in image_size)
    y, x = torch.meshgrid(*sizes, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)


def window_offsets(phases: int, window: int) -> Float[Tensor, "cells 2"]:
    """Return the (x, y) offsets of a window's cells, in the order of the scores of `conv2d`."""
    cells = (torch.arange(phases) + 0.5) / phases - 0.5
    near = torch.arange(-window, window + 1)
    y = cells[:, None, None, None] + near[:, None]
    x = cells[:, None, None] + near
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(0, -2)


class PixelGaussian(Gaussian):
    """Gaussian beliefs about object positions, in pixels."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "PixelGaussian":
        """Return the beliefs with a function of leading axes applied to both moments."""
        return PixelGaussian(change(self.mean), change(self.covariance))

    def select(self, index: Any) -> "PixelGaussian":
        """Return some of the beliefs, by an index of leading axes."""
        return PixelGaussian(self.mean[index], self.covariance[index])

    def during(self, time: slice) -> "PixelGaussian":
        """Return the beliefs of a block of frames, [B N T]."""
        return self.select((slice(None), slice(None), time))

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
            name: frames_by_clip(torch.cat([getattr(part, name) for part in parts], 1), num_clips)
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


def frames_by_clip(values: Tensor, num_clips: int) -> Tensor:
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
    return PixelGaussian(mean, scatter + cell**2 / 12 * identity(2, mean))


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
    before = (-0.5 * pixel_mahalanobis(away, prior.covariance)).log_softmax(-1)
    after = (score + before).log_softmax(-1)
    # The mean over the posterior: excluding positions is no evidence for any other position.
    llr = (probabilities(after) * score).sum(-1)
    return WindowPosterior(centre.to(frame), after, template.offsets, 1 / template.phases, llr)


def responsibilities(
    template: SpriteTemplate,
    window: Window,
    guess: PixelGaussian,
    present: Bool[Tensor, "B N"],
    number: Int[Tensor, "B W"] | None = None,
) -> Float[Tensor, "B W side side"]:
    """Return the responsibility of object n for each pixel of its own window, if it is lit.

    `number` says of which object each window is; None: there is one of every object, in order.

    The alternatives are the other present objects, each a Gaussian blob as wide as its belief and
    its sprite together, and the background. Used in the first pass over a frame, when positions
    are too uncertain for `unexplained_fraction`.

    Law: they sum to one with that of the background
    (test_responsibilities_sum_to_one_with_the_background).
    """
    x, y = window.x, window.y
    background = window.crop_shared(sliding_crops(template.background, x.shape[-1] // 2))
    blob = guess.covariance + template.spread * identity(2, template.spread)
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
    if number is None:
        own = depth.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    else:
        own = depth.take_along_dim(number[:, :, None, None, None], 2)[:, :, 0]
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


def pixel_mahalanobis(
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


def detect(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    num_objects: Int[Tensor, " B"],
    slots: int,
) -> tuple[Float[Tensor, "B N 2"], Float[Tensor, "B N"]]:
    """Return positions of objects in a frame without any prior, and their log-likelihood ratios.

    Greedy: the best pixel is taken, what an object there would light is removed from the frame,
    and so on; if fewer objects show than are asked for, the last ratios are small. Objects are
    ordered from left to right [Choice 18]; slots beyond `num_objects` come last and mean nothing.

    Law: separated disks are found (test_separated_disks_are_detected_from_left_to_right).
    """
    B, height, width = frame.shape
    radius, depth, gain = template.radius, template.depth.mean(0), template.lit_llr.mean(0)
    dark = conv2d(((1 - frame) * template.visibility)[:, None], depth[None, None], padding=radius)
    stays = (-2 * depth).exp()
    clips, taps = (torch.arange(n, device=frame.device) for n in (B, 2 * radius + 1))
    shown = template.visibility * depth.max()
    free = frame * shown / (shown + template.background)
    pixels, ratios = [], []
    for _ in range(slots):
        score = conv2d(free[:, None], gain[None, None], padding=radius) - dark
        llr, best = score.flatten(1).max(1)
        x, y = best % width, best // width
        pixels.append(torch.stack([x, y], -1))
        ratios.append(llr)
        canvas = frame.new_ones(B, height + 2 * radius, width + 2 * radius)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, radius : radius + height, radius : radius + width]
    positions = torch.stack(pixels, 1).to(frame.dtype)
    order = left_to_right_order(positions, num_objects, width)
    llr = torch.stack(ratios, 1).take_along_dim(order, 1)
    return positions.take_along_dim(order[..., None], 1), llr


def redetect(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
    prior: PixelGaussian,
) -> tuple[Float[Tensor, "B 2"], Float[Tensor, " B"]]:
    """Return the most probable pixel of one object in a whole frame, and its log joint density.

        log p(frame, pixel) = score_map(pixel) + log N(pixel; prior)

    Law: equals a loop over pixels (test_redetection_equals_the_naive_loop).
    """
    pixels = pixel_grid(template.image_size, template.depth)
    away = pixel_mahalanobis(pixels - prior.mean[:, None], prior.covariance)
    log_area = (2 * torch.pi * determinant(prior.covariance).sqrt()).log()
    score = score_map(template, frame, covered) - 0.5 * away - log_area[:, None]
    log_joint, best = score.max(1)
    return pixels[best], log_joint


def score_map(
    template: SpriteTemplate,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
) -> Float[Tensor, "B pixels"]:
    """Return the log-likelihood ratio of one more object at each pixel of a frame.

    `covered` is the probability that other objects light a pixel: of a lit pixel only what they
    leave unexplained counts.
    """
    dark = (1 - covered).view_as(frame) * (-template.background).exp()
    lit = frame * template.visibility * unexplained_fraction(template, dark)
    dark = (1 - frame) * template.visibility
    kernel = torch.stack([template.lit_llr.mean(0), -template.depth.mean(0)])
    return correlate(torch.stack([lit, dark], 1), kernel).flatten(1)


def correlate(
    images: Float[Tensor, "B images height width"], kernel: Float[Tensor, "images taps taps"]
) -> Float[Tensor, "B height width"]:
    """Return the sum over images of their correlation with a kernel, zero outside the frame.

    By rows of the kernel, which are the channels of one convolution along x: a convolution with a
    single channel leaves the vector units of a CPU mostly idle.

    Law: equals `conv2d` (test_correlation_by_rows_equals_the_convolution).
    """
    radius, height = kernel.shape[-1] // 2, images.shape[-2]
    rows = kernel.transpose(0, 1)[:, :, None]
    parts = conv2d(pad(images, (0, 0, radius, radius)), rows, padding=(0, radius))
    total = parts[:, 0, :height].clone()
    for row in range(1, kernel.shape[-2]):
        total += parts[:, row, row : row + height]
    return total


AnyRenderer = TypeVar("AnyRenderer", bound=PixelRenderer)


@dataclass(frozen=True)
class Scene(Generic[AnyRenderer]):
    """The input of B searches: frames, masks and the current model.

    Frames of a clip are stored once for all searches of it: a long video dominates memory.
    """

    frames: Float[Tensor, "clips T height width *C"]
    clip: Int[Tensor, " B"]  # index of the frames of each search
    observed: Bool[Tensor, "B T"]
    num_objects: Int[Tensor, " B"]
    present: Bool[Tensor, "B N"]
    dynamics: Any
    renderer: AnyRenderer

    def repeated(self, times: int) -> "Scene[AnyRenderer]":
        """Return all searches, repeated."""
        return self.select(torch.arange(len(self.clip), device=self.clip.device).repeat(times))

    def select(self, searches: Int[Tensor, " b"]) -> "Scene[AnyRenderer]":
        """Return some of the searches."""
        return replace(
            self,
            clip=self.clip[searches],
            observed=self.observed[searches],
            num_objects=self.num_objects[searches],
            present=self.present[searches],
        )

    def frame(self, time: Int[Tensor, " B"] | int) -> Float[Tensor, "B height width *C"]:
        """Return one frame for each search, zero where it is unobserved."""
        searches = torch.arange(len(self.clip), device=self.clip.device)
        observed = self.observed[searches, time].view(-1, *[1] * (self.frames.ndim - 2))
        return self.frames[self.clip, time].masked_fill_(~observed, 0.0)

    def during(self, time: slice | Int[Tensor, " some"]) -> "Scene[AnyRenderer]":
        """Return the scene of some frames, those of each search apart, zero where unobserved."""
        observed, frames = self.observed[:, time], self.frames[:, time]
        clips = torch.arange(len(self.clip), device=self.clip.device)
        every = len(frames) == len(clips) and not frames.is_cuda and torch.equal(self.clip, clips)
        if not every or not bool(observed.all()):
            frames = frames[self.clip]  # a copy
            frames[~observed] = 0.0
        return replace(self, frames=frames, clip=clips, observed=observed)

    def frame_batch(self, time: slice) -> FrameBatch:
        """Return some of the frames without a copy."""
        return FrameBatch.during(self.frames, self.clip, self.observed, time)

    def blocks(self, chunk_frames: int) -> Iterator[slice]:
        """Return slices of time; all searches together hold about `chunk_frames` frames of one."""
        step = chunk_size(chunk_frames, len(self.clip), self.frames)
        return (slice(t, t + step) for t in range(0, self.observed.shape[1], step))


def scene_of(
    frames: Float[Tensor, "B T height width *C"],
    num_objects: Int[Tensor, " B"],
    dynamics: Any,
    renderer: AnyRenderer,
    observed: Bool[Tensor, "B T"] | None = None,
) -> Scene[AnyRenderer]:
    """Return the input of one search per clip, with slots for the largest count."""
    if observed is None:
        observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    most, clips = int(num_objects.max()), torch.arange(len(frames), device=frames.device)
    present = torch.arange(most, device=frames.device) < num_objects[:, None]
    return Scene(frames, clips, observed, num_objects, present, dynamics, renderer)


class Detections(NamedTuple):
    """Positions of all objects in one or all frames, in pixels, and whether they were detected.

    The position of an undetected object is its prediction.
    """

    place: PixelGaussian  # B N T, or B N
    detected: Bool[Tensor, "B N *T"]

    @staticmethod
    def joined(parts: list["Detections"], axis: int) -> "Detections":
        """Return parts concatenated along objects (axis 1) or frames (axis 2)."""
        means, covariances = zip(*(part.place for part in parts), strict=True)
        place = PixelGaussian(torch.cat(means, axis), torch.cat(covariances, axis))
        return Detections(place, torch.cat([part.detected for part in parts], axis))

    def one_frame(self) -> "Detections":
        """Return the detections of one frame with a time axis."""
        return Detections(self.place.map(lambda part: part[:, :, None]), self.detected[..., None])

    def by_clips(self, num_clips: int) -> "Detections":
        """Return detections of flattened frames [M N] as [B N T]."""
        place = self.place.map(lambda part: frames_by_clip(part, num_clips))
        return Detections(place, frames_by_clip(self.detected, num_clips))

    def select(self, clips: Int[Tensor, " b"]) -> "Detections":
        """Return the detections of some clips."""
        return Detections(self.place.select(clips), self.detected[clips])

    def put(self, clips: Int[Tensor, " b"], others: "Detections") -> "Detections":
        """Return the detections with those of some clips replaced."""
        detected = self.detected.index_copy(0, clips, others.detected)
        return Detections(self.place.put(clips, others.place), detected)

    def reordered(self, source: Int[Tensor, "B N T"]) -> "Detections":
        """Return the detections with objects permuted in every frame."""
        mean, covariance = self.place
        place = PixelGaussian(
            mean.take_along_dim(source[..., None], 1),
            covariance.take_along_dim(source[..., None, None], 1),
        )
        return Detections(place, self.detected.take_along_dim(source, 1))
