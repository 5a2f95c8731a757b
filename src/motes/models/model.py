"""A model: its parts by name, the generative model with its bound, and its files.

A run folder is self-describing:

    config.json              the whole configuration, versioned
    environment.json         versions, device, commit
    log.jsonl                one line for each report of training
    model.safetensors        weights and pixel map, for use
    checkpoint.safetensors   weights and optimizer state, for resuming
    quality.json             how good the model is on its own clips
    latent_map.png           the latent plane at the last checkpoint
    preparation.json         how clips were prepared from a video, if they were
    replicas.json            several seeds: which, each in a folder of its own
    selection.json           several seeds: their bounds, and the one selected

A model for queries needs only `config.json` and `model.safetensors`: safetensors and JSON, nothing
that can run code. Files are replaced atomically.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from motes.config import FAMILY_SETTINGS, DynamicsConfig, RunConfig, from_json, require, to_json
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.device import check_device
from motes.core.errors import InputError
from motes.core.files import atomic_path
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
SHIPPED = Path(__file__).parent / "shipped"
MAX_WEIGHT = 1e6  # larger values are treated as damage
# Tensors that files of earlier versions may lack.
ADDED = {"calibration_scale", "dynamics.mean_variance", "dynamics.in_time"}
ALIASES = {"cannonballs-sprites": "cannonballs-structured"}
RENAMED = {"temper": "calibration_scale"}  # tensors of version 0.1


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


class BoundTerms(NamedTuple):
    """The three terms of the bound for each clip, or their mean over clips, in nats."""

    reconstruction: Float[Tensor, "..."]
    entropy: Float[Tensor, "..."]
    log_prior: Float[Tensor, "..."]

    def weighted(self, kl_weight: float | Float[Tensor, ""]) -> Float[Tensor, "..."]:
        """Return the bound with its KL term multiplied by a weight; 1 is the bound itself."""
        return self.reconstruction + kl_weight * (self.entropy + self.log_prior)


def reconstruction(
    nats: Float[Tensor, "B T"], observed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """Return log p(v | a), summed over the observed frames (all, if None)."""
    return nats.sum(1) if observed is None else torch.where(observed, nats, 0.0).sum(1)


def entropy(nats: Float[Tensor, "B N T"], present: Bool[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """Return H[q], summed over the present objects."""
    return torch.where(present, nats.sum(2), 0.0).sum(1)


def log_prior(
    dynamics: Any,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    detected: Bool[Tensor, "B _ T"] | None = None,
) -> Float[Tensor, " B"]:
    """Return log p(a) of a draw, exact under the law of motion."""
    nats: Tensor = dynamics.log_density(positions, present, detected)
    return nats.to(positions.dtype)


def bound_terms(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """Return the terms of the bound for each clip, from one draw of q."""
    q = model.infer(frames, num_objects, observed)
    return terms_of(model, q, frames, num_objects, noise, observed)


def terms_of(
    model: Model,
    q: Posterior,
    frames: Float[Tensor, "B T height width *channels"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B T"] | None = None,
) -> BoundTerms:
    """Return the terms of the bound of a given q on the observed frames, from one draw.

    Paper: [Eq. elbo].

    Law: equals the exact log evidence for a linear-Gaussian stand-in with the exact posterior as
    q, and lies below it for any other q; tests/models/test_model_bound.py.
    """
    present, positions, detected = model.present(num_objects), q.draw(noise), q.detected
    # Where an object was not detected q is its prior given the rest, and the two cancel.
    everywhere = detected is None or bool(detected.all())
    nats = model.log_likelihood(positions, present, frames, q.appearance, detected)
    prior = log_prior(model.dynamics, positions, present, None if everywhere else detected)
    return BoundTerms(
        reconstruction=reconstruction(nats, observed),
        entropy=entropy(q.entropy(), present),
        log_prior=prior + model.renderer.appearance_log_prior(q.appearance, present),
    )


def save_model(folder: Path, model: Model, config: RunConfig, *, half: bool = False) -> None:
    """Write `config.json` and `model.safetensors`; `half` stores network weights as float16."""
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if half:
        shrinks = ("renderer.", "inference.")
        tensors = {n: v.half() if n.startswith(shrinks) else v for n, v in tensors.items()}
    write_text(folder / "config.json", to_json(config))
    write_tensors(folder / "model.safetensors", tensors, {"kind": "model"})


def load(name_or_folder: str | Path, *, device: str | torch.device = "cpu") -> Model:
    """Return a shipped model by name, or the model of a run folder, ready for queries.

    Raises:
        InputError: there is no such model, or its files are damaged or of a newer version.
    """
    return load_with_config(name_or_folder, device=device)[0]


def load_with_config(
    name_or_folder: str | Path, *, device: str | torch.device = "cpu"
) -> tuple[Model, RunConfig]:
    """Return the model and the configuration of the run that made it."""
    folder = find_model(name_or_folder)
    config = read_config(folder)
    model = build(config)
    tensors, _ = read_tensors(folder / "model.safetensors")
    restore_weights(model, tensors, folder / "model.safetensors")
    model.folder = folder
    return model.to(check_device(device)).eval(), config


def find_model(name_or_folder: str | Path) -> Path:
    """Return the folder of a model given by its shipped name or its path."""
    if str(name_or_folder) in shipped_names():
        return SHIPPED / ALIASES.get(str(name_or_folder), str(name_or_folder))
    folder = Path(name_or_folder)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"no model at {str(name_or_folder)!r}; give a run folder (with config.json) "
            f"or a shipped name: {', '.join(shipped_names()) or 'none in this installation'}"
        )
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder} has a config but no model.safetensors; let training reach its first "
            f"checkpoint: motes train --resume {folder}"
        )
    return folder


def shipped_names() -> list[str]:
    """Return the names of the models inside the package, aliases included."""
    names = [path.parent.name for path in SHIPPED.glob("*/model.safetensors")]
    return sorted([*names, *(alias for alias, name in ALIASES.items() if name in names)])


def read_config(folder: Path) -> RunConfig:
    """Return the configuration in a run folder."""
    path = folder / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{folder} has no config.json; give the folder of a run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    return from_json(text, path)


def restore_weights(model: Model, tensors: dict[str, Tensor], origin: Path) -> None:
    """Copy tensors into the model after checking names, shapes and values."""
    expected, tensors = model.state_dict(), rename_old_tensors(tensors)
    tensors = {**{name: expected[name] for name in ADDED & set(expected)}, **tensors}
    if set(tensors) != set(expected):
        missing, extra = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
        difference = f"missing {missing[:3]!s:.200}, unknown {extra[:3]!s:.200}"
        raise InputError(f"{origin} does not fit its config.json: {difference}")
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{origin}: {name:.60} has shape {tuple(value.shape)!s:.60}, "
                f"its config.json expects {tuple(expected[name].shape)}"
            )
        known = value.dtype in (torch.float16, torch.float32, torch.float64)
        if not known or not bool((value.to(expected[name].dtype).abs() <= MAX_WEIGHT).all()):
            raise InputError(
                f"{origin}: {name} holds values that are not numbers up to {MAX_WEIGHT:.0f}"
            )
    model.load_state_dict(tensors)
    if not is_usable_model(model):
        raise InputError(f"{origin}: its values overflow on an empty clip; train it again")


def rename_old_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of any version under the names of this one; prefixes such as `model/` stay."""

    def new(name: str) -> str:
        prefix, slash, last = name.rpartition("/")
        return prefix + slash + RENAMED.get(last, last)

    return {new(name): value for name, value in tensors.items()}


