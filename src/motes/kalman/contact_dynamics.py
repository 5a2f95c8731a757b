"""The law of motion with contacts as a `Dynamics`: walls and contacts of all objects together.

A clip obeys one of three laws. With probability 1 - 2 `STRAY` it is the law of
`motes.kalman.scenes`: free flight, walls and contacts, with little noise. With probability `STRAY`
it is the same law with `WIDER` noise. Otherwise it is the linear law of each object that training
found, which has noise enough for anything; it stands for clips whose tracks no sequence of events
explains. A position may be that of another object or of none with probability `OUTLIER`. log p(a)
is that of the mixture, a lower bound, and states are those of the first law that makes a clip
likelier than the linear one.

The search for objects in the frames uses the linear law alone: it needs to know roughly where an
object may be, many thousand times.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.events import Contacts, EventLaw, scene_law
from motes.kalman.joint_tracks import (
    NUM_DRAWS,
    STRAY,
    DrawnClips,
    groups,
    joint_positions,
    with_draws,
    with_moments,
)
from motes.kalman.linalg import identity, map_vector, square_root
from motes.kalman.model import POSITION_DIM, STATE_DIM, Gaussian, SampledTracks, SmoothedTracks
from motes.kalman.scene_paths import sample_scenes, scene_log_density
from motes.kalman.scenes import SceneLaw, simulate_scene
from motes.kalman.walled_dynamics import WalledDynamics

OUTLIER = 1e-3  # probability that a position is that of something else
WIDER = 4.0  # standard deviations of noise, relative to those that were fitted
CHUNK_NUMBERS = 2**25  # numbers of draws that are held together, which bounds memory


class ContactDynamics(WalledDynamics):
    """Free flight, walls and contacts of all objects; `LinearDynamics` for the search.

    `motes.training.contact_fit` fits the buffers after training. Errors are standard deviations.

    Args:
        num_walls: W.
        **linear: As for `LinearDynamics`.
    """

    independent_objects = False
    forks = True  # at contacts, so that draws show more than mean and covariance
    contact_distance: Float[Tensor, ""]
    contact_restitution: Float[Tensor, ""]
    contact_errors: Float[Tensor, " 2"]  # of distance and restitution
    event_variance: Float[Tensor, " 2"]  # of position and velocity, of objects that take part

    def __init__(self, *, num_walls: int, **linear: Any) -> None:
        super().__init__(num_walls=num_walls, **linear)
        one = torch.ones((), dtype=torch.float64)
        self.flight = LinearDynamics(num_components=1, generator=torch.Generator())
        self.flight.requires_grad_(False)
        self.register_buffer("contact_distance", 1e-5 * one)
        self.register_buffer("contact_restitution", one.clone())
        self.register_buffer("contact_errors", one.new_zeros(2))
        self.register_buffer("event_variance", one.new_zeros(2))

    @torch.no_grad()
    def set_law(
        self,
        buffers: dict[str, Tensor],
        *,
        delta: Float[Tensor, ""],
        acceleration: Float[Tensor, " 2"],
        state_sds: Float[Tensor, " D"],
        position_variance: float,
        first_state: tuple[Float[Tensor, " D"], Float[Tensor, "D D"]],
    ) -> None:
        """Set events by name, and free flight with a constant acceleration between them.

        Args:
            buffers: Of events.
            delta: Frames to the unit of time of velocities.
            acceleration: Change of velocity per frame.
            state_sds: Of process noise.
            position_variance: Of positions around the path.
            first_state: Mean and covariance in any frame.
        """
        self.load_state_dict(self.state_dict() | buffers)
        flight, (mean, covariance) = self.flight, first_state
        flight.log_delta.copy_(delta.log())
        flight.force.copy_(torch.cat([0.5 * delta * acceleration, acceleration]))
        flight.state_factor.copy_(state_sds.log().diag())
        variance = torch.full((POSITION_DIM,), position_variance, dtype=torch.float64)
        flight.position_factor.copy_((0.5 * variance.log()).diag())
        flight.initial_mean.copy_(mean[None])
        root = torch.linalg.cholesky(covariance)
        free = root.tril(-1) + root.diagonal().log().diag()
        flight.initial_factor.copy_(free[None])

    def scene(self, num_objects: int, position_variance: Tensor | None = None) -> SceneLaw:
        """Return the law of scenes with a number of objects."""
        model = self.flight.components()
        model = type(model)(*(part.detach() for part in model))
        if position_variance is not None:
            model = model._replace(position_noise=position_variance * identity(2, model.force))
        walls = self.walls
        mass = self.wall_offsets.new_ones(num_objects)
        contacts = Contacts(self.contact_distance, self.contact_restitution, mass)
        one = EventLaw(model, mass.new_zeros(1), walls, contacts)
        none = torch.zeros(1, num_objects, dtype=torch.int64, device=mass.device)
        joint = scene_law(one, num_objects, none).model
        area = 2 * math.pi * model.initial_covariance[0, :2, :2].det().sqrt()
        outlier = math.log(OUTLIER / float(area))
        return SceneLaw(joint, walls, contacts, self.event_variance, outlier)

    def emit(self, states: Gaussian) -> Gaussian:
        """Return the distribution of a_t = B h_t + noise, given that of the states h_t."""
        mean, covariance = self.path(states)
        return Gaussian(mean, covariance + self.flight.components().position_noise)

    def search_log_density(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        observed: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(a) of the law of the search, which knows no events."""
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
        for clips, slots in groups(present):
            for some in self._chunks(clips, positions.shape[2], slots.shape[1]):
                a, known = joint_positions(positions, seen, clips[some], slots[some])
                left = torch.arange(len(a), device=a.device)
                for law, log_share in _laws(self.scene(slots.shape[1])):
                    scene = scene_log_density(law, a[left], known[left]) + log_share
                    its = clips[some][left]
                    total[its] = torch.logaddexp(total[its], scene)
                    left = left[scene < linear[its] + math.log(STRAY)]
                    if not len(left):
                        break
        return total

    @torch.no_grad()
    def smooth(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
    ) -> SmoothedTracks:
        """Return the moments of the states, the same under each component.

        Objects that were never observed do not take part in events.
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

    def _drawn(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        num_draws: int,
        seed: int,
    ) -> Iterator[DrawnClips]:
        """Yield draws of the clips that obey the law of scenes, with their clips and objects."""
        a64 = positions.double()
        linear = torch.where(observed.any(-1), self.track_log_density(a64, observed), 0.0).sum(
            1
        ) + torch.log(a64.new_tensor(STRAY))
        for clips, slots in groups(observed.any(-1)):
            law = self.scene(slots.shape[1], self.mean_variance)
            for some in self._chunks(clips, positions.shape[2], slots.shape[1]):
                a, known = joint_positions(a64, observed, clips[some], slots[some])
                left = torch.arange(len(a), device=a.device)
                for one, log_share in _laws(law):
                    found = sample_scenes(one, a[left], known[left], num_draws, seed)
                    likelier = found.log_density + log_share > linear[clips[some][left]]
                    kept, drawn = left[likelier], found.states[:, likelier]
                    x, v = (part.unflatten(-1, (-1, 2)) for part in drawn.chunk(2, -1))
                    states = torch.cat([x, v], -1).movedim(3, 2)
                    yield clips[some][kept], slots[some][kept], states
                    left = left[~likelier]
                    if not len(left):
                        break

    @staticmethod
    def _chunks(clips: Tensor, num_frames: int, num_objects: int) -> list[slice]:
        step = max(CHUNK_NUMBERS // (3 * NUM_DRAWS * num_frames * STATE_DIM * num_objects), 1)
        return [slice(t, t + step) for t in range(0, len(clips), step)]

    @torch.no_grad()
    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        """Return draws from the law of scenes; objects that overlap at first move apart."""
        law, device = self.scene(batch[-1]), self.logits.device
        lead, D = batch[:-1], law.model.force.shape[-1]
        shape = (*lead, num_frames, D + D // 2)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator).to(device)
        root = square_root(law.model.initial_covariance[0])
        first = law.model.initial_mean[0] + map_vector(root, noise[..., 0, :D])
        first = self._inside(first)
        later = simulate_scene(law, first, noise[..., 1:, :D])
        path = torch.cat([first[..., None, :], later], -2)
        x, v = (part.unflatten(-1, (-1, 2)).movedim(-2, -3) for part in path.chunk(2, -1))
        seen = map_vector(square_root(law.model.position_noise), noise[..., D:])
        seen = seen.unflatten(-1, (-1, 2)).movedim(-2, -3)
        component = torch.zeros(batch, dtype=torch.int64, device=device)
        return SampledTracks(component, torch.cat([x, v], -1), x + seen)

    def _inside(self, state: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Return states mirrored at the walls that they are behind."""
        x, v = (part.unflatten(-1, (-1, 2)) for part in state.chunk(2, -1))
        for normal, offset in zip(self.wall_normals, self.wall_offsets, strict=True):
            behind = (offset - x @ normal).clamp(min=0.0)
            x = x + 2 * behind[..., None] * normal
        return torch.cat([x.flatten(-2), v.flatten(-2)], -1)


def _laws(law: SceneLaw) -> Iterator[tuple[SceneLaw, float]]:
    """Yield the laws with events that a clip may obey, with the log probability of each."""
    yield law, math.log1p(-2 * STRAY)
    model, square = law.model, WIDER**2
    wider = model._replace(
        state_noise=square * model.state_noise, position_noise=square * model.position_noise
    )
    noise = square * law.event_variance
    yield law._replace(model=wider, event_variance=noise), math.log(STRAY)
