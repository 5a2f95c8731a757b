"""`motes bench`: how fast, against the naive form and against other libraries, in one run."""

import json
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from motes.checkpoint import write_json
from motes.run_folder import environment
from motes.verbs import tell


def bench(
    what: Positional[Literal["kalman", "train"]],
    device: str = "cpu",
    smoke: bool = False,
    out: Path | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Times exact inference or a training step; stop everything else on the machine first.

    Example: motes bench kalman --out results/bench_kalman.json

    Args:
        what: kalman (against dynamax and pyro) or train (against a naive step).
        device: cpu or cuda (train only).
        smoke: tiny sizes, to see that it runs; the times mean nothing.
        out: JSON file to write.
        as_json: print one JSON line instead of a table.
    """
    import torch

    from motes.bench.kalman import bench_kalman
    from motes.bench.train import bench_train

    if what == "kalman":
        result = bench_kalman(smoke=smoke)
    else:
        result = bench_train(device=device, smoke=smoke)
    record = {"bench": what, "environment": environment(torch.device(device)), **result}
    if out is not None:
        write_json(out, record)
    tell(record, as_json, json.dumps(result, indent=2))
