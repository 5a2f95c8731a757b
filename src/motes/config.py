"""What a run is: frozen, validated dataclasses and their JSON form.

Configuration stops at the door: `model.build` and `train` read it, the modules below take plain
arguments. Every schedule is a tuple of knots (step, value), see `motes.training.schedule`.
"""

import dataclasses
import json
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from motes.core.errors import InputError

Knots = tuple[tuple[int, float], ...]

FORMAT_VERSION = 1
MOST = 10**9  # of anything that is counted


def require(condition: bool, message: str) -> None:
    """Raises `InputError` with the message unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_counts(record: object, lowest: int, *names: str) -> None:
    """Raises `InputError` unless these fields lie between `lowest` and `MOST`."""
    for name in names:
        value = getattr(record, name)
        require(lowest <= value <= MOST, f"{name} is {value!r:.60}; give {lowest} to {MOST}")


Value = TypeVar("Value")


def newer(default: Value) -> Value:
    """A field that runs of older versions lack: they did what its default says."""
    added: Value = field(default=default, metadata={"newer": True})
    return added


@dataclass(frozen=True)
class DataConfig:
    """Which clips are learned from: a file of the user's, or the paper's cannonballs."""

    path: str | None = None  # npz file of clips; None makes cannonballs
    num_clips: int = 60_000
    num_objects: tuple[int, ...] = (1, 2, 3)
    num_frames: int = 30
    height: int = 48
    width: int = 48
    seed: int = 1
    num_held_out: int = 240  # clips kept from training, for the bound that is reported
    # Of colour clips: weights of red, green and blue, and an offset, that make the grey level.
    colour_axis: tuple[float, float, float, float] | None = newer(None)
    channels: int = newer(1)  # of a pixel; 3: colour as it is, for pictures

    def __post_init__(self) -> None:
        require_counts(self, 1, "num_clips", "num_held_out")
        require(0 <= self.seed < 2**63, f"seed is {self.seed!r:.60}; give 0 to 2**63 - 1")
        require(
            len(self.num_objects) > 0 and 1 <= min(self.num_objects) <= max(self.num_objects) <= 16,
            f"num_objects is {self.num_objects!r:.60}; give counts between 1 and 16",
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
class ModelConfig:
    """Sizes and starting values of the three parts; the defaults are the paper's."""

    family: Literal["paper", "structured"] = "paper"
    inference_state_size: int = 1024  # S, the paper's dimension of s_t^n
    renderer_state_size: int = 1024  # X, of x^n; the paper does not say, [Choice 3]
    num_components: int = 2  # K
    # Of motion; linear: springs and drag as well.
    law: Literal["newton", "linear"] = newer("newton")
    sampling_period: float = 0.1  # delta at the start
    state_noise: float = 0.001  # Sigma_H = state_noise I
    position_noise: float = 1.0  # Sigma_A = position_noise I
    initial_spread: float = 1.0  # standard deviation of mu_k's position, and Sigma_k = spread^2 I
    scale_floor: float = 0.01  # smallest standard deviation of q, in latent units, [Choice 4]
    initial_scale: float = 0.5  # standard deviation of q before training, [Choice 4]
    # Of the structured family alone:
    glyph_reach: int = 5  # pixels from the glyph's centre to its border
    glyph_width: float = 3.0  # standard deviation of the glyph before training, pixels
    pixels_per_unit: float = 3.0  # scale of latent positions
    window: int = 7  # pixels around its prediction in which an object is looked for
    # Lit or dark by a chance, one glyph for all; or grey or colour with noise, several kinds.
    pixels: Literal["binary", "pictures"] = newer("binary")
    num_kinds: int = newer(6)  # of object, of pictures alone
    # What objects teach that were not seen: all; or what hides them alone, and there they are
    # taken to be. [Choice 38]
    hidden_teach: Literal["all", "hiding"] = newer("all")

    def __post_init__(self) -> None:
        require(
            1 <= self.inference_state_size <= 8192 and 1 <= self.renderer_state_size <= 8192,
            "state sizes are "
            f"{self.inference_state_size!r:.40} and {self.renderer_state_size!r:.40}; give 1..8192",
        )
        require(1 <= self.num_kinds <= 64, f"num_kinds is {self.num_kinds!r:.40}; give 1 to 64")
        require(
            self.pixels == "binary" or self.family == "structured",
            "pixels is pictures, which the paper's networks cannot draw: use --family structured",
        )
        require(1 <= self.num_components <= 64, f"K is {self.num_components!r:.40}; give 1..64")
        for name in (
            "sampling_period", "state_noise", "position_noise", "initial_spread",
            "glyph_width", "pixels_per_unit",
        ):  # fmt: skip
            value = getattr(self, name)
            require(0 < value < 1e6, f"{name} is {value}; give a positive number")
        require(
            1 <= self.glyph_reach <= 64 and 1 <= self.window <= 64,
            f"glyph_reach is {self.glyph_reach!r:.40}, window {self.window!r:.40}; give 1 to 64",
        )
        require(
            0 < self.scale_floor < self.initial_scale < 1e6,
            f"scale_floor is {self.scale_floor} and initial_scale {self.initial_scale}; "
            "give 0 < scale_floor < initial_scale",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """How training changes over the steps; knots are (step, value), see `motes.training.schedule`."""

    iterations: int = 200_000
    frozen_dynamics: int = 10_000  # the dynamics keep their initial values until this step
    learning_rate: Knots = ((0, 1e-3),)
    kl_weight: Knots = ((0, 1.0),)
    blur: Knots = ((0, 0.0),)  # standard deviation in pixels
    dynamics_rate: float = 1.0  # learning rate of the dynamics, as a multiple of that of the rest
    taught: int = (
        0  # steps on a teacher's lessons before the bound, see `motes.training.distillation`
    )
    steps_per_look: int = 1  # structured family: steps between two looks at the frames
    frozen_visibility: int = newer(0)  # structured family: nothing hides objects until this step
    seed_mixture: tuple[int, ...] = ()  # structured family: steps at which starts are clustered

    def __post_init__(self) -> None:
        require_counts(self, 1, "iterations", "steps_per_look")
        require_counts(self, 0, "frozen_dynamics", "frozen_visibility", "taught")
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
        """The same schedule over another number of iterations.

        Appearance stay as long, and starts are clustered at the same steps: after as many looks.
        """
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
            taught=round(self.taught * factor),
            frozen_visibility=round(self.frozen_visibility * factor),
        )

    def slower(self, factor: float) -> "ScheduleConfig":
        """The same schedule with other learning rates."""
        rates = tuple((step, factor * rate) for step, rate in self.learning_rate)
        return dataclasses.replace(self, learning_rate=rates)


