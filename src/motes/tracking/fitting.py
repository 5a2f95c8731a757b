"""Joint least-squares fit of overlapping objects in frames.

Frames are sprites over a known background plus white noise. Overlapping sprites add up or, if
objects are opaque, cover one another. Objects whose sprites overlap form a cluster; a Gauss-Newton
step solves for positions and amplitudes of a whole cluster, so that the others refit when one
moves.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.spatial import cKDTree

from motes.tracking.sprite import Array, Sprite

STEPS = 5  # of Gauss-Newton
MAX_MOVE = 0.6  # pixels a step
MAX_CLUSTER = 100  # objects solved together, which bounds memory and time
MOST_OPAQUE = 0.999  # share of the light that an opaque object takes away at most
DAMPING = 1e-3  # relative; weak overlaps that are left out could make a cluster indefinite


@dataclass(frozen=True, eq=False)
class Canvas:
    """Frames minus background, with a border of zeros so that crops never leave the array.

    Attributes:
        values: [F, height + 2 border, width + 2 border], flattened over all axes.
        inside: 1 for pixels of the picture and 0 for the border, [height + ..., width + ...].
        border: pixels added on each side.
    """

    values: Array
    inside: Array
    border: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width with the borders."""
        return self.inside.shape[0], self.inside.shape[1]

    def index(self, frame: Array, centres: Array, half: int) -> Array:
        """Return the positions in `values` of crops [n, side^2] around centres (x, y)."""
        height, width = self.shape
        first = (centres[:, 1] + self.border - half) * width + centres[:, 0] + self.border - half
        side = np.arange(2 * half + 1)
        offsets = (side[:, None] * width + side).ravel()
        return (frame * (height * width) + first)[:, None] + offsets


def canvas(deviation: Array, border: int) -> Canvas:
    """Return frames [F, height, width], background already subtracted, with a border."""
    pad = ((0, 0), (border, border), (border, border))
    values = np.pad(deviation.astype(np.float32, copy=False), pad)
    inside = np.pad(np.ones(deviation.shape[1:], np.float32), border)
    return Canvas(values.reshape(-1), inside, border)


@dataclass(frozen=True, eq=False)
class Fit:
    """Positions and amplitudes of objects with their joint uncertainty.

    Attributes:
        positions: (x, y) in pixels, [n, 2].
        amplitudes: [n].
        covariances: of (x, y, amplitude) with all other objects free, [n, 3, 3].
    """

    positions: Array
    amplitudes: Array
    covariances: Array


def fit_objects(
    picture: Canvas,
    sprites: tuple[Sprite, ...],
    frame: Array,
    positions: Array,
    amplitudes: Array,
    kinds: Array,
    noise: float,
    amplitude_prior: tuple[Array, Array],
    level: float = 0.0,
    steps: int = STEPS,
) -> tuple[Fit, Array]:
    """Return the joint fit, and the residual values of the canvas.

    Maximises  -|values - sum_i a_i S(. - x_i)|^2 / 2 noise^2  -  sum_i (a_i - m_i)^2 / 2 s_i^2.
    For opaque objects the sum is replaced by that of `covering`.

    Law: equals a dense brute-force fit of two overlapping objects
    (test_a_cluster_fit_equals_a_dense_fit, test_a_fit_of_opaque_objects_equals_a_dense_fit).

    Args:
        picture: frames minus background.
        sprites: one for each kind; all of one size.
        frame: of each object, [n].
        positions: first guesses (x, y), [n, 2].
        amplitudes: first guesses, [n].
        kinds: which sprite each object has, [n].
        noise: standard deviation of a pixel.
        amplitude_prior: means and standard deviations of the amplitudes, [n] each.
        level: brightness of opaque objects; 0: objects add up.
        steps: of Gauss-Newton.
    """
    positions, amplitudes = positions.astype(float), amplitudes.astype(float)
    half = sprites[0].half
    height, width = (side - 2 * picture.border for side in picture.shape)
    values = picture.values.copy()
    high = np.array((width - 1, height - 1))
    covariances = np.zeros((len(frame), 3, 3))
    lowest = 0.05 * amplitude_prior[0]
    highest = amplitude_prior[0] + 8 * amplitude_prior[1]
    for step in range(steps + 1):
        centres = np.rint(positions).clip(0, high).astype(np.int64)
        index = picture.index(frame, centres, half)
        crops, by_x, by_y = _crops(sprites, kinds, positions - centres)
        model = amplitudes[:, None].astype(np.float32) * crops
        np.subtract.at(values, index.ravel(), model.ravel())
        pairs = overlapping(frame, positions, sprites[0])
        covered = np.unique(pairs) if level > 0 else np.zeros(0, int)
        pixels, hidden, clear = covering(index[covered], model[covered], level)
        values[pixels] += hidden
        if step == steps:
            break
        groups = clusters(len(frame), pairs)
        residual = values[index]
        edge = ((centres < half) | (centres > high - half)).any(1)
        gains = amplitudes[:, None].astype(np.float32)
        jacobian = np.stack((by_x * gains, by_y * gains, crops), 1)  # [n, 3, side^2]
        if edge.any():
            inside = picture.inside.ravel()[index[edge] % picture.inside.size]
            jacobian[edge] *= inside[:, None]
        jacobian[covered] *= clear[:, None]
        moves, covariances = _solve(
            jacobian, residual, centres, pairs, groups, noise, amplitudes, amplitude_prior
        )
        values[pixels] -= hidden
        np.add.at(values, index.ravel(), model.ravel())
        length = np.hypot(moves[:, 0], moves[:, 1])
        shrink = np.minimum(1, MAX_MOVE / np.maximum(length, 1e-12))
        positions = (positions + moves[:, :2] * shrink[:, None]).clip(-0.5, high + 0.5)
        amplitudes = np.clip(amplitudes + moves[:, 2], lowest, highest)
    return Fit(positions, amplitudes, covariances), values


