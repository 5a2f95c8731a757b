"""Score 90 % regions on balls that grow, blur or deform, by models trained on such clips.

Usage: python -m experiments.real_scenes.score_changing RUNS --out FILE
    RUNS    folder with the runs growth, blur and deformation, each trained with
            motes train --data CLIPS --out RUNS/growth on 60 clips of seed 1
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import motes
from experiments.records import write_record
from motes.data.worlds.changing import CHANGES, changing_cannonballs
from motes.evaluation.tracking_metrics import REGION

NUM_CLIPS, FIRST_SEED, SEEDS = 30, 5_000_000, 2


def score(run: Path, change: Any, seed: int) -> dict[str, Any]:
    """Return errors, stated errors and coverage by third of the clip."""
    clips = changing_cannonballs(change, NUM_CLIPS, seed=seed)
    answer = motes.infer(motes.load(run), clips.frames, 1)
    assert clips.positions is not None
    error = (answer.pixels - clips.positions)[:, 0].double()
    spread = answer.pixel_covariances[:, 0].double()
    seen = answer.seen[:, 0]
    distance = (error * torch.linalg.solve(spread, error)).sum(-1)
    inside, squares = (distance <= REGION), error.square().sum(-1)
    stated = spread.diagonal(dim1=-2, dim2=-1).sum(-1)

    def mean(values: torch.Tensor, frames: slice) -> float:
        return float(values[:, frames][seen[:, frames]].double().mean())

    thirds = [slice(0, 10), slice(10, 20), slice(20, 30)]
    whole = slice(None)
    fit = answer.fit
    return {
        "seed": seed,
        "seen": float(seen.double().mean()),
        "rmse": mean(squares, whole) ** 0.5,
        "stated": mean(stated, whole) ** 0.5,
        "coverage": mean(inside, whole),
        "coverage_by_third": [mean(inside, third) for third in thirds],
        "rmse_by_third": [mean(squares, third) ** 0.5 for third in thirds],
        "stated_by_third": [mean(stated, third) ** 0.5 for third in thirds],
        "clips_that_fit": float(fit.fits.double().mean()) if fit is not None else None,
    }


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    record = {
        "question": "90 % regions of balls that grow, blur or deform",
        "changes": {
            change: [score(given.runs / change, change, seed) for seed in seeds]
            for change in CHANGES
            if (given.runs / change).is_dir()
        },
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
