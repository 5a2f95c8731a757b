"""A model: the registries of families and laws of motion, and the parts of a model together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from motes.config import FAMILY_SETTINGS, DynamicsConfig, RunConfig, require
from motes.core.axes import Bool, Float, Int, Tensor
from motes.data.clips import ColourAxis
from motes.kalman.contact_dynamics import ContactDynamics
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.event_dynamics import EventDynamics
from motes.kalman.pair_dynamics import PairDynamics
from motes.models import paper
from motes.models.law import Law, describe_law
from motes.models.layers import search as layers
from motes.models.protocols import Dynamics, Family, Inference, Posterior, Renderer, Search
from motes.models.sprites import search as sprites

BuildLaw = Callable[[DynamicsConfig, torch.Generator], Any]  # returns a Dynamics, an nn.Module
FAMILIES: dict[str, Family] = {}
LAWS: dict[str, BuildLaw] = {}
CHUNK_FRAMES = 256  # frames rendered together, which bounds memory


def register_family(family: Family) -> None:
    """Make a family available to configurations, presets and files under its name."""
    FAMILIES[family.name] = family
    FAMILY_SETTINGS[family.name] = family.settings


def register_law(name: str, build: BuildLaw) -> None:
    """Make a law of motion available as `DynamicsConfig.law`."""
    LAWS[name] = build


def find_law(name: str) -> BuildLaw:
    """Return the constructor of a law by name."""
    require(name in LAWS, f"law is {name!r:.60}; expected one of {', '.join(LAWS)}")
    return LAWS[name]


def _linear(config: DynamicsConfig, generator: torch.Generator) -> LinearDynamics:
    settings: dict[str, Any] = {
        "num_components": config.num_components,
        "sampling_period": config.sampling_period,
        "state_noise": config.state_noise,
        "position_noise": config.position_noise,
        "initial_spread": config.initial_spread,
        "linear": config.law == "linear",
        "generator": generator,
    }
    if config.pair_forces:
        return PairDynamics(**settings)
    if config.contact_kinds:
        return ContactDynamics(num_walls=config.num_walls, **settings)
    if config.num_walls > 0:
        return EventDynamics(num_walls=config.num_walls, **settings)
    return LinearDynamics(**settings)


for each in (paper.FAMILY, sprites.FAMILY, layers.FAMILY):
    register_family(each)
register_law("newton", _linear)  # a constant force
register_law("linear", _linear)  # and forces linear in position and velocity


class Model(nn.Module):
    """A generative model of videos and its inference.

        for each object n:   z ~ Categorical(pi);  h_1 ~ Normal(mu_z, Sigma_z)
                             h_t = A h_{t-1} + u + Normal(0, Sigma_H)
                             a_t = B h_t + Normal(0, Sigma_A)
        for each frame t:    x = tanh(theta_x0);  for n: x = (1 - alpha_n) x + alpha_n xhat_n
                             v_t ~ Bernoulli(sigm(W x + b))
        inference:           q(a|v): s_t^n from (s_{t-1}^n, s_t^{n-1}, v_t), then a Gaussian

    These are the paper's parts; `motes.models.protocols` defines what others may take their place.
    `pixel_matrix` and `pixel_offset` map latent positions to pixels, see `motes.models.pixel_map`.
    Answers multiply q's covariances by `calibration_scale`, one for each number of objects, see
    `motes.evaluation.calibration`.
    """

    dynamics: Dynamics
    renderer: Renderer
    inference: Inference
    pixel_matrix: Float[Tensor, "2 2"]
    pixel_offset: Float[Tensor, " 2"]
    calibration_scale: Float[Tensor, " Nmax"]

    def __init__(
        self,
        dynamics: Any,
        renderer: Any,
        inference: Any,
        *,
        image_size: tuple[int, int],
        max_objects: int,
        channels: int = 1,
        colour_axis: ColourAxis | None = None,
    ) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.renderer = renderer
        self.inference = inference
        self.image_size = image_size
        self.max_objects = max_objects
        self.channels = channels
        self.colour_axis = colour_axis
        self.folder: Path | None = None  # of the model's files, once they are loaded
        self.register_buffer("pixel_matrix", torch.eye(2, dtype=torch.float32))
        self.register_buffer("pixel_offset", torch.zeros(2, dtype=torch.float32))
        self.register_buffer("calibration_scale", torch.ones(max_objects, dtype=torch.float32))

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.pixel_matrix.device

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of one input frame: height, width and, in colour, channels."""
        return self.image_size if self.channels == 1 else (*self.image_size, self.channels)

    @property
    def in_colour(self) -> bool:
        """Whether queries take frames with a last axis of red, green and blue."""
        return self.colour_axis is not None or self.channels == 3

    @property
    def black_and_white(self) -> bool:
        """Whether frames are white shapes on black, as the paper's clips are."""
        return not self.renderer.grey_levels and not self.in_colour

    @property
    def max_searchable_objects(self) -> int:
        """The largest number of objects that a query may ask for."""
        most: int = self.inference.max_objects(self.max_objects)
        return most

    def present(self, num_objects: Int[Tensor, " B"]) -> Bool[Tensor, "B N"]:
        """Return which object slots each clip uses: the first `num_objects`."""
        slots = max(self.max_objects, int(num_objects.max()))
        return torch.arange(slots, device=num_objects.device) < num_objects[:, None]

    def infer(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None = None,
        search: Search = Search(),  # noqa: B008 (immutable)
    ) -> Posterior:
        """Return q(a | v)."""
        posterior: Posterior = self.inference.infer(
            frames,
            num_objects,
            observed,
            dynamics=self.dynamics,
            renderer=self.renderer,
            slots=self.present(num_objects).shape[1],
            search=search,
        )
        return posterior

    def render(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Any = None,
    ) -> Float[Tensor, "B T height width *channels"]:
        """Return the mean of every pixel for known positions and appearance."""
        chunks = (
            self.renderer(part, present, appearance) for part in positions.split(CHUNK_FRAMES, 2)
        )
        return torch.cat([logits.sigmoid() for logits in chunks], 1)

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width *channels"],
        appearance: Any = None,
        detected: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return log p(v_t | a_t); `detected` affects gradients only."""
        nats = []
        for start in range(0, frames.shape[1], CHUNK_FRAMES):
            time = slice(start, start + CHUNK_FRAMES)
            nats.append(
                self.renderer.log_likelihood(
                    positions[:, :, time],
                    present,
                    frames[:, time],
                    appearance=appearance,
                    detected=None if detected is None else detected[:, :, time],
                )
            )
        return torch.cat(nats, 1)

    @property
    def law(self) -> Law:
        """What was learned about motion, in pixels and frames; print it for one line each."""
        return describe_law(self.dynamics, self.pixel_matrix, self.pixel_offset)

    def _repr_html_(self) -> str:
        from motes.models.display import model_html

        return model_html(self)

    def to_pixels(self, positions: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Return latent positions as pixel coordinates (x to the right, y down)."""
        return positions @ self.pixel_matrix.to(positions.dtype).T + self.pixel_offset


def build(config: RunConfig) -> Model:
    """Return a new model with weights drawn from the run's seed."""
    generator, data = torch.Generator().manual_seed(config.seed), config.data
    dynamics = find_law(config.dynamics.law)(config.dynamics, generator)
    renderer, inference = FAMILIES[config.family].build(config.model, data, generator)
    return Model(
        dynamics,
        renderer,
        inference,
        image_size=(data.height, data.width),
        max_objects=data.max_objects,
        channels=data.channels,
        colour_axis=data.colour_axis,
    )
