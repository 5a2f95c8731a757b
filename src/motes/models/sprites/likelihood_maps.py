"""How well a frame is explained with one object at each of many places, the others held."""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv1d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.sprites.patches import Window, sliding_crops, window_offsets
from motes.models.sprites.renderer import SpriteRenderer, log_white

# Nats that a frame must tell of an object's place, or the object was not seen: it is behind
# something, or lost, and what came out is the prior.
MIN_LLR = 1.0
MIN_LLR_FRACTION = (
    0.03  # of what a whole object tells, likewise: the edge of another tells less [Choice 37]
)


class PixelGaussian(NamedTuple):
    """Beliefs about where objects are, in pixels."""

    mean: Float[Tensor, "*batch 2"]
    covariance: Float[Tensor, "*batch 2 2"]

    def select(self, clips: Int[Tensor, " b"]) -> "PixelGaussian":
        """Those of some of the clips."""
        return PixelGaussian(self.mean[clips], self.covariance[clips])

    def put(self, clips: Int[Tensor, " b"], others: "PixelGaussian") -> "PixelGaussian":
        """With those of some clips replaced."""
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
    """What looking needs of the renderer: the glyph at whole-pixel offsets, and the stage.

    `phases` is the number of places that are told apart in a pixel along each axis: 1 for a
    coarse look (the glyph is averaged over the pixel), or that of the glyph's table.
    `window` is the number of pixels around a guess in which places are weighed, along each axis.
    """

    depth: Float[Tensor, "phases*phases taps taps"]
    lit_llr: Float[Tensor, "phases*phases taps taps"]  # of log p(white), object against none
    background: Float[Tensor, "height width"]  # depth
    visibility: Float[Tensor, "height width"]
    log_miss: Float[Tensor, ""]  # log probability that an object does not show in a frame
    white_background: Float[
        Tensor, ""
    ]  # the probability of white in a typical pixel without any object
    min_llr: Float[Tensor, ""]  # nats that a frame must tell of an object, or it was not seen
    phases: int
    window: int
    # What every look needs again:
    kernels: Float[Tensor, "rows columns taps"]  # of lit_gain and -depth, see `row_kernels`
    offsets: Float[Tensor, "places 2"]  # of the cells of a window
    static_crops: Float[
        Tensor, "2 height width side side"
    ]  # `sliding_crops` of visibility and dark background
    lit: Float[Tensor, "places places side side"]  # and of what an object lights around itself
    mass: Float[Tensor, ""]  # the glyph's total depth
    spread: Float[Tensor, ""]  # the variance of its ink along one axis in pixels

    @staticmethod
    def coarse(renderer: SpriteRenderer, window: int) -> "SpriteTemplate":
        """The glyph of an object that is anywhere in its pixel."""
        return SpriteTemplate._of(renderer.kernels().mean((0, 1))[None], renderer, 1, window)

    @staticmethod
    def fine(renderer: SpriteRenderer, window: int) -> "SpriteTemplate":
        """The glyph of an object in each cell of its pixel."""
        kernels = renderer.kernels()
        return SpriteTemplate._of(kernels.flatten(0, 1), renderer, len(kernels), window)

    @staticmethod
    def _of(
        depth: Float[Tensor, "P taps taps"], renderer: SpriteRenderer, phases: int, window: int
    ) -> "SpriteTemplate":
        # One background for all pixels: what is brighter is left to the background by `share`.
        typical = renderer.background().median()
        gain = log_white(depth + typical) - log_white(typical)
        background, visibility = renderer.background(), renderer.visibility()
        radius, mean = depth.shape[-1] // 2, depth.mean(0)
        axis = torch.arange(-radius, radius + 1, device=depth.device)
        along = mean.sum(0) + mean.sum(1)
        crop_radius = window + radius
        dark = (-depth).exp()
        whole = ((1 - dark) * gain - dark * depth).sum((1, 2)).mean()
        return SpriteTemplate(
            depth=depth,
            lit_llr=gain,
            background=background,
            visibility=visibility,
            log_miss=torch.log1p(-visibility.median()),
            white_background=-torch.expm1(-typical),
            min_llr=(MIN_LLR_FRACTION * whole).clamp(min=MIN_LLR),
            phases=phases,
            window=window,
            kernels=row_kernels(torch.stack([gain, -depth], 1), 2 * window + 1),
            offsets=window_offsets(phases, window).to(depth),
            static_crops=sliding_crops(torch.stack([visibility, (-background).exp()]), crop_radius),
            # With a border as wide as a window: what is far away sees nothing else.
            lit=sliding_crops(pad(-torch.expm1(-mean), (crop_radius + 1,) * 4), crop_radius),
            mass=mean.sum(),
            spread=(along * axis.square()).sum() / along.sum(),
        )

    @property
    def radius(self) -> int:
        """Pixels from the centre of the glyph to its border."""
        return self.depth.shape[-1] // 2

    @property
    def crop_radius(self) -> int:
        """Pixels from the centre of a window to the border of what is seen through it."""
        return self.window + self.radius

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]


