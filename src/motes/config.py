"""Run configuration: frozen, validated dataclasses and their JSON form.

A run has settings for its data, its law of motion, its model family and its schedule. The settings
of a family live in the family's own package, which registers them here by name; `motes.models`
registers those that come with the package. Modules below `models.model.build` and `training` take
plain arguments. Every schedule is a tuple of knots (step, value), see `motes.training.inputs`.

The JSON parser is written by hand because the training core must import with torch, numpy, scipy
and safetensors alone.
"""

import dataclasses
import json
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from motes.core.errors import InputError
from motes.core.errors import require as require  # families import it from here

Knots = tuple[tuple[int, float], ...]

FORMAT_VERSION = 2  # version 1 was written by motes 0.1 and is still read
MAX_COUNT = 10**9
MAX_OBJECTS = 16  # in a clip


def require_counts(record: object, lowest: int, *names: str) -> None:
    """Raise `InputError` unless these fields lie between `lowest` and `MAX_COUNT`."""
    for name in names:
        value = getattr(record, name)
        require(
            lowest <= value <= MAX_COUNT, f"{name} is {value!r:.60}; give {lowest} to {MAX_COUNT}"
        )


def require_positive(record: object, *names: str) -> None:
    """Raise `InputError` unless these fields are positive and below 1e6."""
    for name in names:
        value = getattr(record, name)
        require(0 < value < 1e6, f"{name} is {value}; give a positive number")


Value = TypeVar("Value")


def optional(default: Value) -> Value:
    """Declare a field that older files may lack; a missing field has the default."""
    added: Value = field(default=default, metadata={"optional": True})
    return added


@dataclass(frozen=True)
class DataConfig:
    """The training clips: a file, or generated cannonballs."""

    path: str | None = None  # npz file of clips; None generates cannonballs
    num_clips: int = 60_000
    num_objects: tuple[int, ...] = (1, 2, 3)
    num_frames: int = 30
    height: int = 48
    width: int = 48
    seed: int = 1
    num_held_out: int = 240  # clips for the held-out bound
    # Weights of red, green and blue and an offset that map colour clips to grey levels.
    colour_axis: tuple[float, float, float, float] | None = optional(None)
    channels: int = optional(1)  # per pixel; 3: colour, for layered sprites

    def __post_init__(self) -> None:
        require_counts(self, 1, "num_clips", "num_held_out")
        require(0 <= self.seed < 2**63, f"seed is {self.seed!r:.60}; give 0 to 2**63 - 1")
        counts = sorted(set(self.num_objects))
        named = f"{counts[0]} to {counts[-1]}" if len(counts) > 3 else f"{self.num_objects!r:.60}"
        require(
            counts and 1 <= counts[0] <= counts[-1] <= MAX_OBJECTS,
            f"num_objects is {named}; give counts between 1 and {MAX_OBJECTS}, or clips with fewer "
            "objects: motes prepare --crop",
        )
        require(
            1 <= self.num_frames <= 10_000, f"num_frames is {self.num_frames!r:.40}; give 1..10000"
        )
        require(
            4 <= self.height <= 512 and 4 <= self.width <= 512,
            f"frames are {self.height!r:.40}x{self.width!r:.40}; give 4 to 512 pixels a side",
        )
        require(self.channels in (1, 3), f"channels is {self.channels!r:.40}; give 1 or 3")

    @property
    def max_objects(self) -> int:
        """The largest number of objects in a clip."""
        return max(self.num_objects)


@dataclass(frozen=True)
class DynamicsConfig:
    """The law of motion and its initial values; the defaults are the paper's."""

    law: str = "newton"  # a name registered in `motes.models.model.LAWS`
    num_components: int = 2  # K, initial-state components
    sampling_period: float = 0.1  # initial delta
    state_noise: float = 0.001  # initial Sigma_H = state_noise I
    position_noise: float = 1.0  # initial Sigma_A = position_noise I
    initial_spread: float = 1.0  # standard deviation of mu_k's position; Sigma_k = spread^2 I
    num_walls: int = optional(0)  # found after training, see `motes.training.event_fit`
    contact_kinds: int = optional(0)  # 1: objects bounce off one another, also found afterwards
    pair_forces: int = optional(0)  # 1: forces act between objects, also found afterwards

    def __post_init__(self) -> None:
        require(
            self.contact_kinds in (0, 1), f"contact_kinds is {self.contact_kinds!r:.40}; give 0, 1"
        )
        require(self.pair_forces in (0, 1), f"pair_forces is {self.pair_forces!r:.40}; give 0, 1")
        require(0 <= self.num_walls <= 64, f"num_walls is {self.num_walls!r:.40}; give 0..64")
        require(1 <= self.num_components <= 64, f"K is {self.num_components!r:.40}; give 1..64")
        require_positive(self, "sampling_period", "state_noise", "position_noise", "initial_spread")


