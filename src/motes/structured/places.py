"""How well a frame is explained with one object at each of many places, the others held."""

from typing import NamedTuple

import torch
from torch.nn.functional import conv2d

from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.glyph import GlyphRenderer, log_white


class Place(NamedTuple):
    """Beliefs about where objects are, in pixels."""

    mean: Float[Tensor, "*batch 2"]
    covariance: Float[Tensor, "*batch 2 2"]

    def taken(self, clips: Int[Tensor, " b"]) -> "Place":
        """Those of some of the clips."""
        return Place(self.mean[clips], self.covariance[clips])

    def put(self, clips: Int[Tensor, " b"], others: "Place") -> "Place":
        """With those of some clips replaced."""
        mean = self.mean.index_copy(0, clips, others.mean)
        return Place(mean, self.covariance.index_copy(0, clips, others.covariance))


class Glyph(NamedTuple):
    """What looking needs of the renderer: the glyph at whole-pixel offsets, and the stage.

    `phases` is the number of places that are told apart in a pixel along each axis: 1 for a
    coarse look (the glyph is averaged over the pixel), or that of the glyph's table.
    """

    depth: Float[Tensor, "phases*phases taps taps"]
    lit_gain: Float[Tensor, "phases*phases taps taps"]  # of log p(white), object against none
    background: Float[Tensor, "height width"]  # depth
    visibility: Float[Tensor, "height width"]
    missed: Float[Tensor, ""]  # log probability that an object does not show in a frame
    phases: int

    @staticmethod
    def coarse(renderer: GlyphRenderer) -> "Glyph":
        """The glyph of an object that is anywhere in its pixel."""
        return Glyph._of(renderer.kernels().mean((0, 1))[None], renderer, 1)

    @staticmethod
    def fine(renderer: GlyphRenderer) -> "Glyph":
        """The glyph of an object in each cell of its pixel."""
        kernels = renderer.kernels()
        return Glyph._of(kernels.flatten(0, 1), renderer, len(kernels))

    @staticmethod
    def _of(depth: Float[Tensor, "P taps taps"], renderer: GlyphRenderer, phases: int) -> "Glyph":
        # One background for all pixels: what is brighter is left to the background by `share`.
        typical = renderer.background().median()
        gain = log_white(depth + typical) - log_white(typical)
        background, visibility = renderer.background(), renderer.visibility()
        missed = torch.log1p(-visibility.median())
        return Glyph(depth, gain, background, visibility, missed, phases)

    @property
    def reach(self) -> int:
        """Pixels from the centre of the glyph to its border."""
        return self.depth.shape[-1] // 2

    def ink(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The glyph's total depth, and the variance of its ink along one axis in pixels."""
        depth = self.depth.mean(0)
        axis = torch.arange(-self.reach, self.reach + 1, device=depth.device)
        along = depth.sum(0) + depth.sum(1)
        return depth.sum(), (along * axis.square()).sum() / along.sum()


class Look(NamedTuple):
    """The posterior over the places near a guess; they are cells, `phases` a pixel and axis."""

    centre: Float[Tensor, "*batch 2"]  # the pixel in the middle of the window
    log_weights: Float[Tensor, "*batch places"]
    offsets: Float[Tensor, "places 2"]  # from the middle of the centre to those of the cells
    cell: float  # the side of a cell in pixels
    told: Float[Tensor, "*batch"]  # nats by which the object explains the frame, on average

    def blended(self, share: float) -> "Look":
        """With this share of the weight of each pixel spread evenly over its cells."""
        pixels = (2 * round(float(self.offsets.max())) + 1) ** 2
        weights = self.log_weights.exp().unflatten(-1, (-1, pixels))  # cells of a pixel, pixels
        blend = torch.lerp(weights, weights.mean(-2, keepdim=True).expand_as(weights), share)
        return self._replace(log_weights=blend.flatten(-2).log())

    def place(self) -> Place:
        """Mean and covariance."""
        mean, covariance = moments(self.log_weights.exp(), self.offsets, self.cell)
        return Place(self.centre + mean, covariance)


def moments(
    weights: Float[Tensor, "*batch places"], offsets: Float[Tensor, "places 2"], cell: float
) -> Place:
    """Mean and covariance over places, each of which stands for its whole cell."""
    mean = weights @ offsets
    second = weights @ (offsets[:, :, None] * offsets[:, None]).flatten(1)
    scatter = second.unflatten(-1, (2, 2)) - mean[..., :, None] * mean[..., None, :]
    return Place(mean, scatter + cell**2 / 12 * torch.eye(2, device=mean.device))


def detect(
    glyph: Glyph, frame: Float[Tensor, "B height width"], num_objects: Int[Tensor, " B"], slots: int
) -> tuple[Float[Tensor, "B N 2"], Float[Tensor, "B N"]]:
    """Places of objects in a frame of which nothing is known, and how much each explains, in nats.

    The best place is taken first; what an object there would light is then no longer free to be
    explained by the next one, and where fewer show than there are the last ones explain nothing.
    Slots beyond the number of objects come last and mean nothing. From left to right, so that the
    order of objects can be read off the frame. [Choice 18]

    Law: separated disks are found (test_separated_disks_are_found_from_left_to_right).
    """
    B, height, width = frame.shape
    reach, depth, gain = glyph.reach, glyph.depth.mean(0), glyph.lit_gain.mean(0)
    dark = conv2d(((1 - frame) * glyph.visibility)[:, None], depth[None, None], padding=reach)
    stays = (-2 * depth).exp()
    clips, taps = torch.arange(B).to(frame.device), torch.arange(2 * reach + 1).to(frame.device)
    shown = glyph.visibility * depth.max()
    free, found, nats = frame * shown / (shown + glyph.background), [], []
    for _ in range(slots):
        score = conv2d(free[:, None], gain[None, None], padding=reach) - dark
        told, best = score.flatten(1).max(1)
        nats.append(told)
        x, y = best % width, best // width
        found.append(torch.stack([x, y], -1))
        canvas = frame.new_ones(B, height + 2 * reach, width + 2 * reach)
        rows, columns = y[:, None, None] + taps[:, None], x[:, None, None] + taps
        canvas[clips[:, None, None], rows, columns] = stays
        free = free * canvas[:, reach : reach + height, reach : reach + width]
    places = torch.stack(found, 1).to(frame.dtype)
    spare = torch.arange(slots, device=frame.device) >= num_objects[:, None]
    order = (places[..., 0] + spare * 2.0 * width).argsort(1)
    told = torch.stack(nats, 1).take_along_dim(order, 1)
    return places.take_along_dim(order[..., None], 1), told


def spot(
    glyph: Glyph,
    frame: Float[Tensor, "B height width"],
    covered: Float[Tensor, "B pixels"],
    prior: Place,
) -> tuple[Float[Tensor, "B 2"], Float[Tensor, " B"]]:
    """The likeliest pixel of one object in the whole frame, and the log of its joint density.

    Its ink is what the others leave unexplained; the prior says how likely each pixel was.

    Law: equals a loop over pixels (test_spotting_equals_the_naive_loop).
    """
    height, width = frame.shape[1:]
    lit = frame * glyph.visibility * left_over(glyph, covered).view_as(frame)
    dark = (1 - frame) * glyph.visibility
    kernel = torch.stack([glyph.lit_gain.mean(0), -glyph.depth.mean(0)])[None]
    score = conv2d(torch.stack([lit, dark], 1), kernel, padding=glyph.reach).flatten(1)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([x, y], -1).flatten(0, 1).to(frame)
    away = mahalanobis(pixels - prior.mean[:, None], prior.covariance)
    log_area = (2 * torch.pi * determinant(prior.covariance).sqrt()).log()
    told, best = (score - 0.5 * away - log_area[:, None]).max(1)
    return pixels[best], told


class Window(NamedTuple):
    """The pixels around each object: a square, larger by the glyph's reach than what is weighed."""

    centre: Int[Tensor, "B N 2"]
    x: Int[Tensor, "B N side"]
    y: Int[Tensor, "B N side"]
    flat: Int[Tensor, "B N side side"]  # row-major place in the frame of each of its pixels
    inside: Bool[Tensor, "B N side side"]  # the frame; where it is not, `flat` means nothing

    @staticmethod
    def around(mean: Float[Tensor, "B N 2"], far: int, image_size: tuple[int, int]) -> "Window":
        """The window of pixels up to `far` from the pixel that an object is in."""
        height, width = image_size
        limit = torch.tensor([width - 1, height - 1], device=mean.device)
        centre = mean.round().long().clamp(min=0).minimum(limit)
        near = torch.arange(-far, far + 1, device=mean.device)
        x, y = centre[..., 0, None] + near, centre[..., 1, None] + near
        inside = ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]
        flat = y.clamp(0, height - 1)[..., :, None] * width + x.clamp(0, width - 1)[..., None, :]
        return Window(centre, x, y, flat, inside)


