"""The law of motion with forces between objects as a `Dynamics`.

As with contacts, a clip obeys the joint law with probability 1 - `STRAY`, otherwise the linear law
of each object, which training found and which has noise enough for anything. The search for objects
in the frames uses the linear law alone.
"""

from collections.abc import Iterator
from typing import Any

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.joint_tracks import (
    NUM_DRAWS,
    STRAY,
    DrawnClips,
    groups,
    joint_positions,
    with_draws,
    with_moments,
)
from motes.kalman.linalg import square_root
from motes.kalman.model import STATE_DIM, Gaussian, SampledTracks, SmoothedTracks
from motes.kalman.pair_forces import Joint, PairLaw, PairPaths, draw_paths, step

EVIDENCE_DRAWS = 32
CHUNK_NUMBERS = 2**24  # numbers of draws that are held together, which bounds memory


class PairDynamics(LinearDynamics):
    """Forces between objects; `LinearDynamics` for the search.

    `motes.training.pair_fit` fits the buffers after training. They are those of
    `motes.kalman.pair_forces.PairLaw`: velocities are per frame.

    Args:
        **linear: As for `LinearDynamics`.
    """

    independent_objects = False
    pair_force: Float[Tensor, " 2"]
    pair_field: Float[Tensor, "2 4"]
    pair_stiffness: Float[Tensor, ""]
    pair_rest_length: Float[Tensor, ""]
    pair_attraction: Float[Tensor, ""]
    pair_softening: Float[Tensor, ""]
    pair_position_variance: Float[Tensor, ""]
    pair_errors: Float[Tensor, " 3"]  # standard deviations of k, L, G
    force_error: Float[Tensor, " 2"]  # of the acceleration
    mean_variance: Float[Tensor, ""]  # of the mean of q around the path

    def __init__(self, **linear: Any) -> None:
        super().__init__(**linear)
        zero = torch.zeros((), dtype=torch.float64)
        start = PairLaw(
            force=zero.new_zeros(2),
            field=zero.new_zeros(2, 4),
            curvature=zero.new_zeros(2, 7),
            stiffness=zero,
            rest_length=zero,
            attraction=zero,
            softening=zero + 1,
            state_sds=zero.new_ones(2),
            position_variance=zero + 1,
            initial_mean=zero.new_zeros(4),
            initial_covariance=torch.eye(4, dtype=torch.float64),
            initial_coupling=zero.new_zeros(4, 4),
        )
        for name, value in start._asdict().items():
            self.register_buffer(f"pair_{name}", value.clone())
        self.register_buffer("pair_errors", zero.new_zeros(3))
        self.register_buffer("force_error", zero.new_zeros(2))
        self.register_buffer("mean_variance", zero + 1)

    def pair_law(self, position_variance: Tensor | None = None) -> PairLaw:
        """Return the joint law, with another noise of positions if it is given."""
        law = PairLaw(*(getattr(self, f"pair_{name}") for name in PairLaw._fields))
        return (
            law if position_variance is None else law._replace(position_variance=position_variance)
        )

    @torch.no_grad()
    def set_law(self, law: PairLaw, **others: Tensor) -> None:
        """Set the joint law, and other buffers by name."""
        given = {f"pair_{name}": value for name, value in law._asdict().items()} | others
        self.load_state_dict(self.state_dict() | given)

    def emit(self, states: Gaussian) -> Gaussian:
        """Return the distribution of a_t = B h_t + noise, given that of the states h_t."""
        mean, covariance = self.path(states)
        eye = torch.eye(2, dtype=covariance.dtype, device=covariance.device)
        return Gaussian(mean, covariance + self.pair_position_variance * eye)

    def search_log_density(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        observed: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(a) of the law of the search, in which objects are independent."""
        return super().log_density(positions, present, observed)

    @torch.no_grad()
    def log_density(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        observed: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return a lower bound of log p(a) of the present objects of each clip."""
        linear = super().log_density(positions, present, observed)
        seen = torch.ones(positions.shape[:3], dtype=torch.bool, device=positions.device)
        seen = seen if observed is None else seen & observed
        total = linear + torch.log(linear.new_tensor(STRAY))
        law = self.pair_law()
        for clips, _, paths in self._paths(law, positions, seen, present, EVIDENCE_DRAWS, 0):
            joint = paths.log_density + torch.log1p(-linear.new_tensor(STRAY))
            total[clips] = torch.logaddexp(total[clips], joint)
        return total

    def _paths(
        self,
        law: PairLaw,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        active: Bool[Tensor, "B N"],
        num_draws: int,
        seed: int,
    ) -> Iterator[tuple[Int[Tensor, " b"], Int[Tensor, "b n"], PairPaths]]:
        """Yield draws of the states of active objects, in chunks of clips."""
        for clips, slots in groups(active):
            size = 6 * num_draws * positions.shape[2] * STATE_DIM * slots.shape[1]
            length = max(CHUNK_NUMBERS // size, 1)
            for start in range(0, len(clips), length):
                some = slice(start, start + length)
                a, known = joint_positions(positions, observed, clips[some], slots[some])
                yield clips[some], slots[some], draw_paths(law, Joint(a, known), num_draws, seed)

    def _drawn(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        num_draws: int,
        seed: int,
    ) -> Iterator[DrawnClips]:
        """Yield equally likely draws of the clips that obey the joint law."""
        a64, active = positions.double(), observed.any(-1)
        linear = torch.where(active, self.track_log_density(a64, observed), 0.0).sum(1)
        linear = linear + torch.log(a64.new_tensor(STRAY))
        law, delta = self.pair_law(self.mean_variance), self.log_delta.exp()
        generator = torch.Generator().manual_seed(seed)
        for clips, slots, paths in self._paths(law, a64, observed, active, num_draws, seed):
            kept = (paths.log_density > linear[clips]).nonzero()[:, 0]
            uniform = torch.rand(len(clips), dtype=torch.float64, generator=generator)
            states = paths.resampled(uniform.to(a64.device))[:, kept]
            yield clips[kept], slots[kept], self._by_object(states, delta)

    @staticmethod
    def _by_object(
        states: Float[Tensor, "*b T D"], delta: Float[Tensor, ""]
    ) -> Float[Tensor, "*b n T 4"]:
        """Return joint states as those of objects, velocities in units of the linear law."""
        x, v = (part.unflatten(-1, (-1, 2)).movedim(-2, -3) for part in states.chunk(2, -1))
        return torch.cat([x, v / delta], -1)

    @torch.no_grad()
    def smooth(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
    ) -> SmoothedTracks:
        """Return the moments of the states, the same under each component.

        Objects that were never observed exert no forces.
        """
        plain = super().smooth(positions, observed, variances)
        return with_moments(plain, self._drawn(positions, observed, NUM_DRAWS, 0))

    @torch.no_grad()
    def draw_tracks(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
        num_draws: int,
        seed: int = 0,
    ) -> Float[Tensor, "S B N T D"]:
        """Return equally likely draws of the states given the observed positions."""
        plain = super().draw_tracks(positions, observed, variances, num_draws, seed)
        return with_draws(plain, self._drawn(positions, observed, num_draws, seed))

    @torch.no_grad()
    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        """Return draws from the joint law."""
        law, device, P = self.pair_law(), self.logits.device, 2 * batch[-1]
        shape = (*batch[:-1], num_frames, 3 * P)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator).to(device)
        mean, covariance = law.initial(batch[-1])
        h = mean + noise[..., 0, : 2 * P] @ square_root(covariance).mT
        path = [h]
        for t in range(1, num_frames):
            h = step(law, h) + law.state_noise(batch[-1]) * noise[..., t, : 2 * P]
            path.append(h)
        states = self._by_object(torch.stack(path, -2), self.log_delta.exp())
        seen = law.position_variance.sqrt() * noise[..., 2 * P :].unflatten(-1, (-1, 2))
        component = torch.zeros(batch, dtype=torch.int64, device=device)
        return SampledTracks(component, states, states[..., :2] + seen.movedim(-2, -3))
