"""The law of motion that a model learned, in words, numbers and error bars.

Lengths are pixels and times frames, or metres and seconds where a scale is given. Error bars are
standard deviations; a quantity without one was not fitted by curvature.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from motes.core.axes import Float, Tensor
from motes.kalman.dynamics import require_linear
from motes.kalman.event_dynamics import EventDynamics

# Names of walls by the direction of their normal in the image, whose y axis points down.
SIDES = {(0, -1): "floor", (0, 1): "ceiling", (1, 0): "left wall", (-1, 0): "right wall"}
NAMED = math.cos(math.radians(10))  # cosine of the largest angle from such a direction
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
    metres_per_pixel: float | None = None,
    frames_per_second: float | None = None,
) -> Law:
    """Return the law of a model's dynamics in pixels, or in metres and seconds."""
    linear = require_linear(dynamics)
    M = pixel_matrix.double()
    length, metres = (1.0, "px") if metres_per_pixel is None else (metres_per_pixel, "m")
    rate, seconds = (1.0, "frame") if frames_per_second is None else (frames_per_second, "s")
    delta = linear.log_delta.exp()
    pull = M @ (delta * linear.force[2:])
    errors = linear.force_error if isinstance(linear, EventDynamics) else None
    spread = None if errors is None else float((M @ (delta * errors).diag()).norm(dim=1).max())
    scale = length * rate**2
    terms = [
        Term(
            "acceleration",
            scale * float(pull.norm()),
            None if spread is None else scale * spread,
            f"{metres}/{seconds}^2",
            f"{math.degrees(math.atan2(-float(pull[1]), float(pull[0]))):.0f} degrees from +x",
        )
    ]
    terms += _field_terms(linear, rate, seconds)
    walls = []
    if isinstance(linear, EventDynamics):
        for wall, bars in _walls(linear, M, pixel_offset.double()):
            walls.append(wall)
            (x, y), middle = wall.normal, pixel_offset.tolist()
            turned = math.degrees(math.atan2(-y, x))
            if wall.name in ("floor", "ceiling"):
                place, where = (wall.offset - x * middle[0]) / y, "y in the middle of the frame"
            elif wall.name != "wall":
                place, where = (wall.offset - y * middle[1]) / x, "x in the middle of the frame"
            else:
                place, where = wall.offset - x * middle[0] - y * middle[1], "from the middle"
            normal = f"normal {turned:.1f} +- {math.degrees(bars[0]):.1g} degrees from +x"
            terms.append(Term(wall.name, place, bars[1], "px", f"{where}, {normal}"))
            terms.append(Term(f"restitution of the {wall.name}", wall.restitution, bars[2], ""))
    noise = (M @ linear.components().position_noise @ M.mT).diagonal().sqrt()
    terms.append(Term("observation noise", length * float(noise.mean()), None, metres))
    return Law(tuple(terms), tuple(walls))


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


def _walls(
    dynamics: EventDynamics, M: Float[Tensor, "2 2"], offset: Float[Tensor, " 2"]
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
