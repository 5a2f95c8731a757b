"""Laws of motion of simulated objects: the interface, the paper's cannonballs, an optical trap.

World coordinates are (x to the right, y up); pixel coordinates are those of `motes.core.axes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motes.core.axes import Float
from motes.core.errors import InputError, require

# Border for noise around the noise-free world, in standard deviations; positions beyond it are
# clipped. The paper rescales by the positions that happened to be drawn; with 1.6 our fixed map has
# the scale of such a set: gravity 0.0523 pixels a frame squared, noise 0.80 by 0.75. [Choice 10]
BORDER_SDS = 1.6
TRAP_BORDER_SDS = 3.2  # from the centre of a trap's frame to its border

Array = NDArray[Any]
Streams = Mapping[str, np.random.Generator]
"""One random stream per quantity; see `motes.data.worlds.registry`."""


@dataclass(frozen=True, eq=False)
class World:
    """The physics of cannonballs and the camera that films them; the paper's by default.

    A ball's state h = (x, y, vx, vy) obeys h_t = A h_{t-1} + u + noise with
    A = [I, delta I; 0, (1 - drag) I]; it is drawn at a_t = (x, y) + noise. One affine map takes
    the world to pixels. It follows from the arguments alone, not from the clips, so that physics
    is the same in every clip.

    Paper: section "Dataset".
    Law: the noise-free world touches the box on each side and never leaves it, and gravity has the
    stated size in pixels (test_no_shot_leaves_the_box_and_some_touch_it,
    test_gravity_and_noise_have_the_stated_size_in_pixels).

    Attributes:
        num_frames: T, frames in a clip.
        size: of a frame in pixels, one number or (height, width).
        radius: R, of the disks in pixels.
        sampling_period: delta, the time from one frame to the next.
        gravity: g, pulling down; not used where `force` is given.
        force: u, added to the state in every frame; None means -g (0, delta^2 / 2, 0, delta).
        state_noise: Sigma_H, a number s for s I, or a 4x4 matrix.
        position_noise: Sigma_A, a number s for s I, or a 2x2 matrix.
        angles: interval of shooting angles in degrees above the horizontal.
        speeds: interval of speeds at the first frame.
        left: interval of x at the first frame for balls shot from the left; the others: `right`.
        heights: interval of y at the first frame.
        drag: fraction of its velocity that a ball loses from one frame to the next.
        floor: height at which balls bounce; None without a floor.
        bounce: fraction of its vertical speed that a ball keeps at the floor.
    """

    num_frames: int = 30
    size: int | tuple[int, int] = 48
    radius: int = 2
    sampling_period: float = 0.015
    gravity: float = 9.81
    force: tuple[float, float, float, float] | None = None
    state_noise: float | Array = 0.0
    position_noise: float | Array = 0.001
    angles: tuple[float, float] = (40.0, 60.0)
    speeds: tuple[float, float] = (2.0, 3.0)
    left: tuple[float, float] = (-0.5, -0.1)
    heights: tuple[float, float] = (-0.5, 0.5)
    drag: float = 0.0
    floor: float | None = None
    bounce: float = 0.8

    def __post_init__(self) -> None:
        """Raise `InputError` for a world that cannot be drawn, naming the argument."""
        require_whole("num_frames", self.num_frames, least=1)
        require_whole("radius", self.radius, least=0)
        _require_sides(self.size, self.radius)
        _require_numbers("sampling_period", (self.sampling_period,), length=1)
        _require_numbers("gravity", (self.gravity,), length=1)
        _require_numbers("force", self.step_force, length=4)
        for name in ("angles", "speeds", "left", "heights"):
            pair = getattr(self, name)
            _require_numbers(name, pair, length=2)
            require(pair[0] <= pair[1], f"got {name}={pair}; expected (least, most); swap them")
        require(
            self.sampling_period > 0 and self.speeds[0] >= 0,
            f"got sampling_period={self.sampling_period}, speeds={self.speeds}; expected a "
            "period above 0 and no speed below 0; shoot backwards by an angle above 90",
        )
        _require_numbers("drag, bounce", (self.drag, self.bounce), length=2)
        require(
            0 <= self.drag < 1 and 0 <= self.bounce <= 1,
            f"got drag={self.drag}, bounce={self.bounce}; expected 0 <= drag < 1 and "
            "0 <= bounce <= 1; no ball gains speed by itself",
        )
        require(
            self.floor is None or self.floor <= self.heights[0],
            f"got floor={self.floor} and heights={self.heights}; expected the floor below all "
            "starts; lower it",
        )
        low, high = self.box
        require(
            (high > low).all(),
            f"got a world from {tuple(low)} to {tuple(high)}; expected it to be wide and high; "
            "widen left, heights or position_noise, or use more frames",
        )

    @property
    def height(self) -> int:
        """Rows of a frame."""
        return _sides(self.size)[0]

    @property
    def width(self) -> int:
        """Columns of a frame."""
        return _sides(self.size)[1]

    @property
    def step_force(self) -> tuple[float, ...]:
        """The force u, in the order of the state (x, y, vx, vy)."""
        delta, g = self.sampling_period, self.gravity
        return (0.0, -g * delta**2 / 2, 0.0, -g * delta) if self.force is None else self.force

    @cached_property
    def state_covariance(self) -> Float[np.ndarray, "4 4"]:
        """Sigma_H, as a matrix."""
        return _covariance("state_noise", self.state_noise, 4)

    @cached_property
    def position_covariance(self) -> Float[np.ndarray, "2 2"]:
        """Sigma_A, as a matrix."""
        return _covariance("position_noise", self.position_noise, 2)

    @cached_property
    def transition(self) -> Float[np.ndarray, "4 4"]:
        """A, as a matrix."""
        kept: Array = np.diag((1.0, 1.0, 1 - self.drag, 1 - self.drag))
        return kept + self.sampling_period * np.eye(4, k=2)

    def sample_first_states(
        self, streams: Streams, num_clips: int, num_objects: int
    ) -> Float[np.ndarray, "B N 4"]:
        """Return first states: a side, a start on that side, and a velocity towards the other."""

        def uniform(quantity: str) -> Float[np.ndarray, "B N"]:
            return streams[quantity].random((num_clips, num_objects))

        def between(interval: tuple[float, float], share: Float[np.ndarray, "B N"]) -> Array:
            return interval[0] + (interval[1] - interval[0]) * share

        from_right = uniform("side") < 0.5
        along = uniform("x")
        x = np.where(from_right, between(self.right, along), between(self.left, along))
        y = between(self.heights, uniform("y"))
        angle = np.radians(between(self.angles, uniform("angle")))
        speed = between(self.speeds, uniform("speed"))
        vx = np.where(from_right, -1.0, 1.0) * speed * np.cos(angle)
        return np.stack((x, y, vx, speed * np.sin(angle)), axis=-1)

    def reflect(self, states: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "... 4"]:
        """Return states with those below the floor bounced back above it."""
        if self.floor is None:
            return states
        below = states[..., 1] < self.floor
        height = np.where(below, -self.bounce, 1.0) * (states[..., 1] - self.floor) + self.floor
        vy = np.where(below, -self.bounce, 1.0) * states[..., 3]
        return np.stack((states[..., 0], height, states[..., 2], vy), axis=-1)

    @property
    def right(self) -> tuple[float, float]:
        """Interval of x at the first frame for balls shot from the right.

        It is `left` moved by 0.9 of the largest x that a ball from the left reaches in T frames.
        """
        _, fastest = self._velocities()
        last = self.num_frames - 1
        furthest = self.left[1] + self._travel()[last] * fastest[0] + self._drift()[last, 0]
        return self.left[0] + 0.9 * furthest, self.left[1] + 0.9 * furthest

    @cached_property
    def box(self) -> Float[np.ndarray, "2 2"]:
        """Lowest and highest (x, y) of the world: every noise-free shot, then a border for noise.

        Start and velocity are independent along each axis, so their extremes add.
        """
        slowest, fastest = self._velocities()
        time = self._travel()
        from_left = (self.left[0] + time * slowest[0], self.left[1] + time * fastest[0])
        from_right = (self.right[0] - time * fastest[0], self.right[1] - time * slowest[0])
        upward = fastest[1] if self.floor is None else abs(np.array((slowest, fastest))[:, 1]).max()
        low_y, high_y = self.heights[0] + time * slowest[1], self.heights[1] + time * upward
        low = np.stack((np.minimum(from_left[0], from_right[0]), low_y), axis=-1)
        high = np.stack((np.maximum(from_left[1], from_right[1]), high_y), axis=-1)
        drift, border = self._drift(), BORDER_SDS * self._spread()
        if self.floor is not None:  # no ball is below it, nor higher than one shot upwards
            low[:, 1] = np.maximum(low[:, 1], self.floor - drift[:, 1])
        return np.stack(((low + drift - border).min(axis=0), (high + drift + border).max(axis=0)))

    @cached_property
    def pixels_per_unit(self) -> Float[np.ndarray, "2"]:
        """Pixels (x, y) for one unit of the world; y is negative, for pixels count downwards."""
        room = np.array((self.width, self.height)) - 1 - 2 * self.radius
        scale: Array = np.array((1, -1)) * room / (self.box[1] - self.box[0])
        return scale

    @property
    def pixel_force(self) -> Float[np.ndarray, "2"]:
        """True acceleration (x, y) in pixels a frame squared, of a ball that drag does not slow.

        It is the second difference of a clean path.
        """
        force: Array = self.pixels_per_unit * self.sampling_period * self.step_force[2:]
        return force

    def to_pixels(self, points: Float[np.ndarray, "... 2"]) -> Float[np.ndarray, "... 2"]:
        """Return points of the world in pixels; the box becomes the room that whole disks have."""
        low, high = self.box
        corner = np.array((low[0], high[1]))  # of the world, at the top left of the frame
        pixels: Array = self.radius + self.pixels_per_unit * (points - corner)
        return pixels

    def _velocities(self) -> Float[np.ndarray, "2 2"]:
        """Lowest and highest (vx, vy) at the first frame of a ball shot from the left."""
        first, last = self.angles
        # Extremes of cosine and sine lie at the ends or at multiples of a right angle.
        turns = [90.0 * k for k in range(ceil(first / 90), floor(last / 90) + 1)]
        angles = np.radians([first, *turns, last])
        shots = np.multiply.outer(self.speeds, np.stack((np.cos(angles), np.sin(angles)), axis=-1))
        return np.stack((shots.min(axis=(0, 1)), shots.max(axis=(0, 1))))

    def _travel(self) -> Float[np.ndarray, " T"]:
        """Return the distance from the first frame to each frame for an initial velocity of 1."""
        kept = (1 - self.drag) ** np.arange(self.num_frames - 1)
        travel: Array = self.sampling_period * np.concatenate(((0.0,), np.cumsum(kept)))
        return travel

    def _drift(self) -> Float[np.ndarray, "T 2"]:
        """Return the displacement by the force alone from the first frame to each frame."""
        push = np.array(self.step_force)
        # A change of velocity in frame t acts like an initial velocity in a clip shorter by t.
        late = np.concatenate(((0.0,), np.cumsum(self._travel())[:-1]))
        drift: Array = np.arange(self.num_frames)[:, None] * push[:2] + late[:, None] * push[2:]
        return drift

    def _spread(self) -> Float[np.ndarray, "T 2"]:
        """Return standard deviations of the drawn position in each frame, given the first state."""
        transition, covariance = self.transition, np.zeros((4, 4))
        variances = []
        for _ in range(self.num_frames):
            variances.append(covariance.diagonal()[:2] + self.position_covariance.diagonal())
            covariance = transition @ covariance @ transition.T + self.state_covariance
        return np.sqrt(variances)


@dataclass(frozen=True, eq=False)
class OpticalTrap:
    """A weak spring towards the centre of the frame; all lengths in pixels, all times in frames.

        x_t = x_{t-1} + v_{t-1}
        v_t = (1 - drag) v_{t-1} - spring x_{t-1} + noise,    x from the centre

    The process noise is chosen so that positions fill the frame. The first state is drawn from the
    stationary distribution, so all frames have the same distribution.

    Law: the covariance of states is the same in every frame (test_the_trap_is_stationary).
    """

    num_frames: int = 3000
    size: int | tuple[int, int] = 48
    radius: int = 2
    spring: float = 0.01  # acceleration per pixel from the centre; oscillates once in 63 frames
    drag: float = 0.03  # fraction of the velocity that is lost from one frame to the next
    position_sd: float = 0.75  # of the noise, as large as the cannonballs' in 48x48 frames

    def __post_init__(self) -> None:
        """Raise `InputError` for a trap that cannot be drawn, naming the argument."""
        require_whole("num_frames", self.num_frames, least=1)
        _require_sides(self.size, self.radius)

    @property
    def height(self) -> int:
        """Rows of a frame."""
        return _sides(self.size)[0]

    @property
    def width(self) -> int:
        """Columns of a frame."""
        return _sides(self.size)[1]

    @property
    def step_force(self) -> tuple[float, ...]:
        """The force u: zero, because the spring is part of A."""
        return (0.0, 0.0, 0.0, 0.0)

    @cached_property
    def transition(self) -> Float[np.ndarray, "4 4"]:
        """A, as a matrix over (x, y, vx, vy)."""
        return np.kron(np.array(((1.0, 1.0), (-self.spring, 1 - self.drag))), np.eye(2))

    @cached_property
    def state_covariance(self) -> Float[np.ndarray, "4 4"]:
        """Sigma_H: process noise of the velocity alone."""
        covariance: Array = np.diag((0.0, 0.0, *self._process_noise()))
        return covariance

    @cached_property
    def position_covariance(self) -> Float[np.ndarray, "2 2"]:
        """Sigma_A, as a matrix."""
        return self.position_sd**2 * np.eye(2)

    @cached_property
    def stationary_covariance(self) -> Float[np.ndarray, "4 4"]:
        """Covariance of the state in any frame: P = A P A' + Sigma_H."""
        return _solve_stationary(self.transition, self.state_covariance)

    def sample_first_states(
        self, streams: Streams, num_clips: int, num_objects: int
    ) -> Float[np.ndarray, "B N 4"]:
        """Return first states from the stationary distribution."""
        return gaussian_noise(streams["x"], (num_clips, num_objects, 4), self.stationary_covariance)

    def to_pixels(self, points: Float[np.ndarray, "... 2"]) -> Float[np.ndarray, "... 2"]:
        """Return points relative to the centre in pixels."""
        pixels: Array = points + np.array(((self.width - 1) / 2, (self.height - 1) / 2))
        return pixels

    def reflect(self, states: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "... 4"]:
        """Return the states unchanged: there is no floor."""
        return states

    def _process_noise(self) -> Float[np.ndarray, " 2"]:
        """Return the variances along x and y for which the border is TRAP_BORDER_SDS away."""
        unit = _solve_stationary(self.transition, np.diag((0.0, 0.0, 1.0, 1.0)))
        room = (np.array((self.width, self.height)) - 1) / 2 - self.radius
        variances: Array = (room / TRAP_BORDER_SDS) ** 2 / unit.diagonal()[:2]
        return variances