@dataclass(frozen=True)
class RunConfig:
    """A whole training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batch_size: int = 20
    seed: int = 0  # of initial weights, batches and noise
    teacher: str | None = None  # a structured model: its name or run folder
    # A model whose weights training begins with, as far as they fit.
    begins_with: str | None = newer(None)
    log_every: int = 100
    checkpoint_every: int = 2_000

    def __post_init__(self) -> None:
        require_counts(self, 1, "batch_size", "log_every", "checkpoint_every")
        require(0 <= self.seed < 2**63, f"seed is {self.seed!r:.60}; give 0 to 2**63 - 1")
        require(
            self.checkpoint_every % self.schedule.steps_per_look == 0,
            f"checkpoint_every is {self.checkpoint_every!r:.40}; give a multiple of "
            f"steps_per_look, {self.schedule.steps_per_look}",
        )
        require(
            self.teacher is None or self.schedule.taught > 0,
            f"teacher is {self.teacher!r:.200}, but no step is a lesson (schedule.taught is 0): "
            "use --preset taught",
        )


def to_json(config: RunConfig) -> str:
    """The configuration as JSON text, with the version of the format."""
    return json.dumps({"version": FORMAT_VERSION, **dataclasses.asdict(config)}, indent=2) + "\n"


def from_json(text: str, origin: str | Path) -> RunConfig:
    """The configuration that `to_json` wrote, perhaps of an older version; errors name `origin`.

    Raises:
        InputError: not JSON, a newer version, unknown or missing fields, wrong types or values.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{origin} is not JSON ({error}); expected a motes config") from None
    require(isinstance(raw, dict), f"{origin} holds no JSON object; expected a motes config")
    version = raw.pop("version", None)
    require(
        version == FORMAT_VERSION,
        f"{origin} has format version {version!r:.60}; this motes reads version {FORMAT_VERSION}: "
        "use the motes that wrote it, or a newer one",
    )
    return _read(RunConfig, raw, str(origin))


Record = TypeVar("Record")


def _read(kind: type[Record], raw: Any, place: str) -> Record:
    """Builds a dataclass from parsed JSON, strictly."""
    require(isinstance(raw, dict), f"{place} is {raw!r:.60}; expected an object")
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(raw) - set(fields))
    missing = sorted(
        name for name in set(fields) - set(raw) if "newer" not in fields[name].metadata
    )
    require(not unknown, f"{place} has unknown fields {unknown!r:.120}; expected {sorted(fields)}")
    require(not missing, f"{place} lacks the fields {missing}")
    return kind(**{name: _value(fields[name].type, raw[name], f"{place}: {name}") for name in raw})


def _value(expected: Any, raw: Any, place: str) -> Any:
    """Checks one JSON value against an annotation and converts lists to tuples."""
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
    if expected is float and type(raw) is int and abs(raw) <= MOST:
        return float(raw)
    require(type(raw) is expected, f"{place} is {raw!r:.60}; expected {expected.__name__}")
    return raw