@torch.no_grad()
def is_usable_model(model: Model) -> bool:
    """Return whether dynamics, renderer and inference stay finite on an empty clip."""
    one = torch.ones(1, dtype=torch.int64)
    frames = torch.zeros(1, 2, *model.frame_shape).to(model.pixel_matrix)
    try:
        values = [
            model.renderer(frames.new_zeros(1, model.max_objects, 1, 2), model.present(one)),
            model.infer(frames, one).means,
        ]
        moderate = model.dynamics.is_bounded(float(MAX_WEIGHT**2))
    except (IndexError, ValueError, RuntimeError):  # raised by values that are not finite
        return False
    moderate &= bool((model.calibration_scale > 0).all())
    return moderate and all(bool(part.isfinite().all()) for part in values)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically.

    Raises:
        OSError: the disk is full or fails; the file is as it was.
    """
    with atomic_path(path) as temporary:
        try:
            save_file(
                {name: value.contiguous() for name, value in tensors.items()},
                temporary,
                metadata={"format": "motes", **metadata},
            )
        except SafetensorError as error:  # it wraps the operating system's error as text
            raise OSError(f"{path} could not be written ({error})") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of a safetensors file that motes wrote.

    Raises:
        InputError: missing, truncated, foreign or hostile file.
    """
    metadata = read_metadata(path)
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata only, see `read_tensors`."""
    with _opened(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != "motes":
        raise InputError(f"{path} was not written by motes")
    return metadata


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raise `InputError` in one line if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); copy or train it again"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
