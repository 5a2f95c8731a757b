"""Run all worlds and seeds of the public tables side by side and merge their records.

Every run is a process with one thread. Runs that fail or last longer than `--seconds` from the
start are named on the screen and missing from the records.

Usage: python -m experiments.public_tables.run_all --jobs 16 --runs runs/tables --out FOLDER
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from experiments.public_tables.score_forces import CASES
from experiments.public_tables.score_phyworld import KINDS
from motes.core.files import write_json


class Job(NamedTuple):
    """A world and a seed of a script."""

    record: str  # name of the merged file
    world: str
    seed: int


def jobs(seeds: list[int]) -> list[Job]:
    """Return all jobs, long ones first."""
    worlds = [("forces", name) for name in ("gravity", "spring-pair", "paig-spring")]
    assert {name for _, name in worlds} == set(CASES)
    worlds += [("phyworld", kind) for kind in KINDS]
    return [Job(*world, seed) for world in worlds for seed in seeds]


def run(job: Job, given: argparse.Namespace, deadline: float) -> str:
    """Run a job into a file of its own; return how it ended."""
    out = given.out / f"{job.world}-{job.seed}.json"
    script = f"experiments.public_tables.score_{job.record}"
    command = [sys.executable, "-m", script, job.world, str(job.seed)]
    command += ["--runs", str(given.runs / job.record), "--out", str(out)]
    command += ["--device", given.device, *(["--steps", str(given.steps)] * bool(given.steps))]
    left = deadline - time.monotonic()
    if left < 1:
        return f"{job.world} {job.seed}: no time left"
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{job.world} {job.seed}: not finished in time"
    if done.returncode:
        return f"{job.world} {job.seed}: {done.stderr[-400:]}"
    return f"{job.world} {job.seed}: done"


def merge(folder: Path) -> None:
    """Write the records of all finished jobs into one file for each script."""
    for record in ("forces", "phyworld"):
        merged: dict[str, dict[str, object]] = {}
        names = CASES if record == "forces" else KINDS
        for path in sorted(path for name in names for path in folder.glob(f"{name}-*.json")):
            for world, seeds in json.loads(path.read_text("utf-8")).items():
                merged.setdefault(world, {}).update(seeds)
        if merged:
            write_json(folder / f"{record}.json", merged)


def main() -> None:
    """Run all jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--steps", type=int, default=0, help="0: those of the preset")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/tables"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.seconds
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(lambda job: run(job, given, deadline), jobs(given.seeds)):
            print(line, flush=True)
    merge(given.out)


if __name__ == "__main__":
    main()
