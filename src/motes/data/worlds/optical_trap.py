"""Beads in an optical trap: a weak spring, drag and random forces.

The law is linear, Gaussian and stationary: clips of 3,000 frames and of 30 obey the same model, and
objects never leave the frame.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from motes.core.axes import Float
from motes.data.worlds.physics import Array, Streams, gaussian_noise, require_whole

BORDER_SDS = 3.2  # from the centre of the frame to its border; positions beyond are clipped


@dataclass(frozen=True, eq=False)
class OpticalTrap:
    """A weak spring towards the centre of the frame; all lengths in pixels, all times in frames.

        x_t = x_{t-1} + v_{t-1}
        v_t = (1 - drag) v_{t-1} - spring x_{t-1} + noise,    x from the centre

    The process noise is chosen so that positions fill the frame. The first state is drawn from the
    stationary distribution, so all frames have the same distribution.

    Law: the covariance of states is the same in every frame (test_the_trap_is_stationary).

    Attributes:
        num_frames: T, frames in a clip.
        size: of a frame in pixels, one number or (height, width).
        radius: of the disks.
        spring: acceleration per pixel from the centre; 0.01 oscillates once in 63 frames.
        drag: fraction of the velocity that is lost from one frame to the next.
        position_sd: of the noise around the path, as large as the cannonballs' in 48x48 frames.
    """

    num_frames: int = 3000
    size: int | tuple[int, int] = 48
    radius: int = 2
    spring: float = 0.01
    drag: float = 0.03
    position_sd: float = 0.75

    def __post_init__(self) -> None:
        """Raise `InputError` for a trap that cannot be drawn, naming the argument."""
        require_whole("num_frames", self.num_frames, least=1)
        for side in (self.height, self.width):
            require_whole("size", side, least=2 * self.radius + 2)

    @property
    def height(self) -> int:
        """Rows of a frame."""
        return self.size if isinstance(self.size, int) else self.size[0]

    @property
    def width(self) -> int:
        """Columns of a frame."""
        return self.size if isinstance(self.size, int) else self.size[1]

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
        """Return the variances along x and y for which the border is BORDER_SDS away."""
        unit = _solve_stationary(self.transition, np.diag((0.0, 0.0, 1.0, 1.0)))
        room = (np.array((self.width, self.height)) - 1) / 2 - self.radius
        variances: Array = (room / BORDER_SDS) ** 2 / unit.diagonal()[:2]
        return variances


def _solve_stationary(
    transition: Float[np.ndarray, "D D"], noise: Float[np.ndarray, "D D"]
) -> Float[np.ndarray, "D D"]:
    """Return the P with P = A P A' + noise, solved as one linear system in its entries."""
    system = np.eye(noise.size) - np.kron(transition, transition)
    return np.linalg.solve(system, noise.reshape(-1)).reshape(noise.shape)