@dataclass(frozen=True)
class ScheduleConfig:
    """Settings that change over the training steps, as knots (step, value)."""

    iterations: int = 200_000
    frozen_dynamics: int = 10_000  # the dynamics keep their initial values until this step
    learning_rate: Knots = ((0, 1e-3),)
    kl_weight: Knots = ((0, 1.0),)
    blur: Knots = ((0, 0.0),)  # standard deviation in pixels
    dynamics_rate: float = 1.0  # learning rate of the dynamics relative to that of the networks
    distillation_steps: int = 0  # first steps, on a teacher's pseudo-labels
    # Families that infer by search:
    steps_per_search: int = 1  # gradient steps between two searches of new frames
    frozen_occlusion: int = optional(0)  # no occluder is learned until this step
    mixture_em_steps: tuple[int, ...] = ()  # steps at which initial-state components are refitted

    def __post_init__(self) -> None:
        require_counts(self, 1, "iterations", "steps_per_search")
        require_counts(self, 0, "frozen_dynamics", "frozen_occlusion", "distillation_steps")
        require(
            0 <= self.dynamics_rate < 1e6, f"dynamics_rate is {self.dynamics_rate}; give 0 to 1e6"
        )
        for name in ("learning_rate", "kl_weight", "blur"):
            knots = getattr(self, name)
            steps = [step for step, _ in knots]
            require(
                len(knots) > 0 and steps == sorted(steps) and all(0 <= v < 1e6 for _, v in knots),
                f"{name} is {knots!r:.60}; give (step, value) pairs, steps rising, values 0 to 1e6",
            )

    def stretched(self, iterations: int) -> "ScheduleConfig":
        """Return the schedule over another number of iterations; mixtures keep their steps."""
        factor = iterations / self.iterations

        def stretch(knots: Knots) -> Knots:
            return tuple((round(step * factor), value) for step, value in knots)

        return dataclasses.replace(
            self,
            iterations=iterations,
            frozen_dynamics=round(self.frozen_dynamics * factor),
            learning_rate=stretch(self.learning_rate),
            kl_weight=stretch(self.kl_weight),
            blur=stretch(self.blur),
            distillation_steps=round(self.distillation_steps * factor),
            frozen_occlusion=round(self.frozen_occlusion * factor),
        )

    def slower(self, factor: float) -> "ScheduleConfig":
        """Return the schedule with all learning rates multiplied by a factor."""
        rates = tuple((step, factor * rate) for step, rate in self.learning_rate)
        return dataclasses.replace(self, learning_rate=rates)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole training run."""

    model: Any  # settings of a registered family, such as `motes.models.paper.PaperSettings`
    data: DataConfig = field(default_factory=DataConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batch_size: int = 20
    seed: int = 0  # of initial weights, batches and noise
    teacher: str | None = None  # a sprite model that gives pseudo-labels: a name or run folder
    initial_model: str | None = optional(None)  # a model whose weights training starts from
    # A first stage on the clips of one object, whose tracks are the pseudo-labels of
    # `schedule.distillation_steps`; see `motes.training.self_distillation`.
    single_object_schedule: ScheduleConfig | None = optional(None)  # noqa: RUF009
    hidden_clips: float = optional(0.0)  # clips with hidden frames for each other combined clip
    precision: str = optional("mixed")  # of training on a GPU [Choice 21]; or "float32"
    log_every: int = 100
    checkpoint_every: int = 2_000

    def __post_init__(self) -> None:
        require(
            self.precision in ("mixed", "float32"),
            f"precision is {self.precision!r:.40}; give mixed or float32",
        )
        require(
            0 <= self.hidden_clips <= 1, f"hidden_clips is {self.hidden_clips!r:.40}; give 0 to 1"
        )
        require_counts(self, 1, "batch_size", "log_every", "checkpoint_every")
        require(0 <= self.seed < 2**63, f"seed is {self.seed!r:.60}; give 0 to 2**63 - 1")
        require(
            self.checkpoint_every % self.schedule.steps_per_search == 0,
            f"checkpoint_every is {self.checkpoint_every!r:.40}; give a multiple of "
            f"steps_per_search, {self.schedule.steps_per_search}",
        )
        require(
            self.teacher is None or self.schedule.distillation_steps > 0,
            f"teacher is {self.teacher!r:.200}, but schedule.distillation_steps is 0: "
            "use --preset paper-distilled",
        )
        require(
            self.single_object_schedule is None
            or (self.teacher is None and self.initial_model is None and self.family == "paper"),
            "single_object_schedule is given, a first stage of the paper's networks, which are "
            "then their own teacher: leave out --teacher and --from",
        )

    def stretched(self, iterations: int) -> "RunConfig":
        """Return the configuration with its schedules over another number of iterations."""
        first = self.single_object_schedule
        if first is not None:
            factor = iterations / self.schedule.iterations
            first = first.stretched(max(round(factor * first.iterations), 1))
        schedule = self.schedule.stretched(iterations)
        return dataclasses.replace(self, schedule=schedule, single_object_schedule=first)

    @property
    def family(self) -> str:
        """The name under which the settings of the model were registered."""
        for name, settings in FAMILY_SETTINGS.items():
            if type(self.model) is settings:
                return name
        raise TypeError(f"{type(self.model).__name__} belongs to no registered family")


# The settings class of each family by name; `motes.models.model.register_family` adds to it.
FAMILY_SETTINGS: dict[str, type[Any]] = {}


def to_json(config: RunConfig) -> str:
    """Return the configuration as JSON text with the version of the format."""
    content = {"version": FORMAT_VERSION, "family": config.family, **dataclasses.asdict(config)}
    return json.dumps(content, indent=2) + "\n"


def from_json(text: str, origin: str | Path) -> RunConfig:
    """Return the configuration that `to_json` wrote, of this or an older version.

    Raises:
        InputError: not JSON, a newer version, an unknown family, unknown or missing fields, wrong
            types or values; the message names `origin`.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{origin} is not JSON ({error}); expected a motes config") from None
    require(isinstance(raw, dict), f"{origin} holds no JSON object; expected a motes config")
    version = raw.pop("version", None)
    require(
        version in (1, FORMAT_VERSION),
        f"{origin} has format version {version!r:.60}; this motes reads versions 1 to "
        f"{FORMAT_VERSION}: use the motes that wrote it, or a newer one",
    )
    raw = upgraded(raw, str(origin)) if version == 1 else raw
    family = raw.pop("family", None)
    require(
        isinstance(family, str) and family in FAMILY_SETTINGS,
        f"{origin} is of family {family!r:.60}; expected one of {', '.join(FAMILY_SETTINGS)}",
    )
    require("model" in raw, f"{origin} lacks the fields ['model']")
    model = _read(FAMILY_SETTINGS[family], raw.pop("model"), f"{origin}: model")
    return _read(RunConfig, raw, str(origin), model=model)


