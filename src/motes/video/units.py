"""Lengths: from the pixels of a recording to a plane of the scene, by a projective map.

A scale and a ruler are special cases whose axes are those of the picture, x to the right and y
down. A plane given by four points has the axes of its own coordinates.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from motes.core.axes import Float, Float64, Tensor
from motes.core.errors import InputError, require

Point = tuple[float, float]
Row = tuple[float, float, float]
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
UNIT = r"[A-Za-zµμ]+"  # two letters for micro
SCALE = re.compile(rf"\s*({NUMBER})\s*({UNIT})\s*/\s*px\s*")
LENGTH = re.compile(rf"({NUMBER})\s*({UNIT})")
PAIR = re.compile(rf"({NUMBER}),({NUMBER})")
MATCH = re.compile(rf"({NUMBER}),({NUMBER})=({NUMBER}),({NUMBER})")
MIN_SPREAD = 1e-6  # of singular values: three points on a line do not fix a plane


@dataclass(frozen=True)
class Units:
    """A projective map from recording pixels to lengths.

    (X, Y) = (u / w, v / w) with (u, v, w) = matrix (x, y, 1). Beyond the horizon of the plane,
    where w is not positive, there is no point, and everything is NaN.
    """

    matrix: tuple[Row, Row, Row]
    length: str  # name of the unit

    def __post_init__(self) -> None:
        require(
            np.isfinite(self.matrix).all() and abs(np.linalg.det(self.matrix)) > 0,
            f"the matrix to units is {self.matrix}; expected three rows of finite numbers that can "
            "be inverted; measure the points again",
        )

    @classmethod
    def by_scale(cls, per_pixel: float, length: str) -> "Units":
        """Return units by the length of a pixel."""
        require(
            0 < per_pixel < math.inf, f"a pixel is {per_pixel:g} {length} long; give more than 0"
        )
        return cls(((per_pixel, 0.0, 0.0), (0.0, per_pixel, 0.0), (0.0, 0.0, 1.0)), length)

    @classmethod
    def by_ruler(cls, start: Point, end: Point, distance: float, length: str) -> "Units":
        """Return units by two points of the picture and the distance between them."""
        pixels = math.dist(start, end)
        require(pixels > 0, f"the ruler has both ends at {start}; give two points that differ")
        return cls.by_scale(distance / pixels, length)

    @classmethod
    def by_plane(cls, pixels: Any, places: Any, length: str) -> "Units":
        """Return units by four or more points [P, 2] of the picture and their places in a plane.

        The direct linear transformation, solved by least squares after both sets of points are
        centred and scaled (Hartley and Zisserman, Multiple View Geometry, 4.1 and 4.4). Four
        points are met exactly.

        Law: equals the solution of the eight equations for four points
        (test_four_points_are_met_and_equal_a_linear_solve); is the map that made the points
        (test_a_plane_by_points_is_the_map_that_made_them).
        """
        x, y = (np.asarray(points, dtype=np.float64) for points in (pixels, places))
        require(
            x.ndim == 2 and x.shape == y.shape and x.shape[1] == 2 and len(x) >= 4,
            f"got points of shapes {x.shape} and {y.shape} for a plane; expected four or more "
            "pairs, [points, 2] both",
        )
        to_x, to_y = _normaliser(x), _normaliser(y)
        a, b = _apply(to_x, x), _apply(to_y, y)
        ones, zeros = np.ones((len(a), 1)), np.zeros((len(a), 3))
        h = np.concatenate([a, ones], 1)
        design = np.concatenate(
            [
                np.concatenate([h, zeros, -b[:, :1] * h], 1),
                np.concatenate([zeros, h, -b[:, 1:] * h], 1),
            ]
        )
        _, spread, vectors = np.linalg.svd(design)
        require(
            spread[7] > MIN_SPREAD * spread[0],
            "three of the points of the plane lie on a line, so they do not fix it; choose corners "
            "of a quadrilateral",
        )
        matrix = np.linalg.inv(to_y) @ vectors[-1].reshape(3, 3) @ to_x
        depth = np.concatenate([x, ones], 1) @ matrix[2]
        require(
            (depth > 0).all() or (depth < 0).all(),
            "the points of the plane are in an order that no camera sees; check the pairs",
        )
        first, second, third = (matrix / depth.mean()).tolist()
        return cls((tuple(first), tuple(second), tuple(third)), length)

    def of_clips(self, scale: Any, offset: Any) -> "Units":
        """Return the map from pixels of clips, which `VideoMap` scales and shifts."""
        affine = np.diag([*map(float, scale), 1.0])
        affine[:2, 2] = offset
        first, second, third = (np.array(self.matrix) @ affine).tolist()
        return Units((tuple(first), tuple(second), tuple(third)), self.length)

    def points(self, pixels: Float[Tensor, "*shape 2"]) -> Float[Tensor, "*shape 2"]:
        """Return positions in the plane."""
        u, w = self._parts(pixels)
        return (u / w[..., None]).to(pixels.dtype)

    def jacobians(self, pixels: Float[Tensor, "*shape 2"]) -> Float64[Tensor, "*shape 2 2"]:
        """Return the derivatives of positions in the plane by pixels."""
        u, w = self._parts(pixels)
        matrix = u.new_tensor(self.matrix)
        turned = u[..., :, None] * matrix[2, :2] / w[..., None, None]
        return (matrix[:2, :2] - turned) / w[..., None, None]

    def covariances(
        self, pixels: Float[Tensor, "*shape 2"], covariances: Float[Tensor, "*shape 2 2"]
    ) -> Float[Tensor, "*shape 2 2"]:
        """Return covariances J S J' of positions (the delta method), in squared units.

        Law: agree with a Monte Carlo sample (test_error_bars_in_units_agree_with_draws).
        """
        slope = self.jacobians(pixels)
        return (slope @ covariances.double() @ slope.mT).to(covariances.dtype)

    def velocities(
        self, pixels: Float[Tensor, "*shape 2"], velocities: Float[Tensor, "*shape 2"]
    ) -> Float[Tensor, "*shape 2"]:
        """Return velocities J v in units per second, of pixels per second at these positions.

        Law: the derivative of the positions (test_velocities_in_units_are_those_of_the_positions).
        """
        moved = self.jacobians(pixels) @ velocities.double()[..., None]
        return moved[..., 0].to(velocities.dtype)

    @property
    def is_uniform(self) -> bool:
        """Whether a pixel has the same size everywhere."""
        return self.matrix[2][:2] == (0.0, 0.0)

    def _parts(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (u, v) and w, NaN beyond the horizon, in float64."""
        x = pixels.double()
        matrix = x.new_tensor(self.matrix)
        h = x @ matrix[:, :2].mT + matrix[:, 2]
        return h[..., :2], torch.where(h[..., 2] > 0, h[..., 2], torch.nan)


