"""Models and training states on disk: safetensors and JSON, nothing that can run code.

A run folder describes itself:

    config.json              the whole configuration, versioned
    environment.json         versions, device, commit
    log.jsonl                one line for each report of training
    model.safetensors        weights and pixel map, for use
    checkpoint.safetensors   weights and optimizer state, for resuming
    latent_map.png           the latent plane at the last checkpoint
    preparation.json         how clips were made of a video, if they were
    replicas.json            several seeds: which, each in a folder of its own
    selection.json           several seeds: their bounds, and which one was taken

A model to use is `config.json` and `model.safetensors` alone. Every file is replaced atomically.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from motes.config import RunConfig, from_json, to_json
from motes.core.axes import Tensor
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.models.model import Model, build

SHIPPED = Path(__file__).parent / "shipped"
LARGEST = 10**6  # of a weight that anybody learned


def save_model(folder: Path, model: Model, config: RunConfig, *, half: bool = False) -> None:
    """Writes `config.json` and `model.safetensors`; `half` stores network weights as float16."""
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if half:
        shrinks = ("renderer.", "inference.")
        tensors = {n: v.half() if n.startswith(shrinks) else v for n, v in tensors.items()}
    write_text(folder / "config.json", to_json(config))
    write_tensors(folder / "model.safetensors", tensors, {"kind": "model"})


def load(name_or_folder: str | Path, *, device: str | torch.device = "cpu") -> Model:
    """A model shipped under a name, or the one in a run folder, ready for queries.

    Raises:
        InputError: there is no such model, or its files are damaged or of a newer version.
    """
    return load_with_config(name_or_folder, device=device)[0]


def load_with_config(
    name_or_folder: str | Path, *, device: str | torch.device = "cpu"
) -> tuple[Model, RunConfig]:
    """The model and the configuration of the run that made it."""
    folder = find_model(name_or_folder)
    config = read_config(folder)
    model = build(config)
    tensors, _ = read_tensors(folder / "model.safetensors")
    restore(model, tensors, folder / "model.safetensors")
    return model.to(device).eval(), config


def find_model(name_or_folder: str | Path) -> Path:
    """The folder of a model given by its shipped name or its path."""
    if str(name_or_folder) in shipped_names():
        return SHIPPED / name_or_folder
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
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/model.safetensors"))


def read_config(folder: Path) -> RunConfig:
    """The configuration in a run folder."""
    path = folder / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{folder} has no config.json; give the folder of a run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    return from_json(text, path)


def restore(model: Model, tensors: dict[str, Tensor], origin: Path) -> None:
    """Copies tensors into the model, after checking names, shapes and values."""
    expected = model.state_dict()
    tensors = {"temper": expected["temper"], **tensors}  # a model that was never tempered has none
    if set(tensors) != set(expected):
        missing, extra = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
        told = f"missing {missing[:3]!s:.200}, unknown {extra[:3]!s:.200}"
        raise InputError(f"{origin} does not fit its config.json: {told}")
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{origin}: {name:.60} has shape {tuple(value.shape)!s:.60}, "
                f"its config.json asks for {tuple(expected[name].shape)}"
            )
        known = value.dtype in (torch.float16, torch.float32, torch.float64)
        if not known or not bool((value.to(expected[name].dtype).abs() <= LARGEST).all()):
            raise InputError(f"{origin}: {name} holds values that are not numbers up to {LARGEST}")
    model.load_state_dict(tensors)
    if not is_usable(model):
        raise InputError(f"{origin}: its numbers are beyond all bounds; train it again")


@torch.no_grad()
def is_usable(model: Model) -> bool:
    """Whether a model's numbers let it move, draw and look: all stay finite for an empty clip."""
    one = torch.ones(1, dtype=torch.int64)
    frames = torch.zeros(1, 2, *model.frame_shape)
    try:
        law = model.dynamics.components()
        picture = model.renderer(torch.zeros(1, model.max_objects, 1, 2), model.present(one))
        places = model.encode(frames, one).means
    except (IndexError, ValueError, RuntimeError):  # what a number that is not finite may end in
        return False
    moderate = all(bool((part.abs() <= LARGEST**2).all()) for part in law)
    moderate &= bool((model.temper > 0).all())
    return moderate and all(bool(part.isfinite().all()) for part in (picture, places))


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file atomically.

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
        except SafetensorError as error:  # in which the system's own error is a part of the text
            raise OSError(f"{path} could not be written ({error})") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file that motes wrote.

    Raises:
        InputError: missing, truncated, foreign or hostile file.
    """
    metadata = read_metadata(path)
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone, see `read_tensors`."""
    with _opened(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != "motes":
        raise InputError(f"{path} was not written by motes")
    return metadata


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; what is wrong with it is told in a line."""
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
    """Writes a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