def covering(index: Array, models: Array, level: float) -> tuple[Array, Array, Array]:
    """Return what opaque objects hide of one another.

    An object that adds m to a dark pixel lets the share 1 - m / level of what is behind it through,
    so that together they add  level (1 - prod_i (1 - m_i / level))  instead of  sum_i m_i.

    Args:
        index: pixels of each object, [n, P].
        models: brightness of each object alone, [n, P].
        level: brightness of an opaque object.

    Returns:
        Distinct pixels [M], the brightness that is hidden there [M], and the share of each object
        that the others let through [n, P].
    """
    if len(index) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(index.shape, np.float32)
    pixels, place = np.unique(index, return_inverse=True)
    place = place.ravel()
    share = np.clip(models.ravel() / level, 0.0, MOST_OPAQUE)
    through = np.log1p(-share)
    together = np.bincount(place, through, len(pixels))
    hidden = level * (np.bincount(place, share, len(pixels)) - 1 + np.exp(together))
    clear = np.exp(together[place] - through).reshape(index.shape)
    return pixels, hidden.astype(np.float32), clear.astype(np.float32)


def draw_objects(
    picture: Canvas,
    sprites: tuple[Sprite, ...],
    frame: Array,
    positions: Array,
    amplitudes: Array,
    kinds: Array,
    values: Array,
    sign: float,
    level: float = 0.0,
) -> None:
    """Add objects to the values of a canvas, or with sign -1 take them out, in place.

    Opaque objects (level > 0) must be drawn together with those that they overlap.
    """
    high = np.array((picture.shape[1], picture.shape[0])) - 2 * picture.border - 1
    centres = np.rint(positions).clip(0, high).astype(np.int64)
    index = picture.index(frame, centres, sprites[0].half)
    crops, _, _ = _crops(sprites, kinds, positions - centres)
    crops *= amplitudes[:, None].astype(np.float32)
    np.add.at(values, index.ravel(), np.float32(sign) * crops.ravel())
    if level > 0:
        covered = np.unique(overlapping(frame, positions, sprites[0]))
        pixels, hidden, _ = covering(index[covered], crops[covered], level)
        values[pixels] -= np.float32(sign) * hidden


def overlapping(frame: Array, positions: Array, sprite: Sprite) -> Array:
    """Return pairs [m, 2] of objects of a frame whose sprites overlap."""
    if len(frame) < 2:
        return np.zeros((0, 2), int)
    reach = min(2.0 * sprite.radius + 1.0, 2.0 * sprite.half)
    points = np.column_stack((positions, frame * (4.0 * reach)))
    pairs: Array = cKDTree(points).query_pairs(reach, output_type="ndarray")
    return pairs


