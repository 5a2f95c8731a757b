"""How the tools that score real recordings end: the record with its surroundings, kept and told."""

from pathlib import Path
from typing import Any

import torch

from motes.models.checkpoint import write_json
from motes.training.run_folder import environment


def close(record: dict[str, Any], out: Path | None) -> None:
    """Prints the record, and writes it if a file is named.

    The command line is left out: it names places of one machine, where the recording lies.
    """
    known = environment(torch.device("cpu"))
    del known["command"]
    record = {**record, "environment": known}
    if out is not None:
        write_json(out, record)
    print(record)
