"""The law of motion that a model learned, in words, numbers and error bars.

Lengths are pixels and times frames, or the units and seconds that are given. Error bars are
standard deviations, carried to units by the delta method; a quantity without one was not fitted by
curvature. Where the size of a pixel changes over the picture, accelerations are those in its
middle.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.kalman.contact_dynamics import ContactDynamics
from motes.kalman.dynamics import require_linear
from motes.kalman.pair_dynamics import PairDynamics
from motes.kalman.walled_dynamics import WalledDynamics

if TYPE_CHECKING:
    from motes.video.units import Units

# Names of walls by the direction of their normal in the image, whose y axis points down.
SIDES = {(0, -1): "floor", (0, 1): "ceiling", (1, 0): "left wall", (-1, 0): "right wall"}
NAMED = math.cos(math.radians(10))  # cosine of the largest angle from such a direction
STEP = 1e-4  # of an angle or an offset, for derivatives
FREE = 1e-3  # changes per frame of velocity below this are no drag and no spring


class Term(NamedTuple):
    """One quantity of a law."""

    name: str
    value: float
    error: float | None
    unit: str
    detail: str = ""

    def __str__(self) -> str:
        """Return the quantity in a line."""
        spread = "" if self.error is None else f" +- {self.error:.2g}"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name}: {self.value:.4g}{spread}{unit}{self.detail and f', {self.detail}'}"


class Wall(NamedTuple):
    """A wall in pixels: normal'x = offset."""

    name: str
    normal: tuple[float, float]
    offset: float
    restitution: float


class Law(NamedTuple):
    """What a model learned about motion."""

    terms: tuple[Term, ...]
    walls: tuple[Wall, ...]

    def __str__(self) -> str:
        """Return one line for each quantity."""
        return "\n".join(map(str, self.terms))

    def record(self) -> dict[str, Any]:
        """Return the law for JSON."""
        return {
            "terms": [term._asdict() for term in self.terms],
            "walls": [wall._asdict() for wall in self.walls],
        }


@torch.no_grad()
def describe_law(
    dynamics: Any,
    pixel_matrix: Float[Tensor, "2 2"],
    pixel_offset: Float[Tensor, " 2"],
    units: "Units | None" = None,
    frames_per_second: float | None = None,
) -> Law:
    """Return the law of a model's dynamics in pixels and frames, or in units and seconds.

    Args:
        dynamics: of the model.
        pixel_matrix: from latent units to pixels of its clips.
        pixel_offset: pixels of the latent origin.
        units: from pixels of its clips to lengths; None: pixels.
        frames_per_second: of its clips; None: times are in frames.

    Law: lengths scale, and times by the rate (test_the_law_in_units_is_that_in_pixels_scaled);
    under a projective map walls are the images of walls (test_walls_of_a_plane_are_their_images).
    """
    law = require_linear(dynamics)
    linear = law.flight if isinstance(law, ContactDynamics) else law
    if units is None:
        from motes.video.units import Units  # imports SciPy, which takes longer than this package

        units = Units.by_scale(1.0, "px")
    middle, length = pixel_offset.double().cpu(), units.length
    slope = units.jacobians(middle)
    M = slope.to(pixel_matrix.device) @ pixel_matrix.double()
    rate, seconds = (1.0, "frame") if frames_per_second is None else (frames_per_second, "s")
    delta = linear.log_delta.exp()
    pull, errors = delta * linear.force[2:], None
    if isinstance(law, WalledDynamics):
        errors = delta * law.force_error
    if isinstance(law, PairDynamics):
        pull, errors = law.pair_force, law.force_error
    pull = M @ pull
    spread = None if errors is None else float((M @ errors.diag()).norm(dim=1).max())
    where = "" if units.is_uniform else " in the middle of the frame"
    terms = [
        Term(
            "acceleration",
            rate**2 * float(pull.norm()),
            None if spread is None else rate**2 * spread,
            f"{length}/{seconds}^2",
            f"{_degrees(units, *pull.tolist()):.0f} degrees from +x{where}",
        )
    ]
    if isinstance(law, PairDynamics):
        terms += _pair_terms(law, float(M.det().abs().sqrt()), rate, (length, seconds))
    else:
        terms += _field_terms(linear, rate, seconds)
    walls = []
    if isinstance(law, WalledDynamics):
        for wall, bars in _walls(law, pixel_matrix.double(), pixel_offset.double()):
            walls.append(wall)
            terms += _wall_terms(wall, bars, units, middle, _convention(law))
    if isinstance(law, ContactDynamics):
        scale = float(M.det().abs().sqrt())
        distance, bounce = law.contact_errors.tolist()
        value = float(law.contact_distance)
        where = f"between the centres of two objects{where}"
        terms.append(Term("contact distance", scale * value, scale * distance, length, where))
        value = float(law.contact_restitution)
        terms.append(Term("restitution of contacts", value, bounce, "", "equal masses"))
    noise = linear.components().position_noise
    if isinstance(law, PairDynamics):
        noise = law.pair_position_variance * torch.eye(2, dtype=M.dtype, device=M.device)
    if isinstance(law, WalledDynamics) and law.mean_variance >= 0:  # of positions around the path
        noise = law.mean_variance * torch.eye(2, dtype=M.dtype, device=M.device)
    noise = (M @ noise @ M.mT).diagonal().sqrt()
    terms.append(Term("observation noise", float(noise.mean()), None, length))
    return Law(tuple(terms), tuple(walls))


