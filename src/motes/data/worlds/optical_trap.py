"""Objects that never leave: each rests in a weak spring, is slowed by drag and kicked at random.

The law of a bead in an optical trap. It is linear and Gaussian, and it is stationary: a clip of
3,000 frames looks like one of 30, and both obey the same model.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from motes.core.axes import Float
from motes.data.worlds.physics import Array, require_whole

SDS_IN_VIEW = 3.2  # from the centre of the frame to its border; beyond it objects are held there


@dataclass(frozen=True, eq=False)
class OpticalTrap:
    """A weak spring towards the centre of the frame; all lengths in pixels, all times in frames.

        x_t = x_{t-1} + v_{t-1}
        v_t = (1 - drag) v_{t-1} - spring x_{t-1} + kick,    x from the centre

    The size of the kicks follows from the frame: positions fill it. The first state comes from the
    stationary law, so no frame differs from another.

    Law: the covariance of states is the same in every frame (test_the_trap_is_stationary).

    Attributes:
        num_frames: T, frames in a clip.
        size: of a frame in pixels, one number or (height, width).
        radius: of the disks.
        spring: pull for each pixel from the centre; 0.01 swings once in 63 frames.
        drag: share of the velocity that is lost from one frame to the next.
        position_sd: of the noise around the path, as large as the cannonballs' in 48x48 frames.
    """

    num_frames: int = 3000
    size: int | tuple[int, int] = 48
    radius: int = 2
    spring: float = 0.01
    drag: float = 0.03
    position_sd: float = 0.75

    def __post_init__(self) -> None:
        """Refuse a trap that cannot be drawn, naming the argument at fault."""
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
        """The force u: none, for the spring's pull is part of A."""
        return (0.0, 0.0, 0.0, 0.0)

    @cached_property
    def transition(self) -> Float[np.ndarray, "4 4"]:
        """A, as a matrix over (x, y, vx, vy)."""
        return np.kron(np.array(((1.0, 1.0), (-self.spring, 1 - self.drag))), np.eye(2))

    @cached_property
    def state_covariance(self) -> Float[np.ndarray, "4 4"]:
        """Sigma_H: kicks of the velocity alone."""
        kicks: Array = np.diag((0.0, 0.0, *self._kicks()))
        return kicks

    @cached_property
    def position_covariance(self) -> Float[np.ndarray, "2 2"]:
        """Sigma_A, as a matrix."""
        return self.position_sd**2 * np.eye(2)

    @cached_property
    def start_covariance(self) -> Float[np.ndarray, "4 4"]:
        """Covariance of the state in any frame: P = A P A' + Sigma_H."""
        return _stationary(self.transition, self.state_covariance)

    def to_pixels(self, points: Float[np.ndarray, "... 2"]) -> Float[np.ndarray, "... 2"]:
        """Return points around the centre as pixels."""
        pixels: Array = points + np.array(((self.width - 1) / 2, (self.height - 1) / 2))
        return pixels

    def reflect(self, states: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "... 4"]:
        """Return the states as they are: there is no floor."""
        return states

    def _kicks(self) -> Float[np.ndarray, " 2"]:
        """Variances of the kicks along x and y, so that the frame is SDS_IN_VIEW wide."""
        unit = _stationary(self.transition, np.diag((0.0, 0.0, 1.0, 1.0)))
        room = (np.array((self.width, self.height)) - 1) / 2 - self.radius
        kicks: Array = (room / SDS_IN_VIEW) ** 2 / unit.diagonal()[:2]
        return kicks


def _stationary(
    transition: Float[np.ndarray, "D D"], noise: Float[np.ndarray, "D D"]
) -> Float[np.ndarray, "D D"]:
    """Return the P with P = A P A' + noise, solved as one linear system in its entries."""
    system = np.eye(noise.size) - np.kron(transition, transition)
    return np.linalg.solve(system, noise.reshape(-1)).reshape(noise.shape)