# Names of version 1 and where their values are in version 2. Families share the law of motion and
# the schedule; a setting of another family was written too, and is dropped.
_DYNAMICS_1 = (
    *("law", "num_components", "sampling_period", "state_noise", "position_noise"),
    "initial_spread",
)
_PAPER_1 = {
    name: name
    for name in ("inference_state_size", "renderer_state_size", "scale_floor", "initial_scale")
}
_SPRITES_1 = {
    **{"glyph_reach": "sprite_radius", "glyph_width": "sprite_width"},
    **{"pixels_per_unit": "pixels_per_unit", "window": "window"},
}
_LAYERS_1 = {**_SPRITES_1, "num_kinds": "num_sprite_classes"}
_MODEL_1 = {*_DYNAMICS_1, *_PAPER_1, *_LAYERS_1, "family", "pixels", "hidden_teach"}
_SCHEDULE_1 = {
    "taught": "distillation_steps",
    "steps_per_look": "steps_per_search",
    "frozen_visibility": "frozen_occlusion",
    "seed_mixture": "mixture_em_steps",
}


def upgraded(raw: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the content of a version 1 file under the names of version 2."""
    model, schedule = raw.pop("model", None), raw.pop("schedule", None)
    for name, part in (("model", model), ("schedule", schedule)):
        require(isinstance(part, dict), f"{origin}: {name} is {part!r:.60}; expected an object")
    unknown = sorted(set(model) - _MODEL_1)
    require(not unknown, f"{origin}: model has unknown fields {unknown!r:.120}")
    missing = sorted(_MODEL_1 - set(model) - {"law", "pixels", "num_kinds", "hidden_teach"})
    require(not missing, f"{origin}: model lacks the fields {missing}")
    kinds = {
        ("paper", "binary"): ("paper", _PAPER_1),
        ("structured", "binary"): ("sprites", _SPRITES_1),
        ("structured", "pictures"): ("layers", _LAYERS_1),
    }
    kind = (model["family"], model.get("pixels", "binary"))
    require(
        all(isinstance(part, str) for part in kind) and kind in kinds,
        f"{origin}: family and pixels are {kind!r:.80}; expected one of {list(kinds)}",
    )
    hiding = model.get("hidden_teach", "all")
    require(hiding in ("all", "hiding"), f"{origin}: hidden_teach is {hiding!r:.60}")
    family, names = kinds[kind]
    model = {"num_kinds": 6} | model  # the first files lacked it
    settings = {new: model[old] for old, new in names.items() if old in model}
    if family == "sprites":
        settings["models_occlusion"] = hiding == "hiding"
    renamed = {_SCHEDULE_1.get(name, name): value for name, value in schedule.items()}
    require(len(renamed) == len(schedule), f"{origin}: schedule has fields of two versions")
    if "begins_with" in raw:
        raw["initial_model"] = raw.pop("begins_with")
    dynamics = {"law": "newton"} | {n: model[n] for n in _DYNAMICS_1 if n in model}
    return raw | {"family": family, "model": settings, "dynamics": dynamics, "schedule": renamed}


Record = TypeVar("Record")


def _read(kind: type[Record], raw: Any, place: str, **known: Any) -> Record:
    """Return a dataclass built from parsed JSON, strictly; `known` fields are already parsed."""
    require(isinstance(raw, dict), f"{place} is {raw!r:.60}; expected an object")
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in known}  # type: ignore[arg-type]
    unknown = sorted(set(raw) - set(fields))
    missing = sorted(
        name for name in set(fields) - set(raw) if "optional" not in fields[name].metadata
    )
    require(not unknown, f"{place} has unknown fields {unknown!r:.120}; expected {sorted(fields)}")
    require(not missing, f"{place} lacks the fields {missing}")
    read = {name: _value(fields[name].type, raw[name], f"{place}: {name}") for name in raw}
    return kind(**known, **read)


def _value(expected: Any, raw: Any, place: str) -> Any:
    """Return one JSON value checked against an annotation, lists as tuples."""
    if dataclasses.is_dataclass(expected):
        return _read(expected, raw, place)  # type: ignore[arg-type]
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return None if raw is None else _value(arguments[0], raw, place)
    if origin is Literal:
        require(raw in arguments, f"{place} is {raw!r:.60}; expected one of {list(arguments)}")
        return raw
    if origin is tuple:
        require(isinstance(raw, list), f"{place} is {raw!r:.60}; expected a list")
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], item, place) for item in raw)
        require(len(raw) == len(arguments), f"{place} is {raw!r:.60}; expected {len(arguments)}")
        return tuple(_value(a, item, place) for a, item in zip(arguments, raw, strict=True))
    if expected is float and type(raw) is int and abs(raw) <= MAX_COUNT:
        return float(raw)
    require(type(raw) is expected, f"{place} is {raw!r:.60}; expected {expected.__name__}")
    return raw