def _degrees(units: "Units", x: float, y: float) -> float:
    """Return the direction of a vector; the y axis of a picture points down."""
    return math.degrees(math.atan2(-y if units.is_uniform else y, x))


def _convention(law: WalledDynamics) -> str:
    """Return what a restitution refers to where a force acts during the frame of a hit."""
    if not bool(law.in_time):
        return "hits counted at the end of a frame"
    return "hits counted within a frame"


def _wall_terms(
    wall: Wall,
    bars: list[float],
    units: "Units",
    middle: Float[Tensor, " 2"],
    convention: str,
) -> Iterator[Term]:
    """Yield place and restitution of a wall, with error bars of the angle and of the offset."""
    angle = math.atan2(wall.normal[1], wall.normal[0])
    at_middle = math.cos(angle) * float(middle[0]) + math.sin(angle) * float(middle[1])
    apart = wall.offset - at_middle  # from the middle of the frame, about which walls turn
    place, turned = _wall_in_units(wall.name, units, middle, angle, apart)
    up, down = (
        _wall_in_units(wall.name, units, middle, angle, apart + step) for step in (STEP, -STEP)
    )
    left, right = (
        _wall_in_units(wall.name, units, middle, angle + step, apart) for step in (STEP, -STEP)
    )
    spread = abs(up[0] - down[0]) / (2 * STEP) * bars[1]
    swing = abs((left[1] - right[1] + 180) % 360 - 180) / (2 * STEP) * bars[0]
    where = "from the middle"
    if wall.name != "wall":
        axis = "y" if wall.name in ("floor", "ceiling") else "x"
        where = f"{axis} in the middle of the frame"
    normal = f"normal {turned:.1f} +- {swing:.1g} degrees from +x"
    yield Term(wall.name, place, spread, units.length, f"{where}, {normal}")
    yield Term(f"restitution of the {wall.name}", wall.restitution, bars[2], "", convention)


