"""What the laws of motion with walls have in common: their buffers."""

from typing import Any

import torch

from motes.core.axes import Float, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.events import Walls


class WalledDynamics(LinearDynamics):
    """`LinearDynamics` with walls, which training fits after all else.

    Errors are standard deviations of what was fitted; NaN where unknown.

    Args:
        num_walls: W.
        **linear: As for `LinearDynamics`.
    """

    wall_normals: Float[Tensor, "W 2"]
    wall_offsets: Float[Tensor, " W"]
    wall_restitution: Float[Tensor, " W"]
    wall_errors: Float[Tensor, "W 3"]  # of angle (radians), offset, restitution
    force_error: Float[Tensor, " 2"]  # of the change of velocity per frame
    mean_variance: Float[Tensor, ""]  # of the mean of q around the path; below 0: unknown
    in_time: Float[Tensor, ""]  # 1: walls are hit within steps, see `EventLaw.in_time`

    def __init__(self, *, num_walls: int, **linear: Any) -> None:
        super().__init__(**linear)
        zeros = torch.zeros(num_walls, dtype=torch.float64)
        normals = torch.stack([zeros, zeros + 1], -1)
        self.register_buffer("wall_normals", normals)
        self.register_buffer("wall_offsets", zeros - 1e5)  # nobody reaches it
        self.register_buffer("wall_restitution", zeros.clone())
        self.register_buffer("wall_errors", normals.new_zeros(num_walls, 3))
        self.register_buffer("force_error", normals.new_zeros(2))
        self.register_buffer("mean_variance", torch.tensor(-1.0, dtype=torch.float64))
        self.register_buffer("in_time", torch.tensor(0.0, dtype=torch.float64))

    @property
    def walls(self) -> Walls:
        """The walls."""
        return Walls(self.wall_normals, self.wall_offsets, self.wall_restitution)
