"""How well a frame is explained with one object at each of many places, the others held."""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv1d, pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.models.sprites.patches import Window, squares, window_offsets
from motes.models.sprites.renderer import SpriteRenderer, log_white

# Nats that a frame must tell of an object's place, or the object was not seen: it is behind
# something, or lost, and what came out is the prior.
TOLD = 1.0
SHARE = 0.03  # of what a whole object tells, likewise: the edge of another tells less [Choice 37]


class PixelGaussian(NamedTuple):
    """Beliefs about where objects are, in pixels."""

    mean: Float[Tensor, "*batch 2"]
    covariance: Float[Tensor, "*batch 2 2"]

    def taken(self, clips: Int[Tensor, " b"]) -> "PixelGaussian":
        """Those of some of the clips."""
        return PixelGaussian(self.mean[clips], self.covariance[clips])

    def put(self, clips: Int[Tensor, " b"], others: "PixelGaussian") -> "PixelGaussian":
        """With those of some clips replaced."""
        mean = self.mean.index_copy(0, clips, others.mean)
        return PixelGaussian(mean, self.covariance.index_copy(0, clips, others.covariance))


class SpriteTemplate(NamedTuple):
    """What looking needs of the renderer: the glyph at whole-pixel offsets, and the stage.

    `phases` is the number of places that are told apart in a pixel along each axis: 1 for a
    coarse look (the glyph is averaged over the pixel), or that of the glyph's table.
    `window` is the number of pixels around a guess in which places are weighed, along each axis.
    """

    depth: Float[Tensor, "phases*phases taps taps"]
    lit_gain: Float[Tensor, "phases*phases taps taps"]  # of log p(white), object against none
    background: Float[Tensor, "height width"]  # depth
    visibility: Float[Tensor, "height width"]
    missed: Float[Tensor, ""]  # log probability that an object does not show in a frame
    bare: Float[Tensor, ""]  # the probability of white in a typical pixel without any object
    least: Float[Tensor, ""]  # nats that a frame must tell of an object, or it was not seen
    phases: int
    window: int
    # What every look needs again:
    kernels: Float[Tensor, "rows columns taps"]  # of lit_gain and -depth, see `by_rows`
    offsets: Float[Tensor, "places 2"]  # of the cells of a window
    still: Float[Tensor, "2 height width side side"]  # `squares` of visibility and dark background
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
        reach, mean = depth.shape[-1] // 2, depth.mean(0)
        axis = torch.arange(-reach, reach + 1, device=depth.device)
        along = mean.sum(0) + mean.sum(1)
        far = window + reach
        dark = (-depth).exp()
        whole = ((1 - dark) * gain - dark * depth).sum((1, 2)).mean()
        return SpriteTemplate(
            depth=depth,
            lit_gain=gain,
            background=background,
            visibility=visibility,
            missed=torch.log1p(-visibility.median()),
            bare=-torch.expm1(-typical),
            least=(SHARE * whole).clamp(min=TOLD),
            phases=phases,
            window=window,
            kernels=by_rows(torch.stack([gain, -depth], 1), 2 * window + 1),
            offsets=window_offsets(phases, window).to(depth),
            still=squares(torch.stack([visibility, (-background).exp()]), far),
            # With a border as wide as a window: what is far away sees nothing else.
            lit=squares(pad(-torch.expm1(-mean), (far + 1,) * 4), far),
            mass=mean.sum(),
            spread=(along * axis.square()).sum() / along.sum(),
        )

    @property
    def reach(self) -> int:
        """Pixels from the centre of the glyph to its border."""
        return self.depth.shape[-1] // 2

    @property
    def far(self) -> int:
        """Pixels from the centre of a window to the border of what is seen through it."""
        return self.window + self.reach

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.background.shape[0], self.background.shape[1]