def _wall_in_units(
    name: str, units: "Units", middle: Float[Tensor, " 2"], angle: float, apart: float
) -> tuple[float, float]:
    """Return where a wall is in units, and the direction of its normal in degrees.

    A line l with l'x = 0 for homogeneous pixels x becomes H^-T l under the map H.
    """
    normal = np.array([math.cos(angle), math.sin(angle)])
    line = np.append(normal, -(apart + normal @ middle.numpy()))
    a, b, c = np.linalg.solve(np.array(units.matrix).T, line)
    x, y = units.points(middle).tolist()
    # The normal keeps pointing to the same side, whatever the map mirrors.
    inward = units.jacobians(middle) @ torch.from_numpy(normal)
    side = 1.0 if a * float(inward[0]) + b * float(inward[1]) > 0 else -1.0
    turned = _degrees(units, side * a, side * b)
    if name in ("floor", "ceiling"):
        return -(a * x + c) / b, turned
    if name != "wall":
        return -(b * y + c) / a, turned
    return -side * (a * x + b * y + c) / math.hypot(a, b), turned


def _field_terms(linear: Any, rate: float, seconds: str) -> Iterator[Term]:
    """Yield drag and the period of a spring, where forces depend on velocity and position."""
    if linear.force_field is None:
        return
    drag = -float(linear.force_field[:, 2:].diagonal().mean())
    if abs(drag) > FREE:
        yield Term("drag", rate * drag, None, f"of the velocity per {seconds}")
    turns = torch.linalg.eigvals(linear.components().transition).angle().abs()
    if float(turns.max()) > math.sqrt(FREE):
        yield Term("period", 2 * math.pi / float(turns.max()) / rate, None, f"{seconds}s")


def _pair_terms(
    law: PairDynamics, scale: float, rate: float, units: tuple[str, str]
) -> Iterator[Term]:
    """Yield forces between two objects of equal masses; then drag and the spring to a point."""
    length, seconds = units
    stiffness, rest, attraction = law.pair_errors.tolist()
    k, G = float(law.pair_stiffness), float(law.pair_attraction)
    per = f"/{seconds}^2"
    if k != 0:
        detail = "acceleration of each per unit of length, equal masses"
        name = "spring between objects"
        yield Term(name, rate**2 * k, rate**2 * stiffness, f"1{per}", detail)
        long = float(law.pair_rest_length)
        if long != 0:
            yield Term("rest length of the spring", scale * long, scale * rest, length)
    if G != 0:
        size = scale**3 * rate**2
        detail = "acceleration of each times squared distance, equal masses"
        name = "attraction between objects" if G > 0 else "repulsion between objects"
        yield Term(name, size * abs(G), size * attraction, f"{length}^3{per}", detail)
        yield Term("its softening", scale * float(law.pair_softening), None, length)
    drag = -float(law.pair_field[:, 2:].diagonal().mean())
    if abs(drag) > FREE:
        yield Term("drag", rate * drag, None, f"of the velocity per {seconds}")
    squared = -float(law.pair_field[:, :2].diagonal().mean())
    if squared > FREE:
        period = 2 * math.pi / math.sqrt(squared) / rate
        yield Term("period", period, None, f"{seconds}s", "of one object in the field alone")


def _walls(
    dynamics: WalledDynamics, M: Float[Tensor, "2 2"], offset: Float[Tensor, " 2"]
) -> Iterator[tuple[Wall, list[float]]]:
    """Yield walls in pixels, and standard deviations of angle, offset and restitution."""
    scale = float(M.det().abs().sqrt())  # sprites map isotropically
    for w in range(len(dynamics.wall_offsets)):
        normal = M @ dynamics.wall_normals[w]
        normal = normal / normal.norm()
        place = scale * float(dynamics.wall_offsets[w].detach()) + float(normal @ offset)
        near = {name: float(normal @ normal.new_tensor(side)) for side, name in SIDES.items()}
        name = max(near, key=lambda side: near[side])
        name = name if near[name] > NAMED else "wall"
        x, y = normal.tolist()
        wall = Wall(name, (x, y), place, float(dynamics.wall_restitution[w].detach()))
        angle, spread, bounce = dynamics.wall_errors[w].tolist()
        yield wall, [angle, scale * spread, bounce]
