"""Models on disk.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from motes.config import RunConfig, from_json, to_json
from motes.core.axes import Tensor
from motes.core.device import check_device
from motes.core.errors import InputError
from motes.core.files import atomic_path, write_text
from motes.models.model import Model, build

SHIPPED = Path(__file__).parent / "shipped"
MAX_WEIGHT = 1e6  # larger values are treated as damage
# Tensors that files of earlier versions may lack.
ADDED = {"calibration_scale", "dynamics.mean_variance", "dynamics.in_time"}
ALIASES = {"cannonballs-sprites": "cannonballs-structured"}
RENAMED = {"temper": "calibration_scale"}  # tensors of version 0.1


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
