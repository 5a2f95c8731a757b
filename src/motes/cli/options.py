"""Options that several commands share, and printing of results.

An option means the same in every command: `-o/--out` is the output, `-m/--model` the model,
`-d/--data` a clip file, `-n/--num-objects` a number of objects.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from tyro.conf import arg

from motes.core.errors import InputError

T = TypeVar("T")
Out = Annotated[T, arg(aliases=("-o",))]
ModelName = Annotated[T, arg(aliases=("-m",))]
Data = Annotated[T, arg(aliases=("-d",))]
NumObjects = Annotated[T, arg(aliases=("-n",))]
Json = Annotated[bool, arg(name="json")]


def print_result(record: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result of a command: one JSON line for programs, or text for people."""
    print(json.dumps(record) if as_json else text)


def join_paths(*paths: Path | None) -> str:
    """Return the given paths as a comma-separated list, without None."""
    return ", ".join(str(path) for path in paths if path is not None)


def time_span(start: float, end: float | None) -> tuple[float, float]:
    """Return the first and last second of a video to use; without an end, infinity."""
    last = float("inf") if end is None else end
    if not 0 <= start < last:
        raise InputError(f"start is {start:g} and end {end}; give 0 <= start < end in seconds")
    return start, last


def check_device(device: str) -> None:
    """Raise `InputError` if PyTorch has no such device."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device is cuda, but PyTorch finds no GPU here; use --device cpu")