Physics = World | OpticalTrap
"""A law of motion that `draw_clips` can simulate: h_t = A h_{t-1} + u + noise, reflected."""


def _sides(size: int | Sequence[int]) -> Sequence[int]:
    return size if isinstance(size, Sequence) else (size, size)


def _require_sides(size: int | Sequence[int], radius: int) -> None:
    """Raise `InputError` unless a disk of this radius fits into a frame of this size."""
    _require_numbers("size", _sides(size), length=2)
    for side in _sides(size):
        require_whole("size", side, least=2 * radius + 2)


def require_whole(name: str, value: object, least: int) -> None:
    """Raise `InputError` unless `value` is a whole number of at least `least`."""
    require(
        isinstance(value, Integral) and int(value) >= least,
        f"got {name}={value!r}; expected a whole number >= {least}; change {name}",
    )


def _require_numbers(name: str, values: object, length: int) -> None:
    require(
        isinstance(values, Sequence)
        and len(values) == length
        and all(isinstance(value, Real) and isfinite(value) for value in values),
        f"got {name}={values}; expected {length} finite number(s); change {name}",
    )


def _covariance(
    name: str, value: float | Array, dimension: int
) -> Float[np.ndarray, "dimension dimension"]:
    """Return s I for a number s, or the given matrix; raise unless it is a covariance."""
    given = np.asarray(value, dtype=np.float64)
    matrix = given * np.eye(dimension) if given.ndim == 0 else given
    proper = matrix.shape == (dimension, dimension) and np.isfinite(matrix).all()
    # Rounding may leave an eigenvalue of a proper covariance a little below zero.
    if proper and np.allclose(matrix, matrix.T):
        eigenvalues = np.linalg.eigvalsh(matrix)
        if eigenvalues[0] >= -1e-12 * abs(eigenvalues[-1]):
            return matrix
    raise InputError(
        f"got {name}={given.tolist()}; expected a number >= 0 or a {dimension}x{dimension} "
        f"covariance; change {name}"
    )


def gaussian_noise(
    stream: np.random.Generator, shape: tuple[int, ...], covariance: Float[np.ndarray, "D D"]
) -> Float[np.ndarray, "... D"]:
    """Return Gaussian noise of this shape; the symmetric root allows singular covariances."""
    if not covariance.any():
        return np.zeros(shape)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(eigenvalues.clip(0))) @ vectors.T
    noise: Array = stream.standard_normal(shape).reshape(-1, shape[-1]) @ root
    return noise.reshape(shape)


def _solve_stationary(
    transition: Float[np.ndarray, "D D"], noise: Float[np.ndarray, "D D"]
) -> Float[np.ndarray, "D D"]:
    """Return the P with P = A P A' + noise, solved as one linear system in its entries."""
    system = np.eye(noise.size) - np.kron(transition, transition)
    return np.linalg.solve(system, noise.reshape(-1)).reshape(noise.shape)
