"""Score the true physics with the exact posterior on the clips of `train_and_score`.

Usage: python -m experiments.paper_from_scratch.limits --side 48 --frames 50 --out FILE
"""

import argparse
import dataclasses
from pathlib import Path

import torch

from experiments.paper_from_scratch.train_and_score import (
    FRESH_SEED,
    TEST_SEED,
    limit_name,
    test_clips,
)
from experiments.paper_training.score_replicas import score_limit
from motes.core.files import write_json
from motes.training.presets import PRESETS


def main() -> None:
    """Write the scores under the keys of records/limits.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=48)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = PRESETS["paper-scratch"]
    data = dataclasses.replace(
        config.data, height=given.side, width=given.side, num_frames=given.frames
    )
    config = dataclasses.replace(config, data=data)
    found = {}
    for seed in (TEST_SEED, FRESH_SEED):
        found[limit_name(data, seed)] = score_limit(test_clips(config, given.clips, seed))
        write_json(given.out, found)


if __name__ == "__main__":
    main()
