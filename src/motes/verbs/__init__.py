"""What the command line does, one function for each verb; the only modules that print."""

import json
from pathlib import Path
from typing import Any


def tell(record: dict[str, Any], as_json: bool, sentence: str) -> None:
    """Prints the outcome of a verb: one JSON line for machines, or a sentence for people."""
    print(json.dumps(record) if as_json else sentence)


def listed(*paths: Path | None) -> str:
    """The names of the files that were written; None was not asked for."""
    return ", ".join(str(path) for path in paths if path is not None)
