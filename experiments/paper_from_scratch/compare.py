"""Score the model from scratch and the distilled one on the same fresh clips.

Their tracked shares decide which model ships as `cannonballs-48`.

Usage: python -m experiments.paper_from_scratch.compare --device cuda --out FILE
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from experiments.paper_training.score_replicas import kept
from experiments.sprites_seeds.score_seeds import GPU_BATCH
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import cannonballs
from motes.evaluation.evaluate import BATCH, evaluate
from motes.evaluation.predictor import ModelPredictor
from motes.models.checkpoint import load

SEED = 11_000_027  # of clips that nothing was chosen by
MODELS = {"scratch": "cannonballs-48", "distilled": "cannonballs-48-distilled"}


def show(done: int) -> None:
    """Print the number of clips done, now and then."""
    if done % (5 * GPU_BATCH) == 0:
        print(done, end=" ", flush=True)


def main() -> None:
    """Write a record of both models; again after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=6_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    clips = cannonballs(given.clips, (1, 2, 3), seed=SEED)
    record: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "environment": environment(torch.device(given.device)),
        "test_seed": SEED,
        "clips": given.clips,
    }
    batch = BATCH if given.device == "cpu" else GPU_BATCH
    for name, folder in MODELS.items():
        begun = time.monotonic()
        model = load(folder, device=given.device)
        scores = kept(evaluate(ModelPredictor(model), clips, progress=show, batch_size=batch))
        record[name] = {"seconds": time.monotonic() - begun, **scores}
        write_json(given.out, record)
        tracked = [round(own["tracked"], 4) for own in scores["by_count"].values()]
        print(name, tracked, f"{record[name]['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