def look(
    glyph: Glyph,
    frame: Float[Tensor, "B height width"],
    window: Window,
    share: Float[Tensor, "B N side side"],
    prior: Place,
) -> Look:
    """The posterior belief about each object's place in a window.

    Each place is scored by how well the object would explain its share of the lit pixels
    there, by the dark pixels that it would light, and by the prior. [Choice 15]

    Law: equals a loop over objects and places (test_looking_equals_the_naive_loop).
    """
    seen = frame.flatten(1).gather(1, window.flat.flatten(1)).view(window.flat.shape)
    shown = glyph.visibility.flatten()[window.flat] * window.inside
    pictures = torch.stack([seen * shown * share, (1 - seen) * shown], 2).flatten(0, 1)
    kernels = torch.stack([glyph.lit_gain, -glyph.depth], 1)  # phases*phases 2 taps taps
    score = conv2d(pictures, kernels).flatten(1).unflatten(0, window.centre.shape[:2])
    # However much a dark frame speaks against an object, it may be there and not show.
    score = score.logaddexp(glyph.missed)
    offsets = window_offsets(glyph.phases, window.x.shape[-1] // 2 - glyph.reach).to(frame)
    away = window.centre[:, :, None] + offsets - prior.mean[:, :, None]
    before = (-0.5 * mahalanobis(away, prior.covariance)).log_softmax(-1)
    after = (score + before).log_softmax(-1)
    told = (after.exp() * score).sum(-1)  # where an object is not tells nothing of where it is
    return Look(window.centre.to(frame), after, offsets, 1 / glyph.phases, told)


def window_offsets(phases: int, window: int) -> Float[Tensor, "places 2"]:
    """(x, y) of the cells of a window, in the order in which `conv2d` gives their scores."""
    cells = (torch.arange(phases) + 0.5) / phases - 0.5
    near = torch.arange(-window, window + 1)
    y = cells[:, None, None, None] + near[:, None]
    x = cells[:, None, None] + near
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(0, -2)


def responsibility(
    glyph: Glyph, window: Window, guess: Place, present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N side side"]:
    """The share of object n in each pixel of its own window, among all that may light it.

    Those are the present objects, each spread out as its guess and its glyph are, and the
    background. For a first look: it divides a pixel between objects that are not told apart yet.

    Law: shares sum to one with that of the background
    (test_shares_of_a_pixel_sum_to_one_over_all_that_may_light_it).
    """
    x, y, background = window.x, window.y, glyph.background.flatten()[window.flat]
    mass, spread = glyph.ink()
    ink = guess.covariance + spread * torch.eye(2, device=x.device)
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
    density = present * mass / (2 * torch.pi * scale.sqrt())
    depth = density[:, None, :, None, None] * distance.mul_(-0.5).exp_()
    own = depth.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    return own / (depth.sum(2) + background).clamp(min=1e-30)


def unexplained(
    glyph: Glyph, window: Window, covered: Float[Tensor, "B pixels"]
) -> Float[Tensor, "B N side side"]:
    """How much of the gain of a lit pixel is left when others light it with some probability.

    For a second look: what the others explain is taken from them as it is, and not divided. With
    p the probability of white by the others and the background, the object that lights the pixel
    for sure gains -log p of the gain -log b that it has before the bare background.
    """
    return left_over(glyph, covered).gather(1, window.flat.flatten(1)).view(window.flat.shape)


def left_over(glyph: Glyph, covered: Float[Tensor, "B pixels"]) -> Float[Tensor, "B pixels"]:
    """What `unexplained` says, of all pixels of a frame."""
    dark = (1 - covered) * (-glyph.background.flatten()).exp()
    least = -torch.expm1(-glyph.background.median())
    return (1 - dark).clamp(min=least).log() / least.log()


def covers(
    glyph: Glyph, mean: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N pixels"]:
    """The probability that each object, in the pixel where its mean is, lights each pixel."""
    size = (glyph.background.shape[0], glyph.background.shape[1])
    window = Window.around(mean, glyph.reach, size)
    lit = -torch.expm1(-glyph.depth.mean(0)) * window.inside * present[..., None, None]
    canvas = lit.new_zeros(*mean.shape[:2], size[0] * size[1])
    # Pixels beside the frame lie on its border in `flat`, with nothing to add.
    canvas.scatter_add_(2, window.flat.flatten(2), lit.flatten(2))
    return canvas * glyph.visibility.flatten()


def chosen(flags: Bool[Tensor, "*batch"], yes: Place, no: Place) -> Place:
    """The one belief where the flag is set, the other where it is not."""
    mean = torch.where(flags[..., None], yes.mean, no.mean)
    return Place(mean, torch.where(flags[..., None, None], yes.covariance, no.covariance))


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