def _normaliser(points: Float64[np.ndarray, "P 2"]) -> Float64[np.ndarray, "3 3"]:
    """Return the similarity that centres points and makes their mean distance sqrt(2)."""
    centre = points.mean(0)
    distance = float(np.linalg.norm(points - centre, axis=1).mean())
    require(distance > 0, "the points of the plane coincide; give four that differ")
    scale = math.sqrt(2) / distance
    return np.array([[scale, 0, -scale * centre[0]], [0, scale, -scale * centre[1]], [0, 0, 1.0]])


def _apply(
    matrix: Float64[np.ndarray, "3 3"], points: Float64[np.ndarray, "P 2"]
) -> Float64[np.ndarray, "P 2"]:
    moved: Float64[np.ndarray, "P 2"] = points @ matrix[:2, :2].T + matrix[:2, 2]
    return moved


def parse_units(scale: str | None, ruler: str | None, plane: str | None) -> Units | None:
    """Return the units that one of three texts describes; None without any.

    Args:
        scale: "0.5mm/px".
        ruler: "100,40 420,40 1.5m": two points in pixels and the distance between them.
        plane: "10,20=0,0 400,30=2,0 390,300=2,1 5,290=0,1 m": four or more points in pixels, each
            with its place in the plane, and the unit.
    """
    given = [name for name in (scale, ruler, plane) if name is not None]
    require(len(given) < 2, "got several of --scale, --ruler and --plane; give one of them")
    if scale is not None:
        return _parse_scale(scale)
    if ruler is not None:
        return _parse_ruler(ruler)
    return None if plane is None else _parse_plane(plane)


def _parse_scale(text: str) -> Units:
    match = SCALE.fullmatch(text)
    if match is None:
        raise InputError(f"scale is {text!r:.60}; give the length of a pixel, as in 0.5mm/px")
    return Units.by_scale(float(match[1]), match[2])


def _parse_ruler(text: str) -> Units:
    words = text.split(maxsplit=2)
    ends = [PAIR.fullmatch(word) for word in words[:2]]
    length = LENGTH.fullmatch(words[2].strip()) if len(words) == 3 else None
    if None in ends or length is None:
        raise InputError(
            f"ruler is {text!r:.80}; give two points in pixels and a length, as in "
            "'100,40 420,40 1.5m'"
        )
    start, end = ((float(match[1]), float(match[2])) for match in ends if match is not None)
    return Units.by_ruler(start, end, float(length[1]), length[2])


def _parse_plane(text: str) -> Units:
    *words, unit = text.split() or [""]
    pairs = [MATCH.fullmatch(word) for word in words]
    if len(pairs) < 4 or None in pairs or not re.fullmatch(UNIT, unit):
        raise InputError(
            f"plane is {text!r:.120}; give four or more points in pixels with their places and the "
            "unit, as in '10,20=0,0 400,30=2,0 390,300=2,1 5,290=0,1 m'"
        )
    table = np.array([[float(number) for number in pair.groups()] for pair in pairs if pair])
    return Units.by_plane(table[:, :2], table[:, 2:], unit)


def units_to_json(units: Units | None) -> dict[str, Any] | None:
    """Return units as a value for JSON."""
    return None if units is None else {"matrix": units.matrix, "length": units.length}


def units_from_json(raw: Any) -> Units | None:
    """Return the units that `units_to_json` wrote; raise ValueError, TypeError or KeyError."""
    if raw is None:
        return None
    rows: Sequence[Row] = [(float(a), float(b), float(c)) for a, b, c in raw["matrix"]]
    first, second, third = rows
    return Units((first, second, third), str(raw["length"]))