def row_kernels(
    kernels: Float[Tensor, "P pictures taps taps"], num_rows: int
) -> Float[Tensor, "rows columns taps"]:
    """Kernels as those of a convolution along x alone, whose channels are rows.

    It gives all rows of places at once. A CPU fills its vectors with channels: a kernel or two by
    themselves would leave them empty.
    """
    P, pictures, taps, _ = kernels.shape
    rows = kernels.new_zeros(P, num_rows, pictures, num_rows + taps - 1, taps)
    for row in range(num_rows):
        rows[:, row, :, row : row + taps] = kernels
    return rows.flatten(2, 3).flatten(0, 1)


class WindowPosterior(NamedTuple):
    """The posterior over the places near a guess; they are cells, `phases` a pixel and axis."""

    centre: Float[Tensor, "*batch 2"]  # the pixel in the middle of the window
    log_weights: Float[Tensor, "*batch places"]
    offsets: Float[Tensor, "places 2"]  # from the middle of the centre to those of the cells
    cell: float  # the side of a cell in pixels
    log_likelihood_ratio: Float[
        Tensor, "*batch"
    ]  # nats by which the object explains the frame, on average
    zoom: Float[Tensor, "*batch"] | None = None  # by what offsets and cells are to be multiplied

    def blended(self, share: float) -> "WindowPosterior":
        """With this share of the weight of each pixel spread evenly over its cells."""
        pixels = (2 * round(float(self.offsets.max())) + 1) ** 2
        weights = self.weights.unflatten(-1, (-1, pixels))  # cells of a pixel, pixels
        blend = torch.lerp(weights, weights.mean(-2, keepdim=True).expand_as(weights), share)
        return self._replace(log_weights=blend.flatten(-2).log())

    @staticmethod
    def by_clips(parts: list["WindowPosterior"], num_clips: int) -> "WindowPosterior":
        """Appearance at some objects after the others in frames, [M N], as those of clips, [B N T]."""
        names = (
            "centre",
            "log_weights",
            "log_likelihood_ratio",
            *(["zoom"] if parts[0].zoom is not None else []),
        )
        joined: dict[str, Any] = {
            name: by_clip(torch.cat([getattr(part, name) for part in parts], 1), num_clips)
            for name in names
        }
        return parts[0]._replace(**joined)

    @property
    def weights(self) -> Float[Tensor, "*batch places"]:
        """Those of the places, which sum to one."""
        return probabilities(self.log_weights)

    def moments(self) -> PixelGaussian:
        """Mean and covariance."""
        mean, covariance = cell_moments(self.weights, self.offsets, self.cell)
        if self.zoom is not None:
            zoom = self.zoom[..., None]
            mean, covariance = zoom * mean, zoom[..., None].square() * covariance
        return PixelGaussian(self.centre + mean, covariance)


def by_clip(values: Tensor, num_clips: int) -> Tensor:
    """What is said of frames, one clip after the other, [M N ...], as [B N T ...]."""
    grouped: Tensor = values.unflatten(0, (num_clips, -1))
    return grouped.transpose(1, 2)


def probabilities(log_weights: Float[Tensor, "*batch places"]) -> Float[Tensor, "*batch places"]:
    """Weights that sum to one from their logarithms.

    A softmax of what is normalised already: `exp` takes ten times as long where it underflows.
    """
    return log_weights.softmax(-1)


def cell_moments(
    weights: Float[Tensor, "*batch places"], offsets: Float[Tensor, "places 2"], cell: float
) -> PixelGaussian:
    """Mean and covariance over places, each of which stands for its whole cell."""
    mean = weights @ offsets
    second = weights @ (offsets[:, :, None] * offsets[:, None]).flatten(1)
    scatter = second.unflatten(-1, (2, 2)) - mean[..., :, None] * mean[..., None, :]
    return PixelGaussian(mean, scatter + cell**2 / 12 * torch.eye(2, device=mean.device))


class CropView(NamedTuple):
    """What is seen through windows; nothing of all that, beside the frame."""

    window: Window
    frame: Float[Tensor, "B N side side"]  # of the frame
    visibility: Float[Tensor, "B N side side"]  # visibility
    background_dark: Float[Tensor, "B N side side"]  # the probability that the background is dark

    @staticmethod
    def through(
        window: Window,
        template: SpriteTemplate,
        frames: Float[Tensor, "frames height width side side"],
        which: Int[Tensor, " B"],
    ) -> "CropView":
        """The view of one of the frames for each clip, given by their `sliding_crops`."""
        return CropView(
            window, window.crop(frames, which), *window.crop_shared(template.static_crops)
        )