def clusters(count: int, pairs: Array) -> list[Array]:
    """Return arrays [number of clusters, size] of the objects of each cluster, one per size.

    A cluster of more than MAX_CLUSTER objects is divided; its parts see each other's residuals.
    """
    graph = sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (count, count))
    number, labels = csgraph.connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=number)
    if count and sizes.max() > MAX_CLUSTER:
        rank = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        part = labels[order] * count + rank // MAX_CLUSTER
        _, sizes = np.unique(part, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    return [
        order[starts[sizes == size][:, None] + np.arange(size)]
        for size in np.unique(sizes[sizes > 0])
    ]


def _crops(sprites: tuple[Sprite, ...], kinds: Array, offsets: Array) -> tuple[Array, Array, Array]:
    if len(sprites) == 1:
        return sprites[0].crops(offsets)
    flat = sprites[0].side ** 2
    out = tuple(np.empty((len(kinds), flat), np.float32) for _ in range(3))
    for kind, sprite in enumerate(sprites):
        chosen = kinds == kind
        for whole, part in zip(out, sprite.crops(offsets[chosen]), strict=True):
            whole[chosen] = part
    return out[0], out[1], out[2]


def _solve(
    jacobian: Array,
    residual: Array,
    centres: Array,
    pairs: Array,
    groups: list[Array],
    noise: float,
    amplitudes: Array,
    prior: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Return the Gauss-Newton moves [n, 3] and marginal covariances [n, 3, 3]."""
    count = len(jacobian)
    precision = 1 / noise**2
    own = np.einsum("nip,njp->nij", jacobian, jacobian).astype(float) * precision
    slope = np.einsum("nip,np->ni", jacobian, residual).astype(float) * precision
    own[:, 2, 2] += 1 / prior[1] ** 2
    slope[:, 2] += (prior[0] - amplitudes) / prior[1] ** 2
    own[:, [0, 1], [0, 1]] += 1e-2  # pixels^-2: an amplitude near 0 leaves the position free
    shared = cross_products(jacobian, centres, pairs) * precision
    moves, covariances = np.zeros((count, 3)), np.zeros((count, 3, 3))
    place = np.zeros(count, int)
    member = np.full(count, -1)
    for _which, group in enumerate(groups):
        size = group.shape[1]
        place[group] = np.arange(size)
        member[group] = np.arange(len(group))[:, None]
        matrix = np.zeros((len(group), size, 3, size, 3))
        ones = np.arange(size)
        matrix[:, ones, :, ones, :] = own[group].transpose(1, 0, 2, 3)
        if size > 1:
            cluster = np.full(count, -1)
            cluster[group] = np.arange(len(group))[:, None]
            chosen = (cluster[pairs[:, 0]] >= 0) & (cluster[pairs[:, 0]] == cluster[pairs[:, 1]])
            first, second = pairs[chosen].T
            matrix[member[first], place[first], :, place[second], :] = shared[chosen]
            matrix[member[second], place[second], :, place[first], :] = shared[chosen].transpose(
                0, 2, 1
            )
        flat = matrix.reshape(len(group), 3 * size, 3 * size)
        flat[:, np.arange(3 * size), np.arange(3 * size)] *= 1 + DAMPING
        inverse = np.linalg.inv(flat)
        step = np.einsum("kij,kj->ki", inverse, slope[group].reshape(len(group), -1))
        moves[group] = step.reshape(len(group), size, 3)
        blocks = inverse.reshape(len(group), size, 3, size, 3)[:, ones, :, ones, :]
        covariances[group] = blocks.transpose(1, 0, 2, 3)
    return moves, covariances


def cross_products(jacobian: Array, centres: Array, pairs: Array) -> Array:
    """Return sums over shared pixels of products of two objects' derivatives, [m, 3, 3]."""
    if len(pairs) == 0:
        return np.zeros((0, 3, 3))
    side = int(np.sqrt(jacobian.shape[2]))
    first, second = pairs.T
    apart = centres[second] - centres[first]  # (x, y), whole pixels
    line = np.arange(side)
    rows = line - apart[:, 1:]  # of the second crop, for each row of the first
    columns = line - apart[:, :1]
    valid = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None]
    index = rows.clip(0, side - 1)[:, :, None] * side + columns.clip(0, side - 1)[:, None]
    index, valid = index.reshape(len(pairs), 1, -1), valid.reshape(len(pairs), 1, -1)
    other = np.take_along_axis(
        jacobian[second], np.broadcast_to(index, (len(pairs), 3, side**2)), 2
    )
    products: Array = np.einsum("nip,njp->nij", jacobian[first] * valid, other).astype(float)
    return products
