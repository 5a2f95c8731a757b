"""What the command line does, one function for each verb; the only modules that print."""

import json
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from motes.core.errors import InputError

Json = Annotated[bool, arg(name="json")]


def tell(record: dict[str, Any], as_json: bool, sentence: str) -> None:
    """Prints the outcome of a verb: one JSON line for machines, or a sentence for people."""
    print(json.dumps(record) if as_json else sentence)


def listed(*paths: Path | None) -> str:
    """The names of the files that were written; None was not asked for."""
    return ", ".join(str(path) for path in paths if path is not None)


def seconds(start: float, end: float | None) -> tuple[float, float]:
    """The first and the last second of a video to use; without an end, all that follows."""
    last = float("inf") if end is None else end
    if not 0 <= start < last:
        raise InputError(f"start is {start:g} and end {end}; give 0 <= start < end in seconds")
    return start, last