def evaluate_window(
    template: SpriteTemplate,
    view: CropView,
    share: Float[Tensor, "B N side side"],
    prior: PixelGaussian,
) -> WindowPosterior:
    """The posterior belief about each object's place in a window.

    Each place is scored by how well the object would explain its share of the lit pixels
    there, by the dark pixels that it would light, and by the prior. [Choice 15]

    Law: equals a loop over objects and places (test_looking_equals_the_naive_loop).
    """
    (centre, *_), seen, shown, _ = view
    lit = seen * shown
    pictures = torch.stack([lit * share, shown - lit], 2).flatten(0, 1)
    score = (
        conv1d(pictures.flatten(1, 2), template.kernels).flatten(1).unflatten(0, centre.shape[:2])
    )
    # However much a dark frame speaks against an object, it may be there and not show.
    score = score.logaddexp(template.log_miss)
    away = centre[:, :, None] + template.offsets - prior.mean[:, :, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    after = (score + before).log_softmax(-1)
    # Where an object is not tells nothing of where it is.
    log_likelihood_ratio = (probabilities(after) * score).sum(-1)
    return WindowPosterior(
        centre.to(seen), after, template.offsets, 1 / template.phases, log_likelihood_ratio
    )


def responsibilities(
    template: SpriteTemplate, window: Window, guess: PixelGaussian, present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N side side"]:
    """The share of object n in each pixel of its own window, among all that may light it.

    Those are the present objects, each spread out as its guess and its glyph are, and the
    background. For a first look: it divides a pixel between objects that are not told apart yet.

    Law: shares sum to one with that of the background
    (test_shares_of_a_pixel_sum_to_one_over_all_that_may_light_it).
    """
    x, y = window.x, window.y
    background = window.crop_shared(sliding_crops(template.background, x.shape[-1] // 2))
    ink = guess.covariance + template.spread * torch.eye(2, device=x.device)
    scale = determinant(ink)
    a, b, c = ink[..., 1, 1] / scale, -ink[..., 0, 1] / scale, ink[..., 0, 0] / scale
    # B, window of object, object, side: squared distances are a sum of an outer product and of
    # two terms that depend on a row or a column alone.
    dx = x[:, :, None] - guess.mean[:, None, :, 0, None]
    dy = y[:, :, None] - guess.mean[:, None, :, 1, None]
    a, b, c = (part[:, None, :, None] for part in (a, b, c))
    distance = (2 * b * dy)[..., None] * dx[..., None, :]
    distance += (a * dx * dx)[..., None, :]
    distance += (c * dy * dy)[..., None]
    density = present * template.mass / (2 * torch.pi * scale.sqrt())
    # Not farther than where there is next to nothing left: `exp` is slow where it underflows.
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
    """The probability that objects in some pixels leave those that are seen of one object dark.

    Law: equals what they cover of the frame (test_others_leave_dark_what_they_do_not_cover).
    """
    places = len(template.lit)
    away = (view.window.centre - others + places // 2).clamp(0, places - 1)
    x, y = torch.where(present[..., None], away, 0).unbind(-1)  # the first one sees nothing
    return (1 - template.lit[y, x] * view.visibility).prod(1, keepdim=True)


def coverage(
    template: SpriteTemplate, mean: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N pixels"]:
    """The probability that each object, in the pixel where its mean is, lights each pixel."""
    window = Window.around(mean, template.radius, template.image_size)
    lit = -torch.expm1(-template.depth.mean(0)) * window.inside * present[..., None, None]
    canvas = lit.new_zeros(*mean.shape[:2], template.background.numel())
    # Pixels beside the frame lie on its border in `flat`, with nothing to add.
    canvas.scatter_add_(2, window.flat.flatten(2), lit.flatten(2))
    return canvas * template.visibility.flatten()


def left_to_right_order(
    places: Float[Tensor, "B N 2"], num_objects: Int[Tensor, " B"], width: int
) -> Int[Tensor, "B N"]:
    """The order of places in a frame, those beyond the number of objects last. [Choice 18]."""
    spare = torch.arange(places.shape[1], device=places.device) >= num_objects[:, None]
    return (places[..., 0] + spare * 2.0 * width).argsort(1)


def determinant(matrix: Float[Tensor, "*batch 2 2"]) -> Float[Tensor, "*batch"]:
    """Written out: batches of small matrices are slow in LAPACK."""
    return matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]


def mahalanobis(
    offsets: Float[Tensor, "*batch places 2"], covariance: Float[Tensor, "*#batch 2 2"]
) -> Float[Tensor, "*batch places"]:
    """Squared Mahalanobis distances, written out for two dimensions."""
    scale = determinant(covariance)[..., None]
    a, b, c = (
        part[..., None] / scale
        for part in (covariance[..., 1, 1], -covariance[..., 0, 1], covariance[..., 0, 0])
    )
    x, y = offsets.unbind(-1)
    return a * x * x + 2 * b * x * y + c * y * y
