"""Locate, read and write the records of experiments and benchmarks.

Usage: python -m experiments.records     (list the stored records with commit and command)
"""

import json
from pathlib import Path
from typing import Any

import torch

from motes.core.environment import environment
from motes.models.model import write_json

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks" / "records"
Record = dict[str, Any]


def record_paths(suffix: str = ".json") -> dict[str, Path]:
    """Return the stored records (or arrays, with suffix ".npz") by the names of their files."""
    experiments = sorted((ROOT / "experiments").glob(f"*/*{suffix}"))
    return {path.stem: path for path in (*experiments, *sorted(BENCHMARKS.glob(f"*{suffix}")))}


def read_records(folder: Path | None = None) -> dict[str, Record]:
    """Return the records of a folder, or of all experiments and benchmarks, sorted by name."""
    paths = record_paths() if folder is None else {p.stem: p for p in folder.glob("*.json")}
    return {name: json.loads(paths[name].read_text("utf-8")) for name in sorted(paths)}


def write_record(record: Record, out: Path | None) -> None:
    """Print a record with its environment, and write it if a file is given.

    The command line is left out: it names the local file of the recording.
    """
    known = environment(torch.device("cpu"))
    del known["command"]
    record = {**record, "environment": known}
    if out is not None:
        write_json(out, record)
    print(record)


def main() -> None:
    """Print every record's path, commit and command."""
    for path in record_paths().values():
        known = json.loads(path.read_text("utf-8")).get("environment", {})
        commit = (known.get("motes_commit") or "")[:10]
        print(f"{path.relative_to(ROOT)!s:55} {commit:10} {known.get('command', '')}".rstrip())


if __name__ == "__main__":
    main()
