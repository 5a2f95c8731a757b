"""Time the package against other code; stop everything else on the machine first.

Usage: python -m benchmarks kalman --out benchmarks/records/bench_kalman.json
       python -m benchmarks train [--device cuda] --out benchmarks/records/bench_train.json
       python -m benchmarks threads --out benchmarks/records/bench_threads.json
       python -m benchmarks startup --out benchmarks/records/bench_startup.json
       python -m benchmarks scale --out benchmarks/records/scale.json
           --picture docs/images/scale.png
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.curves import draw_curves
from benchmarks.kalman import bench_kalman
from benchmarks.scale import bench_scale, num_points
from benchmarks.startup import bench_startup
from benchmarks.threads import bench_threads
from benchmarks.train import bench_train
from benchmarks.train_gpu import bench_train_gpu
from motes.core.environment import environment
from motes.core.errors import InputError
from motes.core.files import all_or_none, atomic_path, check_output_paths, write_json


def bench(
    what: str, device: str, smoke: bool, out: Path | None = None, picture: Path | None = None
) -> dict[str, object]:
    """Run one benchmark, write its record and its plot, and return the record."""
    if device != "cpu" and what != "train":
        raise InputError(f"device is {device}; benchmark {what} runs on the CPU: leave it out")
    if picture is not None and what != "scale":
        raise InputError(f"picture is {picture}; benchmark {what} has no curves: leave it out")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device is cuda, but PyTorch finds no GPU; use --device cpu")
    check_output_paths(out, picture)
    others = {"kalman": bench_kalman, "startup": bench_startup, "threads": bench_threads}
    if what in others:
        result = others[what](smoke=smoke)
    elif what == "scale":
        from motes.cli.terminal import bar  # needs the libraries of the command line

        with bar("scale", num_points(smoke)) as progress:
            result = bench_scale(smoke=smoke, progress=progress)
    else:
        result = (bench_train_gpu if device.startswith("cuda") else bench_train)(smoke=smoke)
    record = {"bench": what, "environment": environment(torch.device(device)), **result}
    with all_or_none():
        if out is not None:
            write_json(out, record)
        if picture is not None:
            with atomic_path(picture) as temporary:
                draw_curves(result).savefig(temporary, format="png", dpi=120)
    return record


def main(arguments: list[str] | None = None) -> int:
    """Parse the options, run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("what", choices=("kalman", "train", "scale", "startup", "threads"))
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for train")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; the times mean nothing")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG file of the curves to write (scale)")
    given = parser.parse_args(arguments)
    try:
        record = bench(given.what, given.device, given.smoke, given.out, given.picture)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
