"""`motes bench`: how fast, against the naive form and against other libraries, in one run."""

import json
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from motes.cli.options import Json, tell
from motes.cli.progress import bar
from motes.core.errors import InputError
from motes.core.files import all_or_none, atomic_path, check_places
from motes.models.checkpoint import write_json
from motes.training.run_folder import environment


def bench(
    what: Positional[Literal["kalman", "train", "scale"]],
    device: str = "cpu",
    smoke: bool = False,
    out: Path | None = None,
    picture: Path | None = None,
    as_json: Json = False,
) -> None:
    """Times exact inference, a training step or growing questions; stop everything else first.

    Example: motes bench kalman --out results/bench_kalman.json

    Example: motes bench scale --out results/scale.json --picture docs/images/scale.png

    Args:
        what: kalman (against dynamax and pyro), train (against a naive step) or scale (seconds and
            memory over frames, objects, clips and size).
        device: cpu or cuda (train only).
        smoke: tiny sizes, to see that it runs; the times mean nothing.
        out: JSON file to write.
        picture: PNG file of the curves to write (scale only).
        as_json: print one JSON line instead of a table.
    """
    import torch

    if device != "cpu" and what != "train":
        raise InputError(f"device is {device}; bench {what} is of the CPU: leave it out")
    if picture is not None and what != "scale":
        raise InputError(f"picture is {picture}; bench {what} has no curves: leave it out")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device is cuda, but PyTorch sees no GPU here; use --device cpu")
    check_places(out, picture)

    from motes.bench.curves import draw_curves
    from motes.bench.kalman import bench_kalman
    from motes.bench.scale import bench_scale, num_points
    from motes.bench.train import bench_train
    from motes.bench.train_gpu import bench_train_gpu

    if what == "kalman":
        result = bench_kalman(smoke=smoke)
    elif what == "scale":
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
    tell(record, as_json, json.dumps(result, indent=2))