def by_rows(
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


class Look(NamedTuple):
    """The posterior over the places near a guess; they are cells, `phases` a pixel and axis."""

    centre: Float[Tensor, "*batch 2"]  # the pixel in the middle of the window
    log_weights: Float[Tensor, "*batch places"]
    offsets: Float[Tensor, "places 2"]  # from the middle of the centre to those of the cells
    cell: float  # the side of a cell in pixels
    told: Float[Tensor, "*batch"]  # nats by which the object explains the frame, on average
    zoom: Float[Tensor, "*batch"] | None = None  # by what offsets and cells are to be multiplied

    def blended(self, share: float) -> "Look":
        """With this share of the weight of each pixel spread evenly over its cells."""
        pixels = (2 * round(float(self.offsets.max())) + 1) ** 2
        weights = self.weights.unflatten(-1, (-1, pixels))  # cells of a pixel, pixels
        blend = torch.lerp(weights, weights.mean(-2, keepdim=True).expand_as(weights), share)
        return self._replace(log_weights=blend.flatten(-2).log())

    @staticmethod
    def by_clips(parts: list["Look"], num_clips: int) -> "Look":
        """Appearance at some objects after the others in frames, [M N], as those of clips, [B N T]."""
        names = ("centre", "log_weights", "told", *(["zoom"] if parts[0].zoom is not None else []))
        joined: dict[str, Any] = {
            name: by_clip(torch.cat([getattr(part, name) for part in parts], 1), num_clips)
            for name in names
        }
        return parts[0]._replace(**joined)

    @property
    def weights(self) -> Float[Tensor, "*batch places"]:
        """Those of the places, which sum to one."""
        return probabilities(self.log_weights)

    def place(self) -> PixelGaussian:
        """Mean and covariance."""
        mean, covariance = moments(self.weights, self.offsets, self.cell)
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


def moments(
    weights: Float[Tensor, "*batch places"], offsets: Float[Tensor, "places 2"], cell: float
) -> PixelGaussian:
    """Mean and covariance over places, each of which stands for its whole cell."""
    mean = weights @ offsets
    second = weights @ (offsets[:, :, None] * offsets[:, None]).flatten(1)
    scatter = second.unflatten(-1, (2, 2)) - mean[..., :, None] * mean[..., None, :]
    return PixelGaussian(mean, scatter + cell**2 / 12 * torch.eye(2, device=mean.device))


class View(NamedTuple):
    """What is seen through windows; nothing of all that, beside the frame."""

    window: Window
    seen: Float[Tensor, "B N side side"]  # of the frame
    shown: Float[Tensor, "B N side side"]  # visibility
    empty: Float[Tensor, "B N side side"]  # the probability that the background is dark

    @staticmethod
    def through(
        window: Window,
        glyph: SpriteTemplate,
        frames: Float[Tensor, "frames height width side side"],
        which: Int[Tensor, " B"],
    ) -> "View":
        """The view of one of the frames for each clip, given by their `squares`."""
        return View(window, window.cut(frames, which), *window.cut_of_all(glyph.still))


def look(
    glyph: SpriteTemplate, view: View, share: Float[Tensor, "B N side side"], prior: PixelGaussian
) -> Look:
    """The posterior belief about each object's place in a window.

    Each place is scored by how well the object would explain its share of the lit pixels
    there, by the dark pixels that it would light, and by the prior. [Choice 15]

    Law: equals a loop over objects and places (test_looking_equals_the_naive_loop).
    """
    (centre, *_), seen, shown, _ = view
    lit = seen * shown
    pictures = torch.stack([lit * share, shown - lit], 2).flatten(0, 1)
    score = conv1d(pictures.flatten(1, 2), glyph.kernels).flatten(1).unflatten(0, centre.shape[:2])
    # However much a dark frame speaks against an object, it may be there and not show.
    score = score.logaddexp(glyph.missed)
    away = centre[:, :, None] + glyph.offsets - prior.mean[:, :, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    after = (score + before).log_softmax(-1)
    # Where an object is not tells nothing of where it is.
    told = (probabilities(after) * score).sum(-1)
    return Look(centre.to(seen), after, glyph.offsets, 1 / glyph.phases, told)


def responsibility(
    glyph: SpriteTemplate, window: Window, guess: PixelGaussian, present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N side side"]:
    """The share of object n in each pixel of its own window, among all that may light it.

    Those are the present objects, each spread out as its guess and its glyph are, and the
    background. For a first look: it divides a pixel between objects that are not told apart yet.

    Law: shares sum to one with that of the background
    (test_shares_of_a_pixel_sum_to_one_over_all_that_may_light_it).
    """
    x, y = window.x, window.y
    background = window.cut_of_all(squares(glyph.background, x.shape[-1] // 2))
    ink = guess.covariance + glyph.spread * torch.eye(2, device=x.device)
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
    density = present * glyph.mass / (2 * torch.pi * scale.sqrt())
    # Not farther than where there is next to nothing left: `exp` is slow where it underflows.
    depth = density[:, None, :, None, None] * distance.clamp_(max=160).mul_(-0.5).exp_()
    own = depth.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return own / (depth.sum(2) + background).clamp(min=1e-30)


def unexplained(
    glyph: SpriteTemplate, view: View, dark: Float[Tensor, "B N side side"]
) -> Float[Tensor, "B N side side"]:
    """How much of the gain of a lit pixel is left when others leave it dark with some probability.

    For a second look: what the others explain is taken from them as it is, and not divided. With
    p the probability of white by the others and the background, the object that lights the pixel
    for sure gains -log p of the gain -log b that it has before the bare background.
    """
    return left_over(glyph, dark * view.empty)


def left_over(glyph: SpriteTemplate, dark: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """What `unexplained` says, of pixels that others and the background leave dark."""
    return (1 - dark).clamp(min=glyph.bare).log() / glyph.bare.log()


def darkness(
    glyph: SpriteTemplate, view: View, others: Int[Tensor, "B M 2"], present: Bool[Tensor, "B M"]
) -> Float[Tensor, "B 1 side side"]:
    """The probability that objects in some pixels leave those that are seen of one object dark.

    Law: equals what they cover of the frame (test_others_leave_dark_what_they_do_not_cover).
    """
    places = len(glyph.lit)
    away = (view.window.centre - others + places // 2).clamp(0, places - 1)
    x, y = torch.where(present[..., None], away, 0).unbind(-1)  # the first one sees nothing
    return (1 - glyph.lit[y, x] * view.shown).prod(1, keepdim=True)


def covers(
    glyph: SpriteTemplate, mean: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N pixels"]:
    """The probability that each object, in the pixel where its mean is, lights each pixel."""
    window = Window.around(mean, glyph.reach, glyph.image_size)
    lit = -torch.expm1(-glyph.depth.mean(0)) * window.inside * present[..., None, None]
    canvas = lit.new_zeros(*mean.shape[:2], glyph.background.numel())
    # Pixels beside the frame lie on its border in `flat`, with nothing to add.
    canvas.scatter_add_(2, window.flat.flatten(2), lit.flatten(2))
    return canvas * glyph.visibility.flatten()


def chosen(flags: Bool[Tensor, "*batch"], yes: PixelGaussian, no: PixelGaussian) -> PixelGaussian:
    """The one belief where the flag is set, the other where it is not."""
    mean = torch.where(flags[..., None], yes.mean, no.mean)
    return PixelGaussian(mean, torch.where(flags[..., None, None], yes.covariance, no.covariance))


def from_left_to_right(
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
