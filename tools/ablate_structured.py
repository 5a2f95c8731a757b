"""Take the parts of the structured family away, one at a time, and score what is left.

Each run learns from scratch from the same clips and seed, with one module constant changed, and is
scored on the same unseen clips; `tools/make_results.py` makes the table of docs/structured.md.

Usage: python tools/ablate_structured.py                      # all of it, some minutes a part
       python tools/ablate_structured.py --only "no exploring" --test-clips 30
"""

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from motes.checkpoint import load, write_json
from motes.config import RunConfig
from motes.data import World, draw_clips
from motes.evaluate import Asked, evaluate
from motes.presets import preset
from motes.run_folder import environment
from motes.train import train

TEST_SEED = 1_000_000
SCORES = (
    *("tracked", "noisy_rmse", "path_rmse", "forecast_rmse", "interpolation_rmse"),
    *("forecast_loss", "infer_coverage90", "forecast_coverage90"),
)


class Change(NamedTuple):
    """A module constant, and what it is for one run."""

    module: str
    name: str
    value: Any


# The name of a run: what is changed in it, while it learns and while it is asked.
RUNS: dict[str, tuple[Change, ...]] = {
    "everything": (),
    "one start": (Change("motes.beginnings", "STARTS", ((1.0, 1.0),)),),
    "no mixture seeding": (Change("motes.trainer", "seed_mixture", lambda *arguments: None),),
    "no exploring": (Change("motes.trainer", "EXPLORE", 0.0),),
    "no second look": (Change("motes.structured.tracker", "REVISITS", 0),),
    "no exchange": (Change("motes.structured.tracker", "EXCHANGES", 0),),
    "no later hypotheses": (Change("motes.encoding", "HYPOTHESES", 1),),
}


@contextlib.contextmanager
def changed(changes: tuple[Change, ...]) -> Iterator[None]:
    """Changes constants, and puts them back."""
    with contextlib.ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(mock.patch(f"{module}.{name}", value))
        yield


def ablate(changes: tuple[Change, ...], config: RunConfig, num_clips: int) -> dict[str, Any]:
    """Learns and is scored with these changes; returns the record of the run."""
    data = config.data
    world = World(data.num_frames, (data.height, data.width))
    clips = draw_clips(world, num_clips, sorted(set(data.num_objects)), TEST_SEED)
    with changed(changes), tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.monotonic(), time.process_time()
        outcome = train(config, Path(folder))
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        scores = evaluate(Asked(load(folder)), clips)
    return {
        "held_out_bound": outcome.held_out_bound,
        "by_count": {
            count: {"clips": column["clips"], **{name: column[name] for name in SCORES}}
            for count, column in scores["by_count"].items()
        },
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "environment": environment(torch.device("cpu")),
    }


def store(path: Path, name: str, config: RunConfig, record: dict[str, Any]) -> None:
    """Puts the record of one run into the file; runs of another configuration are dropped."""
    stored: dict[str, Any] = {"config": json.loads(json.dumps(dataclasses.asdict(config)))}
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))
        if before["config"] == stored["config"]:
            stored = before
    runs = stored.setdefault("ablations", {}) | {name: record}
    stored["ablations"] = {run: runs[run] for run in RUNS if run in runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stored)


def main() -> None:
    """Make the runs that were asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--preset", default="robust", help="of the structured family")
    parser.add_argument("--seed", type=int, default=0, help="of the runs")
    parser.add_argument("--test-clips", type=int, default=300, help="to be scored on")
    parser.add_argument("--out", type=Path, default=Path("results/ablation_structured.json"))
    arguments = parser.parse_args()
    config = dataclasses.replace(preset("structured", arguments.preset), seed=arguments.seed)
    for name in arguments.only:
        record = ablate(RUNS[name], config, arguments.test_clips)
        store(arguments.out, name, config, record)
        tracked = " / ".join(f"{c['tracked']:.3f}" for c in record["by_count"].values())
        print(f"{name}: tracked {tracked}, {record['wall_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
